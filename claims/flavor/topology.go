package flavor

import (
	"slices"
	"strings"

	"berth/topology"
)

// Topology gives the guest's NUMA topology, or nil for a guest without one: a
// guest gets one when it asks for cells, for a page size, for persistent memory
// or for dedicated CPUs. The error is an Errors.
func Topology(f topology.Flavor, image Image) (*topology.GuestTopology, error) {
	r := newReader(f, image)
	if !r.sized() {
		return nil, r.errs
	}
	img := r.readImage()
	p := r.policies(img)
	nodes, nodesKnown := r.nodes(img)
	pages, asked := r.pages()
	r.lockedMemory()
	if nodes == 0 && nodesKnown && !asked && !r.persistentMemory() && !p.cpu.Pins() {
		return nil, r.errs.orNil()
	}
	cells := r.cells(img, max(nodes, 1), nodesKnown)
	if p.threadsBlank {
		r.fault("hw:cpu_thread_policy", "cpu_thread_policy_unknown", "ValueError", `"": want one of %v, or no such key`, threadPolicies)
	}
	if len(r.errs) > 0 {
		return nil, r.errs
	}
	t := &topology.GuestTopology{Emulator: p.emulator, Realtime: p.realtime}
	for _, c := range cells {
		t.Cells = append(t.Cells, topology.GuestCell{
			SharedVCPUs:    c.cpus.Difference(p.dedicated),
			DedicatedVCPUs: c.cpus.Intersection(p.dedicated),
			MemoryMB:       c.memoryMB,
			PageSize:       pages,
			CPUPolicy:      p.cpu,
			ThreadPolicy:   p.threads,
		})
	}
	return t, nil
}

// persistentMemory reports whether hw:pmem names anything.
func (r *reader) persistentMemory() bool {
	return strings.Trim(r.specs["hw:pmem"], ", \t\n\r\v\f") != ""
}

// nodes reads the number of cells; 0 when none is asked for.
func (r *reader) nodes(img imageWords) (n int64, known bool) {
	const key, imageKey, nova = "hw:numa_nodes", "hw_numa_nodes", "InvalidNUMANodesNumber"
	text := r.specs[key]
	switch {
	case text != "" && img.nodes != 0:
		r.fault(imageKey, "numa_nodes_twice", "ImageNUMATopologyForbidden", "%d in the image, but the flavor decides with %s=%s", img.nodes, key, quote(text))
		return 0, false
	case text != "":
		n, ok := plainInteger(text)
		if !ok || n < 1 {
			r.fault(key, "numa_nodes_invalid", nova, "%s: want a whole number above 0", quote(text))
			return 0, false
		}
		return n, !img.nodesBad
	case img.nodesSet && img.nodes < 1:
		r.fault(imageKey, "numa_nodes_invalid", nova, "%d: want a whole number above 0", img.nodes)
		return 0, false
	}
	return img.nodes, !img.nodesBad
}

// cell is what a guest cell has, its vCPUs not yet told apart.
type cell struct {
	cpus     topology.CPUSet
	memoryMB int64
}

// cells shares vCPUs and memory out to n cells. Where n is not known it looks
// for what else is wrong.
func (r *reader) cells(img imageWords, n int64, known bool) []cell {
	cpus := either(r, "hw_numa_cpus", readCPUs(r, "hw:numa_cpus", r.specs), img.cpus)
	memory := either(r, "hw_numa_mem", readMemory(r, "hw:numa_mem", r.specs), img.memoryMB)
	const incomplete, nova = "numa_lists_incomplete", "ImageNUMATopologyIncomplete"
	switch {
	case !cpus.there() && !memory.there():
		return r.equalCells(n, known)
	case !memory.there():
		r.fault(cpus.keys[0], incomplete, nova, "cells have vCPUs named but no memory: want hw:numa_mem.N for each of them too")
		return nil
	case !cpus.there():
		r.fault(memory.keys[0], incomplete, nova, "cells have memory named but no vCPUs: want hw:numa_cpus.N for each of them too")
		return nil
	case !known:
		return nil
	}
	short := func(what, key string, have int) {
		if int64(have) != n {
			r.fault(key, incomplete, nova, "%s of %d cells given, from cell 0 without a gap; want %d cells", what, have, n)
		}
	}
	before := len(r.errs)
	short("vCPUs", cpus.keys[len(cpus.keys)-1], len(cpus.keys))
	short("memory", memory.keys[len(memory.keys)-1], len(memory.keys))
	if len(r.errs) > before || cpus.bad || memory.bad {
		return nil
	}
	return r.namedCells(cpus, memory)
}

