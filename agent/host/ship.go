package host

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/agent/host/shipping"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/transfer"
)

// reaches does operation.Reaches. The question names no move: while it lasts nobody's silence who
// conducts one to that host grows, since one of them may ask it; which, nobody knows, so none has
// been heard by it.
func (h *Host) reaches(ctx context.Context, _ migration.Ref, r migration.ReachRequest) error {
	host := r.Host
	for _, o := range h.conductedElsewhere() {
		if o.to == host {
			defer h.hold(o.ref)()
		}
	}
	peer, err := h.peer(ctx, host)
	if err == nil {
		if c, ok := peer.(interface{ Reach(context.Context) error }); ok {
			err = c.Reach(ctx)
		} else {
			_, err = peer.Describe(ctx)
		}
	}
	return wrap(err, "reach host %s from %s", host, h.o.Name)
}

// peer finds another host.
func (h *Host) peer(ctx context.Context, host string) (migration.Host, error) {
	if h.o.Peers == nil || host == h.o.Name {
		return nil, fault.New(fault.NotFound, "%s knows no other host %s", h.o.Name, host)
	}
	return h.o.Peers(ctx, host)
}

// newDock makes the place where disks come and go.
func (h *Host) newDock() *shipping.Dock {
	return shipping.New(shipping.Config{
		Name: h.o.Name, Memory: h.memory, Files: h.files, Guests: shippedGuests{h}, Runtime: h.rt, Logger: h.log, Go: h.spawn, Context: h.ctx, Reserve: h.o.DiskReserve,
		Peer: func(ctx context.Context, host string) (transfer.Destination, error) {
			p, err := h.peer(ctx, host)
			return operation.Disks{Host: p}, err
		},
	})
}

// shippedGuests implements shipping.Guests.
type shippedGuests struct{ h *Host }

func (g shippedGuests) Off(ctx context.Context, ref migration.Ref) error {
	h := g.h
	inst, err := h.endedBy(ref)
	if err != nil {
		return err
	}
	if c, ok := h.tracker.Committed(ref.Migration); inst.Token.State != claims.TokenHere && !(ok && c.Attempt == ref.Attempt && c.Instance == ref.Instance) {
		return h.tokenHere(inst)
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "guest_runs", Message: "the guest is " + string(d.State) + " again: its disks change while they are read", Have: string(d.State), Want: string(driver.ShutOff),
			Change: "nothing; the move is undone",
		})
	}
	return nil
}

func (g shippedGuests) Disks(ref migration.Ref) ([]shipping.Disk, error) {
	rec, _, err := memory.Recall[poweredOff](g.h.memory, ref, memoryPower)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(rec.Definition)
	if err != nil {
		return nil, err
	}
	var out []shipping.Disk
	for _, e := range doc.Devices.Disks {
		if e.Type == "file" && e.path() != "" && !e.readOnly() {
			out = append(out, shipping.Disk{Target: e.Target.Dev, Path: e.path(), Format: e.Driver.Type})
		}
	}
	if f := doc.firmware(); f.Variables != "" && !f.OnDevice {
		out = append(out, shipping.Disk{Target: migration.FirmwareVariables, Path: f.Variables, Variables: true})
	}
	return out, nil
}

func (g shippedGuests) Held(ref migration.Ref) (migration.Snapshot, bool, error) {
	rec, held, err := g.h.snapshotOf(ref)
	return rec.answer(), held, err
}

func (g shippedGuests) Place(path string) (fault.Reason, bool) { return g.h.placeForDisk(path) }

func (g shippedGuests) System(path string) bool {
	return slices.ContainsFunc(systemDirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
}

func (g shippedGuests) FileUsers(ctx context.Context) (*fileusers.Survey, error) {
	return g.h.fileUsers(ctx)
}

// formatsAgree refuses disks whose format by the source's list is not that of the definition:
// by the one the disk is looked at here, by the other it is opened.
func formatsAgree(g migration.Guest, targets []string) error {
	doc, err := parseDocument(g.Definition)
	if err != nil {
		return err
	}
	for _, e := range doc.Devices.Disks {
		i := slices.IndexFunc(g.Disks, func(d migration.Disk) bool { return d.Target == e.Target.Dev })
		if i < 0 || !slices.Contains(targets, e.Target.Dev) {
			continue
		}
		said, opened := cmp.Or(g.Disks[i].Format, "raw"), cmp.Or(e.Driver.Type, "raw")
		if said != opened || g.Disks[i].Path != e.path() {
			return fault.New(fault.Invalid, "disk %s is %s of format %s by its host's list, and %s of format %s by its definition", e.Target.Dev, g.Disks[i].Path, said, e.path(), opened)
		}
	}
	return nil
}

// unanswered reports whether somebody did not answer, so that it is worth asking again.
func unanswered(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy:
		return true
	}
	return false
}
