package conductor_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
	"berth/migration/options"
)

// unwilling is a source that does not do all that it is asked for about a stream.
type unwilling struct {
	hostWire
	noEnd error
	busy  *int // how often it is busy with something else when it is to suspend the guest
	noJob bool // its job has not begun
}

func (x unwilling) EndStream(ctx context.Context, ref migration.Ref) error {
	if x.noEnd != nil {
		return x.noEnd
	}
	return x.hostWire.EndStream(ctx, ref)
}

func (x unwilling) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if op.Name == operation.TuneStream.Name {
		if x.noJob {
			return nil, fault.New(fault.NotFound, "there is no stream")
		}
		if in.(migration.Tuning).Suspend && *x.busy > 0 {
			*x.busy--
			return nil, fault.New(fault.Busy, "another job holds the domain")
		}
	}
	return x.hostWire.Ask(ctx, ref, op, in)
}

// sourceIs puts another host before the source.
func (w *world) sourceIs(wrap func(hostWire) migration.Host) {
	w.configure = func(cfg *conductor.Config) {
		hosts := cfg.Hosts
		cfg.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
			h, err := hosts(ctx, name)
			if err != nil || name != "a" {
				return h, err
			}
			return wrap(h.(hostWire)), nil
		}
	}
}

// TestTune_WhenTheJobHasNotBegun: that is a matter of a moment, and no move that is not known.
func TestTune_WhenTheJobHasNotBegun(t *testing.T) {
	w := newWorld(t, 1, script{want: completed}, faults{})
	w.sourceIs(func(h hostWire) migration.Host { return unwilling{hostWire: h, noJob: true} })
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.LiveMigrate(t.Context(), move); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		err := c.Tune(t.Context(), moveUUID, migration.Tuning{Bandwidth: 1 << 27}, "ops")
		if !errors.Is(err, fault.Busy) || !slices.Equal(codes(err), []string{"no_transfer_yet"}) {
			t.Errorf("%v, want %v", err, fault.Busy)
		}
		until(t, p, c, "done", migration.Migration.Done)
	})
	w.report("not begun")
}

// TestSteer_GoesOnFromWhatCouldNotBeDone: a post-copy that is refused is not taken for one that
// has begun, and a guest that could not be suspended not for one that stands still.
func TestSteer_GoesOnFromWhatCouldNotBeDone(t *testing.T) {
	for name, c := range map[string]struct {
		o     migration.Options
		noEnd error
		busy  int
		want  []migration.Outcome
		rows  []string
	}{
		"post-copy": {
			o: migration.Options{PostCopy: options.On, Schedule: "2:post-copy, 2:abort"}, noEnd: fault.New(fault.Internal, "no such job"), want: undone,
			rows: []string{"post-copy false ", "abort true "},
		},
		"suspend": {o: migration.Options{Schedule: "2:suspend"}, busy: 3, want: completed, rows: []string{"suspend false ", "suspend true "}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, script{options: c.o, busy: true, want: c.want}, faults{})
			w.sourceIs(func(h hostWire) migration.Host { return unwilling{h, c.noEnd, &c.busy, false} })
			m := w.run()
			w.report(name)
			if got := controls(m); !slices.Contains(c.want, m.Outcome) || !slices.Equal(got, c.rows) {
				t.Errorf("%s, %v", m.Outcome, got)
			}
		})
	}
}
