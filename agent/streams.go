package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/stream"
	"berth/systemd"
)

// streams implements host.Streams by processes of package stream. It keeps nothing:
// what there is, the processes and their folders say, also after this agent was
// killed and another one started.
type streams struct {
	a   *Agent
	dir string
	m   *stream.Manager
	why error // why there can be none; nil where there can
}

func newStreams(a *Agent) *streams {
	s := &streams{a: a, dir: filepath.Join(a.config().Agent.RuntimeDir, "streams")}
	s.m, s.why = stream.NewManager(s.dir, s.starter(), a.rt)
	if s.why != nil && a.config().Migration.Transport == config.TransportStream {
		a.log.Error("no guest can come or go by a stream", "error", s.why) // before the first move that fails of it
	}
	return s
}

// starter chooses who the processes belong to: the service manager, where there is
// one with their unit, so that they are out of this agent's control group.
func (s *streams) starter() stream.Starter {
	if units := (systemd.Units{}); s.dir == stream.PackagedDir && systemd.Running() {
		ctx, cancel := s.a.rt.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if units.Has(ctx, "berth-stream@.service") {
			return stream.Units{Systemd: units}
		}
	}
	return stream.Children{}
}

// Dir implements host.Streams.
func (s *streams) Dir() string { return s.dir }

// Open implements host.Streams.
func (s *streams) Open(ctx context.Context, o host.StreamOrder) (host.StreamEnds, error) {
	if s.why != nil {
		return host.StreamEnds{}, s.why
	}
	c := s.a.config()
	node, err := s.a.driver.Node(ctx)
	if err != nil {
		return host.StreamEnds{}, err
	}
	if node.GuestUser == nil {
		return host.StreamEnds{}, fault.New(fault.Unavailable, "libvirt does not say as which user QEMU runs, whose sockets a stream needs")
	}
	order := stream.Order{
		ID: stream.ID{Migration: o.Migration, Attempt: o.Attempt}, Instance: o.Instance, Host: s.a.name, Peer: o.Peer,
		Ticket: stream.Ticket(o.Ticket), Lease: o.Lease, PKI: pki.Paths{CA: c.PKI.CA, Cert: c.PKI.Cert, Key: c.PKI.Key},
		QEMU: stream.Owner{UID: node.GuestUser.UID, GID: node.GuestUser.GID},
		// What stands still for too long, the move's own watch says, and not the kernel.
		DeadAfter: max(stream.DefaultDeadAfter, 2*c.Migration.StallTimeout.D()),
	}
	order.PostCopy = o.PostCopy
	if o.Address != "" {
		order.Role = stream.Source
		if order.Address, err = s.reach(o.Peer, o.Address); err != nil {
			return host.StreamEnds{}, err
		}
	} else {
		order.Role = stream.Destination
		order.FirstPort, order.LastPort = c.Migration.Ports.Range()
		if o.Port > 0 {
			order.FirstPort, order.LastPort = o.Port, o.Port
		}
		order.Libvirt, order.LibvirtURI = node.Socket, node.URI
		order.DestinationXML, order.PersistentXML = o.DestinationXML, o.PersistentXML
		if net.ParseIP(c.Migration.Address) != nil {
			order.Listen = c.Migration.Address
		}
	}
	st, err := s.m.Open(ctx, order)
	if err != nil {
		return host.StreamEnds{}, err
	}
	paths := s.m.Paths(order.ID)
	ends := host.StreamEnds{LibvirtURI: node.URI, MigrateURI: paths.MigrateURI(), DisksURI: paths.DisksURI()}
	if order.Role == stream.Source {
		ends.LibvirtURI = paths.LibvirtURI(o.LibvirtURI)
	} else {
		ends.Address = net.JoinHostPort(c.Migration.Address, strconv.Itoa(st.Port))
	}
	return ends, nil
}

