package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"berth/internal/fault"
)

// A connection to libvirtd's socket may do anything on the host. The source needs
// little of it: it opens QEMU's driver, asks what it supports, prepares the
// arrival of one guest and finishes it, and leaves it paused; or, where the claim says so,
// lets it run by post-copy, and prepares and finishes once more what broke on the way. That
// is what passes; any other call ends the connection before libvirtd has a byte of it.
//
// No domain XML of the source's passes. libvirtd gets the two that this host prepared: the
// live one in place of Prepare's parameter destination_xml, and the persistent one in place of
// the <domain> in Finish's cookie (measured with libvirt 9.0.0: there is where the source's
// libvirt puts its parameter persistent_xml). They are replaced and not compared, because the
// source's libvirt writes both anew.
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
	// name is the guest's, live and persistent are its domain XML, as this host prepared it.
	name, live, persistent string
	uri                    string // the one URI that may be opened
	// memory and disks are the URIs by which alone QEMU may be told to listen.
	memory, disks string
	// postCopy permits an arrival by post-copy; begun is called when one is prepared.
	postCopy bool
	begun    func()

	head [packetHead]byte
	have int // bytes of the head
	left int // bytes of the payload still to come
	// payload is kept of each call until it is whole.
	payload []byte
	// judge gives what libvirtd gets in place of a call's arguments; nil for the same.
	judge func([]byte) ([]byte, error)

	prepared bool
	way      way // by which it was prepared
}

func newGate(o Order, p Paths, begun func()) (*gate, error) {
	g := &gate{
		instance: o.Instance, uri: o.LibvirtURI, memory: p.MigrateURI(), disks: p.DisksURI(), postCopy: o.PostCopy, begun: begun,
		live: o.DestinationXML, persistent: o.PersistentXML,
	}
	uuid, name, err := identityOf(g.live)
	if err == nil && !strings.EqualFold(uuid, g.instance) {
		err = fault.New(fault.Invalid, "it is of instance %s, the stream is for %s", uuid, g.instance)
	}
	if err != nil {
		return nil, fault.Wrap(err, "the domain XML that this host prepared")
	}
	g.name = name
	uuid, name, err = identityOf(g.persistent)
	if err == nil && (!strings.EqualFold(uuid, g.instance) || name != g.name) {
		// libvirt saves it by its own name, over another's of that name.
		err = fault.New(fault.Invalid, "it is of instance %s, %q, the stream is for %s, %q", uuid, name, g.instance, g.name)
	}
	if err == nil {
		g.persistent, err = rootOf(g.persistent)
	}
	if err != nil {
		return nil, fault.Wrap(err, "the persistent domain XML that this host prepared")
	}
	return g, nil
}

