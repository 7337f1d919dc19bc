package host_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"berth/agent/host"
	"berth/agent/host/allocation"
	"berth/agent/host/external"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// later is a runtime whose boot clock a test moves on.
type later struct {
	*clock
	by *time.Duration
}

func (l later) Boot() runtime.BootTime {
	b := l.clock.Boot()
	b.Since += *l.by
	return b
}

// fellows asks the other hosts of a lab, as agents do over the network.
type fellows struct {
	l      *lab
	name   string
	silent map[string]bool
}

func (f fellows) TakeToken(ctx context.Context, ref migration.Ref, _ string) (migration.Commit, bool, error) {
	for name, n := range f.l.hosts {
		if name == f.name {
			continue
		}
		if f.silent[name] {
			return migration.Commit{}, false, fault.New(fault.Unavailable, "host %s is silent", name)
		}
		c, err := n.External().ReleaseOwnership(ctx, ref, f.name)
		if !errors.Is(err, fault.NotFound) {
			return c, err == nil, err
		}
	}
	return migration.Commit{}, false, nil
}

func (f fellows) HeldElsewhere(ctx context.Context, instance string) (bool, error) {
	held, err := f.l.placement.Allocations(ctx, instance)
	delete(held.Allocations, "rp-"+f.name)
	return len(held.Allocations) > 0, err
}

func (f fellows) TakeAllocation(ctx context.Context, a allocation.Allocation) error {
	for name := range f.l.hosts {
		if err := f.l.placement.of(name).DeleteAllocation(ctx, a.Consumer); err != nil {
			return err
		}
	}
	return f.l.placement.of(f.name).PutAllocation(ctx, a)
}

// owners is the guard's side of a host, which a test breaks.
type owners struct {
	fail      error
	withdrawn []string
}

func (o *owners) Withdraw(instance string) (func(), error) {
	if o.fail != nil {
		return nil, o.fail
	}
	o.withdrawn = append(o.withdrawn, instance)
	return func() {}, nil
}

func (o *owners) Kick() {}

// foreignLab is a lab whose hosts take in guests of foreign migrations.
type foreignLab struct {
	*lab
	clock  time.Duration
	silent map[string]bool
	owners map[string]*owners
}

func newForeignLab(t *testing.T) *foreignLab {
	l := &foreignLab{lab: newLab(t, "a", "b"), silent: map[string]bool{}, owners: map[string]*owners{}}
	for name, n := range l.hosts {
		n.Close()
		n.store = n.store.Crash()
		l.owners[name] = &owners{}
		l.boot(name, func(o *host.Options) {
			o.Fleet, o.Owners, o.Runtime = fellows{l.lab, name, l.silent}, l.owners[name], later{l.rt, &l.clock}
		})
	}
	return l
}

// migrate is `virsh migrate`: it sends what libvirt's hook answers.
func (l *foreignLab) migrate(from, to, uuid, document string) {
	l.t.Helper()
	definition, err := l.hosts[from].fake.XML(l.t.Context(), uuid, driver.Persistent)
	l.must("read the definition", err)
	l.must("migrate", l.hosts[from].fake.Migrate(l.t.Context(), uuid, driver.Migration{
		DestinationURI: "qemu+tls://" + to + "/system", DestinationXML: document, PersistentXML: definition,
	}))
}

func (l *foreignLab) document(on, uuid string) string {
	l.t.Helper()
	text, err := l.hosts[on].fake.XML(l.t.Context(), uuid, driver.Migratable)
	l.must("read the document", err)
	return text
}

// arrival is the ref of the claim that waits for a guest.
func (l *foreignLab) arrival(on, uuid string) migration.Ref {
	l.t.Helper()
	for _, c := range l.hosts[on].tracker.ByInstance(uuid) {
		if c.Owner.Migration != "" {
			if !l.hosts[on].External().Foreign(c.Owner) || c.State != claims.Arriving {
				l.t.Fatalf("the claim is %s, foreign %t", c.State, l.hosts[on].External().Foreign(c.Owner))
			}
			return migration.Ref{Migration: c.Owner.Migration, Instance: uuid, Attempt: c.Owner.Attempt}
		}
	}
	l.t.Fatalf("no claim on %s waits for %s", on, uuid)
	return migration.Ref{}
}

