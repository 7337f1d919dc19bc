package fleettest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// The names of the suite: a host that dies, two that may get its guest, and the guest.
const (
	source, first, second = "s.example", "d.example", "e.example"
	guest                 = "6b4f2c1e-0000-4000-8000-000000000001"
	bootOne, bootTwo      = "boot-1", "boot-2"
)

// fixture is a fleet with a guest on a host.
type fixture struct {
	t *testing.T
	*fleet.Records
	store fleet.Store
}

func newFixture(t *testing.T, s fleet.Store) fixture {
	return fixture{t, fleet.New(s, &runtime.System{}), s}
}

// host writes a host.
func (f fixture) host(name string, selfFence bool) {
	f.t.Helper()
	if err := f.PutHost(f.t.Context(), fleet.Host{Name: name, ProviderUUID: "p-" + name, Boot: bootOne, SelfFence: selfFence, Description: json.RawMessage(`{"a":1}`)}); err != nil {
		f.t.Fatalf("put host %s: %v", name, err)
	}
}

// instance writes the guest, and wants it to be taken.
func (f fixture) instance(host string, epoch uint64) {
	f.t.Helper()
	if ahead, err := f.PutInstance(f.t.Context(), instance(host, epoch)); err != nil || ahead != nil {
		f.t.Fatalf("put instance of %s with epoch %d: ahead is %+v, %v", host, epoch, ahead, err)
	}
}

func instance(host string, epoch uint64) fleet.Instance {
	return fleet.Instance{UUID: guest, Name: "vm1", Host: host, Epoch: epoch, Guest: json.RawMessage(`{"uuid":"` + guest + `"}`)}
}

// dead declares the source dead by an operator's word.
func (f fixture) dead() {
	f.t.Helper()
	if _, err := f.DeclareDead(f.t.Context(), operatorsWord()); err != nil {
		f.t.Fatalf("declare dead: %v", err)
	}
}

func operatorsWord() fleet.Death {
	return fleet.Death{Host: source, Proof: fleet.ProofOperator, By: "operator:alice", Because: "it burnt"}
}

// asked is what a conductor asks after it has read both records.
func (f fixture) asked(migration string, to string) fleet.TakeOver {
	f.t.Helper()
	in, record, err := f.Instance(f.t.Context(), guest)
	if err != nil {
		f.t.Fatal(err)
	}
	_, death, err := f.Dead(f.t.Context(), source)
	if err != nil {
		f.t.Fatal(err)
	}
	return fleet.TakeOver{Instance: guest, Migration: migration, Attempt: 1, Source: source, To: to, Epoch: in.Epoch, Record: record, Death: death}
}

func (f fixture) refused(what string, err error, kind fault.Kind, codes ...string) {
	f.t.Helper()
	var got []string
	for _, r := range fault.ReasonsOf(err) {
		got = append(got, r.Code)
	}
	if !errors.Is(err, kind) || len(codes) > 0 && !cmp.Equal(codes, got) {
		f.t.Errorf("%s: %v with reasons %v, want %v with %v", what, err, got, kind, codes)
	}
}

// TestRecords is what the protocol does over every store. leased says that the store has leases.
func TestRecords(t *testing.T, open Open, leased bool) {
	for name, f := range map[string]func(fixture){
		"HostsWriteThemselves": hostsWriteThemselves, "ADeathStandsUntilItsHostReturns": aDeathStands,
		"ARecordAheadIsToldAndStays": aRecordAhead, "TakeOverGivesTheGuestOnce": takeOverOnce,
		"GiveUpEndsAnAttempt": giveUp, "AForgottenHostHoldsNothing": forget,
	} {
		t.Run(name, func(t *testing.T) { f(newFixture(t, open(t)())) })
	}
	t.Run("ALeaseThatIsOverProvesADeathOfAHostThatFencesItself", func(t *testing.T) {
		client := open(t)
		if f := newFixture(t, client()); leased {
			deathByLease(f, newFixture(t, client()))
		} else {
			_, err := f.Alive(t.Context())
			f.refused("alive", err, fault.Forbidden, "no_leases")
			_, err = f.DeclareDeadByLease(t.Context(), source, first, "operator:alice")
			f.refused("declare dead", err, fault.Forbidden, "no_leases")
		}
	})
	t.Run("OfThoseThatRaceOneHasTheGuest", func(t *testing.T) {
		for round := range 4 {
			for _, r := range races {
				client := open(t)
				f := newFixture(t, client())
				var run race
				run.prepare(f)
				var actors []func()
				for _, name := range r {
					rec := fleet.New(client(), &runtime.System{})
					actors = append(actors, func() { run.act(t.Context(), name, rec) })
				}
				together(actors)
				if err := run.judge(t.Context(), f.Records); err != nil {
					t.Errorf("round %d of %v: %v", round, r, err)
				}
			}
		}
	})
}

