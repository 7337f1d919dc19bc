package conductor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/halves"
	"berth/migration/operation"
	"berth/migration/task"
	"berth/placementclient"
	"berth/topology"
)

// What a move writes to Placement; package halves has the rules.

// move is the two consumers of the migration.
func (s placementSteps) move() halves.Move {
	return halves.Move{
		Placement: s.c.cfg.Placement, Runtime: s.c.cfg.Runtime, Jitter: s.c.cfg.Jitter, Instance: s.instance, Migration: s.uuid,
	}
}

// placementResources is a claim's amounts in Placement's classes. Placement
// takes no zero amounts.
func placementResources(r topology.Resources) placementclient.Resources {
	out := placementclient.Resources{
		placementclient.ClassVCPU:     int64(r.VCPUs),
		placementclient.ClassPCPU:     int64(r.PCPUs),
		placementclient.ClassMemoryMB: r.MemoryMB,
		placementclient.ClassDiskGB:   r.DiskGB,
	}
	maps.DeleteFunc(out, func(_ string, n int64) bool { return n == 0 })
	return out
}

// amounts is what a claim holds of a host by provider; of one whose agent does not
// tell, all is on the root.
func amounts(d migration.Description, told halves.Amounts, r topology.Resources) halves.Amounts {
	if told != nil {
		return told
	}
	return halves.Amounts{d.ProviderUUID: placementResources(r)}
}

// settleSource makes the instance's allocation equal to its claim.
func (s placementSteps) settleSource(ctx context.Context, src inspectedSource) (halves.Start, error) {
	s.c.mu.Lock()
	known := s.known
	s.known = nil // once: a repeated step reads
	s.c.mu.Unlock()
	return s.move().Settle(ctx, halves.Source{
		Root: src.Source.ProviderUUID, Uses: src.Source.Counts, Claim: amounts(src.Source, src.Guest.Allocations, src.Guest.Resources),
		ProjectID: src.Guest.ProjectID, UserID: src.Guest.UserID, Leftover: s.leftover,
	}, known)
}

// held is what the two consumers of a move hold, and what their end has to know.
type held struct {
	halves.Start
	Next halves.Amounts `json:"next"` // the instance's
	// Providers are those of the two hosts.
	Providers []string `json:"providers"`
}

// heldBy reads it in the journal of a move.
func (s placementSteps) heldBy(t *task.Task) (*held, error) {
	var claim migration.ClaimAnswer
	src, err := s.inspected(t)
	if err == nil {
		err = t.Output(migration.StepClaim, &claim)
	}
	if err != nil {
		return nil, err
	}
	dst := migration.CheckAnswer{Destination: src.Source}
	if err := t.Output(migration.StepCheckDestination, &dst); err != nil && !errors.Is(err, fault.NotFound) {
		return nil, err
	}
	h := &held{Start: src.Start, Next: amounts(dst.Destination, claim.Allocations, claim.Resources)}
	for _, d := range []migration.Description{src.Source, dst.Destination} {
		h.Providers = append(append(h.Providers, d.ProviderUUID), d.Providers...)
	}
	slices.Sort(h.Providers)
	h.Providers = slices.Compact(h.Providers)
	return h, nil
}

// sides is what the swap changes, and what its undo and the end have to know. Where a
// move is finished its journal has gone, and its record has it.
func (s placementSteps) sides(t *task.Task) (halves.Undo, error) {
	s.c.mu.Lock()
	h := s.held
	s.c.mu.Unlock()
	if h == nil {
		var err error
		if h, err = s.heldBy(t); err != nil {
			return halves.Undo{}, err
		}
	}
	return halves.Undo{
		Start: h.Start, Next: h.Next, Guest: s.whereabouts,
		Both: func(rp string) bool { return slices.Contains(h.Providers, rp) },
	}, nil
}

// swapped is the swap's output: what the migration keeps, empty where there is
// nothing to keep and no such consumer was made.
type swapped struct {
	Kept halves.Amounts `json:"kept"`
}

func (s placementSteps) swap(ctx context.Context, t *task.Task) (any, error) {
	u, err := s.sides(t)
	if err != nil {
		return nil, err
	}
	kept, err := s.move().Swap(ctx, u.Start, u.Next)
	if errors.Is(err, halves.ErrNothingWritten) {
		if fault.KindOf(err) == fault.DoesNotFit {
			err = sourceOverfull(u.Start, err)
		}
		return nil, fmt.Errorf("%w: %w", err, task.ErrNothingDone)
	}
	if err != nil {
		return nil, err
	}
	return swapped{kept}, nil
}

// sourceOverfull tells a refusal of the source's own providers from one of the
// destination's: no other destination would help, and what helps is said.
func sourceOverfull(s halves.Start, err error) error {
	reasons := slices.Clone(fault.ReasonsOf(err))
	for rp := range s.Held.Allocations {
		for i := range reasons {
			if strings.Contains(reasons[i].Message, rp) {
				reasons[i].Code, reasons[i].Change = "source_overfull", "give back to the source in Placement what its guests hold (reserved, allocation_ratio, max_unit); "+
					"to keep new guests off a host: berth host set --disable"
				return fault.Refuse(fault.Busy, "Placement takes no write that touches the source, which has less than its guests hold", reasons...)
			}
		}
	}
	return err
}

