package host

import (
	"context"
	"fmt"
	"strings"

	"berth/agent/host/attempts"
	"berth/agent/host/evacuation"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
)

// acceptCommitted does operation.AcceptEvacuated.
func (h *Host) acceptCommitted(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	if c.Ref() != memory.At(ref, "") || c.To != h.o.Name {
		return fault.New(fault.Forbidden, "the commit is of attempt %d of migration %s for %s to %q", c.Attempt, c.Migration, c.Instance, c.To)
	}
	return h.acceptEvacuated(ctx, ref, c.Epoch)
}

// acceptGiven accepts the token of an instance that the fleet's records have given to this host.
func (h *Host) acceptGiven(ctx context.Context, ref migration.Ref) error {
	return h.Alone(ctx, ref.Instance, func(ctx context.Context) error { return h.acceptEvacuated(ctx, ref, 0) })
}

// acceptEvacuated takes the token that the fleet's records have given to this host by the attempt.
// Epoch is what somebody said that they gave, 0 where nobody did.
func (h *Host) acceptEvacuated(ctx context.Context, ref migration.Ref, epoch uint64) error {
	if h.attempts.Accepted(ref) || h.attempts.GoneOn(ref) {
		return nil
	}
	rec, found, err := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	switch {
	case err != nil:
		return err
	case !found || !rec.Prepared:
		return fault.New(fault.Forbidden, "%s was not prepared by attempt %d of migration %s", h.o.Name, ref.Attempt, ref.Migration)
	}
	word, in, err := h.askRecords(ctx, ref, rec)
	switch {
	case err != nil:
		return err
	case word != evacuation.Given:
		return fault.Refuse(fault.Forbidden, "", notGivenHere(h.o.Name, ref, in))
	case epoch != 0 && epoch != in.Epoch:
		return fault.New(fault.Forbidden, "the commit has epoch %d, the fleet's records epoch %d", epoch, in.Epoch)
	}
	// Of the records, but for what its user had chosen, which this host was told when it was
	// prepared.
	err = h.tracker.AcceptToken(ctx, migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: in.Epoch, From: rec.Source, To: h.o.Name, Power: rec.Power,
	}, rec.Instance)
	if err == nil {
		h.log.Info("the token of a dead host's guest has come", "instance", ref.Instance, "migration", ref.Migration, "source", rec.Source, "epoch", in.Epoch)
	}
	return err
}

func notGivenHere(host string, ref migration.Ref, in fleet.Instance) fault.Reason {
	r := fault.Reason{
		Code: "not_given", Message: fmt.Sprintf("the fleet's records do not give the guest to %s by attempt %d of migration %s", host, ref.Attempt, ref.Migration),
		Want: host, Have: in.Host, Change: "look where the guest is",
	}
	if in.Host != "" {
		r.Message += fmt.Sprintf(": %s has it, with epoch %d", in.Host, in.Epoch)
	}
	return r
}

// askRecords asks the fleet's records about a guest for which this host was prepared, and gives
// the guest's record where there is one. An error is fault.Unavailable where they do not answer.
func (h *Host) askRecords(ctx context.Context, ref migration.Ref, rec lost) (evacuation.Records, fleet.Instance, error) {
	word, take, in, err := h.readRecords(ctx, ref, rec)
	if err == nil && word == evacuation.Open && take.Death == 0 {
		word = evacuation.Never // nobody is dead: revisions never come back, and what was read of the death is gone
	}
	return word, in, err
}

// readRecords is askRecords with what it takes to give the attempt up; see fleet.Records.GiveUp.
func (h *Host) readRecords(ctx context.Context, ref migration.Ref, rec lost) (evacuation.Records, fleet.TakeOver, fleet.Instance, error) {
	none := fleet.TakeOver{}
	if h.o.Records == nil {
		return evacuation.Unanswered, none, fleet.Instance{}, fault.New(fault.Unavailable, "host %s knows no store of the fleet's records ([fleet])", h.o.Name)
	}
	ctx, cancel := h.rt.WithTimeout(ctx, recordsPatience)
	defer cancel()
	in, revision, err := h.o.Records.Instance(ctx, ref.Instance)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return evacuation.Never, none, fleet.Instance{}, nil
	case err != nil:
		return evacuation.Unanswered, none, in, fault.New(fault.Unavailable, "the fleet's records: %w", err)
	case in.Host == h.o.Name && in.Migration == ref.Migration && in.Attempt == ref.Attempt && in.Epoch > rec.Epoch:
		return evacuation.Given, none, in, nil
	case in.Host != rec.Source || in.Epoch != rec.Epoch:
		return evacuation.Never, none, in, nil
	}
	take := fleet.TakeOver{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Source: rec.Source, To: h.o.Name, Epoch: in.Epoch, Record: revision,
	}
	_, take.Death, err = h.o.Records.Dead(ctx, rec.Source)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return evacuation.Unanswered, none, in, fault.New(fault.Unavailable, "the fleet's records: %w", err)
	}
	return evacuation.Open, take, in, nil
}

