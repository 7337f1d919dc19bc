package reportertest

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/claims/pci"
	"berth/placementclient"
	"berth/topology"
)

const (
	vcpu, memory, disk = placementclient.ClassVCPU, placementclient.ClassMemoryMB, placementclient.ClassDiskGB
	newest             = placementclient.MaxMicroversion
)

// Suite is what a reporter must do to every Placement. Each case has a host of its
// own; they run one after the other.
func Suite(t *testing.T, to http.RoundTripper) { run(t, to, all) }

// Database is the part of Suite in which it matters what Placement keeps its rows in:
// how many digits it gives back, and what one transaction holds together.
func Database(t *testing.T, to http.RoundTripper) {
	run(t, to, slices.DeleteFunc(slices.Clone(all), func(c example) bool { return !c.database }))
}

// example is one case of the suite, by a client that speaks up to a microversion.
type example struct {
	name     string
	v        placementclient.Microversion
	f        func(b *Bench)
	database bool
}

var all = []example{
	{"a flat tree becomes nested under its guests and flat again", newest, reshapes, true},
	{"no reshape while a guest moves", newest, waits, false},
	{"a lost answer of the reshaper", newest, loses, false},
	{"without a reshaper", 28, withoutReshaper, false},
	{"somebody allocates while it is reshaped", newest, races, true},
	{"disks of a sharing provider", newest, shares, false},
	{"what a provider config file gave goes with it", newest, configures, false},
	{"disabled, by whomever", newest, disables, false},
	{"a card with VFs comes and goes", newest, cards, false},
}

func run(t *testing.T, to http.RoundTripper, examples []example) {
	for _, c := range examples {
		t.Run(c.name, func(t *testing.T) { c.f(New(t, to, c.v)) })
	}
}

// populate gives the host two guests, and a migration consumer with the half of one
// that is leaving, whose story is over for what the reporter is told.
func populate(b *Bench) []string {
	b.Helper()
	one, two, move := b.ID("one"), b.ID("two"), b.ID("move")
	b.Place(one, Claimed(2, 1024, 5))
	b.Place(two, Claimed(1, 512, 0))
	tree, _ := b.R.Tree()
	b.Give(move, placementclient.ConsumerMigration, tree.Place(Claimed(1, 256, 1), nil))
	return []string{one, two, move}
}

func sums(b *Bench, consumers []string) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{}
	for _, c := range consumers {
		out[c] = b.Sum(c)
	}
	return out
}

// keeps requires consumers to hold the same of each class as before, where the
// tree says.
func keeps(b *Bench, before map[string]placementclient.Resources) {
	b.Helper()
	tree, _ := b.R.Tree()
	for consumer, want := range before {
		if d := cmp.Diff(want, b.Sum(consumer)); d != "" {
			b.Errorf("what consumer %s holds (-before +after):\n%s", consumer, d)
		}
		if h, guest := b.Held[consumer]; guest && !tree.Agrees(h, b.Holds(consumer)) {
			b.Errorf("guest %s holds %v, which is not its claim's place", consumer, b.Holds(consumer))
		}
	}
}

// reshapes goes there and back with all that others have set on the tree.
func reshapes(b *Bench) {
	b.In.Fixed.CPU = 16.1234567 // of which MySQL gives back 16.1235
	b.Sync()
	all := populate(b)
	// One of whom Placement does not know the type.
	old := b.ID("old")
	tree, _ := b.R.Tree()
	b.Must(b.Older.PutAllocations(b.Context(), old, placementclient.Allocations{
		Allocations: tree.Place(Claimed(1, 64, 0), nil), ProjectID: "p", UserID: "u",
	}))
	before := sums(b, append(all, old))
	b.AddTraits(b.Root, "CUSTOM_RACK_7")
	b.PutInventory(b.Root, "CUSTOM_LICENSE_"+strings.ToUpper(b.Root[:4]), placementclient.Inventory{Total: 3})
	foreign := b.ID("foreign child")
	_, err := b.Theirs.CreateProvider(b.Context(), placementclient.NewProvider{UUID: foreign, Name: b.Name + "-fpga", ParentProviderUUID: b.Root})
	b.Must(err)
	for _, shape := range []inventory.Shape{inventory.Nested, inventory.Flat} {
		b.In.Shape = shape
		b.Wire.Count()
		b.Sync()
		_, _, calls := b.Wire.Count()
		if n := countOf(calls, "POST /reshaper"); n != 1 {
			b.Errorf("to %s in %d reshapes, want 1: %v", shape, n, calls)
		}
		if n := countOf(calls, "PUT /allocations", "POST /allocations"); n != 0 {
			b.Errorf("allocations were written by themselves: %v", calls)
		}
		keeps(b, before)
		b.Equal()
		if s := b.R.Status(); s.Shape != shape || s.Waiting != nil || !s.InSync {
			b.Errorf("to %s: status %+v", shape, s)
		}
		nested := slices.Contains(b.Names(), "_NUMA0_4KiB")
		if nested != (shape == inventory.Nested) || !slices.Contains(b.Names(), "-fpga") {
			b.Errorf("to %s: providers %v", shape, b.Names())
		}
		if !slices.Contains(b.Traits(b.Root), "CUSTOM_RACK_7") || b.Inventories(b.Root)["CUSTOM_LICENSE_"+strings.ToUpper(b.Root[:4])].Total != 3 {
			b.Errorf("to %s: what others set on the root is gone: %v %v", shape, b.Traits(b.Root), b.Inventories(b.Root))
		}
		b.Steady(9)
	}
}

