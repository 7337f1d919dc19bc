package shipping

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"sync/atomic"

	"berth/agent/host/disks"
	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/transfer"
)

// shipSync is how much may have come of a file before it is made durable and recorded,
// bytes: what is sent again after a power cut. Arbitrary; a disk has written it in well
// under a second.
const shipSync = 128 << 20

// shipment is one attempt's files while they come.
type shipment struct {
	ref   migration.Ref
	paths []string // of the files, in the record's order
	// turn guards what follows. Durable writes happen under it, and the making of files;
	// what is written to files does not.
	turn   runtime.Lock
	closed bool // nothing more is written or recorded
	rec    comingFiles
	files  []*filling // in the record's order
}

// filling is a file while it is filled.
type filling struct {
	order transfer.Order
	part  disks.Part // nil before it was opened, and for one that is compared
	// writing is how many pieces are being written, also ones whose sender has given up
	// and sent them again. It grows under the turn.
	writing atomic.Int32
	// syncing makes one sync come after another; due is up to where one was begun.
	syncing runtime.Lock
	due     int64
}

// from takes a file up where it is durable.
func (f *filling) from(rec comingFile) (err error) {
	f.order, f.due = transfer.Order{Bytes: rec.Bytes}, rec.Bytes
	f.order.Sum, err = migration.ParseShipSum(rec.Sum)
	return err
}

// WriteDisk does operation.WriteDisk.
func (k *Dock) WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	return fault.Wrap(k.writeDisk(ctx, ref, p), "write %s for migration %s on %s", p.Path, ref.Migration, k.c.Name)
}

func (k *Dock) writeDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	s, err := k.shipment(ctx, ref)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.paths, func(path string) bool { return path == p.Path })
	if i < 0 {
		return fault.New(fault.Forbidden, "%s is no file that is shipped", p.Path)
	}
	rec, err := k.lookShipped(ctx, s, i)
	if err != nil || p.Length == 0 && p.Offset == p.Size {
		return err // nothing to keep of a file's end
	}
	if err := migration.CheckPiece(p, rec.Compare); err != nil {
		return err
	}
	p, part, err := k.beginPiece(ctx, s, i, p)
	if err != nil || p.Length == 0 {
		return err
	}
	if part == nil {
		err = k.comparePiece(p, rec)
	} else {
		if !p.Zero { // zeros are there already
			err = k.full(part.WriteAt(p.Data, p.Offset), rec)
		}
		s.files[i].writing.Add(-1)
	}
	if err != nil {
		return err
	}
	due, err := k.endPiece(ctx, s, i, p, part)
	if err != nil || !due {
		return err
	}
	return k.syncShipped(ctx, s, i)
}

// lookShipped is a file's record at this moment.
func (k *Dock) lookShipped(ctx context.Context, s *shipment, i int) (comingFile, error) {
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return comingFile{}, err
	}
	defer s.turn.Unlock()
	return s.rec.Files[i], nil
}

// beginPiece gives what of a piece is wanted, and the open file, which counts as written to
// from then on; none where the piece is only compared.
func (k *Dock) beginPiece(ctx context.Context, s *shipment, i int, p migration.DiskPiece) (migration.DiskPiece, disks.Part, error) {
	none := migration.DiskPiece{}
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return none, nil, err
	}
	defer s.turn.Unlock()
	if s.closed {
		return none, nil, errShipped
	}
	f := &s.rec.Files[i]
	if f.Version != "" && (f.Version != p.Version || f.Size != p.Size) {
		return none, nil, changedMeanwhile(f.Path)
	}
	if p = s.files[i].order.Rest(p); p.Length == 0 || f.Sealed {
		return none, nil, nil
	}
	f.Version, f.Size = p.Version, p.Size
	if err := k.openShipped(ctx, s, i); err != nil || f.Sealed {
		return none, nil, err
	}
	part := s.files[i].part
	if part != nil {
		s.files[i].writing.Add(1)
	}
	return p, part, nil
}

func changedMeanwhile(path string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "disk_changed", Message: path + " was written to while it was shipped", Want: path, Change: "find out who writes to it, and try again",
	})
}

func backingDiffers(path, host string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "backing_file_differs", Message: host + " has another file at " + path + " than the source", Want: path,
		Change: "put the same file there, or rename the other one; or flatten the disk: virsh blockpull DOMAIN DISK --wait, on its own host while it runs",
	})
}

// errShipped is for pieces that come after all was undone, or kept.
var errShipped = fault.New(fault.Forbidden, "nothing is shipped here any more")

