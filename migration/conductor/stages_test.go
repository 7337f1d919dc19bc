package conductor_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

// asked is a request of this suite's guest.
func asked(r conductor.Request, dest string) conductor.Request {
	r.Instance, r.Migration, r.Destination = guestUUID, moveUUID, dest
	return r
}

func isFinished(m migration.Migration) bool { return m.Stage == migration.StageFinished }

func TestFinished_WaitsForOneWord(t *testing.T) {
	w := newWorld(t, 1, script{request: cold}, faults{})
	w.latency = 50 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Confirm(ctx, moveUUID); !errors.Is(err, fault.NotFound) {
			t.Errorf("confirm of nothing: %v", err)
		}
		if _, err := c.Start(ctx, asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Revert(ctx, moveUUID); !errors.Is(err, fault.Busy) || !slices.Equal(codes(err), []string{"not_finished"}) {
			t.Errorf("revert of one that moves: %v", err)
		}
		m := until(t, p, c, "finished", isFinished)
		if m.Done() || m.Err() != nil || m.Moved != 1 || len(m.MoveSteps) == 0 || m.Status != migration.StatusFinished {
			t.Errorf("finished: %+v", m)
		}
		if err := c.Abort(ctx, moveUUID); !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{"finished"}) {
			t.Errorf("abort of a finished one: %v", err)
		}
		_, err := c.Start(ctx, conductor.Request{Instance: guestUUID})
		if !errors.Is(err, fault.Busy) || !strings.Contains(fault.ReasonsOf(err)[0].Change, "resize confirm") {
			t.Errorf("another move meanwhile: %v", err)
		}
		word := migration.Settlement{GuestIsAt: "b", Why: "looked", By: "ann"}
		if _, err := c.Settle(ctx, moveUUID, word); !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{"not_in_doubt"}) {
			t.Errorf("settle of a finished one: %v", err)
		}
		if m, err := c.Confirm(ctx, moveUUID); err != nil || m.Status != migration.StatusConfirming || m.Attempt != 2 {
			t.Errorf("confirm: %s, attempt %d, %v", m.Status, m.Attempt, err)
		}
		if m, err := c.Confirm(ctx, moveUUID); err != nil || m.Stage != migration.StageConfirm {
			t.Errorf("confirm again: %+v, %v", m, err)
		}
		if _, err := c.Revert(ctx, moveUUID); !errors.Is(err, fault.Busy) {
			t.Errorf("revert while it is confirmed: %v", err)
		}
		if err := c.Abort(ctx, moveUUID); !errors.Is(err, fault.Forbidden) {
			t.Errorf("abort of a confirmation: %v", err)
		}
		m = until(t, p, c, "done", migration.Migration.Done)
		if m.Status != migration.StatusConfirmed || m.Outcome != migration.OutcomeCompleted || m.Err() != nil {
			t.Errorf("confirmed: %s %s %v", m.Status, m.Outcome, m.Err())
		}
		if _, err := c.Confirm(ctx, moveUUID); err != nil {
			t.Errorf("confirm after the end: %v", err)
		}
		over := func(want string) {
			t.Helper()
			if _, err := c.Revert(ctx, moveUUID); !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Change != want {
				t.Errorf("revert of a confirmed one: %v %+v, want to do: %s", err, fault.ReasonsOf(err), want)
			}
		}
		over("nothing: it is over")
	})
}

func TestFinished_WhatIsOverNamesTheMoveThatWaits(t *testing.T) {
	const next = "77777777-7777-4777-8777-777777777777"
	w := newWorld(t, 1, script{request: resize}, faults{})
	w.latency = 50 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(resize, "a")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finished", isFinished)
		if _, err := c.Revert(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "reverted", migration.Migration.Done)
		again := asked(resize, "a")
		again.Migration = next
		if _, err := c.Start(ctx, again); err != nil {
			t.Fatal(err)
		}
		says := func(want string) {
			t.Helper()
			if _, err := c.Confirm(ctx, moveUUID); !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Change != want {
				t.Errorf("confirm of a reverted one: %v %+v, want to do: %s", err, fault.ReasonsOf(err), want)
			}
		}
		says("nothing: it is over; migration " + next + " is the one that goes on: berth migration show " + next)
		for m := (migration.Migration{}); !isFinished(m); {
			var err error
			if m, err = c.Get(ctx, next); err != nil || m.Done() || p.Sleep(ctx, 50*time.Millisecond) != nil {
				t.Fatalf("the next one: %+v, %v", m, err)
			}
		}
		says("nothing: it is over; migration " + next + " is the one that waits: berth resize confirm " + next + ", or berth resize revert " + next)
	})
}