// reach completes a destination's address: where it names no host, its process
// listens where its agent does.
func (s *streams) reach(peer, address string) (string, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fault.New(fault.Invalid, "the stream's address %q at %s: %w", address, peer, err)
	}
	if name == "" {
		at, _ := s.a.peers.address(peer)
		if name, _, err = net.SplitHostPort(at); err != nil {
			return "", fault.New(fault.Invalid, "the address of %s: %w", peer, err)
		}
	}
	return net.JoinHostPort(name, port), nil
}

// Renew implements host.Streams.
func (s *streams) Renew(ctx context.Context, migration string, attempt int, lease time.Duration) error {
	if s.why != nil {
		return fault.New(fault.NotFound, "there are no streams: %w", s.why)
	}
	_, err := s.m.Renew(ctx, stream.ID{Migration: migration, Attempt: attempt}, lease)
	return err
}

// Silent tells for how long the other side of an attempt's stream has acknowledged nothing;
// see package host/streams.
func (s *streams) Silent(ctx context.Context, migration string, attempt int) (time.Duration, error) {
	if s.why != nil {
		return 0, fault.New(fault.NotFound, "there are no streams: %w", s.why)
	}
	st, err := s.m.Status(ctx, stream.ID{Migration: migration, Attempt: attempt})
	return st.Silent, err
}

// Close implements host.Streams.
func (s *streams) Close(ctx context.Context, migration string, attempt int) error {
	if s.why != nil {
		return nil // none was ever started below this folder
	}
	id := stream.ID{Migration: migration, Attempt: attempt}
	s.lastWords(ctx, id)
	return s.m.Close(ctx, id)
}

// lastWords logs what a stream refused before its own log goes with it. Best effort: a
// process that does not answer is ended all the same.
func (s *streams) lastWords(ctx context.Context, id stream.ID) {
	ctx, cancel := s.a.rt.WithTimeout(ctx, wordsTimeout)
	defer cancel()
	st, err := s.m.Status(ctx, id)
	if err == nil && st.Refused > 0 {
		s.a.log.Warn("the stream refused connections", "migration", id.Migration, "attempt", id.Attempt,
			"peer", st.Peer, "refused", st.Refused, "last", st.LastRefusal)
	}
}

// wordsTimeout is short: a guest may stand still as long. Arbitrary; the process is of
// this host and does nothing long.
const wordsTimeout = 200 * time.Millisecond

// sweep removes what dead processes left. For the start, before anybody asks for a
// stream: a folder whose process is only about to live looks like one of the dead.
func (s *streams) sweep() {
	if s.why != nil {
		return
	}
	if _, err := s.m.Sweep(); err != nil {
		s.a.log.Warn("what earlier streams left could not be removed", "error", err)
	}
}

// tidy ends the processes whose migration the ledger does not know: their agent died
// before it had asked for anything by them, or after all was done. The others are
// found again when they are asked for. For the start, with a ledger that is whole.
func (s *streams) tidy(ctx context.Context) error {
	if s.why != nil {
		return nil
	}
	living, err := s.m.Find("")
	errs := []error{err}
	for _, id := range living {
		if s.known(id) {
			s.a.log.Info("found a stream", "migration", id.Migration, "attempt", id.Attempt)
			continue
		}
		s.a.log.Info("end a stream whose migration the ledger does not know", "migration", id.Migration, "attempt", id.Attempt)
		if err := s.m.Close(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("stream of migration %s: %w", id.Migration, err))
		}
	}
	return errors.Join(errs...)
}

// known says whether a verb of the migration is still to come that ends its stream:
// a destination has a claim that is arriving, or one that its move bound and has not
// finished; a source has the migration's context. A claim that is pending frees itself
// and ends nothing: nobody has been told of its stream, and the next try has another.
func (s *streams) known(id stream.ID) bool {
	if _, ok := s.a.tracker.Context(id.Migration); ok {
		return true
	}
	for _, c := range s.a.tracker.ByMigration(id.Migration) {
		if c.State != claims.Bound && c.State != claims.Pending || c.BoundFrom != nil && c.BoundFrom.Attempt == id.Attempt {
			return true
		}
	}
	return false
}
