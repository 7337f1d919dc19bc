package auditor

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// heal writes what is provable, one row after the other, and leaves in each what
// came of it.
func (l *look) heal(ctx context.Context, rows []audit.Row) {
	fresh := false
	for i := range rows {
		if rows[i].Heal == audit.HealNone || ctx.Err() != nil {
			continue
		}
		other := rows[i].Heal == audit.HealTake || rows[i].Heal == audit.HealDrop
		if _, seen := l.a.since[key(rows[i])]; other && l.order.Patient && !seen {
			continue
		}
		if !fresh {
			// What libvirt said is as old as the whole audit by now.
			l.domains(ctx)
			fresh = true
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

// healOne judges a row anew while nobody works on its instance, and writes if it is
// still the same.
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
			for consumer := range was.Write {
				l.a.calls.reads.Add(1)
				got, err := l.a.o.Placement.Allocations(ctx, consumer)
				if err != nil {
					return fmt.Errorf("read it again: %w", err)
				}
				in.Placement.Consumers[consumer] = got
			}
			in.Ledger = l.a.o.Ledger()
			if row = audit.Judge(in, was.Subject); row.Heal != was.Heal {
				return nil // somebody was faster, or it has begun to move
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
