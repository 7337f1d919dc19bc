package claims

import (
	"maps"
	"slices"

	"berth/topology"
)

// stranger is a guest that runs here and has no claim: nobody adopted it, or it
// does not fit. What it uses is counted all the same, so that no claim is put on
// it; it holds nothing in the ledger, and is told again after each start.
type stranger struct {
	found   Found
	counted hold // as the machine counts it
}

// SetStrangers tells which guests run here without a claim, all of them, and what
// each uses. From now on it is not free. An instance that has a claim here is
// passed over. Nothing of it is durable.
func (t *Tracker) SetStrangers(all map[string]Found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, instance := range slices.Collect(maps.Keys(t.strangers)) {
		t.forgetStrangerLocked(instance)
	}
	for instance, f := range all {
		if _, has := t.holdings[instance]; has {
			continue
		}
		s := stranger{found: Found{Resources: f.Resources, Assignment: f.Assignment.Clone()}}
		s.counted = t.machine.hold(s.found.Resources, s.found.Assignment)
		t.machine.add(instance, s.counted)
		t.strangers[instance] = s
	}
}

// Strangers gives what is counted for guests without a claim, by instance.
func (t *Tracker) Strangers() map[string]topology.Resources {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]topology.Resources, len(t.strangers))
	for instance, s := range t.strangers {
		out[instance] = s.found.Resources
	}
	return out
}

// countStrangersLocked has a machine that is new count them.
func (t *Tracker) countStrangersLocked() {
	for instance, s := range t.strangers {
		s.counted = t.machine.hold(s.found.Resources, s.found.Assignment)
		t.machine.add(instance, s.counted)
		t.strangers[instance] = s
	}
}

// forgetStrangerLocked is for one that gets a claim, which counts from then on.
func (t *Tracker) forgetStrangerLocked(instance string) {
	if s, ok := t.strangers[instance]; ok {
		t.machine.remove(instance, s.counted)
		delete(t.strangers, instance)
	}
}

// withoutStrangerLocked leaves an instance's own use out of the sums until again
// is called: a claim for it is of what it uses already.
func (t *Tracker) withoutStrangerLocked(instance string) (again func()) {
	s, ok := t.strangers[instance]
	if !ok {
		return func() {}
	}
	t.forgetStrangerLocked(instance)
	return func() {
		t.machine.add(instance, s.counted)
		t.strangers[instance] = s
	}
}

// countedLocked is what every instance is counted for, with a claim or without.
func (t *Tracker) countedLocked() map[string]hold {
	out := make(map[string]hold, len(t.holdings)+len(t.strangers))
	for instance, s := range t.strangers {
		out[instance] = s.counted
	}
	for instance, h := range t.holdings {
		out[instance] = h.counted
	}
	return out
}
