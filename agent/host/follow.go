package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"berth/agent/host/vanished"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// Follow keeps claims behind what people do with virsh, until ctx ends:
//
//	what people do                          what becomes of the guest's claim
//	start, create or restore an unknown one adopted if it fits; else counted, and named in quarantine
//	shut down, crash, reboot                kept
//	undefine a stopped one                  released, after two agreeing reads and a second witness (package vanished)
//	break or hide its definition            kept, and named in status
//	undefine a running one                  kept until it ends, then released
//	migrate away                            kept, and not started here, until its domain is gone
//	setvcpus, setmem, vcpupin, attach, …    follows: forced where it does not fit
//	rename                                  kept; the record has the new name
//
// The use of a guest that runs is what its live document says: a change for its
// next start (--config) counts from that start on. One that is off holds what its
// next start takes. A guest that moves is not touched.
//
// Events are hints; where libvirt sends none, a look around (Options.Look apart)
// finds what has changed. A resync, and every start of Follow, reads everything.
// It never frees anything on account of a read that failed. A hypervisor that does
// not give events is asked again.
func (h *Host) Follow(ctx context.Context) error {
	f := &following{h: h, due: map[string]time.Duration{}, busy: map[string]time.Duration{}, said: map[string]string{}}
	var listening runtime.Group
	listening.Go(h.rt, "follow events", func() { f.listen(ctx) })
	for ctx.Err() == nil {
		f.turn(ctx)
		h.o.Round("instances")
		_ = h.rt.Sleep(ctx, max(h.o.Agree/8, time.Millisecond)) // its end is looked at in the loop
	}
	listening.Wait(h.rt)
	f.looking.Wait(h.rt)
	return nil
}

// lookers bounds how many guests are looked at at a time. One whose disk does not
// answer holds nobody else up: past its patience it is not counted.
const lookers = 4

// following is one run of Follow.
type following struct {
	h       *Host
	looking runtime.Group

	// mu guards the fields below; nothing but map work happens under it.
	mu   sync.Mutex
	due  map[string]time.Duration // guests to look at, and from when on the boot clock
	busy map[string]time.Duration // guests that are being looked at, and since when
	said map[string]string        // what was last complained of, by guest
	next time.Duration            // when to look around again; 0 for now
}

// listen takes events. A storm of them is one look.
func (f *following) listen(ctx context.Context) {
	for ctx.Err() == nil {
		events, err := f.h.driver.Events(ctx)
		if err != nil {
			f.h.log.Warn("no events from the hypervisor", "error", err)
			_ = f.h.rt.Sleep(ctx, f.h.o.Agree) // only a pause before the next try
			continue
		}
		f.h.vanished.Resync()
		f.all()
		for {
			// Not until ctx ends: the driver closes the channel then, and whoever has
			// left it open is waited for.
			e, open, _ := runtime.Receive(context.WithoutCancel(ctx), f.h.rt, events)
			if !open {
				break
			}
			f.h.vanished.Event(e)
			switch {
			case e.Kind == driver.EventResync:
				f.h.vanished.Resync()
				f.all()
			case e.Kind == driver.EventOther || e.Kind == driver.EventIteration || e.UUID == "":
			default:
				if e.Kind == driver.EventStarted && f.h.isStranger(e.UUID) {
					f.h.startSeen(e.UUID)
				}
				f.at(e.UUID, 0)
				if e.Kind == driver.EventUndefined || e.Kind == driver.EventStopped || e.Kind == driver.EventCrashed {
					f.roomMayCome()
				}
			}
		}
		if ctx.Err() == nil {
			_ = f.h.rt.Sleep(ctx, f.h.o.Agree) // the driver was closed, or goes round again
		}
	}
}

// all has everything be looked at again.
func (f *following) all() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = 0
	for _, inst := range f.h.tracker.Instances() {
		f.due[inst.UUID] = 0
	}
}

