package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/internal/watchdog"
)

// holding is one watchdog that a keeper holds. Its fields are one actor's.
type holding struct {
	v       *Keeper
	records Records
	budget  watchdog.Budget
	path    string

	device Device // nil while it is not open
	// armed: the mark is durable, so that other hosts may go by it. Then the device may be
	// armed while it is not open.
	armed  bool
	fed    time.Duration // when it was fed last; of one that was left armed no earlier than that
	retry  time.Duration // it is not opened before
	failed bool
}

// holding makes one. left says that an agent before this one may have left it armed.
func (v *Keeper) holding(records Records, path string, timeout time.Duration, left bool) *holding {
	return &holding{
		v: v, records: records, path: path, armed: left, fed: v.now(),
		budget: watchdog.Budget{Lease: v.o.Fleet.Lease.D(), Timeout: timeout},
	}
}

// until arms the device and feeds it until ctx ends, or it has failed.
func (h *holding) until(ctx context.Context) {
	telling, end := context.WithCancel(context.WithoutCancel(ctx))
	var teller runtime.Group
	defer teller.Wait(h.v.o.Runtime)
	defer end()
	begun := false
	for ctx.Err() == nil && !h.failed {
		h.step(ctx)
		if h.armed && h.device != nil && !begun {
			begun = true
			teller.Go(h.v.o.Runtime, "self fence on record", func() { h.tell(telling) })
		}
		_ = h.v.o.Runtime.Sleep(ctx, h.budget.FeedEvery()) // its end is looked at in the loop
	}
}

// step opens the device, or feeds it, where that may be done now.
func (h *holding) step(ctx context.Context) {
	v, now, chain := h.v, h.v.now(), h.v.standing()
	decision := watchdog.Starve
	switch {
	case h.armed || h.device != nil:
		decision = watchdog.Decide(h.budget, chain, now, h.fed)
	case h.budget.May(chain, now):
		decision = watchdog.Feed
	}
	switch {
	case decision == watchdog.Failed:
		h.failed = true
		v.set(stateFailed, fault.Refuse(fault.Internal, "feed watchdog "+h.path, fault.Reason{
			Code: "watchdog_failed", Message: fmt.Sprintf("it was not fed for %s, and this host was not reset: it proves nothing", (now - h.fed).Round(time.Second)),
			Change: "see why (wdctl " + h.path + "); a host that was suspended or paused must not fence itself. Then restart the agent",
		}))
		v.o.Logger.Error("the watchdog was not fed, and did not reset this host: it is not trusted any more", "device", h.path, "fed_ago", now-h.fed)
	case h.device == nil && (h.armed || v.o.MayArm()):
		if decision == watchdog.Feed && now >= h.retry {
			h.open(ctx)
		}
	case h.device == nil:
	case decision == watchdog.Starve:
		if v.set(stateStarving, nil) {
			v.o.Logger.Error("the watchdog is not fed: the lease is not known to stand. This host is reset unless it is renewed", "device", h.path, "reset_in", h.fed+h.budget.Timeout-now)
		}
	default:
		h.feed()
	}
}

// open arms the device: it may be fed.
func (h *holding) open(ctx context.Context) {
	v := h.v
	open := v.o.Open
	if h.armed {
		open = v.o.Reopen
	}
	d, facts, err := open(h.path, h.budget.Timeout)
	if err == nil && !h.armed {
		if err = v.mark(ctx, armedMark{Boot: v.o.Boot, Path: h.path, Timeout: h.budget.Timeout}); err != nil {
			err = errors.Join(err, d.Disarm())
		}
	}
	if err != nil {
		if v.set(stateWaiting, err) {
			v.o.Logger.Error("the watchdog is not armed: this host does not fence itself", "device", h.path, "left_armed", h.armed, "error", err)
		}
		if !h.armed {
			h.retry = v.now() + openAgain
		}
		return
	}
	h.device, h.armed, h.fed = d, true, v.now()
	v.mu.Lock()
	v.facts = facts
	v.mu.Unlock()
	if v.set(stateArmed, nil) {
		v.o.Logger.Info("the watchdog is armed", "device", h.path, "identity", facts.Identity, "timeout", facts.Timeout, "no_way_out", facts.NoWayOut)
	}
}