// either lets only one of flavor and image name cells.
func either[T any](r *reader, imageKey string, flavor, image list[T]) list[T] {
	if !flavor.there() {
		return image
	}
	if image.there() {
		r.fault(imageKey, "numa_lists_twice", "ImageNUMATopologyForbidden", "the image names cells, but the flavor decides with %s", flavor.keys[0])
		flavor.bad = true
	}
	return flavor
}

// equalCells shares vCPUs and memory out in equal parts, vCPUs in order.
func (r *reader) equalCells(n int64, known bool) []cell {
	if !known {
		return nil
	}
	const key = "hw:numa_nodes"
	if int64(r.vcpus)%n != 0 || r.memoryMB%n != 0 {
		r.fault(key, "numa_nodes_uneven", "ImageNUMATopologyAsymmetric",
			"%d cells cannot share %d vCPUs and %d MiB in equal parts: name them with hw:numa_cpus.N and hw:numa_mem.N", n, r.vcpus, r.memoryMB)
		return nil
	}
	if n > MaxCells {
		r.fault(key, "numa_nodes_too_many", "", "%d: a guest has at most %d cells", n, MaxCells)
		return nil
	}
	per := int64(r.vcpus) / n
	cells := make([]cell, n)
	for i := range cells {
		first := int64(i) * per
		cells[i] = cell{mask{{first, first + per - 1}}.below(r.vcpus), r.memoryMB / n}
	}
	return cells
}

// namedCells checks the lists against the flavor: each vCPU in one cell, all
// memory given away. Both lists are as long as there are cells. Of one cell that
// has vCPUs of another and vCPUs beyond the flavor's, Nova names whichever its
// hash table holds first; here the former come first.
func (r *reader) namedCells(cpus list[mask], memory list[int64]) []cell {
	cells := make([]cell, len(cpus.values))
	left := r.allVCPUs()
	var total int64
	for i, m := range cpus.values {
		c := cell{m.below(r.vcpus), memory.values[i]}
		if again := c.cpus.Difference(left); !again.IsEmpty() {
			r.fault(cpus.keys[i], "numa_cpus_twice", "ImageNUMATopologyCPUDuplicates", "vCPUs %s stand in another cell already", again)
		}
		if beyond, out := m.beyond(r.vcpus); out {
			r.fault(cpus.keys[i], "numa_cpus_out_of_range", "ImageNUMATopologyCPUOutOfRange", "vCPU %d is not one of the flavor's 0-%d", beyond, r.vcpus-1)
		}
		left = left.Difference(c.cpus)
		total = topology.AddCapped(total, c.memoryMB)
		cells[i] = c
	}
	if !left.IsEmpty() {
		r.fault(cpus.keys[0], "numa_cpus_unassigned", "ImageNUMATopologyCPUsUnassigned", "vCPUs %s stand in no cell", left)
	}
	if total != r.memoryMB {
		r.fault(memory.keys[0], "numa_mem_mismatch", "ImageNUMATopologyMemoryOutOfRange", "the cells have %d MiB together, the flavor %d MiB", total, r.memoryMB)
	}
	// Nova's API lets no flavor with such a number be made, its stage one would.
	if i := slices.IndexFunc(memory.values, func(mb int64) bool { return mb < 1 }); i >= 0 {
		r.fault(memory.keys[i], "numa_mem_not_positive", "", "%d: want at least 1 MiB", memory.values[i])
	}
	return cells
}
