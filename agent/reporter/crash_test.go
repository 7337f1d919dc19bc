package reporter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/agent/reporter/reportertest"
	"berth/claims/pci"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

var errDied = errors.New("nobody is there any more")

// mortal is a bench whose agent, or its network, dies at one of its effects: each
// request, and each record that it keeps.
type mortal struct {
	*reportertest.Bench
	effects []bool // so far, and whether each was a write
	at      int    // the effect that it dies at; -1 for none
	done    bool   // that one takes place, and nobody is told
	dead    bool
}

func newMortal(t *testing.T, v placementclient.Microversion) *mortal {
	m := &mortal{Bench: reportertest.New(t, embedded(t), v), at: -1}
	m.Options.Runtime = instant{&runtime.System{}}
	keep := m.Options.Keep
	m.Options.Keep = func(ctx context.Context, r reporter.Remembered) error {
		if err := m.before(true); err != nil {
			return err
		}
		return errors.Join(keep(ctx, r), m.after())
	}
	m.Wire.Disturb(func(r *http.Request) error { return m.before(r.Method != http.MethodGet) }, func(*http.Request) error { return m.after() })
	m.Restart()
	return m
}

func (m *mortal) before(write bool) error {
	if m.dead = m.dead || len(m.effects) == m.at && !m.done; m.dead {
		return errDied
	}
	m.effects = append(m.effects, write)
	return nil
}

func (m *mortal) after() error {
	if m.dead = m.dead || len(m.effects)-1 == m.at; m.dead {
		return errDied
	}
	return nil
}

// dies has it die at an effect of the next comparison.
func (m *mortal) dies(at int, done bool) {
	m.effects, m.at, m.done = nil, at, done
	if err := m.R.Sync(m.Context()); !m.dead {
		m.Fatalf("effect %d never came: %v", at, err)
	}
	m.at, m.dead = -1, false
}

// stands is all of the host's tree and of what these consumers hold, by names.
func (m *mortal) stands(consumers []string) map[string]any {
	list, err := m.Theirs.ProvidersInTree(m.Context(), m.Root)
	m.Must(err)
	named := map[string]string{"": ""}
	for _, p := range list {
		named[p.UUID] = "host" + strings.TrimPrefix(p.Name, m.Name)
	}
	out := map[string]any{}
	for _, p := range list {
		out[named[p.UUID]] = []any{named[p.ParentProviderUUID], m.Inventories(p.UUID), m.Traits(p.UUID)}
	}
	for i, c := range consumers {
		got, err := m.Theirs.Allocations(m.Context(), c)
		m.Must(err)
		held := map[string]placementclient.Resources{}
		for rp, r := range got.Allocations {
			name, ours := named[rp]
			if !ours {
				name = "another"
			}
			held[name] = r
		}
		out[fmt.Sprint("consumer ", i)] = []any{held, got.ConsumerType, got.ProjectID, got.UserID}
	}
	return out
}

// change is what happens to a host between two comparisons.
type change struct {
	name   string
	v      placementclient.Microversion
	from   func(in *inventory.Input) // nil where nothing was reported before
	guests bool
	to     func(in *inventory.Input)
}

// begin reports what the host was, with its guests, and makes it what it is to be.
func (c change) begin(t *testing.T) (m *mortal, was inventory.Input, consumers []string) {
	m = newMortal(t, c.v)
	if c.from != nil {
		c.from(&m.In)
		m.Sync()
	}
	was = m.In
	if c.guests {
		tree, _ := m.R.Tree()
		for i, kind := range []string{placementclient.ConsumerInstance, placementclient.ConsumerInstance, placementclient.ConsumerMigration} {
			// Bound, since the cells of those that float are chosen by uuid.
			h := reportertest.Claimed(1, 512, 2)
			h.Assignment.Cells = []topology.AssignedCell{{HostCell: topology.CellID(i % 2), Shared: 1, MemoryMB: 512}}
			if i == 0 && len(m.In.Devices) > 0 {
				h.Assignment.Devices = []topology.AssignedDevice{{Address: m.In.Devices[0].Address}}
				m.In.Held = []inventory.Held{h}
				was = m.In
			}
			consumers = append(consumers, m.ID(fmt.Sprint(i)))
			m.Held[consumers[i]] = h
			m.Give(consumers[i], kind, tree.Place(h, nil))
		}
	}
	c.to(&m.In)
	return m, was, consumers
}

