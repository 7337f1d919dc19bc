package host_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/host"
	"berth/agent/host/allocation"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// hollow is a libvirt whose list and look-ups lack guests for a while, and whose
// guests have lost why they run.
type hollow struct {
	driver.Driver
	noList, noDomain atomic.Bool
	forgets, broken  atomic.Bool
	asked, lists     atomic.Int64
}

func (h *hollow) Domains(ctx context.Context) ([]driver.Domain, error) {
	h.lists.Add(1)
	all, err := h.Driver.Domains(ctx)
	if err != nil || h.noList.Load() {
		return nil, err
	}
	for i := range all {
		all[i] = h.forget(all[i])
	}
	return all, nil
}

// Definitions is empty where the list is: the files say what the list says.
func (h *hollow) Definitions(ctx context.Context) (driver.Definitions, error) {
	all, err := h.Driver.(driver.DefinitionReader).Definitions(ctx)
	if h.noList.Load() {
		all.Files = nil
	}
	return all, err
}

func (h *hollow) Domain(ctx context.Context, uuid string) (driver.Domain, error) {
	h.asked.Add(1)
	if h.broken.Load() {
		return driver.Domain{}, fault.New(fault.Unavailable, "libvirt does not answer")
	}
	if h.noDomain.Load() {
		return driver.Domain{}, fault.New(fault.NotFound, "no domain with uuid %s", uuid)
	}
	d, err := h.Driver.Domain(ctx, uuid)
	return h.forget(d), err
}

func (h *hollow) forget(d driver.Domain) driver.Domain {
	if h.forgets.Load() && d.Reason == driver.ReasonMigrated && d.Active() {
		d.Reason = driver.ReasonUnpaused
	}
	return d
}

const wild = "cccccccc-0000-4000-8000-000000000001"

// A list that is empty for a moment, and look-ups that find nothing, give away
// nothing that a guest without a claim uses before a second read has agreed.
func TestStrangers_AreCountedThroughAListThatIsEmptyForAMoment(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	const agree = 200 * time.Millisecond
	l.stranger("a", "wild", wild, nil)
	l.must("start", a.fake.Start(t.Context(), wild, false))
	libvirt := &hollow{Driver: a.fake}
	a.Close()
	a = l.boot("a", func(o *host.Options) { o.Driver, o.Agree, o.Look = libvirt, agree, time.Millisecond })
	l.must("settle", a.Settle(t.Context()))
	used := func() int64 { return 1024 - a.tracker.Usage().Free.MemoryMB }
	if used() != 128 {
		t.Fatalf("%d MiB are counted, want 128", used())
	}
	l.followed("a")
	looks := atomic.Int64{}
	a.fake.Fault(func(call, _ string) error {
		if call == "Domains" {
			looks.Add(1)
		}
		return nil
	})
	round := func() {
		t.Helper()
		end := looks.Load() + 3
		waitFor(t, "a few looks around", func() bool { return looks.Load() > end })
	}
	libvirt.noList.Store(true)
	round()
	if used() != 128 {
		t.Errorf("%d MiB are counted while the list is empty, want 128", used())
	}
	since := time.Now()
	libvirt.noDomain.Store(true)
	time.AfterFunc(60*time.Millisecond, func() { libvirt.noDomain.Store(false); libvirt.noList.Store(false) })
	waitFor(t, "libvirt to find it again", func() bool {
		// A machine too busy for the moment to be one says nothing.
		if used() != 128 && time.Since(since) < agree {
			t.Fatalf("%d MiB are counted after one read without it, want 128", used())
		}
		return !libvirt.noList.Load()
	})
	round()
	libvirt.noDomain.Store(true)
	libvirt.noList.Store(true)
	waitFor(t, "one that is gone for good to be counted no more", func() bool { return used() == 0 })
}

