package halvestest

import (
	"errors"
	"slices"

	"berth/internal/fault"
	"berth/migration/halves"
	pc "berth/placementclient"
)

// lostCases are evacuations: the source is dead and is asked nothing, and what the migration
// keeps of it stays until it has come back, or is forgotten.
var lostCases = []example{
	{"evacuated, in two calls; its source has come back", func(m *move) {
		m.has(m.start)
		c := m.connect(m.transport)
		_, err := c.Usages(m.t.Context(), flat) // it has negotiated
		m.must(err)
		before := c.Counters().Requests
		s, err := m.by(c).Lost(m.t.Context(), m.source(unproven))
		m.must(err)
		kept, err := m.by(c).Swap(m.t.Context(), s, m.to)
		m.must(err)
		if n := c.Counters().Requests - before; n != 2 || !halves.Same(kept, m.start) {
			m.t.Errorf("it took %d requests, want 2: %v; kept %v", n, c.Counters().Calls, kept)
		}
		m.swap(s) // again, by a process that knows of no first time
		m.hold("evacuated", m.to, m.start)
		m.used("evacuated", flat, "VCPU", 2)
		m.halfEnds(m.migration)
		m.hold("cleaned up", m.to, nil)
		m.halfEnds(m.migration)
		m.hold("cleaned up twice", m.to, nil)
	}},
	{"evacuated, and undone", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		m.swap(s)
		m.withdraw(s)
		m.hold("undone", m.start, nil)
		m.withdraw(s)
		m.hold("undone twice", m.start, nil)
	}},
	{"an evacuation that is undone before its swap", func(m *move) {
		m.has(m.start)
		m.withdraw(m.lost(nil))
		m.hold("undone", m.start, nil)
	}},
	{"an evacuation's swap that comes after its undo", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		n := m.network(holding)
		m.kind("a swap that nobody answers", m.lostSwap(n, s), fault.Unavailable)
		m.withdraw(s)
		n.deliver(m)
		m.hold("undone", m.start, nil)
	}},
	{"evacuated, every answer is lost", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		n := m.network(losing)
		_, err := m.by(m.connect(n)).Swap(m.t.Context(), s, m.to)
		m.must(err) // it was found to have landed
		m.hold("evacuated", m.to, m.start)
	}},
	{"an evacuation's undo, the first answer is lost", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		m.swap(s)
		n := m.network(func(n int) (bool, bool, bool) { return false, n == 1, false })
		m.must(m.by(m.connect(n)).Withdraw(m.t.Context(), s, m.to))
		m.hold("undone", m.start, nil)
	}},
	{"evacuated and undone, the first request of each comes twice", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		c := m.connect(m.network(func(n int) (bool, bool, bool) { return n <= 2, false, false }))
		_, err := m.by(c).Swap(m.t.Context(), s, m.to)
		m.must(err)
		m.hold("evacuated", m.to, m.start)
		m.must(m.by(c).Withdraw(m.t.Context(), s, m.to))
		m.hold("undone", m.start, nil)
	}},
	{"deleted while it was evacuated", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		m.swap(s)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		m.withdraw(s)
		m.hold("undone", nil, nil)
	}},
	{"deleted before an evacuation's swap landed", func(m *move) {
		m.has(m.start)
		s := m.lost(nil)
		n := m.network(holding)
		m.kind("a swap that nobody answers", m.lostSwap(n, s), fault.Unavailable)
		m.must(m.client.DeleteAllocations(m.t.Context(), m.instance))
		m.withdraw(s)
		n.deliver(m)
		m.hold("undone", nil, nil)
	}},
	{"a guest of a dead host that holds nothing", func(m *move) {
		_, err := m.by(m.client).Lost(m.t.Context(), m.source(proven))
		m.refusedFor(err, "allocation_missing")
		m.hold("refused", nil, nil)
	}},
	{"a guest of a dead host that is counted elsewhere too", func(m *move) {
		doubled := halves.Sum(m.start, ofBandwidth)
		m.has(doubled)
		_, err := m.by(m.client).Lost(m.t.Context(), m.source(unproven))
		m.refusedFor(err, "allocation_elsewhere", "guest_there")
		m.hold("refused", doubled, nil)
		s := m.lost(proven)
		m.swap(s)
		m.hold("evacuated", m.to, m.start)
		m.withdraw(s)
		m.hold("undone, but for what was left over", m.start, nil)
	}},
	{"evacuated by two at once", func(m *move) {
		m.has(m.start)
		first, second := m.lost(nil), m.by(m.client)
		late, err := second.Lost(m.t.Context(), m.source(nil))
		m.must(err)
		m.swap(first)
		second.Migration = id(m.next + 1000)
		there := halves.Amounts{sharing: {"VCPU": 2, "MEMORY_MB": 1024}}
		_, err = second.Swap(m.t.Context(), late, there)
		m.kind("the second swap", err, fault.GenerationConflict)
		m.must(second.Withdraw(m.t.Context(), late, there))
		m.hold("the second is undone", m.to, m.start)
		m.halfEnds(m.migration)
		m.hold("at the end", m.to, nil)
	}},
	{"evacuated onto the disk that both hosts share", func(m *move) {
		m.start = onSharing
		m.has(m.start)
		source := halves.Source{Root: sharing, Uses: func(rp string) bool { return rp == sharing || rp == pool }, ProjectID: "p", UserID: "u"}
		s, err := m.by(m.client).Lost(m.t.Context(), source)
		m.must(err)
		m.swap(s) // the pool has room for one
		m.hold("evacuated", m.to, halves.Amounts{sharing: {"VCPU": 2, "MEMORY_MB": 1024}})
		m.used("evacuated", pool, "DISK_GB", 10)
		m.withdraw(s)
		m.hold("undone", m.start, nil)
		s, err = m.by(m.client).Lost(m.t.Context(), source)
		m.must(err)
		m.swap(s)
		m.halfEnds(m.migration)
		m.hold("at the end", m.to, nil)
		m.used("at the end", pool, "DISK_GB", 10)
	}},
	{"evacuated, and its host is forgotten", func(m *move) {
		dead := id(m.next + 2000)
		made, err := m.client.CreateProvider(m.t.Context(), pc.NewProvider{Name: "halves-dead", UUID: dead})
		m.must(err)
		_, err = m.client.PutInventories(m.t.Context(), dead, pc.Inventories{Generation: made.Generation, Inventories: map[string]pc.Inventory{"VCPU": {Total: 4}}})
		m.must(err)
		m.start, m.to = halves.Amounts{dead: {"VCPU": 2}}, halves.Amounts{cell: {"VCPU": 2}}
		m.has(m.start)
		s, err := m.by(m.client).Lost(m.t.Context(), halves.Source{Root: dead})
		m.must(err)
		m.swap(s)
		m.kind("remove a provider of which a half is held", m.client.DeleteProvider(m.t.Context(), dead), fault.Busy)
		m.halfEnds(m.migration)
		m.must(m.client.DeleteProvider(m.t.Context(), dead))
		m.hold("forgotten", m.to, nil)
	}},
}

