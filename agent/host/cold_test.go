package host_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

var large = topology.Flavor{Name: "large", VCPUs: 2, MemoryMB: 256, DiskGB: 1}

// cold is a cold move from a to b, verb by verb, without a conductor: by the ledger's
// side of it, Placement is none of its business.
type cold struct {
	*lab
	t          *testing.T
	ref        migration.Ref // of the attempt that brings the guest
	back       migration.Ref // of its revert
	a, b       *node
	guest      migration.Guest
	wanted     migration.Wanted
	timeout    time.Duration
	committed  migration.Commit
	handedBack migration.Commit
	copies     []string
}

// newCold plans a move of a guest: a resize where a flavor is named.
func newCold(t *testing.T, l *lab, uuid string, flavor *topology.Flavor) *cold {
	t.Helper()
	c := &cold{lab: l, t: t, ref: refFor(uuid, 1), back: refFor(uuid, 2), a: l.hosts["a"], b: l.hosts["b"], timeout: time.Minute}
	var err error
	c.guest, err = operation.Inspect.Ask(t.Context(), c.a, migration.Ref{Instance: uuid})
	l.must("inspect", err)
	c.wanted, err = operation.PlanChange.Ask(t.Context(), c.a, migration.Ref{Instance: uuid}, migration.Change{Flavor: flavor})
	l.must("plan change", err)
	return c
}

func (c *cold) kind() string {
	if c.wanted.Flavor.Name == c.guest.Flavor.Name {
		return migration.TypeMigration
	}
	return migration.TypeResize
}

func (c *cold) context() migration.Context {
	return migration.Context{
		Source: "a", Destination: "b", OldResources: c.guest.Resources, NewResources: c.wanted.Resources,
		OldFlavor: c.guest.Flavor, NewFlavor: c.wanted.Flavor, PowerState: c.guest.PowerState,
		OldTopology: c.guest.Topology, NewTopology: c.wanted.Topology, OldPCIRequests: c.guest.PCIRequests, NewPCIRequests: c.wanted.PCIRequests,
		OldAssignment: c.guest.Assignment,
	}
}

// step is one verb of a story, by name, with its undo; nil for none.
type step struct {
	name string
	do   func() error
	undo func() error
}

// check asks both hosts whether the guest could move.
func (c *cold) check() error {
	here, err := c.a.Describe(c.t.Context())
	if err != nil {
		return err
	}
	a, err := operation.CheckDestination.Ask(c.t.Context(), c.b, c.ref, migration.CheckRequest{Guest: c.guest, Source: here, Kind: c.kind(), Wanted: &c.wanted})
	if err != nil {
		return err
	}
	s, err := operation.CheckSource.Ask(c.t.Context(), c.a, c.ref, a)
	c.copies = s.CopyDisks
	return err
}

// there are the steps that bring the guest to b, in order.
func (c *cold) there() []step {
	ctx := c.t.Context()
	return []step{
		{"check", c.check, nil},
		{"claim", func() error {
			_, err := operation.Claim.Ask(ctx, c.b, c.ref, migration.ClaimRequest{Guest: c.guest, Context: c.context(), Lease: time.Minute, Kind: c.kind()})
			return err
		}, func() error { return operation.AbortClaim.Ask(ctx, c.b, c.ref) }},
		{"record context", func() error { return operation.RecordContext.Ask(ctx, c.a, c.ref, c.context()) }, func() error { return operation.DropContext.Ask(ctx, c.a, c.ref) }},
		{"prep resize", func() error {
			_, err := operation.PrepResize.Ask(ctx, c.b, c.ref, migration.PrepRequest{Kind: c.kind(), Guest: c.guest, Wanted: c.wanted, CopyDisks: c.copies, Source: "a"})
			return err
		}, func() error { return operation.RollbackPrepResize.Ask(ctx, c.b, c.ref) }},
		{"power off", func() error {
			_, err := operation.PowerOff.Ask(ctx, c.a, c.ref, migration.PowerOffRequest{Timeout: c.timeout, Kind: c.kind(), Destination: "b"})
			return err
		}, func() error { return operation.PowerOn.Ask(ctx, c.a, c.ref) }},
		{"ship disks", c.ship, nil},
		{"hand over", func() (err error) {
			c.committed, err = operation.HandOver.Ask(ctx, c.a, c.ref, migration.HandOverRequest{To: "b"})
			return err
		}, func() error { return operation.KeepGuest.Ask(ctx, c.a, c.ref) }},
		{"accept handed", func() error { return operation.AcceptHanded.Ask(ctx, c.b, c.ref, c.committed) }, nil},
		{"finish resize", func() error { return operation.FinishResize.Ask(ctx, c.b, c.ref) }, nil},
	}
}

