package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/memory"
	"berth/agent/host/networks"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

const bridged = `<interface type='bridge'><mac address='52:54:00:00:00:03'/><source bridge='br-int'/>
  <virtualport type='openvswitch'><parameters interfaceid='457eb676-33da-42ec-9a8c-9293d545c337'/></virtualport></interface>`

// offGuest has a guest that attempt 1 has powered off, whose pool Berth has started when
// it came, and whose port somebody has left bound.
func offGuest(t *testing.T) (*bed, *string) {
	p := newBed(t)
	p.wire()
	const port = "457eb676-33da-42ec-9a8c-9293d545c337"
	bound := port
	vsctl := &networks.OpenVSwitch{Run: func(_ context.Context, args ...string) ([]byte, error) {
		switch command := strings.Join(args[1:], " "); {
		case strings.HasSuffix(command, `find Interface external_ids:iface-id="`+port+`"`) && bound == "":
			return []byte(`{"data":[]}`), nil
		case strings.Contains(command, "find Interface"):
			return fmt.Appendf(nil, `{"data":[["left0",7,["map",[["iface-id",%q],["vm-id",%q]]]]]}`, bound, phaseInstance), nil
		case command == "--if-exists remove Interface left0 external_ids iface-id":
			bound = ""
			return nil, nil
		case command == `--if-exists set Interface left0 external_ids:iface-id="`+port+`"`:
			bound = port
			return nil, nil
		default:
			return nil, errors.New("not expected: " + command)
		}
	}}
	p.o.OpenVSwitch = vsctl
	text := strings.Replace(connectedGuest(), "</devices>", bridged+"</devices>", 1)
	earlier := migration.Ref{Migration: "11111111-1111-4111-8111-111111111199", Instance: phaseInstance, Attempt: 1}
	small := topology.Resources{VCPUs: 1, MemoryMB: 64}
	owner := claims.Owner{Instance: phaseInstance, Kind: claims.KindInstance}
	_, err := p.tracker.Own(t.Context(), claims.Instance{UUID: phaseInstance, Name: "vm1"})
	if err == nil {
		_, err = p.tracker.Claim(t.Context(), claims.Request{Owner: owner, Resources: small})
	}
	if err := errors.Join(err,
		p.prepareConnections(t.Context(), earlier, text),
		p.tracker.ForgetMigration(t.Context(), earlier.Migration), // it stayed
		p.driver.Define(t.Context(), text),
		p.tracker.RecordContext(t.Context(), memory.At(connectedRef, operation.StepContext), claims.MigrationContext{Migration: phaseMigration, Instance: phaseInstance, Source: "a", Destination: "b"}),
		p.memory.Remember(t.Context(), connectedRef, memoryPower, poweredOff{Power: migration.PowerShutOff, Off: true, Definition: text}),
	); err != nil {
		t.Fatal(err)
	}
	if !p.poolActive() {
		t.Fatal("the pool was not started")
	}
	return p, &bound
}

// TestDisconnect_TakesWhatIsLeftAndGivesItBack: twice each, by another process in between,
// and once more when it is late.
func TestDisconnect_TakesWhatIsLeftAndGivesItBack(t *testing.T) {
	p, bound := offGuest(t)
	boot := func() {
		vsctl := p.o.OpenVSwitch
		p.boot()
		p.o.OpenVSwitch = vsctl
	}
	for range 2 {
		if err := operation.Disconnect.Ask(t.Context(), p, connectedRef); err != nil {
			t.Fatal(err)
		}
		if p.poolActive() || *bound != "" {
			t.Fatalf("while the guest leaves: pool active %v, port bound to %q", p.poolActive(), *bound)
		}
		boot()
	}
	for range 2 {
		if err := operation.Reconnect.Ask(t.Context(), p, connectedRef); err != nil {
			t.Fatal(err)
		}
		boot()
	}
	if !p.poolActive() || *bound == "" {
		t.Errorf("when it stays: pool active %v, port bound to %q", p.poolActive(), *bound)
	}
	if err := operation.Disconnect.Ask(t.Context(), p, connectedRef); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a late disconnection: %v", err)
	}
	if _, found, err := memory.Recall[disconnected](p.memory, connectedRef, memoryDisconnect); found || err != nil {
		t.Errorf("a record is left: %v, %v", found, err)
	}
}

