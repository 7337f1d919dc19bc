package conductor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
	"berth/migration/task"
)

// apartly is a world in which host c conducts for a guest on a.
func apartly(t testing.TB, sc script, f faults) *world {
	sc.local = "c"
	if sc.hosts == nil {
		sc.hosts = three
	}
	return newWorld(t, 1, sc, f)
}

// TestApart_TheSourceMayDecideAloneAtAnyMoment: the guest runs on, there or here, and
// nothing is left of the move.
func TestApart_TheSourceMayDecideAloneAtAnyMoment(t *testing.T) {
	decided, ended := 0, map[migration.Outcome]int{}
	for d := 500 * time.Millisecond; d < 4*time.Second; d += 60 * time.Millisecond * time.Duration(min(stride, 20)) {
		w := apartly(t, script{request: apartCold, named: "b", apart: true, decide: d, words: []string{"confirm"}}, faults{})
		w.latency = 60 * time.Millisecond
		m := w.run()
		w.report(fmt.Sprintf("decides after %s", d))
		if ended[m.Outcome]++; w.hosts["a"].decided {
			decided++
			if m.Outcome != migration.OutcomeUndone {
				t.Errorf("after %s the source decided alone, and the move ended %s", d, m.Outcome)
			}
		}
	}
	t.Logf("decided alone %d times, %v", decided, ended)
	if decided == 0 || ended[migration.OutcomeCompleted] == 0 {
		t.Errorf("decided alone %d times, %v; want some of each", decided, ended)
	}
}

// TestApart_ASourceThatHasDecidedIsNotWaitedFor: while the destination takes its time.
func TestApart_ASourceThatHasDecidedIsNotWaitedFor(t *testing.T) {
	w := apartly(t, script{request: apartCold}, faults{})
	w.configure = func(c *conductor.Config) {
		hosts := c.Hosts
		c.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
			h, err := hosts(ctx, name)
			if name == "b" && err == nil {
				return slowPrep{h.(hostWire)}, nil
			}
			return h, err
		}
	}
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(apartCold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "preparing", func(m migration.Migration) bool { return m.Step == migration.StepPrepResize })
		w.hosts["a"].offs[moveUUID+"/1"] = "running"
		w.hosts["a"].decideAlone()
		began := w.sim.Elapsed()
		m := until(t, p, c, "over", migration.Migration.Done)
		if took := w.sim.Elapsed() - began; took > 2*time.Minute || m.Outcome != migration.OutcomeUndone || !slices.Contains(codes(m.Err()), "source_keeps") {
			t.Errorf("%s after %s: %v", m.Outcome, took, m.Err())
		}
	})
}

// TestAlternates_AreTriedWhereAClaimIsLost, while its host still gets ready.
func TestAlternates_AreTriedWhereAClaimIsLost(t *testing.T) {
	w := apartly(t, script{request: apartCold, hosts: four, apart: true}, faults{})
	w.configure = func(c *conductor.Config) {
		hosts := c.Hosts
		c.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
			h, err := hosts(ctx, name)
			if name == "b" && err == nil {
				return slowPrep{h.(hostWire)}, nil
			}
			return h, err
		}
	}
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), to(asked(apartCold, "b"), "d")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "preparing", func(m migration.Migration) bool { return m.Step == migration.StepPrepResize })
		clear(w.hosts["b"].claims)
		m := until(t, p, c, "over", func(m migration.Migration) bool { return m.Done() || isFinished(m) })
		if !isFinished(m) || m.DestCompute != "d" {
			t.Errorf("%s at %s: %v", m.Status, m.DestCompute, m.Err())
		}
	})
}

// slowPrep is a host that takes long to get ready.
type slowPrep struct{ hostWire }

func (s slowPrep) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if op.Name == operation.PrepResize.Name {
		if err := s.p.Sleep(ctx, 9*time.Minute); err != nil {
			return nil, err
		}
	}
	return s.hostWire.Ask(ctx, ref, op, in)
}

