package flavor

import (
	"fmt"
	"slices"
)

// imageWords are the image's properties with their types, as Nova's ImageMeta
// holds them. A bad one counts as absent.
type imageWords struct {
	cpuPolicy, threadPolicy       string
	cpuPolicyBad, threadPolicyBad bool

	nodes     int64
	nodesSet  bool
	nodesBad  bool
	cpus      list[mask]
	memoryMB  list[int64]
	affinity  string
	affinityX bool // bad
}

// list is what hw:numa_cpus.N or hw:numa_mem.N say for cells 0, 1, …, up to the
// first that is not there.
type list[T any] struct {
	values []T
	keys   []string
	bad    bool
}

func (l list[T]) there() bool { return len(l.keys) > 0 }

// readImage types the properties. Nova does so before it asks for any of them:
// what is no word of theirs is a ValueError there.
func (r *reader) readImage() imageWords {
	var w imageWords
	word := func(key, code string, words []string) (string, bool) {
		text, there := r.image[key]
		if !there {
			return "", false
		}
		if !slices.Contains(words, text) {
			r.fault(key, code, "ValueError", "%s: want one of %v", quote(text), words)
			return "", true
		}
		return text, false
	}
	w.cpuPolicy, w.cpuPolicyBad = word("hw_cpu_policy", "cpu_policy_unknown", cpuPolicies)
	w.threadPolicy, w.threadPolicyBad = word("hw_cpu_thread_policy", "cpu_thread_policy_unknown", threadPolicies)
	if text, there := r.image["hw_numa_nodes"]; there {
		n, ok := integer(text)
		if !ok {
			r.fault("hw_numa_nodes", "numa_nodes_invalid", "ValueError", "%s is no whole number", quote(text))
		}
		w.nodes, w.nodesSet, w.nodesBad = n, ok, !ok
	}
	w.cpus = readCPUs(r, "hw_numa_cpus", r.image)
	w.memoryMB = readMemory(r, "hw_numa_mem", r.image)
	w.affinity, w.affinityX = word("hw_pci_numa_affinity_policy", "pci_affinity_unknown", pciAffinities)
	return w
}

func readCPUs(r *reader, key string, from map[string]string) list[mask] {
	return readList(from, key, func(key, text string) (mask, bool) {
		m, err := parseMask(text)
		if err != nil {
			r.fault(key, "numa_cpus_malformed", "Invalid", "%v", err)
		}
		return m, err == nil
	})
}

func readMemory(r *reader, key string, from map[string]string) list[int64] {
	return readList(from, key, func(key, text string) (int64, bool) {
		n, ok := integer(text)
		if !ok {
			r.fault(key, "numa_mem_malformed", "ValueError", "%s is no whole number of MiB", quote(text))
		}
		return n, ok
	})
}

func readList[T any](from map[string]string, key string, read func(key, text string) (T, bool)) list[T] {
	var l list[T]
	for i := range MaxCells {
		k := fmt.Sprintf("%s.%d", key, i)
		text, there := from[k]
		if !there {
			break
		}
		v, ok := read(k, text)
		l.keys, l.values, l.bad = append(l.keys, k), append(l.values, v), l.bad || !ok
	}
	return l
}
