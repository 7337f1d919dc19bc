package agent

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/internal/config"
	"berth/topology"
)

// kernelEvents is the file by which the kernel is asked to repeat the event of a
// PCI device of this machine (Documentation/ABI/testing/sysfs-uevent), which
// changes nothing.
func kernelEvents(t *testing.T) *os.File {
	t.Helper()
	devices, err := filepath.Glob("/sys/bus/pci/devices/*/uevent")
	if err != nil || len(devices) == 0 {
		t.Skip("this machine has no PCI device")
	}
	file, err := os.OpenFile(devices[0], os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("events can be asked for by root alone, where /sys is writable: %v", err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

// TestUevents_OfTheRealKernelAreHeard requires that an agent reads its hardware, a
// made-up machine, anew: from the kernel's socket to the ledger.
func TestUevents_OfTheRealKernelAreHeard(t *testing.T) {
	file := kernelEvents(t)
	probe, err := openUevents()
	if err != nil {
		t.Skipf("no kernel events here: %v", err)
	}
	probe.Close()

	m := newMachineTree(t)
	c := settings(t, nowhere(t))
	c.Agent.Mode = config.Observe // asks nobody at the start
	c.Host.Root = m.root
	o := agentOptions(t, c)
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&c)
	if err := a.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, run := range []func(context.Context) error{a.hardware.run, a.hardware.runUevents} {
		go func() { ended <- run(ctx) }()
	}
	defer func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}()
	// The first is read because events are heard from now on.
	_, first, _ := a.hardware.view()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, now, _ := a.hardware.view(); now != first {
			break
		}
		if time.Since(start) > patience {
			t.Fatal("what changed before events were heard is not read")
		}
	}
	m.plug("0000:5e:00.0", 0, 0)
	address, err := topology.ParsePCIAddress("0000:5e:00.0")
	if err != nil {
		t.Fatal(err)
	}
	start, asked := time.Now(), time.Time{}
	for {
		// Asked again now and then: the first may come before the agent listens.
		if time.Since(asked) > 500*time.Millisecond {
			if _, err := file.WriteString("change"); err != nil {
				t.Skipf("the kernel gives no event on demand: %v", err)
			}
			asked = time.Now()
		}
		if believed, _, _ := a.hardware.view(); believed != nil {
			if _, ok := believed.Device(address); ok {
				break
			}
		}
		if time.Since(start) > patience {
			t.Fatal("no event of the kernel was heard")
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("from the kernel's event to the ledger: %s", time.Since(asked))
}

// TestUevents_AnOverrunOfTheSocketIsSeen makes the kernel send more events than
// the socket holds while nobody reads it, as a busy agent would: the overrun is
// told of as a change.
func TestUevents_AnOverrunOfTheSocketIsSeen(t *testing.T) {
	file := kernelEvents(t)
	f, err := openUevents()
	if err != nil {
		t.Skipf("no kernel events here: %v", err)
	}
	for range 2000 {
		if _, err := file.WriteString("change"); err != nil {
			t.Skipf("the kernel gives no event on demand: %v", err)
		}
	}
	h := &hardware{news: make(chan struct{}, 1), lost: map[topology.PCIAddress]string{{Bus: 7}: "an error"}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.takeUevents(ctx, f)
	}()
	select {
	case <-h.news:
	case <-time.After(patience):
		t.Error("nothing was told")
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		left := len(h.lost)
		h.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Error("the overrun was not seen")
			break
		}
	}
	cancel()
	<-ended
}

func TestParseUevent_OnlyHardwareThatIsReportedConcerns(t *testing.T) {
	for event, want := range map[string]bool{
		"online@/devices/system/cpu/cpu3\x00ACTION=online\x00SUBSYSTEM=cpu\x00SEQNUM=4711": true,
		"add@/devices/pci0000:00/0000:00:1f.0\x00SUBSYSTEM=pci":                            true,
		"change@/devices/virtual/block/loop0\x00ACTION=change\x00SUBSYSTEM=block":          false,
		"add@/devices/virtual/net/veth0\x00SUBSYSTEM=net":                                  false,
		"": false,
	} {
		if got := parseUevent([]byte(event)).concerns(); got != want {
			t.Errorf("%q: %v, want %v", event, got, want)
		}
	}
}

func TestTakeUevent_RemembersWhatDevicesAreOffline(t *testing.T) {
	h := &hardware{news: make(chan struct{}, 1), lost: map[topology.PCIAddress]string{}}
	const slot = "PCI_SLOT_NAME=0000:3b:00.0"
	for _, step := range []struct {
		lines string
		lost  int
	}{
		{"ACTION=change\x00SUBSYSTEM=pci\x00" + slot + "\x00ERROR_EVENT=BEGIN_RECOVERY\x00DEVICE_ONLINE=0", 1},
		{"ACTION=change\x00SUBSYSTEM=pci\x00" + slot, 1},
		{"ACTION=change\x00SUBSYSTEM=pci\x00" + slot + "\x00ERROR_EVENT=FAILED_RECOVERY\x00DEVICE_ONLINE=0", 1},
		{"ACTION=unbind\x00SUBSYSTEM=pci\x00" + slot, 1},
		{"ACTION=remove\x00SUBSYSTEM=net\x00" + slot, 1},
		{"ACTION=remove\x00SUBSYSTEM=pci\x00" + slot, 0},
		{"ACTION=change\x00SUBSYSTEM=pci\x00" + slot + "\x00ERROR_EVENT=BEGIN_RECOVERY\x00DEVICE_ONLINE=0", 1},
		{"ACTION=change\x00SUBSYSTEM=pci\x00" + slot + "\x00ERROR_EVENT=SUCCESSFUL_RECOVERY\x00DEVICE_ONLINE=1", 0},
		{"ACTION=change\x00SUBSYSTEM=pci\x00" + slot + "\x00ERROR_EVENT=FAILED_RECOVERY\x00DEVICE_ONLINE=0", 1},
		{"ACTION=add\x00SUBSYSTEM=pci\x00" + slot, 0}, // its removal was missed
	} {
		h.takeUevent([]byte(step.lines))
		if len(h.lost) != step.lost {
			t.Errorf("after %q: %v, want %d", step.lines, h.lost, step.lost)
		}
	}
}
