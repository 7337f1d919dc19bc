package conductor_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
)

// odd is the wire to a host whose answers to some operations are a test's.
type odd struct {
	hostWire
	o *oddities
}

type oddities struct {
	finishes []error  // of FinishResize, one each
	claims   error    // of Claim on a
	offs     []string // destinations that were named to PowerOff
	looked   func()   // called before Inspect; nil for nobody
}

func (x odd) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	switch op.Name {
	case operation.Inspect.Name:
		if x.o.looked != nil {
			x.o.looked()
		}
	case operation.Claim.Name:
		if x.h.name == "a" && x.o.claims != nil {
			return migration.ClaimAnswer{}, x.o.claims
		}
	case operation.FinishResize.Name:
		if len(x.o.finishes) > 0 {
			err := x.o.finishes[0]
			x.o.finishes = x.o.finishes[1:]
			return operation.None{}, err
		}
	case operation.PowerOff.Name:
		x.o.offs = append(x.o.offs, x.h.name+">"+in.(migration.PowerOffRequest).Destination)
	}
	return x.hostWire.Ask(ctx, ref, op, in)
}

func oddWorld(t *testing.T, o *oddities, sc script) *world {
	w := newWorld(t, 1, sc, faults{})
	w.latency = 50 * time.Millisecond
	w.configure = func(c *conductor.Config) {
		hosts := c.Hosts
		c.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
			h, err := hosts(ctx, name)
			if err != nil {
				return nil, err
			}
			return odd{h.(hostWire), o}, nil
		}
	}
	return w
}

// TestFinishResize_OnlyRefusalsInARowTakeTheGuestBack: a host that was busy in between may
// take it yet.
func TestFinishResize_OnlyRefusalsInARowTakeTheGuestBack(t *testing.T) {
	no, busy := fault.New(fault.Forbidden, "QEMU does not start"), fault.New(fault.Busy, "another one is at it")
	o := &oddities{finishes: []error{no, no, busy, no, no}}
	w := oddWorld(t, o, script{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "finished", func(m migration.Migration) bool { return isFinished(m) || m.Done() })
		if m.Unfit != nil || m.Status != migration.StatusFinished || len(o.finishes) > 0 {
			t.Errorf("%s, unfit %v, %d answers not asked for", m.Status, m.Unfit, len(o.finishes))
		}
	})
}

// TestPowerOff_NamesWhereTheGuestGoes, and nobody where it stays: hosts run the hooks of a
// guest that leaves by it.
func TestPowerOff_NamesWhereTheGuestGoes(t *testing.T) {
	for _, tt := range []struct {
		dest string
		want []string
	}{{"", []string{"a>", "a>"}}, {"b", []string{"a>b", "b>a"}}} {
		o := &oddities{}
		w := oddWorld(t, o, script{})
		w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
			if _, err := c.Start(context.Background(), asked(resize, tt.dest)); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "finished", isFinished)
			if _, err := c.Revert(context.Background(), moveUUID); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "done", migration.Migration.Done)
		})
		if diff := cmp.Diff(tt.want, o.offs); diff != "" {
			t.Errorf("to %q (-want +got):\n%s", tt.dest, diff)
		}
	}
}

// TestResize_LeavesItsHostForLackOfRoomAlone: what else speaks against it there speaks
// against it elsewhere. The next attempt has no destination before one is chosen.
func TestResize_LeavesItsHostForLackOfRoomAlone(t *testing.T) {
	for _, tt := range []struct {
		kind fault.Kind
		dest string
		want migration.Status
	}{{fault.DoesNotFit, "b", migration.StatusFinished}, {fault.Forbidden, "a", migration.StatusFailed}} {
		o := &oddities{claims: fault.New(tt.kind, "no")}
		w := oddWorld(t, o, script{})
		w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
			if _, err := c.Start(context.Background(), asked(resize, "")); err != nil {
				t.Fatal(err)
			}
			o.looked = func() {
				if m, _ := c.Get(context.Background(), moveUUID); m.Attempt == 2 && m.DestCompute != "" {
					t.Errorf("%s: the next attempt goes to %s before any is chosen", tt.kind, m.DestCompute)
				}
			}
			m := until(t, p, c, "at its end", func(m migration.Migration) bool { return isFinished(m) || m.Done() })
			if m.Status != tt.want || m.DestCompute != tt.dest {
				t.Errorf("%s: %s at %s, want %s at %s", tt.kind, m.Status, m.DestCompute, tt.want, tt.dest)
			}
		})
	}
}

// TestAbort_ThatCameTooLateAbortsNoRevert: its wish was written while the move came to rest,
// and its conductor died before it took it back.
func TestAbort_ThatCameTooLateAbortsNoRevert(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finished", isFinished)
		_ = p.Sleep(context.Background(), 2*time.Second) // its journal goes after its end is told
	})
	w.store.data["aborts"] = map[string][]byte{moveUUID: []byte("true")}
	w.process.Kill()
	w.boot()
	if err := w.sim.Run(time.Minute, func() bool { return w.conductor.Running() }); err != nil {
		t.Fatal(err)
	}
	if m, err := w.conductor.Get(context.Background(), moveUUID); err != nil || m.AbortRequested || !isFinished(m) || len(w.store.data["aborts"]) > 0 {
		t.Errorf("after a restart: %s, abort requested %v, %v; wishes %v", m.Status, m.AbortRequested, err, w.store.data["aborts"])
	}
	w.sim.Shutdown()
}
