package host

import (
	"context"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/agent/host/shipping"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// ReadDisk implements migration.SourceColdVerbs. It reads only what is the guest's,
// and only of a guest that this attempt has powered off.
func (h *Host) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	h.hear(ref)
	return h.dock.ReadDisk(ctx, ref, r)
}

// WriteDisk implements migration.DestinationColdVerbs.
func (h *Host) WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	h.hear(ref)
	return h.dock.WriteDisk(ctx, ref, p)
}

// ShippedSoFar implements migration.DestinationColdVerbs.
func (h *Host) ShippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error) {
	h.hear(ref)
	return h.dock.ShippedSoFar(ctx, ref)
}

// SealDisks implements migration.DestinationColdVerbs.
func (h *Host) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	h.hear(ref)
	return h.dock.SealDisks(ctx, ref, want)
}

// SendDisks implements migration.SourceApartVerbs. While it lasts its conductor is heard.
func (h *Host) SendDisks(ctx context.Context, ref migration.Ref, r migration.SendRequest) error {
	defer h.attend(ref)()
	return h.dock.Send(ctx, ref, r)
}

// Reaches implements migration.SourceApartVerbs. The question names no move: while it lasts
// nobody's silence who conducts one to that host grows, since one of them may ask it; which,
// nobody knows, so none has been heard by it.
func (h *Host) Reaches(ctx context.Context, host string) error {
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
		Peer: func(ctx context.Context, host string) (migration.DiskDestination, error) { return h.peer(ctx, host) },
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
	rec, _, err := recall[poweredOff](g.h, ref, memoryPower)
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
	if path := doc.firmware().Variables; path != "" {
		out = append(out, shipping.Disk{Target: migration.FirmwareVariables, Path: path, Variables: true})
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

func (g shippedGuests) Used(ctx context.Context) (map[string]string, error) {
	return g.h.usedFiles(ctx)
}

func (g shippedGuests) StandsOn(ctx context.Context, file, other string) (string, error) {
	all, err := g.h.driver.Domains(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range all {
		if d.UUID == other {
			continue
		}
		used, err := g.h.filesOf(ctx, d)
		if unanswered(err) {
			return "", wrap(err, "domain %s", d.Name)
		}
		if err != nil {
			// It may stand on any file, and asking again would hold up what asks for ever.
			return d.Name + " (whose disks cannot be read: " + err.Error() + ")", nil
		}
		for _, p := range used {
			here, err := disks.Which(g.h.files, p)
			if err != nil {
				return "", wrap(err, "domain %s", d.Name)
			}
			if here == file {
				return d.Name, nil
			}
		}
	}
	return "", nil
}

// unanswered reports whether somebody did not answer, so that it is worth asking again.
func unanswered(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy:
		return true
	}
	return false
}

// filesOf are all files that a domain's documents name, and what stands below them.
func (h *Host) filesOf(ctx context.Context, d driver.Domain) ([]string, error) {
	var out []string
	for _, what := range []driver.Document{driver.Live, driver.Persistent} {
		if what == driver.Persistent && !(d.Active() && d.Persistent) {
			continue // the live document of a stopped domain is its definition
		}
		text, err := h.driver.XML(ctx, d.UUID, what)
		if fault.KindOf(err) == fault.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		doc, err := parseDocument(text)
		if err == nil {
			err = doc.unread
		}
		if err != nil {
			return nil, err
		}
		for _, e := range doc.Devices.Disks {
			if e.path() == "" {
				continue
			}
			out = append(out, e.path())
			if e.Type != "file" {
				continue
			}
			img, err := h.files.Image(ctx, e.path(), e.Driver.Type)
			if fault.KindOf(err) == fault.NotFound {
				continue // a disk that is gone stands on nothing
			}
			if err != nil {
				return nil, err
			}
			out = append(out, img.Backing...)
		}
	}
	return out, nil
}