// TestApart_DisksGoTheWayThatThereIs, and the record says which and why.
func TestApart_DisksGoTheWayThatThereIs(t *testing.T) {
	for _, tt := range []struct {
		name      string
		script    script
		breaksOff int
		crawls    bool
		want      migration.Way
		reason    string // the record's begins with it
		sends     int    // how often the source was asked to ship
	}{
		{name: "straight", want: migration.WayStraight, sends: 1},
		{name: "straight, its answer lost once", breaksOff: 1, want: migration.WayStraight, sends: 2},
		{name: "straight breaks off", breaksOff: 1000, want: migration.WayRelay, reason: "the straight way broke off: no disk bytes moved for "},
		{name: "straight, however long it takes", breaksOff: 60, crawls: true, want: migration.WayStraight, sends: 61},
		{name: "by relay", script: script{apart: true}, want: migration.WayRelay, reason: "a does not reach b: host a: no route to host b"},
		{name: "the source conducts", script: script{local: "a", apart: true}, want: migration.WayStraight},
		{name: "the destination conducts", script: script{local: "b", apart: true}, want: migration.WayStraight},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := apartly(t, tt.script, faults{})
			if tt.script.local != "" {
				w.script.local = tt.script.local
			}
			w.script.request.ShareNothing = true
			w.hosts["a"].listed, w.hosts["a"].breaksOff, w.hosts["a"].crawls = "shown", tt.breaksOff, tt.crawls
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				if _, err := c.Start(context.Background(), asked(apartCold, "b")); err != nil {
					t.Fatal(err)
				}
				m := until(t, p, c, "finished", func(m migration.Migration) bool { return isFinished(m) || m.Done() })
				if m.Way != tt.want || (tt.reason == "") != (m.WayReason == "") || !strings.HasPrefix(m.WayReason, tt.reason) || !isFinished(m) {
					t.Errorf("%s by way %q: %s (%v)", m.Status, m.Way, m.WayReason, m.Err())
				}
				if m.Progress.DiskProcessed != apartSize || m.Progress.DiskTotal != apartSize || m.Progress.DiskRemaining != 0 {
					t.Errorf("progress %+v", m.Progress)
				}
				conductor := w.script.local
				if m.ConductedBy() != conductor || (m.Conductor == "") != (conductor == "a") || !m.ShareNothing {
					t.Errorf("conducted by %q, %q", m.ConductedBy(), m.Conductor)
				}
			})
			if n := w.hosts["a"].sends; n != tt.sends && tt.breaksOff < 1000 || n < 2 && tt.breaksOff > 0 {
				t.Errorf("the source was asked %d times to ship, want %d", n, tt.sends)
			}
		})
	}
}

// TestApart_AGuestThatCannotLiveThereIsNotShownThere: it is taken back.
func TestApart_AGuestThatCannotLiveThereIsNotShownThere(t *testing.T) {
	w := apartly(t, script{request: apartCold, named: "b", unfit: true, want: undone}, faults{})
	w.run()
	w.report("unfit")
	for _, what := range []string{"before ShowInstance on b", "before HideInstance on a"} {
		if slices.Contains(w.trace, what) {
			t.Errorf("%s", what)
		}
	}
}

// TestApart_ARefusedSealIsAskedForAnew, there and back, from whoever gives the guest away.
func TestApart_ARefusedSealIsAskedForAnew(t *testing.T) {
	w := apartly(t, script{request: apartCold, named: "b", words: []string{"revert"}, want: reverted}, faults{})
	w.hosts["a"].badSeals, w.hosts["b"].badSeals = 1, 1
	w.run()
	w.report("seals")
	if a, b := w.hosts["a"].seals, w.hosts["b"].seals; a != 2 || b != 2 {
		t.Errorf("a has sealed %d times and b %d, want twice", a, b)
	}
}

