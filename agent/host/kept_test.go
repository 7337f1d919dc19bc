package host_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/claims/fit"
	"berth/claims/pci"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// foreigners are guests as virt-install, virsh, Nova, KubeVirt and people make
// them, by file name.
func foreigners(t *testing.T) map[string]*domainxml.Doc {
	t.Helper()
	files, err := filepath.Glob("../../driver/libvirt/domainxml/testdata/adopt/*.xml")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	out := map[string]*domainxml.Doc{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := domainxml.Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		// libvirt gives every uuid back in one form.
		one := "<uuid>" + doc.UUID() + "</uuid>"
		doc, err = domainxml.Parse(regexp.MustCompile("<uuid>[^<]*</uuid>").ReplaceAllString(string(text), one))
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = doc
	}
	return out
}

// roomy is a host of two cells with room for all foreigners, and with the devices
// that they name.
func roomy(o *host.Options) {
	set := func(list string) topology.CPUSet {
		s, err := topology.ParseCPUSet(list)
		if err != nil {
			panic(err)
		}
		return s
	}
	sizes := []topology.PageSize{topology.PageSize4K, topology.PageSize2M, topology.PageSize1G}
	hw := &topology.Host{
		Cells:        []topology.Cell{{ID: 0, CPUs: set("0-7,16-23")}, {ID: 1, CPUs: set("8-15,24-31")}},
		BasePageSize: topology.PageSize4K, PageSizes: sizes,
	}
	shared := set("0-1,16-17")
	c := claims.Capacity{
		Total:    topology.Resources{VCPUs: 8, PCPUs: 28, MemoryMB: 256 << 10, DiskGB: 1000},
		CPURatio: 64, RAMRatio: 1, DiskRatio: 1,
	}
	for _, cell := range hw.Cells {
		c.Cells = append(c.Cells, fit.Cell{
			ID: cell.ID, Shared: cell.CPUs.Intersection(shared), Dedicated: cell.CPUs.Difference(shared), MemoryMB: 128 << 10,
			Pages: []fit.Pages{{Size: sizes[0], Total: 64 << 18}, {Size: sizes[1], Total: 16 << 10}, {Size: sizes[2], Total: 32}},
		})
	}
	device := func(a topology.PCIAddress, vendor, product string, kind topology.PCIType) {
		hw.PCI = append(hw.PCI, topology.PCIDevice{Address: a, Vendor: "0x" + vendor, Product: "0x" + product})
		c.Devices = append(c.Devices, pci.Device{Address: a, Vendor: vendor, Product: product, Type: kind, Managed: true})
	}
	for i := range uint8(8) {
		device(topology.PCIAddress{Bus: 0x3b, Device: 2, Function: i}, "8086", "1889", topology.PCITypeVF)
	}
	device(topology.PCIAddress{Bus: 0x5e}, "144d", "a80a", topology.PCITypeFunction)
	o.Hardware = func() *topology.Host { return hw }
	o.SharedCPUs = func() topology.CPUSet { return shared }
	o.Tracker.SetCapacity(c)
}

