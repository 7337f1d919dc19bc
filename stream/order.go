package stream

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
)

// ID names one session: what both sides' processes of one attempt have in common.
type ID struct {
	Migration string `json:"migration"` // uuid
	Attempt   int    `json:"attempt"`   // from 1
}

// String is the name of the session's folder, and the instance name of its unit.
func (id ID) String() string { return fmt.Sprintf("%s-%d", id.Migration, id.Attempt) }

var idPattern = regexp.MustCompile(`^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([1-9][0-9]{0,8})$`)

// ParseID reads String's form; fault.Invalid for anything else.
func ParseID(s string) (ID, error) {
	m := idPattern.FindStringSubmatch(s)
	if m == nil {
		return ID{}, fault.New(fault.Invalid, "%q names no stream: want MIGRATION-ATTEMPT", s)
	}
	n, err := strconv.Atoi(m[2])
	return ID{Migration: m[1], Attempt: n}, err
}

// Role says which end of the session a process is.
type Role string

// The roles.
const (
	Source      Role = "source"
	Destination Role = "destination"
)

// Channel is what a connection carries.
type Channel string

// The channels: libvirt's own talk, the guest's memory, the guest's disks (NBD).
const (
	Control Channel = "control"
	Memory  Channel = "memory"
	Disks   Channel = "disks"
)

// channels are all of them; a connection names its own by the place here.
var channels = [...]Channel{Control, Memory, Disks}

// Ticket opens a session. It is a secret of the two agents and the two processes;
// it is written as hexadecimal digits.
type Ticket string

const ticketSize = 32

// NewTicket makes one from the system's randomness.
func NewTicket() Ticket {
	var b [ticketSize]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return Ticket(hex.EncodeToString(b[:]))
}

// key gives the ticket's bytes; nil where it is no ticket.
func (t Ticket) key() []byte {
	b, err := hex.DecodeString(string(t))
	if err != nil || len(b) != ticketSize {
		return nil
	}
	return b
}

// String keeps a ticket out of logs and messages.
func (t Ticket) String() string { return "(a ticket)" }

// Owner is a user of this machine, by number.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Order is what a process is told when it starts; see Manager.Open.
type Order struct {
	ID
	Instance string `json:"instance"` // uuid of the guest
	Role     Role   `json:"role"`
	// Host is this host's provider name, Peer the other's: the name that the
	// other's certificate must carry.
	Host string `json:"host"`
	Peer string `json:"peer"`
	// Ticket is the same on both sides.
	Ticket Ticket `json:"ticket"`
	// Lease is how long the process lives from its start, or from the last
	// Manager.Renew, while no connection is open. On the boot clock.
	Lease time.Duration `json:"lease_ns"`
	// PKI are this host's files. They are read anew when they change.
	PKI pki.Paths `json:"pki"`
	// QEMU is the user as whom QEMU runs: on the source it may connect to
	// memory.sock and disks.sock, on the destination it makes them. Root may always.
	QEMU Owner `json:"qemu"`
	// DeadAfter is how long the network may be silent, or take nothing, before a
	// connection is given up. 0 is DefaultDeadAfter. It should be well above the
	// agent's stall timeout, which decides what is done about it.
	DeadAfter time.Duration `json:"dead_after_ns,omitempty"`
	// PostCopy: the guest may travel by post-copy; see the package. On a destination it
	// comes from what the claim's own preparation was told, never from the peer; on a source
	// it is set for the process that serves the post-copy itself.
	PostCopy bool `json:"post_copy,omitempty"`

	// Address is where the destination's process listens, host:port. Source only.
	Address string `json:"address,omitempty"`

	// Listen is the IP address to listen on, empty for all; FirstPort to LastPort
	// are the ports to choose from, both 0 for any. Destination only.
	Listen    string `json:"listen,omitempty"`
	FirstPort int    `json:"first_port,omitempty"`
	LastPort  int    `json:"last_port,omitempty"`
	// Libvirt is the path of libvirtd's unix socket, and LibvirtURI the one URI that
	// the peer may open there ("qemu:///system"). Destination only.
	Libvirt    string `json:"libvirt,omitempty"`
	LibvirtURI string `json:"libvirt_uri,omitempty"`
	// DestinationXML and PersistentXML are the instance's live and persistent domain XML, as
	// this host prepared them: libvirt gets no other. Destination only.
	DestinationXML string `json:"destination_xml,omitempty"`
	PersistentXML  string `json:"persistent_xml,omitempty"`
}

// DefaultDeadAfter is longer than what a switch needs to come back, and shorter
// than TCP's own quarter of an hour. Arbitrary beyond that.
const DefaultDeadAfter = time.Minute

// postCopyDeadAfter bounds DeadAfter once a guest's memory is on both sides. QEMU tells
// nobody of a connection that is silent, its guest stands still behind it, and what is given
// up is only made anew. Arbitrary: some retransmissions of TCP's.
const postCopyDeadAfter = 10 * time.Second