// openShipped opens a file to be filled, at what of it is durable. One that is gone is
// made anew: a power cut may have taken its name. Called with the turn.
func (k *Dock) openShipped(ctx context.Context, s *shipment, i int) error {
	f, rec := s.files[i], &s.rec.Files[i]
	if f.part != nil || rec.Compare || rec.Sealed {
		return nil
	}
	part, err := k.c.Files.OpenPart(rec.Made)
	if errors.Is(err, fault.NotFound) && k.isInPlace(rec.Made) {
		rec.Sealed = true // whole, and in its place; the agent died before it said so
		return k.c.Memory.Remember(ctx, s.ref, MemoryComing, s.rec)
	}
	if errors.Is(err, fault.NotFound) {
		rec.Bytes, rec.Sum = 0, ""
		if err := k.c.Memory.Remember(ctx, s.ref, MemoryComing, s.rec); err != nil {
			return err
		}
		if err := k.c.Files.Build(ctx, &rec.Made, "raw", 0); err != nil {
			return err
		}
		if err := k.c.Memory.Remember(ctx, s.ref, MemoryComing, s.rec); err != nil {
			return err
		}
		f.order, f.due = transfer.Order{}, 0
		part, err = k.c.Files.OpenPart(rec.Made)
	}
	if err != nil {
		return err
	}
	// Behind what is durable anything may stand that was written before.
	if err := part.Trim(rec.Bytes, rec.Size); err != nil {
		return errors.Join(err, part.Close())
	}
	f.part = part
	return nil
}

// isInPlace says whether a file that was made here has its place.
func (k *Dock) isInPlace(m disks.Made) bool {
	at, err := k.c.Files.Stamp(m.Path)
	return err == nil && m.Stamp != nil && at.Equals(*m.Stamp)
}

// comparePiece holds a piece against the file that is here.
func (k *Dock) comparePiece(p migration.DiskPiece, f comingFile) error {
	real, _, _, err := k.c.Files.Lookup(f.Path)
	if err != nil {
		return err
	}
	for at, end := p.Offset, p.Offset+p.Length; at < end; {
		b, err := k.c.Files.ReadBlock(real, at, end-at, migration.ShipBlock)
		if err != nil {
			return err
		}
		same := b.Version == f.Own && b.Size == p.Size && b.Length > 0 && b.Zero == p.Zero
		if same && !b.Zero {
			sum := sha256.Sum256(b.Data)
			same = hex.EncodeToString(sum[:]) == p.Sum
		}
		if !same {
			return backingDiffers(f.Path, k.c.Name)
		}
		at += b.Length
	}
	return nil
}

// endPiece notes a piece that was written, and says whether it is time to make the file
// durable.
func (k *Dock) endPiece(ctx context.Context, s *shipment, i int, p migration.DiskPiece, part disks.Part) (bool, error) {
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return false, err
	}
	defer s.turn.Unlock()
	if s.closed {
		return false, errShipped
	}
	f := s.files[i]
	if f.part != part {
		return false, fault.New(fault.Busy, "what had come of %s was lost, and is begun anew at %d", p.Path, f.order.Bytes)
	}
	if err := f.order.Take(p); err != nil {
		return false, err
	}
	if f.order.Bytes-f.due < shipSync {
		return false, nil
	}
	f.due = f.order.Bytes
	return true, nil
}

// syncShipped makes what has come of a file durable, and records it. Other pieces are
// written meanwhile.
func (k *Dock) syncShipped(ctx context.Context, s *shipment, i int) error {
	f := s.files[i]
	if err := f.syncing.Lock(ctx, k.c.Runtime); err != nil {
		return err
	}
	defer f.syncing.Unlock()
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return err
	}
	bytes, sum, part, rec, closed := f.order.Bytes, f.order.Sum, f.part, s.rec.Files[i], s.closed
	done := closed || rec.Sealed || bytes == rec.Bytes
	s.turn.Unlock()
	if done {
		if closed {
			return errShipped
		}
		return nil
	}
	var lost error
	if part != nil {
		lost = k.full(part.Sync(), rec)
	}
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return errors.Join(lost, err)
	}
	defer s.turn.Unlock()
	switch {
	case s.closed:
		return errShipped
	case lost != nil && f.part == part:
		// The kernel forgets what it could not write: only what was recorded before counts.
		f.part = nil
		return errors.Join(lost, part.Close(), f.from(s.rec.Files[i]))
	case lost != nil:
		return lost
	}
	before := s.rec.Files[i]
	s.rec.Files[i].Bytes, s.rec.Files[i].Sum = bytes, sum.String()
	if err := k.c.Memory.Remember(ctx, s.ref, MemoryComing, s.rec); err != nil {
		s.rec.Files[i].Bytes, s.rec.Files[i].Sum = before.Bytes, before.Sum
		return err
	}
	return nil
}

