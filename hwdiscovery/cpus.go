package hwdiscovery

import (
	"errors"
	"slices"

	"berth/topology"
)

// cpuReading is what is known of the host's CPUs.
type cpuReading struct {
	info              cpuinfo
	online            topology.CPUSet // usable ones
	offline, isolated topology.CPUSet
	cores             []topology.CPUSet
	packages          []topology.Package
	dies              []topology.Die
}

// readCPUs finds the online CPUs and who shares a core, a die and a package.
func (t *tree) readCPUs() (cpuReading, error) {
	var r cpuReading
	info, haveInfo := parsed(t, expected, procCPUInfo, about{}, parseCPUInfo)
	r.info = info
	dirs, ok := t.numbered(cpuDir, "cpu")
	if !ok || dirs.IsEmpty() {
		// Linux has had it since 2.6: where it is not, /sys is not mounted.
		t.degrade("file_missing", cpuDir, about{}, "names no CPU")
		return r, t.cpusFromProc(&r)
	}
	t.readOnline(&r, dirs)
	t.dropUnknown(&r, dirs)
	if r.online.IsEmpty() {
		return r, errors.New(cpuDir + ": no CPU is online")
	}
	if haveInfo && !info.processors.IsEmpty() && !info.processors.SameAs(r.online) {
		t.degrade("cpus_contradict", procCPUInfo, about{}, "%s: processors %s, but online in sysfs are %s", procCPUInfo, list(info.processors), list(r.online))
	}
	if isolated, ok := parsed(t, expected, cpuIsolated, about{}, topology.ParseCPUSet); ok {
		r.isolated = isolated.Intersection(r.online)
	}
	t.readSiblings(&r)
	return r, nil
}

// readOnline tells online from offline CPUs: by cpu/online, on old kernels by
// each CPU's own switch. The kernel keeps both, and the lists of present and
// offline CPUs, in step; a copy or a bug may not.
func (t *tree) readOnline(r *cpuReading, dirs topology.CPUSet) {
	var on, off topology.CPUSet // by each CPU's own switch
	for _, cpu := range dirs {
		if up, ok := parsed(t, expected, cpuFile(cpu, "online"), about{}, parseSwitch); ok {
			if up {
				on = append(on, cpu)
			} else {
				off = append(off, cpu)
			}
		}
	}
	online, ok := parsed(t, expected, cpuOnline, about{}, topology.ParseCPUSet)
	if !ok {
		r.online, r.offline = dirs.Difference(off), off
		return
	}
	r.online, r.offline = online, dirs.Difference(online)
	if wrong := on.Difference(online).Union(off.Intersection(online)); !wrong.IsEmpty() {
		t.degrade("cpus_contradict", cpuOnline, about{}, "%s: %s, but the online files of CPUs %s say otherwise", cpuOnline, list(online), list(wrong))
	}
	// A CPU loses its topology directory when it goes offline.
	var living topology.CPUSet
	for _, cpu := range r.offline.Difference(on).Difference(off) {
		if t.exists(cpuFile(cpu, "topology")) {
			living = append(living, cpu)
		}
	}
	if !living.IsEmpty() {
		t.degrade("cpus_contradict", cpuOnline, about{}, "%s: %s, but CPUs %s have a topology", cpuOnline, list(online), list(living))
	}
	offline, haveOffline := parsed(t, optional, cpuOffline, about{}, topology.ParseCPUSet)
	if both := offline.Intersection(online); !both.IsEmpty() {
		t.degrade("cpus_contradict", cpuOffline, about{}, "%s and %s: CPUs %s are in both", cpuOnline, cpuOffline, list(both))
	}
	if present, ok := parsed(t, optional, cpuPresent, about{}, topology.ParseCPUSet); ok {
		if extra := online.Difference(present); !extra.IsEmpty() {
			t.degrade("cpus_contradict", cpuPresent, about{}, "%s: %s, but CPUs %s are online", cpuPresent, list(present), list(extra))
		}
		if lost := present.Difference(online).Difference(offline).Difference(dirs); haveOffline && !lost.IsEmpty() {
			t.degrade("cpus_contradict", cpuPresent, about{}, "%s: %s, but CPUs %s are neither online nor offline", cpuPresent, list(present), list(lost))
		}
		if lost := present.Difference(online).Difference(offline); haveOffline && !lost.IsEmpty() {
			t.degrade("cpus_contradict", cpuOffline, about{}, "%s: %s, but CPUs %s are not online either", cpuOffline, list(offline), list(lost))
		}
	}
}

