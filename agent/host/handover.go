package host

import (
	"context"
	"errors"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/streams"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// sourceState reads what decide needs. A domain that has left settles it by
// itself, and each call more is downtime then. Else the job is read before the
// domain: a job seen over beside a domain that has its memory cannot become
// another.
func (h *Host) sourceState(ctx context.Context, ref migration.Ref) (sourceState, error) {
	own := h.streams.Watches(ref) // before the record that its end leaves
	known, err := h.streams.Known(ref)
	if err != nil {
		return sourceState{}, err
	}
	s := sourceState{asked: known.Found, persistent: known.Persistent, result: known.Result, postCopy: known.PostCopy, half: known.Half, word: h.wordOn(ref)}
	if s.domain, s.exists, err = h.domain(ctx, ref.Instance); err != nil || s.exists && s.domain.HasLeft() {
		return s, err
	}
	s.under = known.Result == resultNone && own
	if h.migrator != nil {
		job, err := h.migrator.Job(ctx, ref.Instance)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return sourceState{}, err
		}
		s.under = s.under || inFlight(job)
	}
	s.domain, s.exists, err = h.domain(ctx, ref.Instance)
	if err == nil && s.exists && h.streams.LeftOnRecord(ctx, ref, s.domain, s.asked, s.result) {
		s.result = resultLeft
	}
	return s, err
}

// commit does operation.Commit.
func (h *Host) commit(ctx context.Context, ref migration.Ref) (migration.Commit, error) {
	none := migration.Commit{}
	asked, err := h.streams.Known(ref)
	if err != nil {
		return none, err
	}
	if c, ok := h.tracker.Committed(ref.Migration); ok && c.Attempt == ref.Attempt {
		return c, nil
	}
	if !asked.Found {
		return none, fault.New(fault.Forbidden, "no stream was asked for")
	}
	s, err := h.sourceState(ctx, ref)
	if err != nil {
		return none, err
	}
	if h.leftByJournal(ctx, ref, s) {
		s.result = resultLeft
	}
	switch what, why := decide(s); what {
	case mayCommit:
		h.log.Info("the token leaves", "instance", ref.Instance, "migration", ref.Migration, "to", asked.Destination, "why", why)
	case notYet:
		kind := fault.Busy // it has left by all signs; the call's end is awaited
		if s.exists && s.domain.Active() {
			kind = fault.Forbidden
		}
		return none, fault.New(kind, "%s", why)
	case mayReclaim:
		return none, fault.New(fault.Forbidden, "%s", why)
	default:
		return none, fault.New(fault.InDoubt, "%s", why)
	}
	c, err := h.tracker.ReleaseOwnershipAs(ctx, memory.At(ref, ""), asked.Destination, asked.PowerState)
	if err != nil {
		return none, err
	}
	return c, nil
}