// TestAlternates_AreTriedForADestinationThatRefuses at any step before the guest is handed
// over, and for nothing that lies elsewhere.
func TestAlternates_AreTriedForADestinationThatRefuses(t *testing.T) {
	wholly := func(f faults, verb string) faults { f.fails = map[string]int{verb: 5}; return f }
	for _, tt := range []struct {
		verb string // that fails
		cold bool   // the ordinary story has it too
		next bool
	}{
		{"Claim on b", true, true},
		{"CopyInstance on b", false, true},
		{"PrepResize on b", true, true},
		{"WriteDisk on b", false, true},
		{"SealDisks on b", false, true},
		{"RecordContext on a", true, false},
		{"PowerOff on a", true, false},
		{"SnapshotDisks on a", false, false},
		{"Disconnect on a", false, false},
		{"HandOver on a", true, false},
	} {
		for _, kind := range []conductor.Request{apartCold, cold} {
			if !tt.cold && !kind.ShareNothing {
				continue
			}
			sc := script{request: to(kind, "d"), named: "b", hosts: four, apart: true, words: []string{"confirm"}, want: undone}
			if tt.next {
				sc.want = completed
			}
			w := apartly(t, sc, wholly(faults{}, tt.verb))
			if !kind.ShareNothing {
				w.script.local = "a"
			}
			m := w.run()
			how := fmt.Sprintf("%s fails, sharing nothing %v", tt.verb, kind.ShareNothing)
			w.report(how)
			if tt.next != m.Concerns("d") || !m.Concerns("a") || !m.Concerns("b") || m.Concerns("c") {
				t.Errorf("%s: it concerns others than its hosts: at %s after %+v", how, m.DestCompute, m.Refusals)
			}
			if tt.next && (m.DestCompute != "d" || len(m.Refusals) != 1 || m.Refusals[0].DestCompute != "b" || m.Refusals[0].Step == "") {
				t.Errorf("%s: at %s after %+v", how, m.DestCompute, m.Refusals)
			}
			if !tt.next && len(m.Refusals) > 0 {
				t.Errorf("%s: %+v", how, m.Refusals)
			}
		}
	}
}

// TestAlternates_OtherReasonsToGoOn: silence, an old agent, a claim that is lost.
func TestAlternates_OtherReasonsToGoOn(t *testing.T) {
	for name, tt := range map[string]struct {
		script  script
		prepare func(*world)
		dest    string
		told    []string // hosts that refused
	}{
		"it is silent":            {script{cut: map[string][2]time.Duration{"b": {0, 100 * time.Second}}}, func(w *world) { w.hosts["b"].cut = true }, "d", []string{"b"}},
		"it falls silent":         {script{cut: map[string][2]time.Duration{"b": {0, 100 * time.Second}}}, nil, "d", []string{"b"}},
		"its agent is too old":    {script{}, func(w *world) { w.hosts["b"].noVerbs = true }, "d", []string{"b"}},
		"without a destination":   {script{named: "-"}, nil, "d", nil},
		"Placement's candidates":  {script{named: "--", refuse: []string{"b", "c"}}, nil, "d", []string{"b", "c"}},
		"nobody takes it":         {script{refuse: []string{"b", "d"}}, nil, "", []string{"b", "d"}},
		"the source is too old":   {script{}, func(w *world) { w.hosts["a"].noVerbs = true }, "", nil},
		"a guest that is aborted": {script{abortAfter: 400 * time.Millisecond}, nil, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			sc := tt.script
			sc.request, sc.hosts, sc.apart, sc.words = to(apartCold, "d"), four, true, []string{"confirm"}
			switch sc.named {
			case "":
				sc.named = "b"
			case "-":
				sc.named = ""
			default:
				sc.named, sc.request = "", apartCold
			}
			w := apartly(t, sc, faults{})
			w.latency = 40 * time.Millisecond
			if tt.prepare != nil {
				tt.prepare(w)
			}
			m := w.run()
			w.report(name)
			var told []string
			for _, r := range m.Refusals {
				told = append(told, r.DestCompute)
			}
			slices.Sort(told)
			if (m.Outcome == migration.OutcomeCompleted) != (tt.dest != "") || tt.dest != "" && m.DestCompute != tt.dest || !slices.Equal(told, tt.told) {
				t.Errorf("%s at %q, refused by %v: %v", m.Outcome, m.DestCompute, told, m.Err())
			}
			if tt.dest == "" && len(tt.told) > 1 {
				for _, host := range tt.told {
					if !strings.Contains(m.Err().Error(), host) {
						t.Errorf("%s is not told of: %v", host, m.Err())
					}
				}
			}
		})
	}
}

