package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/agent/host/fileusers"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

const (
	rootFile  = "/images/root.qcow2"
	baseImage = "/images/base.qcow2"
	newImage  = "/images/new.raw"
)

var (
	floats2 = topology.Flavor{Name: "floats", VCPUs: 2, MemoryMB: 128, DiskGB: 2}
	pinned3 = topology.Flavor{Name: "pinned", VCPUs: 3, MemoryMB: 256, DiskGB: 4, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:1"}}
	pinned6 = topology.Flavor{Name: "pinned6", VCPUs: 6, MemoryMB: 512, DiskGB: 4, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2"}}
)

// changeBed is one host with disks in memory and a guest that is changed there, by the
// verbs that a conductor would ask for.
type changeBed struct {
	*lab
	a     *node
	world *diskstest.World
	files *diskstest.Files
	uuid  string
	power driver.State
	ref   migration.Ref
	plan  migration.Change
	kind  string
	guest migration.Guest
	want  migration.Wanted
	slow  *slowFiles // nil for files that are copied at once
	// elsewhere answers for other hosts, which see all disks; nil for a host alone.
	elsewhere fileusers.Elsewhere
}

func newChange(t *testing.T, f topology.Flavor, power driver.State, plan migration.Change) *changeBed {
	t.Helper()
	b := &changeBed{lab: newLab(t, "a"), world: diskstest.NewWorld(), power: power, plan: plan, kind: migration.TypeResize}
	if plan.Image != nil {
		b.kind = migration.TypeRebuild
	}
	b.files = b.world.Host("a")
	b.files.Put(baseImage, "qcow2", 1<<30, "old system")
	b.files.Put(newImage, "raw", 2<<30, "new system")
	b.fleet.SetStorage(func(host string) drivertest.Storage { return b.world.Host(host) })
	b.hosts["a"].Close()
	b.start()
	v, err := b.a.Create(t.Context(), host.CreateRequest{
		Name: "vm", Flavor: f, ProjectID: "project", UserID: "user", Start: power != driver.ShutOff, Paused: power == driver.Paused,
		Disks: []host.CreateDisk{{Path: rootFile, Image: baseImage, SizeGB: f.DiskGB}},
	})
	b.must("create", err)
	b.uuid, b.ref = v.UUID, refFor(v.UUID, 1)
	return b
}

func (b *changeBed) start() {
	b.a = b.boot("a", func(o *host.Options) {
		capacity := cellsOf(0)
		o.Files = b.files
		if b.elsewhere != nil {
			o.Elsewhere, o.SharedDirs = b.elsewhere, []string{"/images"}
		}
		if b.slow != nil {
			b.slow.Files = b.files
			o.Files = b.slow
		}
		o.Aliases = func() []flavor.Alias { return nics }
		o.SharedCPUs = func() topology.CPUSet { return capacity.Cells[0].Shared.Union(capacity.Cells[1].Shared) }
		o.Tracker.SetCapacity(capacity)
	})
}

// crash ends the agent as kill -9 does, and starts it again.
func (b *changeBed) crash() {
	b.a.Close()
	b.a.store = b.a.store.Crash()
	b.start()
}

// verb is one step of a change with its undo; what a step does is asked twice, since
// every verb may be.
type verb struct {
	name     string
	do, undo func() error
}

func (b *changeBed) verbs() []verb {
	ctx := b.t.Context()
	return []verb{
		{"claim", b.claim, func() error { return operation.AbortClaim.Ask(ctx, b.a, b.ref) }},
		{"prep", func() error {
			return operation.PrepChange.Ask(ctx, b.a, b.ref, migration.PrepRequest{Kind: b.kind, Guest: b.guest, Wanted: b.want, Source: "a"})
		}, func() error { return operation.RollbackPrepChange.Ask(ctx, b.a, b.ref) }},
		{"off", func() error {
			_, err := operation.PowerOff.Ask(ctx, b.a, b.ref, migration.PowerOffRequest{Kind: b.kind})
			return err
		}, func() error { return operation.PowerOn.Ask(ctx, b.a, b.ref) }},
		{"apply", func() error { return operation.ApplyChange.Ask(ctx, b.a, b.ref) }, func() error { return operation.UnapplyChange.Ask(ctx, b.a, b.ref) }},
		{"start", func() error { return operation.StartChanged.Ask(ctx, b.a, b.ref) }, func() error { return nil }},
	}
}

// look plans the change; done once, as a conductor keeps what it was told.
func (b *changeBed) look() {
	b.t.Helper()
	var err error
	b.guest, err = operation.Inspect.Ask(b.t.Context(), b.a, migration.Ref{Instance: b.uuid})
	b.must("inspect", err)
	b.want, err = operation.PlanChange.Ask(b.t.Context(), b.a, migration.Ref{Instance: b.uuid}, b.plan)
	b.must("plan", err)
}

func (b *changeBed) claim() error {
	g, w := b.guest, b.want
	_, err := operation.Claim.Ask(b.t.Context(), b.a, b.ref, migration.ClaimRequest{Guest: g, Kind: b.kind, Lease: time.Minute, Context: migration.Context{
		Source: "a", Destination: "a", OldFlavor: g.Flavor, NewFlavor: w.Flavor, OldResources: g.Resources, NewResources: w.Resources, PowerState: g.PowerState,
		OldTopology: g.Topology, NewTopology: w.Topology, OldPCIRequests: g.PCIRequests, NewPCIRequests: w.PCIRequests, OldAssignment: g.Assignment,
	}})
	return err
}

// forward does verbs from one on, each twice.
func (b *changeBed) forward(from int) error {
	for _, v := range b.verbs()[from:] {
		for range 2 {
			if err := v.do(); err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
		}
	}
	return nil
}

// back undoes them from one on, in reverse, each twice.
func (b *changeBed) back(from int) {
	b.t.Helper()
	for _, v := range slices.Backward(b.verbs()[:from+1]) {
		for range 2 {
			b.must("undo "+v.name, v.undo())
		}
	}
}

// finish gives up what was kept.
func (b *changeBed) finish() {
	b.t.Helper()
	for range 2 {
		b.must("finish", operation.FinishChange.Ask(b.t.Context(), b.a, b.ref))
	}
}

// revert takes the change back after its end, as a conductor does by the next attempt.
func (b *changeBed) revert() {
	b.t.Helper()
	ctx, again := b.t.Context(), b.ref
	again.Attempt++
	_, err := operation.PowerOff.Ask(ctx, b.a, again, migration.PowerOffRequest{Kind: b.kind})
	b.must("power off to revert", err)
	for range 2 {
		b.must("unapply", operation.UnapplyChange.Ask(ctx, b.a, b.ref))
	}
	for range 2 {
		b.must("power on", operation.PowerOn.Ask(ctx, b.a, b.ref))
	}
	b.state("a", b.uuid, b.power)
	b.must("unapply late", operation.UnapplyChange.Ask(ctx, b.a, b.ref))
	b.state("a", b.uuid, b.power)
	for range 2 {
		b.must("release", operation.AbortClaim.Ask(ctx, b.a, b.ref))
	}
}

// view is the guest as it is, and what else is on the host.
type view struct {
	Left   picture
	Files  []string
	Disk   string
	Flavor topology.Flavor
	Shape  string // vCPUs, memory, pins and devices by its definition
	Power  driver.State
}

func (b *changeBed) view() view {
	b.t.Helper()
	v := view{Left: b.picture(), Files: b.files.List()}
	delete(v.Left, "allocations") // a conductor's
	data, size, _ := b.files.Data(rootFile)
	v.Disk = fmt.Sprintf("%s of %d GiB", data, size>>30)
	inst, _ := b.a.tracker.Instance(b.uuid)
	v.Flavor = inst.Flavor
	d, err := b.a.fake.Domain(b.t.Context(), b.uuid)
	b.must("read the domain", err)
	v.Power = d.State
	text, err := b.a.fake.XML(b.t.Context(), b.uuid, driver.Persistent)
	b.must("read the definition", err)
	doc, err := domainxml.Parse(text)
	b.must("parse the definition", err)
	p, err := doc.Pinning()
	b.must("read its pins", err)
	meta, _, err := doc.Metadata()
	b.must("read its metadata", err)
	v.Shape = fmt.Sprintf("%s: %d vCPUs, %d MiB, %d pinned in %d cells, %d devices", meta.Flavor.Name, doc.VCPUs(), doc.MemoryMB(), len(p.VCPUs), len(p.Cells), len(p.Devices))
	for _, c := range b.a.tracker.ByInstance(b.uuid) {
		if c.Owner.Kind == claims.KindInstance {
			b.documentIs("a", "vm", text, c)
		}
	}
	return v
}

func (b *changeBed) same(what string, want view) {
	b.t.Helper()
	if diff := gocmp.Diff(want, b.view()); diff != "" {
		b.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// changes are the stories of which each is tried in each power state.
var changes = map[string]struct {
	from topology.Flavor
	plan migration.Change
	want view // as far as it is not what it was
}{
	"from floating to pinned, with a device and a larger disk": {
		floats2, migration.Change{Flavor: &pinned3}, view{Disk: "old system of 4 GiB", Flavor: pinned3, Shape: "pinned: 3 vCPUs, 256 MiB, 3 pinned in 1 cells, 1 devices"},
	},
	"from pinned to floating on a smaller amount": {
		pinned3, migration.Change{Flavor: &topology.Flavor{Name: "less", VCPUs: 1, MemoryMB: 64}},
		view{Disk: "old system of 4 GiB", Flavor: topology.Flavor{Name: "less", VCPUs: 1, MemoryMB: 64}, Shape: "less: 1 vCPUs, 64 MiB, 0 pinned in 1 cells, 0 devices"},
	},
	// All dedicated CPUs of the host are the guest's own, before and after.
	"from pinned to all that the host has": {
		pinned3, migration.Change{Flavor: &pinned6}, view{Disk: "old system of 4 GiB", Flavor: pinned6, Shape: "pinned6: 6 vCPUs, 512 MiB, 6 pinned in 2 cells, 0 devices"},
	},
	"rebuild": {
		pinned3, migration.Change{Image: &migration.Image{Path: newImage}},
		view{Disk: "new system of 4 GiB", Flavor: pinned3, Shape: "pinned: 3 vCPUs, 256 MiB, 3 pinned in 1 cells, 1 devices"},
	},
	"rebuild with another topology": {
		topology.Flavor{Name: "two", VCPUs: 2, MemoryMB: 128}, migration.Change{Image: &migration.Image{Path: newImage, Properties: map[string]string{"hw_numa_nodes": "2"}}},
		view{Disk: "new system of 2 GiB", Flavor: topology.Flavor{Name: "two", VCPUs: 2, MemoryMB: 128}, Shape: "two: 2 vCPUs, 128 MiB, 2 pinned in 2 cells, 0 devices"},
	},
}

func TestChange_Resized_LivesOnceItWasStarted(t *testing.T) {
	t.Parallel()
	b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
	b.look()
	verbs := b.verbs()
	start := slices.IndexFunc(verbs, func(v verb) bool { return v.name == "start" })
	for i, v := range verbs[:start+1] {
		if b.a.Lives(b.uuid) {
			t.Errorf("before %s its user may start it", v.name)
		}
		b.must(v.name, v.do())
		if i == start && !b.a.Lives(b.uuid) {
			t.Error("it was started, and its user may not")
		}
	}
}

func TestChange_InPlace(t *testing.T) {
	for name, tt := range changes {
		for _, power := range []driver.State{driver.Running, driver.Paused, driver.ShutOff} {
			t.Run(name+", "+string(power), func(t *testing.T) {
				b := newChange(t, tt.from, power, tt.plan)
				before := b.view()
				b.look()
				b.must("change", b.forward(0))
				during := b.view()
				if diff := gocmp.Diff([]string{tt.want.Disk, tt.want.Shape, tt.want.Flavor.Name, string(power)}, []string{during.Disk, during.Shape, during.Flavor.Name, string(during.Power)}); diff != "" {
					t.Fatalf("changed (-want +got):\n%s", diff)
				}
				if b.kind == migration.TypeResize {
					b.revert()
					b.same("reverted", before)
					b.ref.Migration = strings.Replace(b.ref.Migration, "2222", "3333", 1)
					b.look()
					b.must("change again", b.forward(0))
				}
				b.finish()
				after := before
				after.Disk, after.Flavor, after.Shape = tt.want.Disk, tt.want.Flavor, tt.want.Shape
				got := b.view()
				after.Left, got.Left = withoutClaims(after.Left), withoutClaims(got.Left)
				if diff := gocmp.Diff(after, got); diff != "" {
					t.Errorf("finished (-want +got):\n%s", diff)
				}
				b.lab.shareNothing()
				b.followed()
				// What comes late finds nothing to do.
				for what, late := range map[string]error{
					"claim": b.claim(), "prep": b.verbs()[1].do(), "apply": b.verbs()[3].do(), "unapply": b.verbs()[3].undo(), "rollback": b.verbs()[1].undo(), "abort": b.verbs()[0].undo(),
				} {
					if late != nil && !errors.Is(late, fault.Forbidden) {
						t.Errorf("late %s: %v", what, late)
					}
				}
				if diff := gocmp.Diff(after.Files, b.files.List()); diff != "" {
					t.Errorf("after late verbs (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// followed looks around once as an agent does: what the guest shows is what it was given.
func (b *changeBed) followed() {
	b.t.Helper()
	before := b.a.tracker.ByInstance(b.uuid)[0]
	ctx, cancel := context.WithCancel(b.t.Context())
	var looking sync.WaitGroup
	looking.Go(func() { _ = b.a.Follow(ctx) }) // nil
	waitFor(b.t, "the claim to be held against the guest", func() bool { return b.a.tracker.ByInstance(b.uuid)[0].Seen != nil })
	cancel()
	looking.Wait()
	after := b.a.tracker.ByInstance(b.uuid)[0]
	after.Seen = nil
	if diff := gocmp.Diff(before, after); diff != "" {
		b.t.Errorf("the claim after a look at the changed guest (-want +got):\n%s", diff)
	}
}

// withoutClaims is a picture without the amounts that a change is about.
func withoutClaims(p picture) picture {
	out := picture{}
	for k, v := range p {
		if !strings.HasSuffix(k, " claims") {
			out[k] = v
			continue
		}
		for _, line := range v {
			f := strings.Fields(line)
			out[k] = append(out[k], strings.Join(f[:3], " "))
		}
	}
	return out
}

// TestChange_KilledBetweenAnyTwoEffects kills the agent before each of its writes: to its
// ledger, to libvirt, to disks. The next one does the same verb again, and those after
// it; or it undoes all.
func TestChange_KilledBetweenAnyTwoEffects(t *testing.T) {
	const grow, rebuild = "from floating to pinned, with a device and a larger disk", "rebuild with another topology"
	for name, ways := range map[string][]string{grow: {"goes on", "goes back"}, rebuild: {"goes back"}} {
		tt := changes[name]
		for _, then := range ways {
			t.Run(name+", "+then, func(t *testing.T) {
				t.Parallel()
				for kill := 1; ; kill += min(stride, 5) {
					b := newChange(t, tt.from, driver.Running, tt.plan)
					before := b.view()
					b.look()
					n, at := b.dieAt(kill), 0
					for i, v := range b.verbs() {
						if at = i; v.do() != nil {
							break
						}
					}
					if *n < kill { // it lived
						if kill < 20 {
							t.Errorf("only %d effects", *n)
						}
						return
					}
					b.live()
					if then == "goes back" {
						b.back(at)
						b.same(fmt.Sprintf("killed at effect %d (%s) and undone", kill, b.verbs()[at].name), before)
						continue
					}
					b.must(fmt.Sprintf("go on after effect %d", kill), b.forward(at))
					b.finish()
					got := b.view()
					if diff := gocmp.Diff([]string{tt.want.Disk, tt.want.Shape, "running"}, []string{got.Disk, got.Shape, string(got.Power)}); diff != "" {
						t.Errorf("killed at effect %d (%s), finished (-want +got):\n%s", kill, b.verbs()[at].name, diff)
					}
					if diff := gocmp.Diff(before.Files, got.Files); diff != "" {
						t.Errorf("killed at effect %d (%s), files (-want +got):\n%s", kill, b.verbs()[at].name, diff)
					}
				}
			})
		}
	}
}

// TestChange_KilledWhileItEnds kills the agent before each write of a confirmation, and
// of a revert.
func TestChange_KilledWhileItEnds(t *testing.T) {
	tt := changes["from floating to pinned, with a device and a larger disk"]
	for _, end := range []string{"finish", "revert"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			for kill := 1; ; kill++ {
				b := newChange(t, tt.from, driver.Paused, tt.plan)
				before := b.view()
				b.look()
				b.must("change", b.forward(0))
				ctx, again := t.Context(), b.ref
				again.Attempt++
				steps := []func() error{func() error { return operation.FinishChange.Ask(ctx, b.a, b.ref) }}
				if end == "revert" {
					steps = []func() error{
						func() error {
							_, err := operation.PowerOff.Ask(ctx, b.a, again, migration.PowerOffRequest{Kind: b.kind})
							return err
						},
						func() error { return operation.UnapplyChange.Ask(ctx, b.a, b.ref) },
						func() error { return operation.PowerOn.Ask(ctx, b.a, b.ref) },
						func() error { return operation.AbortClaim.Ask(ctx, b.a, b.ref) },
					}
				}
				n, at := b.dieAt(kill), 0
				for i, do := range steps {
					if at = i; do() != nil {
						break
					}
				}
				if *n < kill { // it lived
					if kill < 5 {
						t.Errorf("only %d effects", *n)
					}
					return
				}
				b.live()
				for i, do := range steps[at:] {
					b.must(fmt.Sprintf("step %d after a kill at effect %d", at+i, kill), do())
				}
				if end == "revert" {
					b.same(fmt.Sprintf("killed at effect %d", kill), before)
					continue
				}
				got := b.view()
				if diff := gocmp.Diff([]string{tt.want.Disk, tt.want.Shape, "paused"}, []string{got.Disk, got.Shape, string(got.Power)}); diff != "" {
					t.Errorf("killed at effect %d, finished (-want +got):\n%s", kill, diff)
				}
				if diff := gocmp.Diff(withoutClaims(before.Left), withoutClaims(got.Left)); diff != "" {
					t.Errorf("killed at effect %d, left (-want +got):\n%s", kill, diff)
				}
				if diff := gocmp.Diff(before.Files, got.Files); diff != "" {
					t.Errorf("killed at effect %d, files (-want +got):\n%s", kill, diff)
				}
			}
		})
	}
}

// live starts an agent that was killed again.
func (b *changeBed) live() {
	b.world.OnStep(nil)
	b.a.fake.Fault(nil)
	b.crash()
}

// dieAt has every effect from the n-th on fail: the process is dead. It gives how many
// were tried until the first that failed, or in all.
func (b *changeBed) dieAt(n int) *int {
	count := new(int)
	dead := func() bool {
		if *count < n {
			*count++
		}
		return *count >= n
	}
	died := errors.New("killed")
	b.world.OnStep(func(_, _, _ string) error {
		if dead() {
			return died
		}
		return nil
	})
	b.a.fake.Fault(func(call, _ string) error {
		if !slices.Contains([]string{"Define", "Start", "Destroy", "Shutdown", "SetAutostart"}, call) {
			return nil
		}
		if dead() {
			return fault.New(fault.Unavailable, "%s: %w", call, died)
		}
		return nil
	})
	b.a.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
		if dead() {
			return storetest.Fail
		}
		return storetest.Commit
	})
	return count
}