func hostsWriteThemselves(f fixture) {
	ctx := f.t.Context()
	f.host(source, false)
	f.host(first, true)
	before := mustGet(f.t, f.store, "hosts/"+source).Revision
	f.host(source, false)
	if now := mustGet(f.t, f.store, "hosts/"+source).Revision; now != before {
		f.t.Error("a host that is as it is written was written again")
	}
	if err := f.Armed(ctx, source, bootOne, leaseLength, witnesses); err != nil {
		f.t.Errorf("armed: %v", err)
	}
	f.refused("armed before it wrote itself", f.Armed(ctx, "x", bootOne, leaseLength, witnesses), fault.NotFound)
	want := []fleet.Host{
		{Name: first, ProviderUUID: "p-" + first, Boot: bootOne, SelfFence: true, Description: json.RawMessage(`{"a":1}`)},
		{Name: source, ProviderUUID: "p-" + source, Boot: bootOne, SelfFence: true, Lease: leaseLength, Witnesses: witnesses, Description: json.RawMessage(`{"a":1}`)},
	}
	got, err := f.Hosts(ctx)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(fleet.Host{}, "UpdatedAt")); diff != "" || err != nil {
		f.t.Errorf("hosts (-want +got):\n%s%v", diff, err)
	}
	for _, name := range []string{"", "a/b", "../x"} {
		f.refused("a host called "+name, f.PutHost(ctx, fleet.Host{Name: name}), fault.Invalid)
	}
}

func aDeathStands(f fixture) {
	ctx := f.t.Context()
	lost := operatorsWord()
	lost.Host, lost.Boot = "lost.example", bootOne
	_, err := f.DeclareDead(ctx, lost)
	f.refused("declare a host dead whose record is gone since", err, fault.Forbidden, "host_came_back")
	lost.Boot = ""
	if d, err := f.DeclareDead(ctx, lost); err != nil || d.Host != lost.Host {
		f.t.Errorf("declare a host dead that has no record: %+v, %v", d, err)
	}
	if was, err := f.Return(ctx, lost.Host, bootTwo); err != nil || was == nil {
		f.t.Errorf("it returns: %+v, %v", was, err)
	}
	f.host(source, true)
	_, _, err = f.Dead(ctx, source)
	f.refused("the death of one that lives", err, fault.NotFound)
	fenced := fleet.Death{Host: source, Proof: fleet.ProofFenced, By: "operator:bob", Because: "off", Boot: "boot-0"}
	_, err = f.DeclareDead(ctx, fenced)
	f.refused("declare dead what was started again since", err, fault.Forbidden, "host_came_back")
	fenced.Boot = bootOne
	death, err := f.DeclareDead(ctx, fenced)
	if err != nil || death.Boot != bootOne || death.At.IsZero() || death.Proof != fleet.ProofFenced {
		f.t.Fatalf("declared %+v, %v", death, err)
	}
	again, err := f.DeclareDead(ctx, operatorsWord())
	if diff := cmp.Diff(death, again); diff != "" || err != nil {
		f.t.Errorf("declared again: %v (-stands +told):\n%s", err, diff)
	}
	if all, err := f.Deaths(ctx); err != nil || len(all) != 1 {
		f.t.Errorf("deaths are %v, %v", all, err)
	}
	f.refused("a dead host writes itself", f.PutHost(ctx, fleet.Host{Name: source, Boot: bootTwo}), fault.Forbidden, "declared_dead")
	f.refused("a dead host arms its watchdog", f.Armed(ctx, source, bootTwo, leaseLength, witnesses), fault.Forbidden, "declared_dead")
	_, err = f.PutInstance(ctx, instance(source, 1))
	f.refused("a dead host writes a guest", err, fault.Forbidden, "declared_dead")

	was, err := f.Return(ctx, source, bootTwo)
	if err != nil || was == nil || was.Proof != fleet.ProofFenced {
		f.t.Fatalf("return: %+v, %v", was, err)
	}
	_, _, err = f.Dead(ctx, source)
	f.refused("the death of one that is back", err, fault.NotFound)
	if h, err := f.Host(ctx, source); err != nil || h.Boot != bootTwo || h.SelfFence || string(h.Description) != `{"a":1}` {
		f.t.Errorf("back as %+v, %v: it must not count as fencing itself in a boot in which nothing was armed", h, err)
	}
	rev := mustGet(f.t, f.store, "hosts/"+source).Revision
	if was, err = f.Return(ctx, source, bootTwo); err != nil || was != nil || mustGet(f.t, f.store, "hosts/"+source).Revision != rev {
		f.t.Errorf("return again: %+v, %v", was, err)
	}
	_, err = f.DeclareDead(ctx, fenced)
	f.refused("declare it dead by what was done to it before", err, fault.Forbidden, "host_came_back")
	if _, err = f.Return(ctx, "new.example", bootOne); err != nil {
		f.t.Errorf("a host that nobody knows returns: %v", err)
	}
}

