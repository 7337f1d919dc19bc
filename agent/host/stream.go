package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/agent/host/disks"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// cleanupTimeout bounds what is still written after a caller has gone.
// Arbitrary: many fsyncs, one of a slow disk.
const cleanupTimeout = 10 * time.Second

// streaming is the record that a stream was asked for.
type streaming struct {
	Persistent  bool                 `json:"persistent"` // the source's domain had a definition
	PowerState  migration.PowerState `json:"power_state"`
	Destination string               `json:"dest_compute"`
	DomainXML   string               `json:"domain_xml"` // for hooks, when the domain is gone
	Copied      []copiedDisk         `json:"copied,omitempty"`
}

// streamed is the record of what came of a stream.
type streamed struct {
	Result result              `json:"result"`
	Error  string              `json:"error,omitempty"`
	Last   *migration.Progress `json:"last,omitempty"` // of the completed job
}

// copiedDisk is a disk that leaves by copy: its file here goes in the end.
type copiedDisk struct {
	Target  string      `json:"target"`
	Path    string      `json:"path"`
	Stamp   disks.Stamp `json:"stamp"`
	Version string      `json:"version,omitempty"` // of a shipped one: as its first byte was read
}

// result is what is known of the hypervisor's call.
type result string

const (
	resultNone   result = ""       // asked for, or about to be
	resultLeft   result = "left"   // it ended well, or the domain was seen `shut off (migrated)`
	resultUndone result = "undone" // the hypervisor says that it rolled back
	resultLost   result = "lost"   // it ended, nobody knows how
)

// stream is an actor that waits for a job.
type stream struct {
	ended chan struct{} // closed when libvirt has answered
	over  chan struct{} // closed when what it answered is durable
}

func streamKey(ref migration.Ref) string { return fmt.Sprintf("%s/%d", ref.Migration, ref.Attempt) }

// ownStream reports whether this process waits for this attempt's job.
func (h *Host) ownStream(ref migration.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams[streamKey(ref)] != nil
}

