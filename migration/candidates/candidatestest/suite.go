// Package candidatestest holds what destination choice must find in a Placement,
// the embedded one and OpenStack's alike: one small fleet of every kind of host,
// and wishes with the hosts that are found for them, in order.
package candidatestest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration/candidates"
	pc "berth/placementclient"
	"berth/topology"
)

// id is a uuid that says which of the made-up ones it is.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-0000ca%06d", n) }

const (
	rack, fast, slow, unset = "CUSTOM_RACK_1", "CUSTOM_FAST", "CUSTOM_SLOW", "CUSTOM_UNSET"
	island                  = "CUSTOM_ISLAND"
	gpuClass, nicClass      = "CUSTOM_PCI_10DE_2330", "CUSTOM_NIC"
)

// provider is one of the fleet. Its uuid is id of its place.
type provider struct {
	name, parent string
	inventory    map[string]pc.Inventory
	traits       string
	aggregate    bool
	used         pc.Resources
}

func amounts(pairs ...any) map[string]pc.Inventory {
	out := map[string]pc.Inventory{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(string)] = pc.Inventory{Total: int64(pairs[i+1].(int))}
	}
	return out
}

// pages are MEMORY_MB in whole pages.
func pages(mb, page int64) map[string]pc.Inventory {
	return map[string]pc.Inventory{pc.ClassMemoryMB: {Total: mb, MinUnit: page, StepSize: page}}
}

var huge, small = pc.TraitPageSizeLarge + " " + pc.TraitPageSize(2<<20), pc.TraitPageSizeSmall + " " + pc.TraitPageSize(4<<10)

// fleet is hosts of each kind; what is allocated gives them an order.
var fleet = []provider{
	{name: "flat-a", inventory: amounts("VCPU", 16, "PCPU", 4, "MEMORY_MB", 16384, "DISK_GB", 100), traits: "COMPUTE_NODE HW_CPU_HYPERTHREADING " + rack, used: pc.Resources{"MEMORY_MB": 11000}},
	{name: "flat-a_gpu0", parent: "flat-a", inventory: amounts(gpuClass, 1)},
	{name: "flat-a_gpu1", parent: "flat-a", inventory: amounts(gpuClass, 1)},
	{name: "flat-b", inventory: amounts("VCPU", 64, "MEMORY_MB", 65536, "DISK_GB", 500), traits: "COMPUTE_NODE", used: pc.Resources{"MEMORY_MB": 1024}},
	{name: "flat-b_nic", parent: "flat-b", inventory: amounts(nicClass, 8), traits: fast},
	{name: "flat-off", inventory: amounts("VCPU", 64, "MEMORY_MB", 65536, "DISK_GB", 500), traits: "COMPUTE_NODE " + pc.TraitComputeStatusDisabled},
	{name: "flat-full", inventory: amounts("VCPU", 2, "MEMORY_MB", 16384, "DISK_GB", 100), traits: "COMPUTE_NODE " + rack, used: pc.Resources{"VCPU": 2}},
	{name: "nested", inventory: amounts("DISK_GB", 100), traits: "COMPUTE_NODE HW_CPU_HYPERTHREADING " + rack},
	{name: "nested_NUMA0", parent: "nested", inventory: amounts("VCPU", 4, "PCPU", 4), traits: pc.TraitHWNUMARoot},
	{name: "nested_NUMA0_4K", parent: "nested_NUMA0", inventory: pages(2048, 1), traits: small, used: pc.Resources{"MEMORY_MB": 1536}},
	{name: "nested_NUMA0_2M", parent: "nested_NUMA0", inventory: pages(1024, 2), traits: huge},
	{name: "nested_NUMA1", parent: "nested", inventory: amounts("VCPU", 4, "PCPU", 4), traits: pc.TraitHWNUMARoot},
	{name: "nested_NUMA1_4K", parent: "nested_NUMA1", inventory: pages(2048, 1), traits: small, used: pc.Resources{"MEMORY_MB": 1024}},
	{name: "nested_NUMA1_2M", parent: "nested_NUMA1", inventory: pages(1024, 2), traits: huge, used: pc.Resources{"MEMORY_MB": 1022}},
	{name: "nested_NUMA1_gpu", parent: "nested_NUMA1", inventory: amounts(gpuClass, 1)},
	{name: "shared-d", inventory: amounts("VCPU", 16, "MEMORY_MB", 16384), traits: "COMPUTE_NODE", aggregate: true, used: pc.Resources{"MEMORY_MB": 12288}},
	{name: "pool", inventory: amounts("DISK_GB", 1000), traits: pc.TraitMiscSharesViaAggregate, aggregate: true, used: pc.Resources{"DISK_GB": 995}},
}