// TestForeign_TheWayBackReplacesWhatWasLeft: virsh migrate without --undefinesource leaves a
// definition behind. The ledger there says to whom the token went, and that host may bring
// the guest back; no other may, and not while something of it is saved or lives.
func TestForeign_TheWayBackReplacesWhatWasLeft(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	v := l.guest("a", "web")
	a, b := l.hosts["a"], l.hosts["b"]
	document, err := b.External().ClaimArrival(ctx, l.document("a", v.UUID))
	l.must("claim on arrival", err)
	l.migrate("a", "b", v.UUID, document)
	l.must("follow", b.External().FollowArrival(ctx, l.arrival("b", v.UUID)))
	l.state("a", v.UUID, driver.ShutOff)
	g, err := operation.Inspect.Ask(ctx, b, migration.Ref{Instance: v.UUID})
	l.must("inspect", err)
	from, err := b.Describe(ctx)
	l.must("describe", err)
	wanted, err := operation.PlanChange.Ask(ctx, b, migration.Ref{Instance: v.UUID}, migration.Change{})
	l.must("plan", err)
	back := refFor(v.UUID, 1)
	back.Migration = "77777777-7777-4777-8777-777777777777"
	check := func(name string) []string {
		t.Helper()
		source := from
		source.Name = name
		_, live := operation.CheckDestination.Ask(ctx, a, back, migration.CheckRequest{Guest: g, Source: source, Kind: migration.TypeLiveMigration})
		_, cold := operation.CheckDestination.Ask(ctx, a, back, migration.CheckRequest{Guest: g, Source: source, Kind: migration.TypeMigration, Wanted: &wanted})
		if !slices.Equal(codes(live), codes(cold)) {
			t.Errorf("live %v, cold %v", live, cold)
		}
		return codes(live)
	}
	wants := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	wants("the way back", check("b"))
	wants("from a host that has not the token", check("c"), "domain_exists")
	a.fake.AddSnapshot(v.UUID, "s1")
	wants("beside a snapshot", check("b"), "has_snapshot")
	a.fake.DropSnapshots(v.UUID)
	l.must("start", a.fake.Start(ctx, v.UUID, true))
	wants("beside a second copy", check("b"), "domain_exists")
	a.fake.Forget(v.UUID)
	wants("beside a process that libvirtd lost", check("b"), "qemu_runs")
	a.fake.EndForgotten(v.UUID)
	wants("the way back again", check("b"))
}

func TestForeign_TokenFollowsByItsGiversSurrender(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	a, b := l.hosts["a"], l.hosts["b"]

	document, err := b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	l.must("look before it comes", b.External().FollowArrival(ctx, ref))
	l.migrate("a", "b", g.UUID, document)

	// While the giver is silent the guest runs, and is not this host's.
	l.silent["a"] = true
	l.wantKind("follow while the source is silent", b.External().FollowArrival(ctx, ref), fault.Unavailable)
	if _, known := b.tracker.Instance(g.UUID); known {
		t.Error("b owns the guest though nobody gave it")
	}
	l.state("b", g.UUID, driver.Running)
	delete(l.silent, "a")

	l.must("follow", b.External().FollowArrival(ctx, ref))
	inst, _ := b.tracker.Instance(g.UUID)
	if inst.Token.State != claims.TokenHere || inst.Token.Epoch != 2 || inst.ProjectID == "" {
		t.Errorf("b has %+v", inst)
	}
	list := b.tracker.ByInstance(g.UUID)
	if len(list) != 1 || list[0].State != claims.Bound || list[0].Owner.Kind != claims.KindInstance {
		t.Errorf("claims on b: %+v", list)
	}
	if got := l.placement.all()[g.UUID].Allocations; len(got) != 1 || got["rp-b"] == nil {
		t.Errorf("allocations %v", got)
	}
	// The source keeps what keeps the guest from being started there.
	left, _ := a.tracker.Instance(g.UUID)
	if left.Token.State != claims.TokenSurrendered || left.Token.Holder != "b" || len(a.tracker.ByInstance(g.UUID)) > 0 {
		t.Errorf("a has %+v and claims %+v", left, a.tracker.ByInstance(g.UUID))
	}
	if !slices.Contains(l.owners["a"].withdrawn, g.UUID) {
		t.Error("its owner file was not withdrawn before the token left")
	}
	// And forgets it with its definition.
	l.must("undefine", a.fake.Undefine(ctx, g.UUID))
	_, err = a.External().Hook(ctx, ref.Migration, external.PhasePost, external.HookRequest{})
	l.must("post-live-migration", err)
	if left, known := a.tracker.Instance(g.UUID); known {
		t.Errorf("a still has %+v", left)
	}
	l.must("follow what is done", b.External().FollowArrival(ctx, ref))
}

