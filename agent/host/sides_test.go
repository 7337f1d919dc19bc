package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/placementclient"
)

// twoSides are hosts that reach each other without a conductor between them.
type twoSides struct {
	*move
	silent  atomic.Bool   // nobody reaches anybody
	silence time.Duration // of a conductor, until its destination asks
	conduct atomic.Value
	log     *slog.Logger // of hosts that start from now on; nil for none
}

func newSides(t *testing.T, disks ...host.CreateDisk) *twoSides {
	l := newLab(t, "a", "b")
	s := &twoSides{silence: time.Nanosecond}
	s.conduct.Store(migration.ConductNone)
	v := l.guest("a", "vm1", disks...)
	s.move = newMove(l, v.UUID)
	for _, name := range []string{"a", "b"} {
		s.restart(name)
	}
	return s
}

// restart kills a host's agent and starts it again.
func (s *twoSides) restart(name string) {
	s.t.Helper()
	n := s.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	s.boot(name, s.options)
}

// options are those of a host that starts.
func (s *twoSides) options(o *host.Options) {
	o.Silence = s.silence
	if s.log != nil {
		o.Logger = s.log
	}
	o.Conducts = func(string, int) migration.Conduct { return s.conduct.Load().(migration.Conduct) }
	o.Side = func(_ context.Context, name string) (migration.Side, error) {
		if s.silent.Load() {
			return nil, fault.New(fault.Unavailable, "no route to host %s", name)
		}
		return s.hosts[name].Host, nil
	}
}

// follow lets both hosts look after their sides until ok.
func (s *twoSides) follow(what string, ok func() bool) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, 2)
	for _, n := range []*node{s.a, s.b} {
		s.rt.Go("sides of "+n.name, func() { ended <- n.FollowSides(ctx) })
	}
	waitFor(s.t, what, ok)
	stop()
	for range 2 {
		s.must("follow sides", <-ended)
	}
}

// left takes a move to where its guest has left the source and waits at the destination.
func (s *twoSides) left() {
	s.t.Helper()
	s.prepare()
	s.stream()
	// The call to the hypervisor ends a moment after its result is written.
	waitFor(s.t, "the end of the call", func() bool {
		f, err := s.a.AttemptFate(s.t.Context(), s.ref)
		s.must("ask for its fate", err)
		return f.Fate != migration.FateGoing || s.conduct.Load() != migration.ConductNone
	})
	s.state("b", s.ref.Instance, driver.Paused)
}

func (s *twoSides) bound() bool {
	c, ok := s.b.tracker.ByOwner(claims.Owner{Instance: s.ref.Instance, Kind: claims.KindInstance})
	return ok && c.State == claims.Bound && len(s.b.Waiting()) == 0
}

func (s *twoSides) token(on string) claims.Token {
	inst, _ := s.hosts[on].tracker.Instance(s.ref.Instance)
	return inst.Token
}

func TestSides_TheDestinationFinishesAloneWithTheToken(t *testing.T) {
	for _, paused := range []bool{false, true} {
		s := newSides(t)
		if paused {
			s.must("suspend", s.a.fake.Suspend(t.Context(), s.ref.Instance))
			s.guest.PowerState = migration.PowerPaused
		}
		s.left()
		c, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
		s.must("commit", err)
		// The agent dies between the token's record and the guest's first step here.
		s.b.fake.Fault(func(call, _ string) error {
			if call == "Resume" || paused && call == "Domain" {
				return fault.New(fault.Unavailable, "libvirtd is away")
			}
			return nil
		})
		s.wantKind("accept token", operation.AcceptToken.Ask(t.Context(), s.b, s.ref, c), fault.Unavailable)
		s.b.fake.Fault(nil)
		s.restart("b")
		s.silent.Store(true) // the source is gone for good, and its conductor with it
		s.follow("the guest", s.bound)
		want := driver.Running
		if paused {
			want = driver.Paused
		}
		s.state("b", s.ref.Instance, want)
		if d, err := s.b.fake.Domain(t.Context(), s.ref.Instance); err != nil || !d.Persistent {
			t.Errorf("definition: %+v, %v", d, err)
		}
		// The claim is bound before the last record of the move goes.
		s.follow("the records' end", func() bool { return s.picture()["b memories"] == nil })
	}
}

// A guest that is here waits less long for a conductor that has fallen silent than a copy.
func TestSides_AConductorThatFallsSilentIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSides(t)
		s.silence = 2 * time.Second
		s.restart("b")
		s.left()
		c, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
		s.must("commit", err)
		s.must("accept token", operation.AcceptToken.Ask(t.Context(), s.b, s.ref, c))
		began := time.Now()
		s.silent.Store(true)
		s.follow("the guest", s.bound)
		if took := time.Since(began); took < s.silence/10 || took > s.silence {
			t.Errorf("finished alone after %s of silence", took)
		}
	})
}

func TestSides_TheSourceHandsItsCommitOver(t *testing.T) {
	s := newSides(t)
	s.left()
	_, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
	s.must("commit", err)
	s.restart("a") // its conductor's journal is lost
	s.follow("the guest", s.bound)
	s.state("b", s.ref.Instance, driver.Running)
	if k := s.token("b"); k.State != claims.TokenHere || k.Epoch != 2 {
		t.Errorf("token %+v", k)
	}
}