// TestFinished_IsConfirmedByItself: by the boot clock, over restarts, and anew after a
// reboot; never where a revert was tried, and as the request says.
func TestFinished_IsConfirmedByItself(t *testing.T) {
	const window = 10 * time.Minute
	never, short := time.Duration(0), time.Minute
	for _, tt := range []struct {
		name    string
		request *time.Duration
		down    time.Duration // the conductor dies at once, and is away for as long
		reboot  bool
		again   time.Duration // then it runs for as long, and is started once more
		revert  bool          // is tried at once, and fails
		want    time.Duration // after it was finished; 0 for never
	}{
		{name: "after the host's window", want: window},
		{name: "after the request's", request: &short, want: short},
		{name: "never, says the request", request: &never},
		{name: "after a restart", down: 4 * time.Minute, want: window},
		{name: "at a restart past its time", down: 4 * time.Minute, request: &short, want: 4 * time.Minute},
		{name: "anew after a reboot", down: 4 * time.Minute, reboot: true, want: 4*time.Minute + window},
		{name: "not anew at each restart after a reboot", down: 4 * time.Minute, reboot: true, again: 7 * time.Minute, want: 4*time.Minute + window},
		{name: "never after a revert that failed", revert: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, script{spoilt: tt.revert}, faults{})
			w.configure = func(c *conductor.Config) { c.ConfirmWindow = window }
			r := asked(cold, "b")
			r.ConfirmWindow = tt.request
			var began time.Duration
			away := func() bool { return w.sim.Elapsed() >= began+tt.down }
			w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
				if _, err := c.Start(context.Background(), r); err != nil {
					t.Fatal(err)
				}
				m := until(t, p, c, "finished", isFinished)
				began = w.sim.Elapsed()
				if (tt.want == 0 && !tt.revert) != m.ConfirmBy.IsZero() {
					t.Errorf("to be confirmed by %v", m.ConfirmBy)
				}
				if !tt.revert {
					return
				}
				if _, err := c.Revert(context.Background(), moveUUID); err != nil {
					t.Fatal(err)
				}
				m = until(t, p, c, "finished again", func(m migration.Migration) bool { return isFinished(m) && m.Attempt == 2 })
				if m.Error == nil || !m.ConfirmBy.IsZero() || m.Status != migration.StatusFinished || m.Moved != 1 {
					t.Errorf("after a revert that failed: %+v", m)
				}
			})
			w.init.Go("time", func() {
				for {
					_ = w.init.Sleep(context.Background(), time.Second)
				}
			})
			if err := w.sim.Run(time.Hour, away); err != nil {
				t.Error(err)
			}
			if tt.reboot {
				w.boots++
			}
			w.boot()
			if tt.again > 0 {
				restart := w.sim.Elapsed() + tt.again
				if err := w.sim.Run(time.Hour, func() bool { return w.sim.Elapsed() >= restart }); err != nil {
					t.Error(err)
				}
				w.process.Kill()
				w.boot()
			}
			if err := w.sim.Run(time.Hour, func() bool {
				m, err := w.conductor.Get(context.Background(), moveUUID)
				return err == nil && m.Done() || w.sim.Elapsed() > began+2*window
			}); err != nil {
				t.Error(err)
			}
			took := w.sim.Elapsed() - began
			m, err := w.conductor.Get(context.Background(), moveUUID)
			w.sim.Shutdown()
			if err != nil || m.Done() != (tt.want > 0) || tt.want > 0 && (took < tt.want-time.Second || took > tt.want+5*time.Second) {
				t.Errorf("%s after %s, want %s; %v", m.Status, took, tt.want, err)
			}
		})
	}
}

