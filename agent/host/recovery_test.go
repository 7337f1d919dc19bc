package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
	"berth/migration/task"
)

// through is a host whose verbs a test breaks, with what its other side and its
// operators ask.
type through struct {
	breakable
	migration.Side
	migration.Settler
}

// site is two hosts with their agents, each with a conductor of its own, with the
// timings of a real one. Agents are killed and started again.
type site struct {
	*lab
	t      *testing.T
	mu     sync.Mutex // guards what follows
	fail   func(verb string, answered bool) error
	away   map[string]bool
	silent map[string]bool // who gets no answers
	known  chan struct{}   // closed when hosts know their own records; nil where they always do
	agents map[string]*agentProcess
}

type agentProcess struct {
	conductor *conductor.Conductor
	stop      context.CancelFunc
	ended     chan error
}

func newSite(t *testing.T) *site {
	s := &site{lab: newLab(t, "a", "b"), t: t, fail: never, away: map[string]bool{}, silent: map[string]bool{}, agents: map[string]*agentProcess{}}
	for _, name := range []string{"a", "b"} {
		s.hosts[name].Close()
		s.startAgent(name)
	}
	t.Cleanup(func() { s.kill("a"); s.kill("b") })
	return s
}

func (s *site) breaking(f func(verb string, answered bool) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// mute has nobody answer what a host asks by itself, or ends that.
func (s *site) mute(name string, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[name] = silent
}

// cut takes a host off the network, or puts it back.
func (s *site) cut(name string, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away[name] = away
}

func (s *site) failing(verb string, answered bool) error {
	s.mu.Lock()
	f := s.fail
	s.mu.Unlock()
	return f(verb, answered)
}

// reach finds a host as from another one.
func (s *site) reach(from, name string) (*node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.hosts[name]
	if n == nil || from != name && (s.away[name] || s.away[from] || s.agents[name] == nil) {
		return nil, fault.New(fault.Unavailable, "no route to host %s", name)
	}
	return n, nil
}

func (s *site) startAgent(name string) {
	s.t.Helper()
	p := &agentProcess{ended: make(chan error, 2)}
	known := s.known
	unknown := func() bool {
		select {
		case <-known:
			return false
		default:
			return known != nil
		}
	}
	n := s.boot(name, func(o *host.Options) {
		o.Poll, o.Agree = 0, 0 // the real ones
		o.Silence = time.Second
		o.Moving = func(instance string) (string, bool) {
			list, _ := p.conductor.List(context.Background()) // of a conductor in memory: no error
			for _, m := range list {
				if m.InstanceUUID == instance && !m.Done() {
					return m.UUID, true
				}
			}
			return "", false
		}
		o.Conducts = func(id string, attempt int) migration.Conduct { return p.conductor.Conducts(id, attempt) }
		o.Side = func(_ context.Context, other string) (migration.Side, error) {
			n, err := s.reach(name, other)
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case err != nil:
				return nil, err
			case s.silent[name]:
				return nil, fault.New(fault.Unavailable, "host %s does not answer", other)
			}
			return n.Host, nil
		}
	})
	p.conductor = conductor.New(conductor.Config{
		Runtime: &clock{booted: s.rt.booted}, Store: n.store, Local: name, Placement: s.placement,
		Ready: func(ctx context.Context) error {
			if known == nil {
				return nil
			}
			return runtime.Await(ctx, s.rt, known)
		},
		Hosts: func(_ context.Context, other string) (migration.Host, error) {
			n, err := s.reach(name, other)
			if err != nil {
				return nil, err
			}
			h := through{breakable{n.Host, s.failing, []string{operation.StreamStatus.Name, operation.Reclaim.Name}}, n.Host, n.Host}
			if other == name && unknown() { // it is there, for what is asked of its words alone
				return h, fault.New(fault.Unavailable, "host %s does not know its own records yet", name)
			}
			return h, nil
		},
	})
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	p.stop = stop
	s.rt.Go("conductor of "+name, func() { p.ended <- p.conductor.Run(ctx) })
	s.rt.Go("sides of "+name, func() { p.ended <- n.FollowSides(ctx) })
	s.mu.Lock()
	s.agents[name] = p
	s.mu.Unlock()
}

