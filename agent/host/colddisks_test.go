package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration/operation"
	"berth/topology"
)

// storedLab has two hosts of two cells, whose disks are in memory; with shared both see
// one folder of images.
func storedLab(t *testing.T, shared bool) (*lab, *diskstest.World) {
	t.Helper()
	l, world := newLab(t, "a", "b"), diskstest.NewWorld()
	if shared {
		world.Share("/images", "a", "b")
	}
	for n, name := range []string{"a", "b"} {
		l.hosts[name].Close()
		l.boot(name, func(o *host.Options) {
			capacity := cellsOf(n)
			o.Files = world.Host(name)
			o.Aliases = func() []flavor.Alias { return nics }
			o.SharedCPUs = func() topology.CPUSet { return capacity.Cells[0].Shared.Union(capacity.Cells[1].Shared) }
			o.Tracker.SetCapacity(capacity)
		})
	}
	l.fleet.SetStorage(func(host string) drivertest.Storage { return world.Host(host) })
	return l, world
}

func (l *lab) storedGuest(f topology.Flavor) host.InstanceView {
	l.t.Helper()
	v, err := l.hosts["a"].Create(l.t.Context(), host.CreateRequest{
		Name: "vm1", Flavor: f, ProjectID: "project", UserID: "user", Start: true,
		Disks: []host.CreateDisk{{Path: "/images/vm1.raw", SizeGB: 1, Format: "raw"}},
	})
	l.must("create", err)
	return v
}

// TestCold_DisksGrowAndComeBack resizes a guest to a larger disk, on storage of both
// hosts and on storage of each: it has the larger one, and the old one when it comes
// back, whatever it has written since; nothing is left beside either.
func TestCold_DisksGrowAndComeBack(t *testing.T) {
	const disk = "/images/vm1.raw"
	for _, shared := range []bool{false, true} {
		for _, confirmed := range []bool{false, true} {
			t.Run(map[bool]string{false: "shipped", true: "shared"}[shared]+map[bool]string{false: ", reverted", true: ", confirmed"}[confirmed], func(t *testing.T) {
				t.Parallel()
				l, world := storedLab(t, shared)
				v := l.storedGuest(small)
				a, b := world.Host("a"), world.Host("b")
				a.Write(disk, "old")
				before := a.List()
				larger := large
				larger.DiskGB = 3
				c := newCold(t, l, v.UUID, &larger)
				for _, s := range c.there() {
					l.must(s.name, s.do())
					if s.name != "ship disks" { // of which nothing is to be had twice
						l.must(s.name+" again", s.do())
					}
				}
				c.lives(c.b, driver.Running, larger, 2)
				if data, size, _ := b.Data(disk); data != "old" || size != 3<<30 {
					t.Errorf("its disk there: %q, %d bytes", data, size)
				}
				b.Write(disk, "written since")
				end, there, want := c.returning(), a, "old"
				if confirmed {
					end, there, want = c.confirm(), b, "written since"
				}
				for _, s := range end {
					l.must(s.name, s.do())
					if s.name == "accept back" && shared {
						if data, size, _ := a.Data(disk); data != "old" || size != 1<<30 {
							t.Errorf("the source has the token, and disk %q of %d bytes", data, size)
						}
					}
					l.must(s.name+" again", s.do())
				}
				if data, _, _ := there.Data(disk); data != want {
					t.Errorf("its disk: %q, want %q", data, want)
				}
				if shared {
					if diff := cmp.Diff(before, a.List()); diff != "" {
						t.Errorf("files (-want +got):\n%s", diff)
					}
					return
				}
				other := map[bool]*diskstest.Files{false: b, true: a}[confirmed]
				if slices.ContainsFunc(other.List(), func(p string) bool { return strings.Contains(p, "vm1") || strings.Contains(p, ".berth") }) {
					t.Errorf("left behind: %v", other.List())
				}
			})
		}
	}
}

