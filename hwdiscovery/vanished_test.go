package hwdiscovery

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/topology"
)

// TestDiscover_AFolderThatVanishesIsNoSmallerHost takes whole folders away, as
// where something was unmounted or an empty folder was mounted over them: the
// host is degraded by a missing file of the host as a whole, which no agent
// believes. A kernel that never had them is sound.
func TestDiscover_AFolderThatVanishesIsNoSmallerHost(t *testing.T) {
	for _, dir := range []string{"sys", "sys/devices/system", cpuDir, nodeDir, "sys/bus", "sys/bus/pci", pciDir} {
		for _, empty := range []bool{false, true} {
			root := machineDir(t)
			plant(t, bigMachine(2), root)
			for cpu := range 32 { // links on a real machine
				write(t, root, cpuFile(cpu, "node"+string(rune('0'+cpu/16))+"/x"), "")
			}
			var info strings.Builder
			for cpu := range 32 {
				info.WriteString("processor\t: " + topology.CPUSet{cpu}.String() + "\n\n")
			}
			write(t, root, procCPUInfo, info.String())
			for name, text := range map[string]string{"vendor": "0x8086\n", "device": "0x1563\n", "class": "0x088000\n"} {
				write(t, root, pciDir+"/0000:3b:00.0/"+name, text)
			}
			write(t, root, procPCI, "3b00\t80861563\t0\n")
			if h, err := Discover(root, withoutGHW()); err != nil || h.Health != topology.HealthOK {
				t.Fatalf("before: %v, %+v", err, h.Reasons)
			}
			if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
				t.Fatal(err)
			}
			if empty {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			h, err := Discover(root, withoutGHW())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(h.Reasons, func(r topology.Reason) bool {
				return r.Degrades && r.Code == "file_missing" && r.Device == nil && strings.HasPrefix(r.File, "sys/")
			}) {
				t.Errorf("%s gone (an empty folder: %v): health %s, %+v", dir, empty, h.Health, h.Reasons)
			}
		}
	}
}

func TestDiscover_AMachineWithoutPCIIsSound(t *testing.T) {
	for name, list := range map[string]*string{"no list": nil, "an empty list": new("")} {
		root := machineDir(t)
		plant(t, bigMachine(2), root)
		if list != nil {
			write(t, root, procPCI, *list)
		}
		if h, err := Discover(root, withoutGHW()); err != nil || h.Health != topology.HealthOK {
			t.Errorf("%s: %v, %+v", name, err, h.Reasons)
		}
	}
}

// TestDiscover_AGPUsMemoryIsNoCellWhereProcIsGone: which nodes are a GPU's stands
// in /proc alone.
func TestDiscover_AGPUsMemoryIsNoCellWhereProcIsGone(t *testing.T) {
	root := fixture(t, "gpu-memory")
	before, err := Discover(root, withoutGHW())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "proc")); err != nil {
		t.Fatal(err)
	}
	h, err := Discover(root, withoutGHW())
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Cells) <= len(before.Cells) {
		t.Fatalf("cells %d, before %d: the test shows nothing", len(h.Cells), len(before.Cells))
	}
	if !slices.ContainsFunc(h.Reasons, func(r topology.Reason) bool { return r.Degrades && r.File == procMeminfo && r.Cell != nil }) {
		t.Errorf("a larger host, and nothing is wrong: %+v", h.Reasons)
	}
}
