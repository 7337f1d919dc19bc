package conductor_test

import (
	"context"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/halves"
	"berth/placementclient"
)

// The fleet's records in memory, and the verbs of a host that takes a guest of a dead one.
// Host a is dead in worlds whose request is an evacuation, and is never to be asked anything,
// not even when it is back.

var (
	_ conductor.Fleet = fleetWire{}
)

// simEvacuation is what a host has of evacuations.
type simEvacuation struct {
	unasked bool // whoever asks it anything is wrong
	unready bool // it finds out too late that it cannot take the guest
	blind   bool // it does not have the guest's disks
	stopped bool // the guest that comes stays off
	deafens bool // it takes FinishEvacuation, and never answers
}

// simFleet is the record of the guest, and the deaths.
type simFleet struct {
	w         *world
	revision  uint64 // of the last write
	record    simRecord
	deaths    map[string]uint64 // revisions
	evacuated map[string]string // source: migration
	down      bool
	unsure    int // so many of the next TakeOvers happen, and answer that nobody knows
	busy      int // so many of the next do not, and answer that they are to be asked again
	silent    int // so many of the next do not, as a host does not say whether it has the guest
	asked     int // TakeOvers
	givenUp   int // GiveUps
}

type simRecord struct {
	guest     migration.Guest
	host      string
	epoch     uint64
	moving    string
	migration string
	attempt   int
	revision  uint64
}

func (f *simFleet) next() uint64 {
	f.revision++
	return f.revision
}

// kill makes host a dead, with what it had on record.
func (w *world) kill() {
	a := w.hosts["a"]
	g, err := a.Inspect(context.Background(), migration.Ref{Instance: guestUUID})
	if err != nil {
		w.t.Fatal(err)
	}
	g.Disks = []migration.Disk{{Target: "vda", Path: "/vda"}}
	if !w.script.imageless {
		g.Disks[0].Image = &migration.Image{Path: "/images/a.qcow2"}
	}
	w.fleet = &simFleet{w: w, deaths: map[string]uint64{}, evacuated: map[string]string{}}
	w.fleet.record = simRecord{guest: g, host: "a", epoch: a.token.epoch, revision: w.fleet.next()}
	w.fleet.deaths["a"] = w.fleet.next()
	a.unasked, a.domain = true, nil
}

func (f *simFleet) Lost(_ context.Context, instance string) (migration.LostGuest, error) {
	r := f.record
	no := func(code, message string) error {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: code, Message: message})
	}
	switch death := f.deaths[r.host]; {
	case instance != guestUUID:
		return migration.LostGuest{}, fault.New(fault.NotFound, "no record of instance %s", instance)
	case death == 0:
		return migration.LostGuest{}, no("not_dead", r.host+" is not known to be dead")
	case r.moving != "":
		return migration.LostGuest{}, no("on_a_move", "migration "+r.moving+" of it is not over")
	default:
		d, err := f.w.hosts[r.host].Describe(context.Background())
		g := r.guest
		g.Epoch = r.epoch
		return migration.LostGuest{
			Guest: g, Source: d, Record: r.revision, Death: death, Proof: migration.DeathProof{Proof: "fenced", By: "user:root", Because: "it is off"},
		}, err
	}
}

func (f *simFleet) TakeOver(_ context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	r := &f.record
	if f.asked++; f.busy > 0 {
		f.busy--
		return migration.Commit{}, fault.New(fault.Busy, "other commits come first")
	}
	if f.silent > 0 {
		f.silent--
		return migration.Commit{}, fault.Refuse(fault.Unavailable, "", fault.Reason{Code: migration.ReasonHostSilent, Message: "host d does not say"})
	}
	c := migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: g.Guest.Epoch + 1, From: g.Source.Name, To: to, Power: g.Guest.PowerState,
	}
	switch {
	case r.migration == ref.Migration && r.attempt == ref.Attempt && r.host == to:
		return c, nil
	case r.revision != g.Record || f.deaths[g.Source.Name] != g.Death:
		return migration.Commit{}, fault.New(fault.Forbidden, "the record of instance %s is another by now, or %s is back", ref.Instance, g.Source.Name)
	}
	if f.deaths[to] > 0 {
		return migration.Commit{}, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: migration.ReasonDestinationDead, Message: to + " counts as dead itself"})
	}
	if f.w.hosts[to].claims[at(ref)] == nil {
		f.w.violate("the guest is taken over by %s, which has no claim for it", to)
	}
	r.host, r.epoch, r.migration, r.attempt, r.revision = to, c.Epoch, ref.Migration, ref.Attempt, f.next()
	f.evacuated[g.Source.Name] = ref.Migration
	if f.unsure > 0 {
		f.unsure--
		return migration.Commit{}, fault.New(fault.InDoubt, "no answer came")
	}
	return c, nil
}

