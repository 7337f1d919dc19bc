//go:build native

package driver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt/native"
	"berth/driver/libvirt/rpc"
	"berth/test/lab"
)

// tunables names the environment variable that makes the test below a process that
// watches one socket's tunable events by the Go binding's own callback.
const tunables = "BERTH_TEST_TUNABLES"

func TestNative_DoesWhatTheDriverReliesOn(t *testing.T) {
	if socket := os.Getenv(tunables); socket != "" {
		watchTunables(t, socket)
		return
	}
	reliesOn(t, library{dial: native.Dial, watch: watchLibvirt, completes: true, notices: true, first: diesOfTunables, peer: rpc.Dial})
}

func openLibvirt(t *testing.T, socket string) *lv.Connect {
	t.Helper()
	l, err := lv.NewConnect("qemu+unix:///system?socket=" + url.QueryEscape(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close() }) // its daemon may have died meanwhile
	return l
}

// watchLibvirt subscribes by the Go binding alone, whose event loop runs since the
// first connection of native.
func watchLibvirt(t *testing.T, h *lab.Host) func() (lifecycle, completed int) {
	t.Helper()
	l := openLibvirt(t, h.LibvirtSocket())
	var counts [2]atomic.Int64
	one, err := l.DomainEventLifecycleRegister(nil, func(*lv.Connect, *lv.Domain, *lv.DomainEventLifecycle) { counts[0].Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	two, err := l.DomainEventJobCompletedRegister(nil, func(*lv.Connect, *lv.Domain, *lv.DomainEventJobCompleted) { counts[1].Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.DomainEventDeregister(one), l.DomainEventDeregister(two) })
	return func() (int, int) { return int(counts[0].Load()), int(counts[1].Load()) }
}

// diesOfTunables pins a vCPU before the eyes of a process that uses the Go
// binding's callback. Once this fails native's own (tunable.go) may go.
func diesOfTunables(t *testing.T, h *lab.Host, id string) {
	child := exec.CommandContext(within(t, 2*time.Minute), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), tunables+"="+h.LibvirtSocket())
	var said bytes.Buffer
	child.Stderr = &said
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
		t.Errorf("the watching process said %q, %v", line, err)
	}
	if out, err := h.Virsh(t.Context(), "vcpupin", id, "0", "0", "--live"); err != nil {
		t.Errorf("virsh vcpupin: %v: %s", err, out)
	}
	_, _ = io.Copy(io.Discard, out) // until the process has ended
	if err := child.Wait(); err == nil || !strings.Contains(said.String(), "index out of range") {
		t.Errorf("the watching process ended with %v and said %s: the Go binding reads tunable events now", err, said.String())
	}
}

func watchTunables(t *testing.T, socket string) {
	if err := lv.EventRegisterDefaultImpl(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{}, 1)
	l := openLibvirt(t, socket)
	id, err := l.DomainEventTunableRegister(nil, func(*lv.Connect, *lv.Domain, *lv.DomainEventTunable) { seen <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.DomainEventDeregister(id) })
	fmt.Println("ready")
	for {
		select {
		case <-seen:
			return
		default:
			if err := lv.EventRunDefaultImpl(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
