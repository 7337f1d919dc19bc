package topology

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// PCIAddress names a PCI function: domain:bus:device.function. Domains have up
// to 32 bits: Intel VMD and Hyper-V number theirs from 0x10000 up. The zero value
// is the valid address 0000:00:00.0, so "none" is a nil pointer.
type PCIAddress struct {
	Domain   uint32
	Bus      uint8
	Device   uint8 // 0..31
	Function uint8 // 0..7
}

// ParsePCIAddress reads "0000:3b:00.1" as sysfs spells it: four to eight
// hexadecimal digits of domain, then two, two and one.
func ParsePCIAddress(text string) (PCIAddress, error) {
	bad := func() (PCIAddress, error) {
		return PCIAddress{}, fmt.Errorf("parse PCI address %s: not DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal", abridge(text))
	}
	domain, rest, ok := strings.Cut(text, ":")
	if !ok || len(domain) < 4 || len(domain) > 8 || len(rest) != len("3b:00.1") || rest[2] != ':' || rest[5] != '.' {
		return bad()
	}
	d, ok0 := parseHex(domain, 32)
	b, ok1 := parseHex(rest[0:2], 8)
	s, ok2 := parseHex(rest[3:5], 5)
	f, ok3 := parseHex(rest[6:7], 3)
	if !ok0 || !ok1 || !ok2 || !ok3 {
		return bad()
	}
	return PCIAddress{Domain: uint32(d), Bus: uint8(b), Device: uint8(s), Function: uint8(f)}, nil
}

// parseHex takes hexadecimal digits only: no sign, prefix or underscore.
func parseHex(text string, bits int) (uint64, bool) {
	for _, c := range []byte(text) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(text, 16, bits)
	return n, err == nil
}

// String gives sysfs's form: "0000:3b:00.1", the domain longer where it needs to be.
func (a PCIAddress) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders addresses by domain, bus, device and function.
func (a PCIAddress) Compare(b PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// MarshalText writes the form of String.
func (a PCIAddress) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the form of ParsePCIAddress.
func (a *PCIAddress) UnmarshalText(text []byte) error {
	parsed, err := ParsePCIAddress(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}

// PCIDevice is one PCI function of the host (sys/bus/pci/devices/ADDRESS).
type PCIDevice struct {
	Address PCIAddress `json:"address"`
	Vendor  string     `json:"vendor"`  // four digits, "0x8086" (vendor)
	Product string     `json:"product"` // four digits, "0x1563"; the kernel's file is called device
	Class   string     `json:"class"`   // six digits, "0x020000" (class)

	// NUMANode is the cell the function is attached to, UnknownCell when the
	// kernel does not know (numa_node).
	NUMANode CellID `json:"numa_node"`

	// PhysFn is the physical function that this virtual function belongs to
	// (link physfn); nil for everything that is not a VF.
	PhysFn *PCIAddress `json:"physfn"`

	// VFs are the virtual functions that are switched on now (links virtfn*);
	// TotalVFs is how many there could be (sriov_totalvfs), zero for a function
	// without SR-IOV.
	VFs      []PCIAddress `json:"vfs,omitempty"`
	TotalVFs int          `json:"sriov_totalvfs,omitempty"`

	// IOMMUGroup is the number of the group that can only be handed out as a
	// whole (link iommu_group); nil without an IOMMU.
	IOMMUGroup *int `json:"iommu_group,omitempty"`

	Driver          string `json:"driver,omitempty"`           // bound driver (link driver); "" when none
	SubsystemVendor string `json:"subsystem_vendor,omitempty"` // four digits; "" when unknown
	SubsystemDevice string `json:"subsystem_device,omitempty"` // four digits; "" when unknown
	SerialNumber    string `json:"serial_number,omitempty"`    // keyword SN of the device's vital product data (vpd); "" when unknown

	// Mdev are the kinds of mediated device that the function offers
	// (mdev_supported_types), ascending by name.
	Mdev []MdevType `json:"mdev_types,omitempty"`
}

// MdevType is a kind of mediated device that a parent device can make.
type MdevType struct {
	Name      string `json:"name"`                // the directory, "nvidia-35", as Nova's enabled_mdev_types
	Label     string `json:"label,omitempty"`     // the file name; "" when the driver gives none
	DeviceAPI string `json:"device_api"`          // "vfio-pci" (device_api)
	Available int    `json:"available_instances"` // how many more can be made now, a moving value
}

// Mdev is one mediated device that was made (sys/bus/mdev/devices/UUID).
type Mdev struct {
	UUID   string     `json:"uuid"`   // lower case, with dashes
	Parent PCIAddress `json:"parent"` // the function that it is made of
	Type   string     `json:"type"`   // MdevType.Name (link mdev_type)
}
