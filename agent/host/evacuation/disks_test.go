package evacuation

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks/diskstest"
	"berth/internal/fault"
	"berth/migration"
)

func TestSource_OfEachDisk(t *testing.T) {
	g := migration.Guest{Disks: []migration.Disk{
		{Target: "hda", Path: "/i/cd.iso", ReadOnly: true},
		{Target: "vda", Path: "/i/vda", Image: &migration.Image{Path: "/i/base.qcow2"}},
		{Target: "vdb", Path: "/i/vdb", Image: &migration.Image{}},
		{Target: "vdc", Path: "/i/vdc"},
	}}
	unknown := migration.Guest{Disks: []migration.Disk{{Target: "vda", Path: "/i/vda"}}}
	named := &migration.Image{Path: "/i/other.img"}
	for _, c := range []struct {
		name, target string
		g            migration.Guest
		named        *migration.Image
		here         bool
		want         *migration.Image
	}{
		{"its record's image", "vda", g, nil, true, &migration.Image{Path: "/i/base.qcow2", Format: "qcow2"}},
		{"its record's before one that is named", "vda", g, named, true, &migration.Image{Path: "/i/base.qcow2", Format: "qcow2"}},
		{"one that is named where its record's is not here", "vda", g, named, false, &migration.Image{Path: "/i/other.img", Format: "raw"}},
		{"made empty", "vdb", g, named, false, &migration.Image{}},
		{"an image is for the first disk alone", "vdc", g, named, true, nil},
		{"not for what is only read", "hda", g, named, true, nil},
		{"nobody knows, and one is named", "vda", unknown, named, true, &migration.Image{Path: "/i/other.img", Format: "raw"}},
		{"nobody knows", "vda", unknown, nil, true, nil},
	} {
		if diff := cmp.Diff(c.want, Source(c.g, c.target, c.named, func(string) bool { return c.here })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestCheckMade_TellsEveryReason(t *testing.T) {
	files := diskstest.NewWorld().Host("b")
	files.Put("/i/base.qcow2", "qcow2", 1<<30, "system")
	files.Put("/i/base.raw", "raw", 1<<30, "system")
	files.Put("/i/part.qcow2", "qcow2", 1<<30, "x")
	files.Put("/etc/shadow", "raw", 1, "x")
	files.Back("/i/part.qcow2", "/etc/shadow")
	disk := func(target, path, image string) migration.Disk {
		return migration.Disk{Target: target, Path: path, Format: "raw", VirtualSize: 1 << 30, Image: &migration.Image{Path: image}}
	}
	g := migration.Guest{Disks: []migration.Disk{
		disk("vda", "/i/vda", "/i/none.raw"), disk("vdb", "/i/vdb", "/i/part.qcow2"), disk("vdc", "/etc/vdc", "/i/base.raw"), disk("vdd", "/i/vdd", "/i/base.raw"),
		{Target: "vde", Path: "/i/vde"},
	}}
	var no fault.Refusal
	place := func(path string) (fault.Reason, bool) { return fault.Reason{Code: "disk_place"}, path == "/etc/vdc" }
	if err := CheckMade(t.Context(), files, &no, g, []string{"vda", "vdb", "vdc", "vdd", "vde"}, nil, "b", place); err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, r := range no.Reasons {
		codes = append(codes, r.Code)
	}
	if diff := cmp.Diff([]string{ReasonImageMissing, "image_not_whole", "disk_place"}, codes); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	files.SetFree("/i/vdd", 1)
	no = fault.Refusal{}
	if err := CheckMade(t.Context(), files, &no, g, []string{"vdd"}, nil, "b", place); err != nil || len(no.Reasons) != 1 || no.Reasons[0].Code != "disk_room_short" {
		t.Errorf("without room: %v, %+v", err, no.Reasons)
	}
}
