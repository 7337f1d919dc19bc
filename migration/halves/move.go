package halves

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
)

// tries bounds how often one swap is written. Placement loses races inside itself in
// some of ten moves under load; Nova tries four times, this is a few more, since each
// failure costs a whole undo.
const tries = 6

// Placement is what a move writes by; *placementclient.Client is one.
type Placement interface {
	// Allocations of a consumer that does not exist are empty, and no error.
	Allocations(ctx context.Context, consumer string) (placementclient.Allocations, error)
	PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error
	// PostAllocations replaces what several consumers hold, all or none.
	PostAllocations(ctx context.Context, set map[string]placementclient.Allocations) error
	DeleteAllocations(ctx context.Context, consumer string) error
}

// Move is the two consumers of one move. Its methods may be repeated, also by
// another process.
type Move struct {
	Placement Placement
	Runtime   runtime.Runtime
	// Jitter gives a random duration below its argument.
	Jitter    func(time.Duration) time.Duration
	Instance  string // uuid of the one consumer
	Migration string // uuid of the other; used for one move only
}

// Leftover is asked whether what an instance holds of providers of other hosts is
// what a move by other hands left behind: nil when nothing of the guest is there, by the
// word of those hosts; else why it is not, or is not known, with every reason.
type Leftover func(ctx context.Context, providers []string) error

// Source is the host that a guest is to leave.
type Source struct {
	Root      string               // its root provider, for reasons
	Uses      func(rp string) bool // what a guest of it may be counted on; nil for what Claim names
	Claim     Amounts              // what the guest's claim holds of it
	ProjectID string               // for a consumer that names none
	UserID    string
	Leftover  Leftover // nil for nobody to ask
}

// Start is what the instance holds when the move begins. It is kept in the move's
// journal.
type Start struct {
	// Held is what it holds of the source, as its claim says, and the generation of
	// its consumer.
	Held placementclient.Allocations `json:"held"`
	// Found is what its consumer does hold, where that is a doubled allocation; nil
	// for Held.
	Found Amounts `json:"found,omitempty"`
}

// Settle makes the instance's allocation equal to its claim on the source, and
// answers with it. Absent or other amounts on the source's providers are healed: the
// claim is the truth and the source holds the token. Anything on another provider is
// refused, since somebody else believes the guest is there, unless it is proven to
// be half of a doubled allocation: that stands until the swap.
//
// known is what the consumer was read to hold a moment ago, nil to read it.
func (m Move) Settle(ctx context.Context, s Source, known *placementclient.Allocations) (Start, error) {
	for try := 0; ; try++ {
		have, err := placementclient.Allocations{}, error(nil)
		if known != nil {
			have, known = *known, nil
		} else if have, err = m.Placement.Allocations(ctx, m.Instance); err != nil {
			return Start{}, fmt.Errorf("read the allocation of instance %s: %w", m.Instance, err)
		}
		want := placementclient.Allocations{
			Allocations: each(s.Claim, func(_, _ string, n int64) int64 { return n }), ProjectID: have.ProjectID, UserID: have.UserID,
			ConsumerGeneration: have.ConsumerGeneration, ConsumerType: placementclient.ConsumerInstance,
		}
		if want.ProjectID == "" {
			want.ProjectID = s.ProjectID
		}
		if want.UserID == "" {
			want.UserID = s.UserID
		}
		if other := s.elsewhere(have.Allocations); len(other) > 0 {
			if err := s.proven(ctx, m.Instance, have.Allocations, other); err != nil {
				return Start{}, err
			}
			return Start{Held: want, Found: have.Allocations}, nil
		}
		if have.Exists() && Same(have.Allocations, want.Allocations) {
			return Start{Held: want}, nil
		}
		if try >= tries {
			return Start{}, fault.New(fault.Busy, "heal the allocation of instance %s: it is written by somebody else at the same time", m.Instance)
		}
		if err = m.Placement.PutAllocations(ctx, m.Instance, want); err == nil {
			// Every write raises the generation by one, the first makes it one.
			next := 1
			if g := have.ConsumerGeneration; g != nil {
				next = *g + 1
			}
			want.ConsumerGeneration = &next
			return Start{Held: want}, nil
		}
		if !again(err) {
			return Start{}, fmt.Errorf("heal the allocation of instance %s: %w", m.Instance, err)
		}
		if err := m.pause(ctx, try); err != nil {
			return Start{}, err
		}
	}
}

// elsewhere are the providers, in order, on which no guest of the source is counted.
func (s Source) elsewhere(held Amounts) []string {
	var out []string
	for _, rp := range slices.Sorted(maps.Keys(held)) {
		if _, claimed := s.Claim[rp]; !claimed && rp != s.Root && (s.Uses == nil || !s.Uses(rp)) {
			out = append(out, rp)
		}
	}
	return out
}

