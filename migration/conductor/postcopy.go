package conductor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
	"berth/migration/task"
	"berth/migration/transfer"
)

// permitsPostCopy reports whether a live move with these options may end by post-copy.
func permitsPostCopy(o migration.Options) bool { return o.PostCopy == options.On }

// wantsPostCopy reports whether a journal's stream was ended for it.
func wantsPostCopy(st task.State) bool {
	var end streamEnd
	step, _ := st.Step(migration.StepStream)
	return step.Output != nil && json.Unmarshal(step.Output, &end) == nil && end.PostCopy
}

func withoutPostCopy(st task.State) bool { return !wantsPostCopy(st) }

// streamOf is how the guest is to be sent, by either job.
func (s liveSteps) streamOf(t *task.Task) (migration.Stream, error) {
	var claim migration.ClaimAnswer
	var disks migration.SourceAnswer
	var prepared migration.Prepared
	if err := outputs(t, migration.StepClaim, &claim, migration.StepCheckSource, &disks, migration.StepPreLiveMigration, &prepared); err != nil {
		return migration.Stream{}, err
	}
	return migration.Stream{
		Prepared: prepared, Ticket: claim.Ticket, CopyDisks: disks.CopyDisks, Shared: disks.Shared, Options: s.sendOptions(t),
	}, nil
}

// sendOptions are the move's, without what the two hosts have dropped for this guest.
func (s liveSteps) sendOptions(t *task.Task) migration.Options {
	o := s.rec.Options
	var there migration.CheckAnswer
	var here migration.SourceAnswer
	if outputs(t, migration.StepCheckDestination, &there, migration.StepCheckSource, &here) == nil && migration.PostCopyDropped(there, here) {
		o.PostCopy = options.Off
	}
	return o
}

// noPostCopy is why this attempt cannot go on by post-copy; nil where it can.
func (s liveSteps) noPostCopy(ctx context.Context, t *task.Task) error {
	switch o := s.sendOptions(t); {
	case !permitsPostCopy(s.rec.Options):
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "post_copy_not_permitted", Message: "post-copy is not permitted for this move",
			Change: "permit it when the move is asked for (--post-copy), for the flavor, or in [migration] post_copy",
		})
	case !permitsPostCopy(o):
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "post_copy_dropped", Message: "this guest cannot go by post-copy; what was done about its transfer says why",
			Change: "look at it with berth migration show " + s.rec.UUID,
		})
	}
	return s.atPostCopySource(ctx, s.c.cfg.VerbTimeout, func(context.Context, migration.PostCopySource) error { return nil })
}

// atPostCopySource asks the source what only a local one can be asked.
func (s liveSteps) atPostCopySource(ctx context.Context, timeout time.Duration, f func(context.Context, migration.PostCopySource) error) error {
	return s.atSource(ctx, timeout, func(ctx context.Context, h migration.Host) error {
		source, ok := h.(migration.PostCopySource)
		if !ok {
			return fault.New(fault.Invalid, "host %s cannot send a guest by post-copy", s.from)
		}
		return f(ctx, source)
	})
}

// endStream ends the first job for the second. fault.Forbidden where the guest has left by it
// meanwhile.
func (s liveSteps) endStream(ctx context.Context) error {
	return s.atPostCopySource(ctx, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.PostCopySource) error {
		return h.EndStream(ctx, s.ref(migration.StepStream))
	})
}

