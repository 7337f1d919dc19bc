package conductor_test

import (
	"context"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// simPostCopy is what a source keeps of guests that leave by a second job.
type simPostCopy struct {
	endWanted map[string]bool // by migration/attempt
	second    map[string]bool
	recovered []uint64 // bandwidths with which a post-copy was made whole
}

func newSimPostCopy() simPostCopy {
	return simPostCopy{endWanted: map[string]bool{}, second: map[string]bool{}}
}

// half reports whether a domain has not all of its guest's memory because of a post-copy.
func (d *simDomain) half() bool { return d != nil && strings.HasPrefix(d.reason, "post-copy") }

func (h *simHost) EndStream(_ context.Context, ref migration.Ref) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if err := h.buried(ref, migration.StepStream); err != nil {
		return err
	}
	if !h.started[at(ref)] || !h.token.here || h.left() || h.domain == nil {
		return fault.New(fault.Forbidden, "host %s: end %s: the guest has left", h.name, at(ref))
	}
	if h.second[at(ref)] {
		return nil
	}
	h.endWanted[at(ref)] = true
	if h.job.running {
		h.job.abort(h)
	}
	return nil
}

func (h *simHost) StartPostCopy(_ context.Context, ref migration.Ref, s migration.Stream) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if err := h.buried(ref, migration.StepStream); err != nil {
		return err
	}
	if h.second[at(ref)] {
		return nil
	}
	if !h.endWanted[at(ref)] || h.job.running {
		h.w.violate("post-copy was begun on %s beside the first job", h.name)
	}
	if h.domain == nil || h.domain.state != "running" {
		return fault.New(fault.Forbidden, "host %s: the domain does not run", h.name)
	}
	h.second[at(ref)] = true
	h.job = &simJob{ref: ref, to: h.w.byProvider(s.Prepared.LibvirtURI), running: true}
	h.w.init.Go("second job on "+h.name, h.job.postCopy(h, s.Ticket))
	return nil
}

func (h *simHost) RecoverPostCopy(_ context.Context, _ migration.Ref, s migration.Stream) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if h.domain == nil || !h.domain.half() || h.domain.reason == "post-copy" && !h.job.stands {
		return nil
	}
	if h.w.sim.Elapsed() < h.job.repaired || !h.job.to.domain.half() {
		return fault.New(fault.Unavailable, "host %s: no route to host", h.name)
	}
	*h.domain, *h.job.to.domain = simDomain{"paused", "post-copy"}, simDomain{"running", "post-copy"}
	h.job.p.Phase, h.job.stands = "post-copy", false
	h.recovered = append(h.recovered, s.Options.PostCopyBandwidth)
	return nil
}

// postCopy is the thread of a second job.
func (j *simJob) postCopy(h *simHost, ticket string) func() {
	w := h.w
	sleep := func(d time.Duration) bool {
		_ = w.init.Sleep(context.Background(), d)
		return j.running
	}
	return func() {
		j.p.Phase, j.p.MemoryTotal = "setup", 1<<30
		if !sleep(max(time.Second, w.script.secondTakes)) {
			return
		}
		cl := j.to.claims[at(j.ref)]
		if cl == nil || cl.state != "arriving" || cl.ticket != ticket || j.to.domain != nil {
			j.running, j.err = false, "the destination refuses: no claim names this migration"
			return
		}
		j.to.domain = &simDomain{"paused", "migrating"}
		j.p.Phase = "memory"
		if !sleep(500 * time.Millisecond) {
			return
		}
		if w.script.secondFails {
			j.to.domain = nil
			j.running, j.err = false, "qemu unexpectedly closed the monitor"
			return
		}
		if w.script.secondHeld {
			*h.domain, *j.to.domain = simDomain{"paused", "migrating"}, simDomain{"running", "migrated"}
			j.running, j.err = false, "libvirtd went away"
			return
		}
		*h.domain, *j.to.domain = simDomain{"paused", "post-copy"}, simDomain{"running", "post-copy"}
		w.check("post-copy")
		j.p.Phase = "post-copy"
		for i := 1; i <= 6; i++ {
			if !sleep(time.Second) {
				return
			}
			j.p.MemoryProcessed, j.p.MemoryRemaining, j.p.PageRequests = uint64(i)<<27, uint64(6-i)<<27, uint64(i)
			switch i {
			case w.script.breakAt:
				j.repaired = w.sim.Elapsed() + w.script.brokenFor
				*h.domain, *j.to.domain = simDomain{"paused", "post-copy failed"}, simDomain{"running", "post-copy failed"}
				j.p.Phase = "post-copy failed"
				for h.domain != nil && h.domain.reason == "post-copy failed" {
					if !sleep(250 * time.Millisecond) {
						return
					}
				}
			case w.script.standsAt:
				j.repaired, j.stands = w.sim.Elapsed()+w.script.brokenFor, true
				*h.domain = simDomain{"paused", "post-copy"}
				for j.stands {
					if !sleep(250 * time.Millisecond) {
						return
					}
				}
			case w.script.halfDiesAt:
				*h.domain, *j.to.domain = simDomain{"shut off", "crashed"}, simDomain{"running", "post-copy failed"}
				j.running, j.err = false, "domain is not running"
				return
			case w.script.endsAt:
				*h.domain, *j.to.domain = simDomain{"paused", "post-copy failed"}, simDomain{"shut off", "shutdown"}
				j.p.Phase, j.running, j.err = "post-copy failed", false, "domain is not running"
				return
			}
		}
		*j.to.domain = simDomain{"running", "migrated"}
		*h.domain = simDomain{"shut off", "migrated"}
		if w.transient {
			h.domain = nil
		}
		h.seen = true
		_ = w.init.Sleep(context.Background(), 10*time.Millisecond)
		j.running = false
	}
}

func (x hostWire) EndStream(ctx context.Context, ref migration.Ref) error {
	return act(x, "EndStream", func() error { return x.h.EndStream(ctx, ref) })
}

func (x hostWire) StartPostCopy(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return act(x, "StartPostCopy", func() error { return x.h.StartPostCopy(ctx, ref, s) })
}

func (x hostWire) RecoverPostCopy(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return act(x, "RecoverPostCopy", func() error { return x.h.RecoverPostCopy(ctx, ref, s) })
}
