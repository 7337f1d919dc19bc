//go:build native

package native

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/driver/libvirt"
)

func TestMain(m *testing.M) {
	// libvirt's event loop is the process's and has no end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("libvirt.org/go/libvirt.EventRunDefaultImpl"))
}

// libvirt's test driver inside the process: no daemon, nothing installed but the
// library.
func TestNative_ConformsOnLibvirtsTestDriver(t *testing.T) {
	cannot := map[string]string{
		"Restart_ReconnectsAndResyncs": "there is no daemon to restart",
		"Hang_CostsADeadlineAndNoMore": "there is no daemon to hang",
		"Hang_IsSeenByHealth":          "there is no daemon to hang",
		"Start_PausedDoesNotRun":       "the test driver refuses VIR_DOMAIN_START_PAUSED",
		"Node_HasAHostUUIDThatStays":   "the test driver's capabilities have no host uuid",
		"Node_ListsMachines":           "the test driver has no machine types",
	}
	for _, group := range []string{"Migrate_", "Job_"} {
		for _, name := range drivertest.Properties(group) {
			cannot[name] = "the test driver has no peer-to-peer migration and no jobs"
		}
	}
	for _, name := range drivertest.Properties("CheckCPU_") {
		cannot[name] = "the test driver compares no CPUs"
	}
	drivertest.Run(t, drivertest.Harness{
		New: func(*testing.T) driver.Driver {
			return libvirt.New(libvirt.Options{Dial: Dial, URI: "test:///default", PingInterval: 100 * time.Millisecond})
		},
		DomainXML: func(name, uuid string) string {
			return fmt.Sprintf("<domain type='test'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>", name, uuid)
		},
		Cannot: cannot,
	})
}

func TestAddress_PutsTheSocketIntoTheURI(t *testing.T) {
	for _, tt := range []struct {
		target libvirt.Target
		want   string
	}{
		{libvirt.Target{URI: "test:///default", Socket: "/run/x"}, "test:///default"},
		{libvirt.Target{URI: "qemu:///system", Socket: "/run/a b"}, "qemu+unix:///system?socket=%2Frun%2Fa+b"},
		{libvirt.Target{URI: "qemu+unix:///system?socket=/y", Socket: "/run/x"}, "qemu+unix:///system?socket=/y"},
		{libvirt.Target{URI: "qemu:///system"}, "qemu:///system"},
	} {
		if got, err := address(tt.target); err != nil || got != tt.want {
			t.Errorf("%+v: %q, %v, want %q", tt.target, got, err, tt.want)
		}
	}
}
