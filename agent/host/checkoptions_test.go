package host

import (
	"strings"
	"testing"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/options"
	"berth/topology"
)

func TestPostCopyGuest_GivesEveryReason(t *testing.T) {
	parse := func(text string) document {
		t.Helper()
		d, err := parseDocument("<domain type='qemu'><name>g</name><uuid>11111111-1111-4111-8111-111111111111</uuid>" + text + "</domain>")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, tt := range []struct {
		name   string
		doc    string
		power  migration.PowerState
		copies []string
		want   string
	}{
		{"any guest", "", migration.PowerRunning, nil, ""},
		{"a paused one", "", migration.PowerPaused, nil, "post_copy_paused"},
		{"one with VFIO", "<devices><hostdev mode='subsystem' type='pci'><source><address bus='0x3b'/></source></hostdev></devices>", migration.PowerRunning, nil, "post_copy_device"},
		{"one with an mdev", "<devices><hostdev mode='subsystem' type='mdev'/></devices>", migration.PowerRunning, nil, "post_copy_device"},
		{"locked memory and a local disk", "<memoryBacking><locked/></memoryBacking>", migration.PowerRunning, []string{"vda"}, "post_copy_disks post_copy_locked"},
	} {
		got := postCopyGuest(parse(tt.doc), migration.Guest{Name: "g", PowerState: tt.power}, tt.copies)
		if codesOf(got) != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, codesOf(got), tt.want)
		}
	}
}

func TestPostCopyNode_NeedsARecoveryOnEitherSide(t *testing.T) {
	fleet := drivertest.NewFleet(new(runtime.System))
	defer fleet.Close()
	d := fleet.Host("a")
	node := driver.Node{Hypervisor: "QEMU", LibraryVersion: 8_005_000, Cannot: map[driver.Ability]string{}}
	if got := postCopyNode(d, node, "a"); got != nil {
		t.Errorf("of a libvirt that has it all: %+v", got)
	}
	node.LibraryVersion = 8_004_999
	if got := postCopyNode(d, node, "a"); codesOf(got) != "post_copy_libvirt_too_old" || got[0].Have != "8.4.999" {
		t.Errorf("of an older one: %+v", got)
	}
	node.LibraryVersion = 9_000_000
	node.Cannot[driver.AbilityPostCopy], node.Cannot[driver.AbilityRecovery] = "x", "y"
	if got := postCopyNode(d, node, "a"); codesOf(got) != "no_post_copy no_post_copy_recovery" {
		t.Errorf("of one that cannot: %+v", got)
	}
}

func TestPostCopyComing_NotToALibvirtThatDiesOfIt(t *testing.T) {
	for version, want := range map[driver.Version]string{
		9_000_000: "", 11_001_999: "", 11_002_000: "post_copy_libvirt_dies", 11_003_000: "post_copy_libvirt_dies", 11_004_000: "", 12_000_000: "",
	} {
		got := postCopyComing(driver.Node{Hypervisor: "QEMU", LibraryVersion: version}, "b")
		if codesOf(got) != want {
			t.Errorf("libvirt %d: %+v, want %q", version, got, want)
		}
	}
}

func TestOptionReasons_NameWhatTheHypervisorLacksAndTheMoveUses(t *testing.T) {
	node := driver.Node{MigrationOptions: map[string]string{
		"compression.zstd": "since 9.4", "zero_copy": "since 8.5", "migrate_disks_detect_zeroes": "since 10.9", "parallel_connections": "since 5.2",
	}}
	o := migration.Options{Compression: []string{"zstd"}, Parallel: 4, ZeroCopy: options.Off, DetectZeroes: options.On}
	wants := func(copies []string) (out []string) {
		for _, r := range optionReasons(o, copies, node, "a") {
			out = append(out, r.Want)
		}
		return out
	}
	if got := strings.Join(wants(nil), " "); got != "compression.zstd parallel_connections" {
		t.Errorf("without disks to copy: %s", got)
	}
	if got := strings.Join(wants([]string{"vda"}), " "); got != "compression.zstd migrate_disks_detect_zeroes parallel_connections" {
		t.Errorf("with one: %s", got)
	}
}

func TestZeroCopyReasons_HoldTheGuestAgainstTheLimit(t *testing.T) {
	g := migration.Guest{Resources: topology.Resources{MemoryMB: 128}}
	limited := document{}
	limited.MemTune.HardLimit = "65536"
	enough := document{}
	enough.MemTune.HardLimit = "1048576"
	locked := document{}
	locked.MemoryBacking.Locked = new(struct{})
	for _, tt := range []struct {
		name    string
		doc     document
		zero    options.Switch
		mayLift bool
		refused bool
	}{
		{"not asked for", limited, options.Unsaid, false, false},
		{"a limit below its memory", limited, options.On, true, true},
		{"a limit above", enough, options.On, true, false},
		{"a daemon that may lift none", document{}, options.On, false, true},
		{"the same, and memory that is locked already", locked, options.On, false, false},
		{"a daemon that may", document{}, options.On, true, false},
	} {
		got := zeroCopyReasons(tt.doc, g, migration.Options{ZeroCopy: tt.zero}, tt.mayLift, "a")
		if (len(got) > 0) != tt.refused {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	if !liftsLimits("") || !liftsLimits("/nowhere") {
		t.Error("of a daemon that cannot be seen not all is believed")
	}
}
