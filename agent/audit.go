package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/inventory"
	"berth/claims"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// newAuditor gives the auditor its parties: the tracker and the conductor, the driver,
// Placement and the other hosts.
func (a *Agent) newAuditor(c config.Config) *auditor.Auditor {
	return auditor.New(auditor.Options{
		Host: a.name, Placement: a.placement, Runtime: a.rt, Logger: a.log,
		Tree: a.tree, Report: a.reporter.Sync, Ledger: a.recorded, Domains: a.domains, Peers: auditPeers{a},
		Alone: a.host.Alone, Interval: c.Placement.AuditInterval.D(), Refuse: a.mayNotHeal,
	})
}

// mayNotHeal is why this host writes no allocations at present.
func (a *Agent) mayNotHeal() error {
	if a.observing() {
		return fault.Refuse(fault.Forbidden, "heal what host "+a.name+" has in Placement", fault.Reason{
			Code: "mode_observe", Message: "host " + a.name + " only observes", Have: "observe", Want: "manage",
			Change: `set [agent] mode = "manage" on ` + a.name + `, or audit without healing`,
		})
	}
	if err := a.ledger.state(); err != nil {
		return err
	}
	// A copy of another host, or one whose provider is somebody else's, has no say.
	if err := a.foreign.Load(); err != nil {
		return *err
	}
	return a.estranged()
}

// joinPatience is how long audits wait for ledger and libvirt to be joined; arbitrary.
const joinPatience = time.Minute

// runAudit audits again and again, once ledger and libvirt were joined: before, what
// settles by itself would be named. A libvirt that stays away keeps no allocation from
// being counted as it is claimed.
func (a *Agent) runAudit(ctx context.Context) error {
	for end := a.rt.Boot().Since + joinPatience; a.rt.Boot().Since < end; {
		if err := a.settled.Load(); err != nil && *err == nil {
			break
		}
		if a.rt.Sleep(ctx, 2*time.Second) != nil {
			return nil
		}
	}
	return a.auditor.Run(ctx)
}

// claimStates are the ledger's words as facts.
var claimStates = map[claims.State]audit.ClaimState{
	claims.Pending: audit.ClaimPending, claims.Arriving: audit.ClaimArriving, claims.Bound: audit.ClaimBound, claims.Held: audit.ClaimHeld,
}

// recorded is the ledger and the journal at this moment. That a move is over is known
// of those alone that this host conducted: of one that another host or a tool conducts
// its consumer is theirs, whatever the ledger has seen of it.
func (a *Agent) recorded() audit.Ledger {
	var out audit.Ledger
	known := map[string]bool{}
	move := func(m audit.Move) {
		if m.UUID != "" && !known[m.UUID] {
			known[m.UUID] = true
			out.Moves = append(out.Moves, m)
		}
	}
	// The conductor first: of a move that is over it says so, whatever else is left.
	// It gives no error: its records are in memory.
	list, _ := a.conductor.List(context.Background())
	for _, m := range list {
		one := audit.Move{UUID: m.UUID, Instance: m.InstanceUUID, Over: m.Done(), Waits: m.Status == migration.StatusFinished, Writes: writes(m)}
		if h, kept := a.conductor.Halves(m.UUID); kept {
			one.Kept = &audit.Halves{Instance: h.Instance, Migration: h.Migration}
		}
		move(one)
	}
	for _, i := range a.tracker.Instances() {
		here := i.Token.State == claims.TokenHere
		out.Instances = append(out.Instances, audit.Instance{
			UUID: i.UUID, Name: i.Name, ProjectID: i.ProjectID, UserID: i.UserID, Here: here, Holder: i.Token.Holder, Migration: i.Token.Migration,
		})
	}
	for _, c := range a.tracker.List() {
		out.Claims = append(out.Claims, audit.Claim{
			Instance: c.Owner.Instance, Migration: c.Owner.Migration, State: claimStates[c.State],
			Held: inventory.Held{Resources: c.Resources, Assignment: c.Assignment},
		})
		move(audit.Move{UUID: c.Owner.Migration, Instance: c.Owner.Instance, Lost: a.unconducted(c)})
	}
	// Of one that another host conducts that one writes, also while the guest stays here by this
	// host's own decision.
	for _, c := range a.tracker.Contexts() {
		move(audit.Move{UUID: c.Migration, Instance: c.Instance, Waits: a.host.Lives(c.Instance) && !a.host.StaysAlone(c.Instance)})
	}
	for _, e := range a.host.Uncounted() {
		move(audit.Move{UUID: e.Migration, Instance: e.Instance})
	}
	return out
}

// writes reports whether a move is at a step that writes what its consumers hold.
func writes(m migration.Migration) bool {
	switch m.Step {
	case migration.StepSwapAllocations, migration.StepRevertAllocations, migration.StepDeleteAllocation:
		return m.Status != migration.StatusError
	}
	return false
}