func TestSides_ACopyThatIsProvablyNotTheOwnerEnds(t *testing.T) {
	requireQemuImg(t)
	s := newSides(t, host.CreateDisk{SizeGB: 1})
	before := s.picture()
	s.prepare()
	s.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhaseFinishReply {
			return errors.New("the reply was lost")
		}
		return nil
	})
	s.stream()
	s.must("reclaim", operation.Reclaim.Ask(t.Context(), s.a, s.ref))
	s.must("drop context", operation.DropContext.Ask(t.Context(), s.a, s.ref))
	// The undo never came to the destination, and nobody is left to send it.
	s.restart("b")
	s.follow("the claim's end", func() bool { return len(s.b.tracker.List()) == 0 })
	s.state("a", s.ref.Instance, driver.Running)
	s.same("left behind", before)
	_, err := operation.Claim.Ask(t.Context(), s.b, s.ref, migration.ClaimRequest{Guest: s.guest, Context: contextOf("a", "b")})
	s.wantKind("a late claim", err, fault.Forbidden)
}

func TestSides_ASilentSourceIsWaitedFor(t *testing.T) {
	s := newSides(t)
	s.left()
	s.silent.Store(true)
	s.restart("b")
	doubted := func() bool { w := s.b.Waiting(); return len(w) == 1 && w[0].InDoubt }
	s.follow("the doubt", doubted)
	before := s.picture()
	if w := s.b.Waiting()[0]; w.Migration != s.ref.Migration || w.Source != "a" || !strings.Contains(w.For, "host a") {
		t.Errorf("waits for %+v", w)
	}
	s.state("b", s.ref.Instance, driver.Paused)
	s.same("while the source is silent", before)

	// It comes back, and its conductor goes on.
	s.silent.Store(false)
	s.conduct.Store(migration.ConductGoing)
	s.follow("its word", func() bool { w := s.b.Waiting(); return len(w) == 1 && !w[0].InDoubt })
	s.handOver()
	s.follow("the end", func() bool { return len(s.b.Waiting()) == 0 })
	s.state("b", s.ref.Instance, driver.Running)
}

func TestSides_ALeaseThatEndsTakesAlongWhatWasMade(t *testing.T) {
	requireQemuImg(t)
	s := newSides(t, host.CreateDisk{SizeGB: 1})
	before := s.picture()
	for i, verb := range s.verbs()[:4] {
		if _, err := verb(t.Context()); err != nil {
			t.Fatalf("verb %d: %v", i, err)
		}
	}
	// A hook fails after the disks were made; then the conductor dies, and the lease ends.
	s.b.put(t, "/hooks/pre_live_migration/10-no", "#!/bin/sh\nexit 1\n", 0o755)
	if _, err := s.verbs()[4](t.Context()); err == nil {
		t.Fatal("prepared in spite of its hook")
	}
	s.must("abort", s.b.tracker.Abort(t.Context(), migration.Ref{Migration: s.ref.Migration, Instance: s.ref.Instance, Attempt: 1}))
	s.must("drop context", operation.DropContext.Ask(t.Context(), s.a, s.ref))
	s.silent.Store(true)
	s.follow("the preparation's end", func() bool { return s.picture()["b memories"] == nil })
	s.same("left behind", before)
}

// TestSides_WhatWasMadeForAGuestThatHasGoneOnIsItsOwn has a guest finish its arrival never,
// since a hook wants another try, and move on: its disks are no leftover.
func TestSides_WhatWasMadeForAGuestThatHasGoneOnIsItsOwn(t *testing.T) {
	requireQemuImg(t)
	s := newSides(t, host.CreateDisk{SizeGB: 1})
	s.prepare()
	s.stream()
	c, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
	s.must("commit", err)
	s.must("accept token", operation.AcceptToken.Ask(t.Context(), s.b, s.ref, c))
	s.b.put(t, "/hooks/post_live_migration_at_destination/10-later", "#!/bin/sh\nexit 75\n", 0o755)
	if err := operation.FinishDestination.Ask(t.Context(), s.b, s.ref); err == nil {
		t.Fatal("finished in spite of its hook")
	}
	away := migration.Ref{Migration: "66666666-6666-4666-8666-666666666666", Instance: s.ref.Instance, Attempt: 1}
	if _, err := s.b.tracker.ReleaseOwnership(t.Context(), away, "c"); err != nil {
		t.Fatal(err)
	}
	s.must("forget", s.b.tracker.Forget(t.Context(), s.ref.Instance))
	disks := s.picture()["b files"]
	// A source that has not heard of it must not take the guest for its own.
	if st, err := operation.DestinationStatus.Ask(t.Context(), s.b, s.ref); err != nil || st.Ledger != migration.LedgerAccepted || st.Epoch != c.Epoch+1 {
		t.Errorf("of a guest that has gone on: %+v, %v", st, err)
	}
	s.restart("b")
	s.silent.Store(true)
	s.follow("the records' end", func() bool { return s.picture()["b memories"] == nil })
	if got := s.picture()["b files"]; len(disks) < 2 || !slices.Equal(got, disks) {
		t.Errorf("files %v, before %v", got, disks)
	}
}

var gone = migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}, Why: "the machine room of a burnt down", By: "ann"}

