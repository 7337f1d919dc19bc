package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/auditor/facts"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/placementclient"
)

// newAuditor gives the auditor its parties: the tracker and the conductor, the driver,
// Placement and the other hosts.
func (a *Agent) newAuditor(c config.Config) *auditor.Auditor {
	return auditor.New(auditor.Options{
		Host: a.name, Placement: a.placement, Runtime: sleeper{a.rt, &a.asked, loopAudit}, Logger: a.log,
		Tree: a.tree, Report: a.reporter.Sync, Ledger: func() audit.Ledger { return a.facts().Ledger() }, Domains: func(ctx context.Context) ([]audit.LibvirtDomain, error) { return a.facts().Domains(ctx) }, Peers: auditPeers{a},
		Alone: a.host.Alone, Interval: c.Placement.AuditInterval.D(), Refuse: a.mayNotHeal,
	})
}

// facts are what this host has on record for an audit, its own or another host's.
func (a *Agent) facts() facts.Of {
	return facts.Of{Host: a.name, Tracker: a.tracker, Conductor: a.conductor, Moves: a.host, Driver: a.driver}
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

// filesTimeout bounds the question to one host who uses files: it reads the image of every
// disk that it has.
const filesTimeout = time.Minute

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
	return s.a.facts().Knows(ctx, consumers), nil
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
		return api.OK(name, "not audited yet")
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
		return api.OK(name, detail)
	}
	return api.Degraded(name, fmt.Sprintf("%d disagree with Placement, see berth audit; %s", n, detail), reasons...)
}

// settlesWithin is how long what settles by itself is no fault; arbitrary, above what
// two reads that agree and a slow hypervisor take.
const settlesWithin = 2 * time.Minute

// maxReasons bounds what a condition names; berth audit has all.
const maxReasons = 20
