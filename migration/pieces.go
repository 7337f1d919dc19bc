package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"berth/internal/fault"
)

// ShipBlock is the unit in which files are shipped, bytes. What crosses a connection
// at once is one block, so it bounds memory on all three hosts; and what is lost with
// a connection is a few of them. It is part of what ShipSum means, and so of the
// protocol.
const ShipBlock = 4 << 20

// ShipRun is the most that one piece of zeros spans, bytes. Arbitrary: ShipSum takes a
// few milliseconds for that many.
const ShipRun = 64 << 30

// zeroBlock is the sum of a block of zeros.
var zeroBlock = sync.OnceValue(func() [sha256.Size]byte { return sha256.Sum256(make([]byte, ShipBlock)) })

// ShipSum is the checksum of a file from its start up to some block, from which it can
// be taken on: a chain of SHA-256 over the SHA-256 of each block, in order. A block of
// zeros counts the same whether it was sent or not. Both ends compute it on the way:
// the conductor from what the source gave, the destination from what it wrote; nobody
// reads a file twice for it. The zero value is that of no bytes.
type ShipSum struct {
	state [sha256.Size]byte
}

// PieceSum is a piece's checksum.
func PieceSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// ParseShipSum reads what String gave; empty is the sum of no bytes.
func ParseShipSum(text string) (ShipSum, error) {
	var s ShipSum
	if text == "" {
		return s, nil
	}
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(s.state) {
		return s, fault.New(fault.Invalid, "checksum %q: want %d hexadecimal digits", text, 2*len(s.state))
	}
	copy(s.state[:], raw)
	return s, nil
}

// String is the sum in hexadecimal; empty for that of no bytes.
func (s ShipSum) String() string {
	if s == (ShipSum{}) {
		return ""
	}
	return hex.EncodeToString(s.state[:])
}

// Block takes the next block by its own sum.
func (s ShipSum) Block(sum [sha256.Size]byte) ShipSum {
	var b [2 * sha256.Size]byte
	copy(b[:], s.state[:])
	copy(b[sha256.Size:], sum[:])
	s.state = sha256.Sum256(b[:])
	return s
}

// Zeros takes the next length bytes of zeros; only the last block of a file may be
// shorter than a ShipBlock.
func (s ShipSum) Zeros(length int64) ShipSum {
	for ; length >= ShipBlock; length -= ShipBlock {
		s = s.Block(zeroBlock())
	}
	if length > 0 {
		s = s.Block(sha256.Sum256(make([]byte, length)))
	}
	return s
}

// Piece takes the next piece, without looking at its Data.
func (s ShipSum) Piece(p DiskPiece) (ShipSum, error) {
	if p.Zero {
		return s.Zeros(p.Length), nil
	}
	var sum [sha256.Size]byte
	raw, err := hex.DecodeString(p.Sum)
	if err != nil || len(raw) != len(sum) {
		return s, fault.New(fault.Invalid, "piece at %d of %s: its checksum is not one", p.Offset, p.Path)
	}
	copy(sum[:], raw)
	return s.Block(sum), nil
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