// kill ends an agent as kill -9 does: what is not durable is gone.
func (s *site) kill(name string) {
	s.mu.Lock()
	p := s.agents[name]
	delete(s.agents, name)
	s.mu.Unlock()
	if p == nil {
		return
	}
	p.stop()
	for range 2 {
		if err := <-p.ended; err != nil {
			s.t.Errorf("agent %s: %v", name, err)
		}
	}
	n := s.hosts[name]
	n.Close()
	n.store = n.store.Crash()
}

func (s *site) conductor() *conductor.Conductor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents["a"].conductor
}

func (s *site) migrate(uuid string) migration.Migration {
	s.t.Helper()
	var m migration.Migration
	waitFor(s.t, "the conductor", func() bool {
		var err error
		m, err = s.conductor().LiveMigrate(s.t.Context(), conductor.Request{Instance: uuid, Destination: "b"})
		if err != nil && !strings.Contains(err.Error(), "the conductor does not run") {
			s.t.Fatal(err)
		}
		return err == nil
	})
	return m
}

func (s *site) get(id string) (m migration.Migration) {
	s.t.Helper()
	waitFor(s.t, "the migration's record", func() bool {
		var err error
		m, err = s.conductor().Get(s.t.Context(), id)
		return err == nil
	})
	return m
}

// recoveryTime is what is promised: a move that can be settled is, within it
// from the agent's start, when all others answer.
const recoveryTime = 2 * time.Second

// TestRecovery_TakesUnderTwoSeconds kills an agent before and after each verb of a move,
// and starts it again. The time is that of a bubble: what is waited for, however busy the
// machine is.
func TestRecovery_TakesUnderTwoSeconds(t *testing.T) {
	requireQemuImg(t)
	verbs := []string{
		operation.Claim.Name, operation.PreLiveMigration.Name, operation.StartStream.Name, operation.Commit.Name,
		operation.AcceptToken.Name, operation.FinishDestination.Name, operation.CleanUpSource.Name,
	}
	for _, who := range []string{"a", "b"} {
		for i, verb := range verbs {
			for _, answered := range []bool{false, true} {
				if who == "b" && answered != (i%2 == 0) {
					continue // of the destination every other point: each costs its while
				}
				t.Run(fmt.Sprintf("%s %s answered=%v", who, verb, answered), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { recovers(t, who, verb, answered) })
				})
			}
		}
	}
}

// recovers kills an agent at a verb.
func recovers(t *testing.T, who, verb string, answered bool) {
	s := newSite(t)
	v := s.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := s.picture()
	synctest.Wait() // the conductors run
	reached, killed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.breaking(func(v string, a bool) (err error) {
		if v == verb && a == answered {
			once.Do(func() {
				close(reached)
				<-killed
				err = fault.New(fault.Unavailable, "the agent was killed")
			})
		}
		return err
	})
	begun := make(chan migration.Migration, 1)
	s.rt.Go("migrate", func() {
		m, _ := s.conductor().LiveMigrate(context.WithoutCancel(t.Context()), conductor.Request{
			Instance: v.UUID, Destination: "b", Migration: "55555555-5555-4555-8555-555555555555",
		})
		begun <- m
	})
	<-reached
	released := make(chan struct{})
	s.rt.Go("release", func() { // what was under way ends with its agent
		defer close(released)
		time.Sleep(time.Millisecond)
		close(killed)
	})
	s.kill(who)
	<-released
	began := time.Now()
	s.startAgent(who)
	id := (<-begun).UUID
	if id == "" {
		return // refused before it was accepted
	}
	waitFor(t, "the end", func() bool { return s.get(id).Done() })
	took := time.Since(began)
	m := s.get(id)
	t.Logf("%s after %s: %s", m.Outcome, took.Round(time.Millisecond), verb)
	if took > recoveryTime {
		t.Errorf("recovered after %s: %s, %+v", took, m.Status, m.Error)
	}
	s.settled(m, v.UUID, before)
}