func aRecordAhead(f fixture) {
	ctx := f.t.Context()
	f.instance(source, 3)
	_, rev, err := f.Instance(ctx, guest)
	if err != nil {
		f.t.Fatal(err)
	}
	f.instance(source, 3)
	if _, now, _ := f.Instance(ctx, guest); now != rev {
		f.t.Error("a guest that is as it is written was written again")
	}
	_, err = f.PutInstance(ctx, instance(source, 2))
	f.refused("an older epoch of the same host", err, fault.Forbidden, "ledger_behind")
	_, err = f.PutInstance(ctx, instance(first, 3))
	f.refused("the same epoch of another", err, fault.Forbidden, "epoch_twice")
	f.instance(first, 4) // it moved
	ahead, err := f.PutInstance(ctx, instance(source, 3))
	if err != nil || ahead == nil || ahead.Host != first || ahead.Epoch != 4 {
		f.t.Errorf("the old host wrote: ahead is %+v, %v", ahead, err)
	}
	if err := f.DropInstance(ctx, guest, source, 3); err != nil {
		f.t.Errorf("drop another's: %v", err)
	}
	if mine, err := f.Instances(ctx, first); err != nil || len(mine) != 1 {
		f.t.Errorf("%s has %v, %v", first, mine, err)
	}
	if mine, err := f.Instances(ctx, source); err != nil || len(mine) != 0 {
		f.t.Errorf("%s has %v, %v", source, mine, err)
	}
	for range 2 {
		if err := f.DropInstance(ctx, guest, first, 4); err != nil {
			f.t.Errorf("drop: %v", err)
		}
	}
	if all, err := f.Instances(ctx, ""); err != nil || len(all) != 0 {
		f.t.Errorf("there is %v, %v", all, err)
	}
}

