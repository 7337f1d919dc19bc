package host

import "testing"

func TestFileOwner(t *testing.T) {
	for _, tt := range []struct {
		name, labels string
		uid, gid     int
		ok           bool
	}{
		{"libvirt's own", "<seclabel type='dynamic' model='dac' relabel='yes'><label>+64055:+109</label><imagelabel>+64055:+109</imagelabel></seclabel>", 64055, 109, true},
		{"beside another model", "<seclabel type='dynamic' model='apparmor' relabel='yes'><label>libvirt-1</label><imagelabel>libvirt-1</imagelabel></seclabel>" +
			"<seclabel type='static' model='dac' relabel='yes'><label>+7:+8</label><imagelabel>+7:+8</imagelabel></seclabel>", 7, 8, true},
		{"owners stay as they are", "<seclabel type='static' model='dac' relabel='no'><label>+7:+8</label></seclabel>", 0, 0, false},
		{"a name", "<seclabel type='static' model='dac' relabel='yes'><imagelabel>qemu:kvm</imagelabel></seclabel>", 0, 0, false},
		{"none", "", 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			uid, gid, ok := fileOwner("<domain><name>g</name>" + tt.labels + "</domain>")
			if uid != tt.uid || gid != tt.gid || ok != tt.ok {
				t.Errorf("%d, %d, %v, want %d, %d, %v", uid, gid, ok, tt.uid, tt.gid, tt.ok)
			}
		})
	}
}
