package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth/agent/answers"
	"berth/agent/api"
	"berth/agent/doctor"
	"berth/agent/host"
	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/systemd"
	"berth/topology"
)

// health is what the agent depends on, and since when each part is as it is.
type health struct {
	a *Agent

	// stand is which of the agent's loops stood when it was last asked whether it lives.
	stand atomic.Pointer[string]

	untaken untaken // run's own

	// audited is the ledger's last audit; nil until the first. Only audit writes it.
	audited atomic.Pointer[api.Audit]

	// mu guards since and told; nothing is called under it.
	mu    sync.Mutex
	since map[string]sinceWhen
	told  string // the last line systemd was given
}

type sinceWhen struct {
	health api.Health
	at     time.Time
}

func newHealth(a *Agent) *health { return &health{a: a, since: map[string]sinceWhen{}} }

// every is how often health is looked at, so that "since" is true to it.
const every = 2 * time.Second

// run looks at health again and again, logs each change, and tells systemd.
func (h *health) run(ctx context.Context) error {
	var next, files time.Duration // on the boot clock
	for {
		if now := h.a.rt.Boot().Since; now >= next {
			next = now + h.audit()
		}
		if now := h.a.rt.Boot().Since; now >= files {
			files = now + certificateEvery
			h.untaken.note(h.a)
		}
		h.conditions()
		line := h.line()
		h.mu.Lock()
		changed := line != h.told
		h.told = line
		h.mu.Unlock()
		if changed {
			h.a.notify(systemd.Notifier{}.Status(line))
		}
		h.a.loops.round("health")
		if h.a.rt.Sleep(ctx, every) != nil {
			return nil
		}
	}
}

// auditEvery is how often the ledger is audited; arbitrary, above what adoption
// or a change of the hardware takes to be looked into. auditShare bounds how much
// of the time claims wait for it: no more than one part in so many.
const (
	auditEvery = 10 * time.Second
	auditShare = 1000
)

// audit holds the ledger against itself and the host, and says how long not to do
// that again. Claims wait for it, so that it is never part of a request.
func (h *health) audit() time.Duration {
	start := h.a.rt.Boot().Since
	a := h.a.tracker.Audit()
	believed, _, _ := h.a.hardware.view()
	a.Lost = append(a.Lost, goneDevices(believed, h.a.tracker.List(), a.Lost)...)
	took := h.a.rt.Boot().Since - start
	if before := h.audited.Load(); len(a.Differences) > 0 && (before == nil || !slices.Equal(before.Differences, a.Differences)) {
		h.a.log.Error("the ledger counts otherwise than its claims add up to", "differences", a.Differences)
	}
	h.audited.Store(&api.Audit{Audit: a, At: h.a.rt.Now(), Took: took})
	return max(auditEvery, took*auditShare)
}

// alive answers the watchdog. It takes every lock that a request takes, and looks whether the
// loops have gone round since it was asked before: an agent that hangs on a lock does not answer,
// one whose loops stand says no, and either is restarted.
func (h *health) alive() bool {
	h.conditions()
	_, _, _ = h.a.hardware.input()
	h.a.tracker.Usage()
	stand := strings.Join(h.a.loops.standing(h.a.rt.Now()), ", ")
	if before := h.stand.Swap(&stand); stand != "" && (before == nil || *before != stand) {
		h.a.log.Error("the agent does not call itself alive: loops of it stand", "loops", stand)
	}
	return stand == ""
}

// line is health in a line.
func (h *health) line() string {
	var bad []string
	for _, c := range h.conditions() {
		if c.Health != api.HealthOK {
			bad = append(bad, c.Name+": "+c.Detail)
		}
	}
	u := h.a.tracker.Usage()
	head := fmt.Sprintf("%s, %d guests, %d MiB free", h.a.config().Agent.Mode, len(h.a.tracker.Instances()), u.Free.MemoryMB)
	if len(bad) == 0 {
		return head + ", all well"
	}
	return head + ", degraded: " + strings.Join(bad, "; ")
}

