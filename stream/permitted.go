package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"

	"berth/internal/fault"
)

// A connection to libvirtd's socket may do anything on the host. The source needs
// little of it: it opens QEMU's driver, asks what it supports, prepares the
// arrival of one guest and finishes it, and leaves it paused; or, where the claim says so,
// lets it run by post-copy, and prepares and finishes once more what broke on the way. That
// is what passes; any other call ends the connection before libvirtd has it whole.
//
// The numbers are libvirt's (src/remote/remote_protocol.x, virnetprotocol.x,
// virkeepaliveprotocol.x); they never change. Which ones a source sends was read off
// real peer-to-peer migrations of libvirt 9.0.0 and 11.3.0, with disks and parallel
// connections. No polkit: libvirtd sees a connection of root's.
const (
	programRemote    = 0x20008086
	programKeepalive = 0x6b656570

	packetHead = 28 // length, program, version, procedure, type, serial, status
	packetMax  = 32<<20 + 4

	typeCall    = 0
	typeMessage = 2 // no answer is expected

	procOpen           = 1
	procPrepare3Params = 303
	procFinish3Params  = 306
)

// permitted are the calls that pass.
var permitted = map[uint32]string{
	procOpen:           "connect open",
	2:                  "connect close",
	60:                 "connect supports feature",
	66:                 "auth list",
	procPrepare3Params: "domain migrate prepare3 params",
	procFinish3Params:  "domain migrate finish3 params",
	360:                "connect register close callback",
	361:                "connect unregister close callback",
}

// Flags of a migration (libvirt's virDomainMigrateFlags).
const (
	flagTunnelled      = 1 << 2
	flagPaused         = 1 << 5
	flagNonSharedDisk  = 1 << 6
	flagNonSharedInc   = 1 << 7
	flagPostCopy       = 1 << 15
	flagPostCopyResume = 1 << 19
)

// way is how a guest arrives.
type way int

// The ways. By either nobody but the holder of the guest's token lets it run: a paused copy
// stands still until then, and in post-copy it stands still at the source, for good.
const (
	unprepared way = iota
	byPause
	byPostCopy
)

// gate looks at what the peer sends to libvirtd.
type gate struct {
	instance string // uuid of the one guest that may be prepared
	uri      string // the one URI that may be opened
	// memory and disks are the URIs by which alone QEMU may be told to listen.
	memory, disks string
	// postCopy permits an arrival by post-copy; begun is called when one is prepared.
	postCopy bool
	begun    func()

	head [packetHead]byte
	have int // bytes of the head
	left int // bytes of the payload still to come
	// payload is kept of the calls whose arguments are looked at.
	payload []byte
	judge   func([]byte) error

	guest string // the name under which it was prepared
	way   way    // by which it was prepared
}

func newGate(o Order, p Paths, begun func()) *gate {
	return &gate{instance: o.Instance, uri: o.LibvirtURI, memory: p.MigrateURI(), disks: p.DisksURI(), postCopy: o.PostCopy, begun: begun}
}

// pass looks at the next bytes, and refuses them when a call ends or begins in
// them that may not pass. Bytes that it took may go to libvirtd.
func (g *gate) pass(p []byte) error {
	for len(p) > 0 {
		if g.have < packetHead {
			n := copy(g.head[g.have:], p)
			g.have += n
			p = p[n:]
			if g.have < packetHead {
				return nil
			}
			if err := g.begin(); err != nil {
				return err
			}
		}
		n := min(g.left, len(p))
		if g.judge != nil {
			g.payload = append(g.payload, p[:n]...)
		}
		g.left -= n
		p = p[n:]
		if g.left > 0 {
			return nil
		}
		if g.judge != nil {
			if err := g.judge(g.payload); err != nil {
				return err
			}
		}
		g.have, g.judge, g.payload = 0, nil, nil
	}
	return nil
}

func (g *gate) word(i int) uint32 { return binary.BigEndian.Uint32(g.head[4*i:]) }

