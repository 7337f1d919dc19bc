package streams

import (
	"context"
	"errors"
	"time"

	"berth/agent/host/memory"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// A guest that goes by post-copy goes by a second job, since libvirt sends none that arrives
// paused ("post-copy migration is not supported with non-live or paused migration"), and one
// that arrives running may end by itself, without the source's word. What is done, and what is
// durable before it:
//
//	EndStream        MemoryEndWanted   the first job is ended; all memory is here
//	StartPostCopy    MemoryPostCopy    the second begins, held back so that it cannot end
//	                 –                 it is turned into post-copy: from here there is no way back
//	                 MemoryHalf        it was seen so
//	RecoverPostCopy  –                 a connection that broke is made anew
//
// A crash between any two is found again: the second job on record is adopted, or over.
//
// Measured with libvirt 9.0.0 and QEMU 10.0.2, by streams:
//
//   - until QEMU has begun the order to switch is refused, as an internal error of libvirt's,
//     and one that comes between two jobs may be taken and forgotten: it is repeated until the
//     domain says post-copy;
//   - a link that was cut is noticed by libvirt's keepalive first, and this side is `paused
//     (post-copy failed)` then while QEMU still holds its socket; its job goes on to say
//     unbounded. The destination's is `running (post-copy failed)` when its socket has ended;
//   - with both sockets closed POSTCOPY_RESUME goes on from where it stopped, by new
//     connections, at once; the bounds of bandwidth are those of the new call;
//   - a link that is cut in the first moment, before libvirt's Finish has come, costs the guest:
//     the destination's libvirt ends its copy, which has not run, and POSTCOPY_RESUME finds
//     none; see hears;
//   - one that breaks while the guest's kernel still needs pages that have not come can stop the
//     destination's QEMU as a whole: a vCPU waits for a page (handle_userfault) with QEMU's
//     lock held, as an interrupt's delivery under TCG or a device's access by the main loop
//     does, and libvirt's orders wait for the lock. POSTCOPY_RESUME is "Timed out …
//     held by monitor=remoteDispatchDomainMigrateFinish3Params" then, for good: libvirt does not
//     use QEMU's out-of-band monitor. A second after the switch it was not met any more;
//   - one that goes on may be called failed, on a busy machine three times in six: the
//     destination's libvirt is asked for the end (Finish) before it has heard its QEMU's event
//     that there is a new connection, goes by the old word ("job 'migration in' failed in
//     post-copy phase"), and this side is `paused (post-copy failed)` while memory comes. Each
//     further POSTCOPY_RESUME is "QEMU reports migration is still running". With the sockets
//     closed once more, as recoverPostCopy does each time, the next one goes on; the destination
//     may be `running (post-copy)` all the while. Left alone it comes to its end;
//   - when all memory has come this side is `shut off (migrated)`, the destination's
//     `running (migrated)`.

// half reports whether part of the guest's memory is elsewhere.
func half(d driver.Domain) bool {
	return d.Active() && (d.Reason == driver.ReasonPostCopy || d.Reason == driver.ReasonPostCopyFailed)
}

// The second job before it is post-copy must not end by itself: what is sent then is sent
// for nothing, and the guest would run at the destination by libvirt's hand-over. The next
// pass is never small enough with these, unless not one page is written in a whole one.
const (
	heldBandwidth = 1 << 20
	heldDowntime  = time.Millisecond
	// orderPause is the most between two orders to switch; arbitrary.
	orderPause = 50 * time.Millisecond
)

func (s *Streams) endWanted(ref migration.Ref) (bool, error) {
	wanted, _, err := memory.Recall[bool](s.o.Memory, ref, MemoryEndWanted)
	return wanted, err
}

// EndStream ends the first job of an attempt; see migration.PostCopySource.
func (s *Streams) EndStream(ctx context.Context, ref migration.Ref) error {
	return fault.Wrap(s.endStream(ctx, ref), "end the stream of migration %s on %s for post-copy", ref.Migration, s.o.Host)
}

func (s *Streams) endStream(ctx context.Context, ref migration.Ref) error {
	unlock, err := s.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	j, asked, found, err := s.current(ref)
	switch {
	case err != nil || j == second:
		return err
	case !found:
		return fault.New(fault.Invalid, "there is no stream")
	}
	if err := s.o.Memory.Late(ref, Step); err != nil {
		return err
	}
	if err := s.o.Memory.Remember(ctx, ref, MemoryEndWanted, true); err != nil {
		return err
	}
	for turn := 0; ; turn++ {
		over, err := s.firstOver(ctx, ref)
		if err != nil {
			return err
		}
		if over {
			break
		}
		// Asked again at each turn: an abort that comes while libvirt is still in the
		// job's first phase can be lost.
		if err := s.migrator.AbortJob(ctx, ref.Instance); err != nil && !errors.Is(err, fault.InDoubt) && !errors.Is(err, fault.NotFound) {
			return err
		}
		if turn > 0 {
			if err := s.End(ctx, ref); err != nil { // libvirt waits for a network that is silent
				return err
			}
		}
		if err := s.o.Runtime.Sleep(ctx, s.o.Poll/4); err != nil {
			return fault.New(fault.Unavailable, "the job has not ended yet: %w", err)
		}
	}
	d, exists, err := s.domain(ctx, ref)
	if err != nil {
		return err
	}
	if !exists || !d.Active() || half(d) {
		return fault.New(fault.InDoubt, "the job is over, and the domain is %s (%s)", d.State, d.Reason)
	}
	return s.LetRun(ctx, ref, d, asked.PowerState)
}

// firstOver reports whether the first job is over, with the guest here. fault.Forbidden where
// it has left by it, fault.InDoubt where nobody can tell.
func (s *Streams) firstOver(ctx context.Context, ref migration.Ref) (bool, error) {
	d, exists, err := s.domain(ctx, ref)
	if err == nil && exists && d.HasLeft() {
		err = s.outcome(ctx, ref, first, nil, 0)
	}
	if err != nil {
		return false, err
	}
	if s.watching(ref, first) == nil {
		if err := s.adopt(ctx, ref, first); err != nil {
			return false, err
		}
	}
	got, _, err := s.ended(ref, first)
	switch {
	case err != nil:
		return false, err
	case got.Result == Left:
		return false, fault.New(fault.Forbidden, "the guest has left by it")
	case got.Result == Undone:
		// The record comes a moment before whoever wrote it has gone.
		if st := s.watching(ref, first); st != nil {
			return true, runtime.Await(ctx, s.o.Runtime, st.over)
		}
		return true, nil
	case got.Result == Lost && s.watching(ref, first) == nil:
		return false, fault.New(fault.InDoubt, "how it ended nobody knows: the domain is %s (%s)", d.State, d.Reason)
	}
	return false, nil
}

// StartPostCopy begins the second job of an attempt; see migration.PostCopySource. It is
// fault.Undone where that job has ended with the guest here, also when it is asked again.
func (s *Streams) StartPostCopy(ctx context.Context, ref migration.Ref, m migration.Stream) error {
	return fault.Wrap(s.startPostCopy(ctx, ref, m), "start post-copy of migration %s on %s", ref.Migration, s.o.Host)
}

func (s *Streams) startPostCopy(ctx context.Context, ref migration.Ref, m migration.Stream) error {
	unlock, err := s.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	post, able := s.o.Driver.(driver.PostCopier)
	if s.migrator == nil || !able {
		return fault.New(fault.Forbidden, "the hypervisor of %s has no post-copy", s.o.Host)
	}
	switch j, asked, found, err := s.current(ref); {
	case err != nil:
		return err
	case j == second:
		if s.watching(ref, second) == nil {
			if err := s.adopt(ctx, ref, second); err != nil {
				return err
			}
		}
	case !found:
		return fault.New(fault.Forbidden, "no stream was asked for")
	default:
		if err := s.beginSecond(ctx, ref, m, asked); err != nil {
			return err
		}
	}
	return s.untilHalf(ctx, ref, m, post)
}

// beginSecond has the hypervisor send the guest anew, by a job that may become post-copy.
func (s *Streams) beginSecond(ctx context.Context, ref migration.Ref, m migration.Stream, asked Asked) error {
	wanted, err := s.endWanted(ref)
	if err != nil {
		return err
	}
	got, _, err := s.ended(ref, first)
	if err != nil {
		return err
	}
	if !wanted || got.Result != Undone || s.watching(ref, first) != nil {
		return fault.New(fault.Forbidden, "its stream was not ended for it")
	}
	dom, mc, err := s.mayBegin(ctx, ref)
	if err != nil {
		return err
	}
	if dom.State == driver.Paused {
		return fault.Refuse(fault.Forbidden, "", paused(dom.Name, string(dom.Reason)))
	}
	if len(m.CopyDisks) > 0 {
		return fault.New(fault.Forbidden, "disks are copied with it, which post-copy leaves behind when it breaks")
	}
	// Another process than the first job's: this one no lease ends.
	if err := s.End(ctx, ref); err != nil {
		return err
	}
	prepared, err := s.openDeparture(ctx, ref, mc.Destination, m, true)
	if err != nil {
		return err
	}
	asked.PowerState = s.o.Guests.Chosen(dom)
	// The last word before the effect, as of the first job.
	if err := s.o.Memory.Remember(ctx, ref, MemoryPostCopy, asked); err != nil {
		return err
	}
	s.follow(ref, second, func(ctx context.Context) error {
		return s.migrator.Migrate(ctx, ref.Instance, s.bySecond(prepared, m, true))
	})
	return nil
}

// bySecond is how the guest goes by the second job. By one connection, whatever the first had:
// QEMU before 10.1 sends nothing by parallel ones in post-copy, nor packed.
func (s *Streams) bySecond(p migration.Prepared, m migration.Stream, held bool) driver.Migration {
	out := s.way(p, m)
	out.PostCopy, out.PostCopyBandwidth = true, m.Options.PostCopyBandwidth
	if held {
		out.Bandwidth, out.MaxDowntime = heldBandwidth, heldDowntime
	}
	return out
}

// paused refuses post-copy for a guest that does not run.
func paused(name, reason string) fault.Reason {
	return fault.Reason{
		Code: CodePostCopyPaused, Message: "guest " + name + " is paused (" + reason + "), and post-copy lets it run at the destination",
		Have: "paused", Want: "running", Change: "resume it first, or move it without post-copy",
	}
}

// CodePostCopyPaused is the reason by which a paused guest goes without post-copy.
const CodePostCopyPaused = "post_copy_paused"

// untilHalf turns the second job into post-copy, and returns when the domain says so, or has
// left.
func (s *Streams) untilHalf(ctx context.Context, ref migration.Ref, m migration.Stream, post driver.PostCopier) error {
	for {
		st := s.watching(ref, second) // before the record that its end leaves
		got, ended, err := s.ended(ref, second)
		if err != nil {
			return err
		}
		d, exists, err := s.domain(ctx, ref)
		switch {
		case err != nil:
			return err
		case exists && half(d):
			return s.o.Memory.Remember(ctx, ref, MemoryHalf, true)
		case exists && d.HasLeft(), got.Result == Left:
			return nil
		case st == nil && got.Result == Undone:
			return fault.New(fault.Undone, "its job has ended before the guest could switch: %s", got.Error)
		case st == nil && ended:
			return fault.New(fault.InDoubt, "its job has ended, and the domain is %s (%s): %s", d.State, d.Reason, got.Error)
		case st == nil:
			return fault.New(fault.Unavailable, "nobody waits for its job: the agent stops")
		}
		if job, jerr := s.migrator.Job(ctx, ref.Instance); jerr == nil && job.InFlight() && s.hears(ctx, ref, m) {
			// Refused while QEMU begins; the domain and the job tell what came of it.
			err = post.StartPostCopy(ctx, ref.Instance)
		}
		if serr := s.o.Runtime.Sleep(ctx, min(s.o.Poll/4, orderPause)); serr != nil {
			return fault.New(fault.Unavailable, "the guest has not switched yet: %w", errors.Join(serr, err))
		}
	}
}

// hears reports whether the destination still takes memory. A guest that switches while its
// link is dead is lost: the destination's libvirt ends a copy whose source is gone before its
// Finish has come, and the source's half does not run again (measured). What is left of that
// is from the last acknowledgement to Finish's arrival.
func (s *Streams) hears(ctx context.Context, ref migration.Ref, m migration.Stream) bool {
	listener, able := s.o.Processes.(Listener)
	if !able || m.Prepared.StreamAddress == "" {
		return true
	}
	silent, err := listener.Silent(ctx, ref.Migration, ref.Attempt)
	return err == nil && silent < silentMost
}

// silentMost is above what a slow machine takes for an answer to what flows all the time.
// Arbitrary.
const silentMost = time.Second

// RecoverPostCopy goes on with a post-copy that broke; see migration.PostCopySource.
func (s *Streams) RecoverPostCopy(ctx context.Context, ref migration.Ref, m migration.Stream) error {
	return fault.Wrap(s.recoverPostCopy(ctx, ref, m), "recover post-copy of migration %s on %s", ref.Migration, s.o.Host)
}

func (s *Streams) recoverPostCopy(ctx context.Context, ref migration.Ref, m migration.Stream) error {
	unlock, err := s.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	j, asked, _, err := s.current(ref)
	if err != nil {
		return err
	}
	if j != second {
		return fault.New(fault.Forbidden, "no post-copy was asked for")
	}
	recoverer, able := s.o.Driver.(driver.PostCopyRecoverer)
	if !able {
		return fault.New(fault.Forbidden, "the hypervisor of %s cannot go on with a post-copy that broke", s.o.Host)
	}
	broken, err := s.breakOff(ctx, ref, m, recoverer)
	if err != nil || !broken {
		return err
	}
	if err := s.End(ctx, ref); err != nil {
		return err
	}
	prepared, err := s.openDeparture(ctx, ref, asked.Destination, m, true)
	if err != nil {
		return err
	}
	st := s.follow(ref, second, func(ctx context.Context) error {
		return recoverer.RecoverPostCopy(ctx, ref.Instance, s.bySecond(prepared, m, false))
	})
	for {
		select {
		case <-st.over:
			if st.err != nil {
				return fault.New(fault.Unavailable, "%w", st.err)
			}
			return nil
		default:
		}
		if d, exists, err := s.domain(ctx, ref); err == nil && (!exists || d.Reason != driver.ReasonPostCopyFailed) {
			return nil // it goes on, or is over: StreamStatus tells
		}
		if err := s.o.Runtime.Sleep(ctx, s.o.Poll/4); err != nil {
			return fault.New(fault.Unavailable, "it was asked for, and does not go on yet: %w", err)
		}
	}
}

// breakOff returns when a post-copy that stands still is broken, as the hypervisor has it, and
// nobody waits for its job any more; false where nothing is broken, or there is none.
func (s *Streams) breakOff(ctx context.Context, ref migration.Ref, m migration.Stream, recoverer driver.PostCopyRecoverer) (bool, error) {
	for turn := 0; ; turn++ {
		d, exists, err := s.domain(ctx, ref)
		switch {
		case err != nil:
			return false, err
		case !exists || !half(d):
			return false, nil // it has left, or ended
		case d.Reason == driver.ReasonPostCopyFailed && s.watching(ref, second) == nil:
			return true, nil
		case d.Reason == driver.ReasonPostCopyFailed:
			// libvirt's call for it is about to return: what it waits for ends here.
			err = s.End(ctx, ref)
		case turn == 0:
			var moves bool
			if moves, err = s.moves(ctx, ref); err == nil && moves {
				return false, nil
			}
		case m.Prepared.StreamAddress != "" && turn < failAfter:
			err = s.End(ctx, ref) // QEMU's socket ends, and it says so
		default:
			err = recoverer.FailPostCopy(ctx, ref.Instance)
		}
		if err != nil {
			return false, err
		}
		if err := s.o.Runtime.Sleep(ctx, s.o.Poll/4); err != nil {
			return false, fault.New(fault.Unavailable, "the hypervisor has not let go of the dead connections yet: %w", err)
		}
	}
}

// failAfter is after how many looks a hypervisor is told to its face that its connections
// are gone. Arbitrary.
const failAfter = 20

// moves reports whether memory still comes to the destination, by two looks.
func (s *Streams) moves(ctx context.Context, ref migration.Ref) (bool, error) {
	was, err := s.migrator.Job(ctx, ref.Instance)
	if err != nil || !was.InFlight() {
		return false, err
	}
	for range movesLooks {
		if err := s.o.Runtime.Sleep(ctx, s.o.Poll); err != nil {
			return false, err
		}
		now, err := s.migrator.Job(ctx, ref.Instance)
		if err != nil || now.MemoryProcessed > was.MemoryProcessed {
			return err == nil, err
		}
	}
	return false, nil
}

// movesLooks is how often a job is looked at that is said to stand still; arbitrary.
const movesLooks = 5

// suspend stops a guest's CPUs, so that its memory changes no more. That it was done is
// durable before: whoever ends the move lets the guest run again.
func (s *Streams) suspend(ctx context.Context, ref migration.Ref) error {
	unlock, err := s.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	// The move may have been given up, or have come to its end, while this waited.
	if err := s.o.Memory.Late(ref, Step); err != nil {
		return err
	}
	under, err := s.under(ctx, ref)
	if err != nil {
		return err
	}
	d, exists, err := s.domain(ctx, ref)
	switch {
	case err != nil:
		return err
	case !under || !exists || !d.Active():
		return fault.New(fault.NotFound, "the job is over")
	case half(d):
		return fault.New(fault.Forbidden, "the guest runs at the destination already")
	case d.State == driver.Paused:
		return nil
	}
	if err := s.o.Memory.Remember(ctx, ref, MemorySuspended, true); err != nil {
		return err
	}
	s.log.Info("stop the guest's CPUs until its memory is there", "instance", ref.Instance, "migration", ref.Migration)
	return s.o.Driver.Suspend(ctx, ref.Instance)
}

// LetRun lets a guest run that stays here, and that its move left paused: by its job, or by
// Tuning.Suspend. power is what its user had chosen before.
func (s *Streams) LetRun(ctx context.Context, ref migration.Ref, d driver.Domain, power migration.PowerState) error {
	suspended, _, err := memory.Recall[bool](s.o.Memory, ref, MemorySuspended)
	if err != nil {
		return err
	}
	if d.State == driver.Paused && power != migration.PowerPaused {
		switch d.Reason {
		case driver.ReasonMigrating, driver.ReasonMigrationCanceled, driver.ReasonUnknown, driver.ReasonStartingUp:
		case driver.ReasonUser:
			if !suspended {
				return nil
			}
		default:
			// Paused meanwhile for a reason of its own: an I/O error, a snapshot. None of it
			// is the migration's to end.
			return nil
		}
		s.log.Info("resume the guest that a migration left paused", "instance", ref.Instance, "migration", ref.Migration)
		if err := s.o.Guests.Resume(ctx, ref.Instance); err != nil {
			return err
		}
	}
	if suspended {
		return s.o.Memory.Forget(ctx, ref, MemorySuspended)
	}
	return nil
}