// proven is nil where what the instance holds of others is a leftover.
func (s Source) proven(ctx context.Context, instance string, held Amounts, other []string) error {
	var reasons []fault.Reason
	for _, rp := range other {
		reasons = append(reasons, fault.Reason{
			Code:    "allocation_elsewhere",
			Message: fmt.Sprintf("instance %s holds %v on provider %s, which is not its host", instance, held[rp], rp),
			Want:    s.Root, Have: rp, Change: "find out who wrote it, and delete what is stale",
		})
	}
	if s.Leftover != nil {
		err := s.Leftover(ctx, other)
		if err == nil {
			return nil
		}
		why := fault.ReasonsOf(err)
		if len(why) == 0 {
			why = []fault.Reason{{Code: string(fault.KindOf(err)), Message: err.Error()}}
		}
		reasons = append(reasons, why...)
	}
	return fault.Refuse(fault.Forbidden, "allocations do not agree with the source's claim", reasons...)
}

// ErrNothingWritten says of a Swap that was refused, for room or since its writer may not,
// that each of its writes was answered with a no: nothing is on its way. To write the same
// amounts back would change nothing, and whoever refused the one refuses the other too: a
// Placement whose provider is over its capacity, since an operator raised its reserve
// (8.0.0), and one that takes no write of this agent.
var ErrNothingWritten = errors.New("nothing was written")

// Swap gives the migration what it has to keep and the instance what it is to hold,
// in one write or not at all, and answers with what the migration keeps: nothing
// where the instance only grows. fault.GenerationConflict when another actor wrote
// either consumer; fault.DoesNotFit for no room, and fault.Forbidden or fault.Invalid for a
// write that Placement does not take from here: these with ErrNothingWritten where that is
// certain of this call.
func (m Move) Swap(ctx context.Context, s Start, next Amounts) (Amounts, error) {
	keep := Split(s.Held.Allocations, next)
	if s.Found == nil && Same(s.Held.Allocations, next) {
		return keep, nil
	}
	generation, look := s.Held.ConsumerGeneration, s.Held.ConsumerGeneration == nil
	doubt := false // a write was not answered with a no that is certain
	for try := 0; ; try++ {
		err := error(nil)
		if look {
			var inst, mig placementclient.Allocations
			if inst, mig, err = m.read(ctx); err == nil {
				switch {
				case Same(inst.Allocations, next) && Same(mig.Allocations, keep):
					return keep, nil
				case mig.Exists() || !inst.Exists() || !s.holds(inst.Allocations):
					return nil, fault.New(fault.GenerationConflict,
						"swap allocations of instance %s: it holds %v and the migration %v, want %v and nothing: another actor wrote them",
						m.Instance, inst.Allocations, mig.Allocations, s.Held.Allocations)
				}
				generation, look = inst.ConsumerGeneration, false
			}
		}
		if err == nil {
			to, half := s.Held.Clone(), s.Held.Clone()
			to.Allocations, to.ConsumerGeneration, to.ConsumerType = next, generation, placementclient.ConsumerInstance
			half.Allocations, half.ConsumerGeneration, half.ConsumerType = keep, nil, placementclient.ConsumerMigration
			set := map[string]placementclient.Allocations{m.Instance: to, m.Migration: half}
			if len(keep) == 0 {
				delete(set, m.Migration)
			}
			if err = m.write(ctx, set); err == nil {
				return keep, nil
			}
			if refused(err) && !doubt {
				return nil, fmt.Errorf("swap allocations of instance %s: %w: %w", m.Instance, err, ErrNothingWritten)
			}
			// A race that the server lost inside itself did nothing, and nobody else did.
			look = fault.KindOf(err) == fault.InDoubt || placementclient.ConflictOf(err) != placementclient.ConflictServerRace
			doubt = doubt || look
		}
		if try >= tries || !again(err) {
			return nil, fmt.Errorf("swap allocations of instance %s: %w", m.Instance, err)
		}
		if err := m.pause(ctx, try); err != nil {
			return nil, err
		}
	}
}

// refused reports whether a write was answered with a no that no other state of the two
// consumers would change.
func refused(err error) bool {
	switch fault.KindOf(err) {
	case fault.DoesNotFit, fault.Forbidden, fault.Invalid:
		return true
	}
	return false
}

// holds reports whether the instance still holds what the move began with.
func (s Start) holds(now Amounts) bool {
	return Same(now, s.Held.Allocations) || s.Found != nil && Same(now, s.Found)
}

// write sends what one or several consumers are to hold.
func (m Move) write(ctx context.Context, set map[string]placementclient.Allocations) error {
	if len(set) > 1 {
		return m.Placement.PostAllocations(ctx, set)
	}
	for consumer, a := range set {
		return m.Placement.PutAllocations(ctx, consumer, a)
	}
	return nil
}

func (m Move) read(ctx context.Context) (inst, mig placementclient.Allocations, err error) {
	if inst, err = m.Placement.Allocations(ctx, m.Instance); err == nil {
		mig, err = m.Placement.Allocations(ctx, m.Migration)
	}
	if err != nil {
		err = fmt.Errorf("read the allocations of instance %s and migration %s: %w", m.Instance, m.Migration, err)
	}
	return inst, mig, err
}

// again says whether reading and writing once more may help.
func again(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy, fault.GenerationConflict:
		return true
	}
	return false
}

func (m Move) pause(ctx context.Context, try int) error {
	base := 50 * time.Millisecond << min(try, 5)
	return m.Runtime.Sleep(ctx, base+m.Jitter(base))
}
