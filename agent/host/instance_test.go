package host_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

func TestCreate_ClaimsAllocatesDefinesAndStarts(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 2})
	want := picture{
		"a domains":   {"vm1 running"},
		"a claims":    {v.UUID + " instance bound 1 vcpus, 128 MiB, 2 GiB"},
		"a instances": {"vm1 here"},
		"a files":     {"/images", "/images/vm1-vda.qcow2"},
		"allocations": {v.UUID + " rp-a DISK_GB,MEMORY_MB,VCPU"},
	}
	l.same("after create", want)
	text, err := l.hosts["a"].fake.XML(t.Context(), v.UUID, driver.Persistent)
	l.must("read its document", err)
	doc, err := domainxml.Parse(text)
	l.must("parse its document", err)
	meta, ok, err := doc.Metadata()
	if diff := cmp.Diff(domainxml.Metadata{Name: "vm1", Flavor: small, Epoch: 1}, meta); diff != "" || !ok || err != nil {
		t.Errorf("metadata %v, %v (-want +got):\n%s", ok, err, diff)
	}
	if !v.Managed || v.State != "running" || v.Claim == nil || v.Token.Epoch != 1 {
		t.Errorf("answer %+v", v)
	}
}

func TestCreate_LeavesNothingWhateverFails(t *testing.T) {
	requireQemuImg(t)
	for _, fail := range []string{"Define", "SetAutostart", "Start", "placement", "disk"} {
		for _, when := range []string{"before", "after"} {
			t.Run(fail+" "+when, func(t *testing.T) {
				l := newLab(t, "a")
				a := l.hosts["a"]
				a.put(t, "/images/kept", "somebody else's", 0o644)
				a.put(t, "/boot/vmlinuz", "kernel", 0o644)
				before := l.picture()
				broken := func(call, _ string) error {
					if call == fail {
						return fault.New(fault.InDoubt, "%s: the answer was lost", call)
					}
					return nil
				}
				disk := host.CreateDisk{Path: "/images/new/deep/disk", SizeGB: 1}
				switch {
				case fail == "placement":
					l.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
				case fail == "disk":
					disk.Path = "/images/kept/disk" // below a file: no folder can be made
				case when == "before":
					a.fake.Fault(broken)
				default:
					a.fake.FaultReply(broken)
				}
				_, err := a.Create(t.Context(), host.CreateRequest{
					Name: "vm1", Flavor: small, Kernel: "/boot/vmlinuz", Disks: []host.CreateDisk{disk}, Start: true,
				})
				if err == nil {
					t.Fatal("created all the same")
				}
				a.fake.Fault(nil)
				a.fake.FaultReply(nil)
				if fail == "placement" {
					// Its undo could not be done either: the claim is kept until it can.
					l.placement.breakWith(nil)
					l.must("settle", a.Settle(t.Context()))
				}
				l.same("left behind", before)
			})
		}
	}
}

func TestCreate_ListsEveryReason(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	l.guest("a", "vm1")
	a.put(t, "/images/taken", "x", 0o644)
	before := l.picture()
	_, err := a.Create(t.Context(), host.CreateRequest{
		Name: "vm1", Flavor: topology.Flavor{Name: "huge", VCPUs: 64, MemoryMB: 1 << 20, DiskGB: 1},
		Kernel: "/boot/nowhere",
		Disks: []host.CreateDisk{{Path: "/images/taken", SizeGB: 1}, {Path: "/etc/cron.d/x", SizeGB: 1}, {Path: "rel", SizeGB: 1},
			{Path: "/images/x", SizeGB: 1, Format: "vmdk"}},
	})
	got := strings.Join(codes(err), " ")
	for _, want := range []string{"disk_exists", "disk_place", "disk_path", "disk_format", "name_exists", "file_missing", "memory_over_host", "vcpu_over_host", "request_invalid"} {
		if !strings.Contains(got, want) {
			t.Errorf("reasons %s: want %s among them", got, want)
		}
	}
	l.wantKind("create", err, fault.Invalid)
	l.same("left behind", before)
}

