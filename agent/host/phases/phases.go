package phases

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Options are what Phases are made of.
type Options struct {
	Attempts *attempts.Ledger
	Memory   *memory.Memory
	Runner   *hooks.Runner
	Runtime  runtime.Runtime
	Logger   *slog.Logger
}

// Phases are those of one host. Safe for concurrent use about different instances.
type Phases struct{ o Options }

// New makes Phases. It reads and writes nothing.
func New(o Options) *Phases { return &Phases{o: o} }

// lastWords bounds what is still written after a caller has gone. Arbitrary: many
// fsyncs, one of a slow disk.
const lastWords = 10 * time.Second

// Request asks for the hooks of one phase.
type Request struct {
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

// Record is what is kept of a phase that has hooks, until the migration is
// forgotten here.
//
//	record           found by the same verb            found by the phase after it
//	none             all hooks run                     no answers
//	a hook runs      it is ended, all hooks run again  it is ended; the answers so far
//	one clings       it is ended; not before that      it is ended; not before that
//	                 all hooks run again               the answers so far
//	not done         all hooks run again               the answers so far
//	done             nothing                           the answers
type Record struct {
	Running *hooks.Process             `json:"running,omitempty"` // hook begun and not known to be over: it runs, its agent died, or it clings (hooks.ErrNotEnded)
	Answers map[string]json.RawMessage `json:"answers,omitempty"` // of all tries, by hook
	Done    bool                       `json:"done,omitempty"`
}

// MemoryOf is under which a phase is remembered.
func MemoryOf(phase string) string { return "hooks_" + phase }

// Run runs the hooks of a phase, once for each attempt. What it does is on record
// as a step is: a hook before it begins, so that the next run, of the verb or of its
// undo, ends one that an agent left behind; what hooks answered, for the phase that
// undoes or ends this one; that all is done. A phase without hooks leaves no record.
//
// Past the point of no return (hooks.Phase.Forward) only a hook that asks for another
// try fails anything: fault.Unavailable. So does, in every phase, one that was killed and
// may live on: it stays on record, and neither the phase nor what undoes it goes on beside
// it; the move waits, and says for what. The caller has the instance's turn, and calls
// Forget, or forgets the migration, when nothing of it will be asked for again.
func (p *Phases) Run(ctx context.Context, ref migration.Ref, r Request) error {
	about, known := hooks.PhaseOf(r.Phase)
	if !known {
		return fault.New(fault.Internal, "run hooks: there is no phase %q", r.Phase)
	}
	step := MemoryOf(r.Phase)
	rec, begun, err := memory.Recall[Record](p.o.Memory, ref, step)
	if err != nil || rec.Done {
		return err
	}
	if err := p.EndHook(rec.Running); err != nil {
		return err
	}
	answers, err := p.answersOf(ref, about.After)
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
	got, err := p.o.Runner.Run(ctx, p.request(ref, r, answers), func(ctx context.Context, running hooks.Process, sofar map[string]json.RawMessage) error {
		begun, rec.Running = true, &running
		keep(sofar)
		return p.o.Memory.Remember(ctx, ref, step, rec)
	})
	keep(got)
	if !errors.Is(err, hooks.ErrNotEnded) {
		rec.Running = nil
	}
	rec.Done = err == nil
	if err != nil && about.Forward() && !errors.Is(err, fault.Unavailable) {
		p.o.Logger.Error("a hook failed past the point of no return, and the guest's story goes on", "phase", r.Phase, "instance", ref.Instance, "migration", ref.Migration, "error", err)
		err, rec.Done, begun = nil, true, true
	}
	if !begun {
		return err
	}
	// What hooks answered is kept after a failure too, and after ctx has ended: the undo
	// needs it.
	last, cancel := p.o.Runtime.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	return errors.Join(err, p.o.Memory.Remember(last, ref, step, rec))
}

// answersOf gives what hooks of a phase have answered, of this attempt or the last one
// before it that had hooks: a move that is confirmed or reverted by a later attempt was
// prepared by an earlier one. A hook of it that was left running is ended.
func (p *Phases) answersOf(ref migration.Ref, phase string) (map[string]json.RawMessage, error) {
	if phase == "" {
		return nil, nil
	}
	rec, _, err := memory.RecallEarlier[Record](p.o.Memory, ref, MemoryOf(phase))
	if err != nil {
		return nil, err
	}
	return rec.Answers, p.EndHook(rec.Running)
}

// Forget drops the records of an attempt's phases, when their undo is over: of
// those named, or of all.
func (p *Phases) Forget(ctx context.Context, ref migration.Ref, names ...string) error {
	for _, about := range hooks.Phases() {
		if len(names) > 0 && !slices.Contains(names, about.Name) {
			continue
		}
		step := MemoryOf(about.Name)
		if _, found, err := memory.Recall[Record](p.o.Memory, ref, step); err != nil {
			return err
		} else if !found {
			continue
		}
		if err := p.o.Memory.Forget(ctx, ref, step); err != nil {
			return err
		}
	}
	return nil
}

// request is what hooks of a phase read.
func (p *Phases) request(ref migration.Ref, r Request, answers map[string]json.RawMessage) hooks.Request {
	req := hooks.Request{
		Phase: r.Phase, Migration: ref.Migration, Instance: ref.Instance, Source: r.Source, Destination: r.Destination, DomainXML: r.XML,
		Context: hooks.Context{Data: answers, MigrationType: r.Kind, PowerState: string(r.Power)},
	}
	if r.Image != nil {
		req.Context.Image = r.Image
	}
	if mc, ok := p.o.Attempts.ContextOf(ref); ok {
		req.Context.MigrationContext = mc
		req.Context.OldFlavor, req.Context.NewFlavor = mc.OldFlavor, mc.NewFlavor
		req.Context.PowerState = cmp.Or(req.Context.PowerState, string(mc.OldPowerState))
	}
	return req
}

// EndHook ends a hook that an agent left behind when it died, or that was killed and did not
// end; nil for none. While it does not, hooks.ErrNotEnded and fault.Unavailable.
func (p *Phases) EndHook(left *hooks.Process) error {
	if left == nil {
		return nil
	}
	was, err := p.o.Runner.End(*left)
	if was {
		p.o.Logger.Warn("ended a hook that an earlier agent had left running", "hook", left.Hook, "unit", left.Unit, "pid", left.PID)
	}
	return err
}