// dropUnknown leaves out what is called online and has nothing to show for it.
func (t *tree) dropUnknown(r *cpuReading, dirs topology.CPUSet) {
	if lost := r.online.Difference(dirs); !lost.IsEmpty() {
		t.degrade("file_missing", cpuFile(lost[0], "")[:len(cpuFile(lost[0], ""))-1], about{}, "CPUs %s are online and have no directory in %s", list(lost), cpuDir)
		r.online = r.online.Intersection(dirs)
	}
	var without topology.CPUSet
	for _, cpu := range r.online {
		if !t.exists(cpuFile(cpu, "topology")) {
			without = append(without, cpu)
		}
	}
	if !without.IsEmpty() && without.Len() < r.online.Len() {
		t.degrade("file_missing", cpuFile(without[0], "topology"), about{}, "missing for CPUs %s, which are not used", list(without))
		r.online = r.online.Difference(without)
	}
}

// level is one way in which CPUs share hardware: the attributes of
// cpu*/topology that name the CPUs of one group, the one that decides first
// (Linux 5.3 gave them new names and kept the old), and the group's number.
type level struct {
	files []string
	id    string

	said    map[int]topology.CPUSet // what each CPU says, online CPUs only
	ids     map[int]int
	example string // a file name that some CPU has
}

func newLevel(id string, files ...string) *level {
	return &level{files: files, id: id, said: map[int]topology.CPUSet{}, ids: map[int]int{}, example: files[0]}
}

// readSiblings groups the online CPUs into cores, dies and packages.
func (t *tree) readSiblings(r *cpuReading) {
	cores := newLevel("core_id", "core_cpus", "thread_siblings")
	packages := newLevel("physical_package_id", "package_cpus", "core_siblings")
	dies := newLevel("die_id", "die_cpus")
	levels := []*level{cores, packages, dies}
	for _, cpu := range r.online { // all of one CPU's files at once: see tree.open
		for _, l := range levels {
			t.readGroup(l, cpu, r.online)
		}
	}
	for _, l := range levels {
		t.blameMissing(l, r.online)
	}
	t.splitComputeUnits(r, cores)
	r.cores = t.makeGroups(r.online, cores)
	for _, cpus := range t.makeGroups(r.online, packages) {
		r.packages = append(r.packages, topology.Package{ID: t.commonID(cpus, packages), CPUs: cpus})
	}
	for _, cpus := range t.makeGroups(r.online, dies) {
		// Architectures without dies show each CPU as one.
		if cpus.Len() > 1 {
			r.dies = append(r.dies, topology.Die{ID: t.commonID(cpus, dies), Package: known(idOf(packages.ids, cpus[0])), CPUs: cpus})
		}
	}
	t.uniquePackages(r)
}

// readGroup reads what one CPU says of a level. Each file has a mask and, since
// Linux 2.6.26, a list (FILE_list); all must say the same.
func (t *tree) readGroup(l *level, cpu int, online topology.CPUSet) {
	var from string
	var group topology.CPUSet
	for _, name := range l.files {
		for _, form := range []struct {
			name  string
			parse func(string) (topology.CPUSet, error)
		}{{name, parseMask}, {name + "_list", topology.ParseCPUSet}} {
			file := cpuTopology(cpu, form.name)
			set, ok := parsed(t, expected, file, about{}, form.parse)
			switch {
			case !ok:
			case from == "":
				from, group = file, set
				l.example = form.name
			case !set.SameAs(group):
				t.degrade("siblings_contradict", file, about{}, "%s: %s, but %s: %s", file, list(set), from, list(group))
			}
		}
	}
	if from != "" {
		l.said[cpu] = group.Intersection(online)
	}
	if id, ok := parsed(t, expected, cpuTopology(cpu, l.id), about{}, parseInt); ok {
		l.ids[cpu] = id
	}
}

// blameMissing sees that a file which one CPU has is there for all.
func (t *tree) blameMissing(l *level, online topology.CPUSet) {
	var noGroup, noID topology.CPUSet
	for _, cpu := range online {
		if _, ok := l.said[cpu]; !ok {
			noGroup = append(noGroup, cpu)
		}
		if _, ok := l.ids[cpu]; !ok {
			noID = append(noID, cpu)
		}
	}
	if !noGroup.IsEmpty() && len(l.said) > 0 {
		t.degrade("file_missing", cpuTopology(noGroup[0], l.example), about{}, "missing or broken for CPUs %s", list(noGroup))
	}
	if !noID.IsEmpty() && len(l.ids) > 0 {
		t.degrade("file_missing", cpuTopology(noID[0], l.id), about{}, "missing or broken for CPUs %s", list(noID))
	}
}