// conditions looks at everything now. Nothing in it blocks on more than memory.
func (h *health) conditions() []api.Condition {
	out := []api.Condition{
		h.libvirt(), h.discovery(), h.placement(), h.a.ledger.condition(), h.claims(), h.peers(), h.migrations(), h.allocations(), h.a.guardian.condition(),
	}
	if c, missing := h.definitions(); missing {
		out = append(out, c)
	}
	if c, dead := h.a.lost.condition(); dead {
		out = append(out, c)
	}
	if c, stuck := stuckDrains(h.a.drainer.Going(), h.a.rt.Now()); stuck {
		out = append(out, c)
	}
	if c, kept := h.a.keeper.condition(); kept {
		out = append(out, c)
	}
	if c, wait := originCondition(h.a); wait {
		out = append(out, c)
	}
	if names, reasons := host.ClaimsElsewhere(h.a.host); len(names) > 0 {
		out = append(out, api.Degraded("epochs", "instances that two hosts have, or claim: "+strings.Join(names, ", "), reasons...))
	}
	if c, served := h.a.metering.condition(); served {
		out = append(out, c)
	}
	if c, shown := h.a.page.condition(); shown {
		out = append(out, c)
	}
	out = append(out, h.a.leaseKeeper.Conditions()...)
	out = append(out, h.a.faults.conditions()...)
	now := h.a.rt.Now()
	out = withLate(out, h.a.asked.Late(now))
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range out {
		c := &out[i]
		was, known := h.since[c.Name]
		if !known || was.health != c.Health {
			if known || c.Health != api.HealthOK {
				h.a.log.Info("health changed", "part", c.Name, "health", c.Health, "detail", c.Detail)
			}
			was = sinceWhen{c.Health, now}
			h.since[c.Name] = was
		}
		c.Since = was.at
	}
	return out
}

func (h *health) libvirt() api.Condition {
	if err := h.a.driver.Health(); err != nil {
		return api.Degraded("libvirt", err.Error(), fault.Reason{
			Code: "libvirt_unavailable", Message: err.Error(), Change: "start libvirtd (systemctl start libvirtd), or set [libvirt] socket; Berth connects by itself",
		})
	}
	if s := h.a.settled.Load(); s != nil && *s != nil {
		return api.Degraded("libvirt", "answers; ledger and hypervisor are not joined yet: "+(*s).Error(), fault.ReasonsOf(*s)...)
	}
	return api.OK("libvirt", "answers")
}

// definitions names the instances that libvirt does not list and that are kept; false for none.
func (h *health) definitions() (api.Condition, bool) {
	held := h.a.host.Vanished()
	if len(held) == 0 {
		return api.Condition{}, false
	}
	var reasons []fault.Reason
	var names []string
	for _, k := range held {
		reasons, names = append(reasons, k.Reason), append(names, k.Name)
	}
	return api.Degraded("definitions", "libvirt does not list "+strings.Join(names, ", ")+"; nothing shows that they were undefined, so their claims are kept", reasons...), true
}

func (h *health) discovery() api.Condition {
	believed, now, why := h.a.hardware.view()
	if len(why) > 0 {
		detail := "the last good reading stands: " + why[0].Message
		if believed == nil {
			detail = "unknown, no new claims are given: " + why[0].Message
		}
		return api.Degraded("hardware", detail, why...)
	}
	if now != nil && now.Health == topology.HealthDegraded {
		var reasons []fault.Reason
		for _, r := range now.Reasons {
			if r.Degrades {
				reasons = append(reasons, fault.Reason{Code: r.Code, Message: r.Message})
			}
		}
		return api.Degraded("hardware", fmt.Sprintf("%d faults of the machine, the first: %s", len(reasons), reasons[0].Message), reasons...)
	}
	if notes := h.a.hardware.notes(); len(notes) > 0 {
		return api.Degraded("hardware", "the configuration does not go with the machine: "+notes[0].Message, notes...)
	}
	return api.OK("hardware", fmt.Sprintf("cells %d, cpus %d, memory %d MiB", len(believed.Cells), believed.CPUs().Len(), believed.MemoryBytes()>>20))
}

// firstAnswer is how long Placement may be silent after the start before that is
// called a fault; arbitrary. The client itself tries for longer.
const firstAnswer = 2 * time.Second

// awaitingPlacement says that Placement has been silent since the start for
// longer than an answer takes.
func (h *health) awaitingPlacement() bool {
	return !h.a.observing() && !h.a.answers || h.a.rt.Now().Sub(h.a.opt.Started) > firstAnswer
}

