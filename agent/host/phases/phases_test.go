package phases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/systemd"
	"berth/systemd/systemdtest"
)

const (
	phaseMigration = "11111111-1111-4111-8111-111111111101"
	phaseInstance  = "22222222-2222-4222-8222-222222222202"
)

// bed is a host with hooks, and what they have written.
type bed struct {
	*Phases
	t     *testing.T
	rt    *runtime.System
	store *storetest.Memory
	dir   string
	// manager is nil for an agent that starts its hooks itself.
	manager *systemd.Units
}

func newBed(t *testing.T) *bed {
	p := &bed{t: t, rt: new(runtime.System), store: storetest.NewMemory(), dir: t.TempDir()}
	p.boot()
	return p
}

// boot starts an agent on what is durable.
func (p *bed) boot() {
	p.t.Helper()
	tracker, err := claims.Open(p.t.Context(), claims.Options{
		Store: p.store, Runtime: p.rt, Host: "a",
	})
	if err != nil {
		p.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	runner := &hooks.Runner{Dir: filepath.Join(p.dir, "hooks"), Manager: p.manager, Runtime: p.rt, Logger: log}
	p.Phases = New(Options{Attempts: &attempts.Ledger{Tracker: tracker}, Memory: memory.New(tracker, p.rt), Runner: runner, Runtime: p.rt, Logger: log})
}

// hook installs one; DIR stands for the folder of the test.
func (p *bed) hook(phase, name, script string) {
	p.t.Helper()
	path := filepath.Join(p.dir, "hooks", phase, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.ReplaceAll(script, "DIR", p.dir)+"\n"), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p *bed) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.dir, name)) // what was not written is empty
	return string(text)
}

func (p *bed) run(attempt int, phase string) error {
	ref := migration.Ref{Migration: phaseMigration, Instance: phaseInstance, Attempt: attempt}
	return p.Run(p.t.Context(), ref, Request{Phase: phase, Kind: migration.TypeResize, Source: "a", Destination: "b", XML: "<domain/>", Power: migration.PowerPaused})
}

func TestPhase_RunsOnceForEachAttempt(t *testing.T) {
	p := newBed(t)
	p.hook(hooks.PrepResize, "10-a", `echo ran >>DIR/log`)
	for _, attempt := range []int{1, 1, 2, 1} {
		if err := p.run(attempt, hooks.PrepResize); err != nil {
			t.Fatal(err)
		}
		p.boot()
	}
	if got := p.read("log"); got != "ran\nran\n" {
		t.Errorf("two attempts ran hooks so: %q", got)
	}
	if err := p.run(1, hooks.FinishResize); err != nil {
		t.Errorf("a phase without hooks: %v", err)
	}
	if _, found, err := memory.Recall[Record](p.o.Memory, migration.Ref{Migration: phaseMigration, Attempt: 1}, MemoryOf(hooks.FinishResize)); found || err != nil {
		t.Errorf("a phase without hooks left a record: %v, %v", found, err)
	}
}

func TestPhase_WhatAFailureMeans(t *testing.T) {
	for _, tt := range []struct {
		name, phase, script string
		kind                fault.Kind
		again               bool // a second run runs the hook again
	}{
		{"before the point of no return it fails the phase", hooks.PrepResize, "exit 1", fault.Internal, true},
		{"past it, it is told", hooks.FinishResize, "exit 1", "", false},
		{"past it, 75 is tried again", hooks.ConfirmResize, "exit 75", fault.Unavailable, true},
		{"an undo is tried again", hooks.RollbackPrepResize, "exit 1", fault.Internal, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newBed(t)
			p.hook(tt.phase, "10-a", "echo ran >>DIR/log; "+tt.script)
			for range 2 {
				if got := fault.KindOf(p.run(1, tt.phase)); got != tt.kind {
					t.Errorf("kind %q, want %q", got, tt.kind)
				}
				p.boot()
			}
			want := "ran\n"
			if tt.again {
				want += "ran\n"
			}
			if got := p.read("log"); got != want {
				t.Errorf("the hook ran so: %q, want %q", got, want)
			}
		})
	}
	p := newBed(t)
	if err := p.run(1, "prep_rezise"); !errors.Is(err, fault.Internal) {
		t.Errorf("a phase that there is not: %v", err)
	}
}