// postCopy is step 8a': the second job, which becomes post-copy at once. It ends when the
// source's domain has left by it. While that has not come the guest has all its memory at the
// source, and an error is undone as a stream's is.
func (s liveSteps) postCopy(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return nil, err
	}
	stream, err := s.streamOf(t)
	if err != nil {
		return nil, err
	}
	limit := s.timeLimits().limits().Setup
	began := s.c.cfg.Runtime.Boot().Since
	for pause := s.c.cfg.PollInterval; ; pause = min(2*pause, recoverFirst) {
		err := s.atPostCopySource(ctx, limit, func(ctx context.Context, h migration.PostCopySource) error {
			return h.StartPostCopy(ctx, s.ref(migration.StepStream), stream)
		})
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		again := errors.Is(err, fault.Unavailable) || errors.Is(err, fault.InDoubt)
		status := s.look(ctx)
		if status != nil {
			s.progress(status.Progress)
		}
		_, action, why := s.decide(ctx, t, status, src.Guest.Persistent, JournalStreaming)
		elapsed := s.c.cfg.Runtime.Boot().Since - began
		switch {
		case action == ActionCommit:
			return nil, nil
		case action == ActionYield && s.yield(ctx, t) == nil:
			return nil, nil
		case action == ActionReclaim && (err == nil || !again):
			return nil, postCopyFailed(why, status, err)
		case status != nil && elapsed >= limit && (action == ActionReclaim || action == ActionWait):
			return nil, postCopyFailed(fmt.Sprintf("post-copy has not begun after %s", elapsed.Round(time.Second)), status, err)
		case action == ActionInDoubt || elapsed >= s.c.cfg.Patience:
			t.Doubt(fault.New(fault.InDoubt, "%s", why))
		}
		if err := s.c.cfg.Runtime.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// postCopyFailed tells of a second job by which the guest did not leave.
func postCopyFailed(why string, status *migration.StreamStatus, err error) error {
	switch {
	case err != nil:
		why += ": " + err.Error()
	case status.Error != "":
		why += ": " + status.Error
	}
	return fault.Refuse(fault.Unavailable, "post-copy did not begin, and the guest runs on at the source",
		append([]fault.Reason{{Code: "post_copy_failed", Message: why}}, fault.ReasonsOf(err)...)...)
}

// The pauses between two tries to make a broken post-copy whole. Arbitrary: the first is
// for a link that flaps, the longest for one that somebody repairs.
const (
	recoverFirst  = time.Second
	recoverLonger = 30 * time.Second
)

// followedPostCopy is the output of step follow_post_copy.
type followedPostCopy struct {
	Progress   migration.Progress `json:"progress"`
	Recoveries int                `json:"recoveries,omitempty"` // how often its connection was made anew
	// GivenUp: it was said that the guest is at the destination, as it is.
	GivenUp bool `json:"given_up,omitempty"`
	// Ended: the guest has ended at the destination, and needs no memory any more.
	Ended bool `json:"ended,omitempty"`
}

// followPostCopy is step 9b: until all of the guest's memory is at the destination. A connection
// that breaks is made anew, again and again: both halves of the guest wait for it, and
// nothing can be taken back. What is lost with the source's half nobody can decide about but
// an operator. A guest that ends meanwhile, as any can, is the destination's, and off.
func (s liveSteps) followPostCopy(ctx context.Context, t *task.Task) (any, error) {
	stream, err := s.streamOf(t)
	if err != nil {
		return nil, err
	}
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return nil, err
	}
	limits := s.timeLimits().limits()
	var (
		out    followedPostCopy
		watch  StreamWatch
		speed  transfer.Rate
		broken time.Duration // since when, of what is not going on; 0 while it does
		pause  = recoverFirst
		stands *followed // nothing moves though the hypervisor says nothing, and with how much moved
		moved  uint64
		ended  bool // at the last look the guest had ended at the destination
	)
	for {
		if err := s.takenBack(ctx, t); err != nil {
			return nil, err
		}
		if w, ok := s.word(ctx); ok && w.GuestIsAt != s.from {
			out.GivenUp, out.Progress = true, watch.last
			return out, nil
		}
		s.keepControl(ctx)
		status := s.look(ctx)
		now := s.c.cfg.Runtime.Boot().Since
		if status != nil && status.InFlight {
			speed = speed.See(now, status.Progress)
			status.Progress.Rate = speed.Value()
		}
		var verdict Verdict
		watch, verdict = watch.Judge(Sample{At: now, Status: status}, limits)
		how := s.following(ctx, t, status, src.Guest.Persistent, verdict)
		switch {
		case how.state == followBroken && verdict.Abort != nil && stands == nil:
			stands, moved = &how, watch.last.MemoryProcessed
		case watch.last.MemoryProcessed > moved:
			stands = nil
		case how.state == followGoes && stands != nil:
			how = *stands // the pauses between two tries look like silence to the watch
		}
		if status != nil {
			s.progress(how.shown(watch.last))
		}
		if how.state == followOver {
			out.Progress = watch.last
			return out, nil
		}
		if how.state == followGoes {
			broken, pause, ended = 0, recoverFirst, false
			t.Doubt(nil)
			if err := s.pause(ctx, verdict.Next); err != nil {
				return nil, err
			}
			continue
		}
		if broken == 0 {
			broken = max(now, 1)
		}
		if how.state == followBroken {
			if b := s.boundSince(t, migration.StepPostCopy); b > 0 {
				stream.Options.PostCopyBandwidth = b
			}
			err := s.recoverPostCopy(ctx, stream, limits.Setup, how.why)
			if cause := context.Cause(ctx); cause != nil {
				return nil, cause
			}
			if err == nil {
				out.Recoveries++
				watch, stands, ended = StreamWatch{last: watch.last}, nil, false
				if err := s.pause(ctx, s.c.cfg.PollInterval); err != nil {
					return nil, err
				}
				continue
			}
			how = s.notRecovered(ctx, t, how, err)
		}
		if how.state == followEnded {
			if ended { // two looks agree
				if err := s.letHalfGo(ctx, t, status, how.why); err == nil {
					out.Ended, out.Progress = true, watch.last
					return out, nil
				}
			}
		}
		ended = how.state == followEnded
		if how.state == followLost || now-broken >= s.c.cfg.Patience {
			t.Doubt(fault.Refuse(fault.InDoubt, "post-copy", fault.Reason{Code: how.code(), Message: how.why, Change: how.change(s.uuid, s.from)}))
		}
		if err := s.pause(ctx, pause); err != nil {
			return nil, err
		}
		pause = min(2*pause, recoverLonger)
	}
}

