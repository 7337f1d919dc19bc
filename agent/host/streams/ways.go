package streams

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// Processes are those that forward this host's migrations, one for each side of
// an attempt (package stream). They outlive the agent: whoever asks for one that runs
// already finds it. All methods are safe to repeat and may be called by many at once,
// but two about one attempt must not overlap.
type Processes interface {
	// Open starts the process of an attempt, or finds it, and returns when it serves.
	// fault.Exists where one runs that was asked for otherwise.
	Open(ctx context.Context, o Order) (Ends, error)
	// Renew keeps a process from ending by its lease. fault.NotFound where there is
	// none.
	Renew(ctx context.Context, migration string, attempt int, lease time.Duration) error
	// Close revokes the ticket and ends the process with every connection; nothing
	// arrives by it any more when it returns nil, also where there is none.
	Close(ctx context.Context, migration string, attempt int) error
	// Dir is the folder of their sockets; see migration.Description.
	Dir() string
}

// Listener is an ability of Processes that know whether the other side is there: found by a
// type assertion.
type Listener interface {
	// Silent is for how long the other side of an attempt's stream has acknowledged none of
	// the guest's memory. fault.NotFound where there is no stream.
	Silent(ctx context.Context, migration string, attempt int) (time.Duration, error)
}

// Order is what a stream is asked for.
type Order struct {
	Migration string
	Attempt   int
	Instance  string
	Peer      string // the other host, by its provider's name
	Ticket    string // the claim's
	// Lease is how long the process lives without a connection.
	Lease time.Duration
	// Address is where the destination's process listens, as Prepared has it, and
	// LibvirtURI what the source's libvirt is to open by way of it. Empty on a
	// destination.
	Address, LibvirtURI string
	// PostCopy: on a destination the guest may come by post-copy; on a source this process
	// serves one.
	PostCopy bool
	// Port is where a destination's process listens that takes the place of one that died; 0
	// for any.
	Port int
	// DestinationXML and PersistentXML are the domain XML that this destination prepared: its
	// libvirt gets no other from the source. Empty on a source.
	DestinationXML, PersistentXML string
}

// Ends are those of a stream that serves.
type Ends struct {
	// Address is where the destination's process listens; see migration.Prepared.
	Address string
	// LibvirtURI is what libvirt on the source opens; on a destination what the
	// source is to ask for. MigrateURI and DisksURI are equal on both sides.
	LibvirtURI, MigrateURI, DisksURI string
}

// Lease is how long a stream waits for its first connection where its claim has
// no lease of its own.
const Lease = time.Minute

// transport is how guests come here.
func (s *Streams) transport() migration.Transport {
	if s.o.Processes == nil || s.o.Transport == "" {
		return migration.TransportLibvirtTLS
	}
	return s.o.Transport
}

// Describe tells others how guests come here, and how they can leave.
func (s *Streams) Describe(d *migration.Description) {
	d.Transport, d.Transports = s.transport(), []migration.Transport{migration.TransportLibvirtTLS}
	if s.o.Processes != nil {
		d.Transports = append(d.Transports, migration.TransportStream)
		d.StreamDir = s.o.Processes.Dir()
	}
}

// Differ refuses a pair of hosts between which no guest can travel. The
// destination's way is taken: it alone knows who listens there. Any agent that knows
// of streams can send by both.
func Differ(source, dest migration.Description) []fault.Reason {
	if dest.Transport != migration.TransportStream {
		return nil
	}
	if !slices.Contains(source.Transports, migration.TransportStream) {
		return []fault.Reason{{
			Code:    "transport_differs",
			Message: fmt.Sprintf("guests come to %s by Berth's own stream, and the agent of %s knows of none", dest.Name, source.Name),
			Want:    string(dest.Transport), Have: string(migration.TransportLibvirtTLS),
			Change: fmt.Sprintf(`upgrade Berth on %s, or set [migration] transport = "libvirt-tls" on %s and let its libvirtd listen with TLS`, source.Name, dest.Name),
		}}
	}
	if source.StreamDir != dest.StreamDir {
		return []fault.Reason{{
			Code:    "stream_dir_differs",
			Message: fmt.Sprintf("the sockets of streams lie in %s on %s and in %s on %s, and libvirt has one path for both ends", source.StreamDir, source.Name, dest.StreamDir, dest.Name),
			Want:    dest.StreamDir, Have: source.StreamDir, Change: "set the same [agent] runtime_dir on both",
		}}
	}
	return nil
}