// unconducted reports whether a claim is held for a move that this host should conduct,
// and its conductor knows nothing of. The record is asked for after the claim was read:
// it is made before the claim and kept until after its end.
func (a *Agent) unconducted(c claims.Claim) bool {
	if c.Owner.Migration == "" || c.State != claims.Held || !a.conductor.Running() {
		return false
	}
	x, known := a.tracker.Context(c.Owner.Migration)
	if c.Context != nil {
		x, known = *c.Context, true
	}
	if !known || cmp.Or(x.Conductor, x.Source) != a.name {
		return false
	}
	_, err := a.conductor.Get(context.Background(), c.Owner.Migration)
	return errors.Is(err, fault.NotFound)
}

// domains is libvirt's list for an audit.
func (a *Agent) domains(ctx context.Context) ([]audit.LibvirtDomain, error) {
	if err := a.driver.Health(); err != nil {
		return nil, err
	}
	list, err := a.driver.Domains(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]audit.LibvirtDomain, 0, len(list))
	for _, d := range list {
		out = append(out, audit.LibvirtDomain{UUID: d.UUID, Name: d.Name, Active: d.Active()})
	}
	return out, nil
}

// auditPeers are the other hosts, by the API between agents.
type auditPeers struct{ a *Agent }

// Hosts implements auditor.Peers: the roots of Placement and [peers].
func (p auditPeers) Hosts(ctx context.Context) ([]string, error) {
	names := slices.Collect(maps.Keys(p.a.config().Peers))
	// A shared pool of disks is no host.
	providers, err := p.a.placement.Providers(ctx, placementclient.ProviderFilter{Forbidden: []string{placementclient.TraitMiscSharesViaAggregate}})
	for _, rp := range providers {
		if rp.IsRoot() {
			names = append(names, rp.Name)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == p.a.name }), err
}

// peerPatience bounds the question to one host.
const peerPatience = 10 * time.Second

// Knows implements auditor.Peers.
func (p auditPeers) Knows(ctx context.Context, host string, consumers []string) ([]auditor.Known, error) {
	c, err := p.a.peers.client(host)
	if err != nil {
		return nil, err
	}
	var out []auditor.Known
	for some := range slices.Chunk(consumers, api.MaxConsumers) {
		asking, cancel := p.a.rt.WithTimeout(ctx, peerPatience)
		known, err := c.Knows(asking, some)
		cancel()
		if err != nil {
			return nil, err
		}
		out = append(out, known...)
	}
	return out, nil
}

type auditService struct{ a *Agent }

// Knows implements api.Audits.
func (s auditService) Knows(ctx context.Context, consumers []string) ([]auditor.Known, error) {
	a := s.a
	domains := map[string]driver.Domain{}
	list, err := a.driver.Domains(ctx)
	for _, d := range list {
		domains[d.UUID] = d
	}
	moves, claimed := map[string]string{}, map[string]bool{} // unfinished ones, by both their consumers
	recorded := a.recorded()
	for _, m := range recorded.Moves {
		if !m.Over {
			moves[m.UUID], moves[m.Instance] = m.UUID, m.UUID
		}
	}
	for _, c := range recorded.Claims {
		claimed[c.Instance] = true
	}
	out := make([]auditor.Known, 0, len(consumers))
	for _, id := range consumers {
		k := auditor.Known{Consumer: id}
		inst, known := a.tracker.Instance(id)
		if known && inst.Token.State == claims.TokenHere {
			k.Owner, k.Epoch = true, inst.Token.Epoch
		}
		_, there := domains[id]
		switch m, moves := moves[id]; {
		case moves:
			k.Busy, k.Moving = "migration "+m+" is not over", true
		case !k.Owner && claimed[id]:
			k.Busy = "it has a claim"
		case !k.Owner && there:
			k.Busy = "libvirt has its domain"
		}
		if err != nil && !k.Owner {
			k.Unsure = err.Error()
		}
		out = append(out, k)
	}
	return out, nil
}

// Audit implements api.Audits.
func (s auditService) Audit(ctx context.Context, r api.AuditRequest) (api.AuditReport, error) {
	a := s.a
	if err := a.mayNotHeal(); err != nil && (r.Heal || r.RebuildPlacement) {
		return api.AuditReport{}, err
	}
	out := api.AuditReport{Hosts: []api.AuditHost{}, Silent: map[string]string{}}
	if r.RebuildPlacement {
		// Every host's providers have to stand before the halves of moves between them.
		s.each(ctx, r.All, api.AuditRequest{Report: true}, &out)
		out.Hosts = out.Hosts[:0]
		r.Heal = true
	}
	order := api.AuditRequest{Heal: r.Heal, AskAll: r.AskAll || r.All, Report: r.Report}
	s.each(ctx, r.All, order, &out)
	if r.All && r.Heal && slices.ContainsFunc(out.Hosts, func(h api.AuditHost) bool { return h.Healed > 0 }) &&
		slices.ContainsFunc(out.Hosts, func(h api.AuditHost) bool { return len(h.Left()) > 0 }) {
		// What one host has healed another may have found before.
		again := api.AuditReport{Silent: out.Silent}
		s.each(ctx, true, order, &again)
		out.Hosts = joined(out.Hosts, again.Hosts)
	}
	slices.SortFunc(out.Hosts, func(x, y api.AuditHost) int { return cmp.Compare(x.Host, y.Host) })
	return out, nil
}

