package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth/agent/host/disks"
	"berth/internal/fault"
	"berth/migration"
)

// SealDisks implements migration.DestinationColdVerbs.
func (h *Host) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	h.hear(ref)
	return wrap(h.sealDisks(ctx, ref, want), "seal the disks of migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) sealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	s, err := h.shipment(ctx, ref)
	if err != nil {
		return err
	}
	for i := range s.files {
		if err := h.syncShipped(ctx, s, i); err != nil {
			return err
		}
	}
	if err := s.turn.Lock(ctx, h.rt); err != nil {
		return err
	}
	defer s.turn.Unlock()
	if s.closed {
		return errShipped
	}
	for i := range s.rec.Files {
		if err := h.mayBeSealed(s.rec.Files[i], want); err != nil {
			return err
		}
		// A write that ended after the guest was started would take back what it wrote.
		if s.files[i].writing.Load() > 0 {
			return fault.New(fault.Busy, "a piece of %s is still being written", s.rec.Files[i].Path)
		}
	}
	for i := range s.rec.Files {
		if err := h.seal(ctx, s, i); err != nil {
			return err
		}
	}
	for i := range s.rec.Files {
		s.rec.Files[i].Sealed = true
	}
	if err := h.remember(ctx, s.ref, memoryShip, s.rec); err != nil {
		return err
	}
	return s.closeFiles()
}

// mayBeSealed refuses a file that is not what the source has.
func (h *Host) mayBeSealed(f shippingFile, want migration.Shipped) error {
	i := slices.IndexFunc(want.Files, func(w migration.ShippedFile) bool { return w.Path == f.Path })
	if i < 0 {
		return fault.New(fault.Invalid, "it is not said what %s is to be", f.Path)
	}
	switch w := want.Files[i]; {
	case f.Sealed && w.Bytes == f.Bytes && w.Sum == f.Sum:
		return nil
	case w.Bytes != f.Bytes || f.Bytes != f.Size && f.Version != "":
		return fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "disk_not_whole", Message: f.Path + " is not whole", Want: fmt.Sprintf("%d bytes", w.Bytes), Have: fmt.Sprintf("%d bytes", f.Bytes), Change: "send the rest",
		})
	case w.Version != f.Version && f.Version != "":
		return changedMeanwhile(f.Path)
	case w.Sum != f.Sum:
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "disk_checksum", Message: f.Path + " is not what the source sent: its checksum is another", Want: w.Sum, Have: f.Sum,
			Change: "look at the memory and the disks of the two hosts, and try again",
		})
	}
	return nil
}

// seal gives one file its place. Called with the turn.
func (h *Host) seal(ctx context.Context, s *shipment, i int) error {
	f := &s.rec.Files[i]
	if f.Sealed {
		return nil
	}
	if f.Compare {
		real, _, _, err := h.files.Lookup(f.Path)
		if err != nil {
			return err
		}
		look, err := h.files.ReadBlock(real, 0, 0, migration.ShipBlock)
		if err == nil && look.Version != f.Own {
			err = backingDiffers(f.Path, h.o.Name)
		}
		return err
	}
	err := h.files.Publish(f.Made)
	if !f.Backing || !errors.Is(err, fault.Exists) {
		return err
	}
	// Another guest's chain brought the file meanwhile: the same one, or none to stand on.
	same, own, sumErr := h.sameAs(ctx, f)
	if sumErr != nil || !same {
		return errors.Join(err, sumErr)
	}
	was := f.Made
	f.Compare, f.Own, f.Made = true, own, disks.Made{}
	if err := h.remember(ctx, s.ref, memoryShip, s.rec); err != nil {
		f.Compare, f.Own, f.Made = false, "", was
		return err
	}
	return h.files.Unmake(was)
}

// sameAs sums up the file that has the place of one that was shipped.
func (h *Host) sameAs(ctx context.Context, f *shippingFile) (same bool, version string, err error) {
	real, _, _, err := h.files.Lookup(f.Path)
	if err != nil {
		return false, "", err
	}
	var order migration.ShipOrder
	for {
		if err := context.Cause(ctx); err != nil {
			return false, "", err
		}
		b, err := h.files.ReadBlock(real, order.Bytes, migration.ShipRun, migration.ShipBlock)
		if err != nil {
			return false, "", err
		}
		if b.Length == 0 {
			return order.Bytes == f.Bytes && order.Sum.String() == f.Sum, b.Version, nil
		}
		p := migration.DiskPiece{Path: f.Path, Offset: order.Bytes, Length: b.Length, Zero: b.Zero}
		if !p.Zero {
			p.Sum = migration.PieceSum(b.Data)
		}
		if err := order.Take(p); err != nil {
			return false, "", err
		}
	}
}
