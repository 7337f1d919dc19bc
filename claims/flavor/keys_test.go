package flavor

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

func TestValidate_NamesWhatNobodyReads(t *testing.T) {
	for _, tt := range []struct{ specs, want string }{ // "" for a good flavor, else part of the message
		{"", ""},
		{"hw:cpu_policy=x hw:numa_nodes=2 hw:numa_cpus.0=0 hw:numa_cpus.1=1 hw:numa_mem.0=1 pci_passthrough:alias=a:1 hw:cpu_max_sockets=2", ""},
		{"quota:cpu_shares=1 trait:X=required resources:VCPU=1 aggregate_instance_extra_specs:a=b hw:tpm_model=tpm-crb hw_rng:allowed=True hw:max_cpu_cores=1", ""},
		{"hw:locked_memory=Yes hw:cpu_realtime=off", ""},

		{"hw:cpu_polcy=shared", "hw:cpu_polcy: no such extra spec; the nearest is hw:cpu_policy"},
		{"hw:cpu_realtime_masks=0", "the nearest is hw:cpu_realtime_mask"},
		{"hw:mem_pagesize=4", "the nearest is hw:mem_page_size"},
		{"hw:emulator_thread_policy=share", "the nearest is hw:emulator_threads_policy"},
		{"hw:numa_node=1", "the nearest is hw:numa_nodes"},
		{"hw:numa_cpu.0=1", "the nearest is hw:numa_cpus.0"},
		{"hw:pci_numa_policy=legacy", "the nearest is hw:pci_numa_affinity_policy"},
		{"pci_passthrough:aliases=a:1", "the nearest is pci_passthrough:alias"},
		{"hw:locked_mem=yes", "the nearest is hw:locked_memory"},
		{"hw:iothreads=2", "hw:iothreads: no such extra spec: every guest has 1 I/O thread"},
		{"hw:mem_encryption=true", "hw:mem_encryption: memory encryption is not offered"},
		{"hw:numa_cpus.x=0", "hw:numa_cpus.x: want hw:numa_cpus.N with N from 0 to 127"},
		{"hw:numa_mem.00=0", "want hw:numa_mem.N"},
		{"hw:numa_mem.128=0", "want hw:numa_mem.N"},
		{"hw:numa_mem.-1=0", "want hw:numa_mem.N"},
		{"hw:numa_mem.0=0 hw:numa_mem.2=0", "hw:numa_mem.2: is not read, because hw:numa_mem.1 is not there"},
		{"hw:cpu_realtime=ja", `hw:cpu_realtime: "ja": want yes or no`},
		{"hw:locked_memory=", `hw:locked_memory: "": want yes or no`},
		{"berth:live_migration_bandwidth=20MiB/s berth:live_migration_post_copy=yes", ""},
		{"berth:live_migration_bandwith=1", "berth:live_migration_bandwith: no such extra spec"},
		{"berth:live_migration_parallel_connections=0", `berth:live_migration_parallel_connections: "0": want a number from 1 to 255`},
		{"berth:cold_migration_bandwidth=1", "berth:cold_migration_bandwidth: no such extra spec"},
		{"hw:cpu_a=1 hw:cpu_b=1", "; hw:cpu_b: "},
	} {
		err := Validate(guest(tt.specs))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.specs, err, tt.want)
		}
	}
	if err := Validate(guest("hw:cpu_" + strings.Repeat("x", 1<<20))); err == nil {
		t.Error("a key of a MiB is no fault")
	}
}

func TestInteger_ReadsAsPythonDoes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "+7": 7, " 7\t": 7, "007": 7, "1_000": 1000, "-12": -12,
		"9223372036854775807": 1<<63 - 1, "9223372036854775808": 1<<63 - 1, "-99999999999999999999": -(1<<63 - 1),
	} {
		if got, ok := integer(text); !ok || got != want {
			t.Errorf("%q: got %d, %t; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", " ", "+", "-", "_1", "1_", "1__0", "1 0", "0x1", "1.0", "1e3", "- 1", "--1", "٣"} {
		if got, ok := integer(text); ok {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

// TestMask_IsWhatCountingGives holds the spans against single numbers.
func TestMask_IsWhatCountingGives(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		in, out := map[int]bool{}, map[int]bool{}
		var parts []string
		for range rng.IntN(7) {
			first := rng.IntN(20)
			last, text := first, ""
			if rng.IntN(2) == 0 {
				last += rng.IntN(6)
				text = "-" + strconv.Itoa(last)
			}
			text, to := strconv.Itoa(first)+text, in
			if rng.IntN(3) == 0 {
				text, to = "^"+text, out
			}
			for n := first; n <= last; n++ {
				to[n] = true
			}
			parts = append(parts, text)
		}
		text := strings.Join(parts, ",")
		m, err := parseMask(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		const vcpus = 16
		var want []int
		beyond := int64(-1)
		for n := range 30 {
			if in[n] && !out[n] {
				if n < vcpus {
					want = append(want, n)
				} else if beyond < 0 {
					beyond = int64(n)
				}
			}
		}
		got := m.below(vcpus)
		first, some := m.beyond(vcpus)
		if len(got) != len(want) || !got.ContainsAll(want) || some != (beyond >= 0) || some && first != beyond {
			t.Fatalf("%q: got %v and %d, want %v and %d", text, got, first, want, beyond)
		}
	}
}