// TestRecovery_OfAStreamThatRolledBackWhileNobodyWatched is the one start that has to look
// twice: an order of the dead agent may still be taken up.
func TestRecovery_OfAStreamThatRolledBackWhileNobodyWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		v := s.guest("a", "vm1")
		before := s.picture()
		s.fleet.CutData("a", "b")
		m := s.migrate(v.UUID)
		waitFor(t, "the stream", func() bool {
			job, err := s.hosts["a"].fake.Job(t.Context(), v.UUID)
			return err == nil && job.Kind == driver.JobUnbounded
		})
		s.kill("a")
		s.must("abort the job", s.hosts["a"].fake.AbortJob(t.Context(), v.UUID))
		waitFor(t, "its end", func() bool {
			job, err := s.hosts["a"].fake.Job(t.Context(), v.UUID)
			return err != nil || job.Kind != driver.JobUnbounded
		})
		began := time.Now()
		s.startAgent("a")
		waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
		if took := time.Since(began); took > recoveryTime {
			t.Errorf("recovered after %s", took)
		} else {
			t.Logf("recovered after %s", took.Round(time.Millisecond))
		}
		s.settled(s.get(m.UUID), v.UUID, before)
	})
}

// TestSettle_AGuestComesBackFromADestinationThatIsGone takes a move back that is past
// its point of no return, by an operator's word.
func TestSettle_AGuestComesBackFromADestinationThatIsGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.guest("a", "vm1")
	before := s.picture()
	var once sync.Once // it is tried again, also while b answers
	burns := make(chan struct{})
	s.breaking(func(verb string, answered bool) error {
		if verb == operation.AcceptToken.Name && !answered {
			once.Do(func() { s.cut("b", true); close(burns) })
			return fault.New(fault.Unavailable, "host b burns")
		}
		return nil
	})
	m := s.migrate(v.UUID)
	waitFor(t, "the commit", func() bool { return s.get(m.UUID).Status == migration.StatusPostMigrating })
	<-burns
	ctx := t.Context()
	word := migration.Settlement{GuestIsAt: "a", Why: "b burnt down", By: "ann"}
	_, err := s.conductor().Settle(ctx, m.UUID, word)
	s.wantKind("without saying who is gone", err, fault.Forbidden)
	word.Gone = []string{"b"}
	s.mute("b", true) // it would hear that the guest is its own
	s.cut("b", false)
	_, err = s.conductor().Settle(ctx, m.UUID, word)
	s.wantKind("while b answers", err, fault.Forbidden)
	if m := s.get(m.UUID); m.Settled != nil {
		t.Fatalf("the word was taken: %+v", m.Settled)
	}
	s.cut("b", true)
	s.breaking(never)
	if _, err := s.conductor().Settle(ctx, m.UUID, word); err != nil && !s.get(m.UUID).Done() {
		t.Fatal(err)
	}
	waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
	if m = s.get(m.UUID); m.Outcome != migration.OutcomeUndone || m.Settled == nil || m.Settled.By != "ann" || !strings.Contains(m.Error.Message, "burnt down") {
		t.Fatalf("%s, settled %+v: %+v", m.Outcome, m.Settled, m.Error)
	}
	_, err = s.conductor().Settle(ctx, m.UUID, word)
	s.must("the same word again, whose answer was lost", err)
	word.Why = "another reason"
	_, err = s.conductor().Settle(ctx, m.UUID, word)
	s.wantKind("another word when it is over", err, fault.Forbidden)
	s.must("start", s.hosts["a"].Start(ctx, "vm1", false))
	// The destination comes back with its paused copy, asks, and has nothing left.
	s.mute("b", false)
	s.cut("b", false)
	waitFor(t, "the destination's end", func() bool { return len(s.hosts["b"].tracker.List()) == 0 })
	// That its domain once left is forgotten by the first look at the guest that runs.
	before["a memories"] = []string{"left-" + v.UUID + "/1/left_by_hand"}
	s.same("left behind", before)
}

