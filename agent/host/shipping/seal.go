package shipping

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/transfer"
)

// SealDisks does operation.SealDisks.
func (k *Dock) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return fault.Wrap(k.sealDisks(ctx, ref, want), "seal the disks of migration %s on %s", ref.Migration, k.c.Name)
}

func (k *Dock) sealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	s, err := k.shipment(ctx, ref)
	if err != nil {
		return err
	}
	for i := range s.files {
		if err := k.syncShipped(ctx, s, i); err != nil {
			return err
		}
	}
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return err
	}
	defer s.turn.Unlock()
	if s.closed {
		return errShipped
	}
	for i := range s.rec.Files {
		if err := k.mayBeSealed(s.rec.Files[i], want); err != nil {
			return err
		}
		// A write that ended after the guest was started would take back what it wrote.
		if s.files[i].writing.Load() > 0 {
			return fault.New(fault.Busy, "a piece of %s is still being written", s.rec.Files[i].Path)
		}
	}
	for i := range s.rec.Files {
		if err := k.seal(ctx, s, i); err != nil {
			return err
		}
	}
	for i := range s.rec.Files {
		s.rec.Files[i].Sealed = true
	}
	if err := k.c.Memory.Remember(ctx, s.ref, MemoryComing, s.rec); err != nil {
		return err
	}
	return s.closeFiles()
}

// mayBeSealed refuses a file that is not what the source has.
func (k *Dock) mayBeSealed(f comingFile, want migration.Shipped) error {
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
func (k *Dock) seal(ctx context.Context, s *shipment, i int) error {
	f := &s.rec.Files[i]
	if f.Sealed {
		return nil
	}
	if f.Compare {
		real, _, _, err := k.c.Files.Lookup(f.Path)
		if err != nil {
			return err
		}
		look, err := k.c.Files.ReadBlock(real, 0, 0, migration.ShipBlock)
		if err == nil && look.Version != f.Own {
			err = backingDiffers(f.Path, k.c.Name)
		}
		return err
	}
	if err := k.standsOnWhatWasSaid(ctx, *f); err != nil {
		return err
	}
	err := k.c.Files.Publish(f.Made)
	if !f.Backing || !errors.Is(err, fault.Exists) {
		return err
	}
	// Another guest's chain brought the file meanwhile: the same one, or none to stand on.
	same, own, sumErr := k.sameAs(ctx, f)
	if sumErr != nil || !same {
		return errors.Join(err, sumErr)
	}
	was := f.Made
	f.Compare, f.Own, f.Made = true, own, disks.Made{}
	if err := k.c.Memory.Remember(ctx, s.ref, MemoryComing, s.rec); err != nil {
		f.Compare, f.Own, f.Made = false, "", was
		return err
	}
	return k.c.Files.Unmake(was)
}

// standsOnWhatWasSaid refuses a disk whose header names other files than its host told when
// its place here was planned, and which were compared or shipped: it would have QEMU read
// any file of this host into the instance. What is below it has its place by now.
func (k *Dock) standsOnWhatWasSaid(ctx context.Context, f comingFile) error {
	if f.Backing || f.Format == "" || f.Format == "raw" {
		return nil
	}
	at := f.Made.Part
	if there, err := k.c.Files.Stamp(at); errors.Is(err, fault.NotFound) {
		at = f.Path // an earlier call got this far
	} else if err != nil {
		return err
	} else if f.Made.Stamp != nil && !there.Equals(*f.Made.Stamp) {
		return fault.New(fault.Forbidden, "%s is not the file that was shipped", at)
	}
	img, err := k.c.Files.Image(ctx, at, f.Format)
	if err != nil {
		return err
	}
	below := img.Backing
	if n := len(below); n > 0 && disks.OfNetwork(below[n-1]) {
		below = below[:n-1] // reached through the network by either host
	}
	if slices.Equal(below, f.Below) && len(img.Outside) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "backing_file_unexpected", Message: "disk " + f.Target + " as it came names other files than its host told", Want: strings.Join(f.Below, ", "),
		Have: strings.Join(slices.Concat(img.Backing, img.Outside), ", "), Change: "look at it where it is: qemu-img info --backing-chain " + f.Path,
	})
}

// sameAs sums up the file that has the place of one that was shipped.
func (k *Dock) sameAs(ctx context.Context, f *comingFile) (same bool, version string, err error) {
	real, _, _, err := k.c.Files.Lookup(f.Path)
	if err != nil {
		return false, "", err
	}
	var order transfer.Order
	for {
		if err := context.Cause(ctx); err != nil {
			return false, "", err
		}
		b, err := k.c.Files.ReadBlock(real, order.Bytes, migration.ShipRun, migration.ShipBlock)
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