func (f *simFleet) GiveUp(_ context.Context, ref migration.Ref, g migration.LostGuest) error {
	f.givenUp++
	switch r := &f.record; {
	case r.migration == ref.Migration && r.attempt == ref.Attempt:
		return fault.New(fault.Forbidden, "the guest was taken over by it")
	case r.revision == g.Record:
		r.revision = f.next()
	}
	return nil
}

func (f *simFleet) Holder(_ context.Context, instance string) (string, uint64, error) {
	if instance != guestUUID {
		return "", 0, fault.New(fault.NotFound, "no record of instance %s", instance)
	}
	return f.record.host, f.record.epoch, nil
}

func (f *simFleet) Cleaned(_ context.Context, ref migration.Ref, source string) (bool, error) {
	return f.evacuated[source] != ref.Migration, nil
}

// comesBack is host a after its reboot: it takes its death away, gives way to what the
// records say, cleans up, and starts what is its own.
func (w *world) comesBack() {
	a, f := w.hosts["a"], w.fleet
	delete(f.deaths, "a")
	if f.record.host == "a" {
		a.domain = &simDomain{string(w.power), "booted"}
		w.check("host a is back")
		return
	}
	a.token.here = false
	a.claims = map[string]*simClaim{}
	if half := f.evacuated["a"]; half != "" {
		delete(w.placement.consumers, half)
		delete(f.evacuated, "a")
	}
	w.check("host a is back")
}

// fleetWire is the records as one process sees them.
type fleetWire struct {
	w *world
	p *simruntime.Process
}

func (x fleetWire) up() bool { return !x.w.fleet.down }

func (x fleetWire) look() error {
	x.p.Yield()
	if !x.up() {
		return fault.New(fault.Unavailable, "the records do not answer")
	}
	return nil
}

func (x fleetWire) Lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	if err := x.look(); err != nil {
		return migration.LostGuest{}, err
	}
	return x.w.fleet.Lost(ctx, instance)
}

func (x fleetWire) TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	return wire(x.w, x.p, "TakeOver in the records", x.up, func() (migration.Commit, error) { return x.w.fleet.TakeOver(ctx, ref, g, to) })
}

func (x fleetWire) GiveUp(ctx context.Context, ref migration.Ref, g migration.LostGuest) error {
	_, err := wire(x.w, x.p, "GiveUp in the records", x.up, func() (struct{}, error) { return struct{}{}, x.w.fleet.GiveUp(ctx, ref, g) })
	return err
}

func (x fleetWire) Holder(ctx context.Context, instance string) (string, uint64, error) {
	if err := x.look(); err != nil {
		return "", 0, err
	}
	return x.w.fleet.Holder(ctx, instance)
}

func (x fleetWire) Cleaned(ctx context.Context, ref migration.Ref, source string) (bool, error) {
	if err := x.look(); err != nil {
		return false, err
	}
	return x.w.fleet.Cleaned(ctx, ref, source)
}

func (h *simHost) PrepEvacuation(_ context.Context, ref migration.Ref, r migration.EvacuationRequest) (migration.PreparedEvacuation, error) {
	h.expire()
	out := migration.PreparedEvacuation{Made: []string{"vda"}}
	if err := h.buried(ref, ref.Step); err != nil {
		return out, err
	}
	if h.token != nil && h.token.migration == ref.Migration {
		return out, nil // late
	}
	cl := h.claims[at(ref)]
	if cl == nil {
		return out, h.no(ref, "no claim")
	}
	h.made[at(ref)] = true
	switch {
	case h.w.script.hookFails:
		return out, fault.New(fault.Internal, "host %s: hook pre_evacuate/10-x failed", h.name)
	case h.unready:
		return out, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "volume", Message: "a volume cannot be connected"})
	case h.blind && !r.AcceptLoss:
		h.w.violate("%s was asked to make disks anew, and nobody has accepted that", h.name)
	}
	cl.state = "arriving"
	h.stopped = r.Stopped
	return out, nil
}

