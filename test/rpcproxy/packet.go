package rpcproxy

import (
	"encoding/binary"
	"io"
)

// Procedures of libvirt's remote protocol (remote_protocol.x) that tests name.
const (
	Open             = 1
	GetCapabilities  = 7
	GetXMLDesc       = 14
	GetInfo          = 16
	LookupByUUID     = 24
	AuthList         = 66
	GetLibVersion    = 157
	CreateWithFlags  = 196 // start a domain
	GetState         = 212
	ListAllDomains   = 273
	Begin3Params     = 302 // a client, or the source, begins a migration at the source
	Prepare3Params   = 303 // the source asks the destination to make ready
	Perform3Params   = 305 // a client asks the source to migrate
	Finish3Params    = 306 // the source asks the destination to take over
	Confirm3Params   = 307 // ends a migration at the source
	RegisterEvents   = 316
	EventLifecycle   = 318
	GetAllDomainStat = 344
)

// The programs of the protocol.
const (
	ProgramRemote    = 0x20008086
	ProgramQEMU      = 0x20008087
	ProgramKeepalive = 0x6b656570
)

// Word is one of the seven of a packet's head.
type Word int

// The words, in order.
const (
	Length Word = iota
	Program
	Version
	Procedure
	Type
	Serial
	Status
)

const headSize = 28

// lengthMax bounds what is taken for a packet: libvirt's own bound is 32 MiB.
const lengthMax = 64 << 20

// Packet is one packet of the protocol, head and payload.
type Packet []byte

// Head reads a word of the packet's head.
func (p Packet) Head(w Word) uint32 { return binary.BigEndian.Uint32(p[4*w:]) }

// Payload is what follows the head.
func (p Packet) Payload() []byte { return p[headSize:] }

// Kind says what a packet is.
type Kind int

// The kinds.
const (
	Any Kind = iota
	Call
	Reply
	Event
)

// Kind of the packet; Any for what is none of the three.
func (p Packet) Kind() Kind {
	switch p.Head(Type) {
	case 0:
		return Call
	case 1:
		return Reply
	case 2:
		return Event
	}
	return Any
}

// readPacket reads one whole packet.
func readPacket(r io.Reader) (Packet, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < headSize || n > lengthMax {
		return nil, io.ErrUnexpectedEOF
	}
	p := make(Packet, n)
	copy(p, length[:])
	_, err := io.ReadFull(r, p[4:])
	return p, err
}
