package pci

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth/topology"
)

// Spec is one entry of [pci] device_spec: which functions may be given to
// guests, and what is said of them. An empty field asks for nothing and says
// nothing. Check it with Validate before use: Devices leaves a wrong Spec out.
type Spec struct {
	VendorID  string `toml:"vendor_id" json:"vendor_id,omitempty"`   // hexadecimal, at most ffff; "*" for any
	ProductID string `toml:"product_id" json:"product_id,omitempty"` // hexadecimal, at most ffff; "*" for any

	// Address is nil for any, a string for Nova's glob form
	// [[[[domain]:]bus]:][slot][.[function]], each part hexadecimal, "*" or left
	// out, or a table (map[string]any) with some of domain, bus, slot and
	// function, each a regular expression. An expression is held against the
	// beginning of the part as sysfs spells it (0000, 3b, 00, 1), as Nova does,
	// whatever its case; write $ to end it. Domains have up to eight digits.
	//
	// The address of one PF means its VFs as well.
	Address any `toml:"address" json:"address,omitempty"`

	// DevName is Nova's name of a network interface. It is always refused: which
	// function has an interface of that name changes with drivers and boots, and a
	// function given to a guest has none.
	DevName string `toml:"devname" json:"devname,omitempty"`

	PhysicalNetwork string `toml:"physical_network" json:"physical_network,omitempty"`
	ResourceClass   string `toml:"resource_class" json:"resource_class,omitempty"` // made CUSTOM_… unless it is a standard one
	Traits          string `toml:"traits" json:"traits,omitempty"`                 // separated by commas

	// Yes or no; also true, false, on, off, 1, 0, in any case.
	Trusted        string `toml:"trusted" json:"trusted,omitempty"`                 // the guest may change its own MAC address and mode
	RemoteManaged  string `toml:"remote_managed" json:"remote_managed,omitempty"`   // a VF that a network backend on the card manages
	Managed        string `toml:"managed" json:"managed,omitempty"`                 // libvirt unbinds the host's driver; empty for yes
	LiveMigratable string `toml:"live_migratable" json:"live_migratable,omitempty"` // empty for no
}

// Fault is one thing that is wrong with a Spec.
type Fault struct {
	Key     string // "address.bus"
	Message string // what is there and what is wanted
}

// Tag names of a Device, as claims/flavor makes them of an alias. Trusted,
// remote_managed and live_migratable are "true" or "false".
const (
	TagPhysicalNetwork = "physical_network"
	TagTrusted         = "trusted"
	TagRemoteManaged   = "remote_managed"
	TagLiveMigratable  = "live_migratable" // always there
	TagResourceClass   = "resource_class"  // always there
	TagTrait           = "trait:"          // and the trait's name; the value is "required"
)

// matcher is a Spec that was understood.
type matcher struct {
	vendor, product string // four digits; "" for any
	address         address
	managed, live   bool
	remote          bool
	tags            map[string]string
	class           string // Placement's; "" to make one of the ids
}

// Validate gives every fault of the Spec at once; none for a good one.
func (s Spec) Validate() []Fault {
	_, faults := s.compile()
	return faults
}

func (s Spec) compile() (matcher, []Fault) {
	m := matcher{tags: map[string]string{}}
	var faults []Fault
	bad := func(key, format string, args ...any) {
		faults = append(faults, Fault{Key: key, Message: fmt.Sprintf(format, args...)})
	}
	var err error
	if m.vendor, err = parseID(s.VendorID); err != nil {
		bad("vendor_id", "%v", err)
	}
	if m.product, err = parseID(s.ProductID); err != nil {
		bad("product_id", "%v", err)
	}
	if s.DevName != "" {
		bad("devname", "%q: interfaces are not looked up by name, since a function given to a guest has none; name its address", s.DevName)
	}
	var wrong []Fault
	m.address, wrong = parseAddress(s.Address)
	faults = append(faults, wrong...)

	truth := func(key, text string, unset bool) bool {
		v, err := parseBool(text)
		switch {
		case text == "":
			return unset
		case err != nil:
			bad(key, "%v", err)
			return unset
		}
		return v
	}
	m.managed = truth("managed", s.Managed, true)
	m.live = truth("live_migratable", s.LiveMigratable, false)
	m.remote = truth("remote_managed", s.RemoteManaged, false)
	trusted := truth("trusted", s.Trusted, false)

	m.tags[TagLiveMigratable] = strconv.FormatBool(m.live)
	if s.RemoteManaged != "" {
		m.tags[TagRemoteManaged] = strconv.FormatBool(m.remote)
	}
	if s.Trusted != "" {
		m.tags[TagTrusted] = strconv.FormatBool(trusted)
	}
	if s.PhysicalNetwork != "" {
		m.tags[TagPhysicalNetwork] = s.PhysicalNetwork
	}
	if s.ResourceClass != "" {
		if m.class, err = className(s.ResourceClass); err != nil {
			bad("resource_class", "%v", err)
		}
	}
	if s.Traits != "" {
		for part := range strings.SplitSeq(s.Traits, ",") {
			name, err := traitName(part)
			if err != nil {
				bad("traits", "%v", err)
				continue
			}
			m.tags[TagTrait+name] = "required"
		}
	}
	return m, faults
}