// finishEvacuation does operation.FinishEvacuation.
func (h *Host) finishEvacuation(ctx context.Context, ref migration.Ref) (migration.FinishedEvacuation, error) {
	none := migration.FinishedEvacuation{}
	rec, found, err := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	if err != nil {
		return none, err
	}
	_, bound := h.attempts.BoundBy(ref)
	switch {
	case found && rec.Finished:
		return *rec.Lives, nil
	case h.attempts.GoneOn(ref):
		return none, h.tracker.ForgetMigration(ctx, ref.Migration)
	case !h.attempts.Accepted(ref):
		return none, fault.New(fault.Forbidden, "the token did not come here by this migration")
	case !found && bound:
		// Finished so long ago that what was answered is forgotten.
		d, exists, err := h.domain(ctx, ref.Instance)
		return migration.FinishedEvacuation{Started: exists && d.Active()}, err
	case !found:
		return none, fault.New(fault.InDoubt, "the guest's token is here, and the record of its preparation is lost")
	}
	if rec.Lives == nil {
		lives, err := h.liveAgain(ctx, ref, rec)
		if err != nil {
			return none, err
		}
		rec.Lives = &lives
		if err := h.memory.Remember(ctx, ref, memoryEvacuation, rec); err != nil {
			return none, err
		}
		if lives.NotStarted != "" {
			h.log.Error("a dead host's guest is here, and could not be started", "instance", ref.Instance, "migration", ref.Migration, "why", lives.NotStarted)
		}
	}
	for _, d := range rec.Disks {
		h.files.Keep(d.Made)
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.PostEvacuate)); err != nil {
		return none, err
	}
	rec.Finished = true
	if err := h.memory.Remember(ctx, ref, memoryEvacuation, rec); err != nil {
		return none, err
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	return *rec.Lives, nil
}

// liveAgain gives a dead host's guest its disks, definition, claim and power state here. What
// another try may mend is an error; what it cannot keeps the guest off, and it is here all the
// same.
func (h *Host) liveAgain(ctx context.Context, ref migration.Ref, rec lost) (migration.FinishedEvacuation, error) {
	var off []string
	stays := func(err error) error {
		switch fault.KindOf(err) {
		case "":
			return nil
		case fault.Unavailable, fault.InDoubt, fault.Busy:
			return err
		}
		off = append(off, err.Error())
		return nil
	}
	for _, d := range rec.Disks {
		err := wrap(h.files.Publish(d.Made), "give disk %s, which is ready as %s, its place", d.Target, d.Part)
		if err != nil && fault.KindOf(err) != fault.Exists {
			err = fault.New(fault.Unavailable, "%w", err) // nobody else ever gives it its place
		}
		if err := stays(err); err != nil {
			return migration.FinishedEvacuation{}, err
		}
	}
	if err := h.defineOwned(ctx, ref, rec.Instance, rec.Definition); err != nil {
		return migration.FinishedEvacuation{}, err
	}
	// A bound claim is one of a defined domain, and what starts has one.
	if _, err := h.tracker.Bind(ctx, attempts.OwnerOf(ref, claims.KindEvacuation)); err != nil {
		return migration.FinishedEvacuation{}, err
	}
	if err := stays(h.activateConnections(ctx, ref, rec.Definition)); err != nil {
		return migration.FinishedEvacuation{}, err
	}
	var lives migration.FinishedEvacuation
	unadmitted := h.gate.AdmitImages(ctx, ref.Instance, rec.Definition)
	if rec.Power == migration.PowerShutOff {
		// Its user starts it, and is told. Storage that is silent now may answer then.
		if fault.KindOf(unadmitted) == fault.Forbidden {
			lives.NotStarted = unadmitted.Error()
		}
		return lives, nil
	}
	if err := stays(unadmitted); err != nil {
		return lives, err
	}
	if len(off) == 0 {
		if err := stays(h.startAs(ctx, ref.Instance, rec.Power)); err != nil {
			return lives, err
		}
	}
	lives.Started, lives.NotStarted = len(off) == 0, strings.Join(off, "; ")
	return lives, nil
}
