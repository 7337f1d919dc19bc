package host_test

import (
	"slices"
	"strings"
	"testing"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// TestEvacuationCheck_WhatKeepsALostGuestAway refuses what this host cannot give, and takes a
// guest of whom an older agent has told little.
func TestEvacuationCheck_WhatKeepsALostGuestAway(t *testing.T) {
	of := func(edit func(string) string) func(*evacuation) {
		return func(e *evacuation) { e.request.Guest.Definition = edit(e.request.Guest.Definition) }
	}
	for _, tt := range []struct {
		name   string
		change func(*evacuation)
		want   []string // codes; nil for a guest that may come
	}{
		{"as it is", func(*evacuation) {}, nil},
		{"a record of an older agent", func(e *evacuation) {
			g := &e.request.Guest
			e.source = migration.Description{Name: "a"}
			g.Definition, g.Assignment.Cells, g.Allocations = "", nil, nil
			for i := range g.Disks {
				g.Disks[i].Chain, g.Disks[i].Outside = nil, nil
			}
		}, nil},
		{"a definition that is garbled", of(func(s string) string { return s[:len(s)/2] }), []string{}},
		{"TPM", of(device(`<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>`)), []string{"device_stays"}},
		{"function that no claim holds", of(device(`<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='0x3b' slot='0' function='0'/></source></hostdev>`)),
			[]string{"device_stays", "document_does_not_fit"}},
		{"a network that is not here", of(device(`<interface type='network'><source network='blue'/></interface>`)), []string{"network_missing"}},
		{"a kernel that is not here", of(func(s string) string { return strings.Replace(s, "<os>", "<os><kernel>/boot/other</kernel>", 1) }), []string{"file_missing"}},
		{"another guest has its name", func(e *evacuation) {
			e.world.Host("b").Put("/boot/vmlinuz", "raw", 1, "kernel")
			e.guest("b", "vm")
		}, []string{"name_exists"}},
		{"the dead host by another name", func(e *evacuation) {
			here, err := e.b.Describe(t.Context())
			e.must("describe", err)
			e.source.ProviderUUID, e.source.HostUUID = here.ProviderUUID, here.HostUUID
		}, []string{"same_host"}},
		{"another architecture", func(e *evacuation) { e.source.Arch = "s390x" }, []string{"arch_differs"}},
		{"a backing file that is not shared", func(e *evacuation) { e.request.Guest.Disks[1].BackingFile = "/elsewhere/base" }, []string{"backing_file_missing"}},
		{"a device that it does not share", func(e *evacuation) {
			e.request.Guest.Definition = strings.Replace(e.request.Guest.Definition, "</devices>",
				"<disk type='block' device='disk'><source dev='/dev/vg/x'/><target dev='vdc' bus='virtio'/></disk></devices>", 1)
			e.request.Guest.XML = e.request.Guest.Definition
			e.request.Guest.Disks = append(e.request.Guest.Disks, migration.Disk{Target: "vdc", Path: "/dev/vg/x", Format: "raw"})
		}, []string{migration.ReasonDiskUnreachable}},
		{"a host that observes", func(e *evacuation) { e.b.mode = "observe" }, []string{"mode_observe"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEvacuation(t, driver.Running)
			tt.change(e)
			before := e.picture()
			_, err := e.check()
			if got := slices.Compact(codes(err)); !slices.Equal(got, tt.want) || (err != nil) != (tt.want != nil) {
				t.Errorf("reasons %v, want %v: %s, %v", got, tt.want, fault.KindOf(err), err)
			}
			e.same("after the check", before)
		})
	}
}
