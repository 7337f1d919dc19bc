package death

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/agent/host/hooks"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/runtime/runtimetest"
	"berth/internal/store/storetest"
	"berth/systemd/systemdtest"
)

const lostHost = "host-s"

var errSilent = fault.Refuse(fault.Unavailable, "ask the agent at host-s", fault.Reason{Code: "no_answer", Message: "it did not answer in time"})

// morgue are the proofs of a host c, whose fleet has a host s that does not answer.
type morgue struct {
	*Proofs
	t     *testing.T
	dir   string // of hooks
	notes *storetest.Memory
	store *fleettest.Memory
	fleet *fleet.Records
	knows any // who knows a host without a record: a string, an error, or nil for nobody
}

func newMorgue(t *testing.T, rt runtime.Runtime, selfFence bool) *morgue {
	t.Helper()
	m := &morgue{t: t, dir: t.TempDir(), notes: storetest.NewMemory(), store: fleettest.NewMemory(rt)}
	m.fleet = fleet.New(m.store.Client("host-c"), rt)
	if err := m.fleet.PutHost(t.Context(), fleet.Host{Name: lostHost, ProviderUUID: "p-s", HostUUID: "h-s", Boot: "boot-1", SelfFence: selfFence, Lease: 30}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	m.Proofs = New(Options{
		Host: "host-c", Records: func() (*fleet.Records, error) { return m.fleet, nil }, Notes: m.notes, Runtime: rt, Logger: log,
		Hooks:   &hooks.Runner{Dir: filepath.Join(m.dir, "hooks"), Runtime: rt, Logger: log},
		Answers: func(context.Context, string) error { return errSilent },
		Known: func(context.Context, string) (string, error) {
			by, _ := m.knows.(string)
			err, _ := m.knows.(error)
			return by, err
		},
	})
	return m
}

func (m *morgue) hook(name, script string) {
	m.t.Helper()
	path := filepath.Join(m.dir, "hooks", hooks.Fence, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.ReplaceAll(script, "DIR", m.dir)+"\n"), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

func (m *morgue) standing() []fleet.Death {
	m.t.Helper()
	list, err := m.List(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}

func codes(err error) []string {
	var out []string
	for _, r := range fault.ReasonsOf(err) {
		out = append(out, r.Code)
	}
	return out
}

var noTimes = cmpopts.IgnoreTypes(time.Time{})

func TestFence_AHooksSuccessIsAProof(t *testing.T) {
	m := newMorgue(t, &runtime.System{}, false)
	m.hook("10-pdu", `cat >DIR/input; echo '{"data":{"outlet":7}}'`)
	m.hook("20-look", `echo ran >>DIR/ran`)
	want := fleet.Death{
		Host: lostHost, Proof: fleet.ProofFenced, By: "operator:alice", Boot: "boot-1",
		Because: `fence/10-pdu, fence/20-look said that it is off; 10-pdu: {"outlet":7}`,
	}
	for _, by := range []string{"operator:alice", "operator:bob"} { // the second is told of the first's
		got, err := m.Fence(t.Context(), lostHost, by)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, noTimes); diff != "" || got.At.IsZero() {
			t.Errorf("the death that %s is given, at %s (-want +got):\n%s", by, got.At, diff)
		}
	}
	if ran, _ := os.ReadFile(filepath.Join(m.dir, "ran")); string(ran) != "ran\n" {
		t.Errorf("the hooks ran so: %q", ran)
	}
	raw, err := os.ReadFile(filepath.Join(m.dir, "input"))
	if err != nil {
		t.Fatal(err)
	}
	var in hooks.Request
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Fatal(err)
	}
	host := &hooks.Host{Name: lostHost, ProviderUUID: "p-s", HostUUID: "h-s", Boot: "boot-1", Lease: hooks.LeaseExpired}
	if diff := cmp.Diff(host, in.Context.Host, noTimes); diff != "" || in.Source != lostHost || in.Phase != hooks.Fence {
		t.Errorf("what the hook read (-want +got):\n%s%s", diff, raw)
	}
	if len(m.notes.Records()) != 0 {
		t.Errorf("notes are left: %v", m.notes.Records())
	}
}

func TestFence_WhatIsNoProofLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(m *morgue)
		host  string
		kind  fault.Kind
		code  string
	}{
		{"no hook", func(*morgue) {}, lostHost, fault.Forbidden, "no_fence_hook"},
		{"a hook that fails", func(m *morgue) { m.hook("10-a", "exit 1") }, lostHost, fault.Internal, "hook_failed"},
		{"a hook that asks for another try", func(m *morgue) { m.hook("10-a", "exit 75") }, lostHost, fault.Unavailable, "hook_failed"},
		{"the second of two fails", func(m *morgue) { m.hook("10-a", ""); m.hook("20-b", "exit 1") }, lostHost, fault.Internal, "hook_failed"},
		{"a failure that a setting lets pass", func(m *morgue) {
			m.hook("10-a", "exit 1")
			m.o.Hooks.Setting = func(string) hooks.Setting { return hooks.Setting{OnFailure: hooks.Warn} }
		}, lostHost, fault.Internal, "hook_failed"},
		{"a hook that takes too long", func(m *morgue) {
			m.hook("10-a", "sleep 60")
			m.o.Hooks.Setting = func(string) hooks.Setting { return hooks.Setting{Timeout: 50 * time.Millisecond} }
		}, lostHost, fault.Internal, "hook_failed"},
		{"a hook that is not true", func(m *morgue) {
			m.hook("10-a", "")
			m.o.Answers = func(context.Context, string) error { return nil }
		}, lostHost, fault.Forbidden, "host_answers"},
		{"a host that was started again meanwhile", func(m *morgue) {
			m.hook("10-a", "")
			m.o.Answers = func(ctx context.Context, host string) error {
				_, err := m.fleet.Return(ctx, host, "boot-2")
				return errors.Join(errSilent, err)
			}
		}, lostHost, fault.Forbidden, "host_came_back"},
		{"a host that nobody knows", func(m *morgue) { m.hook("10-a", "") }, "host-x", fault.NotFound, "host_unknown"},
		{"this host", func(m *morgue) { m.hook("10-a", "") }, "host-c", fault.Invalid, "own_host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMorgue(t, &runtime.System{}, false)
			tt.spoil(m)
			_, err := m.Fence(t.Context(), tt.host, "operator:alice")
			if fault.KindOf(err) != tt.kind || !slices.Contains(codes(err), tt.code) {
				t.Errorf("%v, reasons %v; want %s, %s", err, codes(err), tt.kind, tt.code)
			}
			if got := m.standing(); len(got) != 0 || len(m.notes.Records()) != 0 {
				t.Errorf("deaths %v, notes %v", got, m.notes.Records())
			}
		})
	}
}

