package transfer

import (
	"time"

	"berth/migration"
)

// rateWindow is over how much time a rate is measured: long enough for QEMU's
// bursts, short enough to show a link that has died. Arbitrary.
const rateWindow = time.Second

// Rate measures how fast a stream moves from what two looks say has moved.
// QEMU's own figure is that of its last pass, and stays when nothing moves any
// more; for disks libvirt gives none.
type Rate struct {
	since time.Duration // boot clock
	bytes uint64
	begun bool
	value uint64 // bytes a second over the last window
}

// See takes a look at the stream into account.
func (r Rate) See(now time.Duration, p migration.Progress) Rate {
	moved := p.MemoryProcessed + p.DiskProcessed
	switch {
	case !r.begun || moved < r.bytes:
		return Rate{since: now, bytes: moved, begun: true}
	case now-r.since >= rateWindow:
		return Rate{
			since: now, bytes: moved, begun: true,
			value: uint64(float64(moved-r.bytes) / (now - r.since).Seconds()),
		}
	}
	return r
}

// Value is the rate of the last window, in bytes a second; 0 while the first one lasts.
func (r Rate) Value() uint64 { return r.value }
