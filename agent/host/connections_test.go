package host

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/hooks"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

const connected = `<domain type='kvm'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os><devices>
<interface type='network'><mac address='52:54:00:00:00:01'/><source network='blue'/></interface>
<disk type='volume' device='disk'><source pool='images' volume='root'/><target dev='vda'/></disk>
<disk type='network' device='disk'><source protocol='rbd' name='pool/d'><host name='mon'/>
  <auth username='libvirt'><secret type='ceph' usage='client.libvirt'/></auth></source><target dev='vdb'/></disk>
</devices></domain>`

func connectedGuest() string { return fmt.Sprintf(connected, "vm1", phaseInstance) }

var connectedRef = migration.Ref{Migration: phaseMigration, Instance: phaseInstance, Attempt: 1}

// wire gives the host all that the guest needs.
func (p *bed) wire() {
	h := p.fleet.Host("a")
	h.SetNetwork(driver.Network{Name: "blue", Active: true})
	h.SetPool(driver.Pool{Name: "images", Autostart: true, Persistent: true, Path: "/pool"}, driver.Volume{Name: "root", Path: "/pool/root"})
	h.SetSecret(driver.SecretRef{UUID: "457eb676-33da-42ec-9a8c-9293d545c337", Type: "ceph", Usage: "client.libvirt"})
}

func (p *bed) poolActive() bool {
	p.t.Helper()
	pool, err := p.fleet.Host("a").Pool(p.t.Context(), "images")
	if err != nil {
		p.t.Fatal(err)
	}
	return pool.Active
}

func TestCheckConnections_ListsEveryReason(t *testing.T) {
	p := newBed(t)
	codes := func() (out []string) {
		var no refusal
		if err := p.checkConnections(t.Context(), &no, connectedGuest()); err != nil {
			t.Fatal(err)
		}
		for _, r := range no.Reasons {
			if !strings.HasPrefix(r.Message, "on a: ") {
				t.Errorf("reason %q does not say on which host", r.Message)
			}
			out = append(out, r.Code)
		}
		return out
	}
	if diff := cmp.Diff([]string{"network_missing", "pool_missing", "secret_missing"}, codes()); diff != "" {
		t.Errorf("reasons of a host that has nothing (-want +got):\n%s", diff)
	}
	p.wire()
	if got := codes(); len(got) > 0 {
		t.Errorf("reasons of a host that has all: %v", got)
	}
	// libvirt without drivers of such things decides by itself, when the guest starts.
	n, err := p.driver.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.Cannot = map[driver.Ability]string{driver.AbilityConnections: "it is old"}
	p.fleet.Host("b").SetNode(n)
	p.driver = p.fleet.Host("b")
	if got := codes(); len(got) > 0 {
		t.Errorf("reasons of a hypervisor that does not tell: %v", got)
	}
}

// What was prepared is undone to what was found first, whatever agent does it and how
// often either was tried.
func TestConnections_AreLeftAsTheyWereFound(t *testing.T) {
	p := newBed(t)
	p.wire()
	for range 2 {
		if err := p.prepareConnections(t.Context(), connectedRef, connectedGuest()); err != nil {
			t.Fatal(err)
		}
		p.boot()
	}
	if !p.poolActive() {
		t.Fatal("the pool was not started")
	}
	for range 2 {
		if err := p.undoConnections(t.Context(), connectedRef); err != nil {
			t.Fatal(err)
		}
		p.boot()
	}
	if p.poolActive() {
		t.Error("the pool that was started is still active")
	}
	if verbs, err := p.store.List(t.Context(), "verbs"); err != nil || len(verbs) > 0 {
		t.Errorf("records that are left: %v, %v", verbs, err)
	}
}

func TestConnections_APoolThatAnotherGuestUsesStays(t *testing.T) {
	p := newBed(t)
	p.wire()
	if err := p.prepareConnections(t.Context(), connectedRef, connectedGuest()); err != nil {
		t.Fatal(err)
	}
	const other = "33333333-3333-4333-8333-333333333303"
	text := fmt.Sprintf(`<domain type='kvm'><name>other</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os>
		<devices><disk type='file' device='disk'><source file='/pool/other'/><target dev='vda'/></disk></devices></domain>`, other)
	if err := errors.Join(p.driver.Define(t.Context(), text), p.driver.Start(t.Context(), other, false)); err != nil {
		t.Fatal(err)
	}
	if err := p.undoConnections(t.Context(), connectedRef); err != nil {
		t.Fatal(err)
	}
	if !p.poolActive() {
		t.Error("a pool was stopped under a guest")
	}
}

func TestConnections_AVolumeThatIsMissingFailsThePreparation(t *testing.T) {
	p := newBed(t)
	p.wire()
	p.fleet.Host("a").SetPool(driver.Pool{Name: "images", Autostart: true, Persistent: true})
	err := p.prepareConnections(t.Context(), connectedRef, connectedGuest())
	if reasons := fault.ReasonsOf(err); len(reasons) != 1 || reasons[0].Code != "volume_missing" {
		t.Fatalf("prepare: %v, want volume_missing", err)
	}
	if err := p.undoConnections(t.Context(), connectedRef); err != nil {
		t.Fatal(err)
	}
	if p.poolActive() {
		t.Error("the undo of a preparation that failed left the pool active")
	}
}

// A guest with nothing to prepare costs no record and no question.
func TestConnections_OfAPlainGuestAskNobody(t *testing.T) {
	p := newBed(t)
	asked := ""
	p.fleet.Host("a").Fault(func(call, _ string) error { asked += call + " "; return nil })
	plain := strings.NewReplacer("type='volume'", "type='file'", "type='network'", "type='user'").Replace(connectedGuest())
	plain = strings.ReplaceAll(plain, "<secret", "<other")
	if err := p.prepareConnections(t.Context(), connectedRef, plain); err != nil {
		t.Fatal(err)
	}
	if err := p.activateConnections(t.Context(), connectedRef, plain); err != nil {
		t.Fatal(err)
	}
	if err := p.undoConnections(t.Context(), connectedRef); err != nil {
		t.Fatal(err)
	}
	if verbs, err := p.store.List(t.Context(), "verbs"); err != nil || len(verbs) > 0 || asked != "" {
		t.Errorf("records %v, %v; calls %q", verbs, err, asked)
	}
}

// The phases' table is complete: an undo for each that can fail the story, and hooks of
// a phase are given the answers of one that there is.
func TestPhases_EachThatMayFailHasItsUndo(t *testing.T) {
	names := map[string]bool{}
	for _, p := range hooks.Phases() {
		names[p.Name] = true
	}
	page, err := os.ReadFile("../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range hooks.Phases() {
		if p.After != "" && !names[p.After] {
			t.Errorf("%s comes after %s, which is no phase", p.Name, p.After)
		}
		if undo := p.Undo(); (p.Failing == hooks.Undoes) != (undo != "") {
			t.Errorf("%s: failing means %q, and its undo is %q", p.Name, p.Failing, undo)
		}
		row := fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s |", p.Name, p.Host, p.When, p.Failing, code(p.Undo()), code(p.After))
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/hooks.md has not the row\n%s", row)
		}
	}
}

func code(name string) string {
	if name == "" {
		return "–"
	}
	return "`" + name + "`"
}
