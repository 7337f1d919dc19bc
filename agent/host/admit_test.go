package host_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// A peer that asks for no check and prepares an instance with what nobody allowed is refused
// before anything is made, and the hypervisor hears nothing of it.
func TestPreLive_APeersOwnXMLIsHeldAgainstClaimAndPolicy(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	other := l.guest("b", "other", host.CreateDisk{Path: "/images/other.raw", Format: "raw", SizeGB: 1})
	_ = other
	hostile := map[string][2]string{
		"emulator_not_allowed": {"</devices>", "<emulator>/tmp/evil</emulator></devices>"},
		"path_not_allowed":     {"</devices>", "<serial type='file'><source path='/etc/cron.d/x'/></serial></devices>"},
		"used_by_other":        {"</devices>", "<disk type='file' device='disk'><source file='/images/other.raw'/><target dev='vdz' bus='virtio'/></disk></devices>"},
		"device_not_claimed":   {"</devices>", "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/><product id='0x1'/></source></hostdev></devices>"},
		"qemu_arguments":       {"</domain>", "<x:commandline xmlns:x='http://libvirt.org/schemas/domain/qemu/1.0'><x:arg value='-S'/></x:commandline></domain>"},
		"label_not_allowed":    {"</domain>", "<seclabel type='static' model='dac'><label>+0:+0</label></seclabel></domain>"},
		"vcpus_beyond_claim":   {"</vcpu>", "</vcpu><vcpus><vcpu id='0' enabled='yes'/><vcpu id='1' enabled='yes'/></vcpus>"},
	}
	for code, change := range hostile {
		t.Run(code, func(t *testing.T) {
			m := newMove(l, v.UUID)
			for _, what := range []string{"live", "definition"} {
				if what == "definition" && code == "vcpus_beyond_claim" {
					continue // what it has at its next start is claimed then
				}
				bad := m.guest
				text := &bad.XML
				if what == "definition" {
					text = &bad.Definition
				}
				if *text = strings.Replace(*text, change[0], change[1], 1); !strings.Contains(*text, change[1]) {
					t.Fatalf("the domain XML has no %s:\n%s", change[0], *text)
				}
				ref := m.ref
				ref.Migration = uuid.NewString()
				b := m.b
				_, err := operation.Claim.Ask(t.Context(), b, ref, migration.ClaimRequest{Guest: bad, Context: contextOf("a", "b")})
				l.must("claim", err)
				_, err = operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: bad, Source: "a"})
				reasons := fault.ReasonsOf(err)
				if !errors.Is(err, fault.Forbidden) || !slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == code }) {
					t.Errorf("%s: %v, reasons %+v; want %s", what, err, reasons, code)
				}
				if _, err := b.fake.Domain(t.Context(), v.UUID); fault.KindOf(err) != fault.NotFound {
					t.Errorf("%s: the hypervisor has the domain: %v", what, err)
				}
				l.must("roll back", operation.RollbackPreLiveMigration.Ask(t.Context(), b, ref))
				l.must("abort the claim", operation.AbortClaim.Ask(t.Context(), b, ref))
			}
		})
	}
	l.state("a", v.UUID, driver.Running)
}

// What was checked and not allowed is refused with all its reasons at once, also for one that
// comes while it is off.
func TestCheckDestination_TellsAllThatIsNotAllowed(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	for _, text := range []*string{&m.guest.XML, &m.guest.Definition} {
		*text = strings.Replace(*text, "</devices>", "<emulator>/tmp/evil</emulator><serial type='file'><source path='/etc/x'/></serial></devices>", 1)
	}
	source, err := m.a.Describe(t.Context())
	l.must("describe", err)
	for _, kind := range []string{migration.TypeLiveMigration, migration.TypeMigration} {
		r := migration.CheckRequest{Guest: m.guest, Source: source, Kind: kind}
		if kind == migration.TypeMigration {
			r.Wanted = &migration.Wanted{Flavor: small, Resources: topology.Resources{VCPUs: 1, MemoryMB: small.MemoryMB}}
		}
		_, err := operation.CheckDestination.Ask(t.Context(), m.b, m.ref, r)
		var codes []string
		for _, r := range fault.ReasonsOf(err) {
			codes = append(codes, r.Code)
		}
		for _, want := range []string{"emulator_not_allowed", "path_not_allowed"} {
			if !slices.Contains(codes, want) {
				t.Errorf("%s: %v, reasons %v; want %s", kind, err, codes, want)
			}
		}
	}
}

// libvirt replaces a definition by its uuid, and its file by its name: a peer with a claim for an
// instance of its own gets neither for another's.
func TestPrepare_APeersXMLIsOfItsOwnInstance(t *testing.T) {
	l := newLab(t, "a", "b")
	v, w := l.guest("a", "vm1"), l.guest("b", "victim")
	const name = "<name>vm1</name>"
	for _, tt := range []struct {
		name, was, is, code string
		record              string // the name that the peer tells
	}{
		{"another's uuid", v.UUID, w.UUID, "another_instance", "vm1"},
		{"another's name", name, "<name>victim</name>", "another_name", "vm1"},
		{"another's name, told", name, "<name>victim</name>", "name_exists", "victim"},
		{"two names", name, "<name>victim</name>" + name, "identity_unclear", "vm1"},
		{"a name in pieces", name, "<name>vm1<!-- -->x</name>", "identity_unclear", "vm1"},
	} {
		for _, what := range []string{"live", "definition", "cold"} {
			t.Run(tt.name+", "+what, func(t *testing.T) {
				c := newCold(t, l, v.UUID, nil)
				bad, b := c.guest, c.b
				text := &bad.Definition
				if what == "live" {
					text = &bad.XML
				}
				bad.Name = tt.record
				if *text = strings.Replace(*text, tt.was, tt.is, 1); !strings.Contains(*text, tt.is) {
					t.Fatalf("the domain XML has no %s:\n%s", tt.was, *text)
				}
				ref, kind := c.ref, migration.TypeLiveMigration
				ref.Migration = uuid.NewString()
				if what == "cold" {
					kind = migration.TypeMigration
				}
				_, err := operation.Claim.Ask(t.Context(), b, ref, migration.ClaimRequest{Guest: bad, Context: c.context(), Kind: kind})
				l.must("claim", err)
				if what == "cold" {
					_, err = operation.PrepResize.Ask(t.Context(), b, ref, migration.PrepRequest{Kind: kind, Guest: bad, Wanted: c.wanted, Source: "a"})
				} else {
					_, err = operation.PreLiveMigration.Ask(t.Context(), b, ref, migration.PreLiveRequest{Guest: bad, Source: "a"})
				}
				reasons := fault.ReasonsOf(err)
				if !errors.Is(err, fault.Forbidden) || !slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == tt.code }) {
					t.Errorf("%v, reasons %+v; want %s", err, reasons, tt.code)
				}
				if what == "cold" {
					l.must("roll back", operation.RollbackPrepResize.Ask(t.Context(), b, ref))
				} else {
					l.must("roll back", operation.RollbackPreLiveMigration.Ask(t.Context(), b, ref))
				}
				l.must("abort the claim", operation.AbortClaim.Ask(t.Context(), b, ref))
			})
		}
	}
	l.state("b", w.UUID, driver.Running)
}