// TestReconnect_OfAGuestThatRunsAddsNoPort: its user was first, and libvirt has made its own.
func TestReconnect_OfAGuestThatRunsAddsNoPort(t *testing.T) {
	p, bound := offGuest(t)
	if err := errors.Join(operation.Disconnect.Ask(t.Context(), p, connectedRef), p.driver.Start(t.Context(), phaseInstance, false), operation.Reconnect.Ask(t.Context(), p, connectedRef)); err != nil {
		t.Fatal(err)
	}
	if !p.poolActive() || *bound != "" {
		t.Errorf("pool active %v, a port beside libvirt's bound to %q", p.poolActive(), *bound)
	}
}

// TestDisconnect_HalfDoneIsGivenBack: what could not be asked fails the verb, and its undo
// restores what had been taken by then.
func TestDisconnect_HalfDoneIsGivenBack(t *testing.T) {
	p, bound := offGuest(t)
	p.fleet.Host("a").Fault(func(call, _ string) error {
		if call == "ClosePool" {
			return fault.New(fault.Unavailable, "no answer")
		}
		return nil
	})
	if err := operation.Disconnect.Ask(t.Context(), p, connectedRef); !errors.Is(err, fault.Unavailable) || *bound != "" {
		t.Fatalf("disconnect: %v, port bound to %q", err, *bound)
	}
	p.fleet.Host("a").Fault(nil)
	if err := operation.Reconnect.Ask(t.Context(), p, connectedRef); err != nil {
		t.Fatal(err)
	}
	if !p.poolActive() || *bound == "" {
		t.Errorf("pool active %v, port bound to %q", p.poolActive(), *bound)
	}
}

// TestDisconnect_LeavesAPoolThatAnotherGuestOrHostNeeds: one that was active before any
// guest came is somebody's; one of which another guest has a disk may be wanted at any time.
func TestDisconnect_LeavesAPoolThatAnotherGuestOrHostNeeds(t *testing.T) {
	p, _ := offGuest(t)
	other := strings.NewReplacer(phaseInstance, "33333333-3333-4333-8333-333333333303", ">vm1<", ">other<").Replace(connectedGuest())
	if err := errors.Join(p.driver.Define(t.Context(), other), operation.Disconnect.Ask(t.Context(), p, connectedRef)); err != nil {
		t.Fatal(err)
	}
	if !p.poolActive() {
		t.Error("a pool was stopped of which another guest has a disk")
	}
	p, _ = offGuest(t)
	if err := p.tracker.Remember(t.Context(), startedRef, startedRecord{Boot: "an earlier one", Pools: []string{"images"}}); err != nil {
		t.Fatal(err)
	}
	if err := operation.Disconnect.Ask(t.Context(), p, connectedRef); err != nil {
		t.Fatal(err)
	}
	if !p.poolActive() {
		t.Error("a pool was stopped that Berth has not started since the boot")
	}
}

// TestPrepareConnections_MakesNoSecondOneOfTheGuest: while its source runs it, no port is
// added or bound here, and no disk opened.
func TestPrepareConnections_MakesNoSecondOneOfTheGuest(t *testing.T) {
	p := newBed(t)
	p.wire()
	var asked []string
	p.fleet.Host("a").Fault(func(call, _ string) error { asked = append(asked, call); return nil })
	p.o.OpenVSwitch = &networks.OpenVSwitch{Run: func(_ context.Context, args ...string) ([]byte, error) {
		asked = append(asked, args[1])
		if !strings.Contains(strings.Join(args, " "), "find Interface") {
			return nil, errors.New("a change")
		}
		return []byte(`{"data":[]}`), nil
	}}
	if err := p.prepareConnections(t.Context(), connectedRef, strings.Replace(connectedGuest(), "</devices>", bridged+"</devices>", 1)); err != nil {
		t.Fatal(err)
	}
	for _, call := range asked {
		switch call {
		case "Node", "Pool", "OpenPool", "Volume", "--format=json":
		default:
			t.Errorf("%s was asked of the host; all: %v", call, asked)
		}
	}
	if d, err := p.driver.Domain(t.Context(), phaseInstance); !errors.Is(err, fault.NotFound) {
		t.Errorf("a domain: %s, %v", cmp.Diff(driver.Domain{}, d), err)
	}
}