// reclaim does operation.Reclaim.
func (h *Host) reclaim(ctx context.Context, ref migration.Ref) error {
	if err := h.retake(ctx, ref); err != nil {
		return err
	}
	if c, ok := h.tracker.Committed(ref.Migration); ok {
		return fault.New(fault.Forbidden, "its token has left to %s", c.To)
	}
	// No stream of this attempt starts any more.
	if err := h.tracker.WriteTombstone(ctx, memory.At(ref, stepStream)); err != nil {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	asked, err := h.streams.Known(ref)
	if err != nil {
		return err
	}
	found := asked.Found
	var s sourceState
	active := false // the domain was seen with its memory
	for turn := 0; ; turn++ {
		if s, err = h.sourceState(ctx, ref); err != nil {
			return err
		}
		what, why := decide(s)
		if s.unsettled() && (active || !h.streams.ToldOff(ref)) && s.word != migration.WordSource {
			// It may have left: the conductor looks again, and asks the destination first.
			return fault.New(fault.InDoubt, "the domain went off while it was looked at, for a reason that settles nothing")
		}
		if s.held() && !h.streams.ToldOff(ref) && s.word != migration.WordSource {
			return fault.New(fault.InDoubt, "the guest stands still since its second job, which may have let it run at the destination")
		}
		active = active || s.exists && s.domain.Active()
		if what == mayCommit {
			return fault.New(fault.Forbidden, "%s", why)
		}
		if what == inDoubt {
			return fault.New(fault.InDoubt, "%s", why)
		}
		if what == mayReclaim {
			break
		}
		if h.tracker.CommitRefused(ref.Migration, ref.Attempt) {
			return nil // decided before, when its own job was over: this one is a later attempt's
		}
		if !found && !h.streams.Watches(ref) {
			// The job is not this migration's: not this undo's to abort.
			return fault.New(fault.Busy, "a job that nobody here asked for is in flight")
		}
		// Asked again at each turn: an abort that comes while libvirt is still in
		// the job's first phase can be lost.
		if err := h.migrator.AbortJob(ctx, ref.Instance); err != nil && !errors.Is(err, fault.InDoubt) && !errors.Is(err, fault.NotFound) {
			return err
		}
		if turn > 0 {
			// It was told a second ago: libvirt waits for a network that is silent. Its
			// connections end here, and the job with them.
			if err := h.streams.End(ctx, ref); err != nil {
				return err
			}
		}
		if err := h.rt.Sleep(ctx, h.o.Poll/4); err != nil {
			return fault.New(fault.Unavailable, "the job has not ended yet: %w", err)
		}
	}
	if err := h.streams.End(ctx, ref); err != nil {
		return err
	}
	// Again: a hypervisor that hung may have taken up the call of an agent that is dead
	// after the look above. Nothing passes from here on.
	if s, err = h.sourceState(ctx, ref); err != nil {
		return err
	}
	switch what, why := decide(s); {
	case what == mayCommit:
		return fault.New(fault.Forbidden, "%s", why)
	case what != mayReclaim, active && s.unsettled():
		return fault.New(fault.InDoubt, "it has changed while it was looked at: %s", why)
	}
	err = h.tracker.RefuseCommit(ctx, memory.At(ref, ""))
	if errors.Is(err, fault.NotFound) && !found {
		return nil // nothing was begun, and the guest is not in the ledger any more
	}
	if err != nil {
		return err
	}
	if s.word == migration.WordSource && s.exists && s.domain.HasLeft() {
		// An operator's word: the guest is started here although its domain left.
		return h.keepLeft(ctx, s.domain)
	}
	if !found || !s.exists {
		return nil
	}
	return h.streams.LetRun(ctx, ref, s.domain, asked.PowerState)
}

// acceptToken does operation.AcceptToken.
func (h *Host) acceptToken(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	if c.Migration != ref.Migration || c.Attempt != ref.Attempt || c.Instance != ref.Instance {
		return fault.New(fault.Forbidden, "the commit is of attempt %d of migration %s for %s", c.Attempt, c.Migration, c.Instance)
	}
	// A repeated accept resumes nobody: the guest's user may have paused it.
	if done, _, err := memory.Recall[bool](h.memory, ref, memoryAccepted); err != nil || done {
		return err
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if known && inst.Token.State == claims.TokenHere && inst.Token.Migration == ref.Migration {
		if _, bound := h.attempts.BoundBy(ref); bound {
			return nil // finished, and its records are gone
		}
	}
	if h.attempts.GoneOn(ref) {
		return nil
	}
	rec, found, err := memory.Recall[preparation](h.memory, ref, memoryPrepared)
	if err != nil {
		return err
	}
	if !found {
		// The claim without its preparation: an undo has taken it. The commit is
		// the proof that counts; what is known of the guest is in the claim.
		claim, ok := h.tracker.ByOwner(h.attempts.Owner(ref))
		if !ok || claim.Context == nil {
			return fault.New(fault.Forbidden, "no claim here names migration %s, attempt %d", ref.Migration, ref.Attempt)
		}
		d, exists, err := h.domain(ctx, ref.Instance)
		if err != nil {
			return err
		}
		rec.Guest = claims.Instance{UUID: ref.Instance, Name: ref.Instance, Flavor: claim.Context.NewFlavor}
		if exists {
			rec.Guest.Name = d.Name
		}
	}
	if err := h.tracker.AcceptToken(ctx, c, rec.Guest); err != nil {
		return err
	}
	// From here on the guest is this host's, and nothing below undoes that.
	if err := h.letRun(ctx, ref, c.Power); err != nil {
		return err
	}
	return h.memory.Remember(ctx, ref, memoryAccepted, true)
}

// letRun resumes the copy that is the guest now.
func (h *Host) letRun(ctx context.Context, ref migration.Ref, power migration.PowerState) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case !exists || !d.Active():
		// It ended between hand-over and now, as any guest can. It lives here, shut
		// off; its user starts it.
		h.log.Error("the guest ended before it could be resumed", "instance", ref.Instance, "migration", ref.Migration, "state", d.State, "reason", d.Reason)
		return nil
	case d.InPostCopy():
		return nil // it runs already, or as soon as its memory comes
	case d.State != driver.Paused || power == migration.PowerPaused:
		return nil
	case d.Reason == driver.ReasonMigrating:
		return fault.New(fault.Busy, "its memory is not complete here")
	}
	err = h.resume(ctx, ref.Instance)
	if errors.Is(err, fault.InDoubt) {
		// Resuming a guest that runs changes nothing: look, and let the caller
		// repeat where it does not run yet.
		if d, exists, lookErr := h.domain(ctx, ref.Instance); lookErr == nil && exists && d.State == driver.Running {
			return nil
		}
	}
	return err
}