func (h *holding) feed() {
	v := h.v
	if err := h.device.Feed(); err != nil {
		v.o.Logger.Error("the watchdog could not be fed, and is opened anew", "device", h.path, "error", errors.Join(err, h.device.Abandon()))
		h.device = nil
		v.set(stateStarving, err)
		return
	}
	h.fed = v.now()
	if v.set(stateArmed, nil) {
		v.o.Logger.Info("the watchdog is fed again", "device", h.path)
	}
}

// tell keeps this host's record saying that it fences itself, until ctx ends.
func (h *holding) tell(ctx context.Context) {
	for ctx.Err() == nil {
		said := h.v.witnesses()
		err := h.say(ctx, true)
		wait := confirmEvery
		if err != nil {
			wait = announceWait
		}
		h.v.mu.Lock()
		h.v.told, h.v.untold = h.v.told || err == nil, err
		h.v.mu.Unlock()
		for end := h.v.now() + wait; ctx.Err() == nil && h.v.now() < end && slices.Equal(said, h.v.witnesses()); {
			_ = h.v.o.Runtime.Sleep(ctx, min(announceWait, wait)) // its end is looked at in the loop
		}
	}
}

func (h *holding) say(ctx context.Context, armed bool) error {
	ctx, cancel := h.v.o.Runtime.WithTimeout(ctx, announceCall)
	defer cancel()
	length := h.v.length()
	if !armed {
		length = 0
	}
	names := h.v.witnesses()
	err := h.records.Armed(ctx, h.v.o.Host, h.v.o.Boot, length, names)
	if err == nil {
		h.v.onRecord(names)
	}
	return err
}

// disarm ends it in order, or leaves it armed where other hosts could not be told. ctx has ended,
// or its end does not matter.
func (h *holding) disarm(ctx context.Context) {
	v := h.v
	if !h.armed && h.device == nil {
		return
	}
	for !h.takeBack(context.WithoutCancel(ctx)) {
		// What proves nothing must not stay on record as a proof.
		if !h.failed || ctx.Err() != nil {
			h.leave()
			return
		}
	}
	last, cancel := v.o.Runtime.WithTimeout(context.WithoutCancel(ctx), announceCall)
	defer cancel()
	if err := v.o.Memory.Delete(last, store.BucketAgent, keyArmed); err != nil {
		v.o.Logger.Warn("the mark of an armed watchdog could not be removed: the next agent takes it for armed", "error", err)
	}
	var err error
	if h.device == nil {
		// Nobody goes by it any more, so that it may be fed without a lease.
		h.device, _, err = v.o.Reopen(h.path, h.budget.Timeout)
	}
	if err == nil {
		err = h.device.Disarm()
	}
	h.device, h.armed = nil, false
	if err != nil {
		v.o.Logger.Error("the watchdog is not known to be disarmed: it may reset this host", "device", h.path, "timeout", h.budget.Timeout, "error", err)
	} else {
		v.o.Logger.Info("the watchdog is disarmed", "device", h.path)
	}
	if !h.failed {
		v.set(stateOff, err)
	}
}

// takeBack has the record say that this host does not fence itself, and feeds meanwhile. It says
// whether that is on record.
func (h *holding) takeBack(ctx context.Context) bool {
	v := h.v
	ctx, cancel := v.o.Runtime.WithTimeout(ctx, stopFenced)
	defer cancel()
	var writer runtime.Group
	waking, wake := context.WithCancel(ctx)
	var err error
	writer.Go(v.o.Runtime, "self fence off record", func() {
		defer wake()
		for {
			// A host without a record is known to nobody.
			if err = h.say(ctx, false); err == nil || errors.Is(err, fault.NotFound) {
				err = nil
				return
			}
			if v.o.Runtime.Sleep(ctx, announceWait/4) != nil {
				return
			}
		}
	})
	for waking.Err() == nil {
		if !h.failed {
			h.step(ctx)
		}
		_ = v.o.Runtime.Sleep(waking, h.budget.FeedEvery()) // its end is looked at in the loop
	}
	wake()
	writer.Wait(v.o.Runtime)
	v.mu.Lock()
	v.told, v.untold = v.told && err != nil, err
	v.mu.Unlock()
	return err == nil
}