func TestCreate_FromADocumentKeepsIt(t *testing.T) {
	l := newLab(t, "a")
	v, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{XML: foreignXML("from-xml", "", "")})
	l.must("create", err)
	text, err := l.hosts["a"].fake.XML(t.Context(), v.UUID, driver.Persistent)
	l.must("read its document", err)
	if !strings.Contains(text, "<something xmlns='urn:x'/>") || v.State != "shut off" || v.Flavor.MemoryMB != 256 {
		t.Errorf("state %s, flavor %+v, document:\n%s", v.State, v.Flavor, text)
	}
	_, err = l.hosts["a"].Create(t.Context(), host.CreateRequest{XML: foreignXML("other", "", ""), Name: "else", Flavor: topology.Flavor{Name: "tiny", VCPUs: 1, MemoryMB: 64}})
	if diff := cmp.Diff([]string{"flavor_too_small", "name_differs"}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

// foreignXML is a guest that somebody else made.
func foreignXML(name, devices, attrs string) string {
	uuid := map[string]string{"foreign": "44444444-4444-4444-8444-444444444444"}[name]
	if uuid == "" {
		uuid = "33333333-3333-4333-8333-333333333333"
	}
	return `<domain type='kvm'` + attrs + `><name>` + name + `</name><uuid>` + uuid + `</uuid>` +
		`<metadata><something xmlns='urn:x'/></metadata><memory unit='MiB'>256</memory><vcpu>2</vcpu>` +
		`<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><devices>` + devices + `</devices></domain>`
}

func TestAdopt_NeverRefusesForRoomAndChangesNoGuest(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	big := strings.Replace(foreignXML("foreign", "", ""), "<memory unit='MiB'>256", "<memory unit='MiB'>4096", 1)
	l.must("define", a.fake.Define(t.Context(), big))
	l.must("start", a.fake.Start(t.Context(), "44444444-4444-4444-8444-444444444444", false))
	l.must("define", a.fake.Define(t.Context(), foreignXML("second", "", "")))
	l.must("autostart", a.fake.SetAutostart(t.Context(), "33333333-3333-4333-8333-333333333333", true))

	for round, wantNew := range []bool{true, false} {
		got, err := a.Adopt(t.Context(), "")
		l.must("adopt", err)
		if len(got) != 2 || got[0].Name != "foreign" || got[0].New != wantNew || got[0].State != "running" {
			t.Fatalf("round %d: %+v", round, got)
		}
		if got[0].Claim == nil || !got[0].Claim.Forced || got[0].Warnings[0].Code != "claim_forced" {
			t.Errorf("round %d: a guest over the host's capacity: %+v", round, got[0])
		}
		if got[1].Claim.Forced != true || !got[1].Autostart || got[1].Flavor.Name != "adopted" {
			t.Errorf("round %d: %+v", round, got[1])
		}
	}
	text, err := a.fake.XML(t.Context(), "44444444-4444-4444-8444-444444444444", driver.Persistent)
	if err != nil || text != big {
		t.Errorf("the definition was changed: %v\n%s", err, text)
	}
	d, _ := a.fake.Domain(t.Context(), "33333333-3333-4333-8333-333333333333")
	if d.Autostart {
		t.Error("libvirt still starts it by itself")
	}
	if n := len(l.placement.all()); n != 2 {
		t.Errorf("%d allocations, want 2", n)
	}
}

func TestAdopt_WithoutPlacementWarnsAndHealsLater(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", "", "")))
	l.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
	got, err := a.Adopt(t.Context(), "foreign")
	if err != nil || len(got) != 1 || !got[0].Managed || len(got[0].Warnings) != 1 || got[0].Warnings[0].Code != "allocation_missing" {
		t.Fatalf("%+v, %v", got, err)
	}
	l.placement.breakWith(nil)
	_, err = a.Adopt(t.Context(), "foreign")
	l.must("adopt again", err)
	if n := len(l.placement.all()); n != 1 {
		t.Errorf("%d allocations, want 1", n)
	}
}

func TestAdopt_AGuestWithADiskThatCannotBeReadIsClaimedAndNamed(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	a.put(t, "/images/odd", strings.Repeat("x", 3<<20), 0o644)
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign",
		`<disk type='file'><driver type='qcow2'/><source file='/images/odd'/><target dev='vda'/></disk>`+
			`<disk type='file'><driver type='qcow2'/><source file='/images/gone'/><target dev='vdb'/></disk>`, "")))
	got, err := a.Adopt(t.Context(), "foreign")
	if err != nil || len(got) != 1 || got[0].Claim == nil || got[0].Claim.Resources.DiskGB != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, dev := range []string{"vda", "vdb"} {
		if w := got[0].Warnings[i]; w.Code != "disk_unreadable" || !strings.Contains(w.Message, dev) {
			t.Errorf("warning %+v, want one about %s", w, dev)
		}
	}
}