// begin judges a packet by its head.
func (g *gate) begin() error {
	length, program, proc, kind := g.word(0), g.word(1), g.word(3), g.word(4)
	if length < packetHead || length > packetMax {
		return fault.New(fault.Forbidden, "the peer sent a packet of %d bytes to libvirt", length)
	}
	g.left = int(length) - packetHead
	switch {
	case program == programKeepalive && kind == typeMessage && g.left == 0:
		return nil
	case program != programRemote || kind != typeCall || permitted[proc] == "":
		return fault.New(fault.Forbidden, "the peer sent libvirt a call that a migration does not need: program %#x, procedure %d, type %d", program, proc, kind)
	}
	switch proc {
	case procOpen:
		g.judge = g.open
	case procPrepare3Params:
		g.judge = g.prepare
	case procFinish3Params:
		g.judge = g.finish
	default:
		if g.left > 1<<10 { // the longest of them is a few words
			return fault.New(fault.Forbidden, "the peer sent libvirt %d bytes as %s", g.left, permitted[proc])
		}
	}
	return nil
}

// open: remote_connect_open_args, a name that may be absent and flags.
func (g *gate) open(payload []byte) error {
	x := xdr{left: payload}
	uri := ""
	if x.word() == 1 {
		uri = x.text()
	}
	if x.failed || uri != g.uri {
		return fault.New(fault.Forbidden, "the peer opens %.60q of libvirt, which is not %s", uri, g.uri)
	}
	return nil
}

// prepare: remote_domain_migrate_prepare3_params_args, of which the first part is
// typed parameters, then a cookie and flags. The guest's document among them must be
// the one guest's, and QEMU may be made to listen on this stream's sockets alone.
func (g *gate) prepare(payload []byte) error {
	x := xdr{left: payload}
	params := x.strings()
	flags := x.flags()
	uuid, name, err := identityOf(params["destination_xml"])
	if x.failed || err != nil {
		return fault.New(fault.Forbidden, "the peer prepares a guest that cannot be told: %v", err)
	}
	by, err := g.wayOf("prepares", flags)
	if err != nil {
		return err
	}
	// Without a URI libvirt has QEMU listen on a port of its own choice.
	if uri := params["migrate_uri"]; uri != g.memory {
		return fault.New(fault.Forbidden, "the peer wants the memory at %.100q, its stream has it at %s", uri, g.memory)
	}
	uri, named := params["disks_uri"]
	if (named || flags&(flagNonSharedDisk|flagNonSharedInc) != 0) && uri != g.disks {
		return fault.New(fault.Forbidden, "the peer wants the disks at %.100q, its stream has them at %s", uri, g.disks)
	}
	if !strings.EqualFold(uuid, g.instance) {
		return fault.New(fault.Forbidden, "the peer prepares guest %.36s, the claim is for %s", uuid, g.instance)
	}
	if n, ok := params["destination_name"]; ok {
		name = n
	}
	g.guest, g.way = name, by
	if by == byPostCopy {
		g.begun()
	}
	return nil
}

// finish: remote_domain_migrate_finish3_params_args. libvirt finds the guest by its
// name, and starts it but for its flags.
func (g *gate) finish(payload []byte) error {
	x := xdr{left: payload}
	name := x.strings()["destination_name"]
	flags := x.flags()
	if x.failed || g.guest == "" || name != g.guest {
		return fault.New(fault.Forbidden, "the peer finishes guest %.60q, it prepared %.60q", name, g.guest)
	}
	by, err := g.wayOf("finishes", flags)
	if err == nil && by != g.way {
		// libvirt starts the guest by Finish's flags, whatever Prepare's were.
		err = fault.New(fault.Forbidden, "the peer finishes the guest with flags %#x, and prepared it otherwise", flags)
	}
	return err
}