// given reports whether the records have given the guest to this host by the attempt.
func (h *simHost) given(ref migration.Ref) bool {
	r := h.w.fleet.record
	return r.host == h.name && r.migration == ref.Migration && r.attempt == ref.Attempt
}

func (h *simHost) RollbackPrepEvacuation(_ context.Context, ref migration.Ref) error {
	if h.owns() || h.given(ref) || h.token != nil && h.token.migration == ref.Migration {
		return h.no(ref, "the guest is here, or was")
	}
	h.bury(ref, ref.Step)
	delete(h.made, at(ref))
	return nil
}

func (h *simHost) AcceptEvacuated(_ context.Context, ref migration.Ref, _ migration.Commit) error {
	if !h.given(ref) {
		return h.no(ref, "the records have not given it to this host by it")
	}
	if h.owns() {
		return nil
	}
	if cl := h.claims[at(ref)]; cl == nil || cl.state != "arriving" {
		return h.no(ref, "no claim names it")
	}
	h.token = &simToken{epoch: h.w.fleet.record.epoch, here: true, migration: ref.Migration, attempt: ref.Attempt, power: h.w.fleet.record.guest.PowerState}
	return nil
}

func (h *simHost) FinishEvacuation(_ context.Context, ref migration.Ref) (migration.FinishedEvacuation, error) {
	if err := h.hypervisor(); err != nil {
		return migration.FinishedEvacuation{}, err
	}
	if !h.owns() || h.token.migration != ref.Migration || h.token.attempt != ref.Attempt {
		return migration.FinishedEvacuation{}, h.no(ref, "the token is not here by it")
	}
	out := migration.FinishedEvacuation{Started: !h.stopped}
	cl := h.claims[at(ref)]
	if cl == nil {
		return out, nil // again
	}
	cl.state = "bound"
	h.claims["instance"] = cl
	delete(h.claims, at(ref))
	delete(h.made, at(ref))
	h.domain, h.size = &simDomain{string(h.token.power), "booted"}, cl.resources
	if h.stopped {
		*h.domain = simDomain{"shut off", ""}
	}
	return out, nil
}

// verifyEvacuated holds what must hold at the end of an evacuation.
func (w *world) verifyEvacuated(m migration.Migration) {
	f, owner := w.fleet, "a"
	if m.Outcome == migration.OutcomeCompleted {
		owner = m.DestCompute
	}
	if f.record.host != owner {
		w.violate("at the end the records have the guest at %s, want %s (outcome %s)", f.record.host, owner, m.Outcome)
	}
	for name, h := range w.hosts {
		h.expire()
		state, want := "none", "none"
		if h.domain != nil {
			state = h.domain.state
		}
		if name == owner && f.deaths[name] == 0 {
			if want = string(w.power); w.script.request.Stopped && name != "a" {
				want = "shut off"
			}
		}
		if state != want {
			w.violate("at the end host %s has domain %s, want %s (outcome %s)", name, state, want, m.Outcome)
		}
		if name == "a" && f.deaths["a"] > 0 {
			continue // nothing of it is looked at
		}
		if h.owns() != (name == owner) {
			w.violate("at the end the token on %s is %v", name, h.owns())
		}
		if own := h.claims["instance"]; len(h.claims) != map[bool]int{true: 1}[name == owner] || name == owner && (own == nil || own.state != "bound") {
			w.violate("at the end host %s has claims %v", name, h.claims)
		}
		if len(h.made)+len(h.contexts) > 0 {
			w.violate("at the end host %s has disks of %v and contexts of %v", name, h.made, h.contexts)
		}
	}
	a, b := w.hosts["a"].place(guestSize), w.hosts[owner].place(guestSize)
	want := map[string]halves.Amounts{guestUUID: b}
	if owner != "a" && f.evacuated["a"] != "" {
		want[moveUUID] = halves.Split(a, b)
	}
	for id, c := range w.placement.consumers {
		if !c.SameResources(placementclient.Allocations{Allocations: want[id]}) {
			w.violate("at the end consumer %s holds %v, want %v", id, c.Allocations, want[id])
		}
	}
	if len(w.placement.consumers) != len(want) {
		w.violate("at the end Placement has %d consumers, want %d", len(w.placement.consumers), len(want))
	}
}
