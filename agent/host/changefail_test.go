package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/disks"
	"berth/agent/host/disks/diskstest"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// A guest whose change fails, wherever, is what it was: with its power state, its disk,
// its definition, its claim.
func TestChange_FailsAndIsUndone(t *testing.T) {
	grow, rebuild := changes["from floating to pinned, with a device and a larger disk"], changes["rebuild with another topology"]
	for name, tt := range map[string]struct {
		plan  migration.Change
		from  topology.Flavor
		power driver.State
		spoil func(b *changeBed)
		at    string // the verb that fails
		kind  fault.Kind
	}{
		"the rebuilt guest does not start":     {rebuild.plan, rebuild.from, driver.Running, func(b *changeBed) { b.failOn("Start") }, "start", fault.Internal},
		"nor does the resized one, paused":     {grow.plan, grow.from, driver.Paused, func(b *changeBed) { b.failOn("Start") }, "start", fault.Internal},
		"libvirt does not take its definition": {grow.plan, grow.from, driver.Running, func(b *changeBed) { b.failOn("Define") }, "apply", fault.Internal},
		"there is no room for the larger disk": {grow.plan, grow.from, driver.Running, func(b *changeBed) { b.files.SetFree(rootFile, 1<<20) }, "prep", fault.DoesNotFit},
		"the room is gone when it is copied": {grow.plan, grow.from, driver.ShutOff, func(b *changeBed) {
			b.must("prepare", errors.Join(b.verbs()[0].do(), b.verbs()[1].do()))
			b.files.SetFree(rootFile, 3)
		}, "apply", fault.DoesNotFit},
		"somebody replaced its disk": {grow.plan, grow.from, driver.Running, func(b *changeBed) {
			b.must("prepare", errors.Join(b.verbs()[0].do(), b.verbs()[1].do()))
			b.files.Put("/images/restored", "qcow2", 2<<30, "from a backup")
			b.files.Rename("/images/restored", rootFile)
		}, "apply", fault.Forbidden},
		"somebody edited its definition": {grow.plan, grow.from, driver.Running, func(b *changeBed) {
			b.must("prepare", errors.Join(b.verbs()[0].do(), b.verbs()[1].do()))
			text, err := b.a.fake.XML(b.t.Context(), b.uuid, driver.Persistent)
			b.must("read the definition", err)
			b.files.Put("/images/other", "qcow2", 2<<30, "other")
			b.must("edit it", b.a.fake.Define(b.t.Context(), strings.Replace(text, rootFile, "/images/other", 1)))
		}, "apply", fault.Forbidden},
		"the image is gone":                    {rebuild.plan, rebuild.from, driver.Running, func(b *changeBed) { b.files.Rename(newImage, "/images/elsewhere") }, "prep", fault.NotFound},
		"a hook of prep_resize fails":          {grow.plan, grow.from, driver.Running, func(b *changeBed) { b.hook("prep_resize", 1) }, "prep", fault.Internal},
		"a hook of pre_rebuild_instance fails": {rebuild.plan, rebuild.from, driver.Running, func(b *changeBed) { b.hook("pre_rebuild_instance", 1) }, "prep", fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			b := newChange(t, tt.from, tt.power, tt.plan)
			b.look()
			tt.spoil(b)
			before := b.view()
			err, at := error(nil), 0
			for i, v := range b.verbs() {
				if at = i; err == nil {
					if err = v.do(); err != nil {
						break
					}
				}
			}
			if b.verbs()[at].name != tt.at || fault.KindOf(err) != tt.kind {
				t.Fatalf("%s failed: %v (%s), want %s: %s", b.verbs()[at].name, err, fault.KindOf(err), tt.at, tt.kind)
			}
			b.a.fake.Fault(nil)
			b.back(at)
			got := b.view()
			// What the spoiling left of the bookkeeping is the change's, and gone by now.
			before.Left, got.Left = withoutMemories(before.Left), withoutMemories(got.Left)
			if diff := gocmp.Diff(before, got); diff != "" {
				t.Errorf("undone (-want +got):\n%s", diff)
			}
			b.state("a", b.uuid, tt.power)
			if left := b.a.tracker.ByInstance(b.uuid); len(left) != 1 || left[0].State != claims.Bound {
				t.Errorf("claims: %+v", left)
			}
		})
	}
}