func takeOverOnce(f fixture) {
	ctx := f.t.Context()
	f.host(source, false)
	f.instance(source, 7)
	f.dead()
	ask, other := f.asked("m-1", first), f.asked("m-2", second)
	got, err := f.TakeOver(ctx, ask)
	if err != nil || got.Host != first || got.Epoch != 8 || got.Migration != "m-1" || got.Attempt != 1 || string(got.Guest) == "" {
		f.t.Fatalf("taken over: %+v, %v", got, err)
	}
	_, err = f.TakeOver(ctx, other)
	f.refused("a second one", err, fault.Forbidden, "taken_over")
	later := ask
	later.Attempt = 2
	_, err = f.TakeOver(ctx, later)
	f.refused("another attempt of the same move", err, fault.Forbidden, "taken_over")
	f.refused("giving up what was done", f.GiveUp(ctx, ask), fault.Forbidden, "was_taken_over")
	left, err := f.Evacuated(ctx, source)
	want := []fleet.Evacuated{{Migration: "m-1", Attempt: 1, Instance: guest, Name: "vm1", Source: source, To: first, Epoch: 8}}
	if diff := cmp.Diff(want, left, cmpopts.IgnoreFields(fleet.Evacuated{}, "At")); diff != "" || err != nil {
		f.t.Fatalf("left to clean up: %v (-want +got):\n%s", err, diff)
	}
	same := func(when string) {
		f.t.Helper()
		again, err := f.TakeOver(ctx, ask)
		if err != nil || again.Host != first || again.Epoch != 8 || again.Migration != "m-1" {
			f.t.Errorf("asked again %s: %+v, %v", when, again, err)
		}
	}
	same("at once")
	f.instance(first, 8) // as its new host has it
	same("after the new host wrote it")
	if was, err := f.Return(ctx, source, bootTwo); err != nil || was == nil {
		f.t.Fatalf("return: %+v, %v", was, err)
	}
	if ahead, err := f.PutInstance(ctx, instance(source, 7)); err != nil || ahead == nil || ahead.Host != first || ahead.Epoch != 8 {
		f.t.Errorf("the source came back: ahead is %+v, %v", ahead, err)
	}
	same("after the source came back")
	for range 2 {
		if err := f.CleanedUp(ctx, left[0]); err != nil {
			f.t.Errorf("cleaned up: %v", err)
		}
	}
	same("after it cleaned up")
	if left, err := f.Evacuated(ctx, source); err != nil || len(left) != 0 {
		f.t.Errorf("left to clean up: %v, %v", left, err)
	}
	f.instance(second, 9) // it moved on
	_, err = f.TakeOver(ctx, ask)
	f.refused("asked again when all is long over", err, fault.Forbidden)
	_, err = f.TakeOver(ctx, fleet.TakeOver{Instance: guest, Migration: "m-3", Source: source, To: first})
	f.refused("without having read", err, fault.Invalid)
}

func giveUp(f fixture) {
	ctx := f.t.Context()
	f.host(source, false)
	f.host(second, false)
	f.instance(source, 7)
	f.dead()
	ask := f.asked("m-1", first)
	for range 2 {
		if err := f.GiveUp(ctx, ask); err != nil {
			f.t.Fatalf("give up: %v", err)
		}
	}
	_, err := f.TakeOver(ctx, ask)
	f.refused("after giving up", err, fault.Forbidden, "record_changed")
	if in, _, err := f.Instance(ctx, guest); err != nil || in.Host != source || in.Epoch != 7 {
		f.t.Errorf("the guest is %+v, %v", in, err)
	}
	ask = f.asked("m-1", second)
	ask.Attempt = 2
	if _, err := f.DeclareDead(ctx, fleet.Death{Host: second, Proof: fleet.ProofOperator}); err != nil {
		f.t.Fatal(err)
	}
	_, err = f.TakeOver(ctx, ask)
	f.refused("to a dead host", err, fault.Forbidden, "destination_dead")
	ask.To = first
	if was, err := f.Return(ctx, source, bootTwo); err != nil || was == nil {
		f.t.Fatalf("return: %+v, %v", was, err)
	}
	_, err = f.TakeOver(ctx, ask)
	f.refused("after the source came back", err, fault.Forbidden, "source_returned")
	f.dead()
	_, err = f.TakeOver(ctx, ask)
	f.refused("by a death of before", err, fault.Forbidden, "death_changed")
	if err := f.DropInstance(ctx, guest, source, 7); err != nil {
		f.t.Fatal(err)
	}
	_, err = f.TakeOver(ctx, ask)
	f.refused("of a guest that was deleted", err, fault.Forbidden, "record_changed", "death_changed")
	if err := f.GiveUp(ctx, ask); err != nil {
		f.t.Errorf("give up what was deleted: %v", err)
	}
}

