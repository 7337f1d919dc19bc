package flavor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/migration/options"
	"berth/topology"
)

// families are the beginnings of extra specs that Berth answers for: it knows
// all of them or refuses the flavor.
var families = []string{
	"hw:numa_", "hw:cpu_", "hw:pci_", "hw:mem_", "hw:emulator_", "hw:locked_", "hw:iothread", "pci_passthrough:",
}

// knownKeys are the extra specs of those families. Those of the guest's CPU
// topology are among them, although stage one does not read them.
var knownKeys = []string{
	"hw:cpu_cores", "hw:cpu_dedicated_mask", "hw:cpu_max_cores", "hw:cpu_max_sockets", "hw:cpu_max_threads",
	"hw:cpu_policy", "hw:cpu_realtime", "hw:cpu_realtime_mask", "hw:cpu_sockets", "hw:cpu_thread_policy",
	"hw:cpu_threads", "hw:emulator_threads_policy", "hw:locked_memory", "hw:mem_page_size", "hw:numa_nodes",
	"hw:pci_numa_affinity_policy", "pci_passthrough:alias",
}

// listKeys are those with a cell's number behind them.
var listKeys = []string{"hw:numa_cpus.", "hw:numa_mem."}

// withheld are Nova's extra specs of those families that Berth does not do. A
// guest that asks for one must not start without it.
var withheld = map[string]string{
	"hw:mem_encryption":       "memory encryption is not offered",
	"hw:mem_encryption_model": "memory encryption is not offered",
}

// Validate finds extra specs that nobody reads: unknown ones in a family that
// Berth answers for, cells' lists behind a gap, and values of yes-or-no keys
// that Nova would take for no. Berth's own (berth:) are options of live migrations, which it
// knows all of too. Of other families (quota:, trait:, resources:,
// aggregate_instance_extra_specs:, …) it says nothing; what the known ones say
// is for Topology and PCIRequests. The error is an Errors.
func Validate(f topology.Flavor) error {
	r := newReader(f, nil)
	for _, key := range slices.Sorted(maps.Keys(r.specs)) {
		r.knows(key)
	}
	for _, key := range []string{"hw:cpu_realtime", "hw:locked_memory"} {
		if text, there := r.specs[key]; there {
			if _, ok := boolean(text); !ok {
				r.fault(key, "boolean_unknown", "", "%s: want yes or no", quote(text))
			}
		}
	}
	_, wrong := options.FromSpecs(r.specs)
	for _, w := range wrong {
		r.fault(w.Have, w.Code, "", "%s", w.Message)
	}
	return r.errs.orNil()
}

func (r *reader) knows(key string) {
	at := slices.IndexFunc(families, func(family string) bool { return strings.HasPrefix(key, family) })
	if at < 0 || slices.Contains(knownKeys, key) {
		return
	}
	if why, there := withheld[key]; there {
		r.fault(key, "extra_spec_not_offered", "", "%s", why)
		return
	}
	for _, list := range listKeys {
		cell, ours := strings.CutPrefix(key, list)
		if !ours {
			continue
		}
		n, err := strconv.Atoi(cell)
		if err != nil || n < 0 || n >= MaxCells || strconv.Itoa(n) != cell {
			r.fault(key, "extra_spec_unknown", "", "want %sN with N from 0 to %d", list, MaxCells-1)
			return
		}
		for i := range n {
			if before := fmt.Sprintf("%s%d", list, i); !has(r.specs, before) {
				r.fault(key, "extra_spec_behind_gap", "", "is not read, because %s is not there", before)
				return
			}
		}
		return
	}
	if families[at] == "hw:iothread" {
		r.fault(key, "extra_spec_unknown", "", "no such extra spec: every guest has %d I/O thread", IOThreads)
		return
	}
	r.fault(key, "extra_spec_unknown", "", "no such extra spec; the nearest is %s", nearest(key, families[at]))
}

func has(specs map[string]string, key string) bool { _, there := specs[key]; return there }

// nearest is the known key of the family that takes the fewest changes of a
// letter to reach; the first in order among equals.
func nearest(key, family string) string {
	const most = 64 // longer than any; the rest changes no order
	key = key[:min(len(key), most)]
	best, least := "", 0
	for _, k := range slices.Concat(knownKeys, []string{listKeys[0] + "0", listKeys[1] + "0"}) {
		if !strings.HasPrefix(k, family) {
			continue
		}
		if d := distance(key, k); best == "" || d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is Levenshtein's, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
