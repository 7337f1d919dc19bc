package candidates_test

import (
	"fmt"
	"testing"

	"berth/migration/candidates"
	pc "berth/placementclient"
	"berth/topology"
)

// thousand fills a Placement with as many hosts of one shape.
func thousand(b *testing.B, c *pc.Client, nested bool) {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, trait := range []string{pc.TraitPageSizeSmall, pc.TraitPageSizeLarge} {
		must(c.EnsureTrait(b.Context(), trait))
	}
	n := 0
	provider := func(name, parent string, inventory map[string]pc.Inventory, traits ...string) string {
		n++
		uuid := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
		p, err := c.CreateProvider(b.Context(), pc.NewProvider{Name: name, UUID: uuid, ParentProviderUUID: parent})
		must(err)
		t, err := c.PutTraits(b.Context(), uuid, pc.Traits{Generation: p.Generation, Traits: traits})
		must(err)
		_, err = c.PutInventories(b.Context(), uuid, pc.Inventories{Generation: t.Generation, Inventories: inventory})
		must(err)
		return uuid
	}
	for i := range 1000 {
		name := fmt.Sprintf("host-%04d", i)
		if !nested {
			provider(name, "", map[string]pc.Inventory{"VCPU": {Total: 64}, "MEMORY_MB": {Total: 65536}, "DISK_GB": {Total: 500}}, "COMPUTE_NODE")
			continue
		}
		root := provider(name, "", map[string]pc.Inventory{"DISK_GB": {Total: 500}}, "COMPUTE_NODE")
		for cell := range 2 {
			of := provider(fmt.Sprintf("%s_NUMA%d", name, cell), root, map[string]pc.Inventory{"VCPU": {Total: 32}}, pc.TraitHWNUMARoot)
			provider(fmt.Sprintf("%s_NUMA%d_4K", name, cell), of, map[string]pc.Inventory{"MEMORY_MB": {Total: 32768}}, pc.TraitPageSizeSmall)
		}
	}
}

func BenchmarkFind_AThousandHosts(b *testing.B) {
	set, err := topology.ParseCPUSet("0-1")
	if err != nil {
		b.Fatal(err)
	}
	r := topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 10}
	for _, shape := range []string{"flat", "nested"} {
		c := embedded(b)(pc.MaxMicroversion)
		thousand(b, c, shape == "nested")
		for name, w := range map[string]candidates.Wish{
			"floats":   {Resources: r},
			"one cell": {Resources: r, Topology: &topology.GuestTopology{Cells: []topology.GuestCell{{SharedVCPUs: set, MemoryMB: 1024}}}},
		} {
			b.Run(shape+"/"+name, func(b *testing.B) {
				for b.Loop() {
					found, err := candidates.Find(b.Context(), c, w, nil)
					if err != nil || len(found.Hosts) != 1000 {
						b.Fatalf("%d hosts, %v", len(found.Hosts), err)
					}
				}
			})
		}
	}
}