func forget(f fixture) {
	ctx := f.t.Context()
	f.host(source, false)
	f.instance(source, 7)
	f.refused("one that lives", f.Forget(ctx, source), fault.NotFound)
	f.dead()
	before := f.asked("m-0", second)
	if _, err := f.TakeOver(ctx, f.asked("m-1", first)); err != nil {
		f.t.Fatal(err)
	}
	f.refused("with a half left", f.Forget(ctx, source), fault.Busy)
	left, err := f.Evacuated(ctx, source)
	if err != nil || len(left) != 1 {
		f.t.Fatalf("left: %v, %v", left, err)
	}
	if err := f.CleanedUp(ctx, left[0]); err != nil {
		f.t.Fatal(err)
	}
	for range 2 {
		if err := f.Forget(ctx, source); err != nil {
			f.t.Errorf("forget: %v", err)
		}
	}
	_, err = f.TakeOver(ctx, before)
	f.refused("by a death that was forgotten since", err, fault.Forbidden)
	_, err = f.Host(ctx, source)
	f.refused("the host's record", err, fault.NotFound)
	if d, _, err := f.Dead(ctx, source); err != nil || !d.Forgotten {
		f.t.Errorf("its death is %+v, %v", d, err)
	}
	if was, err := f.Return(ctx, source, bootTwo); err != nil || was == nil || !was.Forgotten {
		f.t.Errorf("it returns all the same: %+v, %v", was, err)
	}
}

// leaseLength is that of the leases in these tests; no time goes by but the clock's.
const leaseLength fleet.Seconds = 60

// witnesses are the hosts that a host which fences itself asks, in these tests.
var witnesses = []string{first}

// aheadClock is a boot clock that a test moves on.
type aheadClock struct {
	runtime.System
	ahead time.Duration
}

func (c *aheadClock) Boot() runtime.BootTime {
	now := c.System.Boot()
	now.Since += c.ahead
	return now
}

