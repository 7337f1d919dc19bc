package candidates

import (
	"fmt"
	"slices"
	"strings"

	"berth/placementclient"
	"berth/topology"
)

// The tags of an alias that Placement knows something of; claims/flavor writes
// them.
const (
	tagResourceClass   = "resource_class"
	tagTrait           = "trait:"
	tagPhysicalNetwork = "physical_network"
)

// kind is what one device is in Placement.
type kind struct {
	class  string
	traits []string // sorted
	apart  bool     // each is a provider by itself, which VFs of one card are not
}

func (k kind) equal(o kind) bool {
	return k.class == o.class && slices.Equal(k.traits, o.traits) && k.apart == o.apart
}

// kindOf gives what Placement counts a device of the spec as: the alias's
// resource_class, or the one made of vendor and product, as Nova does. Devices of
// a network are not in Placement; for them, and where the spec does not say what
// it means, known is false.
func kindOf(s topology.PCISpec) (k kind, known bool) {
	if s.Tags[tagPhysicalNetwork] != "" {
		return kind{}, false
	}
	k = kind{class: s.Tags[tagResourceClass], apart: s.Type == topology.PCITypeFunction || s.Type == topology.PCITypePF}
	if k.class == "" {
		if s.Vendor == "" || s.Product == "" {
			return kind{}, false
		}
		k.class = placementclient.CustomPrefix + "PCI_" + strings.ToUpper(s.Vendor+"_"+s.Product)
	}
	for tag := range s.Tags {
		if trait, ok := strings.CutPrefix(tag, tagTrait); ok {
			k.traits = append(k.traits, trait)
		}
	}
	slices.Sort(k.traits)
	return k, true
}

// device is one device that a group asks for.
type device struct {
	kind
	affinity topology.PCIAffinity
}

// devicesOf gives the ways in which the requests can be asked for, each a list of
// devices, and what is left to the destination. An alias of several kinds makes as
// many ways; were they too many, the alias is left.
func devicesOf(requests []topology.PCIRequest, held []string) (ways [][]device, left []string) {
	ways = [][]device{nil}
	var taken []struct {
		topology.PCIRequest
		kinds []kind
	}
	for _, r := range requests {
		kinds, all := kindsOf(r, held)
		switch {
		case !all:
			left = append(left, fmt.Sprintf("device %s: it is not known what Placement counts it as", r.ID))
		case len(kinds)*len(ways) > maxVariants:
			left = append(left, fmt.Sprintf("device %s: it may be of %d kinds, which with the others are too many questions", r.ID, len(kinds)))
		default:
			taken = append(taken, struct {
				topology.PCIRequest
				kinds []kind
			}{r, kinds})
			var more [][]device
			for _, way := range ways {
				for _, k := range kinds {
					more = append(more, append(slices.Clone(way), device{k, r.Affinity}))
				}
			}
			ways = more
		}
	}
	// One of each request is asked for first, then more of them while there is room.
	for round := 2; ; round++ {
		more := false
		for i, r := range taken {
			if r.Count >= round {
				more = true
				for w := range ways {
					ways[w] = append(ways[w], ways[w][i])
				}
			}
		}
		if !more || len(ways[0]) >= maxDevices {
			break
		}
	}
	wanted := 0
	for _, r := range taken {
		wanted += r.Count
	}
	for w := range ways {
		ways[w] = ways[w][:min(len(ways[w]), maxDevices)]
	}
	if n := len(ways[0]); n < wanted {
		left = append(left, fmt.Sprintf("%d of %d devices: only %d are asked for by groups", wanted-n, wanted, n))
	}
	return ways, left
}

// kindsOf gives the different kinds that a request takes; all is false when one of
// them is not known to Placement. held are the classes that the guest's devices
// are counted as already: beside a class made of vendor and product that is not
// among them the only one there is will do, since each host's device_spec says.
func kindsOf(r topology.PCIRequest, held []string) (kinds []kind, all bool) {
	for _, s := range r.Specs {
		k, known := kindOf(s)
		ways := []kind{k}
		if known && s.Tags[tagResourceClass] == "" && len(held) > 0 && !slices.Contains(held, k.class) {
			k.class, known = held[0], len(held) == 1
			ways = []kind{k, ways[0]}
		}
		if !known {
			return nil, false
		}
		for _, k := range ways {
			if !slices.ContainsFunc(kinds, k.equal) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds, len(kinds) > 0
}

// DeviceClasses are the classes of an allocation that are not a claim's amounts,
// sorted.
func DeviceClasses(allocations map[string]placementclient.Resources) []string {
	var out []string
	for _, r := range allocations {
		for class := range r {
			if !slices.Contains(counted, class) && !slices.Contains(out, class) {
				out = append(out, class)
			}
		}
	}
	slices.Sort(out)
	return out
}
