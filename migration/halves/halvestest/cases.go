package halvestest

import (
	"context"
	"errors"
	"maps"

	"berth/internal/fault"
	"berth/migration/halves"
	pc "berth/placementclient"
)

func proven(context.Context, []string) error { return nil }

func unproven(context.Context, []string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "guest_there", Message: "host b has something of the guest"})
}

func silent(context.Context, []string) error {
	return fault.Refuse(fault.Unavailable, "", fault.Reason{Code: "host_silent", Message: "host b does not answer"})
}

// example is one way in which a move goes.
type example struct {
	name string
	run  func(m *move)
}

var cases = []example{
	{"moved, in three calls", func(m *move) {
		m.has(m.start)
		// A client of its own, whose calls are counted; it has negotiated.
		c := m.connect(m.transport)
		_, err := c.Usages(m.t.Context(), flat)
		m.must(err)
		before := c.Counters().Requests
		s, err := m.by(c).Settle(m.t.Context(), m.source(nil), nil)
		m.must(err)
		kept, err := m.by(c).Swap(m.t.Context(), s, m.to)
		m.must(err)
		m.hold("while it moves", m.to, m.start)
		if !halves.Same(kept, m.start) {
			m.t.Errorf("the swap says that %v is kept", kept)
		}
		m.must(m.by(c).Finish(m.t.Context(), m.undo(s), nil))
		m.hold("at the end", m.to, nil)
		if n := c.Counters().Requests - before; n != 3 {
			m.t.Errorf("the move took %d requests, want 3: %v", n, c.Counters().Calls)
		}
		// Each step may be asked for again by another process.
		m.must(m.by(c).Finish(m.t.Context(), m.undo(s), proven))
		m.hold("at the end", m.to, nil)
	}},
	{"healed, moved and undone", func(m *move) {
		m.has(halves.Amounts{flat: {"VCPU": 1}})
		s := m.settled()
		m.hold("healed", m.start, nil)
		if s.Held.ProjectID != "p" || s.Held.UserID != "u" {
			m.t.Errorf("healed, it is of project %s and user %s, want those that it had", s.Held.ProjectID, s.Held.UserID)
		}
		m.swap(s)
		m.swap(s) // again, by a process that knows of no first time
		m.hold("while it moves", m.to, m.start)
		m.back(s)
		m.hold("undone", m.start, nil)
		m.back(s)
		m.hold("undone twice", m.start, nil)
	}},
	{"nobody knows of it in Placement", func(m *move) {
		s := m.settled()
		m.hold("healed", m.start, nil)
		if s.Held.ProjectID != "host's" || s.Held.UserID != "host's" {
			m.t.Errorf("it is of project %s and user %s, want those of the claim", s.Held.ProjectID, s.Held.UserID)
		}
		m.swap(s)
		m.finish(s, nil)
		m.hold("at the end", m.to, nil)
	}},
	{"a disk that both hosts share is counted once", func(m *move) {
		m.start = onSharing
		m.has(m.start)
		s := halves.Start{Held: m.read()}
		m.swap(s) // the pool has room for one
		m.hold("while it moves", m.to, halves.Amounts{sharing: {"VCPU": 2, "MEMORY_MB": 1024}})
		m.used("while it moves", pool, "DISK_GB", 10)
		m.back(s)
		m.hold("undone", m.start, nil)
		m.swap(halves.Start{Held: m.read()})
		m.finish(s, nil)
		m.hold("at the end", m.to, nil)
		m.used("at the end", pool, "DISK_GB", 10)
	}},
	{"grown on a full host", func(m *move) {
		m.start, m.to = halves.Amounts{full: {"VCPU": 3, "MEMORY_MB": 2048}}, halves.Amounts{full: {"VCPU": 4, "MEMORY_MB": 4096}}
		m.has(m.start)
		s := halves.Start{Held: m.read()}
		c := m.connect(m.transport)
		kept, err := m.by(c).Swap(m.t.Context(), s, m.to)
		m.must(err)
		half := pc.Allocations{Allocations: ofBandwidth, ProjectID: "p", UserID: "u", ConsumerType: pc.ConsumerMigration}
		m.must(c.PutAllocations(m.t.Context(), m.migration, half))
		if n := c.Counters().Orphans; n != 0 {
			m.t.Error("the half that is empty was written: it left an orphan consumer")
		}
		m.must(c.DeleteAllocations(m.t.Context(), m.migration))
		if kept == nil || len(kept) != 0 {
			m.t.Errorf("kept %v, want nothing, said", kept)
		}
		m.hold("while it is resized", m.to, nil)
		m.back(s)
		m.hold("reverted", m.start, nil)
		m.swap(halves.Start{Held: m.read()})
		before := c.Counters().Requests
		m.must(m.by(c).Finish(m.t.Context(), m.undo(s), nil))
		if n := c.Counters().Requests - before; n != 0 {
			m.t.Errorf("the end of a move that keeps nothing took %d requests", n)
		}
		m.hold("confirmed", m.to, nil)
	}},
	{"shrunk and grown on a full host", func(m *move) {
		m.start, m.to = halves.Amounts{full: {"VCPU": 4, "MEMORY_MB": 1024}}, halves.Amounts{full: {"VCPU": 1, "MEMORY_MB": 4096}}
		m.has(m.start)
		s := halves.Start{Held: m.read()}
		m.swap(s)
		m.hold("while it is resized", m.to, halves.Amounts{full: {"VCPU": 3}})
		m.used("while it is resized", full, "VCPU", 4)
		m.used("while it is resized", full, "MEMORY_MB", 4096)
		m.back(s)
		m.hold("reverted", m.start, nil)
		m.swap(halves.Start{Held: m.read()})
		m.finish(s, nil)
		m.hold("confirmed", m.to, nil)
	}},
	{"more than the host has is refused", func(m *move) {
		m.start, m.to = halves.Amounts{full: {"VCPU": 4}}, halves.Amounts{full: {"VCPU": 5}}
		m.has(m.start)
		s := halves.Start{Held: m.read()}
		_, err := m.by(m.client).Swap(m.t.Context(), s, m.to)
		m.kind("grow past the host", err, fault.DoesNotFit)
		m.back(s)
		m.hold("undone", m.start, nil)
	}},
	{"refused for room, while a copy of it is on its way", func(m *move) {
		m.to = halves.Amounts{full: {"VCPU": 5}}
		m.has(m.start)
		s := m.settled()
		n := m.network(func(n int) (bool, bool, bool) { return false, false, n == 1 })
		_, err := m.by(m.connect(n)).Swap(m.t.Context(), s, m.to)
		m.kind("the swap", err, fault.DoesNotFit)
		if errors.Is(err, halves.ErrNothingWritten) {
			m.t.Errorf("it is said to be certain that nothing is on its way: %v", err)
		}
		_, err = m.by(m.client).Swap(m.t.Context(), s, m.to)
		if !errors.Is(err, halves.ErrNothingWritten) {
			m.t.Errorf("with a network that loses nothing it is not said to be certain that nothing was written: %v", err)
		}
		m.back(s)
		n.deliver(m)
		m.hold("undone", m.start, nil)
	}},
	{"the first answer is lost", func(m *move) {
		m.has(m.start)
		s := m.settled()
		n := m.network(func(n int) (bool, bool, bool) { return false, n%2 == 1, false })
		c := m.connect(n)
		_, err := m.by(c).Swap(m.t.Context(), s, m.to)
		m.must(err)
		m.hold("while it moves", m.to, m.start)
		m.must(m.by(c).Back(m.t.Context(), m.undo(s)))
		m.hold("undone", m.start, nil)
	}},
	{"every request comes twice", func(m *move) {
		m.has(m.start)
		s := m.settled()
		c := m.connect(m.network(func(int) (bool, bool, bool) { return true, false, false }))
		_, err := m.by(c).Swap(m.t.Context(), s, m.to)
		m.must(err)
		m.hold("while it moves", m.to, m.start)
		m.must(m.by(c).Back(m.t.Context(), m.undo(s)))
		m.hold("undone", m.start, nil)
	}},
	{"every answer is lost", func(m *move) {
		m.has(m.start)
		s := m.settled()
		_, err := m.by(m.connect(m.network(losing))).Swap(m.t.Context(), s, m.to)
		m.must(err) // it was found to have landed
		m.hold("while it moves", m.to, m.start)
		m.back(s)
		m.hold("undone", m.start, nil)
	}},
	{"a swap that comes after its undo", func(m *move) {
		m.has(m.start)
		s := m.settled()
		n := m.network(holding)
		m.kind("a swap that nobody answers", m.lostSwap(n, s), fault.Unavailable)
		m.back(s)
		n.deliver(m)
		m.hold("undone", m.start, nil)
	}},
	{"deleted while it moved", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.swap(s)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		m.guest = halves.Gone
		m.back(s)
		m.hold("undone", nil, nil)
	}},
	{"deleted before its swap landed", func(m *move) {
		m.has(m.start)
		s := m.settled()
		n := m.network(holding)
		m.kind("a swap that nobody answers", m.lostSwap(n, s), fault.Unavailable)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		m.guest = halves.Gone
		m.back(s)
		n.deliver(m)
		m.hold("undone", nil, nil)
	}},
	{"undefined while it moved", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.swap(s)
		m.guest = halves.Gone
		m.back(s)
		m.hold("undone", nil, nil)
	}},
	{"its allocation deleted, though it runs", func(m *move) {
		m.has(m.start)
		s := m.settled()
		n := m.network(holding)
		m.kind("a swap that nobody answers", m.lostSwap(n, s), fault.Unavailable)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		m.back(s)
		// The consumer that was made again begins at the generation that it was sent with.
		n.deliver(m)
		m.hold("undone", m.start, nil)
	}},
	{"its allocation deleted after many writes, and every request comes twice", func(m *move) {
		for range 4 {
			m.has(m.start)
		}
		s := m.settled()
		late := m.network(holding)
		m.kind("a swap that nobody answers", m.lostSwap(late, s), fault.Unavailable)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		c := m.connect(m.network(func(int) (bool, bool, bool) { return true, false, false }))
		m.must(m.by(c).Back(m.t.Context(), m.undo(s)))
		if is, was := *m.read().ConsumerGeneration, *s.Held.ConsumerGeneration; is <= was {
			m.t.Errorf("undone, its generation is %d: a swap sent with %d may find its own", is, was)
		}
		late.deliver(m)
		m.hold("undone", m.start, nil)
	}},
	{"its token left by another move", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.swap(s)
		// By a host that speaks of no types: it reads as of unknown type, which cannot be written.
		older, err := pc.New(pc.Config{URL: m.url, Token: "admin", Transport: m.transport, MaxVersion: 37})
		m.must(err)
		m.t.Cleanup(older.Close)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		m.must(older.PutAllocations(m.t.Context(), m.instance, pc.Allocations{Allocations: onSharing, ProjectID: "p", UserID: "u"}))
		m.guest = halves.Elsewhere
		m.back(s)
		m.hold("undone", onSharing, nil)
	}},
	{"written by somebody else in between", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.has(halves.Amounts{flat: {"VCPU": 4}})
		_, err := m.by(m.client).Swap(m.t.Context(), s, m.to)
		m.kind("the swap", err, fault.GenerationConflict)
		m.back(s)
		m.hold("undone", m.start, nil)
	}},
	{"its host changed its shape while it was away", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.swap(s)
		now := halves.Amounts{sharing: {"VCPU": 2, "MEMORY_MB": 1024}, pool: {"DISK_GB": 10}}
		set := map[string]pc.Allocations{}
		for consumer, holds := range map[string]halves.Amounts{m.migration: now, m.instance: {cell: {"VCPU": 2}, pages: {"MEMORY_MB": 1024}, flat: {"DISK_GB": 10}}} {
			a, err := m.client.Allocations(m.t.Context(), consumer)
			m.must(err)
			a.Allocations = holds
			set[consumer] = a
		}
		m.must(m.client.PostAllocations(m.t.Context(), set))
		m.back(s)
		m.hold("undone, to what was kept", now, nil)
	}},
	{"its host changed its shape before the swap", func(m *move) {
		// The small host has no disks: it stands for a root that lost them to another provider.
		m.start = halves.Amounts{full: {"VCPU": 2, "DISK_GB": 5}}
		now := halves.Amounts{full: {"VCPU": 2}, pool: {"DISK_GB": 5}}
		m.has(now)
		s := halves.Start{Held: m.read()}
		s.Held.Allocations = m.start
		m.has(halves.Sum(now, ofBandwidth)) // the reshape's write
		_, err := m.by(m.client).Swap(m.t.Context(), s, m.to)
		m.kind("the swap", err, fault.GenerationConflict)
		m.both = func(rp string) bool { return rp == full } // as it described itself before
		m.counted = halves.Amounts{full: {"VCPU": 1}, pool: {"DISK_GB": 5}}
		m.kind("undone by a claim of less", m.by(m.client).Back(m.t.Context(), m.undo(s)), fault.DoesNotFit)
		m.counted = now
		m.back(s)
		m.hold("undone", halves.Sum(now, ofBandwidth), nil)
	}},
	{"written as the swap would by somebody else", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.has(m.to)
		_, err := m.by(m.client).Swap(m.t.Context(), s, m.to)
		m.kind("the swap, of which no half is kept,", err, fault.GenerationConflict)
		m.hold("refused", m.to, nil)
	}},
	{"somebody else's provider is left alone", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.swap(s)
		m.has(halves.Sum(m.to, ofBandwidth))
		m.back(s)
		m.hold("undone", halves.Sum(m.start, ofBandwidth), nil)
	}},
	{"doubled before, moved there", func(m *move) {
		m.has(halves.Sum(m.start, m.to))
		_, err := m.by(m.client).Settle(m.t.Context(), m.source(nil), nil)
		m.kind("with nobody to ask", err, fault.Forbidden)
		for name, leftover := range map[string]halves.Leftover{"with a guest there": unproven, "with a silent host": silent} {
			_, err = m.by(m.client).Settle(m.t.Context(), m.source(leftover), nil)
			m.kind(name, err, fault.Forbidden)
			if n := len(fault.ReasonsOf(err)); n != 4 {
				m.t.Errorf("%s: %d reasons, want each provider and why", name, n)
			}
		}
		m.hold("refused", halves.Sum(m.start, m.to), nil)
		s, err := m.by(m.client).Settle(m.t.Context(), m.source(proven), nil)
		m.must(err)
		m.hold("proven", halves.Sum(m.start, m.to), nil)
		m.swap(s)
		m.hold("while it moves", m.to, m.start)
		m.finish(s, nil)
		m.hold("at the end", m.to, nil)
	}},
	{"doubled before, given up before the swap", func(m *move) {
		m.has(halves.Sum(halves.Sum(m.start, m.to), ofBandwidth))
		m.both = func(rp string) bool { return rp == flat }
		s, err := m.by(m.client).Settle(m.t.Context(), m.source(func(_ context.Context, rps []string) error { return nil }), nil)
		m.must(err)
		s.Found = halves.Sum(m.start, m.to) // the license was no part of what was proven
		m.back(s)
		m.hold("undone", halves.Sum(m.start, ofBandwidth), nil)
	}},
	{"doubled by other hands, finished", func(m *move) {
		m.has(m.start)
		s := m.settled()
		doubled := halves.Sum(halves.Sum(m.start, m.to), ofBandwidth)
		m.has(doubled)
		m.finish(s, unproven) // the guest is back there: its half is right
		m.hold("with a guest there", doubled, nil)
		m.kind("with a silent host", m.by(m.client).Finish(m.t.Context(), m.undo(s), silent), fault.Unavailable)
		m.finish(s, proven)
		m.hold("finished", halves.Sum(m.to, ofBandwidth), nil)
	}},
	{"doubled by other hands, reverted", func(m *move) {
		m.has(m.start)
		s := m.settled()
		m.has(halves.Sum(m.start, m.to))
		m.back(s)
		m.hold("reverted", m.start, nil)
	}},
	{"doubled on a shared disk too, finished", func(m *move) {
		m.start = onSharing
		m.to = halves.Amounts{cell: {"VCPU": 2}, pages: {"MEMORY_MB": 1024}, pool: {"DISK_GB": 5}}
		m.start = halves.Amounts{sharing: {"VCPU": 2, "MEMORY_MB": 1024}, pool: {"DISK_GB": 5}}
		m.has(halves.Sum(m.start, m.to))
		s := halves.Start{Held: m.read()}
		s.Held.Allocations = maps.Clone(m.start)
		m.finish(s, proven)
		m.hold("finished", m.to, nil)
	}},
}

// read is what the instance holds now.
func (m *move) read() pc.Allocations {
	m.t.Helper()
	a, err := m.client.Allocations(m.t.Context(), m.instance)
	m.must(err)
	return a
}

// lostSwap is a swap that is kept back on its way, by a process that dies of it.
func (m *move) lostSwap(n *network, s halves.Start) error {
	m.t.Helper()
	c := m.connect(n)
	set := map[string]pc.Allocations{}
	to, half := s.Held.Clone(), s.Held.Clone()
	to.Allocations, to.ConsumerType = m.to, pc.ConsumerInstance
	half.ConsumerGeneration, half.ConsumerType = nil, pc.ConsumerMigration
	set[m.instance], set[m.migration] = to, half
	if err := c.PostAllocations(m.t.Context(), set); err != nil {
		if fault.KindOf(err) == fault.InDoubt {
			return fault.New(fault.Unavailable, "%w", err)
		}
		return err
	}
	return nil
}
