package claims_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store/storetest"
	"berth/topology"
)

func TestTracker_ClaimIsDurableWithItsContext(t *testing.T) {
	b := newBench(t, "host-b")
	mc := &claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", NewResources: small,
		NewFlavor: guest("i1").Flavor, OldPowerState: "running"}
	got := must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: moveOwner("i1", "m1", 1), Resources: small, Context: mc, Lease: 10 * time.Second}))
	if got.ID == "" || len(got.Ticket) != 64 || got.State != claims.Pending || got.Lease.Length != 10*time.Second {
		t.Errorf("claim %+v", got)
	}
	if got.Redacted().Ticket != "" || got.Ticket == "" {
		t.Error("Redacted keeps the ticket, or takes it from the claim itself")
	}
	b.restart()
	again, ok := b.Get(got.ID)
	if !ok {
		t.Fatal("lost by a crash after the answer")
	}
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("after the crash (-answered +found):\n%s", diff)
	}
	if diff := cmp.Diff(mc, again.Context); diff != "" {
		t.Errorf("context (-want +got):\n%s", diff)
	}
}

func TestTracker_ClaimIsSafeToRepeat(t *testing.T) {
	b := newBench(t, "h")
	r := claims.Request{Owner: moveOwner("i1", "m1", 1), Resources: small}
	first := must[claims.Claim](t)(b.Claim(ctx, r))
	commits := b.store.Commits()
	second := must[claims.Claim](t)(b.Claim(ctx, r))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("second answer (-first +second):\n%s", diff)
	}
	if b.store.Commits() != commits {
		t.Error("the repetition wrote something")
	}
	wantUsed(t, b, small)
	r.Resources.VCPUs++
	_, err := b.Claim(ctx, r)
	wantKind(t, err, fault.Exists)
}

func TestTracker_ClaimRefusesWithEveryReason(t *testing.T) {
	b := newBench(t, "h")
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("i1"), Resources: topology.Resources{VCPUs: 3, MemoryMB: 3000, DiskGB: 39}}))
	want := topology.Resources{VCPUs: 5, MemoryMB: 1000, DiskGB: 2}
	_, err := b.Claim(ctx, claims.Request{Owner: instanceOwner("i2"), Resources: want})
	wantKind(t, err, fault.DoesNotFit)
	var codes []string
	for _, r := range fault.ReasonsOf(err) {
		codes = append(codes, r.Code)
	}
	if diff := cmp.Diff([]string{"vcpu_over_host", "memory_short", "disk_short"}, codes); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
	wantKind(t, b.Check(want), fault.DoesNotFit)
	wantNil(t, b.Check(topology.Resources{VCPUs: 1, MemoryMB: 584, DiskGB: 1}))
	wantKind(t, b.Check(topology.Resources{VCPUs: 1, MemoryMB: 585, DiskGB: 1}), fault.DoesNotFit)
	wantKind(t, b.CheckClaim(claims.Request{Owner: instanceOwner("i1"), Resources: small}), fault.Exists)
	if len(b.List()) != 1 {
		t.Error("a refusal left something behind")
	}
}

func TestTracker_RefuseTellsTheReason(t *testing.T) {
	b := newBench(t, "h")
	b.Refuse("no inventory was ever read: /sys/devices/system/node/node0/cpumap: input/output error")
	_, err := b.Claim(ctx, claims.Request{Owner: instanceOwner("i1"), Resources: small})
	wantKind(t, err, fault.Unavailable)
	if !strings.Contains(err.Error(), "cpumap") {
		t.Errorf("error %v does not tell the reason", err)
	}
	must[claims.Claim](t)(b.Adopt(ctx, guest("i2"), claims.Found{Resources: small}))
	b.Allow()
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("i1"), Resources: small}))
}

