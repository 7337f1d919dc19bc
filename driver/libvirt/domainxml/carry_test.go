package domainxml_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver/libvirt/domainxml"
)

const carrying = `<domain type='kvm'>
  <name>vm</name>
  <uuid>44444444-4444-4444-8444-444444444444</uuid>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <devices>
    <disk type='file' device='disk'>
      <source file='/a'/>
      <target dev='vda' bus='virtio'/>
      <boot order='1'/>
      <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </disk>
    <disk type='file' device='cdrom'>
      <target dev='sda' bus='sata'/>
      <address type='drive' controller='0' bus='0' target='0' unit='0'/>
    </disk>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='sata' index='0'/>
    <interface type='user'><mac address='52:54:00:00:00:01'/><alias name='ua-x'/></interface>
    <watchdog model='itco'/>
  </devices>
</domain>
`

func TestAttachDisk_TakesWhatIsFree(t *testing.T) {
	const source = `<source file='/b'/>`
	for _, tt := range []struct{ name, element, want string }{
		{"a free name and address", `<disk type='file'>` + source + `<target dev='vdb' bus='virtio'/><address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/></disk>`, `<disk type='file'>` + source + `<target dev='vdb' bus='virtio'/><address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/></disk>`},
		{"a name that is taken", `<disk type='file'>` + source + `<target dev='vda' bus='virtio'/></disk>`, `<disk type='file'>` + source + `<target dev='vdb' bus='virtio'/></disk>`},
		{"an address that is taken", `<disk type='file'>` + source + `<target dev='vdb'/><address type='pci' bus='1' slot='0'/></disk>`, `<disk type='file'>` + source + `<target dev='vdb'/></disk>`},
		{"an address on a controller that is not there", `<disk type='file'>` + source + `<target dev='vdb'/><address type='pci' bus='0x03' slot='0x00'/></disk>`, `<disk type='file'>` + source + `<target dev='vdb'/></disk>`},
		{"a drive's address that is taken", `<disk type='file'>` + source + `<target dev='sdb' bus='sata'/><address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>`, `<disk type='file'>` + source + `<target dev='sdb' bus='sata'/></disk>`},
		{"a drive's address that is free", `<disk type='file'>` + source + `<target dev='sdb' bus='sata'/><address type='drive' controller='0' bus='0' target='0' unit='1'/></disk>`, `<disk type='file'>` + source + `<target dev='sdb' bus='sata'/><address type='drive' controller='0' bus='0' target='0' unit='1'/></disk>`},
		{"boot order and alias of others", `<disk type='file'>` + source + `<target dev='vdb'/><boot order='1'/><alias name='ua-x'/></disk>`, `<disk type='file'>` + source + `<target dev='vdb'/></disk>`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc, err := domainxml.Parse(carrying)
			if err != nil {
				t.Fatal(err)
			}
			target, err := doc.AttachDisk(tt.element)
			if err != nil {
				t.Fatal(err)
			}
			again, err := domainxml.Parse(doc.String())
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := again.DiskElement(target); got != tt.want || !ok {
				t.Errorf("disk %s (-want +got):\n%s", target, cmp.Diff(tt.want, got))
			}
			if diff := cmp.Diff(again.Disks(), doc.Disks()); diff != "" {
				t.Errorf("disks as they are read anew, and as they are told (-anew +told):\n%s", diff)
			}
			// Nothing else has changed, and the way back is exact.
			if err := doc.DetachDisk(target); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Fields(carrying), strings.Fields(doc.String())); diff != "" {
				t.Errorf("detached again (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAttachDisk_RefusesWhatIsNone(t *testing.T) {
	doc, err := domainxml.Parse(carrying)
	if err != nil {
		t.Fatal(err)
	}
	for _, element := range []string{"", "<disk", "<hostdev/>", "<disk/>", "<disk><target dev='vdb'/></disk><disk/>", "<disk><target dev='odd'/></disk><!-- -->" + strings.Repeat(" ", 5<<20)} {
		if target, err := doc.AttachDisk(element); err == nil {
			t.Errorf("%.40q became %s", element, target)
		}
	}
	if err := doc.DetachDisk("vdz"); err == nil {
		t.Error("a disk was detached that is not there")
	}
	if doc.String() != carrying {
		t.Error("a refusal has changed the document")
	}
}

func TestAttachDisk_NamesGoOnAfterZ(t *testing.T) {
	doc, err := domainxml.Parse(carrying)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for range 26 {
		if last, err = doc.AttachDisk(`<disk type='file'><source file='/b'/><target dev='vda'/></disk>`); err != nil {
			t.Fatal(err)
		}
	}
	if last != "vdaa" {
		t.Errorf("the 27th disk is %s, want vdaa", last)
	}
}

func TestDevices_CountsWhatPeopleAttach(t *testing.T) {
	doc, err := domainxml.Parse(carrying)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"watchdog": 1}, doc.Devices()); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}
