// Package lease keeps the lease by which other hosts know that this one lives, and feeds this host's
// watchdog by that lease alone.
//
// It reads the fleet's records, and asks other hosts' agents whether the store serves them; it alone
// writes this host's lease, the mark of an armed watchdog (bucket "agent" of the store), and whether
// the host's record says that it fences itself.
package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/internal/watchdog"
)

// Keeper keeps this host's lease in the fleet's records and, where [fleet] self_fence names a
// watchdog, feeds that by the lease alone: so that the host is reset before its lease ends, and an
// expired lease is a proof of its death. It ends and starts nothing else, and no guest waits for
// it. The order, in which each step is done before the next is begun:
//
//	arm      the lease is renewed - the device is opened - the mark of this boot is durable -
//	         hosts/<name> says self_fence. Fed from the second step on.
//	disarm   hosts/<name> says that it does not - the mark is gone - the device is closed with
//	         the magic letter. Fed until the last step. Where the first cannot be done, which is
//	         tried for stopFenced, the device is closed armed, and the host is reset unless an
//	         agent opens it again in time.
//
// An agent that finds the mark of its own boot takes the device over as soon as it has renewed the
// lease, never before: opening feeds. Whether it may feed is watchdog.Decide's.
//
//	state      means                                               what ends it
//	waiting    not armed: no lease yet, the host is not known      a lease; libvirt
//	           to be itself, or the device cannot be had
//	armed      fed                                                 –
//	starving   armed and not fed: the reset is near                a lease, a proof of no quorum
//	failed     was not fed, and no reset came: it proves nothing,  a restart of the agent
//	           and is disarmed in order where nobody goes by it
//	off        disarmed, or left armed, at the end                 –
type Keeper struct {
	o      Options
	budget watchdog.Budget

	// mu guards what follows; nothing is called under it.
	mu       sync.Mutex
	off      bool // no lease is kept: there is no store with leases
	chain    watchdog.Chain
	last     error      // of the newest renewal
	tried    bool       // a renewal has ended, well or not
	lost     time.Time  // since when none succeeds; zero while they do
	noQuorum bool       // the newest failure was a proof that the store serves nobody
	unproven error      // why it was none; nil where it was
	asked    storeAsked // the newest renewal that ended
	others   []string   // the hosts that have to bear out that the store serves nobody: all that are on record for it, and those to be
	named    []string   // the hosts that are to be on record for it, as known last
	known    bool       // who they are was read
	state    watchdogState
	since    time.Time      // it is in that state
	facts    watchdog.Facts // of the device that is open, or was
	why      error          // why it is not armed
	told     bool           // the record says that this host fences itself
	untold   error          // why it does not
}

type watchdogState string

const (
	stateWaiting  watchdogState = "waiting"
	stateArmed    watchdogState = "armed"
	stateStarving watchdogState = "starving"
	stateFailed   watchdogState = "failed"
	stateOff      watchdogState = "off"
)

// Options are what a lease is kept by.
type Options struct {
	Host, Boot string
	Fleet      config.Fleet
	// Records are the fleet's, or why there are none by which a host is alive.
	Records func() (Records, error)
	Memory  Notes
	// MayArm says whether this host is known to be the one that its ledger is of.
	MayArm func() bool
	// Ask asks another host's agent whether the store serves it.
	Ask     func(ctx context.Context, host string) (api.StoreSeen, error)
	Open    OpenDevice
	Reopen  OpenDevice
	Runtime runtime.Runtime
	Logger  *slog.Logger
}

// Notes are durable notes of this host.
type Notes interface {
	Get(ctx context.Context, bucket, key string) ([]byte, bool, error)
	Put(ctx context.Context, bucket, key string, value []byte) error
	Delete(ctx context.Context, bucket, key string) error
}

// OpenDevice opens a watchdog for the first time in a boot, or again.
type OpenDevice func(path string, timeout time.Duration) (Device, watchdog.Facts, error)