// pass takes the next bytes and gives those that may go to libvirtd now: of each call all,
// once it is whole. It refuses a call that may not pass, of which nothing has gone then.
func (g *gate) pass(p []byte) (out []byte, err error) {
	for len(p) > 0 {
		if g.have < packetHead {
			n := copy(g.head[g.have:], p)
			g.have += n
			p = p[n:]
			if g.have < packetHead {
				return out, nil
			}
			if err := g.begin(); err != nil {
				return out, err
			}
		}
		n := min(g.left, len(p))
		g.payload = append(g.payload, p[:n]...)
		g.left -= n
		p = p[n:]
		if g.left > 0 {
			return out, nil
		}
		if g.judge != nil {
			if g.payload, err = g.judge(g.payload); err != nil {
				return out, err
			}
			binary.BigEndian.PutUint32(g.head[:], uint32(packetHead+len(g.payload)))
		}
		out = append(append(out, g.head[:]...), g.payload...)
		g.have, g.judge, g.payload = 0, nil, nil
	}
	return out, nil
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
func (g *gate) open(payload []byte) ([]byte, error) {
	x := xdr{left: payload}
	uri := ""
	if x.word() == 1 {
		uri = x.text()
	}
	if x.failed || uri != g.uri {
		return nil, fault.New(fault.Forbidden, "the peer opens %.60q of libvirt, which is not %s", uri, g.uri)
	}
	return payload, nil
}

// prepare: remote_domain_migrate_prepare3_params_args: typed parameters, a cookie and flags.
// The domain XML must be the one guest's, and QEMU may be made to listen on this stream's
// sockets alone. libvirtd gets this host's domain XML in place of the peer's.
func (g *gate) prepare(payload []byte) ([]byte, error) {
	x := xdr{left: payload}
	list := x.params()
	cookie := x.opaque()
	flags := x.word()
	if x.failed || len(x.left) > 0 {
		return nil, fault.New(fault.Forbidden, "the peer prepares a guest with arguments that cannot be read")
	}
	params := list.texts()
	uuid, _, err := identityOf(params["destination_xml"])
	if err != nil {
		return nil, fault.New(fault.Forbidden, "the peer prepares a guest that cannot be told: %v", err)
	}
	by, err := g.wayOf("prepares", flags)
	if err != nil {
		return nil, err
	}
	// Without a URI libvirt has QEMU listen on a port of its own choice.
	if uri := params["migrate_uri"]; uri != g.memory {
		return nil, fault.New(fault.Forbidden, "the peer wants the memory at %.100q, its stream has it at %s", uri, g.memory)
	}
	uri, named := params["disks_uri"]
	if (named || flags&(flagNonSharedDisk|flagNonSharedInc) != 0) && uri != g.disks {
		return nil, fault.New(fault.Forbidden, "the peer wants the disks at %.100q, its stream has them at %s", uri, g.disks)
	}
	if !strings.EqualFold(uuid, g.instance) {
		return nil, fault.New(fault.Forbidden, "the peer prepares guest %.36s, the claim is for %s", uuid, g.instance)
	}
	if err := g.named("prepares", params, false); err != nil {
		return nil, err
	}
	if cookie, err = rebuildCookie(cookie, g.persistent); err != nil {
		return nil, err
	}
	g.prepared, g.way = true, by
	if by == byPostCopy {
		g.begun()
	}
	return list.with("destination_xml", g.live).append(cookie, flags), nil
}

// finish: remote_domain_migrate_finish3_params_args: typed parameters, a cookie, flags and
// whether the source has canceled. libvirt finds the guest by its name, and starts it but for
// its flags. The persistent definition is in the cookie.
func (g *gate) finish(payload []byte) ([]byte, error) {
	x := xdr{left: payload}
	list := x.params()
	cookie := x.opaque()
	flags := x.word()
	canceled := x.word()
	if x.failed || len(x.left) > 0 {
		return nil, fault.New(fault.Forbidden, "the peer finishes a guest with arguments that cannot be read")
	}
	if !g.prepared {
		return nil, fault.New(fault.Forbidden, "the peer finishes a guest, and has prepared none")
	}
	if err := g.named("finishes", list.texts(), true); err != nil {
		return nil, err
	}
	by, err := g.wayOf("finishes", flags)
	if err == nil && by != g.way {
		// libvirt starts the guest by Finish's flags, whatever Prepare's were.
		err = fault.New(fault.Forbidden, "the peer finishes the guest with flags %#x, and prepared it otherwise", flags)
	}
	if err != nil {
		return nil, err
	}
	if cookie, err = rebuildCookie(cookie, g.persistent); err != nil {
		return nil, err
	}
	// libvirt sends Prepare's parameters once more.
	return list.with("destination_xml", g.live).append(cookie, flags, canceled), nil
}

// named refuses parameters that Berth's source does not send, and another name for the guest
// than the one that this host prepared it by.
func (g *gate) named(doing string, params map[string]string, need bool) error {
	for name := range params {
		if !slices.ContainsFunc(parameterNames, func(known string) bool { return name == known || strings.HasPrefix(name, known+".") }) {
			return fault.New(fault.Forbidden, "the peer %s the guest with parameter %.60q, which a migration of Berth's does not have", doing, name)
		}
	}
	if name, there := params["destination_name"]; (there || need) && name != g.name {
		return fault.New(fault.Forbidden, "the peer %s guest %.60q, this host prepared %.60q", doing, name, g.name)
	}
	return nil
}

// parameterNames are those that driver/libvirt sends and that libvirt passes on to the
// destination; one stands for its own with a dot too (bandwidth.postcopy). disks_port and
// listen_address are not among them: they would open ports of the host.
var parameterNames = []string{
	"destination_xml", "destination_name", "migrate_uri", "disks_uri", "migrate_disks", "migrate_disks_detect_zeroes",
	"bandwidth", "parallel", "auto_converge", "compression",
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
				var in struct {
					Text  string     `xml:",chardata"`
					Below []struct{} `xml:",any"` // libvirt reads their text too
				}
				if err := d.DecodeElement(&in, &t); err != nil {
					return "", "", fmt.Errorf("its document: %w", err)
				}
				if len(in.Below) > 0 {
					return "", "", fault.New(fault.Invalid, "its document has elements in its %s", t.Name.Local)
				}
				text := in.Text
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

// paramsMax is libvirt's REMOTE_DOMAIN_MIGRATE_PARAM_LIST_MAX.
const paramsMax = 64

// param is a remote_typed_param: its name, and value as it came. text is that of a string.
type param struct {
	name string
	kind uint32
	raw  []byte
	text string
}

const kindString = 7

// params are a call's typed parameters.
type params []param

// texts gives the parameters by name; those that are no strings have none.
func (l params) texts() map[string]string {
	out := map[string]string{}
	for _, p := range l {
		out[p.name] = p.text
	}
	return out
}

// with gives the parameters with another value of one string.
func (l params) with(name, value string) params {
	out := slices.Clone(l)
	for i := range out {
		if out[i].name == name {
			out[i].text = value
		}
	}
	return out
}

// append encodes the parameters, a cookie after them, and words.
func (l params) append(cookie []byte, words ...uint32) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(l)))
	for _, p := range l {
		out = appendOpaque(out, []byte(p.name))
		out = binary.BigEndian.AppendUint32(out, p.kind)
		if p.kind == kindString {
			out = appendOpaque(out, []byte(p.text))
		} else {
			out = append(out, p.raw...)
		}
	}
	out = appendOpaque(out, cookie)
	for _, w := range words {
		out = binary.BigEndian.AppendUint32(out, w)
	}
	return out
}

func appendOpaque(to, b []byte) []byte {
	to = binary.BigEndian.AppendUint32(to, uint32(len(b)))
	to = append(to, b...)
	return append(to, make([]byte, -len(b)&3)...)
}

// params reads an array of remote_typed_param. A name that comes twice is a failure, but for
// the lists migrate_disks…, and so is a string parameter of another type.
func (x *xdr) params() params {
	n := x.word()
	if n > paramsMax {
		x.failed = true
		return nil
	}
	var out params
	seen := map[string]bool{}
	for range n {
		p := param{name: x.text(), kind: x.word()}
		if seen[p.name] && !strings.HasPrefix(p.name, "migrate_disks") {
			x.failed = true
		}
		seen[p.name] = true
		switch p.kind {
		case 1, 2, 6: // int, uint, boolean
			p.raw = x.take(4)
		case 3, 4, 5: // llong, ullong, double
			p.raw = x.take(8)
		case kindString:
			p.text = x.text()
		default:
			x.failed = true
		}
		if x.failed {
			return nil
		}
		out = append(out, p)
	}
	return out
}