// What cannot be read of a guest without a claim is counted by what the list says,
// and keeps nobody else's start or look.
func TestStrangers_OneThatCannotBeReadIsCounted(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	l.must("settle", a.Settle(t.Context()))
	l.stranger("a", "wild", wild, nil)
	l.must("start", a.fake.Start(t.Context(), wild, false))
	v := l.guest("a", "web")
	a.fake.Fault(func(call, uuid string) error {
		if call == "XML" && uuid == wild {
			return fault.New(fault.Unavailable, "its monitor does not answer")
		}
		return nil
	})
	l.followed("a")
	waitFor(t, "it to be counted", func() bool { return a.tracker.Usage().Free.MemoryMB == 1024-128-small.MemoryMB })
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">2</vcpu>"))
	l.soon("a", v.UUID, "2 vcpus, 128 MiB, 1 GiB by hand")
	a.fake.Fault(nil)
	l.soon("a", wild, "1 vcpus, 128 MiB, 0 GiB")
}

// A guest of another host's that came while nobody looked, and of which neither
// libvirt nor its document says so, is not owned twice.
func TestStrangers_OneThatPlacementHasElsewhereIsItsTokensToFollow(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	a := l.hosts["a"]
	l.stranger("a", "web", wild, nil)
	l.must("start", a.fake.Start(ctx, wild, false))
	_, err := a.Adopt(ctx, "web")
	l.must("adopt", err)
	b := l.hosts["b"]
	l.must("settle b", b.Settle(ctx))
	l.byHand(wild)
	libvirt := &hollow{Driver: b.fake}
	libvirt.forgets.Store(true)
	b.Close()
	b = l.boot("b", func(o *host.Options) { o.Driver, o.Fleet = libvirt, fellows{l.lab, "b", l.silent} })
	l.must("settle b again", b.Settle(ctx))
	l.silent["a"] = true
	l.followed("b")
	waitFor(t, "its arrival to be claimed", func() bool { return len(b.tracker.ByInstance(wild)) > 0 })
	c := b.tracker.ByInstance(wild)[0]
	if _, known := b.tracker.Instance(wild); known || c.Owner.Kind != claims.KindLiveMigration {
		t.Errorf("b owns it by %+v though a's token was not given", c.Owner)
	}
	if inst, _ := a.tracker.Instance(wild); inst.Token.State != claims.TokenHere {
		t.Errorf("a's token is %s", inst.Token.State)
	}
}

func TestFollow_TwoThatChangedNamesAreBothRenamed(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	one, two := l.guest("a", "one"), l.guest("a", "two")
	docs := map[string]string{one.UUID: l.definition("a", one.UUID), two.UUID: l.definition("a", two.UUID)}
	for uuid := range docs {
		l.must("stop", a.fake.Destroy(t.Context(), uuid))
		l.must("undefine", a.fake.Undefine(t.Context(), uuid))
	}
	l.must("define", a.fake.Define(t.Context(), swap("<name>one<", "<name>two<")(docs[one.UUID])))
	l.must("define", a.fake.Define(t.Context(), swap("<name>two<", "<name>one<")(docs[two.UUID])))
	l.followed("a")
	name := func(uuid string) string { inst, _ := a.tracker.Instance(uuid); return inst.Name }
	waitFor(t, "both records to have the names", func() bool { return name(one.UUID) == "two" && name(two.UUID) == "one" })
}

// A Placement that takes its time to say nothing costs one guest's look, not each.
func TestFollow_SilentPlacementHoldsNobodyUp(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	for _, name := range []string{"one", "two"} {
		l.guest("a", name)
	}
	slow := &silentPlacement{placementOf: l.placement.of("a")}
	slow.silent.Store(true)
	a.Close()
	a = l.boot("a", func(o *host.Options) { o.Placement, o.Look = slow, 50*time.Millisecond })
	l.followed("a")
	seen := func() bool {
		for _, c := range a.tracker.List() {
			if c.Seen == nil {
				return false
			}
		}
		return true
	}
	waitFor(t, "every guest to be looked at", seen)
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">2</vcpu>"))
	waitFor(t, "the claim to follow", func() bool { return a.tracker.ByInstance(v.UUID)[0].Resources.VCPUs == 2 })
	asked := slow.asked.Load()
	waitFor(t, "it to be asked again", func() bool { return slow.asked.Load() > asked })
	slow.silent.Store(false)
	l.soon("a", v.UUID, "2 vcpus, 128 MiB, 1 GiB by hand")
}

