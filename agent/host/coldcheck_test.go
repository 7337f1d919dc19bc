package host_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// edited gives the guest of a move another definition.
func (c *cold) edited(edit func(definition string) string) {
	c.guest.Definition = edit(c.guest.Definition)
}

func (c *cold) checkThere() error {
	here, err := c.a.Describe(c.t.Context())
	c.must("describe", err)
	_, err = operation.CheckDestination.Ask(c.t.Context(), c.b, c.ref, migration.CheckRequest{Guest: c.guest, Source: here, Kind: c.kind(), Wanted: &c.wanted})
	return err
}

func device(xml string) func(string) string {
	return func(definition string) string { return strings.Replace(definition, "</devices>", xml+"</devices>", 1) }
}

// TestColdCheck_WhatKeepsAGuestOnItsHost refuses what another host cannot give a guest
// that is off, and takes what only its running would keep.
func TestColdCheck_WhatKeepsAGuestOnItsHost(t *testing.T) {
	l, v := coldLab(t)
	for _, tt := range []struct {
		name string
		edit func(string) string
		want []string // codes; none for a guest that may come
		says string
	}{
		{"as it is", func(s string) string { return s }, nil, ""},
		{"TPM", device(`<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>`), []string{"device_stays"}, "TPM of type emulator"},
		{"USB device", device(`<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/><product id='0x2'/></source></hostdev>`), []string{"device_stays"}, "usb"},
		{"function that no claim holds", device(`<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='0x3b' slot='0' function='0'/></source></hostdev>`),
			[]string{"device_stays", "document_does_not_fit"}, "3b:00.0"},
		{"shared folder", device(`<filesystem type='mount'><driver type='virtiofs'/><source dir='/srv'/><target dir='src'/></filesystem>`), []string{"device_stays", "path_not_allowed"}, "shared folder"},
		{"redirected USB device", device(`<redirdev bus='usb' type='tcp'><source mode='connect' host='h' service='1'/></redirdev>`), nil, ""},
		{"CPU that does not migrate", func(s string) string {
			return strings.Replace(s, "<devices>", "<cpu mode='host-passthrough' migratable='off'/><devices>", 1)
		}, nil, ""},
		{"kernel that is not there", func(s string) string { return strings.ReplaceAll(s, "/boot/vmlinuz", "/boot/other") }, []string{"file_missing"}, "/boot/other"},
		{"no definition", func(string) string { return "" }, []string{"not_persistent"}, "no definition"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCold(t, l, v.UUID, nil)
			c.edited(tt.edit)
			err := c.checkThere()
			if len(tt.want) == 0 {
				l.must("check", err)
				return
			}
			if got := slices.Compact(codes(err)); !slices.Equal(got, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("reasons %v: %v, want %v that name %q", got, err, tt.want, tt.says)
			}
		})
	}
	for _, n := range l.hosts {
		if len(n.tracker.Contexts()) > 0 {
			t.Error("a check has left something")
		}
	}
}

// TestColdCheck_TellsEveryReason: room for the new flavor, mode, names, the host itself.
func TestColdCheck_TellsEveryReason(t *testing.T) {
	l, v := coldLab(t)
	huge := topology.Flavor{Name: "huge", VCPUs: 64, MemoryMB: 1 << 20}
	c := newCold(t, l, v.UUID, &huge)
	l.guest("b", "vm1")
	l.hosts["b"].mode = "observe"
	err := c.checkThere()
	for _, want := range []string{"mode_observe", "name_exists"} {
		if !slices.Contains(codes(err), want) {
			t.Errorf("reasons %v lack %s: %v", codes(err), want, err)
		}
	}
	l.wantKind("check", err, fault.Forbidden)
	for _, short := range []string{"VCPU", "MEMORY_MB"} {
		if !strings.Contains(err.Error(), short) && !strings.Contains(strings.ToUpper(strings.Join(codes(err), " ")), short[:4]) {
			t.Errorf("%s is short, and not named: %v", short, err)
		}
	}
}