func TestSettleArrival_TheDestinationTakesTheGuestAndASourceThatReturnsGivesWay(t *testing.T) {
	s := newSides(t)
	s.left()
	s.silent.Store(true)
	s.restart("b")
	named := gone
	named.Gone = nil
	_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, named)
	if s.wantKind("without saying that the source is gone", err, fault.Forbidden); !slices.Contains(codes(err), "source_not_named") {
		t.Errorf("reasons %v", codes(err))
	}
	_, err = s.b.SettleArrival(t.Context(), "33333333-3333-4333-8333-333333333333", gone)
	s.wantKind("another migration", err, fault.NotFound)
	for range 2 { // its answer may be lost
		w, err := s.b.SettleArrival(t.Context(), s.ref.Migration, gone)
		if s.must("settle", err); w.Instance != s.ref.Instance {
			t.Errorf("settled %+v", w)
		}
	}
	other := gone
	other.Why = "another reason"
	_, err = s.b.SettleArrival(t.Context(), s.ref.Migration, other)
	s.wantKind("another word when it is over", err, fault.NotFound)
	s.state("b", s.ref.Instance, driver.Running)
	if w, ok := s.b.tracker.Word(s.ref.Migration); !ok || w.By != "ann" || w.Why == "" {
		t.Errorf("the word %+v", w)
	}

	// The source was not gone after all: somebody has even started a copy there.
	s.must("start", s.a.fake.Start(t.Context(), s.ref.Instance, true))
	s.conduct.Store(migration.ConductGoing)
	s.silent.Store(false)
	s.follow("the source to give way", func() bool { return len(s.b.tracker.Untold()) == 0 })
	s.state("a", s.ref.Instance, driver.ShutOff)
	if k := s.token("a"); k.State != claims.TokenSurrendered || k.Holder != "b" {
		t.Errorf("the source's token %+v", k)
	}
	if st := s.status(); st.Ledger != migration.LedgerSurrendered {
		t.Errorf("the source's ledger says %s", st.Ledger)
	}
	s.wantKind("reclaim", operation.Reclaim.Ask(t.Context(), s.a, s.ref), fault.Forbidden)
	s.must("clean up source", operation.CleanUpSource.Ask(t.Context(), s.a, s.ref))
	s.wantKind("start at the source", s.a.Start(t.Context(), "vm1", false), fault.NotFound)
}

// The decision is on record before the token is here by it. Who looks between the two must not take it
// for one that nobody has to hear.
func TestSettleArrival_TheSourceHearsOfItAlsoWhenItIsOnRecordEarly(t *testing.T) {
	s := newSides(t)
	s.left()
	s.restart("a") // its conductor's journal is lost
	var rounds atomic.Int32
	s.b.Close()
	s.boot("b", func(o *host.Options) {
		s.options(o)
		o.Round = func(string) { rounds.Add(1) }
	})
	s.must("note the decision", s.b.tracker.NoteWord(t.Context(), claims.Word{
		Instance: s.ref.Instance, Migration: s.ref.Migration, Attempt: s.ref.Attempt, GuestIsAt: "b", Gone: gone.Gone, Why: gone.Why, By: gone.By, Tell: "a",
	}))
	s.follow("two rounds", func() bool { return rounds.Load() > 1 })
	if got := s.b.tracker.Untold(); len(got) != 1 {
		t.Fatalf("to be told: %+v, want the decision", got)
	}
	s.silent.Store(true)
	_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, gone)
	s.must("settle", err)
	s.silent.Store(false)
	s.follow("the source to hear of it", func() bool { return len(s.b.tracker.Untold()) == 0 })
	if k := s.token("a"); k.State == claims.TokenHere {
		t.Errorf("the source's token %+v", k)
	}
}

func TestSettleArrival_IsRefusedWhereTheFactsContradictIt(t *testing.T) {
	for name, tt := range map[string]struct {
		arrange func(s *twoSides)
		word    migration.Settlement
		code    string
	}{
		"the source answers": {func(s *twoSides) { s.conduct.Store(migration.ConductGoing); s.silent.Store(false) }, gone, "source_answers"},
		"a third host":       {func(*twoSides) {}, migration.Settlement{GuestIsAt: "c", Why: "x"}, "not_a_party"},
		"no copy is here": {func(s *twoSides) {
			s.must("destroy", s.b.fake.Destroy(s.t.Context(), s.ref.Instance))
		}, gone, "no_copy"},
		"it runs here": {func(s *twoSides) {
			s.must("resume", s.b.fake.Resume(s.t.Context(), s.ref.Instance))
			s.must("destroy", s.a.fake.Undefine(s.t.Context(), s.ref.Instance))
		}, migration.Settlement{GuestIsAt: "a", Why: "x"}, "runs_here"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSides(t)
			s.left()
			s.silent.Store(true)
			s.restart("b")
			tt.arrange(s)
			_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, tt.word)
			if s.wantKind("settle", err, fault.Forbidden); !slices.Contains(codes(err), tt.code) {
				t.Errorf("reasons %v, want %s: %v", codes(err), tt.code, err)
			}
			if k := s.token("b"); k.State != "" {
				t.Errorf("token %+v", k)
			}
			if _, ok := s.b.tracker.Word(s.ref.Migration); ok {
				t.Error("the word was taken")
			}
		})
	}
}

func TestSettleArrival_NeverOfACopyThatIsNotWhole(t *testing.T) {
	s := newSides(t)
	s.prepare()
	s.fleet.CutData("a", "b")
	s.must("start stream", s.start())
	waitFor(t, "the copy", func() bool {
		d, err := s.b.fake.Domain(t.Context(), s.ref.Instance)
		return err == nil && d.State == driver.Paused
	})
	s.silent.Store(true)
	_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, gone)
	if s.wantKind("settle", err, fault.Forbidden); !slices.Contains(codes(err), "copy_incomplete") {
		t.Errorf("reasons %v: %v", codes(err), err)
	}
	s.back()
}