// TestFinished_IsConfirmedByTheConductorThatMovedIt needs no restart for it.
func TestFinished_IsConfirmedByTheConductorThatMovedIt(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.configure = func(c *conductor.Config) { c.ConfirmWindow = time.Minute }
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(resize, "")); err != nil {
			t.Fatal(err)
		}
		if m := until(t, p, c, "done", migration.Migration.Done); m.Status != migration.StatusConfirmed {
			t.Errorf("ended %s, %v", m.Status, m.Err())
		}
	})
}

// TestRevert_CanBeAbortedAndAskedForAgain: the first one's abort is not the second one's.
func TestRevert_CanBeAbortedAndAskedForAgain(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.latency = 100 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finished", isFinished)
		if _, err := c.Revert(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "awaited", func(m migration.Migration) bool { return m.Step == migration.StepAwaitReturn })
		if err := c.Abort(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "finished again", isFinished)
		if m.AbortRequested || m.Error == nil || !slices.Equal(codes(m.Error.Err()), []string{"aborted"}) || len(w.store.data["aborts"]) > 0 {
			t.Errorf("after the abort: %+v, aborts %v", m.Error, w.store.data["aborts"])
		}
		if _, err := c.Revert(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		if m := until(t, p, c, "done", migration.Migration.Done); m.Status != migration.StatusReverted || m.Attempt != 3 {
			t.Errorf("ended %s in attempt %d, %v", m.Status, m.Attempt, m.Err())
		}
	})
}

// TestRevertByItself_WaitsWhereNeitherHostTakesTheGuest: it is told, and goes on as soon as
// the source can take it.
func TestRevertByItself_WaitsWhereNeitherHostTakesTheGuest(t *testing.T) {
	w := newWorld(t, 1, script{unfit: true, spoilt: true}, faults{})
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "in doubt", func(m migration.Migration) bool { return m.Outcome == migration.OutcomeInDoubt })
		if m.Status != migration.StatusError || !errors.Is(m.Err(), fault.InDoubt) || m.Unfit == nil || !strings.Contains(m.Unfit.Message, "QEMU does not start") {
			t.Errorf("in doubt: %s %v, unfit %v", m.Status, m.Err(), m.Unfit)
		}
		if err := c.Abort(ctx, moveUUID); !errors.Is(err, fault.Forbidden) {
			t.Errorf("abort: %v", err)
		}
		_, err := c.Settle(ctx, moveUUID, migration.Settlement{GuestIsAt: "a", Why: "looked", By: "ann"})
		if !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{"nowhere"}) {
			t.Errorf("settle: %v", err)
		}
		w.script.spoilt = false
		m = until(t, p, c, "done", migration.Migration.Done)
		_ = p.Sleep(ctx, 2*time.Second) // its journal goes after its end is told
		if m.Status != migration.StatusFailed || m.Outcome != migration.OutcomeUndone || !errors.Is(m.Err(), fault.Undone) {
			t.Errorf("ended %s %s %v", m.Status, m.Outcome, m.Err())
		}
		w.verify(m)
	})
	w.sim.Shutdown()
	w.report("neither host")
}