func TestInstance_StartStopDelete(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a")
	a := l.hosts["a"]
	empty := l.picture()
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	l.must("stop by name", a.Stop(t.Context(), "vm1", host.StopOptions{Timeout: time.Second}))
	l.state("a", v.UUID, driver.ShutOff)
	l.must("stop again", a.Stop(t.Context(), v.UUID, host.StopOptions{}))
	l.must("start", a.Start(t.Context(), v.UUID, false))
	l.must("start again", a.Start(t.Context(), strings.ToUpper(v.UUID), false))
	l.wantKind("delete while it runs", a.Delete(t.Context(), "vm1", host.DeleteOptions{}), fault.Busy)
	l.must("force it off", a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}))
	l.must("delete", a.Delete(t.Context(), "vm1", host.DeleteOptions{Disks: true}))
	empty["a files"] = []string{"/images"}
	l.same("after delete", empty)
	l.wantKind("delete again", a.Delete(t.Context(), "vm1", host.DeleteOptions{}), fault.NotFound)
	l.wantKind("start", a.Start(t.Context(), v.UUID, false), fault.NotFound)
}

func TestDelete_IsRepeatedAfterPlacementWasAway(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	empty := l.picture()
	l.guest("a", "vm1")
	l.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
	l.wantKind("delete", a.Delete(t.Context(), "vm1", host.DeleteOptions{Force: true}), fault.Unavailable)
	l.placement.breakWith(nil)
	l.must("delete again", a.Delete(t.Context(), "vm1", host.DeleteOptions{}))
	l.same("after delete", empty)
}

func TestDelete_KeepsADiskThatAnotherGuestNames(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a")
	a := l.hosts["a"]
	l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", `<disk type='file'><source file='/images/vm1-vda.qcow2'/><target dev='vda'/></disk>`, "")))
	l.must("delete", a.Delete(t.Context(), "vm1", host.DeleteOptions{Force: true, Disks: true}))
	if got := l.picture()["a files"]; len(got) != 2 {
		t.Errorf("files %v: the other guest's disk was removed", got)
	}
}

func TestInstance_VerbsRefuseWhatIsNotTheirs(t *testing.T) {
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v := l.guest("a", "vm1")
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", "", "")))
	l.wantKind("start a foreign guest", a.Start(t.Context(), "foreign", false), fault.Forbidden)

	ref := refFor(v.UUID, 1)
	l.must("record context", operation.RecordContext.Ask(t.Context(), a, ref, contextOf("a", "b")))
	for what, err := range map[string]error{
		"stop":   a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}),
		"delete": a.Delete(t.Context(), "vm1", host.DeleteOptions{Force: true}),
		"start":  a.Start(t.Context(), "vm1", false),
	} {
		l.wantKind(what+" while it moves", err, fault.Busy)
		if err == nil || !strings.Contains(err.Error(), ref.Migration) {
			t.Errorf("%s: %v does not name the migration", what, err)
		}
	}
	l.must("drop context", operation.DropContext.Ask(t.Context(), a, ref))

	_, err := a.tracker.ReleaseOwnership(t.Context(), migration.Ref{Migration: ref.Migration, Instance: v.UUID, Attempt: 1}, "b")
	l.must("surrender", err)
	l.wantKind("stop what is another's", a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}), fault.Forbidden)
	a.mode = host.ModeObserve
	for what, err := range map[string]error{
		"start": a.Start(t.Context(), "vm1", false),
		"adopt": func() error { _, err := a.Adopt(t.Context(), ""); return err }(),
		"create": func() error {
			_, err := a.Create(t.Context(), host.CreateRequest{Name: "x", Flavor: small})
			return err
		}(),
	} {
		if diff := cmp.Diff([]string{"mode_observe"}, codes(err)); diff != "" {
			t.Errorf("%s in mode observe (-want +got):\n%s", what, diff)
		}
	}
}