func (s placementSteps) swapBack(ctx context.Context, t *task.Task) error {
	if s.givenUp(ctx, migration.GonePlacement) {
		return nil
	}
	u, err := s.sides(t)
	if err != nil {
		return err
	}
	return s.move().Back(ctx, u)
}

func (s placementSteps) deleteAllocation(ctx context.Context, t *task.Task) (any, error) {
	if s.givenUp(ctx, migration.GonePlacement) {
		return nil, nil
	}
	u, err := s.sides(t)
	if err != nil {
		return nil, err
	}
	return nil, s.move().Finish(ctx, u, s.leftover)
}

// goneAgree is between the two looks that must agree that a guest is gone: one
// wrong answer of a hypervisor takes no allocation from a guest that runs. Arbitrary.
const goneAgree = time.Second

// whereabouts asks the source what became of the guest while it moved, and where it
// counts its guest now.
func (s placementSteps) whereabouts(ctx context.Context) (halves.Whereabouts, halves.Amounts, error) {
	for look := 1; ; look++ {
		var g migration.Guest
		err := s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
			g, err = operation.Inspect.Ask(ctx, h, migration.Ref{Instance: s.instance})
			return err
		})
		switch {
		case err == nil:
			return halves.Here, g.Allocations, nil
		case errors.Is(err, fault.NotFound) && fault.HasReason(err, migration.ReasonGuestGone):
			if look == 2 {
				return halves.Gone, nil, nil
			}
		case fault.HasReason(err, migration.ReasonTokenElsewhere):
			return halves.Elsewhere, nil, nil
		case errors.Is(err, fault.Unavailable), errors.Is(err, fault.InDoubt), errors.Is(err, fault.Busy):
			return halves.Here, nil, err
		default:
			// What else it complains of (a disk that cannot be read) is said of a guest that
			// is there.
			return halves.Here, nil, nil
		}
		if err := s.c.cfg.Runtime.Sleep(ctx, goneAgree); err != nil {
			return halves.Here, nil, err
		}
	}
}

// leftover proves that what the instance holds of other hosts was left by a move of
// other hands: the agent of each must say that nothing of the guest is there. A
// sharing provider has no agent; it is a leftover with the host that is counted there.
func (s placementSteps) leftover(ctx context.Context, providers []string) error {
	var reasons, open []fault.Reason
	kind := fault.Forbidden
	asked, later := map[string]bool{}, map[string]bool{} // later: who may answer then
	covered := map[string]bool{}                         // by the word of a host that has nothing
	for _, rp := range providers {
		tree, err := s.c.cfg.Placement.Providers(ctx, placementclient.ProviderFilter{InTree: rp})
		if err != nil {
			return fault.New(fault.KindOf(err), "find the host of provider %s: %w", rp, err)
		}
		root := slices.IndexFunc(tree, placementclient.ResourceProvider.IsRoot)
		switch {
		case root < 0:
			reasons = append(reasons, fault.Reason{Code: "provider_unknown", Message: "provider " + rp + " is not known, so nobody can be asked", Have: rp})
			continue
		case asked[tree[root].UUID]:
			continue // its host has answered
		case s.evacuates() && tree[root].Name == s.from: // and not in what it last said of itself
			reasons = append(reasons, fault.Reason{Code: "provider_of_the_dead", Message: "provider " + rp + " is of " + s.from + ", which cannot be asked", Have: rp})
			continue
		}
		name := tree[root].Name
		asked[tree[root].UUID] = true
		var there migration.DestinationStatus
		var who migration.Description
		err = s.askOnce(ctx, precheckTime, s.host(name), func(ctx context.Context, h migration.Host) (err error) {
			if who, err = h.Describe(ctx); err == nil {
				there, err = operation.DestinationStatus.Ask(ctx, h, migration.Ref{Migration: s.uuid, Instance: s.instance, Attempt: max(s.rec.Attempt, 1), Step: migration.StepInspectSource})
			}
			return err
		})
		switch {
		case err != nil:
			open = append(open, fault.Reason{
				Code: "host_silent", Message: "host " + name + " could not be asked whether it has the guest: " + err.Error(), Have: rp, Change: "start its agent",
			})
			later[rp] = errors.Is(err, fault.Unavailable) || errors.Is(err, fault.InDoubt)
		case !there.Nothing:
			reasons = append(reasons, fault.Reason{
				Code: "guest_there", Message: "host " + name + " has something of the guest, or its agent is too old to say", Have: rp, Change: "look there: berth -c " + name + " instance show " + s.instance,
			})
		default:
			for _, theirs := range who.Providers {
				covered[theirs] = true
			}
		}
	}
	for _, r := range open {
		if covered[r.Have] {
			continue
		}
		if reasons = append(reasons, r); later[r.Have] {
			kind = fault.Unavailable
		}
	}
	switch {
	case len(reasons) == 0:
		return nil
	case slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == "guest_there" }):
		kind = fault.Forbidden
	}
	return fault.Refuse(kind, "", reasons...)
}
