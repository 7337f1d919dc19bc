package host_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
)

const brokeOff = "55555555-5555-4555-8555-555555555555"

// breakOff leaves a creation that failed at a call and could not be undone.
func (n *node) breakOff(l *lab, at string) {
	l.t.Helper()
	broken := false
	n.fake.Fault(func(call, _ string) error {
		if broken = broken || call == at; broken {
			return fault.New(fault.Unavailable, "libvirt does not answer")
		}
		return nil
	})
	_, err := n.Create(l.t.Context(), host.CreateRequest{UUID: brokeOff, Name: "late", Flavor: small, Disks: []host.CreateDisk{{Path: "/images/late.qcow2", SizeGB: 1}}})
	if err == nil {
		l.t.Fatal("created all the same")
	}
	n.fake.Fault(nil)
}

// pending reports whether the creation's claim and disk are still there.
func (n *node) pending() (claim, disk bool) {
	c, ok := n.tracker.ByOwner(claims.Owner{Instance: brokeOff, Kind: claims.KindInstance})
	_, err := os.Stat(n.path("/images/late.qcow2"))
	return ok && c.State == claims.Pending, err == nil
}

// A creation that broke off after libvirt had its definition is not dropped because a new libvirtd
// did not load that: what it made stays until the folder says that it was never defined, or libvirt has it.
func TestSettle_ACreationWhoseDefinitionWasNotLoaded_IsKept(t *testing.T) {
	requireQemuImg(t)
	for _, tt := range []struct {
		name, code string
		alone      bool
		hide, show func(a *node)
	}{
		{"damaged", "definition_not_loaded", false, func(a *node) { a.fake.DamageDefinition(brokeOff, true) }, func(a *node) { a.fake.DamageDefinition(brokeOff, false) }},
		{"damaged, no other domain", "definition_not_loaded", true, func(a *node) { a.fake.DamageDefinition(brokeOff, true) }, func(a *node) { a.fake.DamageDefinition(brokeOff, false) }},
		{"not mounted", "definitions_unreadable", false, func(a *node) { a.fake.UnmountDefinitions(true) }, func(a *node) { a.fake.UnmountDefinitions(false) }},
		{"not mounted, no other domain", "definitions_unreadable", true, func(a *node) { a.fake.UnmountDefinitions(true) }, func(a *node) { a.fake.UnmountDefinitions(false) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, "a")
			a := l.hosts["a"]
			if !tt.alone {
				l.guest("a", "db")
			}
			a.breakOff(l, "SetAutostart")
			tt.hide(a)
			a.restartLibvirt(l)
			a = l.restart("a")
			l.must("settle", a.Settle(t.Context()))
			if claim, disk := a.pending(); !claim || !disk {
				t.Fatalf("claim %t, disk %t: a creation whose definition libvirtd did not load was dropped", claim, disk)
			}
			reasons := fault.ReasonsOf(a.Unsettled()[brokeOff])
			if !slices.ContainsFunc(reasons, func(r fault.Reason) bool {
				return r.Code == tt.code && r.Message != "" && r.Change != "" && !strings.Contains(r.Change, "instance delete")
			}) {
				t.Errorf("reasons %+v", reasons)
			}
			tt.show(a)
			a.restartLibvirt(l)
			a = l.restart("a")
			l.must("settle", a.Settle(t.Context()))
			l.must("start", a.Start(t.Context(), "late", false))
			l.state("a", brokeOff, driver.Running)
		})
	}
}

// One that broke off before libvirt was asked to define it is dropped whatever the folder tells, and
// one that was never defined as soon as the folder says so.
func TestSettle_ACreationThatWasNeverDefined_IsDropped(t *testing.T) {
	requireQemuImg(t)
	for name, at := range map[string]string{"before it is defined": "", "it is not defined": "Define"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "a")
			a := l.hosts["a"]
			empty := l.picture()
			if at == "" {
				_, err := a.tracker.Claim(t.Context(), claims.Request{Owner: claims.Owner{Instance: brokeOff, Kind: claims.KindInstance}, Resources: small.Resources()})
				l.must("claim", err)
				a.fake.UnmountDefinitions(true)
			} else {
				a.breakOff(l, at)
			}
			a = l.restart("a")
			l.must("settle", a.Settle(t.Context()))
			l.same("left behind", empty)
		})
	}
}