// matches reports whether the Spec means this function.
func (m *matcher) matches(d *topology.PCIDevice, parent *topology.PCIDevice) bool {
	return (m.vendor == "" || m.vendor == digits(d.Vendor)) && (m.product == "" || m.product == digits(d.Product)) &&
		(m.address.matches(d.Address) || parent != nil && m.address.single && m.address.matches(parent.Address))
}

// tagsOf are the tags of a function that the Spec means.
func (m *matcher) tagsOf(vendor, product string) map[string]string {
	tags := maps.Clone(m.tags)
	tags[TagResourceClass] = m.class
	if m.class == "" {
		tags[TagResourceClass] = ClassOf(vendor, product)
	}
	return tags
}

// ClassOf is the class under which Placement counts functions of a vendor and
// product where no resource_class says otherwise: CUSTOM_PCI_8086_1563.
func ClassOf(vendor, product string) string {
	return customPrefix + "PCI_" + strings.ToUpper(vendor+"_"+product)
}

// digits is the four hexadecimal digits of topology's "0x8086".
func digits(id string) string { return strings.ToLower(strings.TrimPrefix(id, "0x")) }

// parseID reads a vendor or product; "" for any.
func parseID(text string) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "*" {
		return "", nil
	}
	n, err := parseHex(strings.TrimPrefix(strings.ToLower(text), "0x"), 0xffff)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%04x", n), nil
}

func parseHex(text string, most uint64) (uint64, error) {
	for _, c := range text {
		if !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			return 0, fmt.Errorf("%q is not a hexadecimal number", text)
		}
	}
	n, err := strconv.ParseUint(text, 16, 64)
	switch {
	case text == "":
		return 0, fmt.Errorf("%q is not a hexadecimal number", text)
	case err != nil || n > most:
		return 0, fmt.Errorf("%q is above %x", text, most)
	}
	return n, nil
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "yes", "true", "on", "1", "y", "t":
		return true, nil
	case "no", "false", "off", "0", "n", "f":
		return false, nil
	}
	return false, fmt.Errorf("%q is not yes or no", text)
}

const customPrefix = "CUSTOM_"

// standardClasses are those of os-resource-classes that a PCI function can be.
var standardClasses = []string{"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU"}

var otherThanName = regexp.MustCompile(`[^A-Z0-9_]+`)

// className spells an operator's word for a kind of device as Placement does:
// capitals, "_" for whatever else stands in it, CUSTOM_ before what is no
// standard class; at most 255 characters. claims/flavor does the same with an
// alias's, and a test holds the two together.
func className(text string) (string, error) {
	return placementName(text, slices.Contains(standardClasses, strings.ToUpper(strings.TrimSpace(text))))
}

// traitName does as className does for a trait. Those that begin as os-traits'
// do (HW_, COMPUTE_, …) are kept as they are.
func traitName(text string) (string, error) {
	upper := strings.ToUpper(strings.TrimSpace(text))
	standard := slices.ContainsFunc([]string{"HW_", "COMPUTE_", "MISC_", "STORAGE_", "OWNER_"}, func(p string) bool { return strings.HasPrefix(upper, p) })
	return placementName(text, standard && !otherThanName.MatchString(upper))
}

func placementName(text string, standard bool) (string, error) {
	name := otherThanName.ReplaceAllString(strings.ToUpper(strings.TrimSpace(text)), "_")
	if name == "" {
		return "", fmt.Errorf("%q is an empty name", text)
	}
	if !standard && !strings.HasPrefix(name, customPrefix) {
		name = customPrefix + name
	}
	if len(name) > 255 {
		return "", fmt.Errorf("%q has %d characters, want at most 255", name[:40]+"…", len(name))
	}
	return name, nil
}