// splitComputeUnits undoes what AMD's families 15h and 16h show as siblings: two
// cores that share a compute unit, each with a core_id of its own. Elsewhere
// siblings with different core ids contradict themselves; siblings decide.
func (t *tree) splitComputeUnits(r *cpuReading, cores *level) {
	var differing topology.CPUSet
	for _, cpu := range r.online {
		set := cores.said[cpu]
		if set.Len() > 1 && idOf(cores.ids, set[0]) != idOf(cores.ids, set[set.Len()-1]) {
			differing = append(differing, cpu)
		}
	}
	if differing.IsEmpty() {
		return
	}
	if !r.info.amdCU {
		t.degrade("siblings_contradict", cpuTopology(differing[0], "core_id"), about{},
			"CPUs %s are siblings of CPUs with another core_id, and %s shows no AMD compute units", list(differing), procCPUInfo)
		return
	}
	for cpu := range cores.said {
		cores.said[cpu] = topology.CPUSet{cpu}
	}
}

func idOf(ids map[int]int, cpu int) int {
	if id, ok := ids[cpu]; ok {
		return id
	}
	return -1
}

// makeGroups turns what each CPU says into groups, ascending by first CPU. A
// group is what its lowest CPU says (hwloc's reading); a CPU that says anything
// else than the group it stands in, or stands in none, is a contradiction.
func (t *tree) makeGroups(online topology.CPUSet, l *level) []topology.CPUSet {
	var groups []topology.CPUSet
	owner := map[int]int{} // CPU → index into groups
	for _, cpu := range online {
		set, ok := l.said[cpu]
		if !ok || set.IsEmpty() || set[0] != cpu {
			continue
		}
		if slices.ContainsFunc(set, func(c int) bool { _, taken := owner[c]; return taken }) {
			continue
		}
		for _, c := range set {
			owner[c] = len(groups)
		}
		groups = append(groups, set)
	}
	var outside, other topology.CPUSet
	for _, cpu := range online {
		set, ok := l.said[cpu]
		if !ok {
			continue
		}
		if g, in := owner[cpu]; !in {
			outside = append(outside, cpu)
		} else if !groups[g].SameAs(set) {
			other = append(other, cpu)
		}
	}
	blame := func(cpus topology.CPUSet, what string) {
		if cpus.IsEmpty() {
			return
		}
		file := cpuTopology(cpus[0], l.example)
		t.degrade("siblings_contradict", file, about{}, "%s: %s; CPUs %s %s", file, list(l.said[cpus[0]]), list(cpus), what)
	}
	blame(outside, "are in no group that its lowest CPU agrees to")
	blame(other, "name another group than its lowest CPU does")
	return groups
}

// commonID gives the number that the CPUs of a group share, the first CPU's
// where they differ.
func (t *tree) commonID(cpus topology.CPUSet, l *level) *int {
	first := idOf(l.ids, cpus[0])
	for _, cpu := range cpus[1:] {
		if id := idOf(l.ids, cpu); id != first {
			file := cpuTopology(cpu, l.id)
			t.degrade("siblings_contradict", file, about{}, "%s: %d, but CPU %d of the same group says %d", file, id, cpus[0], first)
		}
	}
	return known(first)
}

// known is a number of a package or die, nil where it is not told.
func known(id int) *int {
	if id < 0 {
		return nil
	}
	return &id
}

// uniquePackages remarks on packages that share a number. Kernels with
// cluster-on-die show each half so.
func (t *tree) uniquePackages(r *cpuReading) {
	seen := map[int]topology.CPUSet{}
	for _, p := range r.packages {
		if p.ID == nil {
			continue
		}
		if other, ok := seen[*p.ID]; ok {
			t.degrade("siblings_contradict", cpuTopology(p.CPUs[0], "physical_package_id"), about{}, "%s: %d, which is also that of CPUs %s", cpuTopology(p.CPUs[0], "physical_package_id"), *p.ID, list(other))
		}
		seen[*p.ID] = p.CPUs
	}
}

// cpusFromProc serves hosts whose kernel shows no CPU in sysfs.
func (t *tree) cpusFromProc(r *cpuReading) error {
	r.online = r.info.processors
	if r.online.IsEmpty() {
		r.online, _ = parsed(t, expected, procStat, about{}, parseStatCPUs)
	}
	if r.online.IsEmpty() {
		return errors.New(cpuDir + ", " + procCPUInfo + ", " + procStat + ": no CPU found")
	}
	byCore := map[[2]int]int{} // package and core → index into cores
	byPackage := map[int]int{}
	for _, cpu := range r.online {
		ids, ok := r.info.core[cpu]
		if !ok {
			continue
		}
		if i, ok := byCore[ids]; ok {
			r.cores[i] = append(r.cores[i], cpu)
		} else {
			byCore[ids] = len(r.cores)
			r.cores = append(r.cores, topology.CPUSet{cpu})
		}
		if i, ok := byPackage[ids[0]]; ok {
			r.packages[i].CPUs = append(r.packages[i].CPUs, cpu)
		} else {
			byPackage[ids[0]] = len(r.packages)
			r.packages = append(r.packages, topology.Package{ID: known(ids[0]), CPUs: topology.CPUSet{cpu}})
		}
	}
	return nil
}