// TestSettle_AnUndoGoesOnWithoutADestinationThatIsGone frees a guest whose undo waits
// for a peer for ever.
func TestSettle_AnUndoGoesOnWithoutADestinationThatIsGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.guest("a", "vm1")
	s.breaking(func(verb string, answered bool) error {
		if verb == operation.StartStream.Name && !answered {
			s.cut("b", true)
			return fault.New(fault.Internal, "b burns")
		}
		return nil
	})
	m := s.migrate(v.UUID)
	waitFor(t, "the undo", func() bool { return s.get(m.UUID).Status == migration.StatusError })
	s.wantKind("stop", s.hosts["a"].Stop(t.Context(), "vm1", host.StopOptions{}), fault.Busy)
	_, err := s.conductor().Settle(t.Context(), m.UUID, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "b is scrap", By: "ann"})
	s.must("settle", err)
	waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
	s.must("stop", s.hosts["a"].Stop(t.Context(), "vm1", host.StopOptions{Force: true}))
	if held := s.placement.all(); len(held) != 1 {
		t.Errorf("allocations %v", held)
	}
}

// TestRecovery_RestsUntilItsHostKnowsItsOwnRecords has a ledger rebuilt while a stream runs:
// that its host cannot answer meanwhile ends no move.
func TestRecovery_RestsUntilItsHostKnowsItsOwnRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		v := s.guest("a", "vm1")
		before := s.picture()
		s.fleet.CutData("a", "b")
		m := s.migrate(v.UUID)
		waitFor(t, "the stream", func() bool { return s.get(m.UUID).Step == migration.StepStream })
		s.kill("a")
		s.known = make(chan struct{})
		s.startAgent("a")
		time.Sleep(5 * time.Second) // longer than a verb is asked again
		if m = s.get(m.UUID); m.Phase != task.Doing || m.Step != migration.StepStream {
			t.Errorf("meanwhile it is %s in step %s: %v", m.Phase, m.Step, m.Err())
		}
		s.fleet.HealData("a", "b")
		close(s.known)
		waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
		if m = s.get(m.UUID); m.Outcome != migration.OutcomeCompleted {
			t.Errorf("%s: %+v", m.Outcome, m.Error)
		}
		s.settled(m, v.UUID, before)
	})
}

// inTransit has a guest's token leave a for b, which cannot be asked to take it; asked counts how
// often that is tried.
func (s *site) inTransit(instance string) (m migration.Migration, asked *atomic.Int64) {
	s.t.Helper()
	asked = new(atomic.Int64)
	s.breaking(func(verb string, _ bool) error {
		if verb == operation.AcceptToken.Name {
			asked.Add(1)
			return fault.New(fault.Unavailable, "no route to b")
		}
		return nil
	})
	m = s.migrate(instance)
	waitFor(s.t, "the token to leave", func() bool { return s.get(m.UUID).Step == migration.StepAcceptToken })
	return m, asked
}

// TestRecovery_AGuestThatStandsStillWaitsForNoRecords: its token has left, and what is to come is
// never undone.
func TestRecovery_AGuestThatStandsStillWaitsForNoRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		v := s.guest("a", "vm1")
		before := s.picture()
		m, _ := s.inTransit(v.UUID)
		s.kill("a")
		s.known = make(chan struct{})
		s.breaking(never)
		s.mute("b", true) // a host that does not know its own records answers nobody
		s.startAgent("a")
		waitFor(t, "the guest to run there", func() bool {
			d, err := s.hosts["b"].fake.Domain(t.Context(), v.UUID)
			return err == nil && d.State == driver.Running
		})
		close(s.known)
		waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
		s.settled(s.get(m.UUID), v.UUID, before)
	})
}

// TestRecovery_WhatAWordMayTurnBackRests: an operator has said that the guest is at the source,
// and the conductor died before it heard that.
func TestRecovery_WhatAWordMayTurnBackRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		v := s.guest("a", "vm1")
		m, asked := s.inTransit(v.UUID)
		ref := migration.Ref{Migration: m.UUID, Attempt: 1, Instance: v.UUID}
		s.must("take word", s.hosts["a"].TakeWord(t.Context(), ref, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "b is scrap", By: "ann"}))
		s.kill("a")
		s.known = make(chan struct{})
		s.mute("b", true)
		s.startAgent("a")
		n := asked.Load()
		time.Sleep(5 * time.Second)
		if got := asked.Load(); got != n {
			t.Errorf("the destination was asked %d times to take what an operator had taken back", got-n)
		}
		s.breaking(never)
		close(s.known)
		waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
		if m = s.get(m.UUID); m.Outcome != migration.OutcomeUndone {
			t.Errorf("%s: %+v", m.Outcome, m.Error)
		}
		s.state("a", v.UUID, driver.ShutOff) // its memory was on the host that is scrap
	})
}