// roomMayCome has guests in quarantine be tried again soon, when the claim of the
// one that has ended is likely to have gone too.
func (f *following) roomMayCome() {
	waiting := slices.ContainsFunc(f.h.Strangers(), func(s Stranger) bool { return s.Why != nil })
	f.mu.Lock()
	defer f.mu.Unlock()
	if waiting {
		f.next = min(f.next, f.h.rt.Boot().Since+f.h.o.Agree/2)
	}
}

// at has a guest be looked at, not before a moment of the boot clock.
func (f *following) at(uuid string, when time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, due := f.due[uuid]; !due || when < was {
		f.due[uuid] = when
	}
}

// turn looks around when it is time to, and begins what is due.
func (f *following) turn(ctx context.Context) {
	h := f.h
	if h.o.Mode() == ModeObserve {
		return
	}
	now := h.rt.Boot().Since
	f.mu.Lock()
	around := now >= f.next
	if around {
		f.next = now + h.o.Look
	}
	f.mu.Unlock()
	if around {
		changed, err := h.lookAround(ctx)
		if err != nil {
			f.complain(ctx, "", err)
			f.mu.Lock()
			f.next = min(f.next, now+h.o.Agree)
			f.mu.Unlock()
		}
		for _, uuid := range changed {
			f.at(uuid, 0)
		}
		h.relax(ctx)
	}
	f.begin(ctx)
}

// begin looks at guests that are due, as many as there is room for.
func (f *following) begin(ctx context.Context) {
	now := f.h.rt.Boot().Since
	f.mu.Lock()
	var begin []string
	for uuid, when := range f.due {
		if _, busy := f.busy[uuid]; now >= when && !busy {
			begin = append(begin, uuid)
		}
	}
	free := lookers
	for _, since := range f.busy {
		if now-since < lookPatience {
			free--
		}
	}
	slices.Sort(begin)
	begin = begin[:min(len(begin), max(0, free))]
	for _, uuid := range begin {
		delete(f.due, uuid)
		f.busy[uuid] = now
	}
	f.mu.Unlock()
	for _, uuid := range begin {
		f.looking.Go(f.h.rt, "follow "+uuid, func() {
			f.look(ctx, uuid)
			if ctx.Err() == nil {
				f.begin(ctx)
			}
		})
	}
}

// lookPatience bounds a look at one guest, Placement's answer included.
const lookPatience = 30 * time.Second

func (f *following) look(ctx context.Context, uuid string) {
	looking, cancel := f.h.rt.WithTimeout(ctx, lookPatience)
	defer cancel()
	again, err := f.h.lookAt(looking, uuid)
	f.mu.Lock()
	delete(f.busy, uuid)
	f.mu.Unlock()
	if errors.Is(err, fault.Busy) {
		again = f.h.o.Agree / 4 // a verb works on it
	} else {
		if err != nil && again == 0 {
			again = f.h.o.Look
		}
		f.complain(ctx, uuid, err)
	}
	if again > 0 {
		f.at(uuid, f.h.rt.Boot().Since+again)
	}
}

// complain says once what is wrong.
func (f *following) complain(ctx context.Context, uuid string, err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	f.mu.Lock()
	was := f.said[uuid]
	f.said[uuid] = said
	if said == "" {
		delete(f.said, uuid)
	}
	f.mu.Unlock()
	if err != nil && said != was && ctx.Err() == nil {
		f.h.log.Warn("could not follow what was done to guests; they are looked at again", "instance", uuid, "error", err)
	}
}

// lookAt makes ledger and Placement follow one guest. again is when to look the
// next time, where that is not for an event to say.
func (h *Host) lookAt(ctx context.Context, uuid string) (again time.Duration, err error) {
	if _, known := h.tracker.Instance(uuid); !known {
		return h.lookAtStranger(ctx, uuid)
	}
	if err := h.followLeaving(ctx, uuid); err != nil {
		h.vanished.Unknown(uuid)
		return 0, err
	}
	gone, err := h.gone(ctx, uuid)
	switch {
	case err != nil:
		// What was read before libvirt failed is no first of two reads.
		h.vanished.Unknown(uuid)
		return 0, err
	case !gone:
		h.vanished.Unknown(uuid)
		return 0, h.followUse(ctx, uuid)
	case !h.vanished.Missing(uuid, h.rt.Boot().Since, h.o.Agree):
		return h.o.Agree, nil // the second read
	}
	return 0, h.releaseGone(ctx, uuid)
}

