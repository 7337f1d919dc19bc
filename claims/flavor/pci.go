package flavor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth/topology"
)

// maxDevices bounds what one alias of one flavor asks for.
const maxDevices = topology.MaxPCIFunctions

// The tags of a PCISpec that come from an alias. The host's device_spec gives
// its devices the same.
const (
	TagLiveMigratable = "live_migratable" // "true" or "false"
	TagResourceClass  = "resource_class"  // the normalized name, "CUSTOM_GPU"
	TagTrait          = "trait:"          // and the normalized trait; the value is "required"
)

// Alias is one entry of Nova's [pci]alias: a name by which flavors ask for
// devices. Entries of one name are alternatives; they agree in device type and
// policy.
type Alias struct {
	Name           string `toml:"name" json:"name"`
	VendorID       string `toml:"vendor_id" json:"vendor_id,omitempty"`             // four hexadecimal digits
	ProductID      string `toml:"product_id" json:"product_id,omitempty"`           // four hexadecimal digits
	DeviceType     string `toml:"device_type" json:"device_type,omitempty"`         // type-PCI, type-PF, type-VF; "" for any
	NUMAPolicy     string `toml:"numa_policy" json:"numa_policy,omitempty"`         // legacy, preferred, required, socket; "" for legacy
	ResourceClass  string `toml:"resource_class" json:"resource_class,omitempty"`   // instead of vendor and product, or with them
	Traits         string `toml:"traits" json:"traits,omitempty"`                   // names, with commas between
	LiveMigratable string `toml:"live_migratable" json:"live_migratable,omitempty"` // yes or no; "" for either
}

var fourHex = regexp.MustCompile(`^[0-9a-fA-F]{4}$`)

// Validate gives every fault of the entry. The error is an Errors.
func (a Alias) Validate() error {
	var r reader
	key := "alias " + quote(a.Name)
	bad := func(format string, args ...any) {
		r.fault(key, "pci_alias_invalid", "PciInvalidAlias", format, args...)
	}
	switch name := strings.TrimSpace(a.Name); {
	case name == "" || len(a.Name) > 256:
		bad("name: want 1 to 256 characters")
	case strings.ContainsAny(name, ":,"):
		r.fault(key, "pci_alias_invalid", "", "name: a flavor cannot name it, for %q ends a name there", name[strings.IndexAny(name, ":,")])
	}
	for _, id := range []struct{ name, value string }{{"vendor_id", a.VendorID}, {"product_id", a.ProductID}} {
		if id.value != "" && !fourHex.MatchString(id.value) {
			bad("%s %s: want four hexadecimal digits", id.name, quote(id.value))
		}
	}
	if (a.VendorID == "" || a.ProductID == "") && a.ResourceClass == "" {
		bad("want vendor_id and product_id, or resource_class")
	}
	types := []string{string(topology.PCITypeFunction), string(topology.PCITypePF), string(topology.PCITypeVF)}
	if a.DeviceType != "" && !slices.Contains(types, a.DeviceType) {
		bad("device_type %s: want one of %v", quote(a.DeviceType), types)
	}
	if a.NUMAPolicy != "" && !slices.Contains(pciAffinities, a.NUMAPolicy) {
		bad("numa_policy %s: want one of %v", quote(a.NUMAPolicy), pciAffinities)
	}
	if _, ok := boolean(a.LiveMigratable); !ok && a.LiveMigratable != "" {
		bad("live_migratable %s: want yes, no or no such key", quote(a.LiveMigratable))
	}
	return r.errs.orNil()
}

func (a Alias) affinity() topology.PCIAffinity {
	if a.NUMAPolicy == "" {
		return topology.AffinityLegacy
	}
	return topology.PCIAffinity(a.NUMAPolicy)
}

func (a Alias) spec() topology.PCISpec {
	s := topology.PCISpec{
		Vendor:  strings.ToLower(a.VendorID),
		Product: strings.ToLower(a.ProductID),
		Type:    topology.PCIType(a.DeviceType),
	}
	tag := func(key, value string) {
		if s.Tags == nil {
			s.Tags = map[string]string{}
		}
		s.Tags[key] = value
	}
	if a.LiveMigratable != "" {
		yes, _ := boolean(a.LiveMigratable)
		tag(TagLiveMigratable, strconv.FormatBool(yes))
	}
	if a.ResourceClass != "" {
		tag(TagResourceClass, ResourceClass(a.ResourceClass))
	}
	for trait := range strings.SplitSeq(a.Traits, ",") {
		if trait = strings.TrimSpace(trait); trait != "" {
			tag(TagTrait+Trait(trait), "required")
		}
	}
	return s
}

// standardClasses are the classes of os-resource-classes that a device can be.
var standardClasses = []string{"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU"}

var notOfName = regexp.MustCompile(`[^A-Z0-9_]+`)

// ResourceClass gives the name under which Placement counts devices of a class
// that an operator wrote in any form: upper case, other characters become one
// underscore, and CUSTOM_ in front unless it is there or the class is standard.
func ResourceClass(name string) string {
	name = strings.ToUpper(strings.TrimSpace(name))
	if slices.Contains(standardClasses, name) {
		return name
	}
	return custom(name)
}