// TestColdCheck_AChangeInPlaceSeesItsOwnAsFree asks the host that has the guest.
func TestColdCheck_AChangeInPlaceSeesItsOwnAsFree(t *testing.T) {
	l, v := coldLab(t)
	a := l.hosts["a"]
	for _, tt := range []struct {
		vcpus int
		fits  bool
	}{{4, true}, {5, false}} { // of the host's 4, the guest has 1
		f := topology.Flavor{Name: "wide", VCPUs: tt.vcpus, MemoryMB: 512, DiskGB: 1}
		c := newCold(t, l, v.UUID, &f)
		here, err := a.Describe(t.Context())
		l.must("describe", err)
		answer, err := operation.CheckDestination.Ask(t.Context(), a, c.ref, migration.CheckRequest{Guest: c.guest, Source: here, Kind: migration.TypeResize, Wanted: &c.wanted})
		if (err == nil) != tt.fits {
			t.Errorf("%d vCPUs: %v", tt.vcpus, err)
		}
		if err == nil {
			_, err = operation.CheckSource.Ask(t.Context(), a, c.ref, answer)
			l.must("check source", err)
			continue
		}
		l.wantKind("check", err, fault.DoesNotFit)
	}
	c := newCold(t, l, v.UUID, nil)
	here, err := a.Describe(t.Context())
	l.must("describe", err)
	_, err = operation.CheckDestination.Ask(t.Context(), a, c.ref, migration.CheckRequest{Guest: c.guest, Source: here, Kind: migration.TypeMigration, Wanted: &c.wanted})
	if !slices.Contains(codes(err), "same_host") {
		t.Errorf("a cold migration to the host itself: %v", err)
	}
}

// TestColdCheck_ASourceRefusesWhatItCannotGive: a guest without definition, and one whose
// definition has other disks than it runs with.
func TestColdCheck_ASourceRefusesWhatItCannotGive(t *testing.T) {
	l, v := coldLab(t)
	c := newCold(t, l, v.UUID, nil)
	here, err := c.a.Describe(t.Context())
	l.must("describe", err)
	answer, err := operation.CheckDestination.Ask(t.Context(), c.b, c.ref, migration.CheckRequest{Guest: c.guest, Source: here, Kind: c.kind(), Wanted: &c.wanted})
	l.must("check destination", err)
	text, err := c.a.fake.XML(t.Context(), v.UUID, driver.Persistent)
	l.must("read", err)
	l.must("define", c.a.fake.Define(t.Context(), device(`<disk type='network' device='disk'><source protocol='nbd' name='x'/><target dev='vdz' bus='virtio'/></disk>`)(text)))
	_, err = operation.CheckSource.Ask(t.Context(), c.a, c.ref, answer)
	if got := codes(err); !slices.Equal(got, []string{"definition_differs"}) {
		t.Errorf("another disk in the definition: %v", err)
	}
	l.must("undefine", c.a.fake.Undefine(t.Context(), v.UUID))
	_, err = operation.CheckSource.Ask(t.Context(), c.a, c.ref, answer)
	if got := codes(err); !slices.Equal(got, []string{"not_persistent"}) {
		t.Errorf("a transient guest: %v", err)
	}
}

// TestCheck_ASharedDiskNeedsItsFilesHere: what a shared disk stands on, and where it has its
// data, is asked for by a move of either kind.
func TestCheck_ASharedDiskNeedsItsFilesHere(t *testing.T) {
	l, world := storedLab(t, true)
	v := l.storedGuest(small)
	c := newCold(t, l, v.UUID, nil)
	l.must("check", c.checkThere())
	d := &c.guest.Disks[0]
	d.BackingFile, d.Outside = "/base/image.raw", []string{"/data/vm1.raw", "nbd://host/vm1"}
	d.Chain = []migration.BackingFile{{Path: d.BackingFile}, {Path: "/base/below.raw"}}
	live := func() error {
		here, err := c.a.Describe(t.Context())
		l.must("describe", err)
		_, err = operation.CheckDestination.Ask(t.Context(), c.b, c.ref, migration.CheckRequest{Guest: c.guest, Source: here})
		return err
	}
	for kind, check := range map[string]func() error{"cold": c.checkThere, "live": live} {
		err := check()
		got := codes(err)
		slices.Sort(got)
		if diff := cmp.Diff([]string{"backing_file_missing", "backing_file_missing", "data_file_missing"}, got); diff != "" || !strings.Contains(err.Error(), "/data/vm1.raw") {
			t.Errorf("%s (-want +got):\n%s\n%v", kind, diff, err)
		}
	}
	for _, path := range []string{"/base/image.raw", "/base/below.raw", "/data/vm1.raw"} {
		world.Host("b").Put(path, "raw", 7, "")
	}
	l.must("check with all of them", c.checkThere())
	l.must("check a live move with all of them", live())
}
