package host_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/topology"
)

// byHand moves a guest from a to b as people do with virsh.
func (l *lab) byHand(uuid string) {
	l.t.Helper()
	fake := l.hosts["a"].fake
	text, err := fake.XML(l.t.Context(), uuid, driver.Persistent)
	l.must("read its document", err)
	l.must("migrate by hand", fake.Migrate(l.t.Context(), uuid, driver.Migration{
		DestinationURI: "qemu+tls://b/system", DestinationXML: text, PersistentXML: text,
	}))
	l.state("b", uuid, driver.Running)
	l.state("a", uuid, driver.ShutOff)
}

func TestAdopt_OfAGuestMovedByHandEndsWithOneOwnerAndOneAllocation(t *testing.T) {
	l := newLab(t, "a", "b")
	a, b := l.hosts["a"], l.hosts["b"]
	v := l.guest("a", "vm1")
	l.byHand(v.UUID)

	// While the old host holds its allocation nobody writes over it.
	got, err := b.Adopt(t.Context(), "vm1")
	l.must("adopt", err)
	var remarks []string
	for _, w := range got[0].Warnings {
		remarks = append(remarks, w.Code)
	}
	if diff := cmp.Diff([]string{"allocation_elsewhere"}, remarks); diff != "" {
		t.Errorf("remarks (-want +got):\n%s", diff)
	}
	l.must("delete what is left", a.Delete(t.Context(), "vm1", host.DeleteOptions{}))
	_, err = b.Adopt(t.Context(), "vm1")
	l.must("adopt again", err)
	want := picture{
		"a files": {"/images"}, "b files": {"/images"},
		"b domains":   {"vm1 running"},
		"b claims":    {v.UUID + " instance bound 1 vcpus, 128 MiB, 0 GiB"},
		"b instances": {"vm1 here"},
		"allocations": {v.UUID + " rp-b MEMORY_MB,VCPU"},
	}
	l.same("after the adoption", want)
}

func TestFollow_LeavesTheAllocationOfAGuestMovedByHand(t *testing.T) {
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v := l.guest("a", "vm1")
	a.Close() // the old host's agent is down meanwhile
	l.byHand(v.UUID)
	l.must("undefine", a.fake.Undefine(t.Context(), v.UUID))
	l.must("its operator moves the allocation", l.placement.DeleteAllocations(t.Context(), v.UUID))
	_, err := l.hosts["b"].Adopt(t.Context(), "vm1")
	l.must("adopt", err)
	l.must("settle", l.boot("a", nil).Settle(t.Context()))
	l.same("after the old host is back", picture{
		"a files": {"/images"}, "b files": {"/images"},
		"b domains":   {"vm1 running"},
		"b claims":    {v.UUID + " instance bound 1 vcpus, 128 MiB, 0 GiB"},
		"b instances": {"vm1 here"},
		"allocations": {v.UUID + " rp-b MEMORY_MB,VCPU"},
	})
}

func TestAdopt_PassesOverWhatAMigrationByHandHasLeft(t *testing.T) {
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", "", "")))
	uuid := "44444444-4444-4444-8444-444444444444"
	l.must("start", a.fake.Start(t.Context(), uuid, false))
	l.byHand(uuid)
	before := l.picture()
	got, err := a.Adopt(t.Context(), "")
	if err != nil || len(got) != 0 {
		t.Errorf("adopted %+v, %v", got, err)
	}
	_, err = a.Adopt(t.Context(), "foreign")
	l.wantKind("adopt by name", err, fault.Forbidden)
	l.same("what is left", before)
}

func TestDelete_TakesFirmwareVariablesAlong(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	before := l.picture()
	a.put(t, "/images/VARS.fd", "variables", 0o600)
	text := strings.Replace(foreignXML("foreign", "", ""), "</os>", "<nvram template='/usr/share/OVMF.fd'>/images/VARS.fd</nvram></os>", 1)
	l.must("define", a.fake.Define(t.Context(), text))
	_, err := a.Adopt(t.Context(), "foreign")
	l.must("adopt", err)
	l.must("delete", a.Delete(t.Context(), "foreign", host.DeleteOptions{}))
	l.same("after the deletion", before)
}

// A block device is not the instance's, whatever was written to it.
func TestDelete_LeavesFirmwareVariablesOnADevice(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	a.put(t, "/images/vars", "variables", 0o600)
	before := l.picture()
	text := strings.Replace(foreignXML("foreign", "", ""), "</os>", "<nvram type='block'><source dev='/images/vars'/></nvram></os>", 1)
	l.must("define", a.fake.Define(t.Context(), text))
	_, err := a.Adopt(t.Context(), "foreign")
	l.must("adopt", err)
	l.must("delete", a.Delete(t.Context(), "foreign", host.DeleteOptions{Disks: true}))
	l.same("after the deletion", before)
}

func TestCreate_RefusesAUUIDThatHoldsAnAllocationElsewhere(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("b", "vm1")
	before := l.picture()
	_, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{
		Name: "vm2", UUID: v.UUID, Flavor: topology.Flavor{Name: "tiny", VCPUs: 1, MemoryMB: 64}, Kernel: "/boot/vmlinuz",
	})
	l.wantKind("create", err, fault.Forbidden)
	l.same("left behind", before)
}
