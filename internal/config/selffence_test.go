package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/fault"
)

func TestFleet_ALeaseWithoutRoomForTheWatchdogIsRefused(t *testing.T) {
	for _, tt := range []struct {
		lease, timeout time.Duration
		fits           bool
	}{
		{30 * time.Second, 10 * time.Second, true},
		{26 * time.Second, 10 * time.Second, true},
		{25 * time.Second, 10 * time.Second, false},
		{30 * time.Second, 30 * time.Second, false},
	} {
		c := Default()
		c.Fleet.Etcd, c.Fleet.SelfFence = []string{"http://127.0.0.1:2379"}, "/dev/watchdog0"
		c.Fleet.Lease, c.Fleet.SelfFenceTimeout = Duration(tt.lease), Duration(tt.timeout)
		reasons := fault.ReasonsOf(c.Validate())
		named := slices.ContainsFunc(reasons, func(r fault.Reason) bool {
			return strings.HasPrefix(r.Message, "fleet.lease = ") && strings.Contains(r.Want, "a lease of ")
		})
		if named == tt.fits || len(reasons) > 1 {
			t.Errorf("lease %s, timeout %s: %+v", tt.lease, tt.timeout, reasons)
		}
	}
}
