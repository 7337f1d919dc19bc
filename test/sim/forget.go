package sim

import (
	"cmp"
	"context"
	"errors"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
)

// wish is what came of an operator's wish that a host be forgotten.
type wish int

const (
	unsaid wish = iota
	heard
	turnedDown // it has guests still, and no move of theirs goes on
)

// forgets is the operator who forgets a host, once its guests are elsewhere, and again while
// nobody answers.
func (w *world) forgets(d *death) {
	if !d.Forget {
		return
	}
	ctx := context.Background()
	for ; d.forget == unsaid; _ = w.outside.Sleep(ctx, 3*time.Second) {
		over := true
		for _, m := range w.moves {
			over = w.isOver(m) && over
		}
		a := w.machines[d.By].agent
		if !over || a == nil || a.dead() || !a.ready {
			continue
		}
		limited, cancel := w.outside.WithTimeout(ctx, 30*time.Second)
		var err error
		x := peer{a: a, m: a.m}.send(limited, "Forget", func(ctx context.Context, b *agent) { err = b.forget(ctx, d.Host) })
		late := runtime.Await(limited, w.outside, x.done)
		cancel()
		switch err = cmp.Or(late, x.err, err); {
		case err == nil:
			d.forget = heard
			w.note("operator", d.Host, "is forgotten")
		case errors.Is(err, fault.Forbidden), !d.proven:
			d.forget = turnedDown
		default:
			w.note("operator", d.Host, "is not forgotten:", err.Error())
		}
	}
}

// forget is agent's fleetService.forget in its order, of a host without guests: what evacuations
// keep of it, then its records.
func (a *agent) forget(ctx context.Context, host string) error {
	guests, err := a.records.Instances(ctx, host)
	if err == nil && len(guests) > 0 {
		err = fault.New(fault.Forbidden, "%d guests are recorded there", len(guests))
	}
	if err != nil {
		return err
	}
	left, err := a.records.Evacuated(ctx, host)
	if err != nil {
		return err
	}
	for _, e := range left {
		now, err := a.client.Allocations(ctx, e.Migration)
		if err == nil && now.Exists() {
			now.Allocations, now.ConsumerType = nil, placementclient.ConsumerMigration
			err = a.client.PutAllocations(ctx, e.Migration, now)
		}
		if err != nil {
			return err
		}
		if err := a.records.CleanedUp(ctx, e); err != nil {
			return err
		}
	}
	return a.records.Forget(ctx, host)
}

// forgotten says whether a host is.
func (w *world) forgotten(host string) bool {
	for _, d := range w.deaths {
		if d.Host == host && d.forget == heard {
			return true
		}
	}
	return false
}

// forgottenAtRest holds that nothing is left of a host that was forgotten but that it was.
func (w *world) forgottenAtRest(d *death) {
	if d.forget != heard {
		if d.Forget && w.quiet() {
			w.violate("%s was not forgotten", d.Host)
		}
		return
	}
	for _, prefix := range []string{"hosts/" + d.Host, "evacuated/" + d.Host + "/"} {
		list, err := w.looker.List(context.Background(), prefix)
		if err != nil || len(list) > 0 {
			w.leave(leftRecord, "at the end %d records are there of %s, which was forgotten: %s (%v)", len(list), d.Host, prefix, err)
		}
	}
	if _, err := w.looker.Get(context.Background(), "deaths/"+d.Host); err != nil {
		w.violate("at the end %s was forgotten, and does not count as dead: %v", d.Host, err)
	}
}