func TestSettleArrival_TheGuestIsAtTheSource(t *testing.T) {
	s := newSides(t)
	s.left()
	s.silent.Store(true)
	s.restart("b")
	word := migration.Settlement{GuestIsAt: "a", Why: "it was started there again"}
	_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, word)
	if s.wantKind("of a silent source that is not named", err, fault.Forbidden); !slices.Contains(codes(err), "source_not_named") {
		t.Errorf("reasons %v", codes(err))
	}
	word.Gone = []string{"a"}
	_, err = s.b.SettleArrival(t.Context(), s.ref.Migration, word)
	s.must("settle", err)
	if p := s.picture(); p["b domains"] != nil || p["b claims"] != nil || p["b memories"] != nil {
		t.Errorf("left behind: %v", p)
	}
	c, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
	s.must("commit", err)
	s.wantKind("a token that comes all the same", operation.AcceptToken.Ask(t.Context(), s.b, s.ref, c), fault.Forbidden)
}

// The source answers, nobody conducts the move, and its domain says that the guest has
// left: the copy here is the only one, whatever an operator says.
func TestSettleArrival_NeverEndsTheOnlyCopyForASourceThatHasNone(t *testing.T) {
	s := newSides(t)
	s.left()
	for _, want := range []string{"shut off (migrated)", "not there"} {
		if want == "not there" {
			s.must("undefine", s.a.fake.Undefine(t.Context(), s.ref.Instance))
		}
		for _, gone := range [][]string{nil, {"a"}} {
			_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, migration.Settlement{GuestIsAt: "a", Gone: gone, Why: "it answers pings"})
			if s.wantKind("settle", err, fault.Forbidden); !slices.Contains(codes(err), "not_at_source") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: reasons %v: %v", want, codes(err), err)
			}
		}
		s.state("b", s.ref.Instance, driver.Paused)
	}
}

// The same source where the guest does run: the word is taken.
func TestSettleArrival_ASourceThatHasTheGuestKeepsIt(t *testing.T) {
	s := newSides(t)
	s.left()
	s.must("start", s.a.fake.Start(t.Context(), s.ref.Instance, false))
	_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, migration.Settlement{GuestIsAt: "a", Why: "somebody has started it there again"})
	s.must("settle", err)
	s.state("a", s.ref.Instance, driver.Running)
	if p := s.picture(); p["b domains"] != nil || p["b claims"] != nil {
		t.Errorf("left behind: %v", p)
	}
}

func TestTakeWord_AGuestIsTakenBackFromADestinationThatIsGone(t *testing.T) {
	for _, finished := range []bool{false, true} {
		s := newSides(t)
		s.left()
		c, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
		s.must("commit", err)
		s.must("accept token", operation.AcceptToken.Ask(t.Context(), s.b, s.ref, c))
		if finished {
			s.must("finish", operation.FinishDestination.Ask(t.Context(), s.b, s.ref))
		}
		// The destination's host dies: with it the only copy of its memory.
		s.silent.Store(true)
		s.must("destroy", s.b.fake.Destroy(t.Context(), s.ref.Instance))
		word := migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "b is scrap", By: "ann"}
		for range 2 {
			s.must("take word", s.a.TakeWord(t.Context(), s.ref, word))
		}
		s.must("reclaim", operation.Reclaim.Ask(t.Context(), s.a, s.ref))
		s.must("drop context", operation.DropContext.Ask(t.Context(), s.a, s.ref))
		s.must("start", s.a.Start(t.Context(), "vm1", false))
		if k := s.token("a"); k.State != claims.TokenHere || k.Epoch != 3 {
			t.Errorf("token %+v", k)
		}

		// It comes back, with the token that it once had, and starts nothing.
		s.restart("b")
		s.silent.Store(false)
		s.follow("the destination to give way", func() bool {
			return len(s.a.tracker.Untold()) == 0 && len(s.b.tracker.Instances()) == 0
		})
		s.state("a", s.ref.Instance, driver.Running)
		if p := s.picture(); p["b domains"] != nil || p["b claims"] != nil || p["b memories"] != nil {
			t.Errorf("finished %v, left behind: %v", finished, p)
		}
	}
}

// A host that was taken for dead comes back, rebooted: it asks before it starts what was
// its own.
func TestAutostart_AsksTheOneWhoTookTheGuestBack(t *testing.T) {
	for _, gone := range []bool{false, true} {
		autostartAsks(t, gone)
	}
}

func autostartAsks(t *testing.T, gone bool) {
	s := newSides(t)
	s.guest.Autostart = true
	s.left()
	c, err := operation.Commit.Ask(t.Context(), s.a, s.ref)
	s.must("commit", err)
	s.must("accept token", operation.AcceptToken.Ask(t.Context(), s.b, s.ref, c))
	s.must("finish", operation.FinishDestination.Ask(t.Context(), s.b, s.ref))
	s.must("destroy", s.b.fake.Destroy(t.Context(), s.ref.Instance))
	s.must("take word", s.a.TakeWord(t.Context(), s.ref, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}, Why: "x"}))
	s.must("reclaim", operation.Reclaim.Ask(t.Context(), s.a, s.ref))
	s.must("drop context", operation.DropContext.Ask(t.Context(), s.a, s.ref))
	s.must("start", s.a.Start(t.Context(), "vm1", false))
	// Meanwhile the guest has gone on, and the one who took it back knows only where to.
	if gone {
		s.must("stop", s.a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}))
		on := migration.Ref{Migration: "66666666-6666-4666-8666-666666666666", Instance: s.ref.Instance, Attempt: 1}
		_, err := s.a.tracker.ReleaseOwnership(t.Context(), on, "c")
		s.must("surrender", err)
		s.must("forget", s.a.tracker.Forget(t.Context(), s.ref.Instance))
	}
	s.restart("b")
	s.must("settle", s.b.Settle(t.Context()))
	if p := s.picture(); p["b domains"] != nil || p["b claims"] != nil || p["b instances"] != nil {
		t.Errorf("at the host that came back: %v", p)
	}
	if !gone {
		s.state("a", s.ref.Instance, driver.Running)
	}
}

