package host_test

import (
	"fmt"
	"testing"

	"berth/agent/host"
	"berth/claims"
	"berth/claims/fit"
	"berth/topology"
)

// What people write by hand: cells of odd sizes, and memory beside the cells.
func TestPlace_CountsAllMemoryOfOddDocuments(t *testing.T) {
	const id = "55555555-5555-4555-8555-555555555501"
	tests := map[string]struct {
		document string
		memoryMB int64
	}{
		"cells of odd sizes": {`<memory unit='KiB'>262244</memory><vcpu>2</vcpu><cputune><vcpupin vcpu='0' cpuset='2'/></cputune>
			<cpu><numa><cell id='0' cpus='0' memory='131122' unit='KiB'/><cell id='1' cpus='1' memory='131122' unit='KiB'/></numa></cpu>`, 258},
		"memory devices": {`<maxMemory slots='4' unit='MiB'>1024</maxMemory><memory unit='MiB'>384</memory><vcpu>1</vcpu>
			<cputune><vcpupin vcpu='0' cpuset='2'/></cputune><cpu><numa><cell id='0' cpus='0' memory='128' unit='MiB'/></numa></cpu>
			<devices><memory model='dimm'><target><size unit='MiB'>256</size><node>0</node></target></memory></devices>`, 384},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := newForeignLab(t)
			for _, n := range l.hosts {
				n.put(t, "/boot/vmlinuz", "kernel", 0o644)
				n.tracker.SetCapacity(claims.Capacity{
					Total: topology.Resources{VCPUs: 8, PCPUs: 8, MemoryMB: 4096, DiskGB: 100},
					Cells: []fit.Cell{
						{ID: 0, Shared: topology.NewCPUSet(0, 1), Dedicated: topology.NewCPUSet(2, 3), MemoryMB: 2048},
						{ID: 1, Shared: topology.NewCPUSet(4, 5), Dedicated: topology.NewCPUSet(6, 7), MemoryMB: 2048},
					},
				})
			}
			document := fmt.Sprintf("<domain type='qemu'><name>odd</name><uuid>%s</uuid>%s<os><type>hvm</type><kernel>/boot/vmlinuz</kernel></os></domain>", id, tt.document)
			_, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{XML: document})
			l.must("create", err)
			_, err = l.hosts["b"].External().ClaimArrival(t.Context(), document)
			l.must("claim on arrival", err)
			for name, n := range l.hosts {
				if c := n.tracker.List(); len(c) != 1 || c[0].Resources.MemoryMB != tt.memoryMB || c[0].Resources.PCPUs != 1 {
					t.Errorf("claims on %s: %+v, want %d MiB", name, c, tt.memoryMB)
				}
			}
		})
	}
}