// Trait does as ResourceClass does for a trait. Traits of os-traits, whose names
// begin with their field (HW_, COMPUTE_, …), stay.
func Trait(name string) string {
	name = strings.ToUpper(strings.TrimSpace(name))
	for _, field := range []string{"HW_", "COMPUTE_", "MISC_", "STORAGE_", "OWNER_"} {
		if strings.HasPrefix(name, field) && !notOfName.MatchString(name) {
			return name
		}
	}
	return custom(name)
}

func custom(name string) string {
	name = notOfName.ReplaceAllString(name, "_")
	if strings.HasPrefix(name, "CUSTOM_") {
		return name
	}
	return "CUSTOM_" + name
}

// ValidateAliases gives the faults of every entry and where entries of one name
// disagree. The error is an Errors.
func ValidateAliases(aliases []Alias) error {
	_, errs := byName(aliases)
	return errs.orNil()
}

// byName gathers the entries of one name.
func byName(aliases []Alias) (map[string][]Alias, Errors) {
	var r reader
	named := make(map[string][]Alias, len(aliases))
	for _, a := range aliases {
		if err := a.Validate(); err != nil {
			r.errs = append(r.errs, err.(Errors)...)
			continue
		}
		name := strings.TrimSpace(a.Name)
		if first := named[name]; len(first) > 0 {
			key := "alias " + quote(a.Name)
			if have, want := a.affinity(), first[0].affinity(); have != want {
				r.fault(key, "pci_alias_disagrees", "PciInvalidAlias", "numa_policy %q and %q under one name", want, have)
			}
			if have, want := a.DeviceType, first[0].DeviceType; have != want {
				r.fault(key, "pci_alias_disagrees", "PciInvalidAlias", "device_type %q and %q under one name", want, have)
			}
		}
		named[name] = append(named[name], a)
	}
	return named, r.errs
}

// PCIAffinity gives the policy that flavor and image set for all of the guest's
// devices, or "" when each keeps its alias's. The error is an Errors.
func PCIAffinity(f topology.Flavor, image Image) (topology.PCIAffinity, error) {
	r := newReader(f, image)
	policy := r.pciAffinity()
	return policy, r.errs.orNil()
}

func (r *reader) pciAffinity() topology.PCIAffinity {
	const key, imageKey = "hw:pci_numa_affinity_policy", "hw_pci_numa_affinity_policy"
	flavor, image := r.specs[key], r.image[imageKey]
	if _, there := r.image[imageKey]; there && !slices.Contains(pciAffinities, image) {
		r.fault(imageKey, "pci_affinity_unknown", "ValueError", "%s: want one of %v", quote(image), pciAffinities)
		image = ""
	}
	if flavor != "" && image != "" && flavor != image {
		r.fault(imageKey, "pci_affinity_conflict", "ImagePCINUMAPolicyForbidden", "%q in the image, %s in the flavor's %s", image, quote(flavor), key)
	}
	if flavor != "" && !slices.Contains(pciAffinities, flavor) {
		r.fault(key, "pci_affinity_unknown", "InvalidPCINUMAAffinity", "%s: want one of %v", quote(flavor), pciAffinities)
	}
	if len(r.errs) > 0 {
		return ""
	}
	if flavor != "" {
		return topology.PCIAffinity(flavor)
	}
	return topology.PCIAffinity(image)
}

// PCIRequests gives the devices that pci_passthrough:alias asks for, one
// request for each of its parts in their order, under the alias's name (with #2,
// #3 where it stands again). Faulty aliases are faults of a flavor that asks for
// any. The error is an Errors.
func PCIRequests(f topology.Flavor, image Image, aliases []Alias) ([]topology.PCIRequest, error) {
	const key = "pci_passthrough:alias"
	r := newReader(f, image)
	affinity := r.pciAffinity()
	text, there := r.specs[key]
	if !there {
		return nil, r.errs.orNil()
	}
	named, errs := byName(aliases)
	r.errs = append(r.errs, errs...)
	var out []topology.PCIRequest
	ids := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, count, ok := strings.Cut(part, ":")
		if !ok || strings.Contains(count, ":") {
			r.fault(key, "pci_alias_malformed", "ValueError", "%s: want NAME:COUNT, with commas between", quote(part))
			continue
		}
		name = strings.TrimSpace(name)
		entries := named[name]
		if len(entries) == 0 {
			r.fault(key, "pci_alias_undefined", "PciRequestAliasNotDefined", "no alias is named %s", quote(name))
		}
		n, ok := integer(count)
		switch {
		case !ok:
			r.fault(key, "pci_count_malformed", "ValueError", "%s devices of %s: want a whole number", quote(count), quote(name))
		case n < 1 || n > maxDevices:
			r.fault(key, "pci_count_out_of_range", "", "%d devices of %s: want 1 to %d", n, quote(name), maxDevices)
		}
		if len(r.errs) > 0 {
			continue
		}
		req := topology.PCIRequest{ID: name, Count: int(n), Affinity: affinity}
		for i := 2; ids[req.ID]; i++ {
			req.ID = fmt.Sprintf("%s#%d", name, i)
		}
		ids[req.ID] = true
		if req.Affinity == "" {
			req.Affinity = entries[0].affinity()
		}
		for _, a := range entries {
			req.Specs = append(req.Specs, a.spec())
		}
		out = append(out, req)
	}
	if len(r.errs) > 0 {
		return nil, r.errs
	}
	return out, nil
}