// TestCold_PinnedGuestGetsAPlaceOfItsOwn moves a guest with dedicated CPUs, large pages
// and a device between hosts that number all of them otherwise, and back.
func TestCold_PinnedGuestGetsAPlaceOfItsOwn(t *testing.T) {
	l, _ := storedLab(t, true)
	pinned := topology.Flavor{Name: "pinned", VCPUs: 2, MemoryMB: 128, DiskGB: 1, ExtraSpecs: map[string]string{
		"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048", "pci_passthrough:alias": "nic:1",
	}}
	wider := topology.Flavor{Name: "wider", VCPUs: 4, MemoryMB: 256, DiskGB: 1, ExtraSpecs: map[string]string{
		"hw:cpu_policy": "dedicated", "hw:numa_nodes": "2", "hw:mem_page_size": "2048",
	}}
	v := l.storedGuest(pinned)
	pins := func(n *node) (cpus topology.CPUSet, devices int) {
		t.Helper()
		text, err := n.fake.XML(t.Context(), v.UUID, driver.Persistent)
		l.must("read the definition", err)
		doc, err := domainxml.Parse(text)
		l.must("parse the definition", err)
		p, err := doc.Pinning()
		l.must("read the pins", err)
		for _, set := range p.VCPUs {
			cpus = cpus.Union(set)
		}
		return cpus, len(p.Devices)
	}
	was, _ := pins(l.hosts["a"])
	c := newCold(t, l, v.UUID, &wider)
	c.run(c.there(), "")
	claim, _ := c.b.tracker.ByOwner(claims.Owner{Instance: v.UUID, Kind: claims.KindInstance})
	var held topology.CPUSet
	for _, cell := range claim.Assignment.Cells {
		held = held.Union(cell.Exclusive())
	}
	cpus, devices := pins(c.b)
	if !cpus.SameAs(held) || cpus.Len() != 4 || devices != 0 {
		t.Errorf("pinned to %s with %d devices there, its claim holds %s", cpus, devices, held)
	}
	c.run(c.returning(), "")
	if cpus, devices := pins(c.a); !cpus.SameAs(was) || devices != 1 {
		t.Errorf("pinned to %s with %d devices when it is back, was %s with 1", cpus, devices, was)
	}
}

// TestCold_FirmwareVariablesGoAlong ships the file of a guest's firmware variables with
// its disks, and takes it away where the guest is not any more.
func TestCold_FirmwareVariablesGoAlong(t *testing.T) {
	const path = "/var/lib/libvirt/qemu/nvram/vm1_VARS.fd"
	for _, confirmed := range []bool{false, true} {
		l, world := storedLab(t, false)
		for _, name := range []string{"a", "b"} {
			l.hosts[name].Close()
			l.boot(name, func(o *host.Options) { o.Files, o.ImagesDirs = world.Host(name), nil })
		}
		v := l.storedGuest(small)
		text, err := l.hosts["a"].fake.XML(t.Context(), v.UUID, driver.Persistent)
		l.must("read the definition", err)
		l.must("define", l.hosts["a"].fake.Define(t.Context(), strings.Replace(text, "<os>", "<os><nvram>"+path+"</nvram>", 1)))
		a, b := world.Host("a"), world.Host("b")
		a.Put(path, "raw", 7, "entries")
		before := a.List()
		c := newCold(t, l, v.UUID, nil)
		c.run(c.there(), "")
		if !slices.Contains(c.copies, "nvram") {
			t.Fatalf("shipped: %v", c.copies)
		}
		if data, _, _ := b.Data(path); data != "entries" {
			t.Errorf("variables there: %q", data)
		}
		if confirmed {
			c.run(c.confirm(), "")
			if _, _, exists := a.Data(path); exists {
				t.Error("the source still has the variables")
			}
			continue
		}
		c.run(c.returning(), "")
		if _, _, exists := b.Data(path); exists {
			t.Error("the destination still has the variables")
		}
		if diff := cmp.Diff(before, a.List()); diff != "" {
			t.Errorf("files at the source (-want +got):\n%s", diff)
		}
	}
	// What is in the way there is named.
	l, world := storedLab(t, false)
	v := l.storedGuest(small)
	text, err := l.hosts["a"].fake.XML(t.Context(), v.UUID, driver.Persistent)
	l.must("read the definition", err)
	l.must("define", l.hosts["a"].fake.Define(t.Context(), strings.Replace(text, "<os>", "<os><nvram>"+path+"</nvram>", 1)))
	world.Host("b").Put(path, "raw", 7, "another's")
	c := newCold(t, l, v.UUID, nil)
	if err := c.check(); !slices.Contains(codes(err), "firmware_variables_exist") {
		t.Errorf("check: %v", err)
	}
}