// wayOf refuses a copy that would run before the token is here: libvirt starts it by
// Finish's flags, and one that is copied while it runs whatever they say. By post-copy it
// runs before that, so that it is the claim's to permit; a tunnel passes by the memory's
// socket.
func (g *gate) wayOf(doing string, flags uint32) (way, error) {
	switch copies := flags&(flagPostCopy|flagPostCopyResume) != 0; {
	case flags&flagTunnelled != 0:
	case !copies && flags&flagPaused != 0:
		return byPause, nil
	case g.postCopy && flags&flagPostCopy != 0 && flags&flagPaused == 0:
		return byPostCopy, nil
	}
	other := "neither post-copy nor tunnel"
	if g.postCopy {
		other = "no tunnel, unless it comes by post-copy"
	}
	return unprepared, fault.New(fault.Forbidden, "the peer %s the guest with flags %#x: it must arrive paused, and by %s", doing, flags, other)
}

// identityOf reads a domain document's own uuid and name, each of which must be
// there once: what this and libvirt's reader would make of two is not to be known.
func identityOf(document string) (uuid, name string, err error) {
	d := xml.NewDecoder(strings.NewReader(document))
	depth := 0
	seen := map[string]int{}
	for {
		t, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", "", fmt.Errorf("its document: %w", err)
		}
		switch t := t.(type) {
		case xml.StartElement:
			if depth == 0 && t.Name.Local != "domain" {
				return "", "", fault.New(fault.Invalid, "its document is of a %.20q", t.Name.Local)
			}
			depth++
			if depth == 2 && t.Name.Space == "" && (t.Name.Local == "uuid" || t.Name.Local == "name") {
				var text string
				if err := d.DecodeElement(&text, &t); err != nil {
					return "", "", fmt.Errorf("its document: %w", err)
				}
				depth--
				seen[t.Name.Local]++
				if t.Name.Local == "uuid" {
					uuid = strings.TrimSpace(text)
				} else {
					name = text
				}
			}
		case xml.EndElement:
			depth--
		case xml.Directive:
			// A document type can define entities, and change what is read here.
			return "", "", fault.New(fault.Invalid, "its document has a document type")
		}
	}
	if seen["uuid"] != 1 || seen["name"] != 1 {
		return "", "", fault.New(fault.Invalid, "its document has %d uuids and %d names", seen["uuid"], seen["name"])
	}
	return uuid, name, nil
}

// xdr reads RFC 4506's encoding, as far as it is met here.
type xdr struct {
	left   []byte
	failed bool
}

func (x *xdr) take(n int) []byte {
	if n < 0 || n > len(x.left) {
		x.failed, x.left = true, nil
		return nil
	}
	out := x.left[:n]
	x.left = x.left[n:]
	return out
}

func (x *xdr) word() uint32 {
	b := x.take(4)
	if b == nil {
		return math.MaxUint32
	}
	return binary.BigEndian.Uint32(b)
}

func (x *xdr) opaque() []byte {
	n := x.word()
	if n > packetMax {
		x.failed = true
		return nil
	}
	b := x.take(int(n))
	x.take(int(-n & 3))
	return b
}

// text is a string without a zero: at one libvirt's ends, and is another than the one
// that is looked at here.
func (x *xdr) text() string {
	b := x.opaque()
	if bytes.IndexByte(b, 0) >= 0 {
		x.failed = true
		return ""
	}
	return string(b)
}

// flags are what follows a call's parameters, after the cookie.
func (x *xdr) flags() uint32 {
	x.opaque()
	return x.word()
}

// paramsMax is libvirt's REMOTE_DOMAIN_MIGRATE_PARAM_LIST_MAX.
const paramsMax = 64

// strings reads an array of remote_typed_param and gives those of type string. A
// name that comes twice is a failure, but for the lists migrate_disks…
func (x *xdr) strings() map[string]string {
	out := map[string]string{}
	n := x.word()
	if n > paramsMax {
		x.failed = true
		return out
	}
	seen := map[string]bool{}
	for range n {
		name := x.text()
		if seen[name] && !strings.HasPrefix(name, "migrate_disks") {
			x.failed = true
		}
		seen[name] = true
		switch x.word() {
		case 1, 2, 6: // int, uint, boolean
			x.take(4)
		case 3, 4, 5: // llong, ullong, double
			x.take(8)
		case 7:
			out[name] = x.text()
		default:
			x.failed = true
		}
		if x.failed {
			break
		}
	}
	return out
}
