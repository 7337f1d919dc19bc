package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// oddDisks are disks of every type that no move takes along, as libvirt writes them.
var oddDisks = map[string]string{
	"volume":     `<disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='images' volume='v'/><target dev='vdx' bus='virtio'/></disk>`,
	"nvme":       `<disk type='nvme' device='disk'><driver name='qemu' type='raw'/><source type='pci' managed='yes' namespace='1'><address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></source><target dev='vdx' bus='virtio'/></disk>`,
	"vhostuser":  `<disk type='vhostuser' device='disk'><driver name='qemu' type='raw'/><source type='unix' path='/run/openvswitch/blk.sock'/><target dev='vdx' bus='virtio'/></disk>`,
	"vhostvdpa":  `<disk type='vhostvdpa' device='disk'><driver name='qemu' type='raw'/><source dev='/elsewhere/vhost-vdpa-0'/><target dev='vdx' bus='virtio'/></disk>`,
	"dir":        `<disk type='dir' device='disk'><driver name='qemu' type='fat'/><source dir='/images'/><target dev='vdx' bus='virtio'/><readonly/></disk>`,
	"of a later": `<disk type='future' device='disk'><driver name='qemu' type='raw'/><source thing='x'/><target dev='vdx' bus='virtio'/></disk>`,
	"served":     `<disk type='network' device='disk'><driver name='qemu' type='raw'/><source protocol='nbd'><host transport='unix' socket='/run/openvswitch/nbd.sock'/></source><target dev='vdx' bus='virtio'/></disk>`,
}

// oddWays are the ways by which an instance comes to another host. Each is asked of a guest whose
// domain XMLs were edited, as a hostile source does.
var oddWays = map[string]func(c *cold, g migration.Guest) error{
	"live check": func(c *cold, g migration.Guest) error { return checkAs(c, g, "") },
	"live preparation": func(c *cold, g migration.Guest) error {
		return prepareAs(c, g, migration.TypeLiveMigration, func(ref migration.Ref) error {
			_, err := operation.PreLiveMigration.Ask(c.t.Context(), c.b, ref, migration.PreLiveRequest{Guest: g, Source: "a"})
			c.must("roll back", operation.RollbackPreLiveMigration.Ask(c.t.Context(), c.b, ref))
			return err
		})
	},
	"cold check": func(c *cold, g migration.Guest) error { return checkAs(c, g, migration.TypeMigration) },
	"cold preparation": func(c *cold, g migration.Guest) error {
		return prepareAs(c, g, migration.TypeMigration, func(ref migration.Ref) error {
			_, err := operation.PrepResize.Ask(c.t.Context(), c.b, ref, migration.PrepRequest{Kind: migration.TypeMigration, Guest: g, Wanted: c.wanted, Source: "a"})
			c.must("roll back", operation.RollbackPrepResize.Ask(c.t.Context(), c.b, ref))
			return err
		})
	},
	"resize check":     func(c *cold, g migration.Guest) error { return checkAs(c, g, migration.TypeResize) },
	"evacuation check": func(c *cold, g migration.Guest) error { return checkAs(c, g, migration.TypeEvacuation) },
	"evacuation preparation": func(c *cold, g migration.Guest) error {
		return prepareAs(c, g, migration.TypeEvacuation, func(ref migration.Ref) error {
			_, err := operation.PrepEvacuation.Ask(c.t.Context(), c.b, ref, migration.EvacuationRequest{Guest: g, Source: "a", AcceptLoss: true})
			return err
		})
	},
}

func checkAs(c *cold, g migration.Guest, kind string) error {
	source, err := c.a.Describe(c.t.Context())
	c.must("describe", err)
	_, err = operation.CheckDestination.Ask(c.t.Context(), c.b, c.ref, migration.CheckRequest{Guest: g, Source: source, Kind: kind, Wanted: &c.wanted})
	return err
}

func prepareAs(c *cold, g migration.Guest, kind string, prepare func(migration.Ref) error) error {
	ref := c.ref
	ref.Migration = uuid.NewString()
	_, err := operation.Claim.Ask(c.t.Context(), c.b, ref, migration.ClaimRequest{Guest: g, Context: c.context(), Kind: kind, Lease: time.Minute})
	c.must("claim", err)
	err = prepare(ref)
	c.must("abort the claim", operation.AbortClaim.Ask(c.t.Context(), c.b, ref))
	return err
}

// TestDiskTypes_NoWayTakesADiskThatNoMoveCarries: whichever of its two domain XMLs has it, each way to another
// host refuses it by its name, with a remedy, before anything is made.
func TestDiskTypes_NoWayTakesADiskThatNoMoveCarries(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	c := newCold(t, l, v.UUID, nil)
	for way, ask := range oddWays {
		if err := ask(c, c.guest); err != nil && way != "evacuation preparation" { // which cannot be given back here
			t.Fatalf("%s of the instance as it is: %v", way, err)
		}
		for kind, xml := range oddDisks {
			for _, where := range []string{"running", "defined"} {
				t.Run(way+", "+kind+", "+where, func(t *testing.T) {
					g := c.guest
					if where == "running" {
						g.XML = device(xml)(g.XML)
					}
					if where == "defined" || !strings.HasPrefix(way, "live") {
						g.Definition = device(xml)(g.Definition)
					}
					g.Disks = append(g.Disks[:len(g.Disks):len(g.Disks)], migration.Disk{Target: "vdx", Network: kind == "served"})
					err := ask(c, g)
					if err == nil {
						t.Fatal("it may come")
					}
					remedy := "virsh detach-disk vm1 vdx --"
					if way == "evacuation check" {
						remedy = "berth instance create vm1 --xml FILE"
					}
					// Before it is admitted its PCI device has to be one of its claim.
					named := kind == "nvme" && strings.Contains(err.Error(), "nothing stands for PCI device")
					for _, r := range fault.ReasonsOf(err) {
						if strings.HasPrefix(r.Message, "disk vdx (") && strings.Contains(r.Change, remedy) {
							named = true
						}
						if strings.Contains(r.Change, "shut off") {
							t.Errorf("the remedy is refused too: %q", r.Change)
						}
					}
					if !named {
						t.Errorf("%v, reasons %+v", err, fault.ReasonsOf(err))
					}
				})
			}
		}
	}
	l.state("a", v.UUID, driver.Running)
}

// TestDiskTypes_DeleteNamesTheDisksThatStay: a deletion with disks removes files alone, and says so of the
// others.
func TestDiskTypes_DeleteNamesTheDisksThatStay(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	for kind, xml := range oddDisks {
		t.Run(kind, func(t *testing.T) {
			l.must("define", a.fake.Define(t.Context(), foreignXML("odd", xml, "")))
			_, err := a.Adopt(t.Context(), "odd")
			l.must("adopt", err)
			out, err := a.Host.Delete(t.Context(), "odd", host.DeleteOptions{Force: true, Disks: true})
			l.must("delete", err)
			want := 1
			if kind == "dir" {
				want = 0 // it is only read
			}
			if len(out.Kept) != want {
				t.Fatalf("kept %+v, want %d disks", out.Kept, want)
			}
			if want > 0 && (out.Kept[0].Disk != "vdx" || out.Kept[0].Reason == "" || out.Kept[0].Change == "") {
				t.Errorf("kept %+v", out.Kept)
			}
		})
	}
}