// TestRecovery_AsksTheDestinationBeforeItTakesAGuestBack has an operator give the guest to
// the destination while its source is away, with the guest paused in its hand-over.
func TestRecovery_AsksTheDestinationBeforeItTakesAGuestBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.guest("a", "vm1")
	a, b := s.hosts["a"], s.hosts["b"]
	dead := make(chan struct{})
	var once sync.Once
	s.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhaseFinishReply {
			once.Do(func() { a.fake.KillDaemon(); close(dead) })
		}
		return nil
	})
	m := s.migrate(v.UUID)
	waitFor(t, "the copy", func() bool {
		d, err := b.fake.Domain(t.Context(), v.UUID)
		return err == nil && d.State == driver.Paused && d.Reason != driver.ReasonMigrating
	})
	<-dead // a moment after the copy is there
	s.kill("a")
	a.fake.StartDaemon()
	s.state("a", v.UUID, driver.Paused)
	_, err := b.SettleArrival(t.Context(), m.UUID, migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}, Why: "a does not come up", By: "ann"})
	s.must("settle", err)
	s.state("b", v.UUID, driver.Running)
	s.startAgent("a")
	waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
	if m = s.get(m.UUID); m.Outcome != migration.OutcomeCompleted {
		t.Errorf("%s: %+v", m.Outcome, m.Error)
	}
	s.state("b", v.UUID, driver.Running)
	if p := s.picture(); p["a domains"] != nil || p["a claims"] != nil || p["a memories"] != nil || len(p["allocations"]) != 1 {
		t.Errorf("left behind: %v", p)
	}
}

// TestSettle_AMoveWhoseJournalCannotBeRead frees a guest of which nobody knows what its
// move has done.
func TestSettle_AMoveWhoseJournalCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.guest("a", "vm1")
	before := s.picture()
	s.fleet.CutData("a", "b")
	m := s.migrate(v.UUID)
	waitFor(t, "the stream", func() bool { return s.get(m.UUID).Step == migration.StepStream })
	s.kill("a")
	s.must("spoil the journal", s.hosts["a"].store.Put(t.Context(), "tasks", m.UUID+"/1", []byte("{")))
	s.startAgent("a")
	if m := s.get(m.UUID); m.Outcome != migration.OutcomeInDoubt {
		t.Fatalf("%s: %+v", m.Outcome, m.Error)
	}
	_, err := s.conductor().Settle(t.Context(), m.UUID, migration.Settlement{GuestIsAt: "b", Why: "x"})
	s.wantKind("forward", err, fault.Forbidden)
	got, err := s.conductor().Settle(t.Context(), m.UUID, migration.Settlement{GuestIsAt: "a", Why: "it answers pings there", By: "ann"})
	s.must("settle", err)
	if got.Outcome != migration.OutcomeUndone || got.Settled == nil {
		t.Errorf("%s, settled %+v", got.Outcome, got.Settled)
	}
	waitFor(t, "the destination's end", func() bool { return len(s.hosts["b"].tracker.List()) == 0 })
	s.state("a", v.UUID, driver.Running)
	after := s.picture()
	before["allocations"], after["allocations"] = nil, nil // the audit's
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
	s.kill("a")
	s.startAgent("a")
	if m := s.get(m.UUID); m.Outcome != migration.OutcomeUndone {
		t.Errorf("after a restart: %s", m.Outcome)
	}
}

