// Package drivertest holds what tests of Berth use in place of a hypervisor,
// and what holds every hypervisor driver to the contract.
//
// Run is the conformance suite of package driver: each promise of the contract
// is a subtest with a name. The fake below, libvirt's test driver through both
// bindings and real QEMU pass the same suite.
//
// A Fleet is a set of fake hypervisors in one process that can send guests to
// each other with the failure behaviour that was measured on real libvirt
// (source `running (migration canceled)` beside a complete destination when
// Finish's reply is lost, `paused (migrating)` on a source whose daemon died in
// the hand-over, jobs that stand still when the data link is cut). It is the
// only writer of its own state, checks at every change that no guest runs
// twice, and keeps a history. Time and goroutines come from the injected
// runtime alone, so that a simulator can run it one actor at a time.
package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/driver"
	"berth/internal/runtime"
)

// Fleet is the world that fake hypervisors share.
type Fleet struct {
	rt     runtime.Runtime
	ctx    context.Context // ends with Close; all actors of the fleet hang on it
	cancel context.CancelFunc

	// mu guards everything below and every Fake's state. Hooks are called
	// without it; nothing blocks under it.
	mu         sync.Mutex
	hosts      map[string]*machine
	dataCut    map[[2]string]bool
	mgmtCut    map[[2]string]bool
	phase      func(phase, uuid string) error
	pace       Pace
	manual     bool
	latency    time.Duration
	history    []Entry
	violations []string
	news       chan struct{} // closed and renewed when a job, a daemon or a connection ends, or a daemon comes or wakes
	storage    func(host string) Storage
	forwards   map[string]*forwarded // by path
	twice      map[string]bool       // instances that run twice at this moment, so that one fact is recorded once
}

// Entry is one thing that happened in the fleet.
type Entry struct {
	At   time.Time
	Host string
	UUID string // of the domain; empty when the whole host is meant
	What string
}

// String gives "host-a 7f…: running (booted)".
func (e Entry) String() string { return strings.TrimSpace(e.Host+" "+e.UUID) + ": " + e.What }

// Pace is how migrations go. Zero fields mean the default.
type Pace struct {
	Tick        time.Duration // how often a job moves on; default 20 ms
	Setup       time.Duration // how long the destination takes to start; default 2 ticks
	Rate        uint64        // bytes a second of the data link; default 8 GiB/s
	DirtyRate   uint64        // bytes a second that the guest dirties; at Rate or above it never converges
	WorkingSet  uint64        // bytes of its memory that it dirties; default all
	MaxDowntime time.Duration // the hypervisor's default; 300 ms as QEMU's
	Keepalive   time.Duration // until libvirt notices a cut management link; 8 s as measured with 2 s × 3
	DiskBytes   uint64        // bytes of each copied disk; default 64 MiB
	// HandOver is how long each message and each act takes of what goes before the
	// memory moves and after it has; default 0: nothing else happens in between.
	HandOver time.Duration
	// Orphan is how long a destination keeps what arrives when the source has gone
	// without a word: libvirt takes up to 4 s; default 0, at once.
	Orphan time.Duration
	// Linger is how long a libvirtd that was told to stop waits for its migrations;
	// default 30 s as measured.
	Linger time.Duration
}

// NewFleet makes an empty fleet on a runtime. Close ends its actors.
func NewFleet(rt runtime.Runtime) *Fleet {
	ctx, cancel := context.WithCancel(context.Background())
	return &Fleet{
		rt: rt, ctx: ctx, cancel: cancel,
		hosts: map[string]*machine{}, dataCut: map[[2]string]bool{}, mgmtCut: map[[2]string]bool{},
		twice: map[string]bool{},
	}
}

// Close ends jobs and event streams. Calls in flight return when their own
// context does or the next tick sees the end.
func (f *Fleet) Close() {
	f.cancel()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellLocked()
}

// newsLocked is closed with the next change that somebody may wait for.
func (f *Fleet) newsLocked() <-chan struct{} {
	if f.news == nil {
		f.news = make(chan struct{})
	}
	return f.news
}

func (f *Fleet) tellLocked() {
	if f.news != nil {
		close(f.news)
		f.news = nil
	}
}

// Host gives a connection to the fake hypervisor of that name, which is made and
// powered on at first use.
func (f *Fleet) Host(name string) *Fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.hosts[name]
	if h == nil {
		h = newMachine(f, name)
		f.hosts[name] = h
	}
	return &Fake{machine: h}
}

// SetPace changes how migrations go, those in flight included.
func (f *Fleet) SetPace(p Pace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pace = p
}

// SetLatency makes every call sleep for d before and after its effect, so that
// a simulator can let others act in between. A context that ends in the second
// sleep loses the reply.
func (f *Fleet) SetLatency(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.latency = d
}

// Manual stops jobs from moving by themselves; Advance moves them.
func (f *Fleet) Manual() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.manual = true
}

// Advance moves every job in flight on by d, in order of host name and UUID.
func (f *Fleet) Advance(d time.Duration) {
	for _, j := range f.jobs() {
		f.step(j, d)
	}
}

