package host_test

import (
	"slices"
	"strings"
	"testing"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

const (
	networkDisk = `<disk type='network' device='disk'><driver name='qemu' type='raw'/><source protocol='rbd' name='pool/volume'><host name='mon'/></source><target dev='vdb' bus='virtio'/></disk>`
	sharedDisk  = `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/shared/volume'/><target dev='vdc' bus='virtio'/></disk>`
	localDisk   = `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/images/volume'/><target dev='vdd' bus='virtio'/></disk>`
	newCard     = `<interface type='user'><mac address='52:54:00:00:00:77'/></interface><watchdog model='itco'/>`
)

// edit changes the guest's definition on a host.
func (x *apart) edit(n *node, old, new string) {
	x.t.Helper()
	text := x.definition(n)
	if !strings.Contains(text, old) {
		x.t.Fatalf("the definition on %s has no %s:\n%s", n.name, old, text)
	}
	x.must("define", n.fake.Define(x.t.Context(), strings.Replace(text, old, new, 1)))
}

func (x *apart) definition(n *node) string {
	x.t.Helper()
	text, err := n.fake.XML(x.t.Context(), x.ref.Instance, driver.Persistent)
	x.must("read the definition", err)
	return text
}

// element is the one of a disk in the guest's definition, by its source.
func (x *apart) element(n *node, source string) string {
	x.t.Helper()
	for _, e := range strings.SplitAfter(x.definition(n), "</disk>") {
		if i := strings.LastIndex(e, "<disk"); i >= 0 && strings.Contains(e[i:], source) {
			return e[i:]
		}
	}
	return ""
}

// carries is the step of a revert that takes volumes along.
func (x *apart) carries() (v migration.VolumeChanges, err error) {
	if v, err = operation.ReadVolumes.Ask(x.t.Context(), x.b, x.back); err == nil {
		err = operation.CarryVolumes.Ask(x.t.Context(), x.a, x.back, v)
	}
	return v, err
}

// newVisit has a guest that was moved, and was given and relieved of volumes since. With
// it on a stands a volume that it had before.
func newVisit(t *testing.T, devices string) *apart {
	t.Helper()
	x := newApart(t)
	for _, name := range []string{"a", "b"} {
		x.world.Host(name).Put("/shared/volume", "raw", 1<<20, "shared")
		x.world.Host(name).Put("/images/volume", "raw", 1<<20, "of "+name)
	}
	x.must("end it", x.a.fake.Destroy(t.Context(), x.ref.Instance))
	x.edit(x.a, "</devices>", strings.ReplaceAll(networkDisk, "pool/volume", "pool/old")+"</devices>")
	x.must("start it", x.a.Start(t.Context(), "vm1", false))
	x.cold = newCold(t, x.lab, x.ref.Instance, &large)
	x.run(x.there(), "")
	x.edit(x.b, x.element(x.b, "pool/old"), "")
	x.edit(x.b, "</devices>", devices+"</devices>")
	return x
}

// TestCarry_VolumesOfTheVisitComeAlong: what the guest was given is in its definition when
// it is back, and what it lost is not; each verb twice, and after another revert that was
// given up.
func TestCarry_VolumesOfTheVisitComeAlong(t *testing.T) {
	t.Parallel()
	x := newVisit(t, networkDisk+sharedDisk+newCard)
	kept := x.definition(x.a)
	x.run(x.returning(), "power off there")
	v, err := x.carries()
	x.must("carry", err)
	if len(v.Attached) != 2 || !slices.Equal(v.Detached, []string{"vdb"}) || len(v.Remarks) != 2 ||
		!strings.Contains(v.Remarks[0], "52:54:00:00:00:77") || !strings.Contains(v.Remarks[1], "watchdog") {
		t.Errorf("changes %+v", v)
	}
	if x.definition(x.a) != kept {
		t.Error("the kept definition was changed before the guest was handed back")
	}
	// Given up: nothing of it is left.
	x.must("power on there", operation.PowerOn.Ask(t.Context(), x.b, x.back))
	x.must("cancel return", operation.CancelReturn.Ask(t.Context(), x.a, x.back))
	x.must("cancel return again", operation.CancelReturn.Ask(t.Context(), x.a, x.back))
	x.wantKind("a late carrying", operation.CarryVolumes.Ask(t.Context(), x.a, x.back, v), fault.Forbidden)
	for _, m := range x.picture()["a memories"] {
		if strings.Contains(m, "carried") {
			t.Errorf("left behind: %s", m)
		}
	}
	x.state("b", x.ref.Instance, driver.Running)

	x.back.Attempt++
	steps := x.returning()
	x.run(steps, "power off there")
	for range 2 {
		_, err := x.carries()
		x.must("carry", err)
		x.reboot("a")
	}
	for _, s := range x.returning()[2:] {
		x.must(s.name, s.do())
		x.must(s.name+" again", s.do())
	}
	x.lives(x.a, driver.Running, small, 3)
	got := x.definition(x.a)
	if x.element(x.a, "pool/volume") == "" || x.element(x.a, "/shared/volume") == "" || strings.Contains(got, "pool/old") || strings.Contains(got, "watchdog") {
		t.Errorf("its definition:\n%s", got)
	}
	if _, _, there := x.world.Host("b").Data("/shared/volume"); !there {
		t.Error("the carried volume was removed with what the guest has left")
	}
	if verbs := x.picture()["a memories"]; len(verbs) > 0 {
		t.Errorf("left behind: %v", verbs)
	}
}

// TestCarry_WhereItsArrivalIsNotOnRecordAnyMore: after a lost ledger nobody there knows
// what the guest came with; its source does.
func TestCarry_WhereItsArrivalIsNotOnRecordAnyMore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		given string
		want  fault.Kind
	}{
		"volumes that both have":  {networkDisk + sharedDisk, ""},
		"a file of one host":      {localDisk, fault.Forbidden},
		"nothing but what it had": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			x := newVisit(t, tc.given)
			came := migration.Ref{Migration: x.ref.Migration, Instance: x.ref.Instance, Attempt: x.ref.Attempt, Step: "prepared_cold"}
			x.must("forget with what it came", x.b.tracker.Unremember(t.Context(), came))
			x.run(x.returning(), "power off there")
			_, err := x.carries()
			x.wantKind("carry", err, tc.want)
			if tc.want != "" {
				return
			}
			for _, s := range x.returning()[2:] {
				x.must(s.name, s.do())
			}
			x.lives(x.a, driver.Running, small, 3)
			for source, want := range map[string]bool{"pool/volume": tc.given != "", "/shared/volume": tc.given != "", "pool/old": false} {
				if got := x.element(x.a, source) != ""; got != want {
					t.Errorf("disk %s is in its definition: %v, want %v", source, got, want)
				}
			}
		})
	}
}