func TestForeign_AllocationIsWrittenWhenPlacementIsBack(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	b := l.hosts["b"]
	document, err := b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	l.migrate("a", "b", g.UUID, document)
	l.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
	l.wantKind("follow without Placement", b.External().FollowArrival(ctx, ref), fault.Unavailable)
	if inst, _ := b.tracker.Instance(g.UUID); inst.Token.State != claims.TokenHere {
		t.Errorf("b has %+v: bookkeeping kept it from its guest", inst)
	}

	// Its own loop comes back to it, also after a restart.
	b.Close()
	b.store = b.store.Crash()
	b = l.boot("b", func(o *host.Options) { o.Fleet = fellows{l.lab, "b", l.silent} })
	l.placement.breakWith(nil)
	following, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- b.External().FollowArrivals(following) }()
	patient, cancel := l.rt.WithTimeout(ctx, patience)
	defer cancel()
	for l.placement.all()[g.UUID].Allocations["rp-b"] == nil {
		if l.rt.Sleep(patient, time.Millisecond) != nil {
			t.Fatal("the allocation is not b's")
		}
	}
	stop()
	l.must("stop", <-done)
	l.must("follow what is done", b.External().FollowArrival(ctx, ref))
	if got := l.picture()["b memories"]; len(got) > 0 || len(b.Unsettled()) > 0 {
		t.Errorf("b remembers %v, and is unsettled for %v", got, b.Unsettled())
	}
	if got := l.placement.all()[g.UUID].Allocations; len(got) != 1 {
		t.Errorf("allocations %v", got)
	}
}

func TestForeign_GuestThatNobodyOwnsIsAdoptedOnArrival(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	// As a host without Berth: it knows nothing.
	l.hosts["a"].Close()
	l.hosts["a"].store = newForeignLab(t).hosts["a"].store
	l.boot("a", nil)

	b := l.hosts["b"]
	document, err := b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	l.migrate("a", "b", g.UUID, document)
	l.must("follow", b.External().FollowArrival(ctx, ref))
	if inst, _ := b.tracker.Instance(g.UUID); inst.Token.State != claims.TokenHere || inst.Token.Epoch < 2 {
		t.Errorf("b has %+v, want an epoch above that of the document", inst)
	}
}

func TestForeign_RefusedBeforeAnythingMoves(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	l.guest("b", "big1")
	for _, name := range []string{"big2", "big3", "big4"} {
		l.guest("b", name)
	}
	before := l.picture()
	_, err := l.hosts["b"].External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.wantKind("claim on a full host", err, fault.DoesNotFit)
	if len(fault.ReasonsOf(err)) == 0 {
		t.Errorf("%v lists no reasons", err)
	}
	l.hosts["b"].mode = host.ModeObserve
	_, err = l.hosts["b"].External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.wantKind("claim in mode observe", err, fault.Forbidden)
	l.hosts["b"].mode = "manage"
	_, err = l.hosts["b"].External().ClaimArrival(ctx, "<domain/>")
	l.wantKind("claim for a document that is none", err, fault.Invalid)
	_, err = l.hosts["a"].External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.wantKind("claim where it lives", err, fault.Forbidden)
	l.same("after the refusals", before)
}

func TestForeign_ClaimEndsWhenNothingComes(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	before := l.picture()
	b := l.hosts["b"]
	_, err := b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	for _, at := range []time.Duration{0, 29 * time.Second} {
		l.clock = at
		l.must("look", b.External().FollowArrival(ctx, ref))
		if l.arrival("b", g.UUID) != ref {
			t.Fatal("it has another claim")
		}
	}
	// A second arrival uses the same claim, and has its own time.
	_, err = b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim again", err)
	l.clock = 40 * time.Second
	l.must("look", b.External().FollowArrival(ctx, ref))
	if l.arrival("b", g.UUID) != ref {
		t.Fatal("the second arrival has another claim")
	}
	l.clock = 2 * time.Minute
	l.must("look when its time is over", b.External().FollowArrival(ctx, ref))
	l.same("when nothing came", before)
	if !b.External().Undone(claims.Owner{Instance: g.UUID, Migration: ref.Migration, Attempt: 1, Kind: claims.KindLiveMigration}) {
		t.Error("it could still arrive: there is no tombstone")
	}
}