func (h *health) placement() api.Condition {
	s := h.a.reporter.Status()
	asked, answered := h.a.placement.Silence()
	if c, silent := placementSilent(answers.Times{Asked: asked, Answered: answered}, h.a.rt.Now()); silent && s.Err == nil {
		return c
	}
	switch {
	case h.a.ledger.state() != nil:
		return api.OK("placement", "nothing is compared or written before the ledger is known")
	case s.Err != nil:
		reasons := fault.ReasonsOf(s.Err)
		if fault.KindOf(s.Err) == fault.Unavailable && len(reasons) == 0 {
			reasons = append(reasons, fault.Reason{
				Code: "placement_unavailable", Message: s.Error, Change: "start it (berth placement serves one), or correct [placement] url",
			})
		}
		if fault.KindOf(s.Err) == fault.Forbidden && len(reasons) == 0 {
			reasons = append(reasons, fault.Reason{Code: "placement_refuses", Message: s.Error, Change: doctor.PlacementRefuses})
		}
		return api.Degraded("placement", s.Error, reasons...)
	case s.At.IsZero() && h.awaitingPlacement():
		url := h.a.config().Placement.Endpoint()
		if url == "" {
			url = "the placement of keystone's catalogue"
		}
		return api.Degraded("placement", "no answer from "+url+" yet", fault.Reason{
			Code: "placement_unavailable", Message: "no answer from " + url + " yet", Change: "start it (berth placement serves one), or correct [placement] url",
		})
	case s.At.IsZero():
		return api.OK("placement", "not compared yet")
	case len(s.Pending) > 0:
		return api.OK("placement", "observing; would be written: "+strings.Join(s.Pending, ", "))
	}
	if behind := h.a.host.Behind(); len(behind) > 0 {
		var reasons []fault.Reason
		for _, id := range slices.Sorted(maps.Keys(behind)) {
			reasons = append(reasons, fault.Reason{
				Code: "allocation_behind", Message: behind[id].Error(), Change: "make room for it there; it is tried again by itself",
			})
		}
		return api.Degraded("placement", fmt.Sprintf("equal to the host, generation %d; allocations that are not what is claimed %d", s.Generation, len(behind)), reasons...)
	}
	return h.placementEqual(s)
}

// placementEqual says how Placement is where it is as it can be.
func (h *health) placementEqual(s reporter.Status) api.Condition {
	detail := fmt.Sprintf("equal to the host, generation %d", s.Generation)
	if s.Shape == inventory.Nested {
		detail = "nested, " + detail
	}
	if s.Disk != "" && s.Disk != h.a.uuid {
		detail += ", disks of provider " + s.Disk
	}
	if len(s.Kept) > 0 {
		detail += ", but for what guests have and the host has no more: " + strings.Join(s.Kept, ", ")
	}
	if s.Disabled && h.a.disabled.Load() == nil {
		detail += "; disabled for new guests by somebody else (COMPUTE_STATUS_DISABLED)"
	}
	reasons := slices.Clone(s.Reasons)
	faults := len(reasons)
	if c := h.a.providerConfig.Load(); c != nil {
		reasons, faults = append(reasons, c.reasons...), faults+c.faults
	}
	if w := s.Waiting; w != nil {
		reasons = append([]fault.Reason{w.Reason}, reasons...)
		if w.Reason.Code == "reshape_move" {
			return api.Condition{Name: "placement", Health: api.HealthOK, Detail: detail + "; to be " + string(w.Shape) + ": " + w.Reason.Message, Reasons: reasons}
		}
		return api.Degraded("placement", detail+"; not as it is to be ("+string(w.Shape)+"): "+w.Reason.Message, reasons...)
	}
	if faults > 0 {
		return api.Degraded("placement", detail+"; what is configured is not reported: "+reasons[0].Message, reasons...)
	}
	return api.Condition{Name: "placement", Health: api.HealthOK, Detail: detail, Reasons: reasons}
}

