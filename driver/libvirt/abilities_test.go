package libvirt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
)

// able is a connection whose answers to the abilities' calls a test decides.
type able struct {
	*scripted
	stats   []Stats
	devices map[string]string // documents by name; an empty one has gone
	jobs    map[string]BlockJob
	xml     string
	agent   func(command string, seconds int) (string, error)
	err     error
}

func (a *able) Stats(_, _ uint32) ([]Stats, error) { return a.stats, a.err }
func (a *able) XML(string, uint32) (string, error) { return a.xml, a.err }
func (a *able) StartPostCopy(string) error         { return a.err }
func (a *able) Devices() ([]string, error)         { return []string{"pci_0000_3b_00_1", "net_lo"}, a.err }
func (a *able) DeviceXML(name string) (string, error) {
	if a.devices[name] == "" {
		return "", code(errNoNodeDevice)
	}
	return a.devices[name], nil
}
func (a *able) BlockJob(_, target string) (BlockJob, bool, error) {
	j, found := a.jobs[target]
	if target == "vdz" {
		return j, false, code(errInvalidArg)
	}
	return j, found, nil
}
func (a *able) Agent(_, command string, seconds int) (string, error) {
	return a.agent(command, seconds)
}

// ability is a driver on a connection like a.
func ability(t *testing.T, a able) *Driver {
	t.Helper()
	d := &daemon{answer: map[string]func(*scripted) error{}}
	l := New(Options{Dial: func(ctx context.Context, to Target) (Conn, error) {
		c, err := d.dial(ctx, to)
		own := a
		own.scripted = c.(*scripted)
		return &own, err
	}, CallTimeout: 10 * time.Second})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestStatistics_AreInBytes(t *testing.T) {
	l := ability(t, able{stats: []Stats{{UUID: guestUUID, Name: "g", Values: map[string]any{
		"state.state": uint64(1), "cpu.time": uint64(1500000000), "vcpu.current": uint64(2), "vcpu.maximum": uint64(4),
		"balloon.current": uint64(1024), "balloon.maximum": uint64(2048), "balloon.rss": uint64(3),
		"block.count": uint64(2), "block.0.rd.bytes": uint64(10), "block.1.rd.bytes": uint64(5), "block.1.wr.bytes": uint64(7),
		"net.count": uint64(1), "net.0.rx.bytes": uint64(8), "net.0.tx.bytes": uint64(9), "net.0.name": "vnet0",
	}}, {UUID: "busy"}}})
	got, err := l.Statistics(t.Context())
	want := []driver.Usage{{
		UUID: guestUUID, Name: "g", State: driver.Running, CPUTime: 1500 * time.Millisecond, VCPUs: 2, VCPUsMax: 4,
		Memory: 1 << 20, MemoryMax: 2 << 20, RSS: 3 << 10, DiskRead: 15, DiskWritten: 7, Received: 8, Sent: 9,
	}, {UUID: "busy", State: driver.NoState}}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

func TestHostDevices_AreReadFromTheirDocuments(t *testing.T) {
	const pci = `<device><name>pci_0000_3b_00_1</name><parent>computer</parent><driver><name>vfio-pci</name></driver>
<capability type='pci'><domain>0</domain><bus>59</bus><slot>0</slot><function>1</function><capability type='virt_functions'/></capability></device>`
	// net_lo goes while the list is read.
	l := ability(t, able{devices: map[string]string{"pci_0000_3b_00_1": pci}})
	got, err := l.HostDevices(t.Context())
	want := []driver.HostDevice{{Name: "pci_0000_3b_00_1", Parent: "computer", Kind: "pci", PCI: "0000:3b:00.1", Driver: "vfio-pci"}}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if _, err := ability(t, able{err: code(errNoSupport)}).HostDevices(t.Context()); !errors.Is(err, fault.Invalid) {
		t.Errorf("HostDevices of a daemon without: %v, want invalid", err)
	}
	if _, err := ability(t, able{devices: map[string]string{"net_lo": "<device"}}).HostDevices(t.Context()); err == nil || !strings.Contains(err.Error(), "net_lo") {
		t.Errorf("HostDevices with a broken document: %v, want an error that names it", err)
	}
}

func TestDeviceEvents_AreResyncedAfterEveryConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{refuse: errDial} // until the reader is there
		l := drive(t, d)
		ch, err := l.DeviceEvents(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.refuse = nil })
		if e := <-ch; e.Kind != driver.DeviceResync || e.Name != "" || e.At.IsZero() {
			t.Errorf("first event %+v, want a resync", e)
		}
		for event, want := range map[int]driver.DeviceEventKind{
			0: driver.DeviceAdded, 1: driver.DeviceRemoved, 2: driver.DeviceChanged, DeviceUpdated: driver.DeviceChanged,
		} {
			d.conns[0].devices(DeviceEvent{Name: "pci_0000_3b_00_1", Event: event})
			if e := <-ch; e.Kind != want || e.Name != "pci_0000_3b_00_1" {
				t.Errorf("event %d became %+v, want %s", event, e, want)
			}
		}
		d.lose()
		if e := <-ch; e.Kind != driver.DeviceResync {
			t.Errorf("event %+v after a reconnection, want a resync", e)
		}
	})
}

