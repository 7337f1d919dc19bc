package migration

import (
	"maps"

	"berth/internal/fault"
)

// shipAhead is how many pieces may have come before one that is missing. Above what
// any conductor has under way; arbitrary.
const shipAhead = 64

// ShipOrder puts the pieces of one file in order, which several lanes bring: how far
// it is whole from its start on, and the sum of that much. It holds no data. Not safe
// for concurrent use.
type ShipOrder struct {
	Bytes int64
	Sum   ShipSum
	early map[int64]DiskPiece // beyond a piece that is missing, by offset
}

// Rest is what of a piece is still wanted: all, nothing (Length 0) where it came
// before, and of a run of zeros what is behind the part that came.
func (o *ShipOrder) Rest(p DiskPiece) DiskPiece {
	if had, ok := o.early[p.Offset]; ok && had.Length >= p.Length {
		p.Length = 0
	}
	if come := o.Bytes - p.Offset; come > 0 {
		come = min(come, p.Length)
		p.Offset, p.Length = p.Offset+come, p.Length-come
	}
	return p
}

// Take notes a piece that is kept. fault.Busy when too many are missing before it:
// whoever sends asks how far the file is, and goes on from there.
func (o *ShipOrder) Take(p DiskPiece) error {
	if p = o.Rest(p); p.Length == 0 {
		return nil
	}
	p.Data = nil
	if p.Offset != o.Bytes {
		if len(o.early) >= shipAhead {
			return fault.New(fault.Busy, "piece at %d of %s came too early: it is whole up to %d", p.Offset, p.Path, o.Bytes)
		}
		if o.early == nil {
			o.early = map[int64]DiskPiece{}
		}
		o.early[p.Offset] = p
		return nil
	}
	for ok := true; ok; p, ok = o.early[o.Bytes] {
		sum, err := o.Sum.Piece(p)
		if err != nil {
			return err
		}
		delete(o.early, p.Offset)
		o.Sum, o.Bytes = sum, p.Offset+p.Length
	}
	// Runs of zeros may have come in other parts than before.
	maps.DeleteFunc(o.early, func(at int64, _ DiskPiece) bool { return at < o.Bytes })
	return nil
}

// CheckPiece refuses what is no piece: its place, length and checksum. Data is looked
// at before anything else is done with it.
func CheckPiece(p DiskPiece, compare bool) error {
	end := p.Offset + p.Length
	switch {
	case p.Offset < 0 || p.Length <= 0 || p.Size < 0 || end < p.Offset || end > p.Size || p.Offset%ShipBlock != 0,
		end != p.Size && p.Length%ShipBlock != 0, !p.Zero && p.Length > ShipBlock, p.Zero && p.Length > ShipRun:
		return fault.New(fault.Invalid, "piece of %d bytes at %d of %s (%d bytes): not whole blocks of it", p.Length, p.Offset, p.Path, p.Size)
	case p.Version == "":
		return fault.New(fault.Invalid, "piece at %d of %s: it does not say of which version", p.Offset, p.Path)
	case p.Zero && (p.Sum != "" || len(p.Data) > 0), (p.Zero || compare) && len(p.Data) > 0:
		return fault.New(fault.Invalid, "piece at %d of %s: it has data where none belongs", p.Offset, p.Path)
	case p.Zero:
		return nil
	case !compare && int64(len(p.Data)) != p.Length:
		return fault.New(fault.Invalid, "piece at %d of %s: %d bytes came, want %d", p.Offset, p.Path, len(p.Data), p.Length)
	case !compare && PieceSum(p.Data) != p.Sum:
		return fault.Refuse(fault.Invalid, "", fault.Reason{
			Code: "piece_checksum", Message: "a piece of " + p.Path + " came broken: its checksum is another", Change: "look at the network and the memory of the two hosts",
		})
	}
	var s ShipSum
	_, err := s.Piece(p)
	return err
}
