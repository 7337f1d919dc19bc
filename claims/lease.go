package claims

import (
	"context"
	"maps"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// tick is how often Run looks for leases that are over and for tombstones past
// their use. A lease that ends a second late harms nobody.
const tick = time.Second

// renew starts the lease anew.
func (l *Lease) renew(now runtime.BootTime) {
	l.Until = runtime.BootTime{ID: now.ID, Since: now.Since + l.Length}
}

// over reports whether the lease has ended. One of another boot has: instants of
// two boots cannot be compared, and nothing of the earlier one can arrive.
func (l *Lease) over(now runtime.BootTime) bool {
	return l.Until.ID != now.ID || now.Since >= l.Until.Since
}

// Renew gives a pending claim its full lease from now. Claims in later states
// have none and are answered as they are. Nothing is written: after a restart of
// the agent each lease starts anew anyway. A claim whose lease is over but which
// Expire has not seen yet is still held, and is renewed. Errors as of Arrive.
func (t *Tracker) Renew(ctx context.Context, o Owner) (Claim, error) {
	if err := validUUIDs(o.Instance, o.Migration); err != nil {
		return Claim{}, fault.New(fault.Invalid, "renew claim: %w", err)
	}
	var answer Claim
	err := t.change(ctx, subjects(o.Instance, o.Migration), func() (plan, error) {
		e := t.findLocked(o)
		if e == nil {
			return plan{}, t.missingLocked("renew", o)
		}
		if e.claim.Lease != nil {
			lease := *e.claim.Lease
			lease.renew(t.runtime.Boot())
			e.claim.Lease = &lease
		}
		answer = e.claim.clone()
		return plan{}, nil
	})
	return answer, err
}

// Expire drops the pending claims whose leases are over, in one commit, and
// gives them. Claims in other states have no lease and are never touched. After
// an error they are all still held, and the next call tries again.
func (t *Tracker) Expire(ctx context.Context) ([]Claim, error) {
	var gone []Claim
	var about []string
	for _, c := range t.due() {
		about = append(about, subjects(c.Owner.Instance, c.Owner.Migration)...)
	}
	if len(about) == 0 {
		return nil, nil
	}
	err := t.change(ctx, about, func() (plan, error) {
		// Looked at again: one may have been renewed or bound meanwhile, and
		// one that is due only since then is not among the subjects.
		covered := map[string]bool{}
		for _, s := range about {
			covered[s] = true
		}
		var p plan
		gone = nil
		now := t.runtime.Boot()
		for _, id := range slices.Sorted(maps.Keys(t.claims)) {
			e := t.claims[id]
			if c := e.claim; e.told && c.Lease != nil && c.Lease.over(now) && covered[ofInstance(c.Owner.Instance)] &&
				(c.Owner.Migration == "" || covered[ofMigration(c.Owner.Migration)]) {
				gone = append(gone, c.clone())
				p = p.and(t.removeLocked(e)).and(t.lapseLocked(c))
			}
		}
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	for _, c := range gone {
		t.log.Info("claim's lease is over", "claim", c.ID, "instance", c.Owner.Instance, "migration", c.Owner.Migration)
	}
	return gone, nil
}

func (t *Tracker) due() []Claim {
	now := t.runtime.Boot()
	return t.choose(func(c Claim) bool { return c.Lease != nil && c.Lease.over(now) })
}

// Run drops claims whose leases are over and tombstones past their use, until
// ctx ends; then it returns nil. A commit that fails is tried again.
func (t *Tracker) Run(ctx context.Context) error {
	for {
		if _, err := t.Expire(ctx); err != nil && ctx.Err() == nil {
			t.log.Warn("claims whose leases are over could not be dropped", "error", err)
		}
		if err := t.prune(ctx); err != nil && ctx.Err() == nil {
			t.log.Warn("tombstones past their use could not be dropped", "error", err)
		}
		if t.runtime.Sleep(ctx, tick) != nil {
			return nil
		}
	}
}