// islands are hosts that are found by their trait alone: one of which CPUs are free
// where memory is not, and one with nothing of its own but CPUs and memory.
var islands = []provider{
	{name: "split", traits: "COMPUTE_NODE " + island},
	{name: "split_NUMA0", parent: "split", inventory: amounts("VCPU", 4), traits: pc.TraitHWNUMARoot},
	{name: "split_NUMA0_4K", parent: "split_NUMA0", inventory: pages(1024, 1), traits: small, used: pc.Resources{"MEMORY_MB": 1024}},
	{name: "split_NUMA1", parent: "split", inventory: amounts("VCPU", 4), traits: pc.TraitHWNUMARoot},
	{name: "split_NUMA1_4K", parent: "split_NUMA1", inventory: pages(1024, 1), traits: small, used: pc.Resources{"MEMORY_MB": 1024}},
	{name: "split_NUMA2", parent: "split", inventory: amounts("VCPU", 4), traits: pc.TraitHWNUMARoot, used: pc.Resources{"VCPU": 4}},
	{name: "split_NUMA2_4K", parent: "split_NUMA2", inventory: pages(4096, 1), traits: small},
	{name: "nested-d", traits: "COMPUTE_NODE " + island, aggregate: true},
	{name: "nested-d_NUMA0", parent: "nested-d", inventory: amounts("VCPU", 4, "PCPU", 4), traits: pc.TraitHWNUMARoot},
	{name: "nested-d_NUMA0_4K", parent: "nested-d_NUMA0", inventory: pages(300, 1), traits: small},
	{name: "nested-d_NUMA0_2M", parent: "nested-d_NUMA0", inventory: pages(1024, 2), traits: huge},
	{name: "nested-d_NUMA0_vgpu", parent: "nested-d_NUMA0", inventory: amounts("VGPU", 4), traits: fast},
}

// guest is of two vCPUs that float.
var guest = topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 1}

func cell(memoryMB int64, vcpus string, page topology.PageRequest) topology.GuestCell {
	set, err := topology.ParseCPUSet(vcpus)
	if err != nil {
		panic(err) // a constant of this file
	}
	return topology.GuestCell{DedicatedVCPUs: set, CPUPolicy: topology.CPUPolicyDedicated, MemoryMB: memoryMB, PageSize: page}
}

func guestCells(c ...topology.GuestCell) (topology.Resources, *topology.GuestTopology) {
	t := &topology.GuestTopology{Cells: c}
	r := topology.Resources{DiskGB: 1}
	r.VCPUs, r.PCPUs = t.CPUs()
	for _, one := range c {
		r.MemoryMB += one.MemoryMB
	}
	return r, t
}

func device(spec ...topology.PCISpec) []topology.PCIRequest {
	return []topology.PCIRequest{{ID: "dev", Count: 1, Affinity: topology.AffinityRequired, Specs: spec}}
}

type wished struct {
	name string
	wish candidates.Wish
	want string // names, best first; "!" and the codes of a refusal
}