// OpenArrival starts the stream by which a guest comes, and says in p how. The claim
// is not arriving yet: until the answer is given nobody knows of the process.
// Nothing where guests come by libvirt's TLS.
func (s *Streams) OpenArrival(ctx context.Context, ref migration.Ref, c claims.Claim, source string, postCopy bool, p *migration.Prepared) error {
	if s.transport() != migration.TransportStream {
		return nil
	}
	o := arrival(ref, c, source, *p)
	o.PostCopy = postCopy
	ends, err := s.o.Processes.Open(ctx, o)
	if err != nil {
		return err
	}
	p.StreamAddress, p.LibvirtURI, p.MigrateURI, p.DisksURI = ends.Address, ends.LibvirtURI, ends.MigrateURI, ends.DisksURI
	return nil
}

func arrival(ref migration.Ref, c claims.Claim, source string, p migration.Prepared) Order {
	o := Order{
		Migration: ref.Migration, Attempt: ref.Attempt, Instance: ref.Instance, Peer: source, Ticket: c.Ticket, Lease: Lease,
		DestinationXML: p.DestinationXML, PersistentXML: p.PersistentXML,
	}
	if c.Lease != nil {
		o.Lease = c.Lease.Length
	}
	return o
}

// KeepPostCopy sees that the stream is there by which the rest of a guest's memory comes: one
// whose process has died is started again where it was, since its source knows no other
// place.
func (s *Streams) KeepPostCopy(ctx context.Context, ref migration.Ref, c claims.Claim, source string, p migration.Prepared) error {
	if s.o.Processes == nil || p.StreamAddress == "" {
		return nil
	}
	if err := s.o.Processes.Renew(ctx, ref.Migration, ref.Attempt, Lease); !errors.Is(err, fault.NotFound) {
		return err
	}
	_, port, err := net.SplitHostPort(p.StreamAddress)
	if err != nil {
		return fault.New(fault.Internal, "the stream's address %q: %w", p.StreamAddress, err)
	}
	o := arrival(ref, c, source, p)
	o.PostCopy = true
	if o.Port, err = strconv.Atoi(port); err != nil {
		return fault.New(fault.Internal, "the stream's address %q: %w", p.StreamAddress, err)
	}
	s.log.Warn("the stream of a guest in post-copy has ended, and is started again", "instance", ref.Instance, "migration", ref.Migration)
	_, err = s.o.Processes.Open(ctx, o)
	return err
}

// openDeparture starts the stream by which a guest leaves, and gives what libvirt
// here is told in place of what the destination said.
func (s *Streams) openDeparture(ctx context.Context, ref migration.Ref, dest string, m migration.Stream, postCopy bool) (migration.Prepared, error) {
	p := m.Prepared
	if p.StreamAddress == "" {
		return p, nil
	}
	if s.o.Processes == nil {
		return p, fault.New(fault.Forbidden, "%s takes the guest by a stream, and this host has none", dest)
	}
	ends, err := s.o.Processes.Open(ctx, Order{
		Migration: ref.Migration, Attempt: ref.Attempt, Instance: ref.Instance, Peer: dest, Ticket: m.Ticket, Lease: Lease,
		Address: p.StreamAddress, LibvirtURI: p.LibvirtURI, PostCopy: postCopy,
	})
	if err != nil {
		return p, err
	}
	if ends.MigrateURI != p.MigrateURI || ends.DisksURI != p.DisksURI {
		return p, fault.New(fault.Forbidden, "the stream's sockets are %s and %s here, %s and %s on %s: set the same [agent] runtime_dir on both",
			ends.MigrateURI, ends.DisksURI, p.MigrateURI, p.DisksURI, dest)
	}
	p.LibvirtURI = ends.LibvirtURI
	return p, nil
}

// KeepArrival renews the lease of a stream that waits for its first connection. What
// fails is no fault: a stream that has ended makes the move fail by itself.
func (s *Streams) KeepArrival(ctx context.Context, ref migration.Ref, lease time.Duration) {
	if s.o.Processes == nil {
		return
	}
	err := s.o.Processes.Renew(ctx, ref.Migration, ref.Attempt, lease)
	if err != nil && !errors.Is(err, fault.NotFound) {
		s.log.Warn("the stream's lease could not be renewed", "migration", ref.Migration, "attempt", ref.Attempt, "error", err)
	}
}

// End ends the process of an attempt: by either side's undo, or because it has
// done its work. After it nothing of this attempt arrives by it.
func (s *Streams) End(ctx context.Context, ref migration.Ref) error {
	if s.o.Processes == nil || ref.Attempt <= 0 {
		return nil
	}
	return fault.Wrap(s.o.Processes.Close(ctx, ref.Migration, ref.Attempt), "end its stream")
}
