package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// forwarder is the process of one side of one attempt's stream (package stream): it
// outlives its agent, lets in who has the ticket, and ends by its order, by a lease
// without a connection, or with its machine.
type forwarder struct {
	on        *machine
	order     host.StreamOrder
	until     time.Duration // its lease, while nobody is connected
	connected bool
	ended     bool
	kept      bool // the other half of a guest is behind it, and no lease ends it
}

func (f *forwarder) alive(now time.Duration) bool {
	kept := f.kept || f.order.PostCopy && f.order.Address != "" // a source's second process
	return !f.ended && (f.connected || kept || now < f.until)
}

// uri is what a source's libvirt opens to come by a stream.
func uri(to, migration string, attempt int) string {
	return fmt.Sprintf("qemu+stream://%s/%s/%d", to, migration, attempt)
}

// streams are a machine's forwarders as one life of its agent orders them.
type streams struct{ a *agent }

var _ host.Streams = streams{}

// Dir implements host.Streams.
func (streams) Dir() string { return "/run/berth/streams" }

// find gives the forwarder of an attempt; nil for none that lives.
func (m *machine) find(migration string, attempt int) *forwarder {
	for _, f := range m.forwarders {
		if f.order.Migration == migration && f.order.Attempt == attempt && f.alive(m.w.sim.Elapsed()) {
			return f
		}
	}
	return nil
}

// Open implements host.Streams.
func (s streams) Open(_ context.Context, o host.StreamOrder) (host.StreamEnds, error) {
	a, w := s.a, s.a.w
	ends := host.StreamEnds{
		Address: a.m.name + ":1", LibvirtURI: uri(a.m.name, o.Migration, o.Attempt), MigrateURI: "unix:memory", DisksURI: "unix:disks",
	}
	if o.Address != "" {
		ends.Address, ends.LibvirtURI = "", o.LibvirtURI
	}
	how := w.before(a, ofStream, "stream open "+o.Migration)
	if how == refused || how == requestLost {
		return host.StreamEnds{}, fault.New(fault.Unavailable, "start the stream of migration %s: the process does not come up", o.Migration)
	}
	f := a.m.find(o.Migration, o.Attempt)
	if f != nil {
		was, is := f.order, o
		was.Lease, is.Lease = 0, 0
		if was != is {
			return host.StreamEnds{}, fault.New(fault.Exists, "a stream of migration %s runs, and was asked for otherwise", o.Migration)
		}
	} else {
		f = &forwarder{on: a.m, order: o}
		a.m.forwarders = append(a.m.forwarders, f)
	}
	f.until = w.sim.Elapsed() + o.Lease
	w.after(a, ofStream, "stream open "+o.Migration)
	if how == answerLost {
		return host.StreamEnds{}, fault.New(fault.Unavailable, "start the stream of migration %s: no answer", o.Migration)
	}
	return ends, nil
}

// Renew implements host.Streams.
func (s streams) Renew(_ context.Context, migration string, attempt int, lease time.Duration) error {
	f := s.a.m.find(migration, attempt)
	if f == nil {
		return fault.New(fault.NotFound, "no stream of migration %s", migration)
	}
	f.until = max(f.until, s.a.w.sim.Elapsed()+lease)
	return nil
}

// Close implements host.Streams.
func (s streams) Close(_ context.Context, migration string, attempt int) error {
	a, w := s.a, s.a.w
	f := a.m.find(migration, attempt)
	if f == nil {
		return nil
	}
	how := w.before(a, ofStream, "stream close "+migration)
	if how == refused || how == requestLost {
		return fault.New(fault.Unavailable, "end the stream of migration %s: no answer", migration)
	}
	f.ended = true
	w.after(a, ofStream, "stream close "+migration)
	if how == answerLost {
		return fault.New(fault.Unavailable, "end the stream of migration %s: no answer", migration)
	}
	return nil
}

// tidy is agent.(*streams).tidy: it ends the forwarders of whose migration no verb is
// still to come.
func (a *agent) tidy(ctx context.Context) error {
	for _, f := range slices.Clone(a.m.forwarders) {
		if !f.alive(a.w.sim.Elapsed()) || a.knows(f.order) {
			continue
		}
		if err := (streams{a}).Close(ctx, f.order.Migration, f.order.Attempt); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) knows(o host.StreamOrder) bool {
	if _, ok := a.tracker.Context(o.Migration); ok {
		return true
	}
	return slices.ContainsFunc(a.tracker.ByMigration(o.Migration), func(c claims.Claim) bool {
		return c.State != claims.Bound && c.State != claims.Pending || c.BoundFrom != nil && c.BoundFrom.Attempt == o.Attempt
	})
}

// journey is a guest's way by a stream, from the moment in which libvirt begins.
type journey struct {
	source, dest *forwarder
}

// admitted is asked when a source's libvirt comes to a destination's: by a stream, or
// by libvirt's own TLS, where the guard asks the ledger.
func (w *world) admitted(m *machine, uuid string) error {
	l := w.leaving[uuid]
	delete(w.journeys, uuid)
	if !w.story.Streams {
		if !w.awaited(m, uuid) {
			return fault.New(fault.Forbidden, "no claim on %s awaits %s", m.name, uuid)
		}
		return nil
	}
	source, dest := l.from.find(l.migration, l.attempt), m.find(l.migration, l.attempt)
	switch {
	case source == nil || dest == nil:
		return fault.New(fault.Unavailable, "unable to connect to server at %s: no such stream", m.name)
	case source.order.Ticket != dest.order.Ticket || source.order.Peer != m.name || dest.order.Peer != l.from.name || dest.order.Instance != uuid:
		return fault.New(fault.Forbidden, "%s turns the stream of %s away", m.name, l.migration)
	}
	source.connected, dest.connected = true, true
	w.journeys[uuid] = journey{source, dest}
	return nil
}

// departure is where and by what a guest was last sent.
type departure struct {
	from      *machine
	migration string
	attempt   int
}

// broken says whether a guest's stream has ended under it.
func (w *world) broken(uuid string) bool {
	j, by := w.journeys[uuid]
	return by && (j.source.ended || j.dest.ended)
}

// jobOver lets the streams of a guest whose job is over be without a connection.
func (w *world) jobOver(uuid string) {
	w.disconnect(uuid)
}

// disconnect is the end of the connections by which a guest travels.
func (w *world) disconnect(uuid string) {
	if j, by := w.journeys[uuid]; by {
		j.source.connected, j.dest.connected = false, false
		delete(w.journeys, uuid)
	}
}

// killForwarder kills a stream's process.
func (m *machine) killForwarder() {
	for _, f := range m.forwarders {
		if f.alive(m.w.sim.Elapsed()) {
			m.w.fault(m.name, "stream of "+f.order.Migration+" killed")
			f.ended = true
			return
		}
	}
}

// streamsLeft holds that no forwarder is left when its migration is over.
func (w *world) streamsLeft(m *machine) {
	for _, f := range m.forwarders {
		if f.alive(w.sim.Elapsed()) {
			w.violate("at the end %s has the stream of attempt %d of migration %s (connected %v)", m.name, f.order.Attempt, f.order.Migration, f.connected)
		}
	}
}

// transport is how guests travel in a story.
func (s *Story) transport() migration.Transport {
	if s.Streams {
		return migration.TransportStream
	}
	return migration.TransportLibvirtTLS
}