func wishes() []wished {
	gpu := topology.PCISpec{Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction}
	nic := topology.PCISpec{Tags: map[string]string{"resource_class": nicClass, "trait:" + fast: "required"}, Type: topology.PCITypeVF}
	specs := func(r topology.Resources, pairs ...string) candidates.Wish {
		w := candidates.Wish{Resources: r, ExtraSpecs: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			w.ExtraSpecs[pairs[i]] = pairs[i+1]
		}
		return w
	}
	of := func(devices []topology.PCIRequest, c ...topology.GuestCell) candidates.Wish {
		w := candidates.Wish{Resources: guest, Devices: devices}
		if len(c) > 0 {
			w.Resources, w.Topology = guestCells(c...)
		}
		return w
	}
	disk := candidates.Disk{Provider: id(16), Aggregates: []string{id(900)}}
	tight := cell(600, "0-1", topology.PagesDefault)
	pinned := cell(256, "0-1", topology.PagesDefault)
	pinned2 := cell(256, "2-3", topology.PagesDefault)
	onHuge := cell(512, "0-1", topology.PagesLarge)
	return []wished{
		{"a guest that floats", candidates.Wish{Resources: guest}, "flat-b nested flat-a shared-d"},
		{"more than any cell", candidates.Wish{Resources: topology.Resources{VCPUs: 6, MemoryMB: 1400, DiskGB: 1}}, "flat-b nested flat-a shared-d"},
		{"more CPUs than all cells", candidates.Wish{Resources: topology.Resources{VCPUs: 9, MemoryMB: 512, DiskGB: 1}}, "flat-b flat-a shared-d"},
		{"more memory than all cells, but for huge pages", candidates.Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1600, DiskGB: 1}}, "flat-b flat-a shared-d"},
		{"more disk than the pool has", candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 50}}, "flat-b nested flat-a"},
		{"its disk is in the pool already", candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 50}, Disk: disk}, "shared-d flat-b nested flat-a"},
		{"a host that is nowhere", candidates.Wish{Resources: topology.Resources{VCPUs: 500, MemoryMB: 512}}, ""},
		{"one cell", of(nil, pinned), "nested flat-a"},
		{"one cell that only the second has", of(nil, tight), "nested flat-a"},
		{"one cell that none has", of(nil, cell(1200, "0-1", topology.PagesDefault)), "flat-a"},
		{"two cells", of(nil, pinned, pinned2), "nested flat-a"},
		{"two cells, and one has room", of(nil, tight, cell(600, "2-3", topology.PagesDefault)), "flat-a"},
		{"large pages", of(nil, onHuge), "nested flat-a"},
		{"large pages of no whole number", of(nil, cell(511, "0-1", topology.PagesLarge)), "flat-a"},
		{"pages of a size", of(nil, cell(512, "0-1", topology.PageRequest(2<<20))), "nested flat-a"},
		{"pages that no host has", of(nil, cell(512, "0-1", topology.PageRequest(1<<30))), "flat-a"},
		{"siblings", of(nil, topology.GuestCell{DedicatedVCPUs: pinned.DedicatedVCPUs, MemoryMB: 256, ThreadPolicy: topology.ThreadPolicyRequire}), "nested flat-a"},
		{"a device", of(device(gpu)), "nested flat-a"},
		{"a device of the guest's cell", of(device(gpu), pinned), "nested flat-a"},
		{"a device of the guest's cell, which has no pages", of(device(gpu), onHuge), "flat-a"},
		{"a device of a class with a trait", of(device(nic)), "flat-b"},
		{"a device of either kind", of(device(nic, gpu)), "flat-b nested flat-a"},
		{"three devices of two that are there", of([]topology.PCIRequest{{ID: "d", Count: 3, Specs: []topology.PCISpec{gpu}}}), ""},
		{"a trait of the host", specs(guest, "trait:"+rack, "required"), "nested flat-a"},
		{"no such trait", specs(guest, "trait:"+rack, "forbidden"), "flat-b shared-d"},
		{"a trait that no host has", specs(guest, "trait:"+slow, "required"), ""},
		{"a class of a child", specs(guest, "resources:"+nicClass, "2"), "flat-b"},
		{"a group with its trait", specs(guest, "resources1:"+nicClass, "2", "trait1:"+fast, "required"), "flat-b"},
		{"a trait that nobody knows", specs(guest, "trait:"+unset, "required", "trait:CUSTOM_UNSET_2", "forbidden"), "!trait_unknown,trait_unknown"},
		{"a class that nobody knows", specs(guest, "resources:CUSTOM_UNKNOWN", "1"), "!resource_class_unknown"},
		{"a device that nobody knows", of(device(topology.PCISpec{Vendor: "ffff", Product: "ffff"})), "!resource_class_unknown"},
		{"a device that nobody knows, or another", of(device(topology.PCISpec{Vendor: "ffff", Product: "ffff"}, gpu)), "nested flat-a"},
	}
}

// Fill makes the fleet; the server has none of its providers yet.
func Fill(t *testing.T, c *pc.Client) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, class := range []string{gpuClass, nicClass} {
		must(c.EnsureResourceClass(ctx, class))
	}
	for _, trait := range append(strings.Fields(huge+" "+small), rack, fast, slow, island) {
		must(c.EnsureTrait(ctx, trait))
	}
	fill(t, c, fleet, 0)
}