// A hook that was killed and does not end may still switch the host off: its record stays, for the
// next agent, too, and it is not asked for a second time beside it.
func TestFence_AHookThatClingsIsKeptOnRecord(t *testing.T) {
	m := newMorgue(t, &runtime.System{}, false)
	manager := systemdtest.New(t)
	m.o.Hooks.Manager = &manager.Units
	m.hook("10-a", "echo ran >>DIR/log; exit 1")
	manager.Clings(true)
	for range 2 {
		if _, err := m.Fence(t.Context(), lostHost, "operator:alice"); !errors.Is(err, hooks.ErrNotEnded) || !slices.Contains(codes(err), "hook_not_ended") {
			t.Errorf("the hook clings: %v", err)
		}
		if len(m.notes.Records()) != 1 {
			t.Fatalf("on record: %v", m.notes.Records())
		}
	}
	if ran, err := os.ReadFile(filepath.Join(m.dir, "log")); string(ran) != "ran\n" {
		t.Errorf("it ran so: %q, %v", ran, err)
	}
	manager.Clings(false)
	m.hook("10-a", "")
	if _, err := m.Fence(t.Context(), lostHost, "operator:alice"); err != nil || len(m.standing()) != 1 || len(m.notes.Records()) != 0 {
		t.Errorf("when it is gone: %v, deaths %v, notes %v", err, m.standing(), m.notes.Records())
	}
}

