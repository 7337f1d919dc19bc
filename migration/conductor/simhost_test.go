package conductor_test

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
	"berth/placementclient"
	"berth/topology"
)

// simHost is one host in memory: a ledger that survives its agent, a hypervisor
// with libvirt's behaviour in failure, and the verbs over both. Every verb is
// atomic; what can happen around it (lost, repeated and late messages, crashes
// of the conductor) is the wire's and the world's business.
type simHost struct {
	w              *world
	name, provider string
	pages, disk    string // who has its MEMORY_MB and DISK_GB; the rest is on the root
	capacity       topology.Resources
	refuses        error // CheckDestination passes and Claim says this

	// The ledger.
	token     *simToken
	claims    map[string]*simClaim // by migration/attempt, or "instance"
	contexts  map[string]bool      // by migration
	tombs     map[string]bool      // by migration/attempt/step
	reclaimed map[string]bool      // by migration/attempt
	commits   map[string]migration.Commit
	started   map[string]bool // streams, by migration/attempt
	// Disks and directories made for a migration, by migration/attempt.
	made map[string]bool
	seen bool // the record that the domain has left
	// Of guests that are off: what their users had chosen when an attempt powered them
	// off, what a change keeps to go back, and with what the guest is defined.
	offs  map[string]string
	aside map[string]bool
	size  topology.Resources
	words map[string]migration.Settlement // of operators, by migration/attempt
	simApart
	// patience is how long the last guest was given to shut itself down.
	patience time.Duration
	tuned    []migration.Tuning // of jobs in flight
	// deafAfterHandOver: its hypervisor answers no more once it has given a guest away.
	deafAfterHandOver bool

	simEvacuation
	simPostCopy

	// The hypervisor.
	domain *simDomain
	job    *simJob
	deaf   bool // the hypervisor does not answer
	cut    bool // the conductor cannot reach the host
}

type simToken struct {
	epoch     uint64
	here      bool
	migration string
	attempt   int
	power     migration.PowerState // of a cold commit
}

// leaseTime is that of claims here.
const leaseTime = time.Minute

type simClaim struct {
	state     string
	resources topology.Resources
	until     time.Duration // of a pending claim
	ticket    string
}

type simDomain struct{ state, reason string }

// simJob is a migration job of the source's hypervisor.
type simJob struct {
	ref     migration.Ref
	to      *simHost
	running bool
	aborted bool
	err     string
	p       migration.Progress
	// suspended: the guest was told to stand still for it. repaired is when the connection of a
	// post-copy can be made again, and stands that nothing moves without anybody's notice.
	suspended bool
	repaired  time.Duration
	stands    bool
}

var guestSize = topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 1}

func newSimHost(w *world, name string) *simHost {
	return &simHost{
		w: w, name: name, provider: "rp-" + name, pages: "rp-" + name, disk: "rp-" + name, capacity: topology.Resources{VCPUs: 8, MemoryMB: 8192, DiskGB: 100},
		claims: map[string]*simClaim{}, contexts: map[string]bool{}, tombs: map[string]bool{}, reclaimed: map[string]bool{},
		commits: map[string]migration.Commit{}, started: map[string]bool{}, made: map[string]bool{},
		offs: map[string]string{}, aside: map[string]bool{}, words: map[string]migration.Settlement{}, simApart: newSimApart(), simPostCopy: newSimPostCopy(),
	}
}

func at(ref migration.Ref) string { return fmt.Sprintf("%s/%d", ref.Migration, ref.Attempt) }

func (h *simHost) bury(ref migration.Ref, step string) { h.tombs[at(ref)+"/"+step] = true }

func (h *simHost) buried(ref migration.Ref, step string) error {
	if h.tombs[at(ref)+"/"+step] {
		return fault.New(fault.Forbidden, "host %s: %s of %s was undone", h.name, step, at(ref))
	}
	return nil
}

// expire drops pending claims whose lease is over.
func (h *simHost) expire() {
	for k, c := range h.claims {
		if c.state == "pending" && h.w.sim.Elapsed() > c.until {
			delete(h.claims, k)
		}
	}
}