// deathByLease: a lease that is over has to be seen so for its whole length, without a break,
// since it can end early while its host lives and is about to renew it.
func deathByLease(f, hosts fixture) {
	ctx := f.t.Context()
	clock := &aheadClock{}
	f.Records = fleet.New(f.store, clock)
	declare := func() error {
		_, err := f.DeclareDeadByLease(ctx, source, first, "operator:alice")
		return err
	}
	watch := func(d time.Duration) {
		f.t.Helper()
		for ; d > 0; d -= 10 * time.Second {
			clock.ahead += min(d, 10*time.Second)
			if err := f.WatchLapsed(ctx); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	left := func(what string, least, most time.Duration) {
		f.t.Helper()
		err := declare()
		f.refused(what, err, fault.Busy, fleet.ReasonLeaseOverLately)
		for _, r := range fault.ReasonsOf(err) {
			if d, err := time.ParseDuration(r.Have); err != nil || d < least || d > most {
				f.t.Errorf("%s: it takes %q more, want %s to %s", what, r.Have, least, most)
			}
		}
	}
	f.refused("of a host that nobody knows", declare(), fault.NotFound)
	f.host(source, false)
	f.refused("of one without a watchdog", declare(), fault.Forbidden, "no_self_fence")
	if err := hosts.Armed(ctx, source, bootOne, leaseLength, witnesses); err != nil {
		f.t.Fatal(err)
	}
	_, err := f.DeclareDeadByLease(ctx, source, "returned", "operator:alice")
	f.refused("by a host that it does not ask", err, fault.Forbidden, "not_a_witness")
	if h, err := f.Host(ctx, source); err != nil || h.Lease != leaseLength {
		f.t.Errorf("its record has a lease of %d, %v", h.Lease, err)
	}
	alive := func() {
		f.t.Helper()
		if err := hosts.KeepAlive(ctx, source, bootOne, leaseLength); err != nil {
			f.t.Fatal(err)
		}
	}
	over := func() {
		f.t.Helper()
		if err := hosts.Leave(ctx, source); err != nil {
			f.t.Fatal(err)
		}
	}
	alive()
	if alive, err := f.Alive(ctx); err != nil || !cmp.Equal(alive, map[string]string{source: bootOne}) {
		f.t.Errorf("alive are %v, %v", alive, err)
	}
	f.refused("of one that lives", declare(), fault.Forbidden, "lease_stands")
	watch(10 * time.Second)
	over()
	left("of one whose lease is over at once", time.Minute, time.Minute)
	watch(50 * time.Second)
	left("after the most of a length", 5*time.Second, 10*time.Second)
	alive()
	watch(10 * time.Second)
	over()
	left("it was there in between", time.Minute, time.Minute)
	clock.ahead += time.Minute
	left("nobody has looked in between", time.Minute, time.Minute)
	// Another process, and one that has forgotten, begin anew.
	f.Records = fleet.New(f.store, clock)
	left("by another", time.Minute, time.Minute)
	watch(time.Minute + time.Second) // the first look was a moment after the test's clock
	if err := declare(); err != nil {
		f.t.Errorf("of one whose lease is over: %v", err)
	}
	if d, _, err := f.Dead(ctx, source); err != nil || d.Proof != fleet.ProofSelfFence || d.By != "operator:alice" || d.Boot != bootOne {
		f.t.Errorf("its death is %+v, %v", d, err)
	}
	if _, err := f.NoQuorum(ctx); err == nil {
		f.t.Error("a store that serves says that it does not")
	}
}

// together runs actors at once.
func together(actors []func()) {
	done := make(chan struct{}, len(actors))
	for _, act := range actors {
		go func() {
			defer func() { done <- struct{}{} }()
			act()
		}()
	}
	for range actors {
		<-done
	}
}

// races are the actors that meet.
var races = [][]string{
	{"take-1", "take-2", "return"}, {"take-1", "give-up-1", "return"}, {"take-1", "give-up-1"}, {"take-1", "take-2"},
	{"take-1", "return"}, {"take-1", "drop"}, {"take-1", "forget"}, {"take-1", "take-2", "give-up-1"},
}

// race is one meeting over a dead host's guest, and what each actor was told.
type race struct {
	asks [2]fleet.TakeOver
	took [2]error
	gave error // give-up-1's
	// kept: the source has come back, and was not told to give way.
	returned, kept bool
	forgot         error
	other          error // of an actor that must not fail
}

func (r *race) prepare(f fixture) {
	f.host(source, false)
	f.instance(source, 7)
	f.dead()
	r.asks = [2]fleet.TakeOver{f.asked("m-1", first), f.asked("m-2", second)}
	r.took = [2]error{errNotAsked, errNotAsked}
	r.gave, r.forgot = errNotAsked, errNotAsked
}

var errNotAsked = errors.New("not asked")

// act is what one actor does. Each writes fields of its own.
func (r *race) act(ctx context.Context, name string, rec *fleet.Records) {
	switch name {
	case "take-1":
		_, r.took[0] = rec.TakeOver(ctx, r.asks[0])
	case "take-2":
		_, r.took[1] = rec.TakeOver(ctx, r.asks[1])
	case "give-up-1":
		r.gave = rec.GiveUp(ctx, r.asks[0])
	case "return":
		if _, err := rec.Return(ctx, source, bootTwo); err != nil {
			r.other = err
			return
		}
		ahead, err := rec.PutInstance(ctx, instance(source, 7))
		r.returned, r.kept, r.other = true, ahead == nil, err
	case "drop":
		r.other = rec.DropInstance(ctx, guest, source, 7)
	case "forget":
		r.forgot = rec.Forget(ctx, source)
	}
}

// judge holds what the actors were told against what there is, and against each other.
func (r *race) judge(ctx context.Context, rec *fleet.Records) error {
	if r.other != nil {
		return r.other
	}
	owners := 0
	for i, err := range r.took {
		switch {
		case err == nil:
			owners++
			in, _, err := rec.Instance(ctx, guest)
			if err != nil || in.Host != r.asks[i].To || in.Epoch != 8 {
				return fmt.Errorf("%s took it over, and the record says %+v, %v", r.asks[i].To, in, err)
			}
		case !errors.Is(err, fault.Forbidden) && !errors.Is(err, errNotAsked):
			return err
		}
	}
	if r.kept {
		owners++
	}
	if owners > 1 {
		return fmt.Errorf("%d hosts believe that they have the guest: %v, the source kept it: %v", owners, r.took, r.kept)
	}
	if r.returned && owners == 0 {
		return fmt.Errorf("nobody has the guest: %v, and the source was told to give way", r.took)
	}
	switch {
	case errors.Is(r.gave, errNotAsked):
	case r.gave == nil && r.took[0] == nil:
		return fmt.Errorf("an attempt was given up, and took the guest over")
	case r.gave != nil && (!errors.Is(r.gave, fault.Forbidden) || r.took[0] != nil):
		return fmt.Errorf("give up: %v, and the take-over: %v", r.gave, r.took[0])
	}
	if r.forgot == nil {
		if left, err := rec.Evacuated(ctx, source); err != nil || len(left) > 0 {
			return fmt.Errorf("a forgotten host has %v left, %v", left, err)
		}
	}
	return nil
}
