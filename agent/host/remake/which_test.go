package remake

import (
	"errors"
	"testing"

	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// The first disk is the root disk whatever its type is: with one of a type that has no path passed
// over, an image would replace the data disk behind it.
func TestRootDisk_OfATypeWithoutAPath_IsNotPassedOver(t *testing.T) {
	const data = "<disk type='file' device='disk'><source file='/images/data.raw'/><target dev='vdb'/></disk>"
	for name, tt := range map[string]struct {
		first, root string
		replace     bool
	}{
		"nvme":           {"<disk type='nvme' device='disk'><source type='pci' namespace='1'><address domain='0' bus='1' slot='0' function='0'/></source><target dev='vda'/></disk>", "vda", false},
		"unnamed export": {"<disk type='network' device='disk'><source protocol='nbd'><host name='h'/></source><target dev='vda'/></disk>", "vda", false},
		"vhostuser":      {"<disk type='vhostuser' device='disk'><source type='unix' path='/run/s'/><target dev='vda'/></disk>", "vda", false},
		"later type":     {"<disk type='future' device='disk'><source thing='x'/><target dev='vda'/></disk>", "vda", false},
		"CD-ROM":         {"<disk type='file' device='cdrom'><target dev='sda'/></disk>", "vdb", true},
		"read-only dir":  {"<disk type='dir' device='disk'><source dir='/d'/><target dev='vda'/><readonly/></disk>", "vdb", true},
	} {
		doc, err := domainxml.Parse("<domain type='kvm'><name>i</name><uuid>11111111-2222-4333-8444-555555555555</uuid><memory unit='MiB'>128</memory><vcpu>1</vcpu><devices>" + tt.first + data + "</devices></domain>")
		if err != nil {
			t.Fatal(err)
		}
		d, err := RootDisk(doc)
		if err != nil || d.Target != tt.root {
			t.Errorf("%s: root disk %s, %v; want %s", name, d.Target, err, tt.root)
		}
		if err := MayReplace(d); (err == nil) != tt.replace || err != nil && !errors.Is(err, fault.Forbidden) {
			t.Errorf("%s: may be replaced: %v", name, err)
		}
	}
}