// Firmware variables on a block device move only to a host that has the very device: they are
// not shipped, and what another device of that name holds is not overwritten.
func TestCheck_FirmwareVariablesOnADevice(t *testing.T) {
	const path = "/images/vars"
	for _, shared := range []bool{false, true} {
		l, world := storedLab(t, shared)
		v := l.storedGuest(small)
		text, err := l.hosts["a"].fake.XML(t.Context(), v.UUID, driver.Persistent)
		l.must("read the definition", err)
		l.must("define", l.hosts["a"].fake.Define(t.Context(), strings.Replace(text, "<os>", "<os><nvram type='block'><source dev='"+path+"'/></nvram>", 1)))
		l.must("stop", l.hosts["a"].fake.Destroy(t.Context(), v.UUID)) // as it runs it has none
		world.Host("a").Put(path, "raw", 7, "entries")
		c := newCold(t, l, v.UUID, nil)
		for _, there := range []bool{false, true} {
			if there && !shared {
				world.Host("b").Put(path, "raw", 7, "another's")
			}
			err := c.check()
			if got := slices.Contains(codes(err), "firmware_variables_block"); got == shared {
				t.Errorf("shared %v, one is there %v: %v", shared, there, err)
			}
		}
		if slices.Contains(c.copies, "nvram") {
			t.Errorf("shipped: %v", c.copies)
		}
	}
}

// TestPrepResize_LooksForRoomAgain: what filled the folders after the destination was asked
// is told while the guest runs, with path, want and have; of a disk that is shipped, and of
// a larger file in the place of a shared one. What was prepared by then goes.
func TestPrepResize_LooksForRoomAgain(t *testing.T) {
	for _, shared := range []bool{false, true} {
		l, world := storedLab(t, shared)
		v := l.storedGuest(small)
		world.Host("a").Write("/images/vm1.raw", strings.Repeat("x", 9<<20))
		larger := large
		larger.DiskGB = 3
		c := newCold(t, l, v.UUID, &larger)
		before := l.picture()
		c.run(c.there(), "record context")
		world.Host("b").SetFree("/images/vm1.raw", 5<<20)
		if err := c.check(); len(codes(err)) != 1 {
			t.Errorf("shared %v: check: %v", shared, err)
		}
		err := c.there()[3].do()
		c.wantKind("prep resize", err, fault.DoesNotFit)
		for _, r := range fault.ReasonsOf(err) {
			if !strings.Contains(r.Message, "/images/vm1.raw") || r.Want == "" || r.Have != "5 MiB" || r.Change == "" {
				t.Errorf("shared %v: reason %+v", shared, r)
			}
		}
		l.state("a", v.UUID, driver.Running)
		l.must("roll back", operation.RollbackPrepResize.Ask(t.Context(), c.b, c.ref))
		l.must("drop context", operation.DropContext.Ask(t.Context(), c.a, c.ref))
		l.must("abort claim", operation.AbortClaim.Ask(t.Context(), c.b, c.ref))
		l.same("left behind", before)
	}
}