func TestTracker_InvalidRequests(t *testing.T) {
	b := newBench(t, "h")
	for name, r := range map[string]claims.Request{
		"no instance":           {Owner: instanceOwner(""), Resources: small},
		"a slash":               {Owner: instanceOwner("a/b"), Resources: small},
		"no kind":               {Owner: claims.Owner{Instance: "i"}, Resources: small},
		"instance with a move":  {Owner: claims.Owner{Instance: "i", Migration: "m", Kind: claims.KindInstance}, Resources: small},
		"move without a number": {Owner: moveOwner("i", "m", 0), Resources: small},
		"no memory":             {Owner: instanceOwner("i"), Resources: topology.Resources{VCPUs: 1}},
		"negative disk":         {Owner: instanceOwner("i"), Resources: topology.Resources{VCPUs: 1, MemoryMB: 1, DiskGB: -1}},
		"somebody's context":    {Owner: moveOwner("i", "m", 1), Resources: small, Context: &claims.MigrationContext{Migration: "other", Instance: "i"}},
	} {
		if _, err := b.Claim(ctx, r); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
}

func TestTracker_AnInstanceHasOnePlaceHere(t *testing.T) {
	b := newBench(t, "h")
	must[claims.Claim](t)(b.Adopt(ctx, guest("lives"), claims.Found{Resources: small}))
	_, err := b.Claim(ctx, claims.Request{Owner: moveOwner("lives", "m1", 1), Resources: small})
	wantKind(t, err, fault.Exists)
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: moveOwner("comes", "m1", 1), Resources: small}))
	_, err = b.Claim(ctx, claims.Request{Owner: moveOwner("comes", "m2", 1), Resources: small})
	wantKind(t, err, fault.Busy)
	_, err = b.Claim(ctx, claims.Request{Owner: instanceOwner("comes"), Resources: small})
	wantKind(t, err, fault.Busy)
	_, err = b.Adopt(ctx, guest("comes"), claims.Found{Resources: small})
	wantKind(t, err, fault.Busy)
	wantUsed(t, b, small.Add(small))
}

func TestTracker_AbortReleasesAndKeepsTheLateClaimOut(t *testing.T) {
	b := newBench(t, "h")
	r := claims.Request{Owner: moveOwner("i1", "m1", 2), Resources: small, Step: "claim-destination"}
	must[claims.Claim](t)(b.Claim(ctx, r))
	ref := refOf(r.Owner, "claim-destination")
	for range 2 {
		wantNil(t, b.Abort(ctx, ref))
	}
	wantUsed(t, b, topology.Resources{})
	b.restart()
	for attempt, want := range map[int]fault.Kind{1: fault.Forbidden, 2: fault.Forbidden, 3: ""} {
		late := r
		late.Owner.Attempt = attempt
		_, err := b.Claim(ctx, late)
		if got := fault.KindOf(err); got != want {
			t.Errorf("attempt %d: %v, want %q", attempt, err, want)
		}
	}
}

func TestTracker_AbortOfWhatNeverCameLeavesATombstone(t *testing.T) {
	b := newBench(t, "h")
	o := moveOwner("i1", "m1", 1)
	wantNil(t, b.Abort(ctx, refOf(o, "")))
	_, err := b.Claim(ctx, claims.Request{Owner: o, Resources: small})
	wantKind(t, err, fault.Forbidden)
	for _, f := range []func(context.Context, claims.Owner) (claims.Claim, error){b.Renew, b.Arrive, b.Bind} {
		_, err := f(ctx, o)
		wantKind(t, err, fault.Forbidden)
	}
}

func TestTracker_StatesFollowTheTable(t *testing.T) {
	type verb func(*bench, claims.Owner) error
	claim := func(f func(*bench) func(context.Context, claims.Owner) (claims.Claim, error)) verb {
		return func(b *bench, o claims.Owner) error { _, err := f(b)(ctx, o); return err }
	}
	verbs := map[string]verb{
		"renew":   claim(func(b *bench) func(context.Context, claims.Owner) (claims.Claim, error) { return b.Renew }),
		"arrive":  claim(func(b *bench) func(context.Context, claims.Owner) (claims.Claim, error) { return b.Arrive }),
		"bind":    claim(func(b *bench) func(context.Context, claims.Owner) (claims.Claim, error) { return b.Bind }),
		"hold":    claim(func(b *bench) func(context.Context, claims.Owner) (claims.Claim, error) { return b.Hold }),
		"abort":   func(b *bench, o claims.Owner) error { return b.Abort(ctx, refOf(o, "")) },
		"release": func(b *bench, o claims.Owner) error { return b.Release(ctx, o) },
	}
	reach := map[claims.State][]string{
		claims.Pending: nil, claims.Arriving: {"arrive"}, claims.Bound: {"bind"}, claims.Held: {"bind", "hold"},
	}
	const gone, no = claims.State("gone"), claims.State("refused")
	// Of a rebuild, whose claim keeps its owner.
	for from, row := range map[claims.State]map[string]claims.State{
		claims.Pending:  {"renew": claims.Pending, "arrive": claims.Arriving, "bind": claims.Bound, "hold": claims.Held, "abort": gone, "release": no},
		claims.Arriving: {"renew": claims.Arriving, "arrive": claims.Arriving, "bind": claims.Bound, "hold": no, "abort": gone, "release": no},
		claims.Bound:    {"renew": claims.Bound, "arrive": claims.Bound, "bind": claims.Bound, "hold": claims.Held, "abort": no, "release": gone},
		claims.Held:     {"renew": claims.Held, "arrive": no, "bind": claims.Bound, "hold": claims.Held, "abort": no, "release": gone},
	} {
		for name, want := range row {
			b := newBench(t, "h")
			o := claims.Owner{Instance: "i", Migration: "m", Attempt: 1, Kind: claims.KindRebuild}
			must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small}))
			for _, v := range reach[from] {
				wantNil(t, verbs[v](b, o))
			}
			err := verbs[name](b, o)
			b.restart() // what is told is what is on the disk
			c, ok := b.ByOwner(o)
			got := c.State
			switch {
			case err != nil:
				wantKind(t, err, fault.Forbidden)
				got = no
			case !ok:
				got = gone
			case (c.Lease != nil) != (got == claims.Pending):
				t.Errorf("%s a %s claim: lease %v in state %s", name, from, c.Lease, got)
			}
			if got != want {
				t.Errorf("%s a %s claim: %s, want %s (%v)", name, from, got, want, err)
			}
		}
	}
}

