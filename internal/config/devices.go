package config

import (
	"errors"
	"fmt"
	"regexp"

	"berth/claims/flavor"
	"berth/internal/fault"
	"berth/topology"
)

// pagesFaults are those of reserved_hugepages that no hardware is needed to see.
func (h *Host) pagesFaults() []fault.Reason {
	var out []fault.Reason
	bad := func(i int, key string, value any, want string) {
		key = fmt.Sprintf("host.reserved_hugepages[%d]%s", i, key)
		out = append(out, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("%s = %v: want %s", key, value, want),
			Want: want, Have: fmt.Sprint(value), Change: "correct " + key,
		})
	}
	type pool struct {
		node topology.CellID
		size PageSize
	}
	seen := map[pool]int{}
	for i, r := range h.ReservedPages {
		if r.Node < 0 || r.Node > topology.MaxCPU {
			bad(i, ".node", r.Node, "the number of a NUMA node")
		}
		if r.Size < 1 || r.Size > maxPageSize {
			bad(i, ".size", int64(r.Size), "a page size such as 2048 (KiB) or \"1GiB\"")
		}
		if r.Count < 1 {
			bad(i, ".count", r.Count, "at least 1")
		}
		if first, twice := seen[pool{r.Node, r.Size}]; twice {
			bad(i, "", fmt.Sprintf("node %d, %s", r.Node, r.Size), fmt.Sprintf("one entry for them: reserved_hugepages[%d] has them too", first))
		}
		seen[pool{r.Node, r.Size}] = i
	}
	return out
}

// faults are those of every device_spec and alias.
func (p *PCI) faults() []fault.Reason {
	var out []fault.Reason
	for i, s := range p.DeviceSpec {
		for _, f := range s.Validate() {
			key := fmt.Sprintf("pci.device_spec[%d].%s", i, f.Key)
			out = append(out, fault.Reason{Code: "config_device_spec", Message: key + ": " + f.Message, Change: "correct " + key})
		}
	}
	if errs, ok := errors.AsType[flavor.Errors](flavor.ValidateAliases(p.Alias)); ok {
		for _, e := range errs {
			out = append(out, fault.Reason{Code: "config_alias", Message: "pci." + e.Error(), Change: "correct [pci] " + e.Key})
		}
	}
	return out
}

var (
	mdevType  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	mdevClass = regexp.MustCompile(`^(VGPU|CUSTOM_[A-Z0-9_]{1,248})$`)
)

// faults are those of mdev_types.
func (d *Devices) faults() []fault.Reason {
	var out []fault.Reason
	bad := func(i int, key string, value any, want string) {
		key = fmt.Sprintf("devices.mdev_types[%d].%s", i, key)
		out = append(out, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("%s = %v: want %s", key, value, want),
			Want: want, Have: fmt.Sprint(value), Change: "correct " + key,
		})
	}
	types, functions := map[string]int{}, map[topology.PCIAddress]int{}
	for i, m := range d.MdevTypes {
		if !mdevType.MatchString(m.Type) {
			bad(i, "type", fmt.Sprintf("%q", m.Type), `a type such as "nvidia-35"`)
		}
		if first, twice := types[m.Type]; twice {
			bad(i, "type", fmt.Sprintf("%q", m.Type), fmt.Sprintf("one entry for it: mdev_types[%d] has it too", first))
		}
		types[m.Type] = i
		for _, a := range m.Addresses {
			if first, twice := functions[a]; twice {
				bad(i, "device_addresses", a, fmt.Sprintf("each function once: mdev_types[%d] has it too, and a function makes one type", first))
			}
			functions[a] = i
		}
		if m.Class != "" && !mdevClass.MatchString(m.Class) {
			bad(i, "mdev_class", fmt.Sprintf("%q", m.Class), `"VGPU" or "CUSTOM_…", at most 255 characters`)
		}
		if m.Max < 0 {
			bad(i, "max_instances", m.Max, "0 or more")
		}
	}
	return out
}