// TestSettle_AnUnreadMoveWhoseGuestHasLeft has the only copy at the destination: no word
// brings its source to keep a guest that it has not.
func TestSettle_AnUnreadMoveWhoseGuestHasLeft(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.guest("a", "vm1")
	s.fleet.CutData("a", "b")
	m := s.migrate(v.UUID)
	waitFor(t, "the stream", func() bool {
		job, err := s.hosts["a"].fake.Job(t.Context(), v.UUID)
		return err == nil && job.Kind == driver.JobUnbounded
	})
	s.kill("a")
	s.must("spoil the journal", s.hosts["a"].store.Put(t.Context(), "tasks", m.UUID+"/1", []byte("{")))
	s.fleet.HealData("a", "b")
	waitFor(t, "the guest to leave", func() bool {
		d, err := s.hosts["a"].fake.Domain(t.Context(), v.UUID)
		return err == nil && d.State == driver.ShutOff
	})
	s.startAgent("a")
	if m := s.get(m.UUID); m.Outcome != migration.OutcomeInDoubt {
		t.Fatalf("%s: %+v", m.Outcome, m.Error)
	}
	_, err := s.conductor().Settle(t.Context(), m.UUID, migration.Settlement{GuestIsAt: "a", Why: "it answers pings", By: "ann"})
	if s.wantKind("settle", err, fault.Forbidden); !slices.Contains(codes(err), "has_left") {
		t.Errorf("reasons %v: %v", codes(err), err)
	}
	if _, taken := s.hosts["a"].tracker.Word(m.UUID); taken {
		t.Error("the word was taken")
	}
	s.state("b", v.UUID, driver.Paused)
}

// TestReclaim_AsksNothingOfASourceThatCannotBeLookedAt: what it decides unseen the
// destination was not asked about.
func TestReclaim_AsksNothingOfASourceThatCannotBeLookedAt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.guest("a", "vm1")
	before := s.picture()
	s.fleet.CutData("a", "b")
	m := s.migrate(v.UUID)
	waitFor(t, "the stream", func() bool {
		job, err := s.hosts["a"].fake.Job(t.Context(), v.UUID)
		return err == nil && job.Kind == driver.JobUnbounded
	})
	var looked, reclaimed atomic.Int32
	s.breaking(func(verb string, answered bool) error {
		switch {
		case answered:
		case verb == operation.Reclaim.Name:
			reclaimed.Add(1)
		case verb == operation.StreamStatus.Name && s.get(m.UUID).Phase == task.Undoing:
			looked.Add(1)
			return fault.New(fault.Unavailable, "libvirtd is away")
		}
		return nil
	})
	s.must("abort", s.conductor().Abort(t.Context(), m.UUID))
	waitFor(t, "two looks", func() bool { return looked.Load() >= 2 })
	if n := reclaimed.Load(); n != 0 {
		t.Errorf("asked to keep the guest %d times", n)
	}
	s.breaking(never)
	waitFor(t, "the end", func() bool { return s.get(m.UUID).Done() })
	s.settled(s.get(m.UUID), v.UUID, before)
}

// TestDeadline_AnAttemptThatIsNotOverIsUndone has a destination that never gets ready.
func TestDeadline_AnAttemptThatIsNotOverIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		before := l.picture()
		l.fleet.CutData("a", "b")
		c := conductor.New(conductor.Config{
			Runtime: &clock{booted: l.rt.booted}, Store: l.hosts["a"].store, Local: "a", Placement: l.placement, AttemptTimeout: 300 * time.Millisecond,
			StallTimeout: time.Hour,
			Hosts:        func(_ context.Context, name string) (migration.Host, error) { return l.hosts[name].Host, nil },
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		l.rt.Go("conductor", func() { ended <- c.Run(ctx) })
		var m migration.Migration
		waitFor(t, "the conductor", func() (ok bool) {
			var err error
			m, err = c.LiveMigrate(ctx, conductor.Request{Instance: v.UUID, Destination: "b"})
			return err == nil
		})
		if left := time.Until(m.Deadline); left <= 0 || left > 300*time.Millisecond {
			t.Errorf("deadline in %s", left)
		}
		waitFor(t, "the end", func() bool { m, _ = c.Get(ctx, m.UUID); return m.Done() })
		if m.Outcome != migration.OutcomeUndone || !strings.Contains(m.Error.Message, "was not over after 300ms") {
			t.Errorf("%s: %+v", m.Outcome, m.Error)
		}
		l.state("a", v.UUID, driver.Running)
		l.same("left behind", before)
		stop()
		l.must("conductor", <-ended)
	})
}
