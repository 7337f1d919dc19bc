package lab

import (
	"os"
	"testing"
)

func TestUp_LetsQEMUsUserAtKVMWhereTheMachineHasIt(t *testing.T) {
	l := Start(t, Options{Names: []string{"one"}, NoLibvirtd: true})
	_, have := os.Stat("/dev/kvm")
	_, err := l.Hosts[0].Exec(t.Context(), "setpriv", "--reuid", "libvirt-qemu", "--regid", "libvirt-qemu", "--clear-groups", "test", "-w", "/dev/kvm")
	if (err == nil) != (have == nil) {
		t.Errorf("the machine has /dev/kvm: %v; QEMU's user may write to the host's: %v", have, err)
	}
}