// StartStream implements migration.SourceVerbs.
func (h *Host) StartStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return wrap(h.startStream(ctx, ref, s), "start stream of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) startStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if h.migrator == nil {
		return fault.New(fault.Forbidden, "the hypervisor of %s cannot live-migrate", h.o.Name)
	}
	if h.ownStream(ref) {
		return nil
	}
	_, found, err := recall[streaming](h, ref, memoryStream)
	if err != nil {
		return err
	}
	if found {
		// A stream that was asked for is never asked for again: it is in flight
		// and adopted, or over. Also where its undo has begun: the guest may have
		// left before it, and then the move goes forward from here.
		return h.adoptStream(ctx, ref)
	}
	if err := h.late(ref, stepStream); err != nil {
		return err
	}
	if err := h.managing(""); err != nil {
		return err
	}
	inst, ok := h.tracker.Instance(ref.Instance)
	if !ok {
		return fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	mc, ok := h.tracker.Context(ref.Migration)
	if !ok || mc.Instance != ref.Instance {
		return fault.New(fault.Forbidden, "no context of migration %s is recorded here", ref.Migration)
	}
	if h.tracker.CommitRefused(ref.Migration, ref.Attempt) {
		return fault.New(fault.Forbidden, "attempt %d of migration %s was given up", ref.Attempt, ref.Migration)
	}
	dom, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if !exists || !dom.Active() {
		return fault.New(fault.Forbidden, "guest %s does not run", inst.Name)
	}
	job, err := h.migrator.Job(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if inFlight(job) {
		return fault.New(fault.Busy, "libvirt has a job of guest %s in flight that nobody here asked for", inst.Name)
	}
	// What the user has chosen by now: between the context and this moment disks
	// were made and hooks run, and the stream itself hides the choice.
	rec := streaming{Persistent: dom.Persistent, PowerState: powerState(dom), Destination: mc.Destination}
	if rec.DomainXML, err = h.driver.XML(ctx, ref.Instance, driver.Live); err != nil {
		return err
	}
	if rec.Copied, err = h.copied(rec.DomainXML, s.CopyDisks); err != nil {
		return err
	}
	prepared, err := h.openDeparture(ctx, ref, mc.Destination, s)
	if err != nil {
		return err
	}
	// The last word before the effect: from this record on there is one stream,
	// whatever dies.
	if err := h.remember(ctx, ref, memoryStream, rec); err != nil {
		return err
	}
	return h.awaitStart(ctx, ref, h.watch(ref, func(ctx context.Context) error {
		return h.migrator.Migrate(ctx, ref.Instance, driver.Migration{
			DestinationURI: prepared.LibvirtURI, MigrateURI: prepared.MigrateURI, DisksURI: prepared.DisksURI,
			DestinationXML: prepared.DestinationXML, PersistentXML: prepared.PersistentXML,
			CopyDisks: s.CopyDisks, Paused: true, Unsafe: s.Shared,
			// What goes through a stream is encrypted by it.
			TLS:       h.o.StreamTLS && prepared.StreamAddress == "",
			Bandwidth: s.Options.Bandwidth, MaxDowntime: s.Options.MaxDowntime, ParallelConnections: s.Options.Parallel,
		})
	}))
}

// copied finds the files behind the disks that are to be copied, so that exactly
// they are removed in the end.
func (h *Host) copied(text string, targets []string) ([]copiedDisk, error) {
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	var out []copiedDisk
	for _, target := range targets {
		i := slices.IndexFunc(doc.Devices.Disks, func(e diskElement) bool { return e.Target.Dev == target })
		if i < 0 || doc.Devices.Disks[i].Type != "file" || doc.Devices.Disks[i].path() == "" {
			return nil, fault.New(fault.Invalid, "disk %s is to be copied and is no file", target)
		}
		path := doc.Devices.Disks[i].path()
		real, _, _, err := h.files.Lookup(path)
		if err != nil {
			return nil, wrap(err, "disk %s", target)
		}
		files, err := h.leaving(target, path, real)
		if err != nil {
			return nil, wrap(err, "disk %s", target)
		}
		out = append(out, files...)
	}
	return out, nil
}

// watch runs call as the actor of a stream and records its outcome.
func (h *Host) watch(ref migration.Ref, call func(context.Context) error) *stream {
	st := &stream{ended: make(chan struct{}), over: make(chan struct{})}
	h.mu.Lock()
	h.streams[streamKey(ref)] = st
	h.mu.Unlock()
	end := func() {
		h.mu.Lock()
		delete(h.streams, streamKey(ref))
		h.mu.Unlock()
		close(st.over)
	}
	running := h.spawn("stream of migration "+ref.Migration, func() {
		defer end()
		log := h.log.With("instance", ref.Instance, "migration", ref.Migration, "attempt", ref.Attempt)
		log.Info("stream begins")
		begin := h.rt.Boot().Since
		err := call(h.ctx)
		close(st.ended)
		if err != nil && h.ctx.Err() != nil {
			return // the agent stops; the job goes on, and is adopted
		}
		lasted := h.rt.Boot().Since - begin
		log.Info("stream is over", "seconds", lasted.Seconds(), "error", err)
		ctx, cancel := h.rt.WithTimeout(context.WithoutCancel(h.ctx), cleanupTimeout)
		defer cancel()
		if err := h.outcome(ctx, ref, err, lasted); err != nil {
			log.Error("the outcome of the stream could not be recorded", "error", err)
		}
	})
	if !running {
		close(st.ended)
		end()
	}
	return st
}

// AwaitStream implements migration.StreamWaiter.
func (h *Host) AwaitStream(ctx context.Context, ref migration.Ref, d time.Duration) error {
	h.mu.Lock()
	st := h.streams[streamKey(ref)]
	h.mu.Unlock()
	if st != nil {
		select {
		case <-st.ended: // told once already, as far as anybody waited
		default:
			wait, cancel := h.rt.WithTimeout(ctx, d)
			defer cancel()
			_ = runtime.Await(wait, h.rt, st.ended) // the end of d is no error
			return context.Cause(ctx)
		}
	}
	return h.rt.Sleep(ctx, d)
}

// outcome makes durable how a stream ended; nil is that the guest has left. It
// only ever knows more than before. lasted is how long libvirt's call took, 0
// where that is not known.
func (h *Host) outcome(ctx context.Context, ref migration.Ref, ended error, lasted time.Duration) error {
	got := streamed{Result: resultUndone} // also where it was refused before it began
	switch fault.KindOf(ended) {
	case "":
		got.Result = resultLeft
	case fault.InDoubt, fault.Unavailable:
		got.Result = resultLost
	}
	if ended != nil {
		got.Error = ended.Error()
	} else if job, err := h.migrator.CompletedJob(ctx, ref.Instance); err == nil {
		// Best effort: a transient domain takes its statistics along.
		p := progress(job, driver.Domain{State: driver.ShutOff})
		// libvirt's downtime ends with its job; until its call returned the guest
		// stood still as well.
		p.Downtime += max(0, lasted-job.Elapsed)
		got.Last = &p
	}
	if err := h.recording.Lock(ctx, h.rt); err != nil {
		return err
	}
	defer h.recording.Unlock()
	// The guest's move can be over, and forgotten, before libvirt's call returns.
	if _, asked, err := recall[streaming](h, ref, memoryStream); err != nil || !asked {
		return err
	}
	was, _, err := recall[streamed](h, ref, memoryResult)
	if err != nil || was.Result == resultUndone || was.Result == resultLeft || was.Result == got.Result {
		return err
	}
	return h.remember(ctx, ref, memoryResult, got)
}

// adoptStream takes up a stream of an earlier agent: it watches a job in flight,
// and records that one which is not there any more is over.
func (h *Host) adoptStream(ctx context.Context, ref migration.Ref) error {
	if was, known, err := recall[streamed](h, ref, memoryResult); err != nil || known && was.Result != resultLost {
		return err
	}
	for agreed := false; ; agreed = true {
		job, err := h.migrator.Job(ctx, ref.Instance)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		if err == nil && inFlight(job) {
			break
		}
		// An earlier agent may have died with its call on the way: to a hypervisor
		// that hung, which takes it up only now. Two reads agree that none comes.
		if agreed {
			return h.foundOver(ctx, ref)
		}
		if d, exists, err := h.domain(ctx, ref.Instance); err != nil {
			return err
		} else if !exists || !d.Active() {
			return h.foundOver(ctx, ref)
		}
		if err := h.rt.Sleep(ctx, h.o.Agree/4); err != nil {
			return err
		}
	}
	h.log.Info("adopt the job in flight", "instance", ref.Instance, "migration", ref.Migration)
	h.watch(ref, func(ctx context.Context) error {
		for {
			if err := h.rt.Sleep(ctx, h.o.Poll); err != nil {
				return err
			}
			job, err := h.migrator.Job(ctx, ref.Instance)
			if err == nil && inFlight(job) || err != nil && !errors.Is(err, fault.NotFound) {
				continue // who does not answer has not ended
			}
			if err := h.seenEnd(ctx, ref); !errors.Is(err, fault.Unavailable) {
				return err
			}
		}
	})
	return nil
}

// foundOver records the end of a job that nobody watched.
func (h *Host) foundOver(ctx context.Context, ref migration.Ref) error {
	err := h.seenEnd(ctx, ref)
	if errors.Is(err, fault.Unavailable) {
		return err
	}
	return h.outcome(ctx, ref, err, 0)
}

// seenEnd tells from the domain how a job ended whose answer nobody heard: nil
// when it has left, fault.Undone when it still has its memory, fault.InDoubt
// when the domain does not say.
func (h *Host) seenEnd(ctx context.Context, ref migration.Ref) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case exists && hasLeft(d):
		return nil
	case exists && d.Active():
		return fault.New(fault.Undone, "the job ended while nobody watched, and the domain has its memory: %s (%s)", d.State, d.Reason)
	}
	return fault.New(fault.InDoubt, "the job ended while nobody watched")
}