// TestStart_RefusalsOfColdMovesLeaveNothing: every reason at once, and no record.
func TestStart_RefusalsOfColdMovesLeaveNothing(t *testing.T) {
	flavor := func(mb, gb int64) migration.Change {
		return migration.Change{Flavor: &topology.Flavor{Name: "x", VCPUs: 1, MemoryMB: mb, DiskGB: gb}}
	}
	full := func(names ...string) func(*world) {
		return func(w *world) {
			for _, name := range names {
				w.hosts[name].capacity = guestSize
			}
		}
	}
	forever := time.Duration(math.MaxInt64)
	negative := -time.Second
	for _, tt := range []struct {
		name    string
		request conductor.Request
		prepare func(*world)
		kind    fault.Kind
		codes   []string
	}{
		{"a type that is not known", asked(conductor.Request{Type: "teleport", Stopped: true}, ""), nil, fault.Invalid, []string{"migration_type", "evacuation"}},
		{"an evacuation where hosts keep no records", asked(conductor.Request{Type: migration.TypeEvacuation}, ""), nil, fault.Forbidden, []string{"no_fleet_store"}},
		{"an evacuation to a flavor, between hosts that share nothing", asked(conductor.Request{Type: migration.TypeEvacuation, Change: larger, ShareNothing: true}, ""),
			nil, fault.Invalid, []string{"change", "share_nothing"}},
		{"a resize without a flavor, to an image", asked(conductor.Request{Type: migration.TypeResize, Change: image}, ""), nil, fault.Invalid, []string{"flavor", "image"}},
		{"a rebuild elsewhere, without an image", asked(conductor.Request{Type: migration.TypeRebuild}, "b"), nil, fault.Invalid, []string{"image", "dest_compute"}},
		{"a cold migration that changes something", asked(conductor.Request{Type: migration.TypeMigration, Change: larger, ConfirmWindow: &negative}, "b"), nil,
			fault.Invalid, []string{"change", "negative_duration"}},
		{"times whose ends no clock has", asked(conductor.Request{Type: migration.TypeMigration, ConfirmWindow: &forever, ShutdownTimeout: &forever}, "b"), nil,
			fault.Invalid, []string{"duration", "duration"}},
		{"a cold migration to the same host", asked(cold, "a"), nil, fault.Forbidden, []string{"same_host"}},
		{"the flavor that it has", asked(resize, ""), func(w *world) { w.flavor = *larger.Flavor }, fault.Invalid, []string{"same_flavor"}},
		{"a disk that shrinks", asked(conductor.Request{Type: migration.TypeResize, Change: flavor(1024, 0)}, ""), nil, fault.Forbidden, []string{"disk_shrinks"}},
		{"a resize that fits nowhere", asked(conductor.Request{Type: migration.TypeResize, Change: flavor(4096, 1)}, ""),
			func(w *world) { full("a")(w); w.placement.full["rp-b"] = true }, fault.DoesNotFit, []string{"memory_short", "no_candidate"}},
		{"a resize that shall stay and cannot", asked(resize, "a"), full("a"), fault.DoesNotFit, []string{"memory_short"}},
		{"a resize to a host without room", asked(resize, "b"), full("b"), fault.DoesNotFit, []string{"memory_short"}},
		{"a rebuild to a topology that does not fit", asked(conductor.Request{Type: migration.TypeRebuild, Change: migration.Change{Flavor: larger.Flavor, Image: image.Image}}, ""),
			full("a"), fault.DoesNotFit, []string{"memory_short"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 2, script{}, faults{})
			if tt.prepare != nil {
				tt.prepare(w)
			}
			before := w.picture()
			w.inProcess(func(_ *simruntime.Process, c *conductor.Conductor) {
				_, err := c.Start(context.Background(), tt.request)
				if !errors.Is(err, tt.kind) {
					t.Errorf("error %v of kind %s, want %s", err, fault.KindOf(err), tt.kind)
				}
				if diff := cmp.Diff(tt.codes, codes(err)); diff != "" {
					t.Errorf("reasons (-want +got):\n%s\n%v", diff, err)
				}
			})
			if diff := cmp.Diff(before, w.picture()); diff != "" {
				t.Errorf("something is left (-before +after):\n%s", diff)
			}
		})
	}
}