// joined is the second of two rounds, with what the first has healed and cost.
func joined(first, second []api.AuditHost) []api.AuditHost {
	for i := range second {
		now := &second[i]
		j := slices.IndexFunc(first, func(r api.AuditHost) bool { return r.Host == now.Host })
		if j < 0 {
			continue
		}
		was := first[j]
		for _, row := range was.Rows {
			if row.Healed {
				now.Rows = append(now.Rows, row)
			}
		}
		now.Healed, now.Took = now.Healed+was.Healed, now.Took+was.Took
		now.Calls.Reads, now.Calls.Writes, now.Calls.Peers = now.Calls.Reads+was.Calls.Reads, now.Calls.Writes+was.Calls.Writes, now.Calls.Peers+was.Calls.Peers
	}
	return second
}

// each has this host audit, and where all are meant every other one, at once.
func (s auditService) each(ctx context.Context, all bool, r api.AuditRequest, out *api.AuditReport) {
	a := s.a
	var mu sync.Mutex // guards out
	var wg sync.WaitGroup
	if all {
		asking, cancel := a.rt.WithTimeout(ctx, peerPatience)
		hosts, err := auditPeers{a}.Hosts(asking)
		cancel()
		if err != nil {
			out.Silent["other hosts"] = "Placement could not be asked for them: " + err.Error()
		}
		for _, name := range hosts {
			wg.Go(func() {
				got, err := s.ask(ctx, name, r)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					out.Silent[name] = err.Error()
				}
				out.Hosts = append(out.Hosts, got.Hosts...)
			})
		}
	}
	own := a.auditor.Audit(ctx, auditor.Order{Heal: r.Heal, AskAll: r.AskAll, Report: r.Report})
	wg.Wait()
	out.Hosts = append(out.Hosts, api.AuditHost{Result: own, Ledger: a.health.audited.Load()})
}

func (s auditService) ask(ctx context.Context, host string, r api.AuditRequest) (api.AuditReport, error) {
	c, err := s.a.peers.client(host)
	if err != nil {
		return api.AuditReport{}, err
	}
	if r == (api.AuditRequest{}) {
		r.AskAll = true
	}
	got, err := c.Audit(ctx, r)
	if fault.KindOf(err) == fault.Forbidden && r.Heal {
		// It only observes, or is not believed: it heals nothing, and sees what is wrong.
		r.Heal = false
		got, err = c.Audit(ctx, r)
	}
	return got, err
}

// allocations is what the last audit found, as a part of the agent's health. A guest
// that nobody manages is no fault, and who is silent has a condition of his own.
func (h *health) allocations() api.Condition {
	const name = "allocations"
	last := h.a.auditor.Last()
	if last == nil {
		return good(name, "not audited yet")
	}
	var reasons []fault.Reason
	n, unmanaged := 0, 0
	for _, row := range last.Left() {
		switch {
		case row.Unmanaged():
			unmanaged++
		case row.Verdict == audit.Unknown:
		case row.Settles() && h.a.rt.Now().Sub(row.Since) < settlesWithin:
		default:
			n++
			if len(reasons) < maxReasons {
				reasons = append(reasons, fault.Reason{Code: row.Code, Message: row.Message, Change: cmp.Or(row.Change, "berth audit")})
			}
		}
	}
	detail := fmt.Sprintf("audited %s: %d agree", last.At.Format(time.DateTime), last.Verdicts[audit.Agree])
	if last.Healed > 0 {
		detail += fmt.Sprintf(", %d healed", last.Healed)
	}
	if unmanaged > 0 {
		detail += fmt.Sprintf(", %d run unmanaged", unmanaged)
	}
	if len(last.Silent) > 0 {
		detail += "; not asked: " + strings.Join(slices.Sorted(maps.Keys(last.Silent)), ", ")
	}
	if n == 0 || h.a.observing() {
		return good(name, detail)
	}
	return bad(name, fmt.Sprintf("%d disagree with Placement, see berth audit; %s", n, detail), reasons...)
}

// settlesWithin is how long what settles by itself is no fault; arbitrary, above what
// two reads that agree and a slow hypervisor take.
const settlesWithin = 2 * time.Minute

// maxReasons bounds what a condition names; berth audit has all.
const maxReasons = 20