func TestFence_OneHostOnceAtATime(t *testing.T) {
	m := newMorgue(t, &runtime.System{}, false)
	if err := os.WriteFile(filepath.Join(m.dir, "wait"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.hook("10-a", "echo >DIR/begun; while [ -e DIR/wait ]; do sleep 0.01; done")
	first := make(chan error)
	go func() {
		_, err := m.Fence(t.Context(), lostHost, "operator:alice")
		first <- err
	}()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(m.dir, "begun")); err == nil {
			break
		}
	}
	if _, err := m.Fence(t.Context(), lostHost, "operator:bob"); !errors.Is(err, fault.Busy) || !strings.Contains(err.Error(), "operator:alice") {
		t.Errorf("while its hooks run: %v", err)
	}
	if len(m.notes.Records()) != 1 {
		t.Errorf("the hook that runs is not on record: %v", m.notes.Records())
	}
	if err := os.Remove(filepath.Join(m.dir, "wait")); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if got := m.standing(); len(got) != 1 || got[0].By != "operator:alice" {
		t.Errorf("deaths %+v", got)
	}
}

func TestFence_ADeathWhoseAnswerIsLostIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := runtimetest.NewBubble()
		m := newMorgue(t, rt, false)
		client := m.store.Client("host-c")
		m.fleet = fleet.New(client, rt)
		fates := []fleettest.Outcome{fleettest.Refused, fleettest.Lost}
		client.Before = func(_ context.Context, c fleettest.Call) fleettest.Outcome {
			if c.Verb != "commit" || len(fates) == 0 {
				return fleettest.Answered
			}
			fate := fates[0]
			fates = fates[1:]
			return fate
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // who asked has gone
		got, err := m.write(ctx, m.fleet.DeclareDead, fleet.Death{Host: lostHost, Proof: fleet.ProofFenced, By: "operator:alice", Boot: "boot-1"})
		if err != nil || got.By != "operator:alice" || len(fates) != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		m.store.SetDown(true)
		before := time.Now()
		if _, err := m.write(t.Context(), m.fleet.DeclareDead, fleet.Death{Host: lostHost}); !errors.Is(err, fault.Unavailable) || time.Since(before) > lastRecord+time.Second {
			t.Errorf("while the store is down: %v after %s", err, time.Since(before))
		}
	})
}

