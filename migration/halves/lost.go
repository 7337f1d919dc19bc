package halves

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"berth/internal/fault"
	"berth/placementclient"
)

// Lost reads what the guest of a dead host holds, and writes nothing: what stands is the
// source's half as it is. Anything on another provider is refused, unless it is proven to be
// left over (see Leftover): then the swap takes it away, and only what is on the source's
// providers is kept. A guest that holds nothing at all is refused: it may have been deleted.
func (m Move) Lost(ctx context.Context, s Source) (Start, error) {
	have, err := m.Placement.Allocations(ctx, m.Instance)
	if err != nil {
		return Start{}, fmt.Errorf("read the allocation of instance %s: %w", m.Instance, err)
	}
	if !have.Exists() {
		return Start{}, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "allocation_missing", Message: "instance " + m.Instance + " holds nothing in Placement: it may have been deleted", Want: s.Root,
			Change: "find out; if it is to live again, write to Placement what it had of its host",
		})
	}
	held := have.Clone()
	held.ConsumerType = placementclient.ConsumerInstance
	if held.ProjectID == "" {
		held.ProjectID = s.ProjectID
	}
	if held.UserID == "" {
		held.UserID = s.UserID
	}
	other := s.elsewhere(have.Allocations)
	if len(other) == 0 {
		return Start{Held: held}, nil
	}
	if err := s.proven(ctx, m.Instance, have.Allocations, other); err != nil {
		return Start{}, err
	}
	held.Allocations = only(have.Allocations, func(rp string) bool { return !slices.Contains(other, rp) })
	return Start{Held: held, Found: have.Allocations}, nil
}

// Withdraw is the undo of Swap where nobody can be asked for the guest, and others may be at it
// too. What stands decides: a swap that stands is taken back; what somebody else wrote to the
// instance since, and what was there before, is left. In each case the instance's generation
// is raised, so that a copy of the swap that lands later does nothing, and the migration's
// consumer is emptied in the same write. An instance that holds nothing any more is not made
// again.
func (m Move) Withdraw(ctx context.Context, s Start, next Amounts) error {
	for try := 0; ; try++ {
		err := m.withdraw(ctx, s, next)
		if err == nil {
			return nil
		}
		if try >= tries || !again(err) {
			return fmt.Errorf("swap allocations of instance %s back: %w", m.Instance, err)
		}
		if err := m.pause(ctx, try); err != nil {
			return err
		}
	}
}

func (m Move) withdraw(ctx context.Context, s Start, next Amounts) error {
	inst, mig, err := m.read(ctx)
	if err != nil {
		return err
	}
	set := map[string]placementclient.Allocations{}
	if inst.Exists() {
		back := inst.Clone()
		back.ConsumerType = placementclient.ConsumerInstance
		if s.swapped(inst.Allocations, mig, next) {
			back.Allocations = s.before(inst.Allocations, mig.Allocations, next)
		}
		set[m.Instance] = back
	}
	if mig.Exists() {
		mig.Allocations, mig.ConsumerType = nil, placementclient.ConsumerMigration
		set[m.Migration] = mig
	}
	if len(set) == 0 {
		return nil
	}
	return m.write(ctx, set)
}

// swapped reports whether what stands is what the swap wrote.
func (s Start) swapped(inst Amounts, mig placementclient.Allocations, next Amounts) bool {
	if len(Split(s.Held.Allocations, next)) == 0 {
		return Same(inst, next)
	}
	if !mig.Exists() {
		return false
	}
	for rp := range next {
		if _, was := s.Held.Allocations[rp]; was {
			continue
		}
		if _, holds := inst[rp]; holds {
			return true
		}
	}
	return false
}

// before is what the instance held before the swap, by what both hold now; what it holds of
// providers that the swap does not know stays.
func (s Start) before(inst, mig, next Amounts) Amounts {
	if len(s.Held.Allocations) == 0 {
		return s.Found
	}
	out := Sum(mig, Stayed(s.Held.Allocations, next))
	maps.Copy(out, only(inst, func(rp string) bool {
		_, old := s.Held.Allocations[rp]
		_, came := next[rp]
		return !old && !came
	}))
	return out
}
