package claims

import (
	"fmt"
	"maps"
	"slices"

	"berth/migration"
	"berth/topology"
)

// Audit is the ledger held against itself and against the host.
type Audit struct {
	Claims int `json:"claims"` // how many were looked at

	// Differences are where what the tracker counts from moment to moment is not
	// what the claims add up to, and records that stand alone though they belong to
	// others: a fault of Berth's, never of a guest's.
	Differences []string `json:"differences,omitempty"`

	Forced  []string  `json:"forced,omitempty"`  // instances whose claims are forced
	Doubled []Doubled `json:"doubled,omitempty"` // what is promised more often than it is there

	// Lost names what claims hold and the host, as it is known now, no longer
	// has: cells, CPUs, PCI functions.
	Lost []Lost `json:"lost,omitempty"`
}

// Lost is a part of the host that an instance holds and that is gone; one of the
// three is named.
type Lost struct {
	Instance string               `json:"instance"`
	Cell     *topology.CellID     `json:"cell,omitempty"`
	CPUs     topology.CPUSet      `json:"cpus,omitempty"`
	Device   *topology.PCIAddress `json:"device,omitempty"`
}

// Agrees reports whether the ledger agrees with itself and fits the host.
func (a Audit) Agrees() bool {
	return len(a.Differences) == 0 && len(a.Forced) == 0 && len(a.Doubled) == 0 && len(a.Lost) == 0
}

// Audit adds up all claims anew, those on their way included, and compares. It
// holds the claim lock for that long: a few milliseconds with 500 guests.
func (t *Tracker) Audit() Audit {
	t.mu.Lock()
	defer t.mu.Unlock()
	anew := newMachine(t.machine.capacity)
	a := Audit{Claims: len(t.claims)}
	for _, instance := range slices.Sorted(maps.Keys(t.holdings)) {
		h := t.holdings[instance]
		var sum hold
		forced := false
		for i, e := range h.entries {
			one := e.holdOn(anew)
			if i > 0 {
				one = sum.union(one)
			}
			sum = one
			forced = forced || e.told && e.claim.Forced
		}
		anew.add(instance, sum)
		if forced {
			a.Forced = append(a.Forced, instance)
		}
		a.Lost = append(a.Lost, anew.lost(instance, sum)...)
	}
	for instance, s := range t.strangers {
		anew.add(instance, anew.hold(s.found.Resources, s.found.Assignment))
	}
	a.Differences = append(t.machine.differences(anew), t.leftBehindLocked()...)
	a.Doubled = anew.doubled(t.countedLocked())
	return a
}

// leftBehindLocked names copies that nothing waits for, and records that are hidden though
// the move is not here any more that would show them or end them.
func (t *Tracker) leftBehindLocked() []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(t.copies)) {
		c := t.copies[id]
		if !t.claimedLocked(migration.Ref{Migration: c.Migration, Instance: id, Attempt: c.Attempt}) {
			out = append(out, fmt.Sprintf("copy of instance %s by migration %s: no claim here waits for it", id, c.Migration))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(t.instances)) {
		i := t.instances[id]
		if !i.Hidden || t.migrations[i.Token.Migration].Context != nil {
			continue
		}
		claimed := slices.ContainsFunc(t.entriesLocked(id), func(e *entry) bool { return e.claim.Owner.Migration == i.Token.Migration })
		if !claimed {
			out = append(out, fmt.Sprintf("instance %s is hidden: its migration %s is not here any more", id, i.Token.Migration))
		}
	}
	return out
}

// lost names what a hold has and the machine has not. A machine without cells
// or devices is one that was not read yet.
func (m *machine) lost(instance string, h hold) []Lost {
	var out []Lost
	if len(m.cells) > 0 {
		for _, c := range h.cells {
			if _, ok := m.index[c.id]; !ok && c.id != topology.UnknownCell {
				out = append(out, Lost{Instance: instance, Cell: &c.id})
			}
		}
		var cpus topology.CPUSet
		for _, cpu := range h.cpus {
			if m.cellOf[cpu] < 0 {
				cpus = append(cpus, cpu)
			}
		}
		if len(cpus) > 0 {
			out = append(out, Lost{Instance: instance, CPUs: cpus})
		}
	}
	if len(m.capacity.Devices) > 0 {
		for _, d := range h.devices {
			if _, ok := m.deviceAt[d]; !ok {
				out = append(out, Lost{Instance: instance, Device: &d})
			}
		}
	}
	return out
}

// differences says in what a machine counts otherwise than one that was made
// anew from the same claims.
func (m *machine) differences(anew *machine) []string {
	var out []string
	say := func(what string, counted, sum any) {
		if c, s := fmt.Sprint(counted), fmt.Sprint(sum); c != s {
			out = append(out, fmt.Sprintf("%s: %s counted, the claims add up to %s", what, c, s))
		}
	}
	say("host", m.used, anew.used)
	say("ordinary memory", m.ordinaryMB, anew.ordinaryMB)
	for i, c := range m.cells {
		n := anew.cells[i]
		of := fmt.Sprintf("cell %d: ", c.ID)
		say(of+"cpus held", c.Pinned, n.Pinned)
		say(of+"shared vcpus", c.SharedUsed, n.SharedUsed)
		say(of+"memory", c.MemoryUsedMB, n.MemoryUsedMB)
		say(of+"ordinary memory", m.ordinary[i], anew.ordinary[i])
		for j, p := range c.Pages {
			say(of+p.Size.String()+" pages", p.Used, n.Pages[j].Used)
		}
	}
	for cpu := range max(len(m.taken), len(anew.taken)) {
		if c, s := at(m.taken, cpu), at(anew.taken, cpu); c != s {
			say(fmt.Sprintf("cpu %d", cpu), c, s)
		}
	}
	if !maps.EqualFunc(m.devices, anew.devices, func(a, b []string) bool { return slices.Equal(a, b) }) {
		say("PCI devices", m.devices, anew.devices)
	}
	if !maps.EqualFunc(m.mdevs, anew.mdevs, func(a, b []string) bool { return slices.Equal(a, b) }) {
		say("mediated devices", m.mdevs, anew.mdevs)
	}
	return out
}

func at(counts []int32, cpu int) int32 {
	if cpu < len(counts) {
		return counts[cpu]
	}
	return 0
}
