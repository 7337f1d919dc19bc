package soak

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/migration"
	"berth/test/guest"
)

// A guest that was powered off for a move cannot prove it by heartbeats without a gap. At
// each boot it says which machine it has, which boot wrote its disk before, and whether
// each block is as that one left it: so boots are links of a chain.

// lap and begins note when a part of a cold story ended, and when the next began; how
// long its user waited between the two is no recovery.
func (r *round) lap(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.parts); n > 0 && r.parts[n-1].to.IsZero() {
		r.parts[n-1].to = at
	}
}

func (r *round) begins(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.parts); n == 0 || !r.parts[n-1].to.IsZero() {
		r.parts = append(r.parts, part{from: at})
	}
}

// coldRecovery is how long the part of a cold story took to its end that was under way
// when all was up again.
func (r *round) coldRecovery(over, healed time.Time) time.Duration {
	r.lap(over)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.parts {
		if p.to.After(healed) {
			from := p.from
			if healed.After(from) {
				from = healed
			}
			return p.to.Sub(from)
		}
	}
	return 0
}

// booted proves that the guest has what it must have, by its own words and its disk.
func (r *round) booted(ctx context.Context, m migration.Migration) error {
	s := r.plan.Story
	here, err := readBoots(r.from.Console(r.name))
	if err != nil {
		return err
	}
	if len(here) < r.told {
		return fmt.Errorf("the console of %s has lost %d boots", r.from.Name, r.told-len(here))
	}
	stayed := here[r.told:]
	there, err := readBoots(r.to.Console(r.name))
	if err != nil {
		return err
	}
	if len(there) > 0 && (!s.crosses() || m.Outcome == migration.OutcomeUndone && m.Unfit == nil || m.Outcome == migration.OutcomeRefused) {
		return fmt.Errorf("a copy ran on %s, and the move was %s: %+v", r.to.Name, m.Outcome, there)
	}
	all := slices.Clone(stayed)
	if r.home == r.to {
		if len(stayed) > 0 {
			return fmt.Errorf("the guest booted on %s, and the move was %s: %+v", r.from.Name, m.Outcome, stayed)
		}
		all = slices.Clone(there)
	}
	last := r.first
	if len(all) > 0 {
		last = all[len(all)-1]
	}
	changed := m.Outcome == migration.OutcomeCompleted
	if (changed || m.Outcome == migration.OutcomeReverted) && last == r.first {
		return fmt.Errorf("the guest has not booted, and the move is %s", m.Status)
	}
	if last != r.first && s.Power == "" && !poweredOff(m) {
		return fmt.Errorf("the guest booted %d times, and nothing powered it off", len(all))
	}
	// Whose disk a boot may have found: that of the last before it which wrote to the same
	// one. One whose plug was pulled early has written nothing.
	before := []string{r.first.ID}
	if r.storage == Shared && !s.Grow && r.home == r.from {
		for _, b := range there {
			before = append(before, b.ID)
		}
	}
	for n, b := range slices.Concat(there, stayed) {
		if b.Lost > 0 || b.Kept == 0 {
			return fmt.Errorf("boot %d of the round found on its disk %d blocks as they were written and %d not: %+v", n, b.Kept, b.Lost, b)
		}
	}
	switch {
	case s.kind() == Rebuild && changed:
		before = []string{r.image}
		for _, b := range all[:len(all)-1] {
			if b.Before == r.image {
				before = append(before, b.ID)
			}
		}
	case s.kind() == ResizeIn && s.Grow && !changed, s.kind() == Rebuild:
		// The disk is the old one: nothing of the changed guest's is on it. Those of boots
		// that came after it was back may be.
		for _, b := range all[:max(0, len(all)-1)] {
			if b.DiskMiB == r.first.DiskMiB && b.Before != r.image {
				before = append(before, b.ID)
			}
		}
	default:
		for _, b := range all[:max(0, len(all)-1)] {
			before = append(before, b.ID)
		}
	}
	if last != r.first && !slices.Contains(before, last.Before) {
		return fmt.Errorf("the guest booted on %s with a disk that boot %q wrote, want one of %q: before %+v, there %+v, here %+v", r.home.Name, last.Before, before, r.first, there, stayed)
	}
	return r.machine(last, r.flavor)
}

// poweredOff says whether a move ever asked for the guest to be powered off.
func poweredOff(m migration.Migration) bool {
	for _, s := range slices.Concat(m.MoveSteps, m.Steps) {
		if s.Name == migration.StepPowerOff && s.State != "" {
			return true
		}
	}
	return false
}

// machine requires that a boot has the machine of a flavor. How much of its memory a
// kernel counts is learned from the first boot with each.
func (b *bed) machine(have guest.Boot, name string) error {
	f := flavors[name]
	disk := diskSize >> 20
	if f.disk > 1 {
		disk = f.disk << 10
	}
	if b.memory == nil {
		b.memory = map[string]int{}
	}
	if _, known := b.memory[name]; !known && have.MemoryMiB < f.memory && have.MemoryMiB > f.memory-48 {
		b.memory[name] = have.MemoryMiB
	}
	if have.CPUs != f.cpus || have.DiskMiB != disk || have.MemoryMiB != b.memory[name] {
		return fmt.Errorf("the guest says that it has %+v; flavor %s is %+v, of which its kernel counts %d MiB of memory", have, name, f, b.memory[name])
	}
	return nil
}

// livedCold proves by the guest's own words that it has been through a cold story: that
// its newest boot beats, is whole, and is the one that it must be.
func (r *round) livedCold(ctx context.Context, m migration.Migration) error {
	not := ""
	if m.Outcome == migration.OutcomeCompleted || m.Outcome == migration.OutcomeReverted || r.plan.Story.Power == Off {
		not = r.first.ID
	}
	last, err := r.settled(ctx, r.home, not)
	if err != nil {
		return err
	}
	if err := r.booted(ctx, m); err != nil {
		return err
	}
	beats, err := guest.ReadConsole(r.home.Console(r.name))
	if err != nil {
		return err
	}
	r.boots = last
	_, err = guest.Healthy(slices.DeleteFunc(beats, func(b guest.Beat) bool { return b.Boot != last.ID }))
	return err
}