func TestTracker_BindMakesItTheInstancesClaim(t *testing.T) {
	b := newBench(t, "h")
	o := moveOwner("i1", "m1", 1)
	first := must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small,
		Context: &claims.MigrationContext{Migration: "m1", Instance: "i1"}}))
	must[claims.Claim](t)(b.Arrive(ctx, o))
	for range 2 {
		c := must[claims.Claim](t)(b.Bind(ctx, o))
		if c.ID != first.ID || c.Owner != instanceOwner("i1") || c.State != claims.Bound || c.Ticket != "" || c.Context != nil || *c.BoundFrom != o {
			t.Errorf("bound claim %+v", c)
		}
		b.restart()
	}
	wantKind(t, b.Abort(ctx, refOf(o, "")), fault.Forbidden)
	if got := b.ByMigration("m1"); len(got) != 1 || got[0].ID != first.ID {
		t.Errorf("by migration after bind: %v", got)
	}
	wantUsed(t, b, small)
	for range 2 {
		wantNil(t, b.Release(ctx, instanceOwner("i1")))
	}
	wantUsed(t, b, topology.Resources{})
}

func TestTracker_LeasesOnTheBootClock(t *testing.T) {
	b := newBench(t, "h")
	const lease = 30 * time.Second
	for i, o := range []claims.Owner{moveOwner("pending", "m1", 1), moveOwner("arriving", "m2", 1), instanceOwner("bound")} {
		must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small, Lease: lease}))
		switch i {
		case 1:
			must[claims.Claim](t)(b.Arrive(ctx, o))
		case 2:
			must[claims.Claim](t)(b.Bind(ctx, o))
		}
	}
	states := func() map[string]claims.State {
		out := map[string]claims.State{}
		for _, c := range b.List() {
			out[c.Owner.Instance] = c.State
		}
		return out
	}
	all := map[string]claims.State{"pending": claims.Pending, "arriving": claims.Arriving, "bound": claims.Bound}
	without := map[string]claims.State{"arriving": claims.Arriving, "bound": claims.Bound}
	expire := func(when string, want map[string]claims.State) {
		t.Helper()
		must[[]claims.Claim](t)(b.Expire(ctx))
		if diff := cmp.Diff(want, states()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	b.clock.advance(lease - 1)
	expire("just before the end", all)
	must[claims.Claim](t)(b.Renew(ctx, moveOwner("pending", "m1", 1)))
	b.clock.advance(lease - 1)
	expire("renewed", all)
	b.restart()
	b.clock.advance(lease - 1)
	expire("one full lease again after a restart", all)
	b.clock.advance(1)
	expire("over", without)
	_, err := b.Arrive(ctx, moveOwner("pending", "m1", 1))
	wantKind(t, err, fault.NotFound)

	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: moveOwner("pending", "m1", 1), Resources: small, Lease: time.Hour}))
	b.clock.reboot()
	b.restart()
	if diff := cmp.Diff(without, states()); diff != "" {
		t.Errorf("after a reboot (-want +got):\n%s", diff)
	}
}