func TestEvents_ComeThoughThereAreNoneOfDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{refuse: errDial, answer: map[string]func(*scripted) error{"SubscribeDevices": func(*scripted) error { return code(errNoSupport) }}}
		l := drive(t, d)
		ch, err := l.Events(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.refuse = nil }) // the reader is there
		<-ch
		if err := l.Health(); err != nil {
			t.Errorf("Health: %v", err)
		}
		// A lost connection is another matter.
		d.set(func() { d.answer["SubscribeDevices"] = hang })
		d.lose()
		time.Sleep(3 * time.Second)
		if err := l.Health(); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Health of a daemon that does not answer the subscription: %v, want unavailable", err)
		}
	})
}

func TestEventOf_SaysWhatChanged(t *testing.T) {
	for of, want := range map[Event]driver.Event{
		{ID: TunableEvent, UUID: "u", Name: "n"}:             {Kind: driver.EventChanged, UUID: "u", Name: "n", Detail: "tunable"},
		{ID: DeviceAddedEvent, UUID: "u"}:                    {Kind: driver.EventChanged, UUID: "u", Detail: "device added"},
		{ID: LifecycleEvent, UUID: "u", Event: 0, Detail: 1}: {Kind: driver.EventDefined, UUID: "u", Detail: "updated"},
		{ID: LifecycleEvent, UUID: "u", Event: 99}:           {Kind: driver.EventOther, UUID: "u"},
		{ID: MigrationIterationEvent, UUID: "u", Detail: 12}: {Kind: driver.EventIteration, UUID: "u", Detail: "12"},
		{ID: 4711, UUID: "u"}:                                {Kind: driver.EventOther, UUID: "u"},
	} {
		if got := eventOf(of); got != want {
			t.Errorf("%+v became %+v, want %+v", of, got, want)
		}
	}
}

func TestDiskCopies_NameOnlyWhatIsBeingCopied(t *testing.T) {
	const disk = "<disk type='file' device='disk'><source file='/%[1]s'/><target dev='%[1]s'/></disk>"
	xml := "<domain type='kvm'><name>g</name><uuid>" + guestUUID + "</uuid><memory>1</memory><vcpu>1</vcpu><devices>"
	for _, target := range []string{"vda", "vdb", "vdc", "vdd", "vdz"} {
		xml += fmt.Sprintf(disk, target)
	}
	l := ability(t, able{xml: xml + "</devices></domain>", jobs: map[string]BlockJob{
		"vda": {Type: 2, Done: 5, Total: 10}, "vdb": {Type: 2, Done: 10, Total: 10}, "vdc": {Type: 4, Done: 1, Total: 2}, // vdc: active commit
	}})
	got, err := l.DiskCopies(t.Context(), guestUUID)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]driver.DiskCopy{"vda": {Total: 10, Copied: 5}, "vdb": {Total: 10, Copied: 10, Ready: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("copies (-want +got):\n%s", diff)
	}
	if _, err := ability(t, able{err: code(errNoDomain)}).DiskCopies(t.Context(), guestUUID); !errors.Is(err, fault.NotFound) {
		t.Errorf("DiskCopies of an unknown domain: %v, want not found", err)
	}
}