// boundSince is the bandwidth that somebody set last since a step began; 0 for none. A connection
// that is made anew begins with what it is told.
func (s liveSteps) boundSince(t *task.Task, step string) uint64 {
	st := t.State()
	begun, _ := st.Step(step)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, row := range slices.Backward(s.rec.Control) {
		if row.Bandwidth > 0 && row.Done && !row.At.Before(begun.Begun) {
			return row.Bandwidth
		}
	}
	return 0
}

// recoverPostCopy has the source make a broken connection anew, once.
func (s liveSteps) recoverPostCopy(ctx context.Context, stream migration.Stream, patience time.Duration, why string) error {
	s.c.cfg.Logger.Warn("post-copy is broken, its connection is made anew", "migration", s.uuid, "instance", s.instance, "reason", why)
	err := s.atPostCopySource(ctx, patience, func(ctx context.Context, h migration.PostCopySource) error {
		return h.RecoverPostCopy(ctx, s.ref(migration.StepStream), stream)
	})
	if err != nil {
		s.c.cfg.Logger.Warn("post-copy could not be recovered, trying again", "migration", s.uuid, "instance", s.instance, "error", err)
	}
	return err
}

// notRecovered returns what becomes of a broken post-copy whose recovery has failed with err: it asks the
// destination whether its instance still waits for memory from the source. One that ended there, or was
// started again since, needs none: a started process has memory of its own.
func (s liveSteps) notRecovered(ctx context.Context, t *task.Task, how followed, err error) followed {
	there := s.lookThere(ctx, t, s.c.cfg.VerbTimeout)
	switch fact := destinationFact(there); {
	case fact == DestinationNone:
		return guestEnded
	case fact == DestinationRunning && there.Domain.Reason == reasonBooted:
		return guestStarted
	case fact == DestinationRunning, fact == DestinationArrived:
		to, _ := s.destination(t) // it was asked just now
		return followed{state: followNotAwaited, to: to, why: "the source waits to send memory, and the hypervisor of the destination says that the instance there is not in post-copy (" + domainWords(there.Domain) + ")"}
	}
	how.why += ", and could not be made whole: " + err.Error()
	return how
}

// letHalfGo lets the source's clean-up end its half of a guest that has ended where it ran: the
// destination was asked, and that is kept with its reason as an operator's word is.
func (s liveSteps) letHalfGo(ctx context.Context, t *task.Task, status *migration.StreamStatus, why string) error {
	if status == nil || !inPostCopy(status.Domain) {
		return nil // nothing of it is left there
	}
	to, err := s.destination(t)
	if err != nil {
		return err
	}
	s.c.cfg.Logger.Warn("the rest of the memory is not needed", "reason", why, "migration", s.uuid, "instance", s.instance)
	return s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		source, ok := h.(migration.Settler)
		if !ok {
			return fault.New(fault.Internal, "the source takes nobody's word")
		}
		return source.TakeWord(ctx, s.ref(migration.StepStream), migration.Settlement{GuestIsAt: to, Why: why, By: "the conductor of the move"})
	})
}

