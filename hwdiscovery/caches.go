package hwdiscovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/topology"
)

// readCaches groups the online CPUs by the last-level cache they share. All its
// files are optional: who shares a cache is a preference of placement, never a
// promise, so what cannot be read is left out with a remark.
//
// The lowest CPU makes a group, as with cores. The others of the group are not
// asked, since that would read some twenty files of each of a thousand CPUs to
// hear the same.
func (t *tree) readCaches(online topology.CPUSet) []topology.CPUSet {
	var groups []topology.CPUSet
	left := online // in no group yet
	for _, cpu := range online {
		if !left.Contains(cpu) {
			continue
		}
		shared, file := t.lastLevelCache(cpu)
		if shared.IsEmpty() {
			continue
		}
		group := shared.Intersection(left)
		if !group.Contains(cpu) {
			t.remark("caches_contradict", file, about{}, "%s: %s, which leaves CPU %d itself out", file, list(shared), cpu)
			continue
		}
		if twice := shared.Intersection(online).Difference(left); !twice.IsEmpty() {
			t.remark("caches_contradict", file, about{}, "%s: %s, but CPUs %s share another last-level cache", file, list(shared), list(twice))
		}
		groups = append(groups, group)
		left = left.Difference(group)
	}
	// A CPU whose own files are broken may have been named by a later one.
	slices.SortFunc(groups, func(a, b topology.CPUSet) int { return a[0] - b[0] })
	return groups
}

// lastLevelCache gives the CPUs that share a CPU's highest cache that holds data,
// and the file that says so; the empty set when that is unknown. One broken file
// makes it unknown: a level that is passed over would let a smaller cache stand
// for the last.
func (t *tree) lastLevelCache(cpu int) (topology.CPUSet, string) {
	names, ok := t.listed(optional, cpuFile(cpu, "cache"))
	if !ok {
		return nil, ""
	}
	highest, last := 0, -1
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "index")
		if !ok {
			continue
		}
		index, err := strconv.Atoi(digits)
		if err != nil || index < 0 {
			continue
		}
		level, ok := sound(t, cacheFile(cpu, index, "level"), parseInt)
		if !ok {
			return nil, ""
		}
		data, ok := sound(t, cacheFile(cpu, index, "type"), parseHoldsData)
		if !ok {
			return nil, ""
		}
		if data && level > highest {
			highest, last = level, index
		}
	}
	if last < 0 {
		return nil, ""
	}
	file := cacheFile(cpu, last, "shared_cpu_list") // since Linux 2.6.26
	shared, ok := sound(t, file, topology.ParseCPUSet)
	if !ok {
		file = cacheFile(cpu, last, "shared_cpu_map")
		shared, _ = sound(t, file, parseMask)
	}
	return shared, file
}

// parseHoldsData reads the type of a cache, one of the three words of
// Documentation/ABI/testing/sysfs-devices-system-cpu.
func parseHoldsData(text string) (bool, error) {
	switch text {
	case "Data", "Unified":
		return true, nil
	case "Instruction":
		return false, nil
	}
	return false, fmt.Errorf("%q is not Data, Instruction or Unified", text)
}

// sound reads an optional attribute and takes nothing from it when there is
// anything to remark: a list that was cut may still look like one.
func sound[T any](t *tree, file string, parse func(string) (T, error)) (T, bool) {
	before := len(t.reasons)
	v, ok := parsed(t, optional, file, about{}, parse)
	if !ok || len(t.reasons) > before {
		var zero T
		return zero, false
	}
	return v, true
}
