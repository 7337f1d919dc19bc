package pci

import (
	"fmt"
	"strings"

	"berth/topology"
)

// Device is a PCI function that a Spec gives to guests.
type Device struct {
	Address topology.PCIAddress `json:"address"`
	Vendor  string              `json:"vendor_id"`  // four hexadecimal digits, without 0x
	Product string              `json:"product_id"` // four hexadecimal digits, without 0x
	Type    topology.PCIType    `json:"dev_type"`
	Cell    topology.CellID     `json:"numa_node"` // UnknownCell when unknown

	Parent *topology.PCIAddress  `json:"parent,omitempty"`      // of a VF its PF
	VFs    []topology.PCIAddress `json:"vfs,omitempty"`         // of a PF all VFs there are, those that no Spec means included
	Group  []topology.PCIAddress `json:"iommu_group,omitempty"` // the other functions of its IOMMU group, bridges left out

	Managed        bool              `json:"managed"` // libvirt unbinds the host's driver
	LiveMigratable bool              `json:"live_migratable"`
	Tags           map[string]string `json:"tags"`

	// Unfit are the reasons for which no guest may get the function; empty for
	// one that may be given.
	Unfit []Reason `json:"unfit,omitempty"`
}

// Reason is a remark on device_spec, or why a Device is unfit.
type Reason struct {
	Code    string               `json:"code"`
	Message string               `json:"message"`          // in an operator's words
	Device  *topology.PCIAddress `json:"device,omitempty"` // nil when it is about none
	Change  string               `json:"change,omitempty"` // what would have to change
}

// The codes of reasons.
const (
	SpecInvalid   = "pci_spec_invalid"   // a Spec that Validate refuses; it means no function
	SpecUnmatched = "pci_spec_unmatched" // a Spec that is the first of no function
	NoIOMMU       = "pci_no_iommu"       // no function of the host has an IOMMU group
	NoGroup       = "pci_no_iommu_group" // unfit: others have a group, this has none
	GroupHeld     = "pci_group_held"     // unfit: a driver of the host holds another function of the group
	Bridge        = "pci_bridge"         // unfit
	NotVF         = "pci_not_vf"         // unfit: remote_managed and not a VF
	NoSerial      = "pci_no_serial"      // unfit: remote_managed without a card serial
	Degraded      = "pci_degraded"       // unfit: the function could not be read soundly
)

// TypeOf is Nova's type of a function: a VF has a physical function, a PF has
// SR-IOV, switched on or not.
func TypeOf(d *topology.PCIDevice) topology.PCIType {
	switch {
	case d.PhysFn != nil:
		return topology.PCITypeVF
	case d.TotalVFs > 0 || len(d.VFs) > 0:
		return topology.PCITypePF
	}
	return topology.PCITypeFunction
}

// Devices gives the functions of the host that the specs mean, ascending by
// address, and every remark: what is wrong with a spec, and all reasons for
// which a Device is unfit. The first spec that matches a function decides.
func Devices(h *topology.Host, specs []Spec) ([]Device, []Reason) {
	var reasons []Reason
	matchers := make([]*matcher, len(specs))
	for i, s := range specs {
		m, faults := s.compile()
		for _, f := range faults {
			reasons = append(reasons, Reason{Code: SpecInvalid, Message: fmt.Sprintf("device_spec[%d].%s: %s", i, f.Key, f.Message), Change: "correct it"})
		}
		if len(faults) == 0 {
			matchers[i] = &m
		}
	}
	groups := map[int][]*topology.PCIDevice{}
	for i := range h.PCI {
		if g := h.PCI[i].IOMMUGroup; g != nil {
			groups[*g] = append(groups[*g], &h.PCI[i])
		}
	}
	broken := map[topology.PCIAddress][]string{}
	for _, r := range h.Reasons {
		if r.Degrades && r.Device != nil {
			broken[*r.Device] = append(broken[*r.Device], r.Message)
		}
	}

	var out []Device
	used := make([]bool, len(specs))
	for i := range h.PCI {
		f := &h.PCI[i]
		var parent *topology.PCIDevice
		if f.PhysFn != nil {
			parent, _ = h.Device(*f.PhysFn)
		}
		for j, m := range matchers {
			if m == nil || !m.matches(f, parent) {
				continue
			}
			used[j] = true
			d := m.device(f, groups)
			d.Unfit = m.unfit(f, parent, groups, broken[f.Address])
			reasons = append(reasons, d.Unfit...)
			out = append(out, d)
			break
		}
	}
	for i, m := range matchers {
		if m != nil && !used[i] {
			reasons = append(reasons, Reason{
				Code: SpecUnmatched, Message: fmt.Sprintf("device_spec[%d] means no PCI function of this host that an earlier one does not", i),
				Change: "remove it, or look for its functions in the host's PCI list",
			})
		}
	}
	if len(out) > 0 && len(groups) == 0 {
		reasons = append(reasons, Reason{
			Code: NoIOMMU, Message: "no PCI function of this host has an IOMMU group: guests with PCI devices will not start",
			Change: "switch the IOMMU on in the firmware and on the kernel's command line",
		})
	}
	return out, reasons
}