// ship sends what is to be shipped, file by file.
func (c *cold) ship() error {
	ctx := c.t.Context()
	p, err := operation.PrepResize.Ask(ctx, c.b, c.ref, migration.PrepRequest{Kind: c.kind(), Guest: c.guest, Wanted: c.wanted, CopyDisks: c.copies, Source: "a"})
	if err != nil || len(p.Files) == 0 {
		return err
	}
	return c.pump(func(string) error { return nil })
}

// confirm ends the move; returning takes the guest back.
func (c *cold) confirm() []step {
	ctx := c.t.Context()
	return []step{
		{"confirm source", func() error { return operation.ConfirmSource.Ask(ctx, c.a, c.ref) }, nil},
		{"confirm destination", func() error { return operation.ConfirmDestination.Ask(ctx, c.b, c.ref) }, nil},
	}
}

func (c *cold) returning() []step {
	ctx := c.t.Context()
	return []step{
		{"await return", func() error { return operation.AwaitReturn.Ask(ctx, c.a, c.back) }, func() error { return operation.CancelReturn.Ask(ctx, c.a, c.back) }},
		{"power off there", func() error {
			_, err := operation.PowerOff.Ask(ctx, c.b, c.back, migration.PowerOffRequest{Timeout: c.timeout, Kind: c.kind(), Destination: "a"})
			return err
		}, func() error { return operation.PowerOn.Ask(ctx, c.b, c.back) }},
		{"hand back", func() (err error) {
			c.handedBack, err = operation.HandOver.Ask(ctx, c.b, c.back, migration.HandOverRequest{To: "a"})
			return err
		}, func() error { return operation.KeepGuest.Ask(ctx, c.b, c.back) }},
		{"accept back", func() error { return operation.AcceptHanded.Ask(ctx, c.a, c.back, c.handedBack) }, nil},
		{"finish revert", func() error { return operation.FinishRevert.Ask(ctx, c.a, c.back) }, nil},
		{"clean up reverted", func() error { return operation.CleanUpReverted.Ask(ctx, c.b, c.back) }, nil},
	}
}

// run does steps up to the one that is named, that one included; all where none is.
func (c *cold) run(steps []step, last string) {
	c.t.Helper()
	for _, s := range steps {
		if err := s.do(); err != nil {
			c.t.Fatalf("%s: %v", s.name, err)
		}
		if s.name == last {
			return
		}
	}
}

func (c *cold) metadata(n *node) domainxml.Metadata {
	c.t.Helper()
	text, err := n.fake.XML(c.t.Context(), c.ref.Instance, driver.Persistent)
	c.must("read the definition", err)
	doc, err := domainxml.Parse(text)
	c.must("parse the definition", err)
	m, _, err := doc.Metadata()
	c.must("read the metadata", err)
	return m
}

// lives checks that the guest is on one host alone, in a state, with its token and claim.
func (c *cold) lives(n *node, want driver.State, flavor topology.Flavor, epoch uint64) {
	c.t.Helper()
	c.state(n.name, c.ref.Instance, want)
	inst, _ := n.tracker.Instance(c.ref.Instance)
	if inst.Token.State != claims.TokenHere || inst.Token.Epoch != epoch || inst.Flavor.Name != flavor.Name {
		c.t.Errorf("on %s: %+v, want epoch %d and flavor %s", n.name, inst, epoch, flavor.Name)
	}
	if m := c.metadata(n); m.Epoch != epoch || m.Flavor.Name != flavor.Name {
		c.t.Errorf("metadata on %s: %+v, want epoch %d and flavor %s", n.name, m, epoch, flavor.Name)
	}
	claim, ok := n.tracker.ByOwner(claims.Owner{Instance: c.ref.Instance, Kind: claims.KindInstance})
	if !ok || claim.State != claims.Bound || claim.Resources.VCPUs != flavor.VCPUs {
		c.t.Errorf("claim on %s: %v %+v", n.name, ok, claim)
	}
}