// All of them at once: each is managed, none is changed, and what two of them have
// is forced and named, core by core and device by device.
func TestAdopt_ForeignersOfEveryKind(t *testing.T) {
	l := newLab(t, "a")
	l.hosts["a"].Close()
	a := l.boot("a", roomy)
	docs := foreigners(t)
	before := map[string]string{} // by uuid
	var err error
	for name, doc := range docs {
		l.must("define "+name, a.fake.Define(t.Context(), doc.String()))
		text, err := a.fake.XML(t.Context(), doc.UUID(), driver.Live)
		l.must("read "+name, err)
		before[doc.UUID()] = text
	}
	for _, name := range []string{"virt-install-q35-secureboot", "sriov-hostdev-pinned", "mdev-vgpu", "nova-flavor-metadata"} {
		id := docs[name+".xml"].UUID()
		l.must("start "+name, a.fake.Start(t.Context(), id, false))
		before[id], err = a.fake.XML(t.Context(), id, driver.Live)
		l.must("read "+name, err)
	}
	adopted, err := a.Adopt(t.Context(), "")
	l.must("adopt all", err)
	if len(adopted) != len(docs) {
		t.Errorf("%d adopted of %d", len(adopted), len(docs))
	}
	for _, got := range adopted {
		if !got.Managed || !got.New || got.Error != "" || got.Claim == nil || got.Claim.State != claims.Bound {
			t.Errorf("%s: %+v", got.Name, got)
		}
	}
	uuid := func(name string) string { return docs[name+".xml"].UUID() }
	for name, doc := range docs {
		text, err := a.fake.XML(t.Context(), doc.UUID(), driver.Live)
		l.must("read "+name, err)
		if diff := cmp.Diff(before[doc.UUID()], text); diff != "" {
			t.Errorf("%s was changed (-was +is):\n%s", name, diff)
		}
		i := slices.IndexFunc(adopted, func(x host.Adopted) bool { return x.UUID == doc.UUID() })
		for _, k := range doc.Kept() {
			said := func(r fault.Reason) bool {
				return r.Code == "kept_as_it_is" && r.Message == doc.Name()+": "+k.String() && r.Change == k.Change
			}
			if !slices.ContainsFunc(adopted[i].Warnings, said) || !slices.ContainsFunc(a.Remarks(t.Context(), doc.UUID()), said) {
				t.Errorf("%s: nobody says that %s", name, k)
			}
		}
	}
	// What a guest shares with its rival, and pages whose cell nobody wrote down.
	usage := a.tracker.Usage()
	if diff := cmp.Diff([]string{uuid("sriov-hostdev-pinned"), uuid("mdev-vgpu"), uuid("hugepages-default-virtiofs")}, usage.Forced); diff != "" {
		t.Errorf("forced, with the rival adopted before them (-want +got):\n%s", diff)
	}
	var doubled []string
	for _, d := range usage.Doubled {
		doubled = append(doubled, d.String())
	}
	both := func(one string) string { return "held by " + uuid(one) + " and " + uuid("doubled-with-others") }
	want := []string{
		"cpu 2 of cell 0: " + both("sriov-hostdev-pinned"), "cpu 18 of cell 0: " + both("sriov-hostdev-pinned"),
		"PCI device 0000:3b:02.1: " + both("sriov-hostdev-pinned"), "mediated device c2177883-f1bb-47f0-914d-32a22e3a8804: " + both("mdev-vgpu"),
	}
	if diff := cmp.Diff(want, doubled); diff != "" {
		t.Errorf("doubled (-want +got):\n%s", diff)
	}
	if audit := a.tracker.Audit(); len(audit.Differences) > 0 || len(audit.Lost) > 0 {
		t.Errorf("audit %+v", audit)
	}
	// Once more, nothing is new and nothing changes.
	claimed := a.tracker.List()
	again, err := a.Adopt(t.Context(), "")
	l.must("adopt all again", err)
	for _, got := range again {
		if got.New || got.Error != "" {
			t.Errorf("again: %s: new %t, %q", got.Name, got.New, got.Error)
		}
	}
	now := a.tracker.List()
	for i := range now {
		now[i].Forced, claimed[i].Forced = false, false // the rival was first, and is looked at again
	}
	if diff := cmp.Diff(claimed, now); diff != "" {
		t.Errorf("claims after adopting again (-want +got):\n%s", diff)
	}
}

// What adoption says cannot be live-migrated is what a move is refused for, by the
// same name, and so are each device of the host's, and each file that it boots from
// and the destination has not.
func TestCheckDestination_RefusesWhatAdoptionNamed(t *testing.T) {
	l := newLab(t, "a", "b")
	a, b := l.hosts["a"], l.hosts["b"]
	here, err := a.Describe(t.Context())
	l.must("describe", err)
	for name, doc := range foreigners(t) {
		var want []string
		for _, k := range doc.Kept() {
			if k.Stays {
				want = append(want, k.What)
			}
		}
		p, err := doc.Pinning()
		l.must("read "+name, err)
		for _, d := range p.Devices {
			switch d.Element {
			case "hostdev":
				want = append(want, "pci host device "+d.Address.String())
			case "interface":
				want = append(want, "interface of a PCI host device "+d.Address.String())
			}
		}
		for _, m := range p.Mdevs {
			want = append(want, "mdev host device "+m)
		}
		_, err = operation.CheckDestination.Ask(t.Context(), b, refFor(doc.UUID(), 1), migration.CheckRequest{
			Guest:  migration.Guest{UUID: doc.UUID(), Name: doc.Name(), Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}, XML: doc.String()},
			Source: here,
		})
		f := doc.Firmware()
		for _, path := range append(f.Others, f.Loader, f.Template, f.Kernel, f.Initrd) {
			if path != "" {
				want = append(want, "file "+path)
			}
		}
		var got []string
		for _, r := range fault.ReasonsOf(err) {
			switch r.Code {
			case "file_missing":
				got = append(got, "file "+r.Want)
			case "device_not_migratable":
				got = append(got, strings.Replace(r.Have, "C2177883-F1BB-47F0-914D-32A22E3A8804", "c2177883-f1bb-47f0-914d-32a22e3a8804", 1))
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-named +refused):\n%s", name, diff)
		}
	}
}

// A new guest gets devices by its flavor: a claim would not hold what its document
// names.
func TestCreate_RefusesDevicesThatADocumentNames(t *testing.T) {
	l := newLab(t, "a")
	for name, devices := range map[string][]string{"sriov-hostdev-pinned.xml": {"0000:3b:02.0", "0000:3b:02.1"}, "mdev-vgpu.xml": {"9063cba3-ecef-47b6-abcf-3fef4fdcad85", "c2177883-f1bb-47f0-914d-32a22e3a8804"}} {
		_, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{XML: foreigners(t)[name].String()})
		var got []string
		for _, r := range fault.ReasonsOf(err) {
			if r.Code == "document_device" {
				got = append(got, r.Have)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(devices, got); diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	l.same("nothing is left", picture{"a files": {"/images"}})
}