func countOf(calls []string, prefixes ...string) int {
	n := 0
	for _, c := range calls {
		for _, p := range prefixes {
			if strings.HasPrefix(c, p) {
				n++
			}
		}
	}
	return n
}

// waits for a move that the host knows of, and for a migration consumer.
func waits(b *Bench) {
	b.Sync()
	all := populate(b)
	before, move := sums(b, all), all[2]
	b.In.Shape, b.In.Holding = inventory.Nested, true
	b.Sync()
	b.In.Holding, b.Moving[move] = false, true
	b.Wire.Count()
	for range 3 {
		b.Sync()
		s := b.R.Status()
		tree, known := b.R.Tree()
		if s.Waiting == nil || s.Waiting.Shape != inventory.Nested || s.Waiting.Reason.Code != "reshape_move" || !known || tree.Shape != inventory.Flat || !s.InSync {
			b.Fatalf("during a move: status %+v, tree %+v", s, tree)
		}
	}
	if _, writes, calls := b.Wire.Count(); writes > 0 {
		b.Errorf("written during a move: %v", calls)
	}
	if got := b.Names(); len(got) != 1 {
		b.Errorf("providers %v", got)
	}
	delete(b.Moving, move)
	for range 8 {
		b.Sync()
	}
	keeps(b, before)
	if s := b.R.Status(); s.Shape != inventory.Nested || s.Waiting != nil {
		b.Errorf("after the move: status %+v", s)
	}
	b.Equal()
}

// loses the answer of the reshaper, and everything after it, until the agent has
// started again.
func loses(b *Bench) {
	b.Sync()
	before := sums(b, populate(b))
	b.In.Shape = inventory.Nested
	down := false
	b.Wire.Disturb(func(*http.Request) error {
		if down {
			return errors.New("connection refused")
		}
		return nil
	}, func(r *http.Request) error {
		if r.URL.Path == "/reshaper" {
			down = true
			return errors.New("connection reset by peer")
		}
		return nil
	})
	if err := b.R.Sync(b.Context()); err == nil {
		b.Fatal("a lost answer is no error")
	}
	b.Wire.Disturb(nil, nil)
	b.Restart()
	b.Sync()
	keeps(b, before)
	b.Equal()
	if s := b.R.Status(); s.Shape != inventory.Nested {
		b.Errorf("status %+v", s)
	}
}

// withoutReshaper: with guests it is refused and said, without any it is done.
func withoutReshaper(b *Bench) {
	b.Sync()
	guest := b.ID("one")
	b.Give(guest, placementclient.ConsumerInstance, map[string]placementclient.Resources{b.Root: {vcpu: 1, memory: 64}})
	b.In.Shape = inventory.Nested
	b.Sync()
	s := b.R.Status()
	if s.Waiting == nil || s.Waiting.Reason.Code != "reshaper_missing" || s.Waiting.Reason.Change == "" || s.Shape != inventory.Flat || !s.InSync {
		b.Fatalf("status %+v", s)
	}
	b.Must(b.Theirs.DeleteAllocations(b.Context(), guest))
	for range 8 {
		b.Sync()
	}
	if s := b.R.Status(); s.Waiting != nil || s.Shape != inventory.Nested {
		b.Errorf("without guests: status %+v", s)
	}
	b.Equal()
	b.Steady(5)
}