var powers = []struct {
	name string
	set  func(l *lab, n *node, uuid string) error
	want driver.State
}{
	{"running", func(*lab, *node, string) error { return nil }, driver.Running},
	{"paused", func(l *lab, n *node, uuid string) error { return n.fake.Suspend(l.t.Context(), uuid) }, driver.Paused},
	{"shut off", func(l *lab, n *node, uuid string) error { return n.fake.Destroy(l.t.Context(), uuid) }, driver.ShutOff},
}

// coldLab has a guest without disks on a.
func coldLab(t *testing.T) (*lab, host.InstanceView) {
	t.Helper()
	l := newLab(t, "a", "b")
	return l, l.guest("a", "vm1")
}

// TestCold_ConfirmedResize goes there with each power state, and each verb is asked for
// twice: the guest has its state, the new flavor and one token, and nothing is left.
func TestCold_ConfirmedResize(t *testing.T) {
	for _, p := range powers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			l, v := coldLab(t)
			l.must("set its power state", p.set(l, l.hosts["a"], v.UUID))
			c := newCold(t, l, v.UUID, &large)
			for _, s := range c.there() {
				l.must(s.name, s.do())
				l.must(s.name+" again", s.do())
			}
			c.lives(c.b, p.want, large, 2)
			if n := l.fleet.RunningCopies(v.UUID); n > 1 {
				t.Errorf("%d running copies", n)
			}
			if _, ok := c.b.tracker.Context(c.ref.Migration); !ok {
				t.Error("no context at the destination while it waits to be confirmed")
			}
			held, ok := c.a.tracker.ByOwner(claims.Owner{Instance: v.UUID, Migration: c.ref.Migration, Attempt: 1, Kind: claims.KindResize})
			if !ok || held.State != claims.Held {
				t.Errorf("the source's half: %v %+v", ok, held)
			}
			for _, s := range c.confirm() {
				l.must(s.name, s.do())
				l.must(s.name+" again", s.do())
			}
			got := l.picture()
			delete(got, "allocations")
			want := picture{
				"b domains": {"vm1 " + string(p.want)}, "b claims": {v.UUID + " instance bound 2 vcpus, 256 MiB, 1 GiB"},
				"b instances": {"vm1 here"}, "a files": {"/images"}, "b files": {"/images"},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("after the confirmation (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCold_RevertedResize takes the guest back with each power state: all is as before
// the move, but for the token's epoch.
func TestCold_RevertedResize(t *testing.T) {
	for _, p := range powers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			l, v := coldLab(t)
			l.must("set its power state", p.set(l, l.hosts["a"], v.UUID))
			before := l.picture()
			c := newCold(t, l, v.UUID, &large)
			c.run(c.there(), "")
			for _, s := range c.returning() {
				l.must(s.name, s.do())
				l.must(s.name+" again", s.do())
			}
			c.lives(c.a, p.want, small, 3)
			l.same("after the revert", before)
		})
	}
}

// TestCold_UndoneAfterEachStep breaks a move off after each of its steps, with a restart
// of both agents: all is as before, and what comes late does nothing.
func TestCold_UndoneAfterEachStep(t *testing.T) {
	for i, name := range []string{"claim", "record context", "prep resize", "power off"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, v := coldLab(t)
			before := l.picture()
			c := newCold(t, l, v.UUID, &large)
			c.run(c.there(), name)
			c.a, c.b = l.restart("a"), l.restart("b")
			steps := c.there()
			undo := func() {
				for n := len(steps) - 1; n >= 0; n-- {
					if steps[n].undo != nil {
						l.must("undo "+steps[n].name, steps[n].undo())
					}
				}
			}
			undo()
			undo()
			l.state("a", v.UUID, driver.Running)
			l.same("left behind", before)
			for _, s := range steps[1 : i+2] {
				if err := s.do(); err == nil {
					t.Errorf("%s came late and was done", s.name)
				} else {
					l.wantKind(s.name+" late", err, fault.Forbidden)
				}
			}
			if _, err := operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "b"}); err == nil {
				t.Error("a late hand-over was done")
			}
			l.same("after late verbs", before)
		})
	}
}