// TestRevert_OfAnOlderJournalGoesOn: one that was begun before volumes were carried back.
func TestRevert_OfAnOlderJournalGoesOn(t *testing.T) {
	reference := apartly(t, script{request: apartCold, named: "b", words: []string{"revert"}, want: reverted}, faults{})
	reference.run()
	first := slices.Index(reference.trace, "before AwaitReturn on a")
	tried := map[string]bool{}
	for point := first; point < reference.points; point += min(stride, 36) {
		w := apartly(t, script{request: apartCold, named: "b", words: []string{"revert"}}, faults{crash: map[int]bool{point: true}})
		w.mutate = func(w *world) conductor.Mutation {
			return func(steps []task.Step) []task.Step {
				if w.lives == 1 { // the older agent's story
					return slices.DeleteFunc(steps, func(s task.Step) bool { return s.Name == migration.StepCarryVolumes })
				}
				for _, raw := range w.store.data["tasks"] {
					var st task.State
					if err := json.Unmarshal(raw, &st); err == nil && len(st.Steps) > 0 {
						tried[st.Steps[len(st.Steps)-1].Name] = true
					}
				}
				return steps
			}
		}
		w.hosts["a"].volumes = "<disk/> without vdb" // whether or not they are carried
		if m := w.run(); m.Outcome != migration.OutcomeReverted {
			t.Errorf("crash at %s: %s, %v", reference.trace[point], m.Outcome, m.Err())
		}
		w.report("crash at " + reference.trace[point])
	}
	for _, step := range []string{migration.StepRevertPowerOff, migration.StepHandBack, migration.StepAcceptHanded, migration.StepRevertAllocations} {
		if stride == 1 && !tried[step] {
			t.Errorf("no journal ended with %s: %v", step, tried)
		}
	}
}

func TestStart_OfMovesThatShareNothing(t *testing.T) {
	w := apartly(t, script{hosts: four}, faults{})
	w.hosts["a"].listed, w.script.request.ShareNothing = "shown", true
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		for _, tt := range []struct {
			name   string
			change func(*conductor.Request)
			want   []string
		}{
			{"live", func(r *conductor.Request) { r.Type = migration.TypeLiveMigration }, []string{"share_nothing"}},
			{"a guest of another host, which shares", func(r *conductor.Request) { r.ShareNothing = false }, []string{"source_compute"}},
			{"to where it is", func(r *conductor.Request) { r.Destination = "a" }, []string{"dest_compute"}},
			{"odd alternates", func(r *conductor.Request) { r.Alternates = []string{"", "a", "b", "d", "d"} }, []string{"alternates", "alternates", "alternates", "alternates"}},
			{"too many", func(r *conductor.Request) {
				for i := range 65 {
					r.Alternates = append(r.Alternates, fmt.Sprintf("x%d", i))
				}
			}, []string{"alternates"}},
		} {
			r := asked(apartCold, "b")
			tt.change(&r)
			_, err := c.Start(ctx, r)
			if !errors.Is(err, fault.Invalid) || !slices.Equal(codes(err), tt.want) || tt.name != "live" && !strings.HasPrefix(err.Error(), "migrate instance "+guestUUID+" of a") {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
		}
		w.hosts["b"].cut, w.hosts["d"].cut = true, true
		if _, err := c.Start(ctx, to(asked(apartCold, "b"), "d")); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "host b") || !strings.Contains(err.Error(), "host d") {
			t.Errorf("to hosts that do not answer: %v", err)
		}
		w.hosts["d"].cut = false
		m, err := c.Start(ctx, to(asked(apartCold, "b"), "d"))
		if err != nil || m.SourceCompute != "a" || m.Conductor != "c" {
			t.Fatalf("%+v, %v", m, err)
		}
		again := to(asked(apartCold, "b"), "d")
		if _, known, err := c.Begun(again); !known || err != nil {
			t.Errorf("the same again: %v, %v", known, err)
		}
		again.Source, again.Alternates, again.ShareNothing = "", []string{"e"}, false
		_, _, err = c.Begun(again)
		var said []string
		for _, r := range fault.ReasonsOf(err) {
			_, what, _ := strings.Cut(r.Message, " was begun with ")
			said = append(said, what)
		}
		if diff := cmp.Diff([]string{"alternates d, not e", "source a, not c", "share-nothing true, not false"}, said); diff != "" {
			t.Errorf("another move by its uuid (-want +got):\n%s", diff)
		}
		until(t, p, c, "finished", isFinished)
	})
}