func changes() []change {
	device := pci.Device{
		Address: topology.PCIAddress{Bus: 0x3b, Function: 1}, Type: topology.PCITypeVF, Parent: &topology.PCIAddress{Bus: 0x3b}, Cell: 1, Managed: true,
		Tags: map[string]string{pci.TagResourceClass: "CUSTOM_NIC"},
	}
	file := []inventory.ProviderConfig{{
		Where: "a.yaml:1", UUID: inventory.ComputeNode, Inventories: map[string]placementclient.Inventory{"CUSTOM_OF_FILE": {Total: 2}}, Traits: []string{"CUSTOM_OF_FILE"},
	}}
	plain := func(*inventory.Input) {}
	card := func(in *inventory.Input) { in.Devices = []pci.Device{device} }
	flat := func(in *inventory.Input) { in.Shape = inventory.Flat }
	nested := func(in *inventory.Input) { in.Shape = inventory.Nested }
	configured := func(in *inventory.Input) { in.Config = file }
	both := func(a, b func(*inventory.Input)) func(*inventory.Input) {
		return func(in *inventory.Input) { a(in); b(in) }
	}
	return []change{
		{"a first report, flat", newest, nil, false, flat},
		{"a first report, nested", newest, nil, false, both(nested, card)},
		{"flat to nested", newest, card, true, nested},
		{"nested to flat", newest, both(nested, card), true, flat},
		{"flat to nested, at the reshaper's first microversion", 30, plain, true, nested},
		{"flat to nested, without a reshaper or guests", 28, plain, false, nested},
		{"nested to flat, without a reshaper or guests", 28, nested, false, flat},
		{"a provider config file comes", newest, plain, true, configured},
		{"a provider config file goes", newest, configured, true, func(in *inventory.Input) { in.Config = nil }},
		{"much at once", newest, both(card, configured), true, func(in *inventory.Input) {
			// The card goes, and what its guest had of it stays.
			in.Devices, in.Held, in.Config, in.Disabled, in.Reserved.MemoryMB, in.Shape = nil, nil, nil, true, 100, inventory.Nested
		}},
	}
}

const newest = placementclient.MaxMicroversion

// TestReporter_ComesToTheSameWhereverItDies: the agent at each write, its network at
// each request, before it was done or after. One comparison then makes of it what
// would have come of it without; or, where the operator has gone back to what was
// before, that.
func TestReporter_ComesToTheSameWhereverItDies(t *testing.T) {
	for _, c := range changes() {
		t.Run(c.name, func(t *testing.T) {
			m, _, consumers := c.begin(t)
			before := m.stands(consumers)
			m.effects = nil
			m.Sync()
			effects, after := m.effects, m.stands(consumers)
			for at, write := range effects {
				if raceDetector && at%12 != 0 {
					continue
				}
				for _, how := range []struct{ restart, back, done bool }{{false, false, write}, {true, false, false}, {true, false, true}, {true, true, false}, {true, true, true}} {
					if how.restart && !write || how.back && c.from == nil {
						continue // one that dies at a read has done what one has that died after the write before
					}
					m, was, consumers := c.begin(t)
					m.dies(at, how.done)
					want := after
					if how.back {
						m.In, want = was, before
					}
					if how.restart {
						m.Restart()
					}
					if err := m.R.Sync(t.Context()); err != nil {
						t.Errorf("at effect %d of %d, %+v: %v", at, len(effects), how, err)
					} else if d := cmp.Diff(want, m.stands(consumers)); d != "" {
						t.Errorf("at effect %d of %d, %+v, status %+v (-want +got):\n%s", at, len(effects), how, m.R.Status(), d)
					}
				}
			}
		})
	}
}