func TestDeclare_AnOperatorsWord(t *testing.T) {
	m := newMorgue(t, &runtime.System{}, false)
	declare := func(host, because string, force bool) (fleet.Death, error) {
		return m.Declare(t.Context(), host, because, "operator:alice", force)
	}
	for _, tt := range []struct {
		name, host, because string
		code                string
	}{
		{"without a reason", lostHost, "  ", "because_missing"},
		{"of this host", "host-c", "it burned", "own_host"},
	} {
		if _, err := declare(tt.host, tt.because, true); !slices.Contains(codes(err), tt.code) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := declare("host-x", "it burned", false); !errors.Is(err, fault.NotFound) || !strings.Contains(fault.RemedyOf(err), `berth host declare-dead host-x --reason "how you know" --force`) {
		t.Errorf("of a host that nobody knows: %v", err)
	}
	m.knows = fault.New(fault.Unavailable, "it is silent")
	if _, err := declare("host-x", "it burned", false); !slices.Contains(codes(err), "host_unknown") || !strings.Contains(err.Error()+fault.ReasonsOf(err)[0].Message, "it is silent") {
		t.Errorf("of a host that nobody knows while Placement is silent: %v", err)
	}
	m.o.Answers = func(context.Context, string) error { return nil }
	if _, err := declare(lostHost, "it burned", false); !errors.Is(err, fault.Forbidden) || codes(err)[0] != "host_answers" {
		t.Errorf("while its agent answers: %v", err)
	}
	if got := m.standing(); len(got) != 0 {
		t.Fatalf("deaths %+v", got)
	}
	for _, because := range []string{"it burned", "it drowned"} { // the first stands
		got, err := declare(lostHost, because, true)
		if err != nil {
			t.Fatal(err)
		}
		want := fleet.Death{Host: lostHost, Proof: fleet.ProofOperator, By: "operator:alice", Because: "it burned", Boot: "boot-1"}
		if diff := cmp.Diff(want, got, noTimes); diff != "" {
			t.Errorf("forced (-want +got):\n%s", diff)
		}
	}
}

// TestDeclare_AHostWithoutARecord: it never wrote one, or the store lost it.
func TestDeclare_AHostWithoutARecord(t *testing.T) {
	for name, tt := range map[string]struct {
		knows any
		force bool
	}{"Placement has it": {"Placement", false}, "nobody has, and the operator insists": {nil, true}, "Placement is silent, and the operator insists": {errSilent, true}} {
		m := newMorgue(t, &runtime.System{}, false)
		m.knows = tt.knows
		got, err := m.Declare(t.Context(), "host-x", "it burned", "operator:alice", tt.force)
		if err != nil || len(m.standing()) != 1 {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(fleet.Death{Host: "host-x", Proof: fleet.ProofOperator, By: "operator:alice", Because: "it burned"}, got, noTimes); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	m := newMorgue(t, &runtime.System{}, false)
	m.knows = "Placement"
	m.hook("10-a", "")
	if got, err := m.Fence(t.Context(), "host-x", "operator:alice"); err != nil || got.Proof != fleet.ProofFenced {
		t.Errorf("fenced: %+v, %v", got, err)
	}
}

// TestDeclare_AHostThatBootsMeanwhileIsNotTheOneOfTheWord: it was silent when it was asked, and
// has come back before the death was written.
func TestDeclare_AHostThatBootsMeanwhileIsNotTheOneOfTheWord(t *testing.T) {
	m := newMorgue(t, &runtime.System{}, false)
	m.o.Answers = func(ctx context.Context, host string) error {
		if _, err := m.fleet.Return(ctx, host, "boot-2"); err != nil {
			t.Error(err)
		}
		return errSilent
	}
	_, err := m.Declare(t.Context(), lostHost, "it burned", "operator:alice", false)
	if diff := cmp.Diff([]string{"host_came_back"}, codes(err)); diff != "" || !errors.Is(err, fault.Forbidden) || len(m.standing()) > 0 {
		t.Errorf("it counts as dead by a word on the boot before: %v (-want +got):\n%s", err, diff)
	}
}

// TestDeath_AHostWithoutARecordThatComesBackMeanwhile_Lives: it had none when it was looked at, and
// writes one before the death is written.
func TestDeath_AHostWithoutARecordThatComesBackMeanwhile_Lives(t *testing.T) {
	for name, declare := range map[string]func(m *morgue) error{
		"declared": func(m *morgue) error {
			_, err := m.Declare(t.Context(), "host-x", "it burned", "operator:alice", true)
			return err
		},
		"fenced": func(m *morgue) error {
			m.hook("10-a", "")
			_, err := m.Fence(t.Context(), "host-x", "operator:alice")
			return err
		},
	} {
		m := newMorgue(t, &runtime.System{}, false)
		m.knows = "Placement"
		m.o.Answers = func(ctx context.Context, host string) error {
			if _, err := m.fleet.Return(ctx, host, "boot-2"); err != nil {
				t.Error(err)
			}
			return errSilent
		}
		err := declare(m)
		if diff := cmp.Diff([]string{"host_came_back"}, codes(err)); diff != "" || !errors.Is(err, fault.Forbidden) || len(m.standing()) > 0 {
			t.Errorf("%s: it counts as dead: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestProve_AnExpiredLeaseIsAProofOnlyOfAHostThatFencesItself(t *testing.T) {
	for _, tt := range []struct {
		name      string
		selfFence bool
		prepare   func(t *testing.T, m *morgue)
		want      []string // the refusal's reasons; nil for a proof
	}{
		{"it fences itself", true, func(t *testing.T, m *morgue) {
			later := time.Duration(0)
			m.fleet = fleet.New(m.store.Client("host-c"), &runtimetest.Later{Since: &later})
			_, _, err := m.Prove(t.Context(), lostHost, "host:host-c")
			if diff := cmp.Diff([]string{"not_dead", fleet.ReasonLeaseOverLately, "host_silent", "lease_expired"}, codes(err)); diff != "" || !errors.Is(err, fault.Busy) {
				t.Errorf("at once it is %v (-want +got):\n%s", err, diff)
			}
			for later < 30*time.Second {
				later += 10 * time.Second
				if err := m.fleet.WatchLapsed(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}, nil},
		{"it does not", false, func(*testing.T, *morgue) {}, []string{"not_dead", "no_self_fence", "host_silent", "lease_expired"}},
		{"its lease stands", true, func(t *testing.T, m *morgue) {
			if err := m.fleet.KeepAlive(t.Context(), lostHost, "boot-1", 60); err != nil {
				t.Fatal(err)
			}
		}, []string{"not_dead", "lease_stands", "host_silent"}},
		{"its agent answers", true, func(_ *testing.T, m *morgue) {
			m.o.Answers = func(context.Context, string) error { return nil }
		}, []string{"host_answers"}},
		{"the store has no leases", true, func(_ *testing.T, m *morgue) {
			m.fleet = fleet.New(m.store.Client("host-c").RecordsOnly(), m.o.Runtime)
		}, []string{"not_dead", "no_leases", "host_silent"}},
		{"it was rebooted, and has not armed itself", true, func(t *testing.T, m *morgue) {
			if _, err := m.fleet.Return(t.Context(), lostHost, "boot-2"); err != nil {
				t.Fatal(err)
			}
		}, []string{"not_dead", "no_self_fence", "host_silent", "lease_expired"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMorgue(t, &runtime.System{}, tt.selfFence)
			tt.prepare(t, m)
			got, revision, err := m.Prove(t.Context(), lostHost, "host:host-c")
			if diff := cmp.Diff(tt.want, codes(err)); diff != "" {
				t.Errorf("refused with %v (-want +got):\n%s", err, diff)
			}
			if tt.want != nil {
				if n := len(m.standing()); !errors.Is(err, fault.Forbidden) || n != 0 {
					t.Errorf("%v, and %d deaths stand", err, n)
				}
				return
			}
			again, same, err := m.Prove(t.Context(), lostHost, "host:host-d")
			if err != nil || got.Proof != fleet.ProofSelfFence || got.By != "host:host-c" || revision == 0 || same != revision || again != got {
				t.Errorf("proven by %+v at %d, then %+v at %d, %v", got, revision, again, same, err)
			}
		})
	}
}

func TestSilent_WhoHasAnsweredIsNot(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errSilent, true},
		{fault.Refuse(fault.Unavailable, "ask", fault.Reason{Code: "unreachable"}), true},
		{fault.Refuse(fault.Unavailable, "ask", fault.Reason{Code: "certificates"}), true},
		{fault.Refuse(fault.Forbidden, "check", fault.Reason{Code: "certificate_wrong_name"}), true},
		{context.DeadlineExceeded, true},
		{fault.New(fault.Unavailable, "the agent is starting"), false},
		{fault.Refuse(fault.Forbidden, "status", fault.Reason{Code: "mode_observe"}), false},
		{fault.Internal, false},
	} {
		if got := Silent(tt.err); got != tt.want {
			t.Errorf("%v: silent %v", tt.err, got)
		}
	}
}
