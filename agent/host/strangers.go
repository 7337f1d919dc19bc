package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/topology"
)

// stranger is a guest that runs here and that nobody manages.
type stranger struct {
	domain driver.Domain
	text   string // digest of its document
	found  claims.Found
	looked bool  // whether to adopt it was looked into
	why    error // why it was not adopted; nil where nobody asked for it
}

// Stranger is a guest that runs here and that nobody manages. What it uses is
// counted, so that no claim is put on it.
type Stranger struct {
	UUID, Name string
	Resources  topology.Resources
	// Why is what keeps it from being adopted, with every reason: it is in
	// quarantine. nil for one that ran before Berth came, which waits for a person's
	// word.
	Why error
}

// Strangers gives them by name.
func (h *Host) Strangers() []Stranger {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Stranger, 0, len(h.strangers))
	for uuid, s := range h.strangers {
		out = append(out, Stranger{UUID: uuid, Name: s.domain.Name, Resources: s.found.Resources, Why: s.why})
	}
	slices.SortFunc(out, func(a, b Stranger) int { return strings.Compare(a.Name+"\x00"+a.UUID, b.Name+"\x00"+b.UUID) })
	return out
}

// lookAround reads the list of domains: it counts the strangers among them, one that
// was not read yet by what the list says, and gives the guests that are to be looked
// at, because the list says something else of them than the last time, or it is
// their turn. It reads no documents and no disks. A stranger that the list does not
// have stays counted until a look has found it gone.
func (h *Host) lookAround(ctx context.Context) (changed []string, err error) {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return nil, wrap(err, "look for guests on %s", h.o.Name)
	}
	byUUID := make(map[string]driver.Domain, len(all))
	var running []string
	for _, d := range all {
		byUUID[d.UUID] = d
		if d.Active() && h.isStranger(d.UUID) {
			running = append(running, d.UUID)
		}
	}
	here := map[string]bool{}
	for _, inst := range h.tracker.Instances() {
		here[inst.UUID] = inst.Token.State == claims.TokenHere
		if d, there := byUUID[inst.UUID]; inst.Token.State == claims.TokenHere && (!there || h.lastUse(inst.UUID).domain != d) {
			changed = append(changed, inst.UUID)
		}
	}
	h.vanished.Retain(func(uuid string) bool { _, known := here[uuid]; return known })
	managed := map[string]bool{}
	for _, s := range h.Strangers() {
		managed[s.UUID] = !h.isStranger(s.UUID)
	}
	h.mu.Lock()
	maps.DeleteFunc(h.strangers, func(uuid string, _ stranger) bool { return managed[uuid] })
	maps.DeleteFunc(h.uses, func(uuid string, _ use) bool { return !here[uuid] })
	for _, uuid := range running {
		if _, counted := h.strangers[uuid]; !counted {
			h.strangers[uuid] = listed(byUUID[uuid])
		}
	}
	for uuid, s := range h.strangers {
		if d := byUUID[uuid]; !s.looked || s.domain != d || s.why != nil {
			changed = append(changed, uuid)
		}
	}
	changed = append(changed, h.roundLocked()...)
	h.mu.Unlock()
	h.tellStrangers()
	if err := h.leaveAlone(ctx, running); err != nil {
		return nil, err
	}
	slices.Sort(changed)
	return slices.Compact(changed), nil
}

// listed is a stranger as the list of domains has it. What cannot be read of it
// makes it no smaller.
func listed(d driver.Domain) stranger {
	return stranger{
		domain: driver.Domain{UUID: d.UUID, Name: d.Name},
		found:  claims.Found{Resources: topology.Resources{VCPUs: max(d.VCPUs, 1), MemoryMB: max(d.MemoryMB, 1)}},
	}
}

