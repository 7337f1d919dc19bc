package streams

import (
	"context"
	"errors"
	"slices"
	"time"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/options"
)

// cleanupTimeout bounds what is still written after a caller has gone.
// Arbitrary: many fsyncs, one of a slow disk.
const cleanupTimeout = 10 * time.Second

// stream is an actor that waits for a job.
type stream struct {
	ended chan struct{} // closed when libvirt has answered
	over  chan struct{} // closed when what it answered is durable
	err   error         // what it answered; valid when ended is closed
}

// Watches reports whether this process waits for a job of this attempt.
func (s *Streams) Watches(ref migration.Ref) bool {
	return s.watching(ref, first) != nil || s.watching(ref, second) != nil
}

func watched(ref migration.Ref, j job) string { return memory.Key(ref) + " " + j.name }

// watching is the actor that waits for a job; nil for none.
func (s *Streams) watching(ref migration.Ref, j job) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watch[watched(ref, j)]
}

// Start has the hypervisor send a guest, and returns when its job is seen, or over; see
// migration.SourceVerbs. Safe to repeat: a stream that was asked for is found again.
func (s *Streams) Start(ctx context.Context, ref migration.Ref, m migration.Stream) error {
	return fault.Wrap(s.start(ctx, ref, m), "start stream of migration %s on %s", ref.Migration, s.o.Host)
}

func (s *Streams) start(ctx context.Context, ref migration.Ref, m migration.Stream) error {
	if s.migrator == nil {
		return fault.New(fault.Forbidden, "the hypervisor of %s cannot live-migrate", s.o.Host)
	}
	if s.Watches(ref) {
		return nil
	}
	j, _, found, err := s.current(ref)
	if err != nil {
		return err
	}
	if found {
		// A stream that was asked for is never asked for again: it is in flight
		// and adopted, or over. Also where its undo has begun: the guest may have
		// left before it, and then the move goes forward from here.
		return s.adopt(ctx, ref, j)
	}
	dom, mc, err := s.mayBegin(ctx, ref)
	if err != nil {
		return err
	}
	// What the user has chosen by now: between the context and this moment disks
	// were made and hooks run, and the stream itself hides the choice.
	rec := Asked{Persistent: dom.Persistent, PowerState: s.o.Guests.Chosen(dom), Destination: mc.Destination}
	if rec.DomainXML, err = s.o.Driver.XML(ctx, ref.Instance, driver.Live); err != nil {
		return err
	}
	if rec.Copied, err = s.o.Guests.Copied(rec.DomainXML, m.CopyDisks); err != nil {
		return err
	}
	prepared, err := s.openDeparture(ctx, ref, mc.Destination, m, false)
	if err != nil {
		return err
	}
	// The last word before the effect: from this record on there is one stream,
	// whatever dies.
	if err := s.o.Memory.Remember(ctx, ref, MemoryAsked, rec); err != nil {
		return err
	}
	return s.awaitStart(ctx, ref, s.follow(ref, first, func(ctx context.Context) error {
		return s.migrator.Migrate(ctx, ref.Instance, s.byFirst(prepared, m))
	}))
}

// mayBegin reads the guest that a job is to send, and refuses one that may not leave, or
// that somebody else sends.
func (s *Streams) mayBegin(ctx context.Context, ref migration.Ref) (dom driver.Domain, mc claims.MigrationContext, err error) {
	if err := s.o.Memory.Late(ref, Step); err != nil {
		return dom, mc, err
	}
	if err := s.o.Guests.MayLeave(ref.Instance); err != nil {
		return dom, mc, err
	}
	inst, _ := s.o.Tracker.Instance(ref.Instance)
	mc, ok := s.o.Tracker.Context(ref.Migration)
	if !ok || mc.Instance != ref.Instance {
		return dom, mc, fault.New(fault.Forbidden, "no context of migration %s is recorded here", ref.Migration)
	}
	if s.o.Tracker.CommitRefused(ref.Migration, ref.Attempt) {
		return dom, mc, fault.New(fault.Forbidden, "attempt %d of migration %s was given up", ref.Attempt, ref.Migration)
	}
	dom, exists, err := s.domain(ctx, ref)
	if err != nil {
		return dom, mc, err
	}
	if !exists || !dom.Active() {
		return dom, mc, fault.New(fault.Forbidden, "guest %s does not run", inst.Name)
	}
	job, err := s.migrator.Job(ctx, ref.Instance)
	if err == nil && job.InFlight() {
		err = fault.New(fault.Busy, "libvirt has a job of guest %s in flight that nobody here asked for", inst.Name)
	}
	return dom, mc, err
}