func TestFollow_AsksASilentPlacementForOneOfMany(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	for _, name := range []string{"one", "two", "three", "four"} {
		l.guest("a", name)
	}
	slow := &silentPlacement{placementOf: l.placement.of("a")}
	slow.silent.Store(true)
	a.Close()
	a = l.boot("a", func(o *host.Options) { o.Placement, o.Look = slow, time.Hour })
	l.followed("a")
	waitFor(t, "every guest to be looked at", func() bool {
		for _, c := range a.tracker.List() {
			if c.Seen == nil {
				return false
			}
		}
		return true
	})
	for _, c := range a.tracker.List() {
		a.fake.ChangeGuest(c.Owner.Instance, swap("<memory unit='MiB'>128<", "<memory unit='MiB'>64<"))
	}
	waitFor(t, "every claim to follow", func() bool {
		for _, c := range a.tracker.List() {
			if !c.ByHand {
				return false
			}
		}
		return true
	})
	// Those that were on their way together may each have asked.
	if n := slow.asked.Load(); n > 4 {
		t.Errorf("it was asked %d times", n)
	}
}

type silentPlacement struct {
	placementOf
	silent atomic.Bool
	asked  atomic.Int64
}

func (s *silentPlacement) PutAllocation(ctx context.Context, a allocation.Allocation) error {
	if s.asked.Add(1); s.silent.Load() {
		return fault.New(fault.Unavailable, "placement does not answer")
	}
	return s.placementOf.PutAllocation(ctx, a)
}

// A claim is released by two reads that agree, both ways of asking, by a definition that is gone, and by
// no less.
func TestFollow_OneReadOfTwoReleasesNothing(t *testing.T) {
	const agree = 300 * time.Millisecond
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	libvirt := &hollow{Driver: a.fake}
	a.Close()
	a = l.boot("a", func(o *host.Options) { o.Driver, o.Look = libvirt, time.Millisecond })
	held := func() bool { _, known := a.tracker.Instance(v.UUID); return known }
	asked := func(n int64) {
		t.Helper()
		end := libvirt.asked.Load() + n
		waitFor(t, "libvirt to be asked", func() bool { return libvirt.asked.Load() >= end })
	}
	stop := l.followed("a")
	libvirt.noDomain.Store(true)
	asked(20)
	if !held() {
		t.Fatal("released though the list has it")
	}
	libvirt.noDomain.Store(false)
	ref := migration.Ref{Migration: "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", Instance: v.UUID, Attempt: 1}
	l.must("record a move", operation.RecordContext.Ask(t.Context(), a, ref, contextOf("a", "b")))
	libvirt.noDomain.Store(true)
	libvirt.noList.Store(true)
	looks := libvirt.lists.Load()
	waitFor(t, "looks at a move", func() bool { return libvirt.lists.Load() > looks+20 })
	if allocated := l.placement.all()[v.UUID].Allocations; !held() || len(allocated) == 0 {
		t.Fatalf("while it moves it is known: %t, and has %v", held(), allocated)
	}
	libvirt.noDomain.Store(false)
	libvirt.noList.Store(false)
	l.must("give the move up", operation.DropContext.Ask(t.Context(), a, ref))
	stop()
	a.Close()
	l.must("power off", a.fake.Destroy(t.Context(), v.UUID)) // of one that runs the process says so

	a = l.boot("a", func(o *host.Options) { o.Driver, o.Agree, o.Look = libvirt, agree, time.Millisecond })
	l.followed("a")
	libvirt.noDomain.Store(true)
	libvirt.noList.Store(true)
	first := time.Now()
	asked(3)
	libvirt.broken.Store(true)
	asked(3)
	waitFor(t, "a while", func() bool { return time.Since(first) > agree+agree/4 })
	again := time.Now()
	libvirt.broken.Store(false)
	waitFor(t, "the claim to be released", func() bool { return !held() })
	if took := time.Since(again); took < agree {
		t.Errorf("released %s after libvirt had failed: the read before that counted", took)
	}
}

