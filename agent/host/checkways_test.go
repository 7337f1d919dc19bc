package host

import (
	"testing"

	"berth/migration"
	"berth/migration/options"
)

func TestZeroCopyWay_IsAPlainConnectionOfQEMUsOwn(t *testing.T) {
	by := func(transport migration.Transport) migration.Description {
		return migration.Description{Name: "host-b", Transport: transport}
	}
	on := migration.Options{ZeroCopy: options.On}
	for _, tt := range []struct {
		name string
		o    migration.Options
		dest migration.Description
		tls  bool
		want string
	}{
		{"nobody asks", migration.Options{ZeroCopy: options.Off}, by(migration.TransportStream), true, ""},
		{"a stream", on, by(migration.TransportStream), false, "zero_copy_stream"},
		{"a stream, whatever libvirt's TLS would be", on, by(migration.TransportStream), true, "zero_copy_stream"},
		{"libvirt's TLS, memory too", on, by(migration.TransportLibvirtTLS), true, "zero_copy_tls"},
		{"libvirt's TLS, memory not", on, by(migration.TransportLibvirtTLS), false, ""},
		{"a host that does not say", on, by(""), false, ""},
	} {
		if got := codesOf(zeroCopyWay(tt.o, tt.dest, tt.tls)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestStorageReasons_NameEachDiskThatCannotGoSo(t *testing.T) {
	list := []migration.Disk{{Target: "vda", BackingFile: "/images/base.qcow2"}, {Target: "vdb"}, {Target: "vdc", BackingFile: "/images/base.qcow2"}}
	for _, tt := range []struct {
		mode   string
		copies []string
		want   string
	}{
		{"", []string{"vda", "vdb"}, ""},
		{options.StorageAll, []string{"vda", "vdb"}, ""},
		{options.StorageInc, []string{"vda", "vdb", "vdc"}, "storage_copy_inc storage_copy_inc"},
		{options.StorageInc, []string{"vdb"}, ""}, // all of it is above nothing
		{options.StorageNone, []string{"vda", "vdb"}, "storage_copy_none storage_copy_none"},
		{options.StorageNone, nil, ""},
	} {
		got := storageReasons(migration.Options{CopyStorage: tt.mode}, list, tt.copies, "host-b")
		if codesOf(got) != tt.want {
			t.Errorf("%q of %v: %q, want %q", tt.mode, tt.copies, codesOf(got), tt.want)
		}
		for _, r := range got {
			if r.Change == "" || r.Message == "" {
				t.Errorf("%q: %+v says not what to change", tt.mode, r)
			}
		}
	}
}