// byFirst is how the guest goes by the first job: it arrives paused.
func (s *Streams) byFirst(p migration.Prepared, m migration.Stream) driver.Migration {
	o, out := m.Options, s.way(p, m)
	out.CopyDisks, out.Paused = m.CopyDisks, true
	out.Bandwidth, out.MaxDowntime, out.AvailableSwitchover = o.Bandwidth, o.MaxDowntime, o.AvailableSwitchover
	out.ParallelConnections, out.ZeroCopy = o.Parallel, o.ZeroCopy == options.On
	if out.AutoConverge = o.AutoConverge == options.On; out.AutoConverge {
		out.Throttle = driver.Throttle{Initial: o.AutoConvergeInitial, Increment: o.AutoConvergeIncrement}
	}
	if len(o.Compression) > 0 && !slices.Equal(o.Compression, []string{"none"}) {
		out.Compression = driver.Compression{
			Methods: o.Compression, XBZRLECache: o.XBZRLECache, Level: o.MTLevel, Threads: o.MTThreads, UnpackThreads: o.MTUnpack,
			ZlibLevel: o.ZlibLevel, ZstdLevel: o.ZstdLevel,
		}
	}
	if len(m.CopyDisks) > 0 {
		out.SynchronousWrites = o.SynchronousWrites == options.On
		if o.DetectZeroes == options.On {
			out.DetectZeroes = m.CopyDisks
		}
	}
	return out
}

// way is where a guest goes, and what either job has of that.
func (s *Streams) way(p migration.Prepared, m migration.Stream) driver.Migration {
	return driver.Migration{
		DestinationURI: p.LibvirtURI, MigrateURI: p.MigrateURI, DisksURI: p.DisksURI,
		DestinationXML: p.DestinationXML, PersistentXML: p.PersistentXML, Unsafe: m.Shared,
		// What goes through a stream is encrypted by it.
		TLS: s.o.TLS && p.StreamAddress == "",
	}
}

// follow runs call as the actor of a job and records its outcome.
func (s *Streams) follow(ref migration.Ref, j job, call func(context.Context) error) *stream {
	st := &stream{ended: make(chan struct{}), over: make(chan struct{})}
	s.mu.Lock()
	s.watch[watched(ref, j)] = st
	s.mu.Unlock()
	end := func() {
		s.mu.Lock()
		delete(s.watch, watched(ref, j))
		s.mu.Unlock()
		close(st.over)
	}
	running := s.o.Spawn(j.name+" of migration "+ref.Migration, func(agent context.Context) {
		defer end()
		log := s.log.With("instance", ref.Instance, "migration", ref.Migration, "attempt", ref.Attempt, "job", j.name)
		log.Info("stream begins")
		begin := s.o.Runtime.Boot().Since
		err := call(agent)
		st.err = err
		close(st.ended)
		if err != nil && agent.Err() != nil {
			return // the agent stops; the job goes on, and is adopted
		}
		lasted := s.o.Runtime.Boot().Since - begin
		log.Info("stream is over", "seconds", lasted.Seconds(), "error", err)
		ctx, cancel := s.o.Runtime.WithTimeout(context.WithoutCancel(agent), cleanupTimeout)
		defer cancel()
		if err := s.outcome(ctx, ref, j, err, lasted); err != nil {
			log.Error("the outcome of the stream could not be recorded", "error", err)
		}
	})
	if !running {
		st.err = fault.New(fault.Unavailable, "the agent stops")
		close(st.ended)
		end()
	}
	return st
}

// Await returns when the stream ends, but after d at the latest; see
// migration.StreamWaiter.
func (s *Streams) Await(ctx context.Context, ref migration.Ref, d time.Duration) error {
	st := s.watching(ref, second)
	if st == nil {
		st = s.watching(ref, first)
	}
	if st != nil {
		select {
		case <-st.ended: // told once already, as far as anybody waited
		default:
			wait, cancel := s.o.Runtime.WithTimeout(ctx, d)
			defer cancel()
			_ = runtime.Await(wait, s.o.Runtime, st.ended) // the end of d is no error
			return context.Cause(ctx)
		}
	}
	return s.o.Runtime.Sleep(ctx, d)
}