func TestResolve_FindsByEitherNameAndSaysWhenItMeansTwo(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v := l.guest("a", "vm1")
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", "", "")))
	if got, err := a.Resolve(t.Context(), "foreign"); err != nil || got != "44444444-4444-4444-8444-444444444444" {
		t.Errorf("foreign guest: %s, %v", got, err)
	}
	_, err := a.Resolve(t.Context(), "nobody")
	l.wantKind("nobody", err, fault.NotFound)
	// Somebody renames both with virsh: the ledger still says vm1.
	_, err = a.tracker.PutInstance(t.Context(), claims.Instance{UUID: v.UUID, Name: "foreign"})
	l.must("rename in the ledger", err)
	_, err = a.Resolve(t.Context(), "foreign")
	l.wantKind("a name that means two", err, fault.Invalid)

	a.fake.KillDaemon()
	if got, err := a.Resolve(t.Context(), "foreign"); err != nil || got != v.UUID {
		t.Errorf("with libvirt away the ledger decides: %s, %v", got, err)
	}
	_, err = a.Resolve(t.Context(), "nobody")
	l.wantKind("nobody, with libvirt away", err, fault.Unavailable)
	list, err := a.List(t.Context())
	l.wantKind("list with libvirt away", err, fault.Unavailable)
	if len(list) != 1 || list[0].State != host.StateUnknown {
		t.Errorf("list %+v", list)
	}
	a.fake.StartDaemon()
	if list, err = a.List(t.Context()); err != nil || len(list) != 2 || list[0].Managed == list[1].Managed {
		t.Errorf("list %+v, %v", list, err)
	}
}

func TestSettle_HealsWhatIsProvablyStale(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	empty := l.picture()
	owner := claims.Owner{Instance: "55555555-5555-4555-8555-555555555555", Kind: claims.KindInstance}
	_, err := a.tracker.Claim(t.Context(), claims.Request{Owner: owner, Resources: small.Resources()})
	l.must("claim", err)
	a.fake.Fault(func(call, _ string) error {
		if call == "Domain" {
			return fault.New(fault.Unavailable, "libvirt does not answer")
		}
		return nil
	})
	if err := a.Settle(t.Context()); !errors.Is(err, fault.Unavailable) || len(a.tracker.List()) != 1 {
		t.Errorf("with libvirt away: %v, %d claims; nothing may be freed", err, len(a.tracker.List()))
	}
	a.fake.Fault(nil)
	l.must("settle", a.Settle(t.Context()))
	l.same("a creation that broke off", empty)

	// The same with a domain: it was all but done.
	owner.Instance = "33333333-3333-4333-8333-333333333333"
	l.must("define", a.fake.Define(t.Context(), foreignXML("late", "", "")))
	_, err = a.tracker.Claim(t.Context(), claims.Request{Owner: owner, Resources: small.Resources()})
	l.must("claim", err)
	l.must("settle", a.Settle(t.Context()))
	if inst, ok := a.tracker.Instance(owner.Instance); !ok || inst.Token.State != claims.TokenHere {
		t.Errorf("instance %+v, %v", inst, ok)
	}
	if c, ok := a.tracker.ByOwner(owner); !ok || c.State != claims.Bound {
		t.Errorf("claim %+v, %v", c, ok)
	}
}

func TestSettle_StartsAutostartGuestsOnceABoot(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	l.must("settle on a new host", a.Settle(t.Context()))
	v := l.guest("a", "vm1")
	inst, _ := a.tracker.Instance(v.UUID)
	inst.Autostart = true
	_, err := a.tracker.PutInstance(t.Context(), inst)
	l.must("wish", err)
	l.must("stop", a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}))
	l.must("settle again in this boot", l.restart("a").Settle(t.Context()))
	l.state("a", v.UUID, driver.ShutOff)
	// As if the last settle had been in another boot.
	l.must("another boot", a.tracker.Remember(t.Context(), migration.Ref{Migration: "autostart", Instance: "host", Attempt: 1, Step: "boot"}, "earlier"))
	l.must("settle after a reboot", a.Settle(t.Context()))
	l.state("a", v.UUID, driver.Running)
}

