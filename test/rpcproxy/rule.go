package rpcproxy

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// Match chooses packets. The zero value chooses the next one, whatever it is.
type Match struct {
	Kind      Kind   // Any for all
	Program   uint32 // 0 for the remote protocol where a procedure is named, else for any
	Procedure uint32 // 0 for any
	Skip      int    // how many that would match are let pass first
	Times     int    // how many are then met; 0 is one, Always all
	// If looks at the packet itself; nil for all. It must not keep it.
	If func(Packet) bool
}

// Always lets a rule meet every packet that matches.
const Always = -1

// CallOf and ReplyOf match the next call and reply of a procedure.
func CallOf(procedure uint32) Match { return Match{Kind: Call, Procedure: procedure} }

// ReplyOf matches the next reply of a procedure.
func ReplyOf(procedure uint32) Match { return Match{Kind: Reply, Procedure: procedure} }

func (m Match) fits(p Packet) bool {
	program := m.Program
	if program == 0 && m.Procedure != 0 {
		program = ProgramRemote
	}
	return (m.Kind == Any || m.Kind == p.Kind()) && (program == 0 || program == p.Head(Program)) &&
		(m.Procedure == 0 || m.Procedure == p.Head(Procedure)) && (m.If == nil || m.If(p))
}

// Action is what happens to a packet that a rule meets. The steps that it names
// are taken in the order of the fields.
type Action struct {
	// Hold keeps the packet until the channel is closed, and Delay for a time.
	// Packets behind it pass it: each answer is late on its own.
	Hold  <-chan struct{}
	Delay time.Duration
	// Change gives what is sent in its place; it may change the packet where it
	// stands, and need not give whole packets.
	Change func(Packet) []byte
	// Drop sends nothing, and leaves the connection open.
	Drop bool
	// Twice sends it again.
	Twice bool
	// Cut ends the connection, both sides of it: after the packet, or in its place
	// where it is dropped too.
	Cut bool
}

// The usual actions.
var (
	Drop     = Action{Drop: true}
	CutAfter = Action{Cut: true}
	// CutInstead ends the connection in place of the packet: of a call before the
	// daemon has seen it, of a reply after the daemon has done what was asked.
	CutInstead = Action{Drop: true, Cut: true}
	Twice      = Action{Twice: true}
)

// Delay is the action that keeps a packet for a time.
func Delay(d time.Duration) Action { return Action{Delay: d} }

// Change is the action that replaces a packet.
func Change(f func(Packet) []byte) Action { return Action{Change: f} }

// Set changes a word of the head.
func Set(w Word, value uint32) Action {
	return Change(func(p Packet) []byte {
		binary.BigEndian.PutUint32(p[4*w:], value)
		return p
	})
}

// Payload changes the nth word of the payload; a packet without it is left alone.
func Payload(n int, value uint32) Action {
	return Change(func(p Packet) []byte {
		if b := p.Payload(); len(b) >= 4*n+4 {
			binary.BigEndian.PutUint32(b[4*n:], value)
		}
		return p
	})
}

// Truncate sends the first n bytes and no more, and cuts: the end of a daemon in
// the middle of a word.
func Truncate(n int) Action {
	return Action{Cut: true, Change: func(p Packet) []byte { return p[:min(n, len(p))] }}
}

// Shorten takes n bytes off the end, with a length that says so.
func Shorten(n int) Action {
	return Change(func(p Packet) []byte {
		p = p[:max(headSize, len(p)-n)]
		binary.BigEndian.PutUint32(p, uint32(len(p)))
		return p
	})
}

// Garbage sends n bytes without sense in the packet's place, the same for the
// same seed.
func Garbage(n int, seed uint64) Action {
	return Change(func(Packet) []byte {
		r := rand.New(rand.NewPCG(seed, 0))
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	})
}

// Scramble changes one to four bytes anywhere in the packet, by the given source.
func Scramble(r *rand.Rand) Action {
	return Change(func(p Packet) []byte {
		for range 1 + r.IntN(4) {
			p[r.IntN(len(p))] = byte(r.Uint32())
		}
		return p
	})
}

// Rule is one fault that waits for its packets.
type Rule struct {
	p      *Proxy
	match  Match
	action Action
	met    chan struct{} // closed when the first packet is met
	// Guarded by Proxy.mu.
	skipped, count int
}

// Met is closed when the rule has met its first packet.
func (r *Rule) Met() <-chan struct{} { return r.met }

// Count is how many packets the rule has met.
func (r *Rule) Count() int {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.count
}

// Remove ends the rule; packets that it holds stay held.
func (r *Rule) Remove() {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.p.removeLocked(r)
}

// takesLocked reports whether the rule meets a packet, and counts it.
func (r *Rule) takesLocked(p Packet) bool {
	if !r.match.fits(p) {
		return false
	}
	if r.skipped < r.match.Skip {
		r.skipped++
		return false
	}
	if r.count++; r.count == 1 {
		close(r.met)
	}
	if r.match.Times != Always && r.count >= max(1, r.match.Times) {
		r.p.removeLocked(r)
	}
	return true
}