func (h *simHost) hypervisor() error {
	if h.deaf {
		return fault.New(fault.Unavailable, "host %s: libvirt does not answer", h.name)
	}
	return nil
}

func (h *simHost) used() topology.Resources {
	var sum topology.Resources
	for _, c := range h.claims {
		sum = sum.Add(c.resources)
	}
	return sum
}

func (h *simHost) Describe(context.Context) (migration.Description, error) {
	return migration.Description{
		Name: h.name, ProviderUUID: h.provider, HostUUID: "uuid-" + h.name, Providers: []string{h.provider, h.pages, h.disk},
	}, nil
}

// place is where a host counts what a claim holds.
func (h *simHost) place(r topology.Resources) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{h.provider: {}, h.pages: {}, h.disk: {}}
	out[h.provider]["VCPU"], out[h.pages]["MEMORY_MB"], out[h.disk]["DISK_GB"] = int64(r.VCPUs), r.MemoryMB, r.DiskGB
	return out
}

// told is what its agent tells a conductor of it: nothing, if it is an old one.
func (h *simHost) told(r topology.Resources) map[string]placementclient.Resources {
	if h.w.oldAgents {
		return nil
	}
	return h.place(r)
}

func (h *simHost) Inspect(_ context.Context, ref migration.Ref) (migration.Guest, error) {
	if err := h.hypervisor(); err != nil {
		return migration.Guest{}, err
	}
	if h.w.inspect != nil {
		if err := h.w.inspect(); err != nil {
			return migration.Guest{}, err
		}
	}
	if ref.Instance != guestUUID || h.token == nil {
		return migration.Guest{}, fault.Refuse(fault.NotFound, "", fault.Reason{Code: migration.ReasonGuestGone, Message: "it is not on host " + h.name})
	}
	if !h.token.here {
		return migration.Guest{}, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: migration.ReasonTokenElsewhere, Message: "it is not on host " + h.name})
	}
	power := migration.PowerState("shut off")
	if h.domain != nil && h.domain.state != "shut off" {
		power = h.w.power
	}
	var held topology.Resources
	if own := h.claims["instance"]; own != nil {
		held = own.resources
	}
	return migration.Guest{
		UUID: guestUUID, Name: "vm1", Flavor: h.w.flavor, Resources: held, Allocations: h.told(held), ProjectID: "project", UserID: "user",
		Epoch: h.token.epoch, PowerState: power, Persistent: !h.w.transient, Disks: []migration.Disk{{Target: "vda", Path: "/vda"}},
	}, nil
}

func (h *simHost) CheckSource(_ context.Context, _ migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	if a.Kind != "" && !h.apart() {
		return migration.SourceAnswer{Shared: true}, nil // nothing is shipped
	}
	out := migration.SourceAnswer{CopyDisks: []string{"vda"}}
	if a.Options.PostCopy == options.On && h.w.drops != nil {
		if a.PostCopyAsked {
			return out, fault.Refuse(fault.Forbidden, "", *h.w.drops)
		}
		out.Dropped = []fault.Reason{*h.w.drops}
	}
	return out, nil
}

func (h *simHost) RecordContext(_ context.Context, ref migration.Ref, _ migration.Context) error {
	if err := h.buried(ref, migration.StepRecordContext); err != nil {
		return err
	}
	// A repeat that comes after the clean-up finds the token gone, or back by the move.
	if h.token.here && h.token.migration != ref.Migration {
		h.contexts[ref.Migration] = true
	}
	return nil
}

func (h *simHost) DropContext(_ context.Context, ref migration.Ref) error {
	h.bury(ref, migration.StepRecordContext)
	delete(h.contexts, ref.Migration)
	return nil
}

func (h *simHost) StartStream(_ context.Context, ref migration.Ref, s migration.Stream) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if err := h.buried(ref, migration.StepStream); err != nil {
		return err
	}
	if h.started[at(ref)] {
		return nil
	}
	if h.domain == nil || h.domain.state == "shut off" {
		return fault.New(fault.Forbidden, "host %s: the domain does not run", h.name)
	}
	h.started[at(ref)] = true
	if h.job != nil && h.job.running {
		h.w.violate("a second stream was started on %s", h.name)
	}
	h.job = &simJob{ref: ref, to: h.w.byProvider(s.Prepared.LibvirtURI), running: true}
	h.w.init.Go("job on "+h.name, h.job.run(h, s.Ticket))
	return nil
}