// device is what a function is as the Spec has it.
func (m *matcher) device(f *topology.PCIDevice, groups map[int][]*topology.PCIDevice) Device {
	d := Device{
		Address: f.Address, Vendor: digits(f.Vendor), Product: digits(f.Product), Type: TypeOf(f), Cell: f.NUMANode,
		Managed: m.managed, LiveMigratable: m.live,
	}
	d.Tags = m.tagsOf(d.Vendor, d.Product)
	if f.PhysFn != nil {
		pf := *f.PhysFn
		d.Parent = &pf
	}
	d.VFs = append(d.VFs, f.VFs...)
	if f.IOMMUGroup != nil {
		for _, other := range groups[*f.IOMMUGroup] {
			if other != f && !bridgeHeader(other) {
				d.Group = append(d.Group, other.Address)
			}
		}
	}
	return d
}

// unfit says why no guest may get the function.
func (m *matcher) unfit(f, parent *topology.PCIDevice, groups map[int][]*topology.PCIDevice, broken []string) []Reason {
	var out []Reason
	add := func(code, change, format string, args ...any) {
		a := f.Address
		out = append(out, Reason{Code: code, Message: a.String() + ": " + fmt.Sprintf(format, args...), Device: &a, Change: change})
	}
	for _, message := range broken {
		add(Degraded, "repair what cannot be read; it is read again by itself", "%s", message)
	}
	if bridge(f) {
		add(Bridge, "take it out of device_spec", "is a bridge (class %s), which the host needs itself", f.Class)
	}
	if m.remote {
		switch {
		case f.PhysFn == nil:
			add(NotVF, "let the spec with remote_managed match VFs only", "remote_managed is for VFs; a guest cannot reach the card's side of a %s", TypeOf(f))
		case f.SerialNumber == "" && (parent == nil || parent.SerialNumber == ""):
			add(NoSerial, "use a card that tells its serial number", "remote_managed needs a card serial number in the vital product data, and neither the VF nor its PF has one")
		}
	}
	if f.IOMMUGroup == nil {
		if len(groups) > 0 {
			add(NoGroup, "use a slot behind the IOMMU", "has no IOMMU group, so VFIO cannot pass it")
		}
		return out
	}
	var held []string
	for _, other := range groups[*f.IOMMUGroup] {
		if other != f && !bridgeHeader(other) && !idle(other.Driver) {
			held = append(held, fmt.Sprintf("%s (%s)", other.Address, other.Driver))
		}
	}
	if len(held) > 0 {
		add(GroupHeld, "bind them to vfio-pci at boot", "drivers of the host hold other functions of its IOMMU group %d, which VFIO opens as a whole only: %s", *f.IOMMUGroup, strings.Join(held, ", "))
	}
	return out
}

// idle reports whether VFIO may open a group beside a function with this driver:
// none, one of VFIO's (vfio-pci, mlx5_vfio_pci, …), or the kernel's placeholder.
func idle(driver string) bool {
	return driver == "" || driver == "pci-stub" || strings.Contains(driver, "vfio")
}

// bridge reports whether the host needs the function for itself to reach others.
func bridge(f *topology.PCIDevice) bool {
	return strings.HasPrefix(f.Class, "0x06") && !strings.HasPrefix(f.Class, "0x0680")
}

// bridgeHeader reports whether the function has the header of a bridge to another
// bus (PCI to PCI, CardBus, semi-transparent). VFIO lets such ones stand in a
// group whatever their driver.
func bridgeHeader(f *topology.PCIDevice) bool {
	for _, class := range []string{"0x0604", "0x0607", "0x0609"} {
		if strings.HasPrefix(f.Class, class) {
			return true
		}
	}
	return false
}
