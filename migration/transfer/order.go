package transfer

import (
	"maps"

	"berth/internal/fault"
	"berth/migration"
)

// shipAhead is how many pieces may have come before one that is missing. Above what
// any conductor has under way; arbitrary.
const shipAhead = 64

// Order puts the pieces of one file in order, which several lanes bring: how far
// it is whole from its start on, and the sum of that much. It holds no data. Not safe
// for concurrent use.
type Order struct {
	Bytes int64
	Sum   migration.ShipSum
	early map[int64]migration.DiskPiece // beyond a piece that is missing, by offset
}

// Rest is what of a piece is still wanted: all, nothing (Length 0) where it came
// before, and of a run of zeros what is behind the part that came.
func (o *Order) Rest(p migration.DiskPiece) migration.DiskPiece {
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
func (o *Order) Take(p migration.DiskPiece) error {
	if p = o.Rest(p); p.Length == 0 {
		return nil
	}
	p.Data = nil
	if p.Offset != o.Bytes {
		if len(o.early) >= shipAhead {
			return fault.New(fault.Busy, "piece at %d of %s came too early: it is whole up to %d", p.Offset, p.Path, o.Bytes)
		}
		if o.early == nil {
			o.early = map[int64]migration.DiskPiece{}
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
	maps.DeleteFunc(o.early, func(at int64, _ migration.DiskPiece) bool { return at < o.Bytes })
	return nil
}