func TestTracker_RebootOnAFullDiskStartsAndDropsLater(t *testing.T) {
	b := newBench(t, "h")
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("i1"), Resources: small}))
	b.clock.reboot()
	b.store = b.store.Crash()
	b.failCommits(storetest.Fail)
	b.open()
	wantUsed(t, b, small) // not free while its release is not durable
	b.healCommits()
	must[[]claims.Claim](t)(b.Expire(ctx))
	wantUsed(t, b, topology.Resources{})
}

func TestTracker_RunExpiresAndStops(t *testing.T) {
	b := newBench(t, "h")
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("i1"), Resources: small, Lease: 10 * time.Second}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.Run(running) }()
	<-b.clock.slept // its first look is over
	b.clock.advance(10 * time.Second)
	<-b.clock.slept // and the second
	wantUsed(t, b, topology.Resources{})
	stop()
	wantNil(t, <-ended)
}

func TestTracker_AdoptNeverRefusesForRoom(t *testing.T) {
	b := newBench(t, "h")
	fits := must[claims.Claim](t)(b.Adopt(ctx, guest("fits"), claims.Found{Resources: small}))
	large := topology.Resources{VCPUs: 64, MemoryMB: 100_000, DiskGB: 0}
	forced := must[claims.Claim](t)(b.Adopt(ctx, guest("large"), claims.Found{Resources: large}))
	if fits.Forced || !forced.Forced || forced.State != claims.Bound {
		t.Errorf("forced: %v and %v", fits.Forced, forced.Forced)
	}
	b.restart()
	u := b.Usage()
	want := claims.Usage{Capacity: capacity, Used: small.Add(large), Free: topology.Resources{DiskGB: 30}, Forced: []string{"large"}}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	wantKind(t, b.Check(small), fault.DoesNotFit)
	if i, ok := b.Instance("large"); !ok || !i.Adopted || i.Token.State != claims.TokenHere || i.Token.Epoch != 1 {
		t.Errorf("adopted instance %+v", i)
	}
	// The claim follows the guest.
	c := must[claims.Claim](t)(b.Adopt(ctx, guest("large"), claims.Found{Resources: small}))
	if c.Forced || c.ID != forced.ID || c.Resources != small {
		t.Errorf("after the guest shrank: %+v", c)
	}
	wantUsed(t, b, small.Add(small))
}

func TestTracker_AFailedCommitTakesTheReservationBack(t *testing.T) {
	for _, outcome := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
		b := newBench(t, "h")
		o := moveOwner("i1", "m1", 1)
		b.failCommits(outcome)
		_, err := b.Claim(ctx, claims.Request{Owner: o, Resources: small})
		wantKind(t, err, fault.Unavailable)
		if !errors.Is(err, storetest.ErrCommit) || len(b.List()) != 0 || b.Usage().Free != (topology.Resources{VCPUs: 8, MemoryMB: 3584, DiskGB: 40}) {
			t.Errorf("after a failed claim: %v, %v, %+v", err, b.List(), b.Usage())
		}
		b.healCommits()
		must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small}))
		must[claims.Claim](t)(b.Bind(ctx, o))
		b.failCommits(outcome)
		wantKind(t, b.Release(ctx, instanceOwner("i1")), fault.Unavailable)
		wantUsed(t, b, small)
		_, err = b.Adopt(ctx, guest("i1"), claims.Found{Resources: small.Add(small)})
		wantKind(t, err, fault.Unavailable)
		wantUsed(t, b, small)
		b.healCommits()
		wantNil(t, b.Release(ctx, instanceOwner("i1")))
		b.restart()
		wantUsed(t, b, topology.Resources{})
	}
}

func TestTracker_EndedContextChangesNothing(t *testing.T) {
	b := newBench(t, "h")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := b.Claim(ended, claims.Request{Owner: instanceOwner("i1"), Resources: small})
	wantKind(t, err, fault.Unavailable)
	if b.store.Commits() != 0 {
		t.Error("something was written")
	}
}

func TestOpen_NamesARecordThatCannotBeRead(t *testing.T) {
	m := storetest.NewMemory()
	wantNil(t, m.Put(ctx, "claims", "c1", []byte(`{"claim":"c1","owner":`)))
	_, err := claims.Open(ctx, claims.Options{Store: m, Runtime: newClock(), Host: "h"})
	wantKind(t, err, fault.Internal)
	if !strings.Contains(err.Error(), "claims/c1") {
		t.Errorf("error %v does not name the record", err)
	}
}