// TestApart_IsConfirmedByItsConductor: by itself, after a restart too.
func TestApart_IsConfirmedByItsConductor(t *testing.T) {
	w := apartly(t, script{request: apartResize}, faults{})
	w.configure = func(c *conductor.Config) { c.ConfirmWindow = time.Minute }
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.Start(context.Background(), asked(apartResize, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finished", isFinished)
	})
	w.boot()
	if err := w.sim.Run(10*time.Minute, func() bool {
		m, err := w.conductor.Get(context.Background(), moveUUID)
		return err == nil && m.Done()
	}); err != nil {
		t.Error(err)
	}
	m, err := w.conductor.Get(context.Background(), moveUUID)
	w.sim.Shutdown()
	if err != nil || m.Status != migration.StatusConfirmed || w.hosts["a"].listed != "" || w.hosts["b"].listed != "shown" {
		t.Errorf("%s, %v; listed %q and %q", m.Status, err, w.hosts["a"].listed, w.hosts["b"].listed)
	}
}

// TestApart_IsNotConfirmedByItselfWithoutItsDestination: a conductor that is at neither host waits, and
// says for what, while the destination is silent or has nothing of the instance: its disks at the source
// may be the last ones.
func TestApart_IsNotConfirmedByItselfWithoutItsDestination(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(*simHost)
		want string
	}{
		{"it is silent", func(h *simHost) { h.cut = true }, "host_silent"},
		{"its libvirtd has no such domain", func(h *simHost) { h.domain = nil }, "not_there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := apartly(t, script{request: apartResize}, faults{})
			w.configure = func(c *conductor.Config) { c.ConfirmWindow = time.Minute }
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				ctx := context.Background()
				if _, err := c.Start(ctx, asked(apartResize, "b")); err != nil {
					t.Fatal(err)
				}
				until(t, p, c, "finished", isFinished)
				b := w.hosts["b"]
				domain := b.domain
				tt.lose(b)
				until(t, p, c, "waiting", func(m migration.Migration) bool { return len(m.Waits) > 0 })
				_ = p.Sleep(ctx, 10*time.Minute)
				m, err := c.Get(ctx, moveUUID)
				if err != nil || !isFinished(m) || len(m.Waits) != 1 || m.Waits[0].Code != tt.want || m.Waits[0].Change == "" {
					t.Fatalf("%s, waits for %+v, %v", m.Status, m.Waits, err)
				}
				if w.hosts["a"].listed != "hidden" {
					t.Errorf("its source has given it up: %q", w.hosts["a"].listed)
				}
				b.cut, b.domain = false, domain
				if m = until(t, p, c, "done", migration.Migration.Done); m.Status != migration.StatusConfirmed || len(m.Waits) > 0 {
					t.Errorf("ended %s, %v, waits for %v", m.Status, m.Err(), m.Waits)
				}
			})
		})
	}
}

