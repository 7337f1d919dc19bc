package topology_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

func TestHypervisorCPU_LacksNamesWhatTheOtherHas(t *testing.T) {
	skylake := topology.HypervisorCPU{Features: []string{"avx", "avx512f", "sse4.2"}}
	for _, tt := range []struct {
		name string
		here topology.HypervisorCPU
		want []string
	}{
		{"all", topology.HypervisorCPU{Features: []string{"avx", "avx512f", "sse4.2", "vmx"}}, nil},
		{"some", topology.HypervisorCPU{Features: []string{"avx"}}, []string{"avx512f", "sse4.2"}},
		{"unknown", topology.HypervisorCPU{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.here.Lacks(skylake); !slices.Equal(got, tt.want) {
				t.Errorf("lacks %q, want %q", got, tt.want)
			}
		})
	}
	if diff := cmp.Diff([]string{"avx", "avx512f", "sse4.2"}, skylake.Features); diff != "" {
		t.Errorf("asking changed the features (-want +got):\n%s", diff)
	}
}

func TestCapabilities_NearestMachine(t *testing.T) {
	c := topology.Capabilities{Machines: []topology.MachineType{
		{Name: "pc", Canonical: "pc-i440fx-10.0"}, {Name: "pc-i440fx-10.0"}, {Name: "pc-q35-9.2"}, {Name: "pc-q35-10.0"}, {Name: "pc-q35-4.0.1"},
		{Name: "q35", Canonical: "pc-q35-10.0"}, {Name: "microvm"}, {Name: "virt-9.0"}, {Name: "virt", Canonical: "virt-9.0"},
	}}
	for name, want := range map[string]string{
		"pc-q35-10.1": "pc-q35-10.0", "pc-q35-rhel9.6.0": "", "pc-i440fx-2.0": "pc-i440fx-10.0", "virt-10.0": "virt-9.0", "isapc": "",
	} {
		if got := c.NearestMachine(name); got != want {
			t.Errorf("nearest to %s is %q, want %q", name, got, want)
		}
	}
}