func (h *simHost) StreamStatus(_ context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	if err := h.hypervisor(); err != nil {
		return migration.StreamStatus{}, err
	}
	st := migration.StreamStatus{Ledger: h.ledger(ref), Domain: h.view(), Left: h.seen && h.started[at(ref)], EndWanted: h.endWanted[at(ref)], PostCopy: h.second[at(ref)]}
	if h.job != nil {
		st.InFlight, st.Progress, st.Error = h.job.running, h.job.p, h.job.err
	}
	return st, nil
}

func (h *simHost) ledger(ref migration.Ref) migration.Ledger {
	_, committed := h.commits[at(ref)]
	switch {
	case committed:
		return migration.LedgerSurrendered
	case h.reclaimed[at(ref)]:
		return migration.LedgerReclaimed
	case h.token != nil && h.token.here:
		return migration.LedgerHere
	}
	return migration.LedgerElsewhere
}

func (h *simHost) view() migration.DomainView {
	if h.domain == nil {
		return migration.DomainView{}
	}
	return migration.DomainView{Exists: true, State: h.domain.state, Reason: h.domain.reason}
}

func (h *simHost) TuneStream(_ context.Context, _ migration.Ref, t migration.Tuning) error {
	if err := h.hypervisor(); err != nil || h.job == nil || !h.job.running {
		return cmp.Or(err, error(fault.New(fault.Forbidden, "host %s: no job is in flight", h.name)))
	}
	h.tuned = append(h.tuned, t)
	if t.Suspend && h.domain.state == "running" {
		h.job.suspended = true
		*h.domain = simDomain{"paused", "user"}
	}
	return nil
}

// left says whether the source's own domain has no memory any more because it
// migrated.
func (h *simHost) left() bool {
	if h.domain == nil {
		return h.w.transient && h.job.err == ""
	}
	return h.domain.half() || h.domain.state == "shut off" && (h.domain.reason == "migrated" || h.seen)
}

func (h *simHost) Commit(_ context.Context, ref migration.Ref) (migration.Commit, error) {
	if c, done := h.commits[at(ref)]; done {
		return c, nil
	}
	if err := h.hypervisor(); err != nil {
		return migration.Commit{}, err
	}
	if h.reclaimed[at(ref)] || !h.token.here || !h.started[at(ref)] || !h.left() {
		return migration.Commit{}, fault.New(fault.Forbidden, "host %s: commit %s: the guest is here", h.name, at(ref))
	}
	c := migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: h.token.epoch + 1,
		From: h.name, To: h.job.to.name, Power: h.w.power,
	}
	h.token = &simToken{epoch: c.Epoch, migration: ref.Migration, attempt: ref.Attempt}
	h.commits[at(ref)] = c
	return c, nil
}

func (h *simHost) Reclaim(_ context.Context, ref migration.Ref) error {
	if h.reclaimed[at(ref)] {
		return nil
	}
	if _, done := h.commits[at(ref)]; done {
		return fault.New(fault.Forbidden, "host %s: reclaim %s: committed", h.name, at(ref))
	}
	if err := h.hypervisor(); err != nil {
		return err
	}
	if !h.started[at(ref)] {
		h.reclaimed[at(ref)] = true
		h.bury(ref, migration.StepStream)
		return nil
	}
	if !h.token.here || h.left() || h.domain == nil && !h.w.transient {
		return fault.New(fault.Forbidden, "host %s: reclaim %s: the guest has left", h.name, at(ref))
	}
	if h.job.running {
		h.job.abort(h)
	}
	h.reclaimed[at(ref)] = true
	h.bury(ref, migration.StepStream)
	if h.domain != nil && h.domain.state == "paused" && h.w.power == migration.PowerRunning {
		*h.domain = simDomain{"running", "migration canceled"}
	}
	return nil
}

