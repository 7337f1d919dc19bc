package transfer

import (
	"testing"
	"time"

	"berth/migration"
)

func TestRate_IsMeasuredAndEndsWithTheLink(t *testing.T) {
	const mib = 1 << 20
	var r Rate
	for _, look := range []struct {
		at           time.Duration
		memory, disk uint64
		want         uint64
	}{
		{10 * time.Second, 0, 0, 0},
		{10*time.Second + 300*time.Millisecond, 3 * mib, 0, 0}, // too soon to tell
		{11 * time.Second, 0, 10 * mib, 10 * mib},              // disks count
		{12 * time.Second, 20 * mib, 10 * mib, 20 * mib},
		{12*time.Second + 500*time.Millisecond, 21 * mib, 10 * mib, 20 * mib},
		{14 * time.Second, 30 * mib, 10 * mib, 5 * mib},
		{15 * time.Second, 30 * mib, 10 * mib, 0}, // the link is dead
		{16 * time.Second, 1 * mib, 0, 0},         // another job's counters begin anew
	} {
		r = r.See(look.at, migration.Progress{MemoryProcessed: look.memory, DiskProcessed: look.disk})
		if r.Value() != look.want {
			t.Errorf("at %v: %d bytes a second, want %d", look.at, r.Value(), look.want)
		}
	}
}