// jobs lists the jobs in flight in an order that does not depend on map order.
func (f *Fleet) jobs() []*job {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*job
	for _, name := range f.namesLocked() {
		for _, d := range f.hosts[name].sortedLocked() {
			for _, j := range []*job{d.job, d.broken} {
				if j != nil && j.prepared && j.source == f.hosts[name] {
					out = append(out, j)
				}
			}
		}
	}
	return out
}

func (f *Fleet) namesLocked() []string {
	names := make([]string, 0, len(f.hosts))
	for n := range f.hosts {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// CutData cuts the link over which guests' memory and disks go between two
// hosts: jobs stand still, and nobody notices.
func (f *Fleet) CutData(a, b string) { f.link(a, b, "data link cut", f.dataCut, true) }

// HealData joins it again: jobs go on by themselves.
func (f *Fleet) HealData(a, b string) { f.link(a, b, "data link healed", f.dataCut, false) }

// CutManagement cuts the link between the two hosts' daemons: after Keepalive
// a migration rolls back, and no new one begins. One whose Finish was carried out
// rolls back beside a complete destination.
func (f *Fleet) CutManagement(a, b string) { f.link(a, b, "management link cut", f.mgmtCut, true) }

// HealManagement joins it again.
func (f *Fleet) HealManagement(a, b string) {
	f.link(a, b, "management link healed", f.mgmtCut, false)
}

func (f *Fleet) link(a, b, what string, m map[[2]string]bool, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m[pair(a, b)] = cut
	f.recordLocked(a+"-"+b, "", what)
}

// The phases of a migration that FaultPhase sees, in their order.
const (
	PhaseBegin        = "begin"         // the destination's libvirt is asked, before any memory moves (its `migrate begin` hook)
	PhasePrepareReply = "prepare-reply" // the destination waits for the guest, the source's libvirt is about to hear of it
	PhasePerform      = "perform"       // memory moves; asked at every tick
	PhaseFinish       = "finish"        // all is sent, the destination is about to be asked to complete the guest
	PhaseFinishReply  = "finish-reply"  // the destination is complete, the source's libvirt is about to hear of it
	PhaseConfirm      = "confirm"       // the source's libvirt has heard of it, and is about to end its half
)

// FaultPhase sets a hook into every migration. An error from begin, perform or
// finish makes libvirt roll back; one from prepare-reply or finish-reply is a lost
// reply, after which the source goes on beside what the destination has: a guest that
// waits for its memory, and goes soon, or one that is complete. An error from confirm
// kills the source's libvirt there. nil removes the hook. The hook may call the fleet.
func (f *Fleet) FaultPhase(hook func(phase, uuid string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.phase = hook
}

// RunningCopies counts the hosts on which the guest's CPUs run now.
func (f *Fleet) RunningCopies(uuid string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.runningLocked(uuid))
}

// Running names the hosts on which the guest's CPUs run now, sorted.
func (f *Fleet) Running(uuid string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runningLocked(uuid)
}

func (f *Fleet) runningLocked(uuid string) []string {
	var out []string
	for _, name := range f.namesLocked() {
		d := f.hosts[name].domains[uuid]
		if f.hosts[name].forgotten[uuid].running || d != nil && (d.state == driver.Running || d.state == driver.Blocked) {
			out = append(out, name)
		}
	}
	return out
}

// Violations lists every moment at which a guest began to run twice.
func (f *Fleet) Violations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.violations)
}

// History gives what happened so far, in order.
func (f *Fleet) History() []Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.history)
}

func (f *Fleet) recordLocked(host, uuid, what string) {
	f.history = append(f.history, Entry{At: f.rt.Now(), Host: host, UUID: uuid, What: what})
}

// checkLocked records a violation when a guest has begun to run twice. It is
// called after every change, before anybody else can see it.
func (f *Fleet) checkLocked(uuid string) {
	on := f.runningLocked(uuid)
	switch {
	case len(on) < 2:
		delete(f.twice, uuid)
	case !f.twice[uuid]:
		f.twice[uuid] = true
		f.violations = append(f.violations, fmt.Sprintf("guest %s runs on %s", uuid, strings.Join(on, " and ")))
		f.recordLocked(strings.Join(on, ","), uuid, "VIOLATION: runs twice")
	}
}

func (f *Fleet) paceLocked() Pace {
	p := f.pace
	if p.Tick == 0 {
		p.Tick = 20 * time.Millisecond
	}
	if p.Setup == 0 {
		p.Setup = 2 * p.Tick
	}
	if p.Rate == 0 {
		p.Rate = 8 << 30
	}
	if p.MaxDowntime == 0 {
		p.MaxDowntime = 300 * time.Millisecond
	}
	if p.Keepalive == 0 {
		p.Keepalive = 8 * time.Second
	}
	if p.Linger == 0 {
		p.Linger = defaultLinger
	}
	if p.DiskBytes == 0 {
		p.DiskBytes = 64 << 20
	}
	return p
}