// withoutMemories is a picture without what was there because a change had begun.
func withoutMemories(p picture) picture {
	out := picture{}
	for k, v := range p {
		if !strings.HasSuffix(k, " memories") && !strings.HasSuffix(k, " claims") {
			out[k] = v
		}
	}
	return out
}

// failOn has a call of the hypervisor fail from now on.
func (b *changeBed) failOn(call string) {
	b.a.fake.Fault(func(c, _ string) error {
		if c == call {
			return fault.New(fault.Internal, "%s: internal error: process exited while connecting to monitor", call)
		}
		return nil
	})
}

// hook puts a hook that notes that it ran, and ends with a status.
func (b *changeBed) hook(phase string, status int) {
	b.a.put(b.t, "/hooks/"+phase+"/10-note", fmt.Sprintf("#!/bin/sh\necho %s >> %s\nexit %d\n", phase, b.a.path("/ran"), status), 0o755)
}

func (b *changeBed) ran() []string {
	text, err := os.ReadFile(b.a.path("/ran"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// Each hook runs once for its phase, however often its verb is asked, and one past the
// point of no return keeps nobody's guest.
func TestChange_RunsItsHooksOnce(t *testing.T) {
	phases := []string{"prep_resize", "rollback_prep_resize", "finish_resize", "confirm_resize", "revert_resize", "pre_rebuild_instance", "rollback_rebuild_instance", "post_rebuild_instance"}
	for name, tt := range map[string]struct {
		plan migration.Change
		end  func(b *changeBed)
		want []string
	}{
		"resize, confirmed": {migration.Change{Flavor: &pinned3}, (*changeBed).finish, []string{"prep_resize", "finish_resize", "confirm_resize"}},
		"resize, reverted":  {migration.Change{Flavor: &pinned3}, (*changeBed).revert, []string{"prep_resize", "finish_resize", "revert_resize"}},
		"resize, undone":    {migration.Change{Flavor: &pinned3}, func(b *changeBed) { b.back(4) }, []string{"prep_resize", "finish_resize", "rollback_prep_resize"}},
		"rebuild":           {migration.Change{Image: &migration.Image{Path: newImage}}, (*changeBed).finish, []string{"pre_rebuild_instance", "post_rebuild_instance"}},
		"rebuild, undone":   {migration.Change{Image: &migration.Image{Path: newImage}}, func(b *changeBed) { b.back(4) }, []string{"pre_rebuild_instance", "post_rebuild_instance", "rollback_rebuild_instance"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newChange(t, floats2, driver.Running, tt.plan)
			for _, p := range phases {
				status := 0
				if p == "finish_resize" || p == "post_rebuild_instance" {
					status = 1 // told, and no more
				}
				b.hook(p, status)
			}
			b.look()
			b.must("change", b.forward(0))
			tt.end(b)
			if diff := gocmp.Diff(tt.want, b.ran()); diff != "" {
				t.Errorf("hooks (-want +got):\n%s", diff)
			}
			b.state("a", b.uuid, driver.Running)
		})
	}
}

func TestPlanChange_ListsEveryReason(t *testing.T) {
	one := func(f topology.Flavor) migration.Change { return migration.Change{Flavor: &f} }
	image := func(path, format string) migration.Change {
		return migration.Change{Image: &migration.Image{Path: path, Format: format}}
	}
	for name, tt := range map[string]struct {
		plan migration.Change
		want []string
	}{
		"a smaller disk, and an alias that nobody knows": {one(topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 64, DiskGB: 1, ExtraSpecs: map[string]string{"pci_passthrough:alias": "gpu:1"}}), []string{"disk_shrinks", "pci_alias_undefined"}},
		"a flavor that makes no sense":                   {one(topology.Flavor{Name: "f", VCPUs: 0, MemoryMB: 0}), nil},
		"an image that is not there":                     {image("/images/none", ""), []string{"NotFound"}},
		"a path that is none":                            {image("new.raw", ""), []string{"image_path"}},
		"a format that is not taken":                     {image(newImage, "vmdk"), []string{"image_format"}},
		"neither":                                        {image("new.raw", "vmdk"), []string{"image_format", "image_path"}},
		"another format than the image's":                {image(newImage, "qcow2"), []string{"Invalid"}},
		"an image on top of another":                     {image("/images/thin.qcow2", ""), []string{"image_not_whole"}},
		"the guest's own disk":                           {image(rootFile, ""), []string{"image_in_use"}},
		"an image that is too large":                     {image("/images/large.raw", ""), []string{"image_too_large"}},
		"no room beside the disk":                        {image("/images/full.raw", ""), []string{"disk_space"}},
		"both":                                           {migration.Change{Flavor: &floats2, Image: &migration.Image{Path: newImage}}, nil},
		"a topology that the image makes impossible":     {migration.Change{Image: &migration.Image{Path: newImage, Properties: map[string]string{"hw_numa_nodes": "3"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newChange(t, floats2, driver.Running, tt.plan)
			b.files.Put("/images/thin.qcow2", "qcow2", 1<<30, "")
			b.files.Back("/images/thin.qcow2", "/etc/shadow")
			b.files.Put("/etc/shadow", "raw", 1, "secret")
			b.files.Put("/images/large.raw", "raw", 3<<30, "")
			b.files.Put("/images/full.raw", "raw", 1<<30, "much")
			if strings.Contains(name, "room") {
				b.files.SetFree(rootFile, 1<<20)
			}
			before := b.view()
			_, err := operation.PlanChange.Ask(t.Context(), b.a, migration.Ref{Instance: b.uuid}, tt.plan)
			if err == nil {
				t.Fatal("planned all the same")
			}
			if got := codes(err); tt.want != nil && !slices.EqualFunc(tt.want, got, func(want, got string) bool {
				return strings.EqualFold(strings.ReplaceAll(got, "_", ""), strings.ReplaceAll(want, "_", "")) || strings.ReplaceAll(got, " ", "") == strings.ToLower(want)
			}) {
				t.Errorf("reasons %v, want %v: %v", got, tt.want, err)
			}
			for _, r := range fault.ReasonsOf(err) {
				if strings.HasPrefix(r.Code, "image_") && r.Change == "" {
					t.Errorf("nothing to do for %s", r.Code)
				}
			}
			b.same("a plan changes nothing", before)
		})
	}
}

// What a host has no hand in does not grow with the flavor; what it must not touch is refused.
func TestPlanChange_LeavesOthersStorageToThem(t *testing.T) {
	for name, tt := range map[string]struct {
		disk, attrs string
		want        []string
		image       string
	}{
		"a network disk": {"<disk type='network' device='disk'><driver name='qemu' type='raw'/><source protocol='rbd' name='pool/vm'/><target dev='vda'/></disk>", "", nil, "root_not_a_file"},
		"a block device": {"<disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='/images/block'/><target dev='vda'/></disk>", "", nil, "root_not_a_file"},
		"a shared disk":  {"<disk type='file' device='disk'><source file='/images/block'/><target dev='vda'/><shareable/></disk>", "", []string{"root_shareable"}, "root_shareable"},
		"no disk":        {"", "", nil, "no_root_disk"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "a")
			a := l.hosts["a"]
			a.put(t, "/images/block", "data", 0o644)
			v, err := a.Create(t.Context(), host.CreateRequest{XML: foreignXML("from-xml", tt.disk, tt.attrs), Flavor: topology.Flavor{Name: "f", VCPUs: 2, MemoryMB: 256, DiskGB: 1}})
			l.must("create", err)
			w, err := operation.PlanChange.Ask(t.Context(), a, migration.Ref{Instance: v.UUID}, migration.Change{Flavor: &topology.Flavor{Name: "g", VCPUs: 1, MemoryMB: 128, DiskGB: 10}})
			if diff := gocmp.Diff(tt.want, codes(err)); diff != "" || len(w.Grow) > 0 || err == nil && w.Resources.DiskGB != 10 {
				t.Errorf("%+v; reasons (-want +got):\n%s\n%v", w, diff, err)
			}
			w, err = operation.PlanChange.Ask(t.Context(), a, migration.Ref{Instance: v.UUID}, migration.Change{Flavor: &topology.Flavor{Name: "g", VCPUs: 1, MemoryMB: 128}})
			if err != nil || len(w.Grow) > 0 {
				t.Errorf("with disk_gb 0: %+v, %v", w, err)
			}
			_, err = operation.PlanChange.Ask(t.Context(), a, migration.Ref{Instance: v.UUID}, migration.Change{Image: &migration.Image{Path: "/images/block", Format: "raw"}})
			if got := codes(err); !slices.Equal(got, []string{tt.image}) {
				t.Errorf("another image: reasons %v, want %s: %v", got, tt.image, err)
			}
			if rs := fault.ReasonsOf(err); len(rs) > 0 && strings.Contains(rs[0].Change, "flavor") {
				t.Errorf("another image is none of a flavor's: %+v", rs)
			}
			_, err = operation.PlanChange.Ask(t.Context(), a, migration.Ref{Instance: v.UUID}, migration.Change{Image: &migration.Image{Path: "block", Format: "vmdk"}})
			want := []string{"image_format", "image_path", tt.image}
			slices.Sort(want)
			if diff := gocmp.Diff(want, codes(err)); diff != "" {
				t.Errorf("another image, named wrongly: reasons (-want +got):\n%s", diff)
			}
		})
	}
}

// With real files and qemu-img: a disk that grows and comes back, and one from an image.
func TestChange_RealFiles(t *testing.T) {
	requireQemuImg(t)
	for _, format := range []string{"raw", "qcow2"} {
		t.Run(format, func(t *testing.T) {
			l := newLab(t, "a")
			b := &changeBed{lab: l, a: l.hosts["a"], kind: migration.TypeResize, plan: migration.Change{Flavor: &topology.Flavor{Name: "large", VCPUs: 2, MemoryMB: 256, DiskGB: 3}}}
			v := l.guest("a", "vm", host.CreateDisk{Path: "/images/root", SizeGB: 1, Format: format})
			b.uuid, b.power, b.ref = v.UUID, driver.Running, refFor(v.UUID, 1)
			size := func() int64 {
				g, err := operation.Inspect.Ask(t.Context(), b.a, migration.Ref{Instance: b.uuid})
				l.must("inspect", err)
				return g.Disks[0].VirtualSize >> 30
			}
			before := l.picture()
			b.look()
			l.must("resize", b.forward(0))
			if got := size(); got != 3 {
				t.Errorf("resized: %d GiB", got)
			}
			b.revert()
			if got := size(); got != 1 {
				t.Errorf("reverted: %d GiB", got)
			}
			l.same("reverted", before)
			b.a.put(t, "/images/new.raw", strings.Repeat("new", 1<<10), 0o644)
			b.kind, b.plan = migration.TypeRebuild, migration.Change{Image: &migration.Image{Path: "/images/new.raw"}}
			b.ref.Migration = strings.Replace(b.ref.Migration, "2222", "3333", 1)
			b.look()
			l.must("rebuild", b.forward(0))
			b.finish()
			if got := size(); got != 1 {
				t.Errorf("rebuilt: %d GiB", got)
			}
			left, err := filepath.Glob(b.a.path("/images/.berth*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			file, err := os.Open(b.a.path("/images/root"))
			l.must("open the disk", err)
			defer file.Close()
			head := make([]byte, 6)
			_, err = file.Read(head)
			if want := map[string]string{"raw": "newnew", "qcow2": "QFI\xfb\x00\x00"}[format]; err != nil || string(head) != want {
				t.Errorf("the disk begins with %q, %v, want %q", head, err, want)
			}
		})
	}
}

// slowFiles copies when it is let, or until it is told to end.
type slowFiles struct {
	*diskstest.Files
	let    chan struct{}
	begun  chan struct{} // takes one that says so of each copy
	copies atomic.Int32
}

func (f *slowFiles) BuildCopy(ctx context.Context, r *disks.Replaced, format string, size int64) error {
	f.copies.Add(1)
	f.begun <- struct{}{}
	select {
	case <-f.let:
		return f.Files.BuildCopy(ctx, r, format, size)
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "copy: %w", ctx.Err())
	}
}

// A copy that outlives the verb goes on, and the verb that is asked again finds it; an
// undo ends it.
func TestChange_ACopyMayOutliveItsVerb(t *testing.T) {
	for _, end := range []string{"goes on", "is undone", "dies with its agent"} {
		t.Run(end, func(t *testing.T) {
			b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
			b.slow = &slowFiles{let: make(chan struct{}), begun: make(chan struct{}, 2)}
			b.crash()
			before := b.view()
			b.look()
			verbs := b.verbs()
			b.must("prepare", errors.Join(verbs[0].do(), verbs[1].do(), verbs[2].do()))
			waited, cancel := context.WithCancel(t.Context())
			go func() {
				<-b.slow.begun
				cancel() // whoever asked goes away
			}()
			b.wantKind("apply while it is copied", operation.ApplyChange.Ask(waited, b.a, b.ref), fault.Unavailable)
			short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			b.wantKind("apply again", operation.ApplyChange.Ask(short, b.a, b.ref), fault.Unavailable)
			cancel()
			if n := b.slow.copies.Load(); n != 1 {
				t.Errorf("%d copies are made at once", n)
			}
			switch end {
			case "goes on":
				close(b.slow.let)
				b.must("go on", b.forward(3))
				b.finish()
				if got := b.view(); got.Disk != "old system of 4 GiB" || got.Power != driver.Running {
					t.Errorf("changed: %s, %s", got.Disk, got.Power)
				}
			case "is undone":
				b.back(3)
				b.same("undone", before)
			case "dies with its agent":
				b.crash()
				close(b.slow.let)
				b.must("go on", b.forward(3))
				if n := b.slow.copies.Load(); n != 2 {
					t.Errorf("%d copies, want one of each agent", n)
				}
			}
		})
	}
}

// What an image asks of its guest holds for each flavor that the guest gets, until it
// gets another image.
func TestChange_ImagePropertiesOutliveTheRebuild(t *testing.T) {
	two := migration.Image{Path: newImage, Properties: map[string]string{"hw_numa_nodes": "2"}}
	larger := topology.Flavor{Name: "larger", VCPUs: 2, MemoryMB: 256, DiskGB: 2}
	b := newChange(t, floats2, driver.ShutOff, migration.Change{})
	for i, tt := range []struct {
		kind  string
		plan  migration.Change
		shape string
	}{
		{migration.TypeRebuild, migration.Change{Image: &two}, "floats: 2 vCPUs, 128 MiB, 2 pinned in 2 cells, 0 devices"},
		{migration.TypeResize, migration.Change{Flavor: &larger}, "larger: 2 vCPUs, 256 MiB, 2 pinned in 2 cells, 0 devices"},
		{migration.TypeRebuild, migration.Change{Image: &migration.Image{Path: newImage}}, "larger: 2 vCPUs, 256 MiB, 0 pinned in 1 cells, 0 devices"},
	} {
		b.kind, b.plan = tt.kind, tt.plan
		b.ref.Migration = fmt.Sprintf("%08d-2222-4222-8222-222222222222", i+1)
		b.look()
		b.must("change", b.forward(0))
		b.finish()
		if got := b.view().Shape; got != tt.shape {
			t.Errorf("change %d: %s, want %s", i+1, got, tt.shape)
		}
	}
}

func TestPlanChange_GrowsTheRootByWhatOtherDisksLeave(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{})
	b.files.Put("/boot/vmlinuz", "raw", 1, "")
	v, err := b.a.Create(t.Context(), host.CreateRequest{
		Name: "two", Flavor: topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 64, DiskGB: 3}, ProjectID: "p", UserID: "u", Kernel: "/boot/vmlinuz",
		Disks: []host.CreateDisk{{Path: "/images/two-a", SizeGB: 1}, {Path: "/images/two-b", SizeGB: 2}},
	})
	b.must("create", err)
	for _, tt := range []struct {
		gb, holds int64
		want      []migration.DiskGrowth
	}{
		{10, 10, []migration.DiskGrowth{{Target: "vda", VirtualSize: 8 << 30}}},
		{3, 3, nil}, // as it has
		{0, 3, nil}, // as it is
	} {
		w, err := operation.PlanChange.Ask(t.Context(), b.a, migration.Ref{Instance: v.UUID}, migration.Change{Flavor: &topology.Flavor{Name: "g", VCPUs: 2, MemoryMB: 128, DiskGB: tt.gb}})
		b.must("plan", err)
		if diff := gocmp.Diff(tt.want, w.Grow); diff != "" || w.Resources.DiskGB != tt.holds {
			t.Errorf("disk_gb %d: %d GiB held, want %d; growth (-want +got):\n%s", tt.gb, w.Resources.DiskGB, tt.holds, diff)
		}
	}
	// A guest that is moved as it is keeps what its claim has.
	w, err := operation.PlanChange.Ask(t.Context(), b.a, migration.Ref{Instance: v.UUID}, migration.Change{})
	if claim, _ := b.a.tracker.ByOwner(claims.Owner{Instance: v.UUID, Kind: claims.KindInstance}); err != nil || w.Resources != claim.Resources || w.Image != nil || len(w.Grow) > 0 {
		t.Errorf("as it is: %+v, %v", w, err)
	}
}

func TestPlanChange_ATransientGuestHasNothingToChange(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{})
	b.must("undefine it while it runs", b.a.fake.Undefine(t.Context(), b.uuid))
	for _, c := range []migration.Change{{}, {Flavor: &pinned3}, {Image: &migration.Image{Path: newImage}}} {
		_, err := operation.PlanChange.Ask(t.Context(), b.a, migration.Ref{Instance: b.uuid}, c)
		if diff := gocmp.Diff([]string{"not_persistent"}, codes(err)); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
	}
}