func (h *health) claims() api.Condition {
	u := h.a.tracker.Usage()
	strangers := h.a.host.Strangers()
	name := func(instance string) string {
		if inst, ok := h.a.tracker.Instance(instance); ok {
			return inst.Name
		}
		for _, s := range strangers {
			if s.UUID == instance {
				return s.Name
			}
		}
		return instance
	}
	var audited claims.Audit
	if last := h.audited.Load(); last != nil {
		audited = last.Audit
	}
	if len(u.Forced) == 0 {
		// The host may have got smaller under claims that did fit.
		u.Doubled = audited.Doubled
	}
	reasons := forcedReasons(u, name, h.byHand)
	reasons = append(reasons, lostReasons(audited, name)...)
	_, now, _ := h.a.hardware.view()
	dead := deadReasons(now, h.a.tracker.List(), name)
	reasons = append(reasons, dead...)
	if len(reasons) == 0 {
		return api.OK("claims", fmt.Sprintf("%d held%s", len(h.a.tracker.List()), unclaimed(strangers)))
	}
	var detail []string
	say := func(words string, n int) {
		if n > 0 {
			detail = append(detail, fmt.Sprintf("%s %d", words, n))
		}
	}
	say("guests that do not fit", len(u.Forced))
	say("CPUs, devices and pools promised twice", len(u.Doubled))
	say("held and gone from the host", len(audited.Lost))
	say("devices held and dead", len(dead))
	say("sums that differ", len(audited.Differences))
	return api.Degraded("claims", strings.Join(detail, ", ")+unclaimed(strangers), reasons...)
}

// unclaimed names the guests that run here without a claim.
func unclaimed(strangers []host.Stranger) string {
	if len(strangers) == 0 {
		return ""
	}
	names := make([]string, len(strangers))
	for i, s := range strangers {
		names[i] = s.Name
	}
	return "; running without a claim, and counted: " + strings.Join(names, ", ")
}

// byHand reports whether a guest's claim has followed a change past Berth.
func (h *health) byHand(instance string) bool {
	return slices.ContainsFunc(h.a.tracker.ByInstance(instance), func(c claims.Claim) bool { return c.ByHand })
}

// lostReasons names what guests hold and the host no longer has, and where the
// ledger's running sums are not what the claims add up to.
func lostReasons(a claims.Audit, name func(instance string) string) []fault.Reason {
	var out []fault.Reason
	for _, l := range a.Lost {
		r := fault.Reason{Code: "held_and_lost", Change: "bring it back, or move the guest away"}
		holds := "guest " + name(l.Instance) + " holds "
		switch {
		case l.Cell != nil:
			id := int(*l.Cell)
			r.Message, r.Cell = fmt.Sprintf("%scell %d, which the host no longer has", holds, id), &id
		case l.Device != nil:
			r.Message = fmt.Sprintf("%sPCI device %s, which the host no longer has or [pci] device_spec no longer gives", holds, l.Device)
		default:
			r.Message = fmt.Sprintf("%sCPUs %s, which the host no longer has or no longer gives to guests", holds, l.CPUs)
		}
		out = append(out, r)
	}
	for _, d := range a.Differences {
		out = append(out, fault.Reason{Code: "ledger_differs", Message: d, Change: "restart the agent, which adds up anew; it is a fault of Berth's: report it"})
	}
	return out
}

// forcedReasons names each guest whose claim is forced, and then each CPU, device
// and pool that is promised more often than it is there. name gives a guest's
// name by its uuid, byHand whether somebody changed it past Berth.
func forcedReasons(u claims.Usage, name func(instance string) string, byHand func(instance string) bool) []fault.Reason {
	var out []fault.Reason
	for _, id := range u.Forced {
		how := "adopted"
		if byHand(id) {
			how = "changed by hand"
		}
		out = append(out, fault.Reason{
			Code: "claim_forced", Message: "guest " + name(id) + " was " + how + " though it does not fit", Change: "move it, or another, to a host with room",
		})
	}
	for _, d := range u.Doubled {
		names := make([]string, len(d.Instances))
		for i, id := range d.Instances {
			names[i] = name(id)
		}
		d.Instances = names
		r := fault.Reason{Message: d.String(), Have: strings.Join(names, ", "), Change: "move all of them but one to other hosts"}
		switch {
		case d.CPU != nil && len(names) == 1:
			r.Code, r.Change = "cpu_not_dedicated", fmt.Sprintf("put CPU %d into [host] dedicated_cpus, or move the guest: it gets a dedicated CPU then", *d.CPU)
		case d.CPU != nil:
			r.Code = "cpus_doubled"
		case d.Device != nil:
			r.Code = "device_doubled"
		case d.Mdev != "":
			r.Code = "mdev_doubled"
		default:
			r.Code, r.Change = "pages_over", "move guests away, or make the pool larger"
		}
		if d.Cell != nil {
			cell := int(*d.Cell)
			r.Cell = &cell
		}
		out = append(out, r)
	}
	return out
}