func (h *simHost) CleanUpSource(_ context.Context, ref migration.Ref) error {
	if _, done := h.commits[at(ref)]; !done {
		return fault.New(fault.Forbidden, "host %s: clean up %s: no commit", h.name, at(ref))
	}
	delete(h.contexts, ref.Migration)
	// A late repeat must not touch a guest that has come back.
	if h.token.here || h.token.migration != ref.Migration {
		return nil
	}
	if h.domain.half() && h.words[at(ref)].GuestIsAt != h.job.to.name {
		h.w.violate("the source's half of the guest was removed in post-copy")
	}
	h.domain = nil
	delete(h.claims, "instance")
	return nil
}

func (h *simHost) CheckDestination(_ context.Context, _ migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	h.expire()
	var reasons []fault.Reason
	want, free, stays := c.Guest.Resources.MemoryMB, h.capacity.Sub(h.used()), c.Kind != "" && c.Source.Name == h.name
	if c.Wanted != nil {
		want = c.Wanted.Resources.MemoryMB
	}
	if stays {
		free = free.Add(c.Guest.Resources)
	}
	if free.MemoryMB < want {
		reasons = append(reasons, fault.Reason{Code: "memory_short", Message: fmt.Sprintf("memory: want %d MiB, %d MiB free", want, free.MemoryMB)})
	}
	if h.domain != nil && !stays {
		reasons = append(reasons, fault.Reason{Code: "domain_exists", Message: "a domain of this uuid is here"})
	}
	if len(reasons) > 0 {
		return migration.CheckAnswer{}, fault.Refuse(fault.DoesNotFit, "", reasons...)
	}
	d, err := h.Describe(context.Background())
	return migration.CheckAnswer{Destination: d, Disks: []migration.DiskView{{Target: "vda", Shared: c.Kind == migration.TypeEvacuation && !h.blind}}}, err
}

func (h *simHost) Claim(_ context.Context, ref migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	h.expire()
	if err := h.buried(ref, migration.StepClaim); err != nil {
		return migration.ClaimAnswer{}, err
	}
	if h.refuses != nil {
		return migration.ClaimAnswer{}, h.refuses
	}
	if h.tombs[at(ref)+"/finished"] {
		return migration.ClaimAnswer{}, fault.New(fault.Forbidden, "host %s: claim %s: late", h.name, at(ref))
	}
	cl := h.claims[at(ref)]
	if cl == nil {
		if h.token != nil && h.token.migration == ref.Migration {
			return migration.ClaimAnswer{}, fault.New(fault.Forbidden, "host %s: claim %s: the guest is here", h.name, at(ref))
		}
		cl = &simClaim{state: "pending", resources: c.Context.NewResources, ticket: "ticket " + at(ref)}
		h.claims[at(ref)] = cl
	}
	cl.until = h.w.sim.Elapsed() + c.Lease
	return migration.ClaimAnswer{Claim: at(ref), Resources: cl.resources, Allocations: h.told(cl.resources), Ticket: cl.ticket, Lease: c.Lease}, nil
}

func (h *simHost) RenewClaim(_ context.Context, ref migration.Ref) error {
	h.expire()
	if err := h.buried(ref, migration.StepClaim); err != nil {
		return err
	}
	cl := h.claims[at(ref)]
	if cl == nil {
		return fault.New(fault.NotFound, "host %s: no claim of %s", h.name, at(ref))
	}
	cl.until = h.w.sim.Elapsed() + time.Minute
	return nil
}

func (h *simHost) AbortClaim(_ context.Context, ref migration.Ref) error {
	cl := h.claims[at(ref)]
	if cl != nil && cl.state == "arriving" && h.domain != nil {
		return fault.New(fault.Busy, "host %s: abort claim %s: a domain is here", h.name, at(ref))
	}
	h.bury(ref, migration.StepClaim)
	delete(h.claims, at(ref))
	if h.owns() && h.token.migration != ref.Migration {
		delete(h.contexts, ref.Migration) // of a change in place
	}
	return nil
}