// lost is what an evacuation begins with.
func (m *move) lost(leftover halves.Leftover) halves.Start {
	m.t.Helper()
	s, err := m.by(m.client).Lost(m.t.Context(), m.source(leftover))
	m.must(err)
	return s
}

func (m *move) withdraw(s halves.Start) {
	m.t.Helper()
	m.must(m.by(m.client).Withdraw(m.t.Context(), s, m.to))
}

// halfEnds gives up what a migration keeps, as a source that has come back and whoever forgets
// one do: by a write of nothing that its generation guards.
func (m *move) halfEnds(migration string) {
	m.t.Helper()
	now, err := m.client.Allocations(m.t.Context(), migration)
	m.must(err)
	if !now.Exists() {
		return
	}
	now.Allocations, now.ConsumerType = nil, pc.ConsumerMigration
	m.must(m.client.PutAllocations(m.t.Context(), migration, now))
}

// refusedFor expects a refusal, and its reasons each once or more.
func (m *move) refusedFor(err error, codes ...string) {
	m.t.Helper()
	var got []string
	for _, r := range fault.ReasonsOf(err) {
		got = append(got, r.Code)
	}
	if slices.Sort(got); !errors.Is(err, fault.Forbidden) || !slices.Equal(slices.Compact(got), codes) {
		m.t.Errorf("refused for %v, want %v: %v", got, codes, err)
	}
}