// races: a guest comes between the look and the reshape.
func races(b *Bench) {
	b.Sync()
	all := append(populate(b), b.ID("late"))
	b.In.Shape = inventory.Nested
	late := false
	b.Wire.Disturb(func(r *http.Request) error {
		if r.URL.Path == "/reshaper" && !late {
			late = true
			b.Give(b.ID("late"), placementclient.ConsumerInstance, map[string]placementclient.Resources{b.Root: {vcpu: 1, memory: 128}})
		}
		return nil
	}, nil)
	before := sums(b, all[:3])
	before[all[3]] = placementclient.Resources{vcpu: 1, memory: 128}
	b.Sync()
	keeps(b, before)
	b.Equal()
}

// shares gives the host's disks to a provider that shares them, and back.
func shares(b *Bench) {
	b.Sync()
	before := sums(b, populate(b))
	pool, aggregate := b.ID("pool"), b.ID("aggregate")
	_, err := b.Theirs.CreateProvider(b.Context(), placementclient.NewProvider{UUID: pool, Name: b.Name + "-pool"})
	b.Must(err)
	b.PutInventory(pool, disk, placementclient.Inventory{Total: 1000})
	b.AddTraits(pool, placementclient.TraitMiscSharesViaAggregate)
	b.PutAggregates(pool, aggregate)
	b.PutAggregates(b.Root, aggregate)
	for _, want := range []string{pool, b.Root} {
		for range 6 { // the generation moves, and the aggregates are owed
			b.Sync()
		}
		tree, _ := b.R.Tree()
		_, onRoot := b.Inventories(b.Root)[disk]
		if tree.Disk != want || onRoot != (want == b.Root) || b.R.Status().Disk != want {
			b.Fatalf("disks are of %s, want %s; root %v", tree.Disk, want, b.Inventories(b.Root))
		}
		keeps(b, before)
		if got := b.Holds(b.ID("one"))[want][disk]; got != 5 {
			b.Errorf("guest holds %v, want its disk on %s", b.Holds(b.ID("one")), want)
		}
		if got := b.Inventories(pool)[disk].Total; got != 1000 {
			b.Errorf("the pool's inventory was written: %d", got)
		}
		b.Steady(9)
		b.PutAggregates(b.Root)
	}
	// Of two that share none is guessed.
	other := b.ID("other pool")
	_, err = b.Theirs.CreateProvider(b.Context(), placementclient.NewProvider{UUID: other, Name: b.Name + "-pool-2"})
	b.Must(err)
	b.PutInventory(other, disk, placementclient.Inventory{Total: 1000})
	b.AddTraits(other, placementclient.TraitMiscSharesViaAggregate)
	b.PutAggregates(other, aggregate)
	b.PutAggregates(b.Root, aggregate)
	for range 6 {
		b.Sync()
	}
	s := b.R.Status()
	if s.Disk != b.Root || s.Waiting == nil || s.Waiting.Reason.Code != "sharing_ambiguous" || !strings.Contains(s.Waiting.Reason.Message, other) || !strings.Contains(s.Waiting.Reason.Message, pool) {
		b.Errorf("two that share: status %+v", s)
	}
}

// configures: also when the agent dies between Placement's write and its own.
func configures(b *Bench) {
	class := "CUSTOM_SLOT_" + strings.ToUpper(b.Root[:4])
	b.In.Config = []inventory.ProviderConfig{{
		Where: "a.yaml:1", UUID: inventory.ComputeNode,
		Inventories: map[string]placementclient.Inventory{class: {Total: 4}}, Traits: []string{"CUSTOM_" + strings.ToUpper(b.Root[:4])},
	}}
	died := false
	b.Wire.Disturb(nil, func(r *http.Request) error {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/inventories") {
			died = true
		}
		if died {
			return errors.New("connection reset by peer")
		}
		return nil
	})
	if err := b.R.Sync(b.Context()); err == nil {
		b.Fatal("a lost answer is no error")
	}
	b.Wire.Disturb(nil, nil)
	b.Restart()
	b.Sync()
	if b.Inventories(b.Root)[class].Total != 4 || !slices.Contains(b.Traits(b.Root), "CUSTOM_"+strings.ToUpper(b.Root[:4])) {
		b.Fatalf("not reported: %v %v", b.Inventories(b.Root), b.Traits(b.Root))
	}
	b.AddTraits(b.Root, "CUSTOM_BY_HAND")
	b.Sync()
	b.Steady(2)
	b.In.Config = nil
	b.Restart()
	b.Sync()
	if _, there := b.Inventories(b.Root)[class]; there || slices.Contains(b.Traits(b.Root), "CUSTOM_"+strings.ToUpper(b.Root[:4])) {
		b.Errorf("taken out of the file, and there: %v %v", b.Inventories(b.Root), b.Traits(b.Root))
	}
	if !slices.Contains(b.Traits(b.Root), "CUSTOM_BY_HAND") {
		b.Errorf("what somebody set by hand went with it: %v", b.Traits(b.Root))
	}
	b.Steady(3)
}