// TestCarry_WhatStaysIsRefused: a file of one host alone, whatever its name, with what to
// do; nothing is on record after it.
func TestCarry_WhatStaysIsRefused(t *testing.T) {
	t.Parallel()
	x := newVisit(t, localDisk+`<disk type='vhostuser' device='disk'><source type='unix' path='/run/x'/><target dev='vde' bus='virtio'/></disk>`)
	x.run(x.returning(), "power off there")
	_, err := operation.ReadVolumes.Ask(t.Context(), x.b, x.back)
	if got := fault.ReasonsOf(err); len(got) != 1 || got[0].Code != "disk_stays" || !strings.Contains(got[0].Message, "vhostuser") {
		t.Errorf("reasons %+v", got)
	}
	x.edit(x.b, x.element(x.b, "/run/x"), "")
	_, err = x.carries()
	if got := fault.ReasonsOf(err); len(got) != 1 || got[0].Code != "disk_stays" || !strings.Contains(got[0].Message, "/images/volume") || !strings.Contains(got[0].Change, "detach") {
		t.Errorf("reasons %+v of %v", got, err)
	}
	x.wantKind("carry", err, fault.Forbidden)
	x.edit(x.b, x.element(x.b, "/images/volume"), "")
	_, err = x.carries()
	x.must("carry after it was detached", err)
	x.run(x.returning()[2:], "")
	x.lives(x.a, driver.Running, small, 3)
}

// TestCarry_ADefinitionThatLibvirtRefusesIsNotCarried: it is found out while there is a way
// back, and what was kept is there again, also where the agent died between the two.
func TestCarry_ADefinitionThatLibvirtRefusesIsNotCarried(t *testing.T) {
	t.Parallel()
	x := newVisit(t, networkDisk)
	kept := x.definition(x.a)
	x.run(x.returning(), "power off there")
	n := 0
	x.a.fake.Fault(func(call, _ string) error {
		if call != "Define" {
			return nil
		}
		if n++; n == 1 {
			return fault.New(fault.Invalid, "unsupported configuration")
		}
		return nil
	})
	_, err := x.carries()
	x.wantKind("carry what libvirt refuses", err, fault.Forbidden)
	if x.definition(x.a) != kept {
		t.Error("the kept definition is another")
	}
	// Its answer is lost, and so is the agent.
	n = -9
	x.a.fake.FaultReply(func(call, _ string) error {
		if call == "Define" {
			return fault.New(fault.InDoubt, "no answer")
		}
		return nil
	})
	_, err = x.carries()
	x.wantKind("carry without an answer", err, fault.InDoubt)
	x.a.fake.FaultReply(nil)
	x.reboot("a")
	x.must("power on there", operation.PowerOn.Ask(t.Context(), x.b, x.back))
	x.must("cancel return", operation.CancelReturn.Ask(t.Context(), x.a, x.back))
	if x.definition(x.a) != kept {
		t.Error("the kept definition is another after the revert was given up")
	}
}

// TestCarry_IsAskedOfTheRightHosts: of a guest that is off there, and awaited here.
func TestCarry_IsAskedOfTheRightHosts(t *testing.T) {
	t.Parallel()
	x := newVisit(t, "")
	_, err := operation.ReadVolumes.Ask(t.Context(), x.b, x.back)
	x.wantKind("read while it runs", err, fault.Forbidden)
	x.wantKind("carry before it is awaited", operation.CarryVolumes.Ask(t.Context(), x.a, x.back, migration.VolumeChanges{}), fault.Forbidden)
	x.run(x.returning(), "power off there")
	evil := `<disk type='file'><source file='/etc/shadow'/><target dev='vdx'/></disk>`
	err = operation.CarryVolumes.Ask(t.Context(), x.a, x.back, migration.VolumeChanges{Attached: []string{evil}, Files: []migration.VolumeFile{{Target: "vdx", Path: "/etc/shadow"}}})
	x.wantKind("a file that is no disk", err, fault.Forbidden)
	x.wantKind("no disk", operation.CarryVolumes.Ask(t.Context(), x.a, x.back, migration.VolumeChanges{Attached: []string{"<hostdev/>"}}), fault.Invalid)
}
