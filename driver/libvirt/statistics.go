package libvirt

import (
	"context"
	"fmt"
	"time"

	"berth/driver"
)

// Groups of virDomainStatsTypes, and flags of virConnectGetAllDomainStats.
const (
	statsState     = 1 << 0
	statsCPU       = 1 << 1
	statsBalloon   = 1 << 2
	statsVCPU      = 1 << 3
	statsInterface = 1 << 4
	statsBlock     = 1 << 5

	statsOfActive = 1 << 0
	statsNoWait   = 1 << 29
)

// Statistics implements driver.Statistician, in one call for all domains.
func (d *Driver) Statistics(ctx context.Context) ([]driver.Usage, error) {
	const groups = statsState | statsCPU | statsBalloon | statsVCPU | statsInterface | statsBlock
	return do(ctx, d.stats, request{verb: "read statistics"}, func(c Conn) ([]driver.Usage, error) {
		all, err := c.Stats(groups, statsOfActive|statsNoWait)
		if err != nil {
			return nil, err
		}
		out := make([]driver.Usage, len(all))
		for i, s := range all {
			out[i] = usage(s)
		}
		return out, nil
	})
}

// usage puts libvirt's parameters (libvirt-domain.h, VIR_DOMAIN_STATS_*) into
// Berth's units: memory is in KiB there, times are in nanoseconds.
func usage(s Stats) driver.Usage {
	n := func(name string) uint64 {
		v, _ := s.Values[name].(uint64)
		return v
	}
	sum := func(group, what string) (total uint64) {
		// No more than there are parameters, whatever the daemon says.
		for i := range min(n(group+".count"), uint64(len(s.Values))) {
			total += n(fmt.Sprintf("%s.%d.%s", group, i, what))
		}
		return total
	}
	return driver.Usage{
		UUID: s.UUID, Name: s.Name, State: stateName(int(n("state.state"))),
		CPUTime: time.Duration(n("cpu.time")), VCPUs: int(n("vcpu.current")), VCPUsMax: int(n("vcpu.maximum")),
		Memory: n("balloon.current") << 10, MemoryMax: n("balloon.maximum") << 10, RSS: n("balloon.rss") << 10,
		DiskRead: sum("block", "rd.bytes"), DiskWritten: sum("block", "wr.bytes"),
		Received: sum("net", "rx.bytes"), Sent: sum("net", "tx.bytes"),
	}
}