// TestPowerOff_GivesTheGuestItsTime: the request's, else its flavor's, else the host's.
func TestPowerOff_GivesTheGuestItsTime(t *testing.T) {
	ten := 10 * time.Second
	for _, tt := range []struct {
		name    string
		request *time.Duration
		flavor  string
		config  time.Duration
		want    time.Duration
	}{
		{name: "the default", want: time.Minute},
		{name: "the host's", config: 2 * time.Minute, want: 2 * time.Minute},
		{name: "at once", config: -1},
		{name: "its flavor's", flavor: "30", want: 30 * time.Second},
		{name: "its flavor makes no sense", flavor: "soon", want: time.Minute},
		{name: "the request's", flavor: "30", request: &ten, want: ten},
	} {
		w := newWorld(t, 1, script{}, faults{})
		w.configure = func(c *conductor.Config) { c.ShutdownTimeout = tt.config }
		w.flavor = topology.Flavor{Name: "m1", ExtraSpecs: map[string]string{"os_shutdown_timeout": tt.flavor}}
		r := asked(cold, "b")
		r.ShutdownTimeout = tt.request
		w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
			m, err := c.Start(context.Background(), r)
			if err != nil {
				t.Fatal(err)
			}
			if m.OldFlavor != "m1" || m.NewFlavor != "m1" {
				t.Errorf("flavors %s and %s", m.OldFlavor, m.NewFlavor)
			}
			if m = until(t, p, c, "finished", isFinished); m.Pulled != (tt.want == 0) {
				t.Errorf("%s: pulled %v", tt.name, m.Pulled)
			}
		})
		if w.hosts["a"].patience != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, w.hosts["a"].patience, tt.want)
		}
	}
}

func TestHalves_AreToldUntilTheirLastWrite(t *testing.T) {
	for _, word := range []string{"confirm", "revert"} {
		w := newWorld(t, 1, script{request: resize}, faults{})
		w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
			ctx := context.Background()
			if _, err := c.Start(ctx, asked(resize, "b")); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "finished", isFinished)
			finished, _ := c.Halves(moveUUID)
			// One host is away: the stage stands before its last step.
			w.hosts["b"].cut = true
			say := map[string]func(context.Context, string) (migration.Migration, error){"confirm": c.Confirm, "revert": c.Revert}[word]
			if word == "revert" {
				w.hosts["b"].cut = false
				w.hosts["b"].deafAfterHandOver = true
			}
			if _, err := say(ctx, moveUUID); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "in doubt", func(m migration.Migration) bool { return m.Outcome == migration.OutcomeInDoubt })
			during, kept := c.Halves(moveUUID)
			if diff := cmp.Diff(finished, during); !kept || diff != "" {
				t.Errorf("%s: %v (-finished +during):\n%s", word, kept, diff)
			}
			w.hosts["b"].cut, w.hosts["b"].deaf, w.hosts["b"].deafAfterHandOver = false, false, false
			until(t, p, c, "done", migration.Migration.Done)
			if _, kept := c.Halves(moveUUID); kept {
				t.Errorf("%s: halves after the end", word)
			}
		})
		w.report(word)
	}
}

// settling is the wire to a host that takes an operator's word.
type settling struct{ hostWire }

func (x settling) TakeWord(_ context.Context, ref migration.Ref, s migration.Settlement) error {
	h := x.h
	h.words[at(ref)] = s
	if c, left := h.commits[at(ref)]; left && s.GuestIsAt == h.name {
		h.token = &simToken{epoch: c.Epoch + 1, here: true, migration: ref.Migration}
		h.claims["instance"] = h.claims[at(ref)]
		h.claims["instance"].state = "bound"
		delete(h.claims, at(ref))
		delete(h.commits, at(ref))
		h.reclaimed[at(ref)] = true
	}
	return nil
}

func (x settling) WordOn(ref migration.Ref) (migration.Settlement, bool) {
	s, ok := x.h.words[at(ref)]
	return s, ok
}