// fill makes providers; their uuids are counted from first, and the consumer's of
// what is used of them is that of 999 less first.
func fill(t *testing.T, c *pc.Client, providers []provider, first int) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	held := map[string]pc.Resources{}
	for i, p := range providers {
		me, parent := id(first+i), ""
		if j := slices.IndexFunc(providers, func(q provider) bool { return q.name == p.parent }); j >= 0 {
			parent = id(first + j)
		}
		made, err := c.CreateProvider(ctx, pc.NewProvider{Name: p.name, UUID: me, ParentProviderUUID: parent})
		must(err)
		generation := made.Generation
		if p.traits != "" {
			traits, err := c.PutTraits(ctx, me, pc.Traits{Generation: generation, Traits: strings.Fields(p.traits)})
			must(err)
			generation = traits.Generation
		}
		if p.aggregate {
			aggregates, err := c.PutAggregates(ctx, me, pc.Aggregates{Generation: generation, Aggregates: []string{id(900)}})
			must(err)
			generation = aggregates.Generation
		}
		if len(p.inventory) > 0 {
			_, err = c.PutInventories(ctx, me, pc.Inventories{Generation: generation, Inventories: p.inventory})
			must(err)
		}
		if p.used != nil {
			held[me] = p.used
		}
	}
	must(c.PutAllocations(ctx, id(999-first), pc.Allocations{Allocations: held, ProjectID: "p", UserID: "u", ConsumerType: pc.ConsumerInstance}))
}

// Find is what a wish comes to, in the words of a wish's want.
func Find(ctx context.Context, c *pc.Client, w candidates.Wish) (string, error) {
	found, err := candidates.Find(ctx, c, w, nil)
	if fault.KindOf(err) == fault.DoesNotFit {
		var codes []string
		for _, r := range fault.ReasonsOf(err) {
			codes = append(codes, r.Code)
		}
		return "!" + strings.Join(codes, ","), nil
	}
	var names []string
	for _, h := range found.Hosts {
		names = append(names, h.Name)
	}
	return strings.Join(names, " "), err
}

// Suite fills an empty server and asks it for every wish.
func Suite(t *testing.T, client func(pc.Microversion) *pc.Client) {
	newest := client(pc.MaxMicroversion)
	Fill(t, newest)
	got, want := map[string]string{}, map[string]string{}
	for _, c := range wishes() {
		names, err := Find(t.Context(), newest, c.wish)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		got[c.name], want[c.name] = names, c.want
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hosts by wish (-want +got):\n%s", diff)
	}
	older(t, client)
	inAggregates(t, client)
	onIslands(t, client)
}

// inAggregates weighs hosts by their aggregates, of which that of the pool is one: two
// racks, of which flat-a and nested are in the first, and nested is in the second with
// shared-d.
func inAggregates(t *testing.T, client func(pc.Microversion) *pc.Client) {
	t.Helper()
	const flatA, nested, sharedD, pool, rack1, rack2 = 0, 7, 15, 900, 901, 902
	newest := client(pc.MaxMicroversion)
	for host, in := range map[int][]string{flatA: {id(rack1)}, nested: {id(rack1), id(rack2)}, sharedD: {id(rack2), id(pool)}} {
		had, err := newest.Aggregates(t.Context(), id(host))
		if err == nil {
			_, err = newest.PutAggregates(t.Context(), id(host), pc.Aggregates{Generation: had.Generation, Aggregates: in})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	second := map[string]float64{id(rack2): 5, id(999): 7}
	for _, c := range []struct {
		name   string
		source int
		near   candidates.NearWeight
		want   string
	}{
		{"near to flat-a", flatA, candidates.NearWeight{Multiplier: 10}, "nested flat-b flat-a shared-d"},
		{"far from flat-a", flatA, candidates.NearWeight{Multiplier: -10}, "flat-b flat-a shared-d nested"},
		{"near to nested", nested, candidates.NearWeight{Multiplier: 10}, "flat-a shared-d flat-b nested"},
		{"near to nested, by another weight in the second rack", nested, candidates.NearWeight{Multiplier: 1, ByAggregate: second}, "shared-d flat-a flat-b nested"},
		{"near to the pool's own host, the pool among others", sharedD, candidates.NearWeight{Multiplier: 10}, "nested flat-b flat-a shared-d"},
		{"flat-b is in no aggregate", 3, candidates.NearWeight{Multiplier: 10}, "flat-b nested flat-a shared-d"},
		{"a host that Placement does not know", 888, candidates.NearWeight{Multiplier: 10}, "flat-b nested flat-a shared-d"},
	} {
		names, err := Find(t.Context(), newest, candidates.Wish{Resources: guest, Source: id(c.source), Near: c.near})
		if err != nil || names != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, names, err, c.want)
		}
	}
}