// A guest that somebody starts while its disk is copied keeps the disk that it writes to.
func TestChange_AGuestStartedWhileItIsCopiedKeepsItsDisk(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
	b.slow = &slowFiles{let: make(chan struct{}), begun: make(chan struct{}, 1)}
	b.crash()
	before := b.view()
	b.look()
	verbs := b.verbs()
	b.must("prepare", errors.Join(verbs[0].do(), verbs[1].do(), verbs[2].do()))
	applied := make(chan error, 1)
	go func() { applied <- verbs[3].do() }()
	waitFor(t, "the copy", func() bool { return b.slow.copies.Load() == 1 })
	b.must("start it by hand", b.a.fake.Start(t.Context(), b.uuid, false))
	close(b.slow.let)
	b.wantKind("apply", <-applied, fault.Busy)
	b.back(3)
	b.same("undone", before)
}

// A confirmation that comes while the change is taken back ends nothing.
func TestFinishChange_IsRefusedOnceTheChangeIsTakenBack(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
	before := b.view()
	b.look()
	b.must("change", b.forward(0))
	again := b.ref
	again.Attempt++
	_, err := operation.PowerOff.Ask(t.Context(), b.a, again, migration.PowerOffRequest{Kind: b.kind})
	b.must("power off to revert", err)
	b.failOn("Define")
	if err := operation.UnapplyChange.Ask(t.Context(), b.a, b.ref); err == nil {
		t.Fatal("taken back without a definition")
	}
	b.wantKind("finish", operation.FinishChange.Ask(t.Context(), b.a, b.ref), fault.Forbidden)
	b.a.fake.Fault(nil)
	b.must("go on", errors.Join(operation.UnapplyChange.Ask(t.Context(), b.a, b.ref), operation.PowerOn.Ask(t.Context(), b.a, b.ref)))
	if got := b.view(); got.Disk != before.Disk || got.Shape != before.Shape || got.Power != before.Power {
		t.Errorf("%s, %s, %s; want %s, %s, %s", got.Disk, got.Shape, got.Power, before.Disk, before.Shape, before.Power)
	}
}