// TestSettle_OfColdMoves: a destination that is gone for good when the token was on its
// way to it gives the guest back to its source; one that is gone later keeps nothing from
// ending. What is not in doubt is nobody's to settle.
func TestSettle_OfColdMoves(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cut    string // the step at which the destination is gone for good
		word   string // confirm, revert, or none
		wrong  migration.Settlement
		codes  []string
		right  migration.Settlement
		status migration.Status
		owner  string
	}{
		{name: "handed over, and gone", cut: migration.StepAcceptHanded, wrong: migration.Settlement{GuestIsAt: "a"}, codes: []string{"destination_not_named"},
			right: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, status: migration.StatusFailed, owner: "a"},
		{name: "confirmed, and gone", cut: migration.StepConfirmDestination, word: "confirm", wrong: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}},
			codes: []string{"destination_has_guest"}, right: migration.Settlement{GuestIsAt: "b", Gone: []string{"b"}}, status: migration.StatusConfirmed, owner: "b"},
		{name: "handed back, and gone", cut: migration.StepCleanUpReverted, word: "revert", wrong: migration.Settlement{GuestIsAt: "b"}, codes: []string{"source_has_guest"},
			right: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, status: migration.StatusReverted, owner: "a"},
		{name: "gone while it hands back", cut: migration.StepHandBack, word: "revert", wrong: migration.Settlement{GuestIsAt: "b", Gone: []string{"b"}}, codes: []string{"decides_itself"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, script{}, faults{})
			w.latency = 100 * time.Millisecond
			w.configure = func(c *conductor.Config) {
				hosts := c.Hosts
				c.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
					h, err := hosts(ctx, name)
					if err != nil {
						return nil, err
					}
					return settling{h.(hostWire)}, nil
				}
			}
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				ctx := context.Background()
				if _, err := c.Start(ctx, asked(cold, "b")); err != nil {
					t.Fatal(err)
				}
				if tt.word != "" {
					until(t, p, c, "finished", isFinished)
					if _, err := map[string]func(context.Context, string) (migration.Migration, error){"confirm": c.Confirm, "revert": c.Revert}[tt.word](ctx, moveUUID); err != nil {
						t.Fatal(err)
					}
				}
				until(t, p, c, tt.cut, func(m migration.Migration) bool { return m.Step == tt.cut })
				w.hosts["b"].cut = true
				until(t, p, c, "in doubt", func(m migration.Migration) bool { return m.Status == migration.StatusError })
				tt.wrong.Why, tt.wrong.By, tt.right.Why, tt.right.By = "looked", "ann", "burnt", "ann"
				if _, err := c.Settle(ctx, moveUUID, tt.wrong); !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), tt.codes) {
					t.Errorf("settled wrongly: %v", err)
				}
				if tt.status == "" {
					w.hosts["b"].cut = false
					return
				}
				if _, err := c.Settle(ctx, moveUUID, tt.right); err != nil {
					t.Fatal(err)
				}
				m := until(t, p, c, "done", migration.Migration.Done)
				if m.Status != tt.status || m.Settled == nil {
					t.Errorf("ended %s, %v", m.Status, m.Err())
				}
				if h := w.hosts[tt.owner]; !h.owns() || h.domain == nil || h.domain.state != "running" {
					t.Errorf("the guest is not at %s: %+v, %+v", tt.owner, h.token, h.domain)
				}
				if w.placement.consumers[moveUUID] != nil {
					t.Error("the migration's consumer is left")
				}
			})
		})
	}
}

// TestConducts_OfStagesThatAreOver: a host asks about the attempt by which a guest came or
// went, whatever stage its migration is in.
func TestConducts_OfStagesThatAreOver(t *testing.T) {
	for _, tt := range []struct {
		word  string
		moved migration.Conduct // of attempt 1, in the end
	}{{"confirm", migration.ConductDone}, {"revert", migration.ConductOver}} {
		w := newWorld(t, 1, script{}, faults{})
		w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
			ctx := context.Background()
			if _, err := c.Start(ctx, asked(cold, "b")); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "finished", isFinished)
			if got := c.Conducts(moveUUID, 1); got != migration.ConductGoing {
				t.Errorf("finished: %q", got)
			}
			say := map[string]func(context.Context, string) (migration.Migration, error){"confirm": c.Confirm, "revert": c.Revert}[tt.word]
			if _, err := say(ctx, moveUUID); err != nil {
				t.Fatal(err)
			}
			if got := c.Conducts(moveUUID, 1); got != migration.ConductGoing {
				t.Errorf("%s: %q", tt.word, got)
			}
			until(t, p, c, "done", migration.Migration.Done)
			if moved, last := c.Conducts(moveUUID, 1), c.Conducts(moveUUID, 2); moved != tt.moved || last != migration.ConductDone {
				t.Errorf("after %s: attempt 1 %q, want %q; attempt 2 %q", tt.word, moved, tt.moved, last)
			}
		})
	}
}