// Device is a watchdog that is open: a watchdog.Device.
type Device interface {
	Feed() error
	Disarm() error
	Abandon() error
}

// Opening adapts watchdog.Open, or Reopen.
func Opening(open func(string, time.Duration) (*watchdog.Device, error)) OpenDevice {
	return func(path string, timeout time.Duration) (Device, watchdog.Facts, error) {
		d, err := open(path, timeout)
		if err != nil {
			return nil, watchdog.Facts{}, err
		}
		return d, d.Facts, nil
	}
}

// liveRecords is the part of fleet.Records by which a host is alive.
type Records interface {
	KeepAlive(ctx context.Context, host, boot string, length fleet.Seconds) error
	NoQuorum(ctx context.Context) (refused bool, err error)
	Hosts(ctx context.Context) ([]fleet.Host, error)
	Deaths(ctx context.Context) ([]fleet.Death, error)
	Armed(ctx context.Context, host, boot string, length fleet.Seconds, witnesses []string) error
	WatchLapsed(ctx context.Context) error
}

// How long the parts of a keeper take; arbitrary but for the order.
const (
	stopFenced   = 15 * time.Second // the record must be written in that at an orderly stop; below stopPatience
	announceCall = 5 * time.Second  // one write of the record
	announceWait = 2 * time.Second  // until the next, after one that failed
	confirmEvery = 30 * time.Second // the record is looked at again: a store can be restored
	openAgain    = 10 * time.Second // a device that could not be had

	lapsedEvery = 2 * time.Second // looks at a lease that is over; several within the shortest that feeds a watchdog
	lostEvery   = time.Second     // tries of a lease that is lost

	lapsedPatience = 2 * time.Second // one of all such
)

// keyArmed is the mark that other hosts go by this one's watchdog.
const keyArmed = "self_fence"

// armedMark is what stands there.
type armedMark struct {
	Boot    string        `json:"boot"` // counts in that alone
	Path    string        `json:"path"`
	Timeout time.Duration `json:"timeout"`
}

// New makes what keeps a lease; it begins nothing.
func New(o Options) *Keeper {
	return &Keeper{o: o, budget: o.Fleet.Budget(), state: stateWaiting, since: o.Runtime.Now()}
}

// run works until ctx ends, and then disarms in order.
func (v *Keeper) Run(ctx context.Context) error {
	mark, err := v.readMark(ctx)
	if err != nil {
		// Then it is not known whether others go by it: it is taken for armed.
		v.o.Logger.Error("whether this host's watchdog was left armed is not known", "error", err)
	}
	records, none := v.o.Records()
	if none != nil {
		v.mu.Lock()
		v.off = true
		v.mu.Unlock()
		if mark != nil {
			v.o.Logger.Error("an earlier agent has left the watchdog armed, and the store that must hear first is not configured any more: the host is reset unless the configuration is put back",
				"device", mark.Path, "timeout", mark.Timeout, "error", none)
		}
		<-ctx.Done()
		return nil
	}
	// The lease is kept while the watchdog is disarmed: it is fed by it.
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var keepers runtime.Group
	keepers.Go(v.o.Runtime, "fleet lease", func() { v.keepLease(keeping, records) })
	keepers.Go(v.o.Runtime, "leases that are over", func() { v.watchLapsed(keeping, records) })
	if v.o.Fleet.SelfFence != "" {
		keepers.Go(v.o.Runtime, "hosts that bear each other out", func() { v.keepOthers(keeping, records) })
	}
	defer keepers.Wait(v.o.Runtime)
	defer stop()

	path, timeout := v.o.Fleet.SelfFence, v.budget.Timeout
	left := mark != nil || err != nil && path != ""
	if mark != nil && (mark.Path != path || mark.Timeout != timeout) {
		// Another agent of this boot had another device: it is ended in order first.
		v.o.Logger.Warn("the watchdog of an earlier configuration is disarmed", "device", mark.Path)
		h := v.holding(records, mark.Path, mark.Timeout, true)
		h.disarm(ctx)
		left = false
	}
	if path != "" && ctx.Err() == nil {
		h := v.holding(records, path, timeout, left)
		h.until(ctx)
		h.disarm(ctx)
	}
	<-ctx.Done()
	return nil
}

