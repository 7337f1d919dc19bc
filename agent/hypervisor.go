package agent

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"berth/agent/inventory"
	"berth/driver"
	"berth/topology"
)

// hypervisorEvery is how often the hypervisor is asked what guests can have:
// firmware or a new QEMU may be installed, and libvirt tells nobody. Arbitrary.
const hypervisorEvery = time.Minute

// hypervisor keeps what guests can have on this host, as last told: a hypervisor
// that does not answer takes nothing away (law 7).
type hypervisor struct {
	a *Agent

	last atomic.Pointer[driver.Node] // nil until the first answer

	// mu guards what follows. Nothing is called under it.
	mu    sync.Mutex
	known *inventory.Hypervisor // nil until the first answer; never changed, only replaced
}

// found takes an answer.
func (h *hypervisor) found(n driver.Node) {
	h.last.Store(&n)
	if n.Capabilities == nil {
		return // it does not tell; what it told before stands
	}
	_, live := driver.LiveMigration(h.a.driver, n)
	_, post := driver.PostCopy(h.a.driver, n)
	now := &inventory.Hypervisor{Capabilities: *n.Capabilities, LiveMigration: live == nil, PostCopy: post == nil}
	h.mu.Lock()
	same := reflect.DeepEqual(h.known, now)
	h.known = now
	h.mu.Unlock()
	if !same {
		h.a.log.Info("hypervisor read", "cpu", now.Capabilities.CPU.Model, "features", len(now.Capabilities.CPU.Features),
			"machine_types", len(now.Capabilities.Machines), "firmware", now.Capabilities.Firmware)
		h.a.reporter.Kick()
	}
}

// lastNode is what the hypervisor said of itself the last time; nil while it has not.
func (h *hypervisor) lastNode() *driver.Node { return h.last.Load() }

// view is what is known; nil while nothing is.
func (h *hypervisor) view() *inventory.Hypervisor {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known
}

// capabilities is what guests can have; nil while that is not known.
func (h *hypervisor) capabilities() *topology.Capabilities {
	if known := h.view(); known != nil {
		return &known.Capabilities
	}
	return nil
}

// run asks again and again until ctx ends. The first answer comes with the
// hypervisor's identity, see recognise.
func (h *hypervisor) run(ctx context.Context) error {
	for h.a.rt.Sleep(ctx, hypervisorEvery) == nil {
		if n, err := h.a.driver.Node(ctx); err == nil { // what does not answer is health's to tell
			h.found(n)
		}
	}
	return nil
}