func (h *simHost) PreLiveMigration(_ context.Context, ref migration.Ref, _ migration.PreLiveRequest) (migration.Prepared, error) {
	h.expire()
	if err := h.buried(ref, migration.StepPreLiveMigration); err != nil {
		return migration.Prepared{}, err
	}
	out := migration.Prepared{LibvirtURI: h.provider}
	if h.token != nil && h.token.migration == ref.Migration {
		return out, nil // late: the guest is here
	}
	cl := h.claims[at(ref)]
	if cl == nil {
		return out, fault.New(fault.Forbidden, "host %s: prepare %s: no claim", h.name, at(ref))
	}
	h.made[at(ref)] = true
	if h.w.script.hookFails {
		return out, fault.New(fault.Internal, "host %s: hook pre_live_migration/10-x failed", h.name)
	}
	cl.state = "arriving"
	return out, nil
}

func (h *simHost) RollbackPreLiveMigration(_ context.Context, ref migration.Ref) error {
	if h.token != nil && h.token.here {
		return fault.New(fault.Forbidden, "host %s: roll back %s: the token is here", h.name, at(ref))
	}
	if err := h.hypervisor(); err != nil {
		return err
	}
	h.bury(ref, migration.StepPreLiveMigration)
	if h.claims[at(ref)] != nil && h.claims[at(ref)].state == "arriving" {
		if h.domain.half() {
			h.w.violate("the destination's half of the guest was removed in post-copy")
		}
		h.domain = nil
	}
	delete(h.made, at(ref))
	return nil
}

func (h *simHost) AcceptToken(_ context.Context, ref migration.Ref, c migration.Commit) error {
	if h.token != nil && h.token.epoch >= c.Epoch {
		if h.token.epoch == c.Epoch && h.token.here {
			return h.resume(c)
		}
		return fault.New(fault.Forbidden, "host %s: accept token of epoch %d: epoch %d is known", h.name, c.Epoch, h.token.epoch)
	}
	if cl := h.claims[at(ref)]; cl == nil || cl.state != "arriving" || c.Migration != ref.Migration || c.Attempt != ref.Attempt {
		return fault.New(fault.Forbidden, "host %s: accept token of %s: no claim names it", h.name, at(ref))
	}
	h.token = &simToken{epoch: c.Epoch, here: true, migration: ref.Migration, attempt: ref.Attempt}
	return h.resume(c)
}

func (h *simHost) resume(c migration.Commit) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if h.domain == nil {
		return fault.New(fault.NotFound, "host %s: the copy is gone", h.name)
	}
	if h.domain.state == "paused" && c.Power == migration.PowerRunning {
		*h.domain = simDomain{"running", "unpaused"}
	}
	return nil
}

func (h *simHost) FinishDestination(_ context.Context, ref migration.Ref) error {
	if h.token == nil || !h.token.here || h.token.migration != ref.Migration {
		return fault.New(fault.Forbidden, "host %s: finish %s: the token is not here", h.name, at(ref))
	}
	if h.domain.half() {
		h.w.violate("the claim was bound in post-copy")
	}
	if cl := h.claims[at(ref)]; cl != nil {
		h.claims["instance"] = &simClaim{state: "bound", resources: cl.resources}
		delete(h.claims, at(ref))
	}
	delete(h.made, at(ref))
	return nil
}

func (h *simHost) DestinationStatus(_ context.Context, ref migration.Ref) (migration.DestinationStatus, error) {
	if err := h.hypervisor(); err != nil {
		return migration.DestinationStatus{}, err
	}
	st := migration.DestinationStatus{Domain: h.view(), Ledger: h.ledger(ref)}
	if cl := h.claims[at(ref)]; cl != nil {
		st.Claim = cl.state
	}
	if t := h.token; h.w.fleet != nil && t != nil && t.migration == ref.Migration && t.attempt == ref.Attempt {
		st.Ledger = migration.LedgerAccepted // also where it has gone on since
	}
	st.Nothing = h.domain == nil && len(h.claims) == 0 && (h.token == nil || !h.token.here)
	return st, nil
}