// outcome makes durable how a job ended; nil is that the guest has left. It
// only ever knows more than before. lasted is how long libvirt's call took, 0
// where that is not known.
func (s *Streams) outcome(ctx context.Context, ref migration.Ref, j job, ended error, lasted time.Duration) error {
	got := Ended{Result: Undone} // also where it was refused before it began
	switch fault.KindOf(ended) {
	case "":
		got.Result = Left
	case fault.InDoubt, fault.Unavailable:
		got.Result = Lost
	}
	if ended != nil {
		got.Error = ended.Error()
	} else if job, err := s.migrator.CompletedJob(ctx, ref.Instance); err == nil {
		// Best effort: a transient domain takes its statistics along.
		p := progress(job, driver.Domain{State: driver.ShutOff})
		if j == first {
			// libvirt's downtime ends with its job; until its call returned the guest
			// stood still as well.
			p.Downtime += max(0, lasted-job.Elapsed)
		}
		got.Last = &p
	}
	if err := s.recording.Lock(ctx, s.o.Runtime); err != nil {
		return err
	}
	defer s.recording.Unlock()
	// The guest's move can be over, and forgotten, before libvirt's call returns.
	if _, asked, err := s.asked(ref, j); err != nil || !asked {
		return err
	}
	was, _, err := s.ended(ref, j)
	if err != nil || was.Result == Undone || was.Result == Left || was.Result == got.Result {
		return err
	}
	return s.o.Memory.Remember(ctx, ref, j.ended, got)
}

// adopt takes up a job of an earlier agent: it watches one in flight,
// and records that one which is not there any more is over.
func (s *Streams) adopt(ctx context.Context, ref migration.Ref, j job) error {
	if was, known, err := s.ended(ref, j); err != nil || known && was.Result != Lost {
		return err
	}
	for agreed := false; ; agreed = true {
		under, err := s.under(ctx, ref)
		if err != nil {
			return err
		}
		if under {
			break
		}
		// An earlier agent may have died with its call on the way: to a hypervisor
		// that hung, which takes it up only now. Two reads agree that none comes.
		if agreed {
			return s.foundOver(ctx, ref, j)
		}
		if d, exists, err := s.domain(ctx, ref); err != nil {
			return err
		} else if !exists || !d.Active() || half(d) {
			return s.foundOver(ctx, ref, j)
		}
		if err := s.o.Runtime.Sleep(ctx, s.o.Agree/4); err != nil {
			return err
		}
	}
	s.log.Info("adopt the job in flight", "instance", ref.Instance, "migration", ref.Migration, "job", j.name)
	s.follow(ref, j, func(ctx context.Context) error {
		for {
			if err := s.o.Runtime.Sleep(ctx, s.o.Poll); err != nil {
				return err
			}
			if under, err := s.under(ctx, ref); err != nil || under {
				continue // who does not answer has not ended
			}
			if err := s.seenEnd(ctx, ref); !errors.Is(err, fault.Unavailable) {
				return err
			}
		}
	})
	return nil
}

// under reports whether the hypervisor is at a job by which the guest leaves. libvirt goes on
// telling of one that broke in post-copy (9.0.0: type unbounded); its domain says that it did.
func (s *Streams) under(ctx context.Context, ref migration.Ref) (bool, error) {
	job, err := s.migrator.Job(ctx, ref.Instance)
	if errors.Is(err, fault.NotFound) || err == nil && !job.InFlight() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	d, exists, err := s.domain(ctx, ref)
	return err == nil && exists && d.Reason != driver.ReasonPostCopyFailed, err
}

// foundOver records the end of a job that nobody watched.
func (s *Streams) foundOver(ctx context.Context, ref migration.Ref, j job) error {
	err := s.seenEnd(ctx, ref)
	if errors.Is(err, fault.Unavailable) {
		return err
	}
	return s.outcome(ctx, ref, j, err, 0)
}

// seenEnd tells from the domain how a job ended whose answer nobody heard: nil
// when it has left, fault.Undone when it still has its memory, fault.InDoubt
// when the domain does not say.
func (s *Streams) seenEnd(ctx context.Context, ref migration.Ref) error {
	d, exists, err := s.domain(ctx, ref)
	switch {
	case err != nil:
		return err
	case exists && d.HasLeft():
		return nil
	case exists && half(d):
		return fault.New(fault.InDoubt, "the job ended while nobody watched, and part of the guest's memory is at the destination: %s (%s)", d.State, d.Reason)
	case exists && d.Active():
		return fault.New(fault.Undone, "the job ended while nobody watched, and the domain has its memory: %s (%s)", d.State, d.Reason)
	}
	return fault.New(fault.InDoubt, "the job ended while nobody watched")
}

// awaitStart returns when the job is seen, or over.
func (s *Streams) awaitStart(ctx context.Context, ref migration.Ref, st *stream) error {
	for {
		select {
		case <-st.over:
			return nil // how it ended is StreamStatus's to tell
		default:
		}
		job, err := s.migrator.Job(ctx, ref.Instance)
		if err == nil && job.InFlight() {
			return nil
		}
		if err := s.o.Runtime.Sleep(ctx, s.o.Poll/4); err != nil {
			return fault.New(fault.Unavailable, "the job was asked for and not seen yet: %w", err)
		}
	}
}