// ShippedSoFar does operation.ShippedSoFar.
func (k *Dock) ShippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error) {
	out, err := k.shippedSoFar(ctx, ref)
	return out, fault.Wrap(err, "look what came of migration %s on %s", ref.Migration, k.c.Name)
}

func (k *Dock) shippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error) {
	s, err := k.shipment(ctx, ref)
	if err != nil {
		return migration.Shipped{}, err
	}
	for i := range s.files {
		if err := k.reopen(ctx, s, i); err != nil {
			return migration.Shipped{}, err
		}
		if err := k.syncShipped(ctx, s, i); err != nil {
			return migration.Shipped{}, err
		}
	}
	return k.soFar(ctx, s)
}

// reopen opens a file of which something is said to be durable: it must be there.
func (k *Dock) reopen(ctx context.Context, s *shipment, i int) error {
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return err
	}
	defer s.turn.Unlock()
	if s.closed {
		return errShipped
	}
	if s.rec.Files[i].Bytes == 0 {
		return nil
	}
	return k.openShipped(ctx, s, i)
}

func (k *Dock) soFar(ctx context.Context, s *shipment) (migration.Shipped, error) {
	var out migration.Shipped
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return out, err
	}
	defer s.turn.Unlock()
	for _, f := range s.rec.Files {
		out.Files = append(out.Files, migration.ShippedFile{Path: f.Path, Bytes: f.Bytes, Sum: f.Sum, Version: f.Version, Sealed: f.Sealed})
	}
	return out, nil
}

// shipment finds what of an attempt comes here, from its record after a restart.
func (k *Dock) shipment(ctx context.Context, ref migration.Ref) (*shipment, error) {
	if err := k.c.Memory.Late(ref, stepShip); err != nil {
		return nil, err
	}
	if s := k.find(ref); s != nil {
		return s, nil
	}
	if err := k.opening.Lock(ctx, k.c.Runtime); err != nil {
		return nil, err
	}
	defer k.opening.Unlock()
	if s := k.find(ref); s != nil {
		return s, nil
	}
	rec, found, err := memory.Recall[comingFiles](k.c.Memory, ref, MemoryComing)
	if err != nil {
		return nil, err
	}
	if !found || !rec.Ready {
		return nil, fault.New(fault.Forbidden, "no disk is shipped here by attempt %d of migration %s", ref.Attempt, ref.Migration)
	}
	s := &shipment{ref: ref, rec: rec}
	for i := range rec.Files {
		f := new(filling)
		if err := f.from(rec.Files[i]); err != nil {
			return nil, err
		}
		if rec.Files[i].Bytes == 0 {
			rec.Files[i].Version, rec.Files[i].Size = "", 0 // nothing of it is left
		}
		s.files, s.paths = append(s.files, f), append(s.paths, rec.Files[i].Path)
	}
	// Between the look above and here the undo may have come.
	if err := k.c.Memory.Late(ref, stepShip); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.coming == nil {
		k.coming = map[string]*shipment{}
	}
	k.coming[memory.Key(ref)] = s
	return s, nil
}

func (k *Dock) find(ref migration.Ref) *shipment {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.coming[memory.Key(ref)]
}

// closeShipment ends the writing of an attempt's files: when it returns nothing more is
// written to them or recorded.
func (k *Dock) closeShipment(ctx context.Context, ref migration.Ref) error {
	if err := k.opening.Lock(ctx, k.c.Runtime); err != nil {
		return err
	}
	defer k.opening.Unlock()
	s := k.find(ref)
	if s == nil {
		return nil
	}
	if err := s.turn.Lock(ctx, k.c.Runtime); err != nil {
		return err
	}
	defer s.turn.Unlock()
	s.closed = true
	k.mu.Lock()
	delete(k.coming, memory.Key(ref))
	k.mu.Unlock()
	return s.closeFiles()
}

func (s *shipment) closeFiles() error {
	var errs []error
	for _, f := range s.files {
		if f.part != nil {
			errs = append(errs, f.part.Close())
			f.part = nil
		}
	}
	return errors.Join(errs...)
}
