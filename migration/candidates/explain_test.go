package candidates_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration/candidates"
	"berth/migration/candidates/candidatestest"
	"berth/placementclient"
	"berth/topology"
)

func TestExplain_SaysWhyPlacementDoesNotOfferAHost(t *testing.T) {
	c := embedded(t)(placementclient.MaxMicroversion)
	candidatestest.Fill(t, c)
	list, err := c.Providers(t.Context(), placementclient.ProviderFilter{})
	if err != nil {
		t.Fatal(err)
	}
	trees, roots := map[string][]placementclient.ResourceProvider{}, map[string]string{}
	for _, p := range list {
		trees[p.RootProviderUUID] = append(trees[p.RootProviderUUID], p)
		if p.IsRoot() {
			roots[p.Name] = p.UUID
		}
	}
	gpu := topology.PCIRequest{ID: "gpu", Count: 2, Specs: []topology.PCISpec{{Vendor: "10de", Product: "2330"}}}
	set, err := topology.ParseCPUSet("0-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		host string
		wish candidates.Wish
		want string
	}{
		{"flat-off", candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 1}}, "flat-off is disabled for new guests (COMPUTE_STATUS_DISABLED)"},
		{"flat-full", candidates.Wish{Resources: topology.Resources{VCPUs: 2, PCPUs: 1, MemoryMB: 65536, DiskGB: 101}, ExtraSpecs: map[string]string{
			"trait:CUSTOM_RACK_1": "forbidden", "trait:CUSTOM_FAST": "required", "resources:CUSTOM_NIC": "1",
		}}, `flat-full has no trait CUSTOM_FAST in Placement
flat-full has trait CUSTOM_RACK_1, which the flavor forbids
VCPU: want 2, Placement has 0 of 2 free on flat-full
PCPU: want 1, flat-full has none in Placement
MEMORY_MB: want 65536, Placement has 16384 of 16384 free on flat-full
DISK_GB: want 101, Placement has 100 of 100 free on flat-full
CUSTOM_NIC: want 1, flat-full has none in Placement`},
		{"nested", candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 1200}, Topology: &topology.GuestTopology{Cells: []topology.GuestCell{{SharedVCPUs: set, MemoryMB: 1200}}}, Devices: []topology.PCIRequest{gpu}},
			"CUSTOM_PCI_10DE_2330: want 2, Placement has 1 of 1 free on nested"},
		{"nested", candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 1200}, Topology: &topology.GuestTopology{Cells: []topology.GuestCell{{SharedVCPUs: set, MemoryMB: 1200}}}},
			"Placement does not offer nested, though the sums would do: no one of its providers has all that is asked of one"},
	} {
		seen, err := candidates.See(t.Context(), c, trees[roots[tt.host]])
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range candidates.Explain(tt.wish, tt.host, seen) {
			got = append(got, r.Message)
		}
		if diff := cmp.Diff(strings.Split(tt.want, "\n"), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.host, diff)
		}
	}
}

// TestExplain_OfALargeTreeSaysOnlyWhatIsSure: what is not read may have all of it.
func TestExplain_OfALargeTreeSaysOnlyWhatIsSure(t *testing.T) {
	c := embedded(t)(placementclient.MaxMicroversion)
	root := "00000000-0000-4000-8000-000000000099"
	tree := []placementclient.ResourceProvider{}
	for i := range 40 {
		uuid, parent := fmt.Sprintf("00000000-0000-4000-8000-0000000001%02d", i), root
		if i == 0 {
			uuid, parent = root, ""
		}
		p, err := c.CreateProvider(t.Context(), placementclient.NewProvider{Name: fmt.Sprintf("large-%02d", 99-i), UUID: uuid, ParentProviderUUID: parent})
		if err == nil && i == 0 {
			_, err = c.PutTraits(t.Context(), uuid, placementclient.Traits{Generation: p.Generation, Traits: []string{placementclient.TraitComputeStatusDisabled}})
		}
		if err != nil {
			t.Fatal(err)
		}
		tree = append(tree, p)
	}
	slices.Reverse(tree) // the root is last
	w := candidates.Wish{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512}, ExtraSpecs: map[string]string{"trait:CUSTOM_X": "required"}}
	seen, err := candidates.See(t.Context(), c, tree)
	if err != nil {
		t.Fatal(err)
	}
	codes := func(seen []candidates.Seen) (out []string) {
		for _, r := range candidates.Explain(w, "large", seen) {
			out = append(out, r.Code)
		}
		return out
	}
	if diff := cmp.Diff([]string{candidates.CodeDisabled}, codes(seen)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	seen[0].Traits = nil
	if diff := cmp.Diff([]string{candidates.CodeUnread}, codes(seen)); diff != "" {
		t.Errorf("reasons of an enabled host (-want +got):\n%s", diff)
	}
}