// destinationStatus does operation.DestinationStatus.
func (h *Host) destinationStatus(ctx context.Context, ref migration.Ref) (migration.DestinationStatus, error) {
	var st migration.DestinationStatus
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return st, wrap(err, "status of migration %s on %s", ref.Migration, h.o.Name)
	}
	st.Domain = streams.View(d, exists)
	st.Ledger = migration.LedgerElsewhere
	inst, known := h.tracker.Instance(ref.Instance)
	here := known && inst.Token.State == claims.TokenHere
	if st.Epoch = inst.Token.Epoch; here {
		st.Ledger = migration.LedgerHere
	}
	if h.attempts.Accepted(ref) || h.attempts.GoneOn(ref) {
		// Also where it has gone on since: whoever has it now has a still higher epoch.
		st.Ledger = migration.LedgerAccepted
		st.Epoch, _ = h.tracker.Epoch(ref.Instance)
	}
	if c, ok := h.tracker.ByOwner(h.attempts.Owner(ref)); ok {
		st.Claim = string(c.State)
	} else if c, ok := h.attempts.BoundBy(ref); ok {
		st.Claim = string(c.State)
	}
	other, moving := h.attempts.Moving(ref.Instance)
	st.Nothing = !exists && (!moving || other == ref.Migration) && !here && len(h.tracker.ByInstance(ref.Instance)) == 0
	return st, nil
}

// finishDestination does operation.FinishDestination.
func (h *Host) finishDestination(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[preparation](h.memory, ref, memoryPrepared)
	if err != nil {
		return err
	}
	if _, bound := h.attempts.BoundBy(ref); bound && !found {
		return nil // done before, and its records are gone
	}
	if h.attempts.GoneOn(ref) {
		if err := h.streams.End(ctx, ref); err != nil {
			return err
		}
		return h.tracker.ForgetMigration(ctx, ref.Migration)
	}
	inst, ok := h.tracker.Instance(ref.Instance)
	if !ok || inst.Token.State != claims.TokenHere || inst.Token.Migration != ref.Migration {
		return fault.New(fault.Forbidden, "the token did not come here by this migration")
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if err := wholeHere(d, exists); err != nil {
		return err // the stream's end would be the guest's
	}
	// The definition first: a bound claim is one of a defined domain.
	if err := h.definePersistent(ctx, ref, rec); err != nil {
		return err
	}
	if _, err := h.tracker.Bind(ctx, h.attempts.Owner(ref)); err != nil {
		return err
	}
	if err := h.streams.End(ctx, ref); err != nil {
		return err
	}
	// libvirt's own autostart would start it without asking who owns it; the
	// wish is in the ledger.
	if err := h.driver.SetAutostart(ctx, ref.Instance, false); err != nil {
		return err
	}
	for _, m := range rec.Made {
		h.files.Keep(m)
	}
	h.connectArrived(ctx, ref, rec.DomainXML)
	// QEMU announces the guest to the network itself when it resumes.
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.PostLiveMigrationAtDestination)); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// definePersistent makes sure that the definition is there and is the one of the
// destination's claim. libvirt has made it (PERSIST_DEST); where it is missing,
// it is made again from the record.
func (h *Host) definePersistent(ctx context.Context, ref migration.Ref, rec preparation) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if exists && d.Persistent {
		return nil
	}
	if rec.Prepared == nil {
		return fault.New(fault.InDoubt, "the guest has no definition here and its record is lost")
	}
	return h.driver.Define(ctx, rec.Prepared.PersistentXML)
}

// documents writes the guest's documents for this host from its own claim.
func (h *Host) documents(ref migration.Ref, g migration.Guest, c claims.Claim) (migration.Prepared, error) {
	flavor := g.Flavor
	if c.Context != nil {
		flavor = c.Context.NewFlavor
	}
	meta := domainxml.Metadata{Name: g.Name, Flavor: flavor, Epoch: g.Epoch + 1, Migration: ref.Migration}
	binding := domainxml.Binding{Place: h.placeOf(c), Devices: domainxml.MapDevices(g.Assignment, c.Assignment)}
	p := migration.Prepared{LibvirtURI: h.o.LibvirtURI, MigrateURI: h.o.MigrateURI}
	var err error
	if p.DestinationXML, err = h.rewrite(g.XML, meta, binding); err != nil {
		return migration.Prepared{}, err
	}
	persistent := g.Definition
	if persistent == "" {
		persistent = g.XML // a transient guest is defined at its destination
	}
	p.PersistentXML, err = h.rewrite(persistent, meta, binding)
	return p, err
}

func (h *Host) rewrite(text string, meta domainxml.Metadata, binding domainxml.Binding) (string, error) {
	doc, err := domainxml.Parse(text)
	if err != nil {
		return "", fault.New(fault.Invalid, "write the guest's document: %w", err)
	}
	doc.SetMetadata(meta)
	if binding.Listen, err = h.listensHere(text); err != nil {
		return "", err
	}
	if err := doc.Rebind(binding); err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	return doc.String(), nil
}
