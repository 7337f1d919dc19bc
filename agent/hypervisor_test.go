package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/topology"
)

// TestHypervisor_KeepsWhatItToldLast: a hypervisor that does not tell what guests
// can have takes nothing away of it.
func TestHypervisor_KeepsWhatItToldLast(t *testing.T) {
	t.Parallel()
	o := agentOptions(t, settings(t, nowhere(t)))
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&o.Config)
	if err := a.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}()
	if a.hypervisor.capabilities() != nil {
		t.Fatal("known before anybody was asked")
	}
	can := topology.Capabilities{VirtType: "kvm", Firmware: []string{"bios"}}
	a.hypervisor.found(driver.Node{Capabilities: &can})
	a.hypervisor.found(driver.Node{CapabilitiesError: "QEMU cannot be probed"})
	if diff := cmp.Diff(&can, a.hypervisor.capabilities()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if in := a.hypervisor.view(); in.LiveMigration || in.PostCopy {
		t.Error("a driver without the ability to migrate is said to have it")
	}
	more := topology.Capabilities{VirtType: "kvm", Firmware: []string{"bios", "efi"}}
	a.hypervisor.found(driver.Node{Capabilities: &more})
	if diff := cmp.Diff(&more, a.hypervisor.capabilities()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