func TestForeign_Surrender(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	a := l.hosts["a"]
	ask := func(uuid string) (migration.Commit, error) {
		return a.External().ReleaseOwnership(ctx, migration.Ref{Migration: "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", Instance: uuid, Attempt: 1}, "b")
	}
	_, err := ask("0f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01")
	l.wantKind("a guest that is not known", err, fault.NotFound)

	g := l.guest("a", "web")
	_, err = ask(g.UUID)
	l.wantKind("a guest that runs here", err, fault.InDoubt)
	if got := codes(err); !slices.Equal(got, []string{"runs_twice"}) {
		t.Errorf("reasons %v", got)
	}
	l.state("a", g.UUID, driver.Running)
	l.must("power it off", a.fake.Destroy(ctx, g.UUID))
	_, err = ask(g.UUID)
	l.wantKind("a guest that was shut off otherwise", err, fault.InDoubt)
	if inst, _ := a.tracker.Instance(g.UUID); inst.Token.State != claims.TokenHere {
		t.Fatalf("the token is gone: %+v", inst.Token)
	}
	l.must("undefine", a.fake.Undefine(ctx, g.UUID))
	l.owners["a"].fail = errors.New("its owner file stays")
	_, err = ask(g.UUID)
	l.wantKind("a guest whose owner file stays", err, fault.Unavailable)
	l.owners["a"].fail = nil
	first, err := ask(g.UUID)
	l.must("surrender a guest that is gone", err)
	again, err := ask(g.UUID)
	l.must("surrender again", err)
	if first != again || first.To != "b" || first.Epoch != 2 {
		t.Errorf("commits %+v and %+v", first, again)
	}
	_, err = a.External().ReleaseOwnership(ctx, migration.Ref{Migration: first.Migration, Instance: g.UUID, Attempt: 1}, "c")
	if err == nil {
		t.Error("the token was given twice")
	}
}

// A host that asks first does not get what a tool has given to another.
func TestForeign_Surrender_ToTheHostThatAToolNamed(t *testing.T) {
	const tool = "5f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01"
	l := newForeignLab(t)
	ctx := t.Context()
	a := l.hosts["a"]
	g := l.guest("a", "web")
	ref := migration.Ref{Migration: "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", Instance: g.UUID, Attempt: 1}
	_, err := a.External().Hook(ctx, tool, external.PhaseResizeInstance, external.HookRequest{Instance: g.UUID, Destination: "b"})
	l.must("say where it goes", err)
	l.must("power it off", a.fake.Destroy(ctx, g.UUID))
	l.must("undefine", a.fake.Undefine(ctx, g.UUID))
	_, err = a.External().ReleaseOwnership(ctx, ref, "c")
	if l.wantKind("a host that is no party", err, fault.Forbidden); !slices.Equal(codes(err), []string{"not_a_party"}) {
		t.Errorf("reasons %v", codes(err))
	}
	if inst, _ := a.tracker.Instance(g.UUID); inst.Token.State != claims.TokenHere {
		t.Fatalf("the token is gone: %+v", inst.Token)
	}
	// Taken back, any host that has it gets it, as before.
	_, err = a.External().Hook(ctx, tool, external.PhaseFinishRevertResize, external.HookRequest{Instance: g.UUID})
	l.must("take it back", err)
	_, err = a.External().ReleaseOwnership(ctx, ref, "c")
	l.must("ask again", err)
}