// awaitStart returns when the job is seen, or over.
func (h *Host) awaitStart(ctx context.Context, ref migration.Ref, st *stream) error {
	for {
		select {
		case <-st.over:
			return nil // how it ended is StreamStatus's to tell
		default:
		}
		job, err := h.migrator.Job(ctx, ref.Instance)
		if err == nil && inFlight(job) {
			return nil
		}
		if err := h.rt.Sleep(ctx, h.o.Poll/4); err != nil {
			return fault.New(fault.Unavailable, "the job was asked for and not seen yet: %w", err)
		}
	}
}

// StreamStatus implements migration.SourceVerbs.
func (h *Host) StreamStatus(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	st, err := h.streamStatus(ctx, ref)
	off := st.Domain.State == string(driver.ShutOff) && !endedOrLeft(driver.Reason(st.Domain.Reason))
	h.noteTold(ref, err == nil && off && !st.Left && !st.InFlight)
	return st, wrap(err, "status of the stream of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) streamStatus(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	st := migration.StreamStatus{Ledger: h.ledger(ref), Epoch: h.epoch(ref.Instance)}
	if w, ok := h.WordOn(ref); ok {
		st.Settled = w.GuestIsAt
	}
	// Before its record: a stream that is over has been recorded, so that what
	// the hypervisor said stands beside the first word of its end.
	own := h.ownStream(ref)
	_, found, err := recall[streaming](h, ref, memoryStream)
	if err != nil {
		return st, err
	}
	rec, _, err := recall[streamed](h, ref, memoryResult)
	if err != nil {
		return st, err
	}
	// The domain after the job: a job seen in flight beside a domain seen stopped
	// afterwards is one that ended in between.
	var job driver.Job
	if h.migrator != nil {
		job, err = h.migrator.Job(ctx, ref.Instance)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return st, err
		}
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return st, err
	}
	st.Domain = view(d, exists)
	if exists && h.leftOnRecord(ctx, ref, d, found, rec.Result) {
		rec.Result = resultLeft
	}
	st.Left = rec.Result == resultLeft
	st.InFlight = found && (inFlight(job) || rec.Result == resultNone && own)
	st.Progress, st.Error = progress(job, d), rec.Error
	if !st.InFlight && rec.Last != nil {
		st.Progress = *rec.Last
	}
	if found && exists && hasLeft(d) && (rec.Result == resultNone || rec.Result == resultLost) {
		// libvirt forgets this reason when its daemon restarts. Whoever has been
		// told of it must find it again; beside the answer, not before it, since
		// the guest stands still at this moment.
		h.spawn("note that "+ref.Instance+" has left", func() {
			ctx, cancel := h.rt.WithTimeout(context.WithoutCancel(h.ctx), cleanupTimeout)
			defer cancel()
			if err := h.outcome(ctx, ref, nil, 0); err != nil {
				h.log.Warn("that the guest has left could not be recorded", "instance", ref.Instance, "migration", ref.Migration, "error", err)
			}
		})
	}
	return st, nil
}