func TestStrangers_AreCountedAndAdoptedWhereTheyFit(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	ctx := t.Context()
	old, wide, created := "cccccccc-0000-4000-8000-000000000001", "cccccccc-0000-4000-8000-000000000002", "cccccccc-0000-4000-8000-000000000003"
	l.stranger("a", "old", old, nil)
	l.must("start", a.fake.Start(ctx, old, false))
	l.stranger("a", "idle", "cccccccc-0000-4000-8000-000000000004", nil)
	l.must("settle", a.Settle(ctx))
	free := func() topology.Resources { return a.tracker.Usage().Free }
	whole := topology.Resources{VCPUs: 4, MemoryMB: 1024, DiskGB: 100}
	if want := whole.Sub(topology.Resources{VCPUs: 1, MemoryMB: 128}); free() != want {
		t.Errorf("free is %s beside a guest without a claim, want %s", free(), want)
	}
	l.followed("a")
	// One that fits, and one that does not: that goes on, and is not given away.
	l.stranger("a", "created", created, nil)
	l.must("start", a.fake.Start(ctx, created, false))
	l.soon("a", created, "1 vcpus, 128 MiB, 0 GiB")
	l.stranger("a", "wide", wide, swap("<vcpu>1<", "<vcpu>3<"))
	l.must("start", a.fake.Start(ctx, wide, false))
	named := func(name string) (s host.Stranger, ok bool) {
		for _, s := range a.Strangers() {
			if s.Name == name {
				return s, true
			}
		}
		return s, false
	}
	waitFor(t, "quarantine", func() bool { s, ok := named("wide"); return ok && s.Why != nil })
	if s, _ := named("wide"); fault.KindOf(s.Why) != fault.DoesNotFit || len(fault.ReasonsOf(s.Why)) == 0 {
		t.Errorf("it is in quarantine for %v", s.Why)
	}
	if s, ok := named("old"); !ok || s.Why != nil || l.holds("a", old) != "nothing" {
		t.Errorf("one that ran before is %+v and holds %s", s, l.holds("a", old))
	}
	l.state("a", wide, driver.Running)
	if got := free(); got.VCPUs != 0 {
		t.Errorf("free is %s though five vCPUs of four run", got)
	}
	if _, err := a.Create(ctx, host.CreateRequest{Name: "new", Flavor: small, Kernel: "/boot/vmlinuz"}); fault.KindOf(err) == "" {
		t.Error("a claim was given on what a guest without a claim uses")
	}
	if audit := a.tracker.Audit(); len(audit.Differences) > 0 {
		t.Errorf("the ledger disagrees with itself: %v", audit.Differences)
	}
	// Room is made: it is adopted by itself. A start is a start, whoever ran before.
	l.must("end", a.fake.Destroy(ctx, created))
	l.must("undefine", a.fake.Undefine(ctx, created))
	l.must("end", a.fake.Destroy(ctx, old))
	l.soon("a", wide, "3 vcpus, 128 MiB, 0 GiB")
	l.must("start", a.fake.Start(ctx, old, false))
	l.soon("a", old, "1 vcpus, 128 MiB, 0 GiB")
	waitFor(t, "no stranger to be left", func() bool { return len(a.Strangers()) == 0 && free().VCPUs == 0 })
}

// A guest that runs here unknown, and whose document says that Berth manages it, has
// its token on another host: it is claimed as one that arrives, and not owned anew.
func TestStrangers_OneOfAnotherHostIsNotTakenOver(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	a, b := l.hosts["a"], l.hosts["b"]
	l.followed("b")
	waitFor(t, "the first look", func() bool { // what runs then is left alone
		verbs, err := b.store.List(ctx, "verbs")
		return err == nil && len(verbs) > 0
	})
	g := l.guest("a", "web")
	text := l.definition("a", g.UUID)
	l.must("stop", a.fake.Destroy(ctx, g.UUID))
	l.silent["a"] = true
	l.must("define", b.fake.Define(ctx, text))
	l.must("start", b.fake.Start(ctx, g.UUID, false))
	waitFor(t, "its claim", func() bool {
		claim := b.tracker.ByInstance(g.UUID)
		return len(claim) == 1 && claim[0].State == claims.Arriving && b.External().Foreign(claim[0].Owner)
	})
	ref := l.arrival("b", g.UUID)
	l.wantKind("take it over while its owner is silent", b.External().FollowArrival(ctx, ref), fault.Unavailable)
	if inst, known := b.tracker.Instance(g.UUID); known {
		t.Errorf("b owns it: %+v", inst)
	}
	l.state("b", g.UUID, driver.Running)
}