func TestHook_ToolsClaimAhead(t *testing.T) {
	const id, other = "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", "5f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01"
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	b := l.hosts["b"]
	before := l.picture()
	pre := external.HookRequest{Instance: g.UUID, Source: "a", DomainXML: l.document("a", g.UUID)}
	hook := func(on, id, phase string, r external.HookRequest) (external.HookAnswer, error) {
		return l.hosts[on].External().Hook(ctx, id, phase, r)
	}

	for _, bad := range []struct{ id, phase string }{{"web", external.PhasePreLive}, {id, "begin"}, {"", external.PhasePost}} {
		_, err := hook("b", bad.id, bad.phase, pre)
		l.wantKind(bad.id+" "+bad.phase, err, fault.Invalid)
	}
	_, err := hook("b", id, external.PhasePostAtDestination, external.HookRequest{})
	l.wantKind("after a move that was never claimed", err, fault.Forbidden)
	first, err := hook("b", id, external.PhasePreLive, pre)
	l.must("pre-live-migration", err)
	again, err := hook("b", id, external.PhasePreLive, pre)
	l.must("pre-live-migration again", err)
	if first.Claim == "" || first.Claim != again.Claim || first.DestinationXML == "" || first.DestinationXML != again.DestinationXML || first.MigrateURI != "tcp://b" || first.ExpiresAt == nil {
		t.Errorf("answers %+v and %+v", first, again)
	}
	_, err = hook("b", other, external.PhasePreLive, pre)
	l.wantKind("another migration of the same guest", err, fault.Busy)
	_, err = hook("b", id, external.PhasePostAtDestination, external.HookRequest{})
	l.wantKind("after a move that did not come", err, fault.Busy)
	for range 2 {
		_, err = hook("b", id, external.PhaseRollbackAtDestination, external.HookRequest{})
		l.must("rollback", err)
	}
	l.same("after the rollback", before)
	_, err = hook("b", id, external.PhasePreLive, pre)
	l.wantKind("pre-live-migration after its rollback", err, fault.Forbidden)

	// The rollback may overtake it.
	_, err = hook("b", other, external.PhaseRollbackAtDestination, external.HookRequest{})
	l.must("rollback of what never began", err)
	_, err = hook("b", other, external.PhasePreLive, pre)
	l.wantKind("pre-live-migration after the rollback that overtook it", err, fault.Forbidden)
	l.same("after all refusals", before)

	// One that succeeds, with the claim used by the arrival.
	const good = "6f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01"
	answer, err := hook("b", good, external.PhasePreLive, pre)
	l.must("pre-live-migration", err)
	document, err := b.External().ClaimArrival(ctx, answer.DestinationXML)
	l.must("arrive", err)
	if l.arrival("b", g.UUID).Migration != good {
		t.Error("the arrival did not use the claim that was made ahead")
	}
	l.migrate("a", "b", g.UUID, document)
	_, err = hook("b", good, external.PhaseRollbackAtDestination, external.HookRequest{})
	l.wantKind("rollback of a guest that runs here", err, fault.Busy)
	l.state("b", g.UUID, driver.Running)
	for range 2 {
		_, err = hook("b", good, external.PhasePostAtDestination, external.HookRequest{})
		l.must("post-live-migration-at-destination", err)
		_, err = hook("a", good, external.PhasePost, external.HookRequest{})
		l.must("post-live-migration", err)
	}
	_, err = hook("b", good, external.PhaseRollbackAtDestination, external.HookRequest{})
	l.wantKind("rollback after the guest has come", err, fault.Forbidden)
	_, err = hook("a", good, external.PhaseRollback, external.HookRequest{})
	l.wantKind("keep a guest whose token has left", err, fault.Forbidden)
}

func TestHook_SourceKeepsTheGuest(t *testing.T) {
	const id = "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01"
	l := newForeignLab(t)
	g := l.guest("a", "web")
	a := l.hosts["a"]
	_, err := a.External().Hook(t.Context(), id, external.PhaseRollback, external.HookRequest{})
	l.must("rollback-live-migration", err)
	l.must("undefine", errors.Join(a.fake.Destroy(t.Context(), g.UUID), a.fake.Undefine(t.Context(), g.UUID)))
	_, err = a.External().ReleaseOwnership(t.Context(), migration.Ref{Migration: id, Instance: g.UUID, Attempt: 1}, "b")
	l.wantKind("surrender after the rollback", err, fault.Forbidden)
	if inst, _ := a.tracker.Instance(g.UUID); inst.Token.State != claims.TokenHere {
		t.Errorf("the token is gone: %+v", inst.Token)
	}
}

