package flavor

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"berth/topology"

	"github.com/google/go-cmp/cmp"
)

func set(t testing.TB, list string) topology.CPUSet {
	t.Helper()
	s, err := topology.ParseCPUSet(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// specs reads "hw:a=1 hw:b=2"; in a value, "~" stands for a blank.
func specs(text string) map[string]string {
	out := map[string]string{}
	for _, pair := range strings.Fields(text) {
		k, v, _ := strings.Cut(pair, "=")
		if !strings.Contains(k, ":") && !strings.HasPrefix(k, "hw_") {
			panic(pair)
		}
		out[k] = strings.ReplaceAll(v, "~", " ")
	}
	return out
}

// 8 vCPUs and 2048 MiB in every row.
func guest(words string) topology.Flavor {
	return topology.Flavor{VCPUs: 8, MemoryMB: 2048, ExtraSpecs: specs(words)}
}

// brief writes a guest topology on one line: each cell's shared and dedicated
// vCPUs, memory and page size, then the policies.
func brief(g *topology.GuestTopology) string {
	if g == nil {
		return "none"
	}
	var b strings.Builder
	for _, c := range g.Cells {
		fmt.Fprintf(&b, "[%s|%s %dM %d]", c.SharedVCPUs, c.DedicatedVCPUs, c.MemoryMB, c.PageSize)
	}
	c := g.Cells[0]
	for _, word := range []string{string(c.CPUPolicy), string(c.ThreadPolicy), string(g.Emulator), g.Realtime.String()} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	return b.String()
}

func TestTopology_BuildsWhatTheWordsAsk(t *testing.T) {
	const ded, mix = "hw:cpu_policy=dedicated ", "hw:cpu_policy=mixed "
	for _, tt := range []struct{ specs, image, want string }{
		{"", "", "none"},
		{"hw:cpu_policy=shared", "", "none"},
		{"hw:cpu_policy= hw:numa_nodes= hw:mem_page_size= hw:emulator_threads_policy= hw:cpu_dedicated_mask=", "", "none"},
		{"hw:numa_cpus.0=0 hw:numa_mem.0=1", "", "none"}, // Nova reads no list of a guest that asks for no cell
		{"hw:mem_page_size=0", "", "none"},
		{"hw:pmem=~,", "", "none"},
		{"resources:VCPU=8", "", "none"},
		{"resources:VCPU=x resources:PCPU=x", "", "none"},
		{"trait:HW_CPU_HYPERTHREADING=odd", "", "none"},
		{"hw:cpu_realtime=maybe hw:cpu_realtime_mask=zz", "", "none"},

		{"hw:numa_nodes=1", "", "[0-7| 2048M 0]"},
		{"hw:numa_nodes=2", "", "[0-3| 1024M 0][4-7| 1024M 0]"},
		{"", "hw_numa_nodes=~+2", "[0-3| 1024M 0][4-7| 1024M 0]"},
		{"hw:numa_nodes=1", "hw_numa_nodes=0", "[0-7| 2048M 0]"},
		{"hw:pmem=a,b", "", "[0-7| 2048M 0]"},
		{"hw:emulator_threads_policy=share hw:numa_nodes=1", "", "[0-7| 2048M 0] share"},

		// lists of cells
		{"hw:numa_nodes=2 hw:numa_cpus.0=0-1,7 hw:numa_mem.0=512 hw:numa_cpus.1=2-6 hw:numa_mem.1=1536", "", "[0-1,7| 512M 0][2-6| 1536M 0]"},
		{"hw:numa_nodes=2 hw:numa_cpus.0=~0~-~1,,+7 hw:numa_mem.0=~5_12 hw:numa_cpus.1=^3,2-6,3,0_3-3,^7 hw:numa_mem.1=1536", "", "ImageNUMATopologyCPUsUnassigned"},
		{"hw:numa_nodes=2 hw:numa_cpus.0=0-7 hw:numa_mem.0=+512 hw:numa_cpus.1= hw:numa_mem.1=1536", "", "[0-7| 512M 0][| 1536M 0]"},
		{"hw:numa_nodes=1 hw:numa_cpus.0=0-99,^8-99 hw:numa_mem.0=2048 hw:numa_cpus.2=x", "", "[0-7| 2048M 0]"},
		{"hw:numa_nodes=2", "hw_numa_cpus.0=0-5 hw_numa_cpus.1=6-7 hw_numa_mem.0=2047 hw_numa_mem.1=1", "[0-5| 2047M 0][6-7| 1M 0]"},
		{"hw:numa_nodes=1 hw:numa_cpus.0=0-7", "hw_numa_mem.0=2048", "[0-7| 2048M 0]"},

		// policies
		{ded, "", "[|0-7 2048M 0] dedicated"},
		{"", "hw_cpu_policy=dedicated", "[|0-7 2048M 0] dedicated"},
		{ded, "hw_cpu_policy=shared", "[|0-7 2048M 0] dedicated"},
		{mix + "hw:cpu_dedicated_mask=^0-1", "hw_cpu_policy=shared", "[0-1|2-7 2048M 0] mixed"},
		{mix + "hw:cpu_dedicated_mask=~^0 hw:numa_nodes=2", "", "[0|1-3 1024M 0][|4-7 1024M 0] mixed"},
		{mix + "hw:cpu_dedicated_mask=2,4-5,^4", "", "[0-1,3-4,6-7|2,5 2048M 0] mixed"},
		{ded + "hw:cpu_thread_policy=prefer", "hw_cpu_thread_policy=require", "[|0-7 2048M 0] dedicated prefer"},
		{ded, "hw_cpu_thread_policy=isolate", "[|0-7 2048M 0] dedicated isolate"},
		{ded + "hw:cpu_thread_policy=require hw:emulator_threads_policy=isolate", "hw_cpu_thread_policy=require", "[|0-7 2048M 0] dedicated require isolate"},
		{"resources:PCPU=8", "", "[|0-7 2048M 0] dedicated"},
		{"resources1:PCPU=5 resources2:PCPU=3", "", "[|0-7 2048M 0] dedicated"},
		{"resources:PCPU=9 hw:emulator_threads_policy=isolate", "", "[|0-7 2048M 0] dedicated isolate"},
		{"resources:VCPU=8 hw:numa_nodes=1", "", "[0-7| 2048M 0] shared"},
		{ded + "trait:HW_CPU_HYPERTHREADING=forbidden", "", "[|0-7 2048M 0] dedicated isolate"},
		{ded + "trait7:HW_CPU_HYPERTHREADING=required hw:cpu_thread_policy=", "", "[|0-7 2048M 0] dedicated require"},

		// realtime
		{ded + "hw:cpu_realtime=~YES hw:cpu_realtime_mask=^0", "", "[|0-7 2048M 0] dedicated 1-7"},
		{ded + "hw:cpu_realtime=1 hw:cpu_realtime_mask=zz", "hw_cpu_realtime_mask=2-3", "[|0-7 2048M 0] dedicated 2-3"},
		{ded + "hw:cpu_realtime=on hw:emulator_threads_policy=share", "", "[|0-7 2048M 0] dedicated share 0-7"},
		{mix + "hw:cpu_realtime=t hw:cpu_realtime_mask=^0-1", "", "[0-1|2-7 2048M 0] mixed 2-7"},
		{mix + "hw:cpu_realtime=no hw:cpu_realtime_mask=^0-1 hw:cpu_dedicated_mask=^7", "", "[7|0-6 2048M 0] mixed"},

		// pages, in bytes
		{"hw:mem_page_size=small", "", "[0-7| 2048M -1]"},
		{"hw:mem_page_size=large", "", "[0-7| 2048M -2]"},
		{"hw:mem_page_size=any", "hw_mem_page_size=large", "[0-7| 2048M -2]"},
		{"hw:mem_page_size=large", "hw_mem_page_size=2MB", "[0-7| 2048M 2097152]"},
		{"hw:mem_page_size=04", "", "[0-7| 2048M 4096]"},
		{"hw:mem_page_size=2048", "", "[0-7| 2048M 2097152]"},
		{"hw:mem_page_size=1GiB", "", "[0-7| 2048M 1073741824]"},
		{"hw:mem_page_size=+.5MB", "", "[0-7| 2048M 524288]"},
		{"hw:mem_page_size=16Kbit", "", "[0-7| 2048M 2048]"},
		{"hw:mem_page_size=16Kib", "", "[0-7| 2048M 2048]"},
		{"hw:mem_page_size=1.5KB", "", "[0-7| 2048M 1024]"},
		{"hw:mem_page_size=1b", "", "[0-7| 2048M 0]"},
		{"hw:mem_page_size=0KB", "", "none"},
	} {
		got, err := Topology(guest(tt.specs), specs(tt.image))
		if err != nil {
			var errs Errors
			if !errors.As(err, &errs) || errs[0].Nova != tt.want {
				t.Errorf("%s · %s: got %v, want %s", tt.specs, tt.image, err, tt.want)
			}
			continue
		}
		if brief(got) != tt.want {
			t.Errorf("%s · %s: got %s, want %s", tt.specs, tt.image, brief(got), tt.want)
		}
	}
}

func TestTopology_ImageTraitAsksForThreads(t *testing.T) {
	for word, want := range map[string]string{"required": "[|0-7 2048M 0] dedicated require", "forbidden": "[|0-7 2048M 0] dedicated"} {
		got, err := Topology(guest("hw:cpu_policy=dedicated"), Image{"trait:HW_CPU_HYPERTHREADING": word})
		if err != nil || brief(got) != want {
			t.Errorf("%s: got %s, %v; want %s", word, brief(got), err, want)
		}
	}
}

func TestTopology_RefusesByNovasNames(t *testing.T) {
	const ded, mix, shared = "hw:cpu_policy=dedicated ", "hw:cpu_policy=mixed ", "hw:cpu_policy=shared "
	const two = "hw:numa_nodes=2 "
	for _, tt := range []struct{ specs, image, want string }{ // Nova's class, key and code of each fault
		// the image's types come first
		{"hw:cpu_policy=foo", "hw_cpu_policy=bar", "ValueError hw_cpu_policy cpu_policy_unknown; InvalidCPUAllocationPolicy hw:cpu_policy cpu_policy_unknown"},
		{"", "hw_cpu_policy=", "ValueError hw_cpu_policy cpu_policy_unknown"},
		{ded, "hw_cpu_thread_policy=Prefer", "ValueError hw_cpu_thread_policy cpu_thread_policy_unknown"},
		{"", "hw_numa_nodes=two", "ValueError hw_numa_nodes numa_nodes_invalid"},
		{"", "hw_numa_nodes=1.0", "ValueError hw_numa_nodes numa_nodes_invalid"},
		{"", "hw_numa_cpus.0=a", "Invalid hw_numa_cpus.0 numa_cpus_malformed"},
		{"", "hw_numa_mem.0=1MB", "ValueError hw_numa_mem.0 numa_mem_malformed"},
		{"", "hw_pci_numa_affinity_policy=near", "ValueError hw_pci_numa_affinity_policy pci_affinity_unknown"},

		// words
		{"hw:cpu_policy=Shared", "", "InvalidCPUAllocationPolicy hw:cpu_policy cpu_policy_unknown"},
		{mix + "hw:cpu_dedicated_mask=0", "hw_cpu_policy=dedicated", "ImageCPUPinningForbidden hw_cpu_policy cpu_policy_conflict"},
		{shared, "hw_cpu_policy=dedicated", "ImageCPUPinningForbidden hw_cpu_policy cpu_policy_conflict"},
		{shared, "hw_cpu_policy=mixed", "ImageCPUPinningForbidden hw_cpu_policy cpu_policy_conflict"},
		{ded + "hw:cpu_thread_policy=none", "", "InvalidCPUThreadAllocationPolicy hw:cpu_thread_policy cpu_thread_policy_unknown"},
		{ded + "hw:cpu_thread_policy=isolate", "hw_cpu_thread_policy=prefer", "ImageCPUThreadPolicyForbidden hw_cpu_thread_policy cpu_thread_policy_conflict"},
		{ded + "hw:cpu_thread_policy=", "hw_cpu_thread_policy=prefer", "ImageCPUThreadPolicyForbidden hw_cpu_thread_policy cpu_thread_policy_conflict"},
		{ded + "hw:cpu_thread_policy=", "", "ValueError hw:cpu_thread_policy cpu_thread_policy_unknown"},
		{ded + "hw:emulator_threads_policy=Share", "", "InvalidEmulatorThreadsPolicy hw:emulator_threads_policy emulator_threads_policy_unknown"},

		// realtime
		{ded + "hw:cpu_realtime=yes", "", "RealtimeMaskNotFoundOrInvalid hw:cpu_realtime_mask realtime_mask_takes_all"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=0-7", "", "RealtimeMaskNotFoundOrInvalid hw:cpu_realtime_mask realtime_mask_takes_all"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=^0-7", "", "RealtimeMaskNotFoundOrInvalid hw:cpu_realtime_mask realtime_mask_empty"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=~", "", "RealtimeMaskNotFoundOrInvalid hw:cpu_realtime_mask realtime_mask_empty"},
		{ded + "hw:cpu_realtime=yes", "hw_cpu_realtime_mask=8", "RealtimeMaskNotFoundOrInvalid hw_cpu_realtime_mask realtime_mask_out_of_range"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=0-4294967295", "", "RealtimeMaskNotFoundOrInvalid hw:cpu_realtime_mask realtime_mask_out_of_range"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=7-0", "", "Invalid hw:cpu_realtime_mask realtime_mask_malformed"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=0 hw:emulator_threads_policy=x hw:cpu_dedicated_mask=y", "",
			"InvalidEmulatorThreadsPolicy hw:emulator_threads_policy emulator_threads_policy_unknown; Invalid hw:cpu_dedicated_mask dedicated_mask_malformed"},
		{ded + "hw:cpu_realtime=yes hw:cpu_realtime_mask=^0-7 hw:emulator_threads_policy=x hw:cpu_dedicated_mask=y", "",
			"RealtimeMaskNotFoundOrInvalid hw:cpu_realtime_mask realtime_mask_empty; Invalid hw:cpu_dedicated_mask dedicated_mask_malformed; InvalidEmulatorThreadsPolicy hw:emulator_threads_policy emulator_threads_policy_unknown"},
		{shared + "hw:cpu_realtime=yes hw:cpu_realtime_mask=^0", "", "RealtimeConfigurationInvalid hw:cpu_realtime realtime_without_pinning"},

		// dedicated mask
		{mix + "hw:cpu_dedicated_mask=^", "", "Invalid hw:cpu_dedicated_mask dedicated_mask_malformed"},
		{mix + "hw:cpu_dedicated_mask=-1", "", "Invalid hw:cpu_dedicated_mask dedicated_mask_malformed"},
		{mix + "hw:cpu_dedicated_mask=1-^2", "", "Invalid hw:cpu_dedicated_mask dedicated_mask_malformed"},
		{mix + "hw:cpu_dedicated_mask=1--2", "", "Invalid hw:cpu_dedicated_mask dedicated_mask_malformed"},
		{mix + "hw:cpu_dedicated_mask=1_", "", "Invalid hw:cpu_dedicated_mask dedicated_mask_malformed"},
		{mix + "hw:cpu_dedicated_mask=,", "", "InvalidMixedInstanceDedicatedMask hw:cpu_dedicated_mask dedicated_mask_empty"},
		{mix + "hw:cpu_dedicated_mask=^0-7", "", "InvalidMixedInstanceDedicatedMask hw:cpu_dedicated_mask dedicated_mask_empty"},
		{mix + "hw:cpu_dedicated_mask=^9", "", "InvalidMixedInstanceDedicatedMask hw:cpu_dedicated_mask dedicated_mask_takes_all"},
		{mix + "hw:cpu_dedicated_mask=0,8", "", "InvalidMixedInstanceDedicatedMask hw:cpu_dedicated_mask dedicated_mask_out_of_range"},
		{ded + "hw:cpu_dedicated_mask=0", "", "RequiredMixedInstancePolicy hw:cpu_dedicated_mask dedicated_mask_without_mixed"},
		{"hw:cpu_dedicated_mask=0", "", "RequiredMixedInstancePolicy hw:cpu_dedicated_mask dedicated_mask_without_mixed"},
		{mix, "", "RequiredMixedOrRealtimeCPUMask hw:cpu_dedicated_mask mixed_needs_one_mask"},
		{mix + "hw:cpu_dedicated_mask=0 hw:cpu_realtime=1 hw:cpu_realtime_mask=1", "", "RequiredMixedOrRealtimeCPUMask hw:cpu_dedicated_mask mixed_needs_one_mask"},

		// resources and traits
		{ded + "resources:PCPU=8", "", "InvalidRequest resources:PCPU cpu_policy_twice"},
		{"resources:VCPU=8 resources:PCPU=8", "", "InvalidRequest resources:PCPU vcpu_and_pcpu"},
		{"resources:PCPU=7", "", "InvalidRequest resources:PCPU pcpu_mismatch"},
		{"resources:PCPU=99999999999999999999", "", "InvalidRequest resources:PCPU pcpu_mismatch"},
		{"resources:PCPU=8 hw:emulator_threads_policy=isolate", "", "InvalidRequest resources:PCPU pcpu_mismatch"},
		{ded + "hw:cpu_thread_policy=prefer trait:HW_CPU_HYPERTHREADING=odd", "", "InvalidRequest trait:HW_CPU_HYPERTHREADING cpu_thread_policy_twice"},
		{"trait:HW_CPU_HYPERTHREADING=required", "", "CPUThreadPolicyConfigurationInvalid hw:cpu_thread_policy cpu_thread_policy_without_pinning"},
		{shared + "hw:cpu_thread_policy=prefer hw:emulator_threads_policy=isolate", "",
			"CPUThreadPolicyConfigurationInvalid hw:cpu_thread_policy cpu_thread_policy_without_pinning; BadRequirementEmulatorThreadsPolicy hw:emulator_threads_policy emulator_isolate_without_pinning"},

		// number of cells
		{two, "hw_numa_nodes=2", "ImageNUMATopologyForbidden hw_numa_nodes numa_nodes_twice"},
		{two, "hw_numa_nodes=-1", "ImageNUMATopologyForbidden hw_numa_nodes numa_nodes_twice"},
		{"", "hw_numa_nodes=0", "InvalidNUMANodesNumber hw_numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=", "hw_numa_nodes=-3", "InvalidNUMANodesNumber hw_numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=0", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=-1", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=-0", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=+2", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=02", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=~2", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=2.0", "", "InvalidNUMANodesNumber hw:numa_nodes numa_nodes_invalid"},
		{"hw:numa_nodes=3", "", "ImageNUMATopologyAsymmetric hw:numa_nodes numa_nodes_uneven"},
		{"hw:numa_nodes=99999999999999999999", "", "ImageNUMATopologyAsymmetric hw:numa_nodes numa_nodes_uneven"},

		// pages and locked memory
		{"hw:mem_page_size=huge", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=2M", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=4kB", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=2~MB", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=1iB", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=-2KB", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=-4", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=99999999999999999999", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=99999999TB", "", "MemoryPageSizeInvalid hw:mem_page_size page_size_invalid"},
		{"hw:mem_page_size=any", "hw_mem_page_size=huge", "MemoryPageSizeInvalid hw_mem_page_size page_size_invalid"},
		{"", "hw_mem_page_size=any", "MemoryPageSizeForbidden hw_mem_page_size page_size_forbidden"},
		{"hw:mem_page_size=small", "hw_mem_page_size=small", "MemoryPageSizeForbidden hw_mem_page_size page_size_forbidden"},
		{"hw:mem_page_size=0", "hw_mem_page_size=4", "MemoryPageSizeForbidden hw_mem_page_size page_size_forbidden"},
		{"hw:locked_memory=yes", "", "LockMemoryForbidden hw:locked_memory locked_memory_without_page_size"},
		{"hw:locked_memory=no", "hw_locked_memory=true", "FlavorImageLockedMemoryConflict hw_locked_memory locked_memory_conflict"},

		// lists of cells
		{two + "hw:numa_cpus.0=x", "", "Invalid hw:numa_cpus.0 numa_cpus_malformed; ImageNUMATopologyIncomplete hw:numa_cpus.0 numa_lists_incomplete"},
		{two + "hw:numa_mem.0=x", "", "ValueError hw:numa_mem.0 numa_mem_malformed; ImageNUMATopologyIncomplete hw:numa_mem.0 numa_lists_incomplete"},
		{two + "hw:numa_mem.0=", "", "ValueError hw:numa_mem.0 numa_mem_malformed; ImageNUMATopologyIncomplete hw:numa_mem.0 numa_lists_incomplete"},
		{two + "hw:numa_cpus.0=0-7", "hw_numa_cpus.0=0-7", "ImageNUMATopologyForbidden hw_numa_cpus numa_lists_twice; ImageNUMATopologyIncomplete hw:numa_cpus.0 numa_lists_incomplete"},
		{"hw:numa_nodes=1 hw:numa_cpus.0=0-7 hw:numa_mem.0=2048", "hw_numa_mem.0=2048", "ImageNUMATopologyForbidden hw_numa_mem numa_lists_twice"},
		{two + "hw:numa_cpus.0=0-7", "", "ImageNUMATopologyIncomplete hw:numa_cpus.0 numa_lists_incomplete"},
		{two + "hw:numa_mem.0=2048", "", "ImageNUMATopologyIncomplete hw:numa_mem.0 numa_lists_incomplete"},
		{two + "hw:numa_cpus.0=0-7 hw:numa_mem.0=2048", "",
			"ImageNUMATopologyIncomplete hw:numa_cpus.0 numa_lists_incomplete; ImageNUMATopologyIncomplete hw:numa_mem.0 numa_lists_incomplete"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-7 hw:numa_mem.0=1024 hw:numa_mem.2=1024", "", "ImageNUMATopologyIncomplete hw:numa_mem.0 numa_lists_incomplete"},
		{ded + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-7 hw:numa_mem.0=1024 hw:numa_mem.1=1024", "",
			"ImageNUMATopologyIncomplete hw:numa_cpus.1 numa_lists_incomplete; ImageNUMATopologyIncomplete hw:numa_mem.1 numa_lists_incomplete"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=3-7 hw:numa_mem.0=1024 hw:numa_mem.1=1024", "", "ImageNUMATopologyCPUDuplicates hw:numa_cpus.1 numa_cpus_twice"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-8 hw:numa_mem.0=1024 hw:numa_mem.1=1024", "", "ImageNUMATopologyCPUOutOfRange hw:numa_cpus.1 numa_cpus_out_of_range"},
		{two + "hw:numa_cpus.0=0-4294967295 hw:numa_cpus.1=4-7 hw:numa_mem.0=1024 hw:numa_mem.1=1024", "",
			"ImageNUMATopologyCPUOutOfRange hw:numa_cpus.0 numa_cpus_out_of_range; ImageNUMATopologyCPUDuplicates hw:numa_cpus.1 numa_cpus_twice"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-6 hw:numa_mem.0=1024 hw:numa_mem.1=1023", "",
			"ImageNUMATopologyCPUsUnassigned hw:numa_cpus.0 numa_cpus_unassigned; ImageNUMATopologyMemoryOutOfRange hw:numa_mem.0 numa_mem_mismatch"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-7 hw:numa_mem.0=99999999999999999999 hw:numa_mem.1=99999999999999999999", "", "ImageNUMATopologyMemoryOutOfRange hw:numa_mem.0 numa_mem_mismatch"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-7 hw:numa_mem.0=2048 hw:numa_mem.1=0", "", " hw:numa_mem.1 numa_mem_not_positive"},
		{two + "hw:numa_cpus.0=0-3 hw:numa_cpus.1=4-7 hw:numa_mem.0=-1 hw:numa_mem.1=2049", "", " hw:numa_mem.0 numa_mem_not_positive"},
	} {
		got, err := Topology(guest(tt.specs), specs(tt.image))
		var errs Errors
		if !errors.As(err, &errs) || got != nil {
			t.Errorf("%s · %s: got %s, %v; want %s", tt.specs, tt.image, brief(got), err, tt.want)
			continue
		}
		var have []string
		for _, e := range errs {
			have = append(have, e.Nova+" "+e.Key+" "+e.Code)
			if e.Message == "" || !strings.Contains(err.Error(), e.Key+": "+e.Message) {
				t.Errorf("%s: a fault without a text: %+v", tt.specs, e)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(have, "; ")); diff != "" {
			t.Errorf("%s · %s (-want +got):\n%s", tt.specs, tt.image, diff)
		}
	}
}

func TestTopology_RefusesImpossibleSizesBeforeReadingAnything(t *testing.T) {
	for _, tt := range []struct {
		f    topology.Flavor
		want []string
	}{
		{topology.Flavor{VCPUs: 0, MemoryMB: 1}, []string{"vcpus_out_of_range"}},
		{topology.Flavor{VCPUs: MaxVCPUs + 1, MemoryMB: 1}, []string{"vcpus_out_of_range"}},
		{topology.Flavor{VCPUs: -1, MemoryMB: -1, ExtraSpecs: specs("hw:cpu_policy=x")}, []string{"vcpus_out_of_range", "memory_out_of_range"}},
		{topology.Flavor{VCPUs: 1, MemoryMB: maxMB + 1}, []string{"memory_out_of_range"}},
		{topology.Flavor{VCPUs: 4096, MemoryMB: 4096, ExtraSpecs: specs("hw:numa_nodes=256")}, []string{"numa_nodes_too_many"}},
	} {
		_, err := Topology(tt.f, nil)
		var errs Errors
		errors.As(err, &errs)
		var codes []string
		for _, e := range errs {
			codes = append(codes, e.Code)
		}
		if diff := cmp.Diff(tt.want, codes); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.f, diff)
		}
	}
	largest := topology.Flavor{VCPUs: MaxVCPUs, MemoryMB: maxMB, ExtraSpecs: specs("hw:numa_nodes=128 hw:cpu_policy=dedicated")}
	if g, err := Topology(largest, nil); err != nil || len(g.Cells) != MaxCells || g.Cells[127].DedicatedVCPUs.String() != "4064-4095" {
		t.Errorf("the largest guest: %v, %v", g, err)
	}
}

func TestErrors_AreFoundOneByOne(t *testing.T) {
	_, err := Topology(guest("hw:cpu_policy=x hw:numa_nodes=0"), nil)
	if !errors.Is(err, Error{Key: "hw:numa_nodes", Code: "numa_nodes_invalid", Nova: "InvalidNUMANodesNumber", Message: `"0": want a whole number above 0`}) {
		t.Errorf("the second fault is not found in %v", err)
	}
}

func TestLockedMemory_IsWhatFlavorOrImageSay(t *testing.T) {
	for _, tt := range []struct {
		specs, image string
		want         bool
		code         string
	}{
		{"", "", false, ""},
		{"hw:locked_memory=True hw:mem_page_size=small", "", true, ""},
		{"hw:locked_memory=1 hw:mem_page_size=any", "hw_locked_memory=on", true, ""},
		{"hw:mem_page_size=any", "hw_locked_memory=y", true, ""},
		{"hw:locked_memory=maybe", "", false, ""}, // Nova's stage one takes it for no; Validate refuses it
		{"hw:locked_memory=", "hw_locked_memory=no", false, ""},
		{"hw:locked_memory=yes", "hw_mem_page_size=4", true, ""},
		{"", "hw_locked_memory=yes", false, "locked_memory_without_page_size"},
		{"hw:locked_memory=yes hw:mem_page_size=any", "hw_locked_memory=no", false, "locked_memory_conflict"},
	} {
		got, err := LockedMemory(guest(tt.specs), specs(tt.image))
		var errs Errors
		code := ""
		if errors.As(err, &errs) {
			code = errs[0].Code
		}
		if got != tt.want || code != tt.code {
			t.Errorf("%s · %s: got %t, %v; want %t, %q", tt.specs, tt.image, got, err, tt.want, tt.code)
		}
	}
}

func FuzzTopology_IsBoundedByItsText(f *testing.F) {
	f.Add(8, int64(2048), "hw:numa_cpus.0", "0-4294967295", "hw:numa_mem.0", "99999999999999999999", "hw_numa_nodes", "1")
	f.Add(4096, int64(4096), "hw:cpu_dedicated_mask", "^0-9223372036854775807", "hw:cpu_policy", "mixed", "hw_mem_page_size", "9TB")
	f.Add(4, int64(4), "hw:cpu_realtime_mask", "0-9223372036854775807,^9223372036854775807", "hw:cpu_realtime", "yes", "hw_numa_cpus.0", "^1-2,,")
	f.Fuzz(func(t *testing.T, vcpus int, mb int64, k1, v1, k2, v2, ik, iv string) {
		flavor := topology.Flavor{VCPUs: vcpus, MemoryMB: mb, ExtraSpecs: map[string]string{k1: v1, k2: v2}}
		image := Image{ik: iv}
		g, err := Topology(flavor, image)
		if (err != nil) && g != nil {
			t.Fatal("a topology beside an error")
		}
		if g != nil {
			checkTopology(t, flavor, g)
		}
		_, _ = PCIRequests(flavor, image, []Alias{{Name: v1, ResourceClass: v2}})
		_, _ = LockedMemory(flavor, image)
		_ = Validate(flavor)
	})
}

// checkTopology holds a topology against its flavor: every vCPU in one cell,
// all memory in cells.
func checkTopology(t *testing.T, f topology.Flavor, g *topology.GuestTopology) {
	t.Helper()
	var seen topology.CPUSet
	var memory int64
	if len(g.Cells) == 0 || len(g.Cells) > MaxCells {
		t.Fatalf("%d cells", len(g.Cells))
	}
	for i, c := range g.Cells {
		if c.SharedVCPUs.Intersects(c.DedicatedVCPUs) || c.VCPUs().Intersects(seen) || c.MemoryMB < 1 || c.PageSize < topology.PagesAny {
			t.Fatalf("cell %d: %+v", i, c)
		}
		seen, memory = seen.Union(c.VCPUs()), memory+c.MemoryMB
	}
	if all := set(t, fmt.Sprintf("0-%d", f.VCPUs-1)); !seen.SameAs(all) || memory != f.MemoryMB || !all.ContainsAll(g.Realtime) {
		t.Fatalf("%+v of %+v", g, f)
	}
}

// TestTopology_MemoryOfCellsDoesNotRunOver: numbers whose sum in 64 bits is the
// flavor's memory are not taken for it.
func TestTopology_MemoryOfCellsDoesNotRunOver(t *testing.T) {
	f := guest("hw:numa_nodes=3 hw:numa_cpus.0=0-1 hw:numa_cpus.1=2-3 hw:numa_cpus.2=4-7" +
		" hw:numa_mem.0=9223372036854775807 hw:numa_mem.1=9223372036854775807 hw:numa_mem.2=2050")
	if g, err := Topology(f, nil); err == nil {
		t.Errorf("taken: %s", brief(g))
	}
}