// leave closes the device armed.
func (h *holding) leave() {
	v := h.v
	v.mu.Lock()
	why := v.untold
	v.mu.Unlock()
	var err error
	if h.device != nil {
		err = h.device.Abandon()
	}
	h.device = nil
	if !h.failed {
		v.set(stateOff, why)
	}
	v.o.Logger.Error("the watchdog stays armed, since it could not be written that this host does not fence itself: it is reset unless an agent starts in time",
		"device", h.path, "timeout", h.budget.Timeout, "why", why, "error", err)
}

// mark makes durable that other hosts may go by a watchdog in this boot.
func (v *Keeper) mark(ctx context.Context, m armedMark) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := v.o.Memory.Put(ctx, store.BucketAgent, keyArmed, raw); err != nil {
		return fmt.Errorf("mark the watchdog as armed: %w", err)
	}
	return nil
}

// set notes a state and why, and says whether that is new.
func (v *Keeper) set(state watchdogState, why error) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	same := v.state == state && fmt.Sprint(v.why) == fmt.Sprint(why)
	if v.state != state {
		v.since = v.o.Runtime.Now()
	}
	v.state, v.why = state, why
	return !same
}

// conditions are how the lease and the watchdog are; none where there is no lease to keep.
func (v *Keeper) Conditions() []api.Condition {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.off {
		return nil
	}
	out := []api.Condition{v.leaseLocked()}
	if v.o.Fleet.SelfFence != "" {
		out = append(out, v.watchdogLocked())
	}
	return out
}

func (v *Keeper) leaseLocked() api.Condition {
	const name = "lease"
	switch {
	case !v.tried:
		return api.OK(name, "not renewed yet")
	case v.lost.IsZero():
		return api.OK(name, "stands, "+v.o.Fleet.Lease.String())
	}
	detail := "not renewed since " + v.lost.Format(time.DateTime) + ": " + v.last.Error()
	if v.unproven != nil && !v.noQuorum {
		detail += "; " + v.unproven.Error()
	}
	r := fault.Reason{
		Code: "lease_lost", Message: detail, Change: "bring [fleet] etcd back, or this host's way to it; guests run on",
	}
	if v.noQuorum {
		detail = "not renewed since " + v.lost.Format(time.DateTime) + ": no majority of etcd's members serves, so no lease ends: " + v.last.Error()
		r.Code, r.Message = "lease_no_quorum", detail
	}
	return api.Degraded(name, detail, r)
}

func (v *Keeper) watchdogLocked() api.Condition {
	const name = "watchdog"
	device := v.o.Fleet.SelfFence
	switch v.state {
	case stateArmed:
		detail := fmt.Sprintf("armed: %s (%s), %s", device, v.facts.Identity, v.facts.Timeout)
		if v.facts.NoWayOut {
			detail += "; it has no way out: an agent that is stopped for longer resets this host"
		}
		if !v.told && v.untold != nil {
			return api.Degraded(name, detail+"; other hosts are not told: "+v.untold.Error(), fault.Reason{
				Code: "self_fence_untold", Message: "the fleet's records do not say that this host fences itself: " + v.untold.Error(), Change: "it is tried again by itself",
			})
		}
		return api.OK(name, detail)
	case stateStarving:
		detail := "starving since " + v.since.Format(time.DateTime) + ": the lease is not known to stand, and the host is reset within " + v.budget.Timeout.String()
		return api.Degraded(name, detail, fault.Reason{Code: "watchdog_starving", Message: detail, Change: "bring [fleet] etcd back, or this host's way to it, at once"})
	case stateOff:
		return api.OK(name, "off: the agent is going down")
	}
	if v.why != nil {
		return api.Degraded(name, "not armed: "+v.why.Error(), append(fault.ReasonsOf(v.why), fault.Reason{
			Code: "self_fence_off", Message: "this host does not fence itself: an expired lease of it proves nothing", Change: "see to " + device + "; it is tried again by itself",
		})...)
	}
	return api.OK(name, "not armed yet: "+device)
}