// readMark gives the mark of this boot; nil for none.
func (v *Keeper) readMark(ctx context.Context) (*armedMark, error) {
	raw, found, err := v.o.Memory.Get(ctx, store.BucketAgent, keyArmed)
	if err != nil || !found {
		return nil, err
	}
	var m armedMark
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("read the mark of an armed watchdog: %w", err)
	}
	if m.Boot != v.o.Boot {
		return nil, nil
	}
	return &m, nil
}

// keepLease renews the lease until ctx ends. Where that fails on a host that fences itself, it
// asks for a proof that the store serves nobody.
func (v *Keeper) keepLease(ctx context.Context, records Records) {
	every := v.o.Fleet.Lease.D() / 5
	if v.o.Fleet.SelfFence != "" {
		every = min(every, v.budget.RenewEvery())
	}
	for ctx.Err() == nil {
		begun := v.now()
		if err := v.renew(ctx, records, every, begun); err != nil && ctx.Err() == nil {
			v.proof(ctx, records, every)
		}
		pause := every
		if !v.served() {
			pause = min(every, lostEvery) // others go by what this host has heard a moment ago
		}
		if wait := begun + pause - v.now(); wait > 0 {
			_ = v.o.Runtime.Sleep(ctx, wait) // its end is looked at in the loop
		}
	}
}

func (v *Keeper) renew(ctx context.Context, records Records, patience, begun time.Duration) error {
	call, cancel := v.o.Runtime.WithTimeout(ctx, patience)
	defer cancel()
	err := records.KeepAlive(call, v.o.Host, v.o.Boot, v.length())
	if ctx.Err() != nil {
		return err
	}
	v.mu.Lock()
	before := v.lost
	v.tried, v.last = true, err
	v.asked = storeAsked{there: true, begun: begun, served: servedBy(err)}
	switch {
	case err == nil:
		v.chain, v.lost, v.noQuorum = v.chain.Renewed(begun), time.Time{}, false
	case before.IsZero():
		v.lost = v.o.Runtime.Now()
	}
	v.mu.Unlock()
	switch {
	case err == nil && !before.IsZero():
		v.o.Logger.Info("the lease in the fleet's records is renewed again", "lost", before)
	case err != nil && before.IsZero():
		v.o.Logger.Warn("the lease in the fleet's records could not be renewed", "error", err)
	}
	return err
}

// proof asks whether the store serves nobody, so that no lease ends.
func (v *Keeper) proof(ctx context.Context, records Records, patience time.Duration) {
	call, cancel := v.o.Runtime.WithTimeout(ctx, patience)
	defer cancel()
	begun := v.now()
	refused, err := records.NoQuorum(call)
	if err == nil && refused {
		var since time.Duration
		since, err = v.borneOut(ctx)
		begun = min(begun, since)
	}
	ended := v.now()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.noQuorum, v.unproven = err == nil, err
	if err == nil {
		v.chain = v.chain.NoQuorum(v.budget, begun, ended)
	}
}

// watchLapsed looks at the leases of hosts whose death is asked for, until ctx ends.
func (v *Keeper) watchLapsed(ctx context.Context, records Records) {
	for ctx.Err() == nil {
		call, cancel := v.o.Runtime.WithTimeout(ctx, lapsedPatience)
		_ = records.WatchLapsed(call) // whoever asks for the death hears the same
		cancel()
		_ = v.o.Runtime.Sleep(ctx, lapsedEvery) // its end is looked at in the loop
	}
}

// length is the lease's.
func (v *Keeper) length() fleet.Seconds { return fleet.Seconds(v.o.Fleet.Lease.D() / time.Second) }

func (v *Keeper) now() time.Duration { return v.o.Runtime.Boot().Since }

func (v *Keeper) standing() watchdog.Chain {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.chain
}