func TestPhase_AnswersReachTheUndoAlsoOfALaterAttempt(t *testing.T) {
	for _, tt := range []struct {
		name, phase string
		attempt     int
	}{
		{"the undo", hooks.RollbackPrepResize, 1},
		{"the end of the same attempt", hooks.FinishResize, 1},
		{"the revert, which is an attempt of its own", hooks.RevertResize, 2},
		{"an attempt that a peer has made up", hooks.RevertResize, math.MaxInt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newBed(t)
			p.hook(hooks.PrepResize, "10-net", `echo '{"data":{"port":7}}'`)
			p.hook(hooks.PrepResize, "20-bad", `exit 1`)
			p.hook(tt.phase, "10-net", `cat >DIR/input`)
			if err := p.run(1, hooks.PrepResize); err == nil {
				t.Fatal("the phase succeeded though a hook failed")
			}
			p.boot()
			if err := p.run(tt.attempt, tt.phase); err != nil {
				t.Fatal(err)
			}
			var got hooks.Request
			if err := json.Unmarshal([]byte(p.read("input")), &got); err != nil {
				t.Fatal(err)
			}
			want := hooks.Request{
				Version: 1, Phase: tt.phase, Migration: phaseMigration, Instance: phaseInstance, Source: "a", Destination: "b", DomainXML: "<domain/>",
				Context: hooks.Context{
					MigrationType: "resize", PowerState: "paused", Data: map[string]json.RawMessage{"10-net": json.RawMessage(`{"port":7}`)},
				},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what the hook read (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPhase_AnswersAreThoseOfTheLastAttemptBefore(t *testing.T) {
	p := newBed(t)
	for _, attempt := range []int{9, 10, 11} { // their records lie in the order of their digits
		p.hook(hooks.PrepResize, "10-net", fmt.Sprintf(`echo '{"data":{"attempt":%d}}'`, attempt))
		if err := p.run(attempt, hooks.PrepResize); err != nil {
			t.Fatal(err)
		}
	}
	got, err := p.answersOf(migration.Ref{Migration: phaseMigration, Instance: phaseInstance, Attempt: 10}, hooks.PrepResize)
	if want := `{"attempt":10}`; err != nil || string(got["10-net"]) != want {
		t.Errorf("answers %s, %v, want %s", got["10-net"], err, want)
	}
}

// An agent that dies leaves its hook running; whoever comes next ends it, and knows what
// the hooks before it had answered.
func TestPhase_AHookOfADeadAgentIsEndedByTheNextRun(t *testing.T) {
	for _, next := range []string{hooks.PrepResize, hooks.RollbackPrepResize} {
		t.Run(next, func(t *testing.T) {
			p := newBed(t)
			p.hook(hooks.PrepResize, "10-net", `echo '{"data":{"port":7}}'`)
			p.hook(hooks.PrepResize, "20-slow", `[ -e DIR/began ] && exit 0; touch DIR/began; sleep 600; echo through >>DIR/log`)
			p.hook(hooks.RollbackPrepResize, "10-net", `cat >DIR/input`)
			old := p.Phases
			ended := make(chan error, 1)
			go func() {
				ref := migration.Ref{Migration: phaseMigration, Instance: phaseInstance, Attempt: 1}
				ended <- old.Run(context.WithoutCancel(t.Context()), ref, Request{Phase: hooks.PrepResize})
			}()
			for {
				if _, err := os.Stat(filepath.Join(p.dir, "began")); err == nil {
					break
				}
				if err := p.rt.Sleep(t.Context(), 1e6); err != nil {
					t.Fatal(err)
				}
			}
			p.store = p.store.Crash() // what the dead one writes from now on is lost
			p.boot()
			if err := p.run(1, next); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err == nil {
				t.Error("the dead agent's hook ran to its end")
			}
			if got := p.read("log"); got != "" {
				t.Errorf("the dead agent's hook had its effect: %q", got)
			}
			if next == hooks.RollbackPrepResize && !strings.Contains(p.read("input"), `"data":{"10-net":{"port":7}}`) {
				t.Errorf("the undo was not given what the first hook had answered: %s", p.read("input"))
			}
		})
	}
}

// A hook that was killed and does not end is waited for, by the verb and by its undo, by this agent
// and by the next; nothing runs beside it.
func TestPhase_AHookThatClingsIsKeptOnRecord(t *testing.T) {
	for _, tt := range []struct{ phase, next string }{
		{hooks.PrepResize, hooks.PrepResize}, {hooks.PrepResize, hooks.RollbackPrepResize}, {hooks.FinishResize, hooks.FinishResize},
	} {
		t.Run(tt.phase+" and "+tt.next, func(t *testing.T) {
			p := newBed(t)
			m := systemdtest.New(t)
			p.manager = &m.Units
			p.boot()
			p.hook(tt.phase, "10-a", `[ -e DIR/log ] && exit 0; echo ran >>DIR/log; exit 1`)
			p.hook(hooks.RollbackPrepResize, "10-a", `echo undone >>DIR/log`)
			m.Clings(true)
			ref := migration.Ref{Migration: phaseMigration, Instance: phaseInstance, Attempt: 1}
			for range 2 {
				if err := p.run(1, tt.phase); !errors.Is(err, hooks.ErrNotEnded) || fault.KindOf(err) != fault.Unavailable {
					t.Errorf("the hook clings: %v", err)
				}
				p.store = p.store.Crash()
				p.boot()
				rec, found, err := memory.Recall[Record](p.o.Memory, ref, MemoryOf(tt.phase))
				if err != nil || !found || rec.Done || rec.Running == nil || rec.Running.Unit == "" {
					t.Fatalf("on record: %+v, %v, %v", rec, found, err)
				}
			}
			if err := p.run(1, tt.next); !errors.Is(err, hooks.ErrNotEnded) {
				t.Errorf("what follows: %v", err)
			}
			if got := p.read("log"); got != "ran\n" {
				t.Errorf("beside it ran: %q", got)
			}
			m.Clings(false)
			if err := p.run(1, tt.next); err != nil {
				t.Errorf("when it is gone: %v", err)
			}
		})
	}
}

func TestForget_DropsThoseThatAreNamed(t *testing.T) {
	p := newBed(t)
	ref := migration.Ref{Migration: phaseMigration, Instance: phaseInstance, Attempt: 1}
	kept := func() (out []string) {
		verbs, err := p.store.List(t.Context(), "verbs")
		if err != nil {
			t.Fatal(err)
		}
		for key := range verbs {
			out = append(out, key)
		}
		return out
	}
	for _, phase := range []string{hooks.PrepResize, hooks.ResizeInstance} {
		p.hook(phase, "10-a", "exit 0")
		if err := p.run(1, phase); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Forget(t.Context(), ref, hooks.ResizeInstance, hooks.RollbackResizeInstance); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{phaseMigration + "/1/" + MemoryOf(hooks.PrepResize)}, kept()); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if err := p.Forget(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if left := kept(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