// An image that was given a header of other files since the change was planned is not read.
func TestPrepChange_RefusesAnImageThatIsNoLongerWhole(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{Image: &migration.Image{Path: baseImage, Format: "qcow2"}})
	before := b.view()
	b.look()
	b.files.Put("/etc/shadow", "raw", 1, "secret")
	b.files.Back(baseImage, "/etc/shadow")
	b.must("claim", b.claim())
	err := b.verbs()[1].do()
	if diff := gocmp.Diff([]string{"image_not_whole"}, codes(err)); diff != "" {
		t.Errorf("prepare (-want +got):\n%s\n%v", diff, err)
	}
	b.back(1)
	after := b.view()
	if after.Disk != before.Disk || after.Power != driver.Running {
		t.Errorf("undone: %s, %s", after.Disk, after.Power)
	}
}

// A disk that was removed while its change was prepared keeps no undo from its end.
func TestRollbackPrepChange_EndsWithoutADiskThatWasRemoved(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
	b.look()
	verbs := b.verbs()
	b.must("prepare", errors.Join(verbs[0].do(), verbs[1].do()))
	stamp, err := b.files.Stamp(rootFile)
	b.must("look at the disk", err)
	b.must("remove the disk", b.files.Remove(rootFile, stamp))
	b.back(1)
	if left := b.a.tracker.ByMigration(b.ref.Migration); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