func TestTakeWord_IsRefusedBesideARunningGuest(t *testing.T) {
	s := newSides(t)
	s.prepare()
	err := s.a.TakeWord(t.Context(), s.ref, migration.Settlement{GuestIsAt: "b", Why: "x"})
	if s.wantKind("take word", err, fault.Forbidden); !slices.Contains(codes(err), "runs_here") {
		t.Errorf("reasons %v", codes(err))
	}
}

// Each word on a move adds to who is gone; what was checked before still holds.
func TestTakeWord_JoinsWhoIsGone(t *testing.T) {
	s := newSides(t)
	s.prepare()
	for _, gone := range [][]string{{"b"}, {migration.GonePlacement}, {"b"}} {
		s.must("take word", s.a.TakeWord(t.Context(), s.ref, migration.Settlement{GuestIsAt: "a", Gone: gone, Why: "x"}))
	}
	w, _ := s.a.WordOn(s.ref)
	if diff := cmp.Diff([]string{"b", migration.GonePlacement}, w.Gone); diff != "" {
		t.Errorf("gone (-want +got):\n%s", diff)
	}
}

// The source decides to keep the guest while an operator says that it has left: the later
// of the two is refused, as between a commit and a reclaim.
func TestTakeWord_IsRefusedOnceTheSourceKeepsTheGuest(t *testing.T) {
	s := newSides(t)
	s.prepare()
	s.must("reclaim", operation.Reclaim.Ask(t.Context(), s.a, s.ref))
	s.must("it ends", s.a.fake.Destroy(t.Context(), s.ref.Instance))
	err := s.a.TakeWord(t.Context(), s.ref, migration.Settlement{GuestIsAt: "b", Why: "x"})
	if s.wantKind("take word", err, fault.Forbidden); !slices.Contains(codes(err), "source_keeps") {
		t.Errorf("reasons %v: %v", codes(err), err)
	}
	if _, taken := s.a.WordOn(s.ref); taken {
		t.Error("the word was taken")
	}
}

// A copy that had finished leaves its disks when its token is taken back: somebody has to
// hear which.
func TestYieldToken_NamesTheDisksThatStay(t *testing.T) {
	requireQemuImg(t)
	s := newSides(t, host.CreateDisk{SizeGB: 1})
	var out strings.Builder
	s.log = slog.New(slog.NewTextHandler(&out, nil))
	s.restart("b")
	s.left()
	s.handOver()
	s.must("power off", s.b.fake.Destroy(t.Context(), s.ref.Instance))
	s.must("give way", s.b.YieldToken(t.Context(), s.ref, 9, "a"))
	files := s.picture()["b files"]
	s.b.Close() // what it logs is read now
	if len(files) < 2 {
		t.Fatalf("no disk is left: %v", files)
	}
	for _, f := range files[1:] {
		path, _, _ := strings.Cut(f, " ")
		if !strings.Contains(out.String(), "path="+path) {
			t.Errorf("%s is not named:\n%s", path, out.String())
		}
	}
}

