package halves

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"berth/internal/fault"
	"berth/placementclient"
)

// Whereabouts is what a source says of its guest when a move is undone.
type Whereabouts uint8

// What it can say. Not to know is an error.
const (
	Here      Whereabouts = iota // it is the source's, running or not
	Gone                         // it was deleted, or its domain was
	Elsewhere                    // its token left by another move
)

// Undo is what the undo of a swap has to know.
type Undo struct {
	Start Start
	Next  Amounts // what the instance was to hold
	// Both reports whether a provider is one of the two hosts'; those that Start and
	// Next name are without asking. May be nil.
	Both func(rp string) bool
	// Guest asks the source what became of the guest, and what its claim holds by
	// provider as the source's tree stands now; nil where it does not say. It is asked
	// before Placement.
	Guest func(ctx context.Context) (Whereabouts, Amounts, error)

	before Amounts // what Start held by the tree that stood then
}

// standing is the undo of a source that changed its shape after the move had begun: what
// the guest held adds up to the same on other providers.
func (u Undo) standing(claim Amounts) Undo {
	if u.before = u.Start.Held.Allocations; maps.Equal(sums(u.before), sums(claim)) {
		u.Start.Held.Allocations = claim
	}
	return u
}

// Back is the undo of Swap, also of one that did not land, or not yet. nil only
// after a write whose answer came, or where there was nothing that a late swap could
// be written over. See the table in the package comment.
func (m Move) Back(ctx context.Context, u Undo) error {
	guest, claim, err := u.Guest(ctx)
	if err != nil {
		return fmt.Errorf("swap allocations of instance %s back: ask its source for it: %w", m.Instance, err)
	}
	u = u.standing(claim)
	var sent *placementclient.Allocations
	for try := 0; ; try++ {
		err := m.writeBack(ctx, u, guest, &sent)
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

// writeBack writes once. sent is what the instance was sent by the write before, which
// may have landed though it was answered with a conflict: a network that repeats a
// request gives the answer to the second one.
func (m Move) writeBack(ctx context.Context, u Undo, guest Whereabouts, sent **placementclient.Allocations) error {
	inst, mig, err := m.read(ctx)
	if err != nil {
		return err
	}
	if s := *sent; s != nil && !mig.Exists() && Same(inst.Allocations, s.Allocations) &&
		later(inst.ConsumerGeneration, s.ConsumerGeneration) && later(inst.ConsumerGeneration, u.Start.Held.ConsumerGeneration) {
		return nil // whatever swap is still on its way was sent with an older generation
	}
	back := u.Start.Held.Clone()
	back.ConsumerGeneration, back.ConsumerType = inst.ConsumerGeneration, placementclient.ConsumerInstance
	foreign := only(inst.Allocations, func(rp string) bool { return !u.of(rp) })
	set := map[string]placementclient.Allocations{}
	switch {
	case guest == Here:
		if mig.Exists() {
			back.Allocations = Sum(mig.Allocations, Stayed(u.Start.Held.Allocations, u.Next))
		}
		maps.Copy(back.Allocations, foreign)
		set[m.Instance] = back
	case guest == Gone && inst.Exists():
		back.Allocations = foreign
		set[m.Instance] = back
	case guest == Elsewhere && inst.Exists():
		same := inst.Clone()
		same.ConsumerType = placementclient.ConsumerInstance // read from one written below 1.38 it is unknown
		set[m.Instance] = same
	}
	if mig.Exists() {
		mig.Allocations, mig.ConsumerType = nil, placementclient.ConsumerMigration
		set[m.Migration] = mig
	}
	if a, sends := set[m.Instance]; sends {
		*sent = &a
	}
	if err := m.write(ctx, set); err != nil || guest != Here {
		return err
	}
	return m.outlive(ctx, u.Start.Held.ConsumerGeneration, back)
}

// later reports whether a generation is past another; none is before the first.
func later(a, b *int) bool { return a != nil && (b == nil || *a > *b) }

// of reports whether a provider is one of the move's hosts'.
func (u Undo) of(rp string) bool {
	for _, a := range []Amounts{u.Start.Held.Allocations, u.before, u.Start.Found, u.Next} {
		if _, named := a[rp]; named {
			return true
		}
	}
	return u.Both != nil && u.Both(rp)
}

// outliveAtMost bounds the writes of outlive. Arbitrary; a consumer written more often
// than this before its move began counts up again only as often as it is written.
const outliveAtMost = 16

// outlive raises the generation of a consumer that was deleted and made again past the
// one that a swap was sent with: a consumer's generations begin at 1 each time, and a
// copy of that swap which is still on its way would find its own. a is what was
// written last; mostly its generation is past that already.
func (m Move) outlive(ctx context.Context, swapped *int, a placementclient.Allocations) error {
	if swapped == nil {
		return nil
	}
	written := 1
	if a.ConsumerGeneration != nil {
		written = *a.ConsumerGeneration + 1
	}
	for g := written; g <= *swapped && g < written+outliveAtMost; g++ {
		a.ConsumerGeneration = placementclient.Generation(g)
		if err := m.Placement.PutAllocations(ctx, m.Instance, a); err != nil {
			return fmt.Errorf("raise the generation of consumer %s, which was deleted and made again: %w", m.Instance, err)
		}
	}
	return nil
}

// Finish deletes what the migration holds, at the very end. The uuid is never used
// again, so a copy of the request that lands late does nothing. Where it holds
// nothing, and the swap did give it something, a doubled allocation may be what is
// left: then the source's half of it is removed from the instance, once leftover has
// proven that nothing of the guest is there any more. Something of it there is a
// guest that has come back, whose allocation is another move's to write.
func (m Move) Finish(ctx context.Context, u Undo, leftover Leftover) error {
	if len(Split(u.Start.Held.Allocations, u.Next)) == 0 {
		return nil // none was made
	}
	err := m.Placement.DeleteAllocations(ctx, m.Migration)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fault.NotFound):
		return fmt.Errorf("delete the allocation of migration %s: %w", m.Migration, err)
	}
	for try := 0; ; try++ {
		err := m.halve(ctx, u, leftover)
		if err == nil {
			return nil
		}
		if try >= tries || !again(err) {
			return fmt.Errorf("remove the source's half of what instance %s holds: %w", m.Instance, err)
		}
		if err := m.pause(ctx, try); err != nil {
			return err
		}
	}
}

// halve removes the source's half of a doubled allocation.
func (m Move) halve(ctx context.Context, u Undo, leftover Leftover) error {
	inst, err := m.Placement.Allocations(ctx, m.Instance)
	if err != nil {
		return err
	}
	old := u.Start.Held.Allocations
	var half []string
	there := false // it holds of the destination
	for _, rp := range slices.Sorted(maps.Keys(inst.Allocations)) {
		if _, next := u.Next[rp]; next {
			there = true
		} else if _, was := old[rp]; was {
			half = append(half, rp)
		}
	}
	if !there || len(half) == 0 {
		return nil
	}
	if err := leftover(ctx, half); err != nil {
		if again(err) {
			return err
		}
		return nil // proven to be none
	}
	rest := inst.Clone()
	for _, rp := range half {
		delete(rest.Allocations, rp)
	}
	// What both hosts share is doubled too where it is at least the sum.
	rest.Allocations = each(rest.Allocations, func(rp, class string, n int64) int64 {
		if was := old[rp][class]; n >= was+u.Next[rp][class] {
			return n - was
		}
		return n
	})
	rest.ConsumerType = placementclient.ConsumerInstance
	return m.Placement.PutAllocations(ctx, m.Instance, rest)
}
