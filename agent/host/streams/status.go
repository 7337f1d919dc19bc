package streams

import (
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// Status tells how a stream stands, but not what the ledger says of its guest; see
// migration.SourceVerbs.
func (s *Streams) Status(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	st, err := s.status(ctx, ref)
	off := st.Domain.State == string(driver.ShutOff) && !Settles(driver.Reason(st.Domain.Reason))
	held := st.PostCopy && st.Domain.State == string(driver.Paused) && st.Domain.Reason == string(driver.ReasonMigrating)
	s.noteTold(ref, err == nil && (off || held) && !st.Left && !st.InFlight)
	return st, fault.Wrap(err, "status of the stream of migration %s on %s", ref.Migration, s.o.Host)
}

func (s *Streams) status(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	var st migration.StreamStatus
	// Before its record: a stream that is over has been recorded, so that what
	// the hypervisor said stands beside the first word of its end.
	firsts, seconds := s.watching(ref, first) != nil, s.watching(ref, second) != nil
	j, _, found, err := s.current(ref)
	if err != nil {
		return st, err
	}
	own := firsts
	if st.PostCopy = j == second; st.PostCopy {
		own = seconds
	}
	rec, _, err := s.ended(ref, j)
	if err != nil {
		return st, err
	}
	if st.EndWanted, err = s.endWanted(ref); err != nil {
		return st, err
	}
	if st.Half, err = s.wasHalf(ref); err != nil {
		return st, err
	}
	// The domain after the job: a job seen in flight beside a domain seen stopped
	// afterwards is one that ended in between.
	var job driver.Job
	if s.migrator != nil {
		job, err = s.migrator.Job(ctx, ref.Instance)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return st, err
		}
	}
	d, exists, err := s.domain(ctx, ref)
	if err != nil {
		return st, err
	}
	st.Domain = View(d, exists)
	if exists && s.LeftOnRecord(ctx, ref, d, found, rec.Result) {
		rec.Result = Left
	}
	st.Left = rec.Result == Left
	// See under: what broke in post-copy is not in flight.
	st.InFlight = found && d.Reason != driver.ReasonPostCopyFailed && (job.InFlight() || rec.Result == None && own)
	st.Progress, st.Error = progress(job, d), rec.Error
	if !st.InFlight && rec.Last != nil {
		st.Progress = *rec.Last
	}
	if found && exists && d.HasLeft() && (rec.Result == None || rec.Result == Lost) {
		// libvirt forgets this reason when its daemon restarts. Whoever has been
		// told of it must find it again; beside the answer, not before it, since
		// the guest stands still at this moment.
		s.o.Spawn("note that "+ref.Instance+" has left", func(agent context.Context) {
			ctx, cancel := s.o.Runtime.WithTimeout(context.WithoutCancel(agent), cleanupTimeout)
			defer cancel()
			if err := s.outcome(ctx, ref, j, nil, 0); err != nil {
				s.log.Warn("that the guest has left could not be recorded", "instance", ref.Instance, "migration", ref.Migration, "error", err)
			}
		})
	}
	return st, nil
}

// View is a domain as conductors are told of it.
func View(d driver.Domain, exists bool) migration.DomainView {
	if !exists {
		return migration.DomainView{}
	}
	return migration.DomainView{Exists: true, State: string(d.State), Reason: string(d.Reason)}
}

// progress is a job in the words of the API.
func progress(j driver.Job, d driver.Domain) migration.Progress {
	p := migration.Progress{
		Phase: "memory", Elapsed: j.Elapsed,
		MemoryTotal: j.MemoryTotal, MemoryProcessed: j.MemoryProcessed, MemoryRemaining: j.MemoryRemaining,
		DiskTotal: j.DiskTotal, DiskProcessed: j.DiskProcessed, DiskRemaining: j.DiskRemaining,
		Rate: j.MemoryRate + j.DiskRate, DirtyRate: j.DirtyRate, Iteration: j.Iteration, Downtime: j.Downtime,
		Throttle: j.Throttle, PageRequests: j.PageRequests,
	}
	switch {
	case d.Reason == driver.ReasonPostCopy:
		p.Phase = "post-copy"
	case d.Reason == driver.ReasonPostCopyFailed:
		p.Phase = "post-copy failed"
	// While its memory moves a guest is paused only for the last of it, or by
	// its user; the reason tells.
	case d.State == driver.ShutOff || d.State == driver.Paused && d.Reason == driver.ReasonMigrating:
		p.Phase = "switchover"
	case j.DiskRemaining > 0 && j.MemoryProcessed == 0:
		p.Phase = "disk"
	case j.MemoryProcessed == 0 && j.DiskProcessed == 0:
		p.Phase = "setup"
	}
	return p
}

// Tune changes a stream under way; see migration.SourceVerbs.
func (s *Streams) Tune(ctx context.Context, ref migration.Ref, t migration.Tuning) error {
	return fault.Wrap(s.tune(ctx, ref, t), "tune stream of migration %s on %s", ref.Migration, s.o.Host)
}

func (s *Streams) tune(ctx context.Context, ref migration.Ref, t migration.Tuning) error {
	if _, _, found, err := s.current(ref); err != nil || !found {
		return errors.Join(err, fault.New(fault.NotFound, "there is no stream"))
	}
	job, err := s.migrator.Job(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if !job.InFlight() {
		return fault.New(fault.NotFound, "the job is over")
	}
	if t.Bandwidth > 0 {
		if err := s.migrator.SetBandwidth(ctx, ref.Instance, t.Bandwidth); err != nil {
			return err
		}
	}
	if t.MaxDowntime > 0 {
		if err := s.migrator.SetMaxDowntime(ctx, ref.Instance, t.MaxDowntime); err != nil {
			return err
		}
	}
	if t.Suspend {
		return s.suspend(ctx, ref)
	}
	return nil
}
