package fitcase

import (
	"slices"
	"strconv"
	"strings"

	"berth/topology"
)

// at gives what stands at a path of the case, or false.
func (c *Case) at(path string) (any, bool) {
	var now any = c.doc
	for _, t := range tokens(path) {
		switch node := now.(type) {
		case map[string]any:
			child, ok := node[t]
			if !ok {
				return nil, false
			}
			now = child
		case []any:
			i, err := strconv.Atoi(t)
			if err != nil || i < 0 || i >= len(node) {
				return nil, false
			}
			now = node[i]
		default:
			return nil, false
		}
	}
	return now, true
}

// verb is the operation that sets a path: add where nothing stands.
func (c *Case) verb(path string) string {
	if _, there := c.at(path); there {
		return "replace"
	}
	return "add"
}

const (
	specs = "/request/flavor/extra_specs/"
	props = "/request/image_props/"
)

// places are where the case says a property of the guest: the flavor's extra
// spec "hw:NAME" and the image's "hw_NAME".
func (c *Case) places(name string) []string {
	return slices.DeleteFunc([]string{specs + "hw:" + name, props + "hw_" + name}, func(path string) bool {
		_, there := c.at(path)
		return !there
	})
}

// relaxations are changes to the request that ask for less of one thing: a
// policy dropped or softened, or devices from anywhere.
func (x *changer) relaxations() []candidate {
	c := x.c
	var out []candidate
	drop := func(name string, departure float64, softer ...string) {
		places := c.places(name)
		if len(places) == 0 {
			return
		}
		var gone candidate
		for _, path := range places {
			gone.ops = append(gone.ops, Op{Op: "remove", Path: path})
		}
		gone.departure = departure
		out = append(out, gone)
		for i, value := range softer {
			var set candidate
			for _, path := range places {
				if was, _ := c.at(path); was != value {
					set.ops = append(set.ops, Op{"replace", path, value})
				}
			}
			set.departure = departure * float64(i+1) / float64(len(softer)+2)
			out = append(out, set)
		}
	}
	drop("cpu_thread_policy", 0.5, "prefer")
	drop("emulator_threads_policy", 0.5, "share")
	drop("mem_page_size", 0.5, "any", "small")
	for i, q := range c.PCI {
		if path := pointer("request", "pci_requests", itoa(i), "numa_policy"); q.Affinity != topology.AffinityPreferred {
			out = append(out, candidate{[]Op{{c.verb(path), path, string(topology.AffinityPreferred)}}, 0.5})
		}
	}
	return out
}

// fewer are changes that ask for a smaller guest: fewer devices, less memory,
// fewer vCPUs, other numbers of cells.
func (x *changer) fewer() []candidate {
	c := x.c
	var out []candidate
	for i, q := range c.PCI {
		path := pointer("request", "pci_requests", itoa(i))
		out = append(out, candidate{[]Op{{Op: "remove", Path: path}}, 2})
		if most := min(q.Count-1, c.matching(q)); most > 0 {
			out = append(out, x.largest(path+"/count", 1, int64(most), int64(q.Count))...)
		}
	}
	if x.split("numa_cpus.") || x.split("numa_mem.") {
		return out
	}
	cells := int64(1)
	if x.guest != nil {
		cells = int64(len(x.guest.Cells))
	}
	// In steps that leave every cell whole, and pages of 2 MiB and 1 GiB where the
	// guest's own memory was made of such.
	for _, step := range []int64{1024 * cells, 2 * cells, cells} {
		if memory := c.Flavor.MemoryMB; memory%step == 0 && memory > step {
			out = append(out, x.largest("/request/flavor/memory_mb", step, memory-step, memory)...)
			break
		}
	}
	if vcpus := int64(c.Flavor.VCPUs); vcpus%cells == 0 && vcpus > cells {
		out = append(out, x.largest("/request/flavor/vcpus", cells, vcpus-cells, vcpus)...)
	}
	if x.guest != nil {
		out = append(out, x.otherCells(int(cells))...)
	}
	return out
}

// split reports whether the request says cell by cell what goes where.
func (x *changer) split(name string) bool {
	for key := range x.c.Flavor.ExtraSpecs {
		if strings.HasPrefix(key, "hw:"+name) {
			return true
		}
	}
	for key := range x.c.Image {
		if strings.HasPrefix(key, "hw_"+name) {
			return true
		}
	}
	return false
}

// largest is the largest value of a number, in steps of least, by which the case
// fits; nothing where none does. What fits with more fits with less, so that it
// is found by halving.
func (x *changer) largest(path string, least, most, now int64) []candidate {
	set := func(n int64) candidate {
		return candidate{[]Op{{"replace", path, n}}, 1 - float64(n)/float64(max(1, now))}
	}
	low, high := int64(1), most/least
	if high < 1 || !x.works(set(least)) {
		return nil
	}
	for low < high {
		if mid := (low + high + 1) / 2; x.works(set(mid * least)) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return []candidate{set(low * least)}
}

// otherCells are other numbers of guest cells, up to those of the host.
func (x *changer) otherCells(now int) []candidate {
	places := x.c.places("numa_nodes")
	var out []candidate
	for n := 1; n <= min(len(x.c.Machine.Cells), 16); n++ {
		if n == now {
			continue
		}
		var set candidate
		for _, path := range places {
			set.ops = append(set.ops, Op{"replace", path, strconv.Itoa(n)})
		}
		if len(places) == 0 {
			path := specs + "hw:numa_nodes"
			set.ops = []Op{{"add", path, strconv.Itoa(n)}}
			if _, there := x.c.at(strings.TrimSuffix(specs, "/")); !there {
				continue
			}
		}
		set.departure = 0.5 + float64(max(n-now, now-n))
		out = append(out, set)
	}
	return out
}