// settleBound is lookAt for the start: what a guest uses now is Follow's to see.
func (h *Host) settleBound(ctx context.Context, uuid string) error {
	if err := h.followLeaving(ctx, uuid); err != nil {
		return err
	}
	gone, err := h.gone(ctx, uuid)
	if err != nil || !gone {
		return err
	}
	if err := h.rt.Sleep(ctx, h.o.Agree); err != nil {
		return err
	}
	return h.releaseGone(ctx, uuid)
}

// releaseGone releases the claim of an instance whose domain was missing a while ago, if it is
// missing still and a second witness says that it is gone (package vanished). Else it is kept, and
// named in status.
func (h *Host) releaseGone(ctx context.Context, uuid string) error {
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	missing, err := h.gone(ctx, uuid)
	if err != nil || !missing {
		return err
	}
	all, err := h.driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == uuid }) {
		return err
	}
	var known []string
	var self vanished.Instance
	var others []vanished.Instance
	for _, inst := range h.tracker.Instances() {
		known = append(known, inst.Name)
		if inst.UUID == uuid {
			self = vanished.Instance{UUID: uuid, Name: inst.Name}
		}
		if h.settledHere(inst) && !slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == inst.UUID }) {
			others = append(others, vanished.Instance{UUID: inst.UUID, Name: inst.Name})
		}
	}
	if action, err := h.vanished.Judge(ctx, self, all, others, known); err != nil || action == vanished.Keep {
		return err
	}
	h.log.Info("the instance was undefined: release its claim", "instance", uuid)
	if err := h.forget(ctx, uuid); err != nil {
		return err
	}
	h.mu.Lock()
	delete(h.uses, uuid)
	h.mu.Unlock()
	return nil
}

// settledHere reports whether an instance lives here, and neither moves nor is being made.
func (h *Host) settledHere(inst claims.Instance) bool {
	if inst.Token.State != claims.TokenHere {
		return false
	}
	if _, bound := h.attempts.ClaimOf(inst.UUID); !bound {
		return false
	}
	_, moving := h.attempts.Moving(inst.UUID)
	return !moving
}

// Vanished gives the instances that the hypervisor does not list, and that are kept since
// nothing shows that they were undefined.
func (h *Host) Vanished() []vanished.Held { return h.vanished.Held() }

// gone reports whether a guest that lives here, and neither moves nor is being
// made, has no domain.
func (h *Host) gone(ctx context.Context, uuid string) (bool, error) {
	inst, ok := h.tracker.Instance(uuid)
	if !ok || !h.settledHere(inst) {
		return false, nil
	}
	d, exists, err := h.domain(ctx, uuid)
	if err != nil || !exists {
		return err == nil, err
	}
	h.vanished.Domain(d)
	return false, errors.Join(h.vanished.Whole(ctx, d), h.vanished.Returned(ctx, uuid))
}

// relax takes the mark from forced claims that fit by now.
func (h *Host) relax(ctx context.Context) {
	fit, err := h.tracker.Relax(ctx)
	if err != nil && ctx.Err() == nil {
		h.log.Warn("forced claims could not be looked at", "error", err)
	}
	for _, uuid := range fit {
		h.log.Info("a claim that was forced fits now", "instance", uuid)
	}
}

// definitionsOf finds the second witness of which domains are defined; nil where there is none.
func definitionsOf(d driver.Driver) driver.DefinitionReader {
	r, _ := d.(driver.DefinitionReader)
	return r
}
