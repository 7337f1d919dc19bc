package conductor_test

import (
	"context"
	"time"

	"berth/migration"
)

// abort ends a job as libvirt does: the source runs on; a copy that is still
// incoming ends with its connection, a finished one stays, paused.
func (j *simJob) abort(h *simHost) {
	j.running, j.aborted, j.err = false, true, "operation aborted: job 'migration out' canceled by client"
	if d := j.to.domain; d != nil && d.reason == "migrating" {
		j.to.domain = nil
	}
	if h.domain != nil && h.domain.state == "paused" && h.w.power == migration.PowerRunning {
		*h.domain = simDomain{"running", "migration canceled"}
	}
}

// run is the job's thread in the source's libvirtd: it goes on whatever becomes
// of the agents.
func (j *simJob) run(h *simHost, ticket string) func() {
	w := h.w
	sleep := func(d time.Duration) bool {
		_ = w.init.Sleep(context.Background(), d)
		return j.running
	}
	return func() {
		j.p.Phase = "setup"
		j.p.MemoryTotal = 1 << 30
		if !sleep(1500 * time.Millisecond) {
			return
		}
		cl := j.to.claims[at(j.ref)]
		if cl == nil || cl.state != "arriving" || cl.ticket != ticket || j.to.domain != nil {
			j.running, j.err = false, "the destination refuses: no claim names this migration"
			return
		}
		j.to.domain = &simDomain{"paused", "migrating"}
		j.p.Phase = "memory"
		for i := uint64(1); w.script.busy && !j.suspended; i++ {
			// Memory changes as fast as it is sent.
			for part := range uint64(4) {
				j.p.MemoryProcessed, j.p.MemoryRemaining, j.p.Iteration = (4*i+part)<<26, (4-part)<<26, i
				if !sleep(500 * time.Millisecond) {
					return
				}
			}
		}
		for i := 1; i <= 8; i++ {
			if !sleep(time.Second) {
				return
			}
			switch {
			case w.script.stallAt == i:
				for sleep(time.Second) {
				}
				return
			case w.script.failAt == i:
				j.to.domain = nil
				j.running, j.err = false, "qemu unexpectedly closed the monitor"
				return
			case w.script.crashAt == i:
				if *h.domain = (simDomain{"shut off", "crashed"}); w.transient {
					h.domain = nil
				}
				j.to.domain = nil
				j.running, j.err = false, "domain is not running"
				return
			}
			j.p.MemoryProcessed, j.p.MemoryRemaining, j.p.Iteration, j.p.Rate = uint64(i)<<27, uint64(8-i)<<27, max(1, j.p.Iteration), 128<<20
		}
		// Finish: from here the copy is whole.
		j.p.Phase = "switchover"
		*h.domain = simDomain{"paused", "migrating"}
		if !sleep(30 * time.Millisecond) {
			return
		}
		*j.to.domain = simDomain{"paused", "user"}
		if !sleep(20 * time.Millisecond) {
			return
		}
		if w.script.finishLost {
			if w.power == migration.PowerRunning {
				*h.domain = simDomain{"running", "migration canceled"}
			} else {
				*h.domain = simDomain{"paused", "user"}
			}
			j.running, j.err = false, "client socket is closed"
			w.check("a lost Finish")
			return
		}
		switch {
		case w.transient:
			h.domain = nil
		case w.script.unseen:
			*h.domain = simDomain{"shut off", "unknown"}
			j.running, j.err = false, "client socket is closed"
			return
		case w.script.forgets:
			*h.domain = simDomain{"shut off", "unknown"}
		default:
			*h.domain = simDomain{"shut off", "migrated"}
		}
		h.seen = true
		_ = w.init.Sleep(context.Background(), 10*time.Millisecond)
		j.running = false
	}
}