func TestStartPostCopy_IsInvalidWithoutItsMigration(t *testing.T) {
	if err := ability(t, able{err: code(errOperationInvalid)}).StartPostCopy(t.Context(), guestUUID); !errors.Is(err, fault.Invalid) {
		t.Errorf("StartPostCopy: %v, want invalid", err)
	}
	if err := ability(t, able{err: ErrLost}).StartPostCopy(t.Context(), guestUUID); !errors.Is(err, fault.InDoubt) {
		t.Errorf("StartPostCopy without an answer: %v, want in doubt", err)
	}
}

func TestMigrate_PostCopyIsAskedForAndExcludesPaused(t *testing.T) {
	m := driver.Migration{DestinationURI: "u", DestinationXML: "x", PersistentXML: "x", PostCopy: true}
	const postCopy = 1 << 15 // VIR_MIGRATE_POSTCOPY
	if flags, _ := orders(m); flags&postCopy == 0 {
		t.Errorf("flags %#x lack post-copy", flags)
	}
	if flags, _ := orders(driver.Migration{}); flags&postCopy != 0 {
		t.Errorf("flags %#x have post-copy unasked", flags)
	}
	m.Paused = true
	if err := check(request{verb: "migrate"}, m); !errors.Is(err, fault.Invalid) {
		t.Errorf("check: %v, want invalid", err)
	}
}

func TestGuestAgent_TellsUnreachableFromInDoubt(t *testing.T) {
	const ping, freeze = `{"execute":"guest-ping"}`, `{"execute":"guest-fsfreeze-freeze"}`
	answers := map[string]error{}
	answer := `{"return":3}`
	l := ability(t, able{agent: func(command string, seconds int) (string, error) {
		if seconds != 4 {
			t.Errorf("the daemon is given %d s, want less than the caller's 5", seconds)
		}
		return answer, answers[command]
	}})
	call := func() (int, error) { return l.FreezeFilesystems(withIn(t, 5*time.Second), guestUUID) }
	if n, err := call(); n != 3 || err != nil {
		t.Errorf("FreezeFilesystems: %d, %v, want 3", n, err)
	}
	for _, tt := range []struct {
		command string
		err     error
		want    fault.Kind
	}{
		{ping, code(errAgentUnresponsive), fault.Unavailable},
		{ping, code(errArgumentUnsupported), fault.Unavailable}, // no channel
		{ping, code(errOperationInvalid), fault.Invalid},        // not running
		{ping, ErrLost, fault.Unavailable},
		{freeze, code(errAgentUnresponsive), fault.InDoubt},
		{freeze, code(errAgentTimeout), fault.InDoubt},
		{freeze, ErrLost, fault.InDoubt},
		{freeze, code(1), fault.Internal},
	} {
		clear(answers)
		answers[tt.command] = tt.err
		if _, err := call(); !errors.Is(err, tt.want) {
			t.Errorf("FreezeFilesystems when %s meets %v: %v, want %s", tt.command, tt.err, err, tt.want)
		}
	}
	clear(answers)
	for _, answer = range []string{`{}`, `{"return":{}}`, `no json`} {
		if n, err := call(); !errors.Is(err, fault.InDoubt) {
			t.Errorf("FreezeFilesystems of an agent that answers %s: %d, %v, want in doubt", answer, n, err)
		}
	}
}

func TestCannot_IsAboutTheTestDriverAndOldDaemons(t *testing.T) {
	if got := cannot("QEMU", recovers); len(got) > 0 {
		t.Errorf("QEMU cannot %v", got)
	}
	want := map[driver.Ability]string{driver.AbilityRecovery: "libvirt has it since 8.5.0, and this is 8.4.0"}
	if diff := cmp.Diff(want, cannot("QEMU", 8_004_000)); diff != "" {
		t.Errorf("an older daemon (-want +got):\n%s", diff)
	}
	got := cannot("TEST", recovers)
	for a, why := range got {
		if why == "" {
			t.Errorf("no reason is given for %s", a)
		}
	}
	_, devices := got[driver.AbilityDevices]
	_, connections := got[driver.AbilityConnections]
	if devices || connections || len(got) != len(driver.Abilities())-2 {
		t.Errorf("the test driver cannot %v, want everything but devices and connections", got)
	}
}
