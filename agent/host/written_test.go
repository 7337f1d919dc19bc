package host_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/agent/host"
	"berth/migration"
	"berth/migration/operation"
)

// A peer's instance would write what an instance of this host stands on that is off: no domain XML names
// that. An overlay of its own on the same template is taken.
func TestPrepare_WhatInstancesThatAreOffStandOnIsNotWritten(t *testing.T) {
	l, id := imagesLab(t)
	c := newCold(t, l, id, nil)
	b := l.hosts["b"]
	b.putHeader(t, "-F", "qcow2", "-b", "/images/template.qcow2")
	b.qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", "/images/template.qcow2", b.path("/images/clone.qcow2"), "1M")
	_, err := b.Create(t.Context(), host.CreateRequest{
		Name: "clone", Flavor: small, ProjectID: "project", UserID: "user", Kernel: "/boot/vmlinuz", Disks: []host.CreateDisk{{Path: "/images/clone.qcow2", Format: "qcow2"}},
	})
	l.must("create a clone", err)
	for _, tt := range []struct{ path, code string }{
		{sharedImage, ""},
		{"/images/template.qcow2", "used_by_other"},
		{"/images/.berth-m-1-vda.kept", "file_of_berth"},
	} {
		for _, kind := range []string{migration.TypeLiveMigration, migration.TypeMigration} {
			t.Run(tt.path+", "+kind, func(t *testing.T) {
				g, ref := c.guest, c.ref
				g.XML, g.Definition = strings.ReplaceAll(g.XML, sharedImage, tt.path), strings.ReplaceAll(g.Definition, sharedImage, tt.path)
				ref.Migration = uuid.NewString()
				_, err := operation.Claim.Ask(t.Context(), b, ref, migration.ClaimRequest{Guest: g, Context: c.context(), Kind: kind})
				l.must("claim", err)
				undo := operation.RollbackPreLiveMigration
				if kind == migration.TypeMigration {
					undo = operation.RollbackPrepResize
					_, err = operation.PrepResize.Ask(t.Context(), b, ref, migration.PrepRequest{Kind: kind, Guest: g, Wanted: c.wanted, Source: "a"})
				} else {
					_, err = operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: g, Source: "a"})
				}
				refusedFor(t, err, tt.code)
				l.must("roll back", undo.Ask(t.Context(), b, ref))
				l.must("abort the claim", operation.AbortClaim.Ask(t.Context(), b, ref))
			})
		}
	}
}

// What is grown is the disk of the definition, whatever the peer's list of disks says of it.
func TestPrepResize_GrowsNoDiskThatOthersUse(t *testing.T) {
	l, id := imagesLab(t)
	large := small
	large.Name, large.DiskGB = "large", 2
	c := newCold(t, l, id, &large)
	b := l.hosts["b"]
	b.putHeader(t, "-F", "qcow2", "-b", "/images/template.qcow2")
	c.run(c.there()[1:], "claim")
	c.wanted.Grow = []migration.DiskGrowth{{Target: "vda", VirtualSize: 2 << 30}}
	c.guest.Definition = strings.ReplaceAll(c.guest.Definition, sharedImage, "/images/other.raw")
	c.guest.XML = strings.ReplaceAll(c.guest.XML, sharedImage, "/images/other.raw")
	c.guest.Definition = strings.Replace(c.guest.Definition, "</disk>", "<shareable/></disk>", 1)
	other, _ := b.tracker.InstanceByName("other")
	b.fake.ChangeGuest(other.UUID, func(text string) string { return strings.Replace(text, "</disk>", "<shareable/></disk>", 1) })
	_, err := operation.PrepResize.Ask(t.Context(), b, c.ref, migration.PrepRequest{Kind: migration.TypeResize, Guest: c.guest, Wanted: c.wanted, Source: "a"})
	refusedFor(t, err, "disk_used_by_others")
}
