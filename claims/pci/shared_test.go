package pci_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/claims/pci"
	"berth/test/shared"
	"berth/topology"
)

// TestDevices_OfTheSharedMachines: what hwloc reads of real machines runs
// through, and no bridge is offered.
func TestDevices_OfTheSharedMachines(t *testing.T) {
	files, err := filepath.Glob(shared.Path(t, "hosts") + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d machines: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var h topology.Host
			if err := json.Unmarshal(data, &h); err != nil {
				t.Fatal(err)
			}
			devices, _ := pci.Devices(&h, []pci.Spec{{}})
			if len(devices) != len(h.PCI) {
				t.Fatalf("%d devices of %d functions", len(devices), len(h.PCI))
			}
			offered := 0
			for _, p := range pci.Pools(devices, nil, "") {
				for _, a := range p.Addresses {
					offered++
					if f, _ := h.Device(a); strings.HasPrefix(f.Class, "0x06") && !strings.HasPrefix(f.Class, "0x0680") {
						t.Errorf("%s is offered, class %s", a, f.Class)
					}
				}
			}
			t.Logf("%d functions, %d may be given", len(h.PCI), offered)
		})
	}
}
