package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"berth/agent/host/hooks"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// phaseRequest asks for the hooks of one phase.
type phaseRequest struct {
	Phase               string // of package hooks
	Kind                string // the move's type: migration.TypeResize, …
	Source, Destination string
	XML                 string // the guest's document, as far as the phase has one
	Image               *migration.Image
	// Power is what the guest's user had chosen; empty for what the migration's context
	// says.
	Power migration.PowerState
	// Answers are those of the phase before where an older agent kept them elsewhere.
	Answers map[string]json.RawMessage
}

// phaseRecord is what is kept of a phase that has hooks, until the migration is
// forgotten here.
//
//	record           found by the same verb            found by the phase after it
//	none             all hooks run                     no answers
//	a hook runs      it is ended, all hooks run again  it is ended; the answers so far
//	not done         all hooks run again               the answers so far
//	done             nothing                           the answers
type phaseRecord struct {
	Running *hooks.Process             `json:"running,omitempty"` // hook begun and not known to be over
	Answers map[string]json.RawMessage `json:"answers,omitempty"` // of all tries, by hook
	Done    bool                       `json:"done,omitempty"`
}

// memoryPhase is under which a phase is remembered.
func memoryPhase(phase string) string { return "hooks_" + phase }

// phase runs the hooks of a phase, once for each attempt. What it does is on record
// as a step is: a hook before it begins, so that the next run, of the verb or of its
// undo, ends one that an agent left behind; what hooks answered, for the phase that
// undoes or ends this one; that all is done. A phase without hooks leaves no record.
//
// Past the point of no return (hooks.Phase.Forward) only a hook that asks for another
// try fails anything: fault.Unavailable. The caller has the instance's turn, and calls
// forgetPhases, or forgets the migration, when nothing of it will be asked for again.
func (h *Host) phase(ctx context.Context, ref migration.Ref, r phaseRequest) error {
	about, known := hooks.PhaseOf(r.Phase)
	if !known {
		return fault.New(fault.Internal, "run hooks: there is no phase %q", r.Phase)
	}
	step := memoryPhase(r.Phase)
	rec, begun, err := recall[phaseRecord](h, ref, step)
	if err != nil || rec.Done {
		return err
	}
	if err := h.endHook(rec.Running); err != nil {
		return err
	}
	answers, err := h.answersOf(ref, about.After)
	if err != nil {
		return err
	}
	if len(answers) == 0 {
		answers = r.Answers
	}
	keep := func(got map[string]json.RawMessage) {
		if rec.Answers == nil && len(got) > 0 {
			rec.Answers = map[string]json.RawMessage{}
		}
		maps.Copy(rec.Answers, got)
	}
	got, err := h.hooks.Run(ctx, h.request(ref, r, answers), func(ctx context.Context, p hooks.Process, sofar map[string]json.RawMessage) error {
		begun, rec.Running = true, &p
		keep(sofar)
		return h.remember(ctx, ref, step, rec)
	})
	keep(got)
	rec.Running, rec.Done = nil, err == nil
	if err != nil && about.Forward() && !errors.Is(err, fault.Unavailable) {
		h.log.Error("a hook failed past the point of no return, and the guest's story goes on", "phase", r.Phase, "instance", ref.Instance, "migration", ref.Migration, "error", err)
		err, rec.Done, begun = nil, true, true
	}
	if !begun {
		return err
	}
	// What hooks answered is kept after a failure too, and after ctx has ended: the undo
	// needs it.
	last, cancel := h.rt.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return errors.Join(err, h.remember(last, ref, step, rec))
}

// answersOf gives what hooks of a phase have answered, of this attempt or the last one
// before it that had hooks: a move that is confirmed or reverted by a later attempt was
// prepared by an earlier one. A hook of it that was left running is ended.
func (h *Host) answersOf(ref migration.Ref, phase string) (map[string]json.RawMessage, error) {
	if phase == "" {
		return nil, nil
	}
	rec, _, err := recallEarlier[phaseRecord](h, ref, memoryPhase(phase))
	if err != nil {
		return nil, err
	}
	return rec.Answers, h.endHook(rec.Running)
}

// forgetPhases drops the records of an attempt's phases, when their undo is over: of
// those named, or of all.
func (h *Host) forgetPhases(ctx context.Context, ref migration.Ref, phases ...string) error {
	for _, p := range hooks.Phases() {
		if len(phases) > 0 && !slices.Contains(phases, p.Name) {
			continue
		}
		step := memoryPhase(p.Name)
		if _, found, err := recall[phaseRecord](h, ref, step); err != nil {
			return err
		} else if !found {
			continue
		}
		if err := h.tracker.Unremember(ctx, at(ref, step)); err != nil {
			return err
		}
	}
	return nil
}

// request is what hooks of a phase read.
func (h *Host) request(ref migration.Ref, r phaseRequest, answers map[string]json.RawMessage) hooks.Request {
	req := hooks.Request{
		Phase: r.Phase, Migration: ref.Migration, Instance: ref.Instance, Source: r.Source, Destination: r.Destination, DomainXML: r.XML,
		Context: hooks.Context{Data: answers, MigrationType: r.Kind, PowerState: string(r.Power)},
	}
	if r.Image != nil {
		req.Context.Image = r.Image
	}
	if mc, ok := h.contextOf(ref); ok {
		req.Context.MigrationContext = mc
		req.Context.OldFlavor, req.Context.NewFlavor = mc.OldFlavor, mc.NewFlavor
		req.Context.PowerState = cmp.Or(req.Context.PowerState, mc.OldPowerState)
	}
	return req
}

// contextOf is the context of a migration, by whichever half of it is here.
func (h *Host) contextOf(ref migration.Ref) (claims.MigrationContext, bool) {
	if mc, ok := h.tracker.Context(ref.Migration); ok {
		return mc, true
	}
	for _, c := range h.tracker.ByMigration(ref.Migration) {
		if c.Context != nil && (c.Owner.Attempt == ref.Attempt || c.Owner.Migration == "") {
			return *c.Context, true
		}
	}
	return claims.MigrationContext{}, false
}

// endHook ends a hook that an agent left behind when it died; nil for none.
func (h *Host) endHook(p *hooks.Process) error {
	if p == nil {
		return nil
	}
	was, err := hooks.End(*p)
	if was {
		h.log.Warn("ended a hook that an earlier agent had left running", "hook", p.Hook, "pid", p.PID)
	}
	return err
}