// countStrangers reads the strangers of the last look around, for as long as
// lookPatience. Those that it has not come to are counted by what the list says, and
// Follow reads them.
func (h *Host) countStrangers(ctx context.Context) error {
	counting, cancel := h.rt.WithTimeout(ctx, lookPatience)
	defer cancel()
	var errs []error
	for _, s := range h.Strangers() {
		done := make(chan error, 1)
		h.rt.Go("count "+s.UUID, func() {
			d, exists, err := h.domain(counting, s.UUID)
			if err == nil && exists && d.Active() {
				_, err = h.count(counting, d)
			}
			done <- err
		})
		// A disk that does not answer keeps no host from its start.
		err, _, over := runtime.Receive(counting, h.rt, done)
		if over == nil && counting.Err() == nil && !errors.Is(err, fault.Invalid) {
			errs = append(errs, wrap(err, "read guest %s, which has no claim", s.Name))
		}
		if counting.Err() != nil {
			break
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// roundLocked gives the next guests whose documents are read for changes that no
// event and no list tells of.
func (h *Host) roundLocked() []string {
	uuids := slices.AppendSeq(slices.Collect(maps.Keys(h.uses)), maps.Keys(h.strangers))
	slices.Sort(uuids)
	at, _ := slices.BinarySearch(uuids, h.round)
	out := slices.Concat(uuids[at:], uuids[:at])
	out = out[:min(len(out), documentsEach)]
	h.round = ""
	if len(out) < len(uuids) {
		h.round = uuids[(at+len(out))%len(uuids)]
	}
	return out
}

// isStranger reports whether nobody here manages a guest, makes it, or waits for it.
func (h *Host) isStranger(uuid string) bool {
	if _, known := h.tracker.Instance(uuid); known || len(h.tracker.ByInstance(uuid)) > 0 {
		return false
	}
	_, moving := h.attempts.Moving(uuid)
	return !moving
}

// leftAlone is the record of the guests that ran, unmanaged, when this host was
// first managed: adopting them is a person's word. What runs unmanaged and is not
// among them was started since.
const memoryLeftAlone = "left_alone"

func hostRef(step string) migration.Ref {
	return migration.Ref{Migration: "strangers", Instance: "host", Attempt: 1, Step: step}
}

func (h *Host) leaveAlone(ctx context.Context, running []string) error {
	var was []string
	if found, err := h.tracker.Recall(hostRef(memoryLeftAlone), &was); err != nil || found {
		return err
	}
	return h.tracker.Remember(ctx, hostRef(memoryLeftAlone), running)
}

// startSeen notes that a guest was started while this process looked on: whatever it
// was before, it is not left alone any more.
func (h *Host) startSeen(uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started[uuid] = true
}

// wasStarted reports whether an unmanaged guest was started since this host is
// managed.
func (h *Host) wasStarted(uuid string) (bool, error) {
	h.mu.Lock()
	seen := h.started[uuid]
	h.mu.Unlock()
	if seen {
		return true, nil
	}
	var was []string
	found, err := h.tracker.Recall(hostRef(memoryLeftAlone), &was)
	return err == nil && found && !slices.Contains(was, uuid), err
}

// lookAtStranger adopts a guest that was started by hand if it fits. One that does
// not is counted, and named. again is when to look the next time, 0 where something
// else will say. One that was counted and that libvirt does not know is counted until
// a second read agrees.
func (h *Host) lookAtStranger(ctx context.Context, uuid string) (again time.Duration, err error) {
	d, exists, err := h.domain(ctx, uuid)
	if err != nil {
		h.vanished.Unknown(uuid)
		return 0, err
	}
	h.mu.Lock()
	_, counted := h.strangers[uuid]
	h.mu.Unlock()
	if counted && !exists && !h.vanished.Missing(uuid, h.rt.Boot().Since, h.o.Agree) {
		return h.o.Agree, nil
	}
	h.vanished.Unknown(uuid)
	if !exists || !d.Active() || !h.isStranger(uuid) {
		h.dropStranger(uuid)
		return 0, nil
	}
	return 0, h.lookAtRunning(ctx, d)
}

// dropStranger is for one that has ended, or is managed.
func (h *Host) dropStranger(uuid string) {
	h.mu.Lock()
	_, counted := h.strangers[uuid]
	delete(h.started, uuid)
	delete(h.strangers, uuid)
	h.mu.Unlock()
	if counted {
		h.tellStrangers()
	}
}

func (h *Host) lookAtRunning(ctx context.Context, d driver.Domain) error {
	uuid := d.UUID
	marked, err := h.count(ctx, d)
	if err != nil {
		return err
	}
	if d.Halfway() {
		return fault.New(fault.Busy, "guest %s is on its way", d.Name)
	}
	started, err := h.wasStarted(uuid)
	if err != nil {
		return err
	}
	h.mu.Lock()
	if s, there := h.strangers[uuid]; there {
		s.looked = true
		h.strangers[uuid] = s
	}
	h.mu.Unlock()
	if !started {
		return nil
	}
	// One that says whose it is may have its token elsewhere: that has to follow it.
	why := h.AdoptStarted(ctx, uuid, d.Reason == driver.ReasonMigrated || marked)
	if why == nil && h.isStranger(uuid) {
		why = fault.New(fault.Busy, "guest %s changes", d.Name) // it was passed over: it ends, or is on its way
	}
	if errors.Is(why, fault.Busy) {
		return why
	}
	if why != nil {
		h.mu.Lock()
		if s, there := h.strangers[uuid]; there {
			s.why = why
			h.strangers[uuid] = s
		}
		h.mu.Unlock()
		return wrap(why, "guest %s is in quarantine: it runs, and has no claim", d.Name)
	}
	h.dropStranger(uuid)
	// It is looked at once more as one that is managed.
	return h.followUse(ctx, uuid)
}

// count reads what a stranger uses, where it is not what was read before, and says
// whether its document has Berth's mark.
func (h *Host) count(ctx context.Context, d driver.Domain) (marked bool, err error) {
	text, err := h.driver.XML(ctx, d.UUID, driver.Live)
	switch {
	case errors.Is(err, fault.NotFound):
		return false, nil // it has ended
	case err != nil:
		return false, err
	}
	if doc, err := domainxml.Parse(text); err == nil {
		_, marked, err = doc.Metadata()
		marked = marked || err != nil
	}
	h.mu.Lock()
	s, counted := h.strangers[d.UUID]
	h.mu.Unlock()
	if counted && s.domain == d && s.text == digest(text) {
		return marked, nil
	}
	_, found, _, err := h.read(ctx, d)
	if err != nil {
		return marked, err
	}
	s.domain, s.text, s.found = d, digest(text), found
	h.mu.Lock()
	h.strangers[d.UUID] = s
	h.mu.Unlock()
	h.tellStrangers()
	return marked, nil
}

// tellStrangers has the tracker count them: one teller after another, so that what
// is told last is what was known last.
func (h *Host) tellStrangers() {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.mu.Lock()
	all := make(map[string]claims.Found, len(h.strangers))
	for uuid, s := range h.strangers {
		all[uuid] = s.found
	}
	h.mu.Unlock()
	h.tracker.SetStrangers(all)
}
