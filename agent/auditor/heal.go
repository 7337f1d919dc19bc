package auditor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth/agent/audit"
	"berth/internal/fault"
	"berth/placementclient"
)

// healTries bounds how often one row is judged anew because somebody else wrote its
// consumer, or an answer was lost.
const healTries = 4

// healPatience bounds one row: a verb may be at work on its instance, and a later
// audit comes.
const healPatience = 30 * time.Second

// stands is how long what concerns another host must have been seen before a patient
// audit writes it, or an interval where that is less. Arbitrary, above what passes
// between a tool's write of Placement and its first word to the hosts.
const stands = 2 * time.Minute

// heal writes what is provable, one row after the other, and leaves in each what
// came of it. What gives back goes first: what takes may need the room.
func (l *look) heal(ctx context.Context, rows []audit.Row) {
	var order []int
	for _, first := range []bool{true, false} {
		for i, row := range rows {
			if row.Heal != audit.HealNone && (row.Heal == audit.HealDrop || row.Heal == audit.HealDelete) == first && !l.early(row) {
				order = append(order, i)
			}
		}
	}
	if len(order) > 0 {
		// What libvirt said is as old as the whole audit by now.
		l.domains(ctx)
	}
	for _, i := range order {
		if ctx.Err() != nil {
			return
		}
		one, cancel := l.a.o.Runtime.WithTimeout(ctx, healPatience)
		row, err := l.healOne(one, rows[i])
		cancel()
		if err != nil {
			row.Failed = err.Error()
			if errors.Is(err, fault.DoesNotFit) {
				row.Change = "make room for it there: move guests away, or give back what was reserved; it is tried again by itself"
			}
		}
		rows[i] = row
	}
}

// early reports whether a row is left for now, since a move by other hands may be
// about to begin.
func (l *look) early(row audit.Row) bool {
	if !l.order.Patient || row.Heal != audit.HealTake && row.Heal != audit.HealDrop {
		return false
	}
	from, seen := l.a.since[key(row)]
	return !seen || l.a.o.Runtime.Boot().Since-from.boot < min(stands, l.a.o.Interval)
}

// healOne judges a row anew while nobody works on its instance, and writes if it is
// still the same. Hosts by whose word it is provable are asked once more: they may
// have begun something since, and the consumer may be at others by now.
func (l *look) healOne(ctx context.Context, was audit.Row) (audit.Row, error) {
	row := was
	err := l.a.o.Alone(ctx, was.Subject, func(ctx context.Context) error {
		var err error
		for range healTries {
			in := l.in
			if tree, known := l.a.o.Tree(); known {
				in.Tree = tree // the host may have changed its shape
			}
			in.Placement.Consumers = maps.Clone(l.in.Placement.Consumers)
			for _, consumer := range slices.Sorted(maps.Keys(was.Write)) {
				l.a.calls.reads.Add(1)
				got, err := l.a.o.Placement.Allocations(ctx, consumer)
				if err != nil {
					return fmt.Errorf("read it again: %w", err)
				}
				in.Placement.Consumers[consumer] = got
			}
			if was.Facts.Fleet&(audit.FleetNobody|audit.FleetOwner) != 0 {
				in.Fleet = maps.Clone(l.in.Fleet)
				delete(in.Fleet, was.Subject)
				l.ask(ctx, &in, []string{was.Subject})
			}
			in.Ledger = l.a.o.Ledger()
			if row = audit.Judge(in, was.Subject); row.Heal != was.Heal {
				return nil // somebody was faster, or it has begun to move
			}
			if err := l.a.o.Refuse(); err != nil {
				return err // by now it is another's to write, or only to look
			}
			if err = l.write(ctx, row.Write); err == nil {
				row.Healed = true
				l.wrote(row.Write)
				return nil
			}
			if !errors.Is(err, fault.GenerationConflict) && !errors.Is(err, fault.Busy) && !errors.Is(err, fault.InDoubt) {
				break
			}
		}
		return err
	})
	return row, err
}

// wrote has the lists say what stands now: the next row may be put where there is room.
func (l *look) wrote(set map[string]placementclient.Allocations) {
	for consumer, a := range set {
		for rp, all := range l.in.Placement.Providers {
			delete(all, consumer)
			if r, holds := a.Allocations[rp]; holds {
				all[consumer] = r
			}
		}
	}
}

// write puts one consumer, or several at once.
func (l *look) write(ctx context.Context, set map[string]placementclient.Allocations) error {
	l.a.calls.writes.Add(1)
	if len(set) == 1 {
		for consumer, a := range set {
			return l.a.o.Placement.PutAllocations(ctx, consumer, a)
		}
	}
	return l.a.o.Placement.PostAllocations(ctx, set)
}
