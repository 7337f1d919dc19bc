package soak

import (
	"math/rand/v2"
	"slices"
	"time"

	"berth/migration"
)

// latest is how long after the request a random moment may be; a live migration takes
// about three seconds, a cold move with its end five.
const latest = 3500 * time.Millisecond

// PlanOf is the round of a seed. Consecutive seeds go through the whole table, so
// that as many rounds as it has rows leave none out; stories (of the kinds given), moments,
// durations and every fourth round's second fault are random.
func PlanOf(seed uint64, table []Fault, kinds []Kind) Plan {
	rng := rand.New(rand.NewPCG(seed, 0x626572))
	first := table[seed%uint64(len(table))]
	p := Plan{Seed: seed, Story: storyOf(rng, first, kinds), Bandwidth: []uint64{0, 60 << 20, 25 << 20}[rng.IntN(3)]}
	if p.Story.cold() {
		p.Bandwidth /= 10 // a disk is small
	}
	add := func(f Fault) {
		p.Strikes = append(p.Strikes, Strike{Fault: f.Name, At: f.momentOf(rng, p.Story), For: f.lengthOf(rng)})
	}
	add(first)
	if rng.IntN(4) > 0 {
		return p
	}
	others := slices.DeleteFunc(slices.Clone(table), func(f Fault) bool {
		return !f.strikes(p.Story.kind()) || slices.ContainsFunc(f.touches, func(part string) bool { return slices.Contains(first.touches, part) })
	})
	if len(others) > 0 {
		f := others[rng.IntN(len(others))]
		add(f)
		if f.arm == nil && rng.IntN(3) == 0 {
			p.Strikes[1].At = Moment{With: true, After: p.Strikes[1].At.After}
		}
	}
	return p
}

// momentOf draws when a fault strikes: at one of its own moments, or anywhere. In a
// cold story it is anywhere, its end as often as what comes before.
func (f Fault) momentOf(rng *rand.Rand, s Story) Moment {
	if f.arm != nil {
		return Moment{}
	}
	m := Moment{}
	switch n := rng.IntN(10); {
	case s.cold() && n < 8:
		all := s.moments()
		if rng.IntN(2) == 0 {
			later := slices.DeleteFunc(slices.Clone(all), func(m Moment) bool { return m.Stage == migration.StageMove })
			if len(later) > 0 {
				all = later
			}
		}
		m = all[rng.IntN(len(all))]
	case len(f.moments) > 0 && !s.cold():
		m = f.moments[rng.IntN(len(f.moments))]
	case n < 6:
		m.Step = steps[rng.IntN(len(steps))]
	case n < 8 && !s.cold():
		m.Memory = true
	default:
		m.After = time.Duration(rng.Int64N(int64(latest)/1e6)) * time.Millisecond
		return m
	}
	// At the boundary itself, or somewhere in what follows.
	if rng.IntN(2) == 0 {
		m.After = time.Duration(rng.IntN(600)) * time.Millisecond
	}
	return m
}