// hasLeft: the domain's memory is at the destination and nowhere else.
func hasLeft(d driver.Domain) bool {
	return d.State == driver.ShutOff && d.Reason == driver.ReasonMigrated
}

func view(d driver.Domain, exists bool) migration.DomainView {
	if !exists {
		return migration.DomainView{}
	}
	return migration.DomainView{Exists: true, State: string(d.State), Reason: string(d.Reason)}
}

// ledger is this host's word on the token, seen from one attempt.
func (h *Host) ledger(ref migration.Ref) migration.Ledger {
	inst, ok := h.tracker.Instance(ref.Instance)
	switch {
	case h.tracker.CommitRefused(ref.Migration, ref.Attempt) && ok && inst.Token.State == claims.TokenHere:
		return migration.LedgerReclaimed
	case ok && inst.Token.State == claims.TokenHere:
		return migration.LedgerHere
	}
	if c, ok := h.tracker.Committed(ref.Migration); ok && c.Attempt == ref.Attempt && c.From == h.o.Name {
		return migration.LedgerSurrendered
	}
	return migration.LedgerElsewhere
}

// progress is a job in the words of the API.
func progress(j driver.Job, d driver.Domain) migration.Progress {
	p := migration.Progress{
		Phase: "memory", Elapsed: j.Elapsed,
		MemoryTotal: j.MemoryTotal, MemoryProcessed: j.MemoryProcessed, MemoryRemaining: j.MemoryRemaining,
		DiskTotal: j.DiskTotal, DiskProcessed: j.DiskProcessed, DiskRemaining: j.DiskRemaining,
		Rate: j.MemoryRate + j.DiskRate, DirtyRate: j.DirtyRate, Iteration: j.Iteration, Downtime: j.Downtime,
	}
	switch {
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

// TuneStream implements migration.SourceVerbs.
func (h *Host) TuneStream(ctx context.Context, ref migration.Ref, t migration.Tuning) error {
	return wrap(h.tuneStream(ctx, ref, t), "tune stream of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) tuneStream(ctx context.Context, ref migration.Ref, t migration.Tuning) error {
	if _, found, err := recall[streaming](h, ref, memoryStream); err != nil || !found {
		return errors.Join(err, fault.New(fault.NotFound, "there is no stream"))
	}
	job, err := h.migrator.Job(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if !inFlight(job) {
		return fault.New(fault.NotFound, "the job is over")
	}
	if t.Bandwidth > 0 {
		if err := h.migrator.SetBandwidth(ctx, ref.Instance, t.Bandwidth); err != nil {
			return err
		}
	}
	if t.MaxDowntime > 0 {
		return h.migrator.SetMaxDowntime(ctx, ref.Instance, t.MaxDowntime)
	}
	return nil
}

// forgetStream drops what the stream of one attempt remembered.
func (h *Host) forgetStream(ctx context.Context, ref migration.Ref) error {
	if err := h.recording.Lock(ctx, h.rt); err != nil {
		return err
	}
	defer h.recording.Unlock()
	h.noteTold(ref, false)
	for _, memory := range []string{memoryStream, memoryResult} {
		if err := h.tracker.Unremember(ctx, at(ref, memory)); err != nil {
			return err
		}
	}
	return nil
}