func (h *health) peers() api.Condition {
	c := h.a.config()
	switch {
	case h.a.noPeers != nil && !(h.a.observing() && h.a.noFiles):
		return api.Degraded("peers", "other hosts cannot connect: "+h.a.noPeers.Error(), fault.Reason{
			Code: "certificates", Message: h.a.noPeers.Error(), Change: "make certificates (berth pki --help), copy them to this host, restart the agent",
		})
	case h.a.noPeers != nil: // not made yet, and nobody misses them yet
		return api.OK("peers", "no certificates; needed in mode manage")
	case h.a.deaf.Load() != nil:
		err := *h.a.deaf.Load()
		return api.Degraded("peers", "other hosts cannot connect: "+err.Error(), fault.Reason{
			Code: "peers_port", Message: err.Error(), Change: "free the address, or set [agent] listen; it is tried again by itself",
		})
	case c.Agent.Listen == "":
		return api.OK("peers", "listening is off ([agent] listen)")
	}
	now := h.a.rt.Now()
	if r := doctor.Ending(h.a.identity, h.a.name, now); r != nil {
		return api.Degraded("peers", r.Message, *r)
	}
	left := h.a.identity.Leaf.NotAfter.Sub(now)
	return api.OK("peers", fmt.Sprintf("listening on %s, certificate good for %d days", c.Agent.Listen, int(left.Hours()/24)))
}

func (h *health) migrations() api.Condition {
	list, err := h.a.conductor.List(context.Background())
	if err != nil {
		return api.Degraded("migrations", err.Error())
	}
	var reasons, unconfirmed []fault.Reason
	going, waiting := 0, 0
	for _, m := range list {
		if !m.Done() {
			going++
		}
		switch {
		case m.Status == migration.StatusFinished:
			for _, r := range m.Waits {
				r.Message = "migration " + m.UUID + " of " + m.InstanceName + " is not confirmed by itself: " + r.Message
				unconfirmed = append(unconfirmed, r)
			}
		case len(m.Waits) > 0:
			waiting++
		}
		if m.Outcome == migration.OutcomeInDoubt {
			words := "it cannot go on"
			if m.Error != nil {
				words = m.Error.Message
			}
			reasons = append(reasons, fault.Reason{Code: "migration_in_doubt", Message: "migration " + m.UUID + " of " + m.InstanceName + ": " + words, Change: "berth migration show " + m.UUID})
		}
	}
	for _, m := range h.a.waitingArrivals() {
		if m.Outcome == migration.OutcomeInDoubt {
			reasons = append(reasons, m.Error.Reasons...)
		}
	}
	if len(reasons) > 0 {
		return api.Degraded("migrations", fmt.Sprintf("%d in doubt", len(reasons)), reasons...)
	}
	if len(unconfirmed) > 0 {
		return api.Degraded("migrations", unconfirmed[0].Message, unconfirmed...)
	}
	if silent := silentParties(append(list, h.a.waitingArrivals()...), h.a.name, h.a.peers.answered, h.a.rt.Now()); len(silent) > 0 {
		return api.Degraded("migrations", silent[0].Message, silent...)
	}
	if waiting > 0 {
		return api.OK("migrations", fmt.Sprintf("%d going on, of which %d wait for their turn", going, waiting))
	}
	return api.OK("migrations", fmt.Sprintf("%d going on", going))
}

// overall is degraded when one part is.
func overall(list []api.Condition) api.Health {
	if slices.ContainsFunc(list, func(c api.Condition) bool { return c.Health != api.HealthOK }) {
		return api.HealthDegraded
	}
	return api.HealthOK
}
