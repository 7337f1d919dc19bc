package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/internal/runtime"
)

// progress is how the agent's loops go round, for the watchdog. A loop is in it that waits for
// nothing but memory, the ledger's file and locks: one that stands is stuck on one of them, which
// a restart may mend. Loops that ask libvirt, Placement or other hosts are not: those may take
// their time, and a restart mends none of them. The zero value is ready.
type progress struct {
	// mu guards loops; nothing happens under it.
	mu    sync.Mutex
	loops map[string]*rounds
}

type rounds struct {
	done, seen uint64
	still      time.Time // when it was first seen to stand; zero while it goes round
}

// standsAfter is how long a loop may be seen standing. Arbitrary: each goes round in two seconds,
// and a machine that is short of everything takes some more.
const standsAfter = 20 * time.Second

// round says that a loop has come round. It counts from the first time on.
func (p *progress) round(loop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loops == nil {
		p.loops = map[string]*rounds{}
	}
	if p.loops[loop] == nil {
		p.loops[loop] = &rounds{}
	}
	p.loops[loop].done++
}

// standing names the loops that have been seen at the same round for too long. now is the wall
// clock for what it carries beside it: time since then in which the machine was awake. The boot
// clock would accuse every loop of a machine that slept.
func (p *progress) standing(now time.Time) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, loop := range slices.Sorted(maps.Keys(p.loops)) {
		r := p.loops[loop]
		switch {
		case r.done != r.seen:
			r.seen, r.still = r.done, time.Time{}
		case r.still.IsZero():
			r.still = now
		case now.Sub(r.still) > standsAfter:
			out = append(out, loop)
		}
	}
	return out
}

// loop is a runtime for whoever sleeps in one loop alone: each sleep is a round of it.
type loop struct {
	runtime.Runtime
	loops *progress
	name  string
}

// Sleep says that the loop has come round, then sleeps.
func (l loop) Sleep(ctx context.Context, d time.Duration) error {
	l.loops.round(l.name)
	return l.Runtime.Sleep(ctx, d)
}