// disables: the operator of the host, and somebody else.
func disables(b *Bench) {
	const trait = placementclient.TraitComputeStatusDisabled
	b.In.Disabled = true
	var order []string
	b.Wire.Disturb(func(r *http.Request) error {
		if r.Method == http.MethodPut {
			order = append(order, r.URL.Path[strings.LastIndex(r.URL.Path, "/"):])
		}
		return nil
	}, nil)
	b.Sync()
	if d := cmp.Diff([]string{"/traits", "/inventories"}, order); d != "" {
		b.Errorf("a host that is disabled could have been chosen (-want +got):\n%s", d)
	}
	if !slices.Contains(b.Traits(b.Root), trait) || !b.R.Status().Disabled {
		b.Fatalf("traits %v", b.Traits(b.Root))
	}
	b.In.Disabled = false
	b.Restart()
	b.Sync()
	if slices.Contains(b.Traits(b.Root), trait) || b.R.Status().Disabled {
		b.Errorf("enabled again: traits %v", b.Traits(b.Root))
	}
	b.AddTraits(b.Root, trait)
	for _, disabled := range []bool{false, true, false} {
		b.In.Disabled = disabled
		for range 4 {
			b.Sync()
		}
		if !slices.Contains(b.Traits(b.Root), trait) || !b.R.Status().Disabled {
			b.Errorf("set by somebody else, and gone when Berth said %t: %v", disabled, b.Traits(b.Root))
		}
	}
}

// cards: a VF that a guest has stays counted when its card is gone.
func cards(b *Bench) {
	pf := topology.PCIAddress{Bus: 0x3b}
	vf := topology.PCIAddress{Bus: 0x3b, Function: 1}
	class := "CUSTOM_NIC_" + strings.ToUpper(b.Root[:4])
	b.In.Devices = []pci.Device{{
		Address: vf, Vendor: "8086", Product: "154c", Type: topology.PCITypeVF, Parent: &pf, Cell: 0, Managed: true,
		Tags: map[string]string{pci.TagResourceClass: class},
	}}
	b.Sync()
	card := b.Child("0000:3b:00.0")
	if got := b.Inventories(card)[class].Total; got != 1 || !slices.Contains(b.Traits(card), placementclient.TraitComputeManagedPCIDevice) {
		b.Fatalf("the card has %v %v", b.Inventories(card), b.Traits(card))
	}
	guest := b.ID("one")
	h := Claimed(1, 64, 0)
	h.Assignment.Devices = []topology.AssignedDevice{{Address: vf}}
	h.Consumer = guest
	b.In.Held = []inventory.Held{h}
	b.Place(guest, h)
	for _, shape := range []inventory.Shape{inventory.Nested, inventory.Flat} {
		b.In.Shape = shape
		b.Sync()
		if b.Holds(guest)[card][class] != 1 {
			b.Fatalf("to %s: the guest holds %v", shape, b.Holds(guest))
		}
		b.Equal()
	}
	// Its guest goes, and then the card.
	b.In.Held = nil
	b.In.Devices = nil
	b.Sync()
	if s := b.R.Status(); len(s.Kept) != 1 || !strings.Contains(s.Kept[0], "3b:00.0") || !s.InSync {
		b.Errorf("a card that Placement has given away: %+v", s)
	}
	if got := b.Inventories(card)[class]; got.Total != 1 || got.Reserved != 1 {
		b.Errorf("the card has %+v, want all reserved", got)
	}
	b.Steady(4)
	b.Must(b.Theirs.DeleteAllocations(b.Context(), guest))
	for range 4 {
		b.Sync()
	}
	if got := b.Names(); len(got) != 1 || len(b.R.Status().Kept) != 0 {
		b.Errorf("providers %v, %+v", got, b.R.Status())
	}
}