func TestStarted_AdoptedWhereItFits(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	a, b := l.hosts["a"], l.hosts["b"]
	var uuids []string
	for _, name := range []string{"one", "two", "three", "four"} {
		uuids = append(uuids, l.guest("a", name).UUID)
	}
	// The same guests on a host that knows nothing of them.
	for _, uuid := range uuids {
		text, err := a.fake.XML(ctx, uuid, driver.Persistent)
		l.must("read", err)
		l.must("stop", errors.Join(a.fake.Destroy(ctx, uuid), a.fake.Undefine(ctx, uuid)))
		l.must("define", errors.Join(b.fake.Define(ctx, text), b.fake.Start(ctx, uuid, false)))
		l.must("forget", a.tracker.DeleteInstance(ctx, uuid))
	}
	l.guest("b", "resident")
	for _, uuid := range uuids[:3] {
		l.must("adopt "+uuid, b.AdoptStarted(ctx, uuid, false))
	}
	l.wantKind("adopt one too many", b.AdoptStarted(ctx, uuids[3], false), fault.DoesNotFit)
	l.state("b", uuids[3], driver.Running)
	if _, known := b.tracker.Instance(uuids[3]); known {
		t.Error("it was adopted though it does not fit")
	}
	l.must("stop it", b.fake.Destroy(ctx, uuids[3]))
	l.must("look at one that has stopped", b.AdoptStarted(ctx, uuids[3], false))
}

// TestStarted_ArrivalIsClaimedWhereItRuns has a pinned guest run on a host whose claim
// would choose other CPUs: until its token has come, nobody else may get its own.
func TestStarted_ArrivalIsClaimedWhereItRuns(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	for name, n := range l.hosts {
		n.Close()
		l.boot(name, func(o *host.Options) {
			o.Fleet, o.Owners = fellows{l.lab, name, l.silent}, l.owners[name]
			roomy(o)
		})
		n.put(t, "/boot/vmlinuz", "kernel", 0o644)
	}
	a, b := l.hosts["a"], l.hosts["b"]
	pinned := topology.Flavor{Name: "pinned", VCPUs: 1, MemoryMB: 64, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated"}}
	create := func(on *node, name string) string {
		t.Helper()
		v, err := on.Create(ctx, host.CreateRequest{Name: name, Flavor: pinned, ProjectID: "project", UserID: "user", Kernel: "/boot/vmlinuz", Start: true})
		l.must("create "+name, err)
		return v.UUID
	}
	pins := func(on *node, uuid string) (out []int) {
		for _, c := range on.tracker.ByInstance(uuid) {
			for _, cell := range c.Assignment.Cells {
				for _, p := range cell.Pins {
					out = append(out, p.CPU)
				}
			}
		}
		return out
	}
	first, second := create(a, "first"), create(a, "second")
	uses := pins(a, second)
	if slices.Equal(uses, pins(a, first)) {
		t.Fatalf("both are pinned to %v", uses)
	}
	// It runs on b, by whatever way it came, on the CPUs that it had; a is silent.
	text, err := a.fake.XML(ctx, second, driver.Persistent)
	l.must("read", err)
	l.must("stop", errors.Join(a.fake.Destroy(ctx, second), a.fake.Undefine(ctx, second)))
	l.must("define", errors.Join(b.fake.Define(ctx, text), b.fake.Start(ctx, second, false)))
	l.silent["a"] = true
	l.must("look at it", b.AdoptStarted(ctx, second, true))
	if got := pins(b, second); !slices.Equal(got, uses) {
		t.Fatalf("its claim has CPUs %v, it uses %v", got, uses)
	}
	for _, name := range []string{"third", "fourth"} {
		if got := pins(b, create(b, name)); slices.Contains(got, uses[0]) {
			t.Errorf("%s was given CPU %v, which is in use", name, got)
		}
	}
}

func TestRecordContext_WaitsForTheOwnerFileToGo(t *testing.T) {
	l := newForeignLab(t)
	g := l.guest("a", "web")
	a := l.hosts["a"]
	ref := migration.Ref{Migration: "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", Instance: g.UUID, Attempt: 1}
	c := migration.Context{Source: "a", Destination: "b"}
	l.owners["a"].fail = errors.New("it stays")
	l.wantKind("record while the owner file stays", operation.RecordContext.Ask(t.Context(), a, ref, c), fault.Unavailable)
	if len(a.tracker.Contexts()) > 0 {
		t.Error("the move was recorded though the file says that the guest may start here")
	}
	l.owners["a"].fail = nil
	l.must("record", operation.RecordContext.Ask(t.Context(), a, ref, c))
	if !slices.Equal(l.owners["a"].withdrawn, []string{g.UUID}) {
		t.Errorf("withdrawn %v", l.owners["a"].withdrawn)
	}
}