// A party of the move that names any higher epoch ends nothing that runs: the instance is claimed by
// two hosts, by name, until an operator ends the copy here or says that it is the instance.
func TestYieldToken_OfARunningInstance_ItIsInDoubtAndRunsOn(t *testing.T) {
	for name, operator := range map[string]func(s *twoSides){
		"kept": func(s *twoSides) {
			s.must("keep", s.b.ConfirmByHand(s.t.Context(), s.ref.Instance, "a is hostile", "ann"))
			s.must("start", s.b.Start(s.t.Context(), s.ref.Instance, false))
			s.wantKind("the same again", s.b.YieldToken(s.t.Context(), s.ref, 9, "a"), fault.InDoubt)
			s.state("b", s.ref.Instance, driver.Running)
			// The decision outlives the agent, a power failure and a reboot, until a newer epoch comes.
			s.restart("b")
			s.must("power failure", s.b.fake.Destroy(s.t.Context(), s.ref.Instance))
			for _, boot := range []string{"second", "third"} {
				err := s.b.YieldToken(s.t.Context(), s.ref, 9, "a")
				if s.wantKind("while it is off", err, fault.InDoubt); !slices.Equal(codes(err), []string{"kept_by_operator"}) {
					s.t.Errorf("reasons %v", codes(err))
				}
				gave, err := s.b.GiveWay(s.t.Context(), s.ref, 9, "a", true)
				if s.wantKind("by a record and a death", err, fault.InDoubt); gave || s.token("b").State != claims.TokenHere {
					s.t.Errorf("given up: token %+v", s.token("b"))
				}
				s.b = s.rebootAlone("b", boot, s.options)
			}
			s.must("a newer epoch", s.b.YieldToken(s.t.Context(), s.ref, 10, "a"))
			if k := s.token("b"); k.State == claims.TokenHere {
				s.t.Errorf("a decision against an older epoch holds: %+v", k)
			}
		},
		"given up": func(s *twoSides) {
			s.must("end it", s.b.fake.Destroy(s.t.Context(), s.ref.Instance))
			s.must("give way", s.b.YieldToken(s.t.Context(), s.ref, 9, "a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSides(t)
			s.left()
			s.handOver()
			before := s.token("b")
			err := s.b.YieldToken(t.Context(), s.ref, 9, "a")
			if s.wantKind("a higher epoch", err, fault.InDoubt); !slices.Contains(codes(err), "higher_epoch_unproven") {
				t.Errorf("reasons %v", codes(err))
			}
			s.state("b", s.ref.Instance, driver.Running)
			if now := s.token("b"); now != before || now.State != claims.TokenHere {
				t.Errorf("token %+v, before %+v", now, before)
			}
			names, reasons := host.ClaimsElsewhere(s.b.Host)
			if !slices.Equal(names, []string{"vm1"}) || !strings.Contains(reasons[0].Change, "berth instance start vm1 --force-owner") {
				t.Errorf("told %v, %+v", names, reasons)
			}
			operator(s)
			if names, _ := host.ClaimsElsewhere(s.b.Host); len(names) > 0 {
				t.Errorf("still told: %v", names)
			}
		})
	}
}

// TestSettle_TheOtherHostRunsItToo_BothSay: the source was not gone, and its libvirt had resumed the
// instance before it heard of the decision.
func TestSettle_TheOtherHostRunsItToo_BothSay(t *testing.T) {
	s := newSides(t)
	s.left()
	s.silent.Store(true)
	s.restart("b")
	_, err := s.b.SettleArrival(t.Context(), s.ref.Migration, gone)
	s.must("settle", err)
	s.must("stand still, or the bench says that two run", s.b.fake.Suspend(t.Context(), s.ref.Instance))
	s.must("resumed", s.a.fake.Start(t.Context(), s.ref.Instance, false))
	s.silent.Store(false)
	s.follow("both to say so", func() bool {
		_, here := host.ClaimsElsewhere(s.a.Host)
		names, there := host.ClaimsElsewhere(s.b.Host)
		return len(here) == 1 && len(there) == 1 && slices.Equal(names, []string{"vm1"}) && there[0].Code == "decision_refused" &&
			strings.Contains(there[0].Change, "if it is the one on b, virsh destroy vm1 on a") && strings.Contains(there[0].Change, "berth instance delete vm1 --force on b")
	})
	s.must("end the copy", s.a.fake.Destroy(t.Context(), s.ref.Instance))
	s.follow("the source to give way", func() bool { return len(s.b.tracker.Untold()) == 0 })
	if names, _ := host.ClaimsElsewhere(s.b.Host); len(names) > 0 {
		t.Errorf("still told: %v", names)
	}
}

func TestYieldToken_OnlyToAHigherEpoch(t *testing.T) {
	s := newSides(t)
	s.left()
	s.wantKind("the same epoch", s.a.YieldToken(t.Context(), s.ref, 1, "b"), fault.Forbidden)
	other := s.ref
	other.Instance = "44444444-4444-4444-8444-444444444444"
	s.must("of a guest that nobody knows", s.a.YieldToken(t.Context(), other, 5, "b"))
	if k := s.token("a"); k.State != claims.TokenHere || k.Epoch != 1 {
		t.Errorf("token %+v", k)
	}
}

// TestYieldToken_OfNoOtherGuest has the other host of one move speak for a guest that the
// move is not of: it runs on.
func TestYieldToken_OfNoOtherGuest(t *testing.T) {
	s := newSides(t)
	bystander := s.lab.guest("a", "vm2")
	s.left()
	other := s.ref
	other.Instance = bystander.UUID
	s.wantKind("of a guest that the move is not of", s.a.YieldToken(t.Context(), other, 9, "b"), fault.Forbidden)
	s.state("a", bystander.UUID, driver.Running)
	if inst, _ := s.a.tracker.Instance(bystander.UUID); inst.Token.State != claims.TokenHere {
		t.Errorf("token %+v", inst.Token)
	}
	// Its own is spoken for also when the move's context is gone.
	s.must("drop context", operation.DropContext.Ask(t.Context(), s.a, s.ref))
	err := s.a.YieldToken(t.Context(), s.ref, 9, "b")
	if s.wantKind("alone", err, fault.Busy); s.token("a").State != claims.TokenSurrendered {
		t.Errorf("token %+v", s.token("a"))
	}
}

// TestYieldToken_OfAMoveThatIsOver_TakesTheTokenAlone: the other host of it may be hostile. What is here
// of the instance goes once Placement has it there, and an operator can take it back before.
func TestYieldToken_OfAMoveThatIsOver_TakesTheTokenAlone(t *testing.T) {
	s := newSides(t)
	s.left()
	s.must("over", operation.DropContext.Ask(t.Context(), s.a, s.ref))
	there := func() bool {
		_, err := s.a.fake.Domain(t.Context(), s.ref.Instance)
		claim, bound := s.a.tracker.ByOwner(claims.Owner{Instance: s.ref.Instance, Kind: claims.KindInstance})
		return err == nil && bound && claim.State == claims.Bound
	}
	yield := func(epoch uint64) {
		t.Helper()
		for range 2 { // it is asked again, also of another process
			err := s.a.YieldToken(t.Context(), s.ref, epoch, "b")
			if s.wantKind("one host's word", err, fault.Busy); !slices.Equal(codes(err), []string{"yield_unproven"}) {
				t.Errorf("reasons %v", codes(err))
			}
			if k := s.token("a"); k.State != claims.TokenSurrendered || !there() {
				t.Errorf("token %+v, definition and claim are there: %t", k, there())
			}
			s.restart("a")
		}
		if err := s.a.Start(t.Context(), s.ref.Instance, false); err == nil {
			t.Error("started though another host says that it has it")
		}
		names, reasons := host.ClaimsElsewhere(s.a.Host)
		if !slices.Equal(names, []string{"vm1"}) || !strings.Contains(reasons[0].Change, "berth instance start vm1 --force-owner") {
			t.Errorf("told %v, %+v", names, reasons)
		}
	}
	yield(99)
	s.must("take it back", s.a.ConfirmByHand(t.Context(), s.ref.Instance, "b is hostile", "ann"))
	if k := s.token("a"); k.State != claims.TokenHere || k.Epoch != 100 || !there() {
		t.Errorf("token %+v, definition and claim are there: %t", k, there())
	}
	if names, _ := host.ClaimsElsewhere(s.a.Host); len(names) > 0 {
		t.Errorf("still told: %v", names)
	}
	s.wantKind("the same again", s.a.YieldToken(t.Context(), s.ref, 99, "b"), fault.Forbidden)

	yield(101)
	had, err := s.placement.Allocations(t.Context(), s.ref.Instance)
	s.must("read", err)
	had.Allocations = map[string]placementclient.Resources{"rp-b": {"VCPU": 1}}
	s.must("counted there", s.placement.PostAllocations(t.Context(), map[string]placementclient.Allocations{s.ref.Instance: had}))
	s.follow("what is here to end", func() bool {
		_, known := s.a.tracker.Instance(s.ref.Instance)
		_, err := s.a.fake.Domain(t.Context(), s.ref.Instance)
		names, _ := host.ClaimsElsewhere(s.a.Host)
		return !known && errors.Is(err, fault.NotFound) && len(names) == 0
	})
}

// TestYieldToken_ARecordOfTheSameHostInEtcd_EndsNothing: etcd lets every host write every instance's record.
// The embedded store lets its holder alone, or a proven death.
func TestYieldToken_ARecordOfTheSameHostInEtcd_EndsNothing(t *testing.T) {
	for name, etcd := range map[string]bool{"etcd": true, "embedded": false} {
		t.Run(name, func(t *testing.T) {
			s := newSides(t)
			s.left()
			s.must("over", operation.DropContext.Ask(t.Context(), s.a, s.ref))
			client := fleettest.NewMemory(s.rt).Client("b")
			store := fleet.Store(client)
			if !etcd {
				store = client.RecordsOnly()
			}
			records := fleet.New(store, s.rt)
			_, err := records.PutInstance(t.Context(), fleet.Instance{UUID: s.ref.Instance, Name: "vm1", Host: "b", Epoch: 99, Guest: json.RawMessage("{}")})
			s.must("put its record", err)
			var rounds atomic.Int32
			s.a.Close()
			s.boot("a", func(o *host.Options) {
				s.options(o)
				o.Records, o.Round = records, func(string) { rounds.Add(1) }
			})
			err = s.a.YieldToken(t.Context(), s.ref, 99, "b")
			if !etcd {
				if s.must("one host's word, and its record", err); s.token("a") != (claims.Token{}) {
					t.Errorf("token %+v", s.token("a"))
				}
				return
			}
			if s.wantKind("one host's word, and its record", err, fault.Busy); !slices.Equal(codes(err), []string{"yield_unproven"}) {
				t.Errorf("reasons %v", codes(err))
			}
			s.follow("it to be looked at", func() bool { return rounds.Load() > 1 })
			if _, err := s.a.fake.Domain(t.Context(), s.ref.Instance); err != nil || s.token("a").State != claims.TokenSurrendered {
				t.Errorf("domain: %v, token %+v", err, s.token("a"))
			}
		})
	}
}

// TestYieldToken_AnotherWordOfTheSameHost_EndsNothing: neither a second epoch nor an order to clean up is a
// second witness.
func TestYieldToken_AnotherWordOfTheSameHost_EndsNothing(t *testing.T) {
	for name, epochs := range map[string][]uint64{"higher": {99, 100}, "lower, then higher": {99, 50, 100}, "twice lower": {99, 50, 7}, "the same": {99, 99}} {
		t.Run(name, func(t *testing.T) {
			s := newSides(t)
			s.left()
			s.must("over", operation.DropContext.Ask(t.Context(), s.a, s.ref))
			var rounds atomic.Int32
			highest := uint64(0)
			for _, epoch := range epochs {
				highest = max(highest, epoch)
				s.wantKind("one host's word", s.a.YieldToken(t.Context(), s.ref, epoch, "b"), fault.Busy)
				for what, ask := range map[string]func() error{
					"clean-up-source":   func() error { return operation.CleanUpSource.Ask(t.Context(), s.a, s.ref) },
					"confirm-source":    func() error { return operation.ConfirmSource.Ask(t.Context(), s.a, s.ref) },
					"clean-up-reverted": func() error { return operation.CleanUpReverted.Ask(t.Context(), s.a, s.ref) },
				} {
					if err := ask(); !slices.Equal(codes(err), []string{"yield_unproven"}) {
						t.Errorf("%s: %v", what, err)
					}
				}
				s.a.Close()
				s.boot("a", func(o *host.Options) {
					s.options(o)
					o.Round = func(string) { rounds.Add(1) }
				})
				before := rounds.Load()
				s.follow("it to be looked at", func() bool { return rounds.Load() > before+1 })
			}
			if _, err := s.a.fake.Domain(t.Context(), s.ref.Instance); err != nil {
				t.Error(err)
			}
			if c, bound := s.a.tracker.ByOwner(claims.Owner{Instance: s.ref.Instance, Kind: claims.KindInstance}); !bound || c.State != claims.Bound {
				t.Errorf("claim %+v", c)
			}
			if names, _ := host.ClaimsElsewhere(s.a.Host); !slices.Equal(names, []string{"vm1"}) || !host.YieldUnproven(s.a.Host, s.ref.Instance) {
				t.Errorf("told %v", names)
			}
			s.must("take it back", s.a.ConfirmByHand(t.Context(), s.ref.Instance, "b is hostile", "ann"))
			if k := s.token("a"); k.State != claims.TokenHere || k.Epoch != highest+1 {
				t.Errorf("token %+v", k)
			}
		})
	}
}

// TestYieldToken_OfADefinitionThatWasNotLoaded_EndsNothing: that libvirt does not list an instance is no
// second witness. That it was undefined is.
func TestYieldToken_OfADefinitionThatWasNotLoaded_EndsNothing(t *testing.T) {
	for name, before := range map[string]bool{"the word comes after": true, "the word came before": false} {
		t.Run(name, func(t *testing.T) {
			s := newSides(t)
			s.lab.guest("a", "vm2") // libvirt lists another one
			s.left()
			s.must("over", operation.DropContext.Ask(t.Context(), s.a, s.ref))
			if !before {
				s.wantKind("one host's word", s.a.YieldToken(t.Context(), s.ref, 99, "b"), fault.Busy)
			}
			s.a.fake.UnmountDefinitions(true)
			s.a.restartLibvirt(s.lab)
			if _, err := s.a.fake.Domain(t.Context(), s.ref.Instance); !errors.Is(err, fault.NotFound) {
				t.Fatalf("libvirt lists it: %v", err)
			}
			for range 2 {
				s.wantKind("one host's word", s.a.YieldToken(t.Context(), s.ref, 99, "b"), fault.Busy)
				if c, bound := s.a.tracker.ByOwner(claims.Owner{Instance: s.ref.Instance, Kind: claims.KindInstance}); !bound || c.State != claims.Bound {
					t.Errorf("claim %+v", c)
				}
				s.restart("a")
			}
			s.a.fake.UnmountDefinitions(false)
			s.a.restartLibvirt(s.lab)
			s.wantKind("it is loaded", s.a.YieldToken(t.Context(), s.ref, 99, "b"), fault.Busy)
			s.must("the remedy", s.a.fake.Undefine(t.Context(), s.ref.Instance))
			s.follow("what is here to end", func() bool {
				_, known := s.a.tracker.Instance(s.ref.Instance)
				return !known && !host.YieldUnproven(s.a.Host, s.ref.Instance)
			})
		})
	}
}

// hungPlacement answers no question where an instance is, until its caller gives up.
type hungPlacement struct {
	host.Placement
	host.Moved
	asked []string
	hung  time.Duration // in all
}

func (p *hungPlacement) SettledElsewhere(ctx context.Context, instance, _ string) (bool, error) {
	began := time.Now()
	<-ctx.Done()
	p.asked, p.hung = append(p.asked, instance), p.hung+time.Since(began)
	return false, ctx.Err()
}

// TestYieldToken_PlacementHangs_TheRoundIsBounded: arrivals wait for the end of a round, whatever the number
// of instances that were given up on one host's word, and each of these has its turn.
func TestYieldToken_PlacementHangs_TheRoundIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "a", "b")
		for i, name := range []string{"vm1", "vm2", "vm3"} {
			m := newMove(l, l.guest("a", name).UUID)
			m.ref.Migration = fmt.Sprintf("77777777-7777-4777-8777-77777777777%d", i)
			m.prepare()
			m.stream()
			l.must("over", operation.DropContext.Ask(t.Context(), m.a, m.ref))
			l.wantKind("one host's word", m.a.YieldToken(t.Context(), m.ref, 99, "b"), fault.Busy)
		}
		l.hosts["a"].Close()
		p := &hungPlacement{Placement: l.placement.of("a")}
		var ends []time.Time
		ctx, stop := context.WithCancel(t.Context())
		a := l.boot("a", func(o *host.Options) {
			o.Placement = p
			o.Round = func(string) {
				if ends = append(ends, time.Now()); len(p.asked) >= 3 {
					stop()
				}
			}
		})
		began := time.Now()
		l.must("follow sides", a.FollowSides(ctx))
		if took := ends[0].Sub(began); took > 6*time.Second {
			t.Errorf("the first round took %v", took)
		}
		if took := time.Since(began); p.hung*2 > took+5*time.Second {
			t.Errorf("asked for %v of %v", p.hung, took)
		}
		slices.Sort(p.asked)
		if each := slices.Compact(p.asked); len(each) != 3 {
			t.Errorf("asked for %v", each)
		}
	})
}

// A host that is gone for good had many guests: each turn waits for it once.
func TestSides_ASilentHostIsToldOnceInATurn(t *testing.T) {
	l := newLab(t, "a")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	calls := 0
	for i, name := range []string{"vm1", "vm2"} {
		v := l.guest("a", name)
		l.must("note word", l.hosts["a"].tracker.NoteWord(t.Context(), claims.Word{
			Instance: v.UUID, Migration: fmt.Sprintf("77777777-7777-4777-8777-77777777777%d", i), Attempt: 1,
			GuestIsAt: "a", Why: "b is scrap", Tell: "b",
		}))
	}
	l.hosts["a"].Close()
	n := l.boot("a", func(o *host.Options) {
		o.Side = func(context.Context, string) (migration.Side, error) {
			calls++
			stop() // in the first turn
			return nil, fault.New(fault.Unavailable, "no route to host b")
		}
	})
	l.must("follow sides", n.FollowSides(ctx))
	if calls != 1 || len(n.tracker.Untold()) != 2 {
		t.Errorf("asked %d times, to be told %v", calls, n.tracker.Untold())
	}
}