// onIslands asks for guests of which a host by itself is easily missed, at every
// microversion that says the question in other words.
func onIslands(t *testing.T, client func(pc.Microversion) *pc.Client) {
	fill(t, client(pc.MaxMicroversion), islands, 100)
	r, pinned := guestCells(cell(256, "0-1", topology.PagesDefault))
	diskless := r
	diskless.DiskGB, r.DiskGB = 0, 50
	large, onHuge := guestCells(cell(512, "0-1", topology.PagesLarge))
	large.DiskGB = 0
	disk := candidates.Disk{Provider: id(16), Aggregates: []string{id(900)}}
	here := func(w candidates.Wish, pairs ...string) candidates.Wish {
		w.ExtraSpecs = map[string]string{"trait:" + island: "required"}
		for i := 0; i < len(pairs); i += 2 {
			w.ExtraSpecs[pairs[i]] = pairs[i+1]
		}
		return w
	}
	for _, w := range []wished{
		{"floats, and CPUs are free where no memory is", here(candidates.Wish{Resources: topology.Resources{VCPUs: 6, MemoryMB: 1400}}), "split"},
		{"pinned, and its disk is in the pool, which is full", here(candidates.Wish{Resources: r, Topology: pinned, Disk: disk}, "trait:STORAGE_DISK_SSD", "required"), "nested-d"},
		{"pinned, without a disk", here(candidates.Wish{Resources: diskless, Topology: pinned}), "nested-d"},
		{"pinned, with a virtual GPU of a kind", here(candidates.Wish{Resources: diskless, Topology: pinned}, "resources:VGPU", "1", "trait:"+fast, "required"), "nested-d"},
		{"pinned, and no GPU is of that kind", here(candidates.Wish{Resources: diskless, Topology: pinned}, "resources:VGPU", "1", "trait:"+slow, "required"), ""},
		{"huge pages, and a group of the flavor's", here(candidates.Wish{Resources: large, Topology: onHuge}, "resources1:PCPU", "2"), "nested-d"},
		{"a group of the flavor's takes it all", here(candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 256}}, "resources1:VCPU", "2", "resources2:MEMORY_MB", "256", "group_policy", "none"), "nested-d split"},
	} {
		for _, v := range []pc.Microversion{39, 35, 34, 32, 29} {
			if names, err := Find(t.Context(), client(v), w.wish); err != nil || names != w.want {
				t.Errorf("%s at %s: %q, %v; want %q", w.name, v, names, err, w.want)
			}
		}
	}
}

// older asks servers that speak less; 1.29 lacks all that is left out above it. Each
// finds what is found at the newest, but for hosts whose resources are in children,
// below 1.29, and what it cannot be asked may be found beside.
func older(t *testing.T, client func(pc.Microversion) *pc.Client) {
	for _, v := range []pc.Microversion{29, 28} {
		c := client(v)
		for _, w := range wishes() {
			if strings.HasPrefix(w.want, "!") {
				continue
			}
			switch w.name {
			case "a guest that floats", "one cell", "a device", "a device of the guest's cell", "a trait of the host", "no such trait", "its disk is in the pool already":
			default:
				continue
			}
			names, err := Find(t.Context(), c, w.wish)
			if err != nil {
				t.Errorf("%s at %s: %v", w.name, v, err)
				continue
			}
			for _, host := range strings.Fields(w.want) {
				if !slices.Contains(strings.Fields(names), host) && !(v < 29 && host == "nested") {
					t.Errorf("%s at %s finds %q, not %s", w.name, v, names, host)
				}
			}
			if strings.Contains(names, "flat-off") || strings.Contains(names, "flat-full") {
				t.Errorf("%s at %s finds %q", w.name, v, names)
			}
		}
	}
}