// TestConfirm_OfShippedDisks_NeedsItsDestination: its first step removes the disks at the source.
func TestConfirm_OfShippedDisks_NeedsItsDestination(t *testing.T) {
	w := apartly(t, script{request: apartResize}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(apartResize, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "finished", isFinished)
		b := w.hosts["b"]
		b.cut = true
		if _, err := c.Confirm(ctx, moveUUID); !errors.Is(err, fault.Unavailable) || !fault.HasReason(err, "host_silent") {
			t.Errorf("while the destination is silent: %v", err)
		}
		_, err := c.Settle(ctx, moveUUID, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "b burnt"})
		if reasons := fault.ReasonsOf(err); len(reasons) != 1 || strings.Contains(reasons[0].Change, "berth resize confirm") {
			t.Errorf("what to do: %v", err)
		}
		if m, err := c.Get(ctx, moveUUID); err != nil || !isFinished(m) || w.hosts["a"].listed != "hidden" {
			t.Errorf("%s, %v; at the source %q", m.Status, err, w.hosts["a"].listed)
		}
		b.cut = false
		if _, err := c.Confirm(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		if m := until(t, p, c, "done", migration.Migration.Done); m.Status != migration.StatusConfirmed {
			t.Errorf("ended %s, %v", m.Status, m.Err())
		}
	})
}

// TestAlternates_ALostRaceForRoomIsOne, and the end of an attempt's time is none.
func TestAlternates_ALostRaceForRoomIsOne(t *testing.T) {
	w := apartly(t, script{request: to(apartCold, "d"), named: "b", hosts: four, words: []string{"confirm"}, want: completed}, faults{})
	w.placement.full["rp-b"] = true
	if m := w.run(); m.DestCompute != "d" || len(m.Refusals) != 1 || m.Refusals[0].Step != migration.StepSwapAllocations {
		t.Errorf("at %s after %+v: %v", m.DestCompute, m.Refusals, m.Err())
	}
	w.report("no room in Placement")

	w = apartly(t, script{request: to(apartCold, "d"), hosts: four}, faults{})
	w.latency = 400 * time.Millisecond
	w.configure = func(c *conductor.Config) { c.AttemptTimeout = 300 * time.Millisecond }
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		r := to(asked(apartCold, "b"), "d")
		r.ShutdownTimeout = new(time.Duration)
		if _, err := c.Start(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "over", migration.Migration.Done)
		if len(m.Refusals) > 0 || !slices.Contains(codes(m.Err()), "attempt_deadline") || m.DestCompute != "b" {
			t.Errorf("at %s after %+v: %v", m.DestCompute, m.Refusals, m.Err())
		}
	})
}

// TestAlternates_WhatLagsIsUndoneOverRestarts: the conductor dies at any point of a move of
// which one destination fell silent, and comes back when it answers again.
func TestAlternates_WhatLagsIsUndoneOverRestarts(t *testing.T) {
	silent := func(f faults) (*world, migration.Migration) {
		w := apartly(t, script{
			request: to(apartCold, "d"), named: "b", hosts: four, apart: true, words: []string{"confirm"},
			cut: map[string][2]time.Duration{"b": {0, 150 * time.Second}},
		}, f)
		w.latency = 40 * time.Millisecond
		return w, w.run()
	}
	reference, m := silent(faults{})
	reference.report("no crash")
	if m.DestCompute != "d" || len(m.Refusals) != 1 || m.Refusals[0].Left {
		t.Fatalf("at %s after %+v", m.DestCompute, m.Refusals)
	}
	lagged := 0
	for point := 0; point < reference.points; point += 14 * min(stride, 30) {
		w, m := silent(faults{crash: map[int]bool{point: true}})
		w.report("crash at " + reference.trace[point])
		if m.DestCompute == "d" {
			lagged++
		}
	}
	t.Logf("%d points, went on to the next %d times", reference.points, lagged)
	if lagged == 0 {
		t.Error("it never went on")
	}
}