// TestSettle_AutostartTriesEachGuestOnceABoot has a guest that cannot start, and
// one whose start could not be asked for at first: neither has a guest started
// again that was stopped since.
func TestSettle_AutostartTriesEachGuestOnceABoot(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	uuids := map[string]string{}
	for _, name := range []string{"broken", "fine", "late"} {
		v := l.guest("a", name)
		uuids[v.UUID] = name
		inst, _ := a.tracker.Instance(v.UUID)
		inst.Autostart = true
		_, err := a.tracker.PutInstance(t.Context(), inst)
		l.must("wish", err)
		l.must("stop", a.Stop(t.Context(), name, host.StopOptions{Force: true}))
	}
	silent := true
	a.fake.Fault(func(call, uuid string) error {
		switch {
		case call != "Start":
		case uuids[uuid] == "broken":
			return fault.New(fault.Internal, "its disk is gone")
		case uuids[uuid] == "late" && silent:
			return fault.New(fault.Unavailable, "libvirt does not answer")
		}
		return nil
	})
	l.wantKind("settle while libvirt does not answer", a.Settle(t.Context()), fault.Unavailable)
	l.must("stop what was started", a.Stop(t.Context(), "fine", host.StopOptions{Force: true}))
	silent = false
	l.must("settle", a.Settle(t.Context()))
	l.must("settle again", a.Settle(t.Context()))
	want := map[string]driver.State{"broken": driver.ShutOff, "fine": driver.ShutOff, "late": driver.Running}
	for uuid, name := range uuids {
		l.state("a", uuid, want[name])
	}
}

func TestFollow_ReleasesTheClaimOfAnUndefinedGuest(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	empty := l.picture()
	v := l.guest("a", "vm1")
	ctx, cancel := contextWithCancel(t)
	done := make(chan error, 1)
	go func() { done <- a.Follow(ctx) }()

	l.must("destroy", a.fake.Destroy(t.Context(), v.UUID))
	if _, ok := a.tracker.Instance(v.UUID); !ok {
		t.Error("a stopped guest lost its claim")
	}
	l.must("undefine", a.fake.Undefine(t.Context(), v.UUID))
	waitFor(t, "its claim to go", func() bool { return len(a.tracker.List()) == 0 })
	l.same("after undefine", empty)

	// While libvirt does not answer nothing is freed, whatever events say.
	w := l.guest("a", "vm2")
	a.fake.Fault(func(call, _ string) error {
		if call == "Domain" || call == "Domains" {
			return fault.New(fault.Unavailable, "libvirt does not answer")
		}
		return nil
	})
	a.fake.DropEvents()
	l.must("suspend", a.fake.Suspend(t.Context(), w.UUID)) // brings the resync
	cancel()
	l.must("follow", <-done)
	if _, ok := a.tracker.Instance(w.UUID); !ok {
		t.Error("a guest was forgotten because libvirt did not answer")
	}
	a.fake.Fault(nil)
}

// TestCreate_AnImageThatNamesAFileOfTheHost_IsRefused: its contents would be the instance's.
func TestCreate_AnImageThatNamesAFileOfTheHost_IsRefused(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a")
	a := l.hosts["a"]
	a.put(t, "/images/secret", strings.Repeat("root's own\n", 1000), 0o600)
	a.qemuImg(t, "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "secret", a.path("/images/hostile.qcow2"), "1M")
	before := l.picture()
	_, err := a.Create(t.Context(), host.CreateRequest{
		Name: "vm1", Flavor: small, ProjectID: "p", UserID: "u", Disks: []host.CreateDisk{{Image: "/images/hostile.qcow2"}},
	})
	if diff := cmp.Diff([]string{"image_not_whole"}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s\n%v", diff, err)
	}
	l.same("refused", before)
}

// TestCreate_ADiskFromASmallImage_IsAsLargeAsItsClaim, and one whose size was said is not.
func TestCreate_ADiskFromASmallImage_IsAsLargeAsItsClaim(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a")
	a := l.hosts["a"]
	a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path("/images/small.qcow2"), "1M")
	flavor := topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 64, DiskGB: 5}
	v, err := a.Create(t.Context(), host.CreateRequest{
		Name: "vm1", Flavor: flavor, ProjectID: "p", UserID: "u",
		Disks: []host.CreateDisk{{Image: "/images/small.qcow2"}, {SizeGB: 2}, {Image: "/images/small.qcow2", SizeGB: 1}},
	})
	l.must("create", err)
	g, err := operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: v.UUID})
	l.must("inspect", err)
	var sizes []int64
	for _, d := range g.Disks {
		sizes = append(sizes, d.VirtualSize>>20)
	}
	if diff := cmp.Diff([]int64{2048, 2048, 1024}, sizes); diff != "" {
		t.Errorf("MiB (-want +got):\n%s", diff)
	}
	if got := a.tracker.List()[0].Resources.DiskGB; got != 5 {
		t.Errorf("claimed %d GiB, want 5", got)
	}
}
