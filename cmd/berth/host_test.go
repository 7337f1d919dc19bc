package main

import (
	"strings"
	"testing"

	"berth/agent/api"
	"berth/placementclient"
	"berth/topology"
)

func TestCapabilityRows_SayInAFewLinesWhatGuestsCanHave(t *testing.T) {
	can := &topology.Capabilities{
		VirtType: "kvm", MaxVCPUs: 4096, Machines: make([]topology.MachineType, 3), Firmware: []string{"bios", "efi"}, SecureBoot: true,
		CPU:            topology.HypervisorCPU{Model: "EPYC-Milan", Vendor: "AMD", Features: []string{"avx", "svm"}},
		TPM:            topology.TPMCapabilities{Models: []string{"tpm-crb", "tpm-tis"}, Backends: []string{"emulator"}, Versions: []string{"2.0"}},
		LaunchSecurity: []string{"sev"}, HostDevices: []string{"pci", "usb"},
	}
	bare := &topology.Capabilities{VirtType: "qemu", TPM: topology.TPMCapabilities{Models: []string{"tpm-tis"}, Backends: []string{"passthrough"}}}
	for _, tt := range []struct {
		name string
		can  *topology.Capabilities
		want string
	}{
		{"all", can, `cpu of guests EPYC-Milan (AMD), 2 features, by kvm
machine types 3, up to 4096 vCPUs
firmware bios, efi, secure boot
tpm tpm-crb, tpm-tis 2.0
memory encryption sev
host devices pci, usb`},
		{"little", bare, `cpu of guests no named model, features not known, by qemu
machine types 0, up to 0 vCPUs
firmware none
tpm none for each guest
memory encryption none
host devices none`},
		{"not told", nil, "guests can have not known yet"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			capabilityRows(&b, tt.can)
			var lines []string
			for line := range strings.Lines(b.String()) {
				lines = append(lines, strings.Join(strings.Fields(line), " "))
			}
			if got := strings.Join(lines, "\n"); got != tt.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tt.want)
			}
		})
	}
}

func TestProviderTable_ShowsEachBelowItsParent(t *testing.T) {
	var b strings.Builder
	providerTable(&b, []api.ProviderView{
		{Name: "host-a"}, {Name: "host-a_NUMA0", Parent: "host-a"}, {Name: "host-a_NUMA1", Parent: "host-a"},
		{Name: "host-a_NUMA0_4KiB", Parent: "host-a_NUMA0", Inventories: map[string]placementclient.Inventory{"MEMORY_MB": {Total: 64, AllocationRatio: 1}}},
	})
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := `PROVIDER RESOURCE CLASS TOTAL RESERVED RATIO ALLOCATED
host-a none
└ host-a_NUMA0 none
└ host-a_NUMA0_4KiB MEMORY_MB 64 0 1 0
└ host-a_NUMA1 none`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