// check refuses an order that could not be carried out, with every reason.
func (o Order) check() error {
	var reasons []fault.Reason
	need := func(ok bool, code, format string, args ...any) {
		if !ok {
			reasons = append(reasons, fault.Reason{Code: code, Message: fmt.Sprintf(format, args...)})
		}
	}
	_, err := ParseID(o.ID.String())
	need(err == nil, "id", "%q is no migration's uuid and attempt", o.ID.String())
	need(o.Peer != "", "peer", "the peer's name is required")
	need(o.Ticket.key() != nil, "ticket", "a ticket is required")
	need(o.Lease > 0, "lease", "a lease is required")
	need(o.PKI.CA != "" && o.PKI.Cert != "" && o.PKI.Key != "", "pki", "the paths of CA, certificate and key are required")
	switch o.Role {
	case Source:
		_, _, err := net.SplitHostPort(o.Address)
		need(err == nil, "address", "address %q: want HOST:PORT", o.Address)
	case Destination:
		need(o.Libvirt != "", "libvirt", "the path of libvirt's socket is required")
		need(strings.HasPrefix(o.LibvirtURI, "qemu:///"), "libvirt_uri", "libvirt's URI %q: want qemu:///system or another of QEMU's here", o.LibvirtURI)
		_, xerr := newGate(o, Paths{}, nil)
		need(xerr == nil, "domain_xml", "%v", xerr)
		need(o.Listen == "" || net.ParseIP(o.Listen) != nil, "listen", "listen on %q: want an IP address", o.Listen)
		need(o.FirstPort >= 0 && o.FirstPort <= o.LastPort && o.LastPort <= 65535 && (o.FirstPort > 0 || o.LastPort == 0),
			"ports", "ports %d to %d: want a range within 1 to 65535, or none", o.FirstPort, o.LastPort)
	default:
		need(false, "role", "role %q: want source or destination", o.Role)
	}
	if reasons != nil {
		return fault.Refuse(fault.Invalid, "order of stream "+o.ID.String(), reasons...)
	}
	return nil
}

// digest tells orders apart without telling their ticket. The lease does not
// count: it is renewed.
func (o Order) digest() string {
	o.Lease = 0
	text, err := json.Marshal(o)
	if err != nil {
		return "" // cannot be: an order is strings and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Paths are the places of one session below the manager's folder.
type Paths struct {
	Dir     string // the session's folder
	Control string // the source's socket for libvirtd
	QEMU    string // the folder of the next two
	Memory  string // the same path on both hosts
	Disks   string // the same path on both hosts
}

// PathsOf gives the paths of a session; dir is the manager's folder.
func PathsOf(dir string, id ID) Paths {
	own := filepath.Join(dir, id.String())
	qemu := filepath.Join(own, "qemu")
	return Paths{
		Dir: own, Control: filepath.Join(own, "control.sock"),
		QEMU: qemu, Memory: filepath.Join(qemu, "memory.sock"), Disks: filepath.Join(qemu, "disks.sock"),
	}
}

// LibvirtURI is what the source's libvirtd is told to connect to: uri
// ("qemu:///system") by way of the control socket.
func (p Paths) LibvirtURI(uri string) string {
	driver, path, _ := strings.Cut(uri, "://")
	return driver + "+unix://" + path + "?socket=" + p.Control
}

// MigrateURI is libvirt's migrate_uri: where memory goes, at both ends.
func (p Paths) MigrateURI() string { return "unix://" + p.Memory }

// DisksURI is libvirt's disks_uri: where disks go, at both ends.
func (p Paths) DisksURI() string { return "unix://" + p.Disks }

func (p Paths) order() string   { return filepath.Join(p.Dir, "order") }
func (p Paths) process() string { return filepath.Join(p.Dir, "process") }
func (p Paths) failure() string { return filepath.Join(p.Dir, "failure") }
func (p Paths) log() string     { return filepath.Join(p.Dir, "log") }
func (p Paths) agent() string   { return filepath.Join(p.Dir, "agent.sock") }

// sunPath is what a unix socket's address holds, less its final zero (unix(7)).
const sunPath = 107

// check refuses a folder whose sockets no address can hold, or no URI of libvirt's.
func (p Paths) check() error {
	longest := p.Memory
	if i := strings.IndexAny(longest, "?#&%; "); i >= 0 {
		return fault.Refuse(fault.Invalid, "folder of streams "+filepath.Dir(p.Dir), fault.Reason{
			Code: "path_not_for_uri", Message: fmt.Sprintf("%s holds a %q, and libvirt is told of its sockets by a URI", longest, longest[i]),
			Change: "choose a folder without it",
		})
	}
	if len(longest) > sunPath {
		return fault.Refuse(fault.Invalid, "folder of streams "+filepath.Dir(p.Dir), fault.Reason{
			Code: "path_too_long", Message: fmt.Sprintf("%s is too long for a unix socket", longest),
			Want: strconv.Itoa(sunPath) + " bytes", Have: strconv.Itoa(len(longest)) + " bytes", Change: "choose a shorter folder",
		})
	}
	return nil
}