// followState is what has become of the memory that was to follow.
type followState string

const (
	followGoes   followState = "goes"   // it comes
	followOver   followState = "over"   // all of it is there
	followBroken followState = "broken" // its connection is; both halves wait
	followSilent followState = "silent" // nobody says
	followLost   followState = "lost"   // the source's half is no more, and the destination does not say that it is whole
	followEnded  followState = "ended"  // the guest has ended at the destination: nothing waits for it
	// The source's half waits to send memory, and the destination does not say why it waits for none.
	followNotAwaited followState = "not awaited"
)

// followed is the state with its reason, in an operator's words.
type followed struct {
	state followState
	why   string
	to    string // the destination, where an operator has to name it
}

// guestEnded is of a guest that its user shut down meanwhile, or that crashed.
var guestEnded = followed{state: followEnded, why: "the guest has ended at the destination before all of its memory had come"}

// guestStarted is of one that ended so, and that somebody has started again.
var guestStarted = followed{state: followEnded, why: "the instance ended at the destination before all of its memory had come, and was started there again"}

// following judges one look. The destination is asked only where the source's half is gone
// without a word.
func (s liveSteps) following(ctx context.Context, t *task.Task, status *migration.StreamStatus, persistent bool, v Verdict) followed {
	switch fact := sourceFact(status, persistent); {
	case fact == SourceMigrated:
		return followed{state: followOver}
	case fact == SourceSilent:
		return followed{state: followSilent, why: "the source or its hypervisor does not answer; the guest runs at the destination, and what of its memory has not come is there"}
	case fact == SourcePostCopy && status.Domain.Reason == reasonPostCopyFailed:
		return followed{state: followBroken, why: "the connection between the two hosts broke"}
	case fact == SourcePostCopy && !status.InFlight:
		return followed{state: followBroken, why: "the hypervisor has no job any more, and part of the guest's memory is at the source"}
	case fact == SourcePostCopy && v.Abort != nil:
		return followed{state: followBroken, why: fault.ReasonsOf(v.Abort)[0].Message}
	case fact == SourcePostCopy:
		return followed{state: followGoes}
	}
	switch there := s.lookThere(ctx, t, s.c.cfg.VerbTimeout); destinationFact(there) {
	case DestinationRunning:
		return followed{state: followOver} // by its own hypervisor it is not in post-copy any more
	case DestinationNone:
		return guestEnded
	case DestinationSilent:
		return followed{state: followSilent, why: "the source's domain has ended, and the destination does not say whether all of the guest's memory is there"}
	}
	return followed{state: followLost, why: fmt.Sprintf("the source's half of the guest is gone (its domain is %s) before all memory had followed: the guest at the destination lacks part of its memory", domainWords(status.Domain))}
}

// shown is the progress that people see of a state.
func (f followed) shown(p migration.Progress) migration.Progress {
	p.Phase = "post-copy"
	if f.state == followBroken || f.state == followLost {
		p.Phase = "post-copy failed"
	}
	return p
}

func (f followed) code() string {
	return map[followState]string{followBroken: "post_copy_broken", followSilent: "post_copy_silent", followLost: "post_copy_lost", followEnded: "post_copy_ended", followNotAwaited: "post_copy_not_awaited"}[f.state]
}

func (f followed) change(migrated, source string) string {
	switch f.state {
	case followNotAwaited:
		return "if the instance was started again at " + f.to + " since, let it run there and give up what is at " + source + ": berth migration settle " + migrated + " --guest-is-at " + f.to + ` --reason "what you have checked"`
	case followBroken:
		return "repair the migration network between the two hosts; neither of the two domains may be ended"
	case followSilent:
		return "start the hypervisor's daemon on " + source + "; the domain there may not be ended"
	}
	return "end what is left of the guest at the destination (virsh destroy DOMAIN): the move is over then, and the guest can be started there"
}

func domainWords(d migration.DomainView) string {
	if !d.Exists {
		return "no more"
	}
	return d.State + " (" + d.Reason + ")"
}
