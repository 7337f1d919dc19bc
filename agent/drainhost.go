package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/drain"
)

// drained is this agent as package drain asks it: its guests, or a dead host's, and the
// conductor of their moves.
type drained struct{ a *Agent }

// Guests implements drain.Host. Of this host they are those that libvirt and the ledger have,
// strangers and what is kept for a revert included; of a dead one those of the fleet's records.
func (d drained) Guests(ctx context.Context, r drain.Request) ([]drain.Present, error) {
	if r.Kind == drain.KindEvacuate {
		return d.lost(ctx, r.Host)
	}
	list, err := d.a.host.ListHidden(ctx)
	if err != nil {
		return nil, err
	}
	var out []drain.Present
	stands := d.a.standing(ctx)
	for i := range list {
		stands.tell(&list[i])
		if p, here := presentOf(list[i]); here {
			out = append(out, p)
		}
	}
	return out, nil
}

// presentOf is one guest of this host; false for what is only a guest's that is on its way here,
// or a record of one that has left.
func presentOf(v host.InstanceView) (drain.Present, bool) {
	p := drain.Present{
		Instance: v.UUID, Name: v.Name, Power: v.State, SizeMB: v.Flavor.MemoryMB,
		Off: v.State == string(driver.ShutOff) || v.State == "",
	}
	if v.Claim != nil {
		p.SizeMB = v.Claim.Resources.MemoryMB
	}
	here := v.Token.State == claims.TokenHere
	moves := v.Migration != "" || slices.Contains([]string{"MIGRATING", "RESIZE", "REVERT_RESIZE", "REBUILD"}, v.Status)
	blocked := func(code, message, have string, change string) {
		p.Blocked = []fault.Reason{{Code: code, Message: message, Have: have, Change: change}}
	}
	switch {
	case v.Resize != nil:
		what := "the guest"
		if v.Resize.Half == host.HalfKept {
			what = "what the guest had here"
		}
		change := ""
		for i, next := range v.Resize.Next {
			if change += next; i < len(v.Resize.Next)-1 {
				change += ", or "
			}
		}
		blocked("migration_unfinished", "migration "+v.Resize.Migration+" is finished and neither confirmed nor reverted: "+what+" is kept until then", v.Resize.Migration, change)
	case !v.Managed && moves: // it arrives by a tool's migration
		return p, false
	case !v.Managed:
		blocked("not_managed", "guest "+v.Name+" is not managed, and nothing is claimed for it", v.State, "berth instance adopt "+v.Name)
	case v.Token.State == claims.TokenDoubt:
		blocked("token_in_doubt", "whose "+v.Name+" is is in doubt since the ledger was lost", "", "look for it on the other hosts; if it is nowhere else, berth instance adopt "+v.Name)
	case moves && (here || !v.Hidden):
		p.Waits = []fault.Reason{{
			Code: "moving", Message: "it is on a move that was asked for by itself: " + v.Migration, Have: v.Migration, Change: "wait for it, or berth migration abort " + v.Migration,
		}}
	case !here:
		return p, false
	case v.State == "":
		blocked("domain_missing", "the ledger has it, and libvirt has no such domain", "", "berth audit; or berth instance delete "+v.Name)
	}
	return p, true
}

// lost are the guests of a dead host that are still its own by the records, and those that it has
// without a record.
func (d drained) lost(ctx context.Context, dead string) ([]drain.Present, error) {
	records, err := d.a.fleetRecords()
	if err != nil {
		return nil, err
	}
	list, err := records.Instances(ctx, dead)
	unreadable, err := fleet.Unreadable(err)
	if err != nil {
		return nil, fmt.Errorf("read the guests of %s from the fleet's records: %w", dead, err)
	}
	var out []drain.Present
	for _, key := range unreadable {
		out = append(out, drain.Present{Instance: fleet.NameOf(key), Name: fleet.NameOf(key), Power: "unknown", Blocked: []fault.Reason{{
			Code: fleet.ReasonUnreadable, Message: "its record cannot be read, so that nobody knows whether it is a guest of " + dead, Have: key,
			Change: "look for it on the other hosts: one that has it says so in its berth status; see to the store of the records",
		}}})
	}
	for _, in := range list {
		out = append(out, lostGuest(in))
	}
	ctx, cancel := d.a.rt.WithTimeout(ctx, peerPatience)
	defer cancel()
	left, _ := records.Evacuated(ctx, dead) // what is not heard of is asked one by one
	more, err := unrecordedOn(ctx, dead, d.a.placement, records, list, left, ledgersBut(d.a, dead))
	return append(out, presentUnrecorded(dead, more, err)...), nil
}

func lostGuest(in fleet.Instance) drain.Present {
	p := drain.Present{Instance: in.UUID, Name: in.Name, Power: "unknown"}
	var g migration.Guest
	if err := json.Unmarshal(in.Guest, &g); err == nil {
		p.Power, p.Off, p.SizeMB = string(g.PowerState), g.PowerState == migration.PowerShutOff, g.Resources.MemoryMB
	}
	return p
}

// passing are reasons of a plan that are over soon, or say only that somebody did not answer.
var passing = []string{string(fault.Unavailable), string(fault.InDoubt), string(fault.Busy), "moving", "job_in_flight", "guest_not_running", "not_running"}

// Way implements drain.Host.
func (d drained) Way(ctx context.Context, r drain.Request, p drain.Present) (drain.Way, error) {
	switch {
	case r.Kind == drain.KindEvacuate:
		return d.way(ctx, r, p, migration.PlanEvacuation, drain.HowEvacuate)
	case p.Power == string(driver.ShutOff):
		return d.way(ctx, r, p, migration.PlanCold, drain.HowCold)
	}
	live, err := d.way(ctx, r, p, migration.PlanLive, drain.HowLive)
	if err != nil || live.How == drain.HowLive && live.To != "" {
		return live, err
	}
	if !r.Cold {
		if live.How == drain.HowStays {
			for i := range live.Reasons {
				if live.Reasons[i].Change == "" {
					live.Reasons[i].Change = "move it cold: berth host drain --cold"
				}
			}
		}
		return live, nil
	}
	cold, err := d.way(ctx, r, p, migration.PlanCold, drain.HowCold)
	if err != nil || cold.How == drain.HowStays || cold.To == "" && live.How == drain.HowLive {
		if err == nil && live.How == drain.HowLive {
			return live, nil
		}
		cold.Reasons = append(live.Reasons, cold.Reasons...)
		return cold, err
	}
	cold.Reasons = append(live.Reasons, cold.Reasons...)
	return cold, nil
}

// way plans one kind of move of a guest.
func (d drained) way(ctx context.Context, r drain.Request, p drain.Present, kind migration.PlanKind, how drain.How) (drain.Way, error) {
	ask := api.PlanRequest{Instance: p.Instance, Kind: kind, Image: r.Image, AcceptLoss: r.AcceptLoss}
	if len(r.To) == 1 {
		ask.Destination = r.To[0]
	}
	plan, err := planService(d).Plan(ctx, ask)
	if err != nil && kind == migration.PlanEvacuation && fault.KindOf(err) == fault.Forbidden {
		return drain.Way{How: drain.HowStays, Reasons: fault.ReasonsOf(err)}, nil // no proof, or on a move
	}
	if err != nil {
		return drain.Way{}, err
	}
	return wayOf(plan, r, p, how)
}

// wayOf reads a plan. A guest that nobody would take at present is tried all the same: others
// leave, and make room.
func wayOf(plan migration.Plan, r drain.Request, p drain.Present, how drain.How) (drain.Way, error) {
	if len(plan.Blockers) > 0 {
		for _, b := range plan.Blockers {
			if slices.Contains(passing, b.Code) {
				return drain.Way{}, fault.Refuse(fault.Busy, "plan how "+p.Name+" can leave", plan.Blockers...)
			}
		}
		return drain.Way{How: drain.HowStays, Reasons: plan.Blockers}, nil
	}
	out := drain.Way{How: how, To: plan.Chosen}
	if len(r.To) > 0 && !slices.Contains(r.To, out.To) {
		out.To = ""
		for _, name := range r.To {
			if slices.ContainsFunc(plan.Hosts, func(h migration.PlanHost) bool { return h.Name == name && h.Verdict == migration.VerdictTakes }) {
				out.To = name
				break
			}
		}
	}
	for _, h := range plan.Hosts {
		if h.Disks != nil && (h.Name == out.To || out.To == "" && len(out.Lost) == 0) {
			out.Lost = h.Disks.Lost
		}
		if out.To != "" || len(r.To) > 0 && !slices.Contains(r.To, h.Name) {
			continue
		}
		for _, why := range h.Reasons {
			why.Message = h.Name + ": " + why.Message
			out.Reasons = append(out.Reasons, why)
		}
	}
	if out.To == "" && slices.ContainsFunc(out.Reasons, func(r fault.Reason) bool { return r.Code == migration.ReasonDataLost }) {
		out.How = drain.HowStays // nobody makes room for that: a person has to say that it may be
	}
	if out.To == "" && len(out.Reasons) == 0 {
		message := "Placement knows no other host with room for it"
		if len(r.To) > 0 {
			message = "Placement offers none of the hosts that were named for it: " + strings.Join(r.To, ", ")
		}
		out.Reasons = []fault.Reason{{Code: "no_candidate", Message: message, Change: "free capacity on another host, or add one; berth plan " + p.Name}}
	}
	return out, nil
}

// drainedConfirms is at once: whoever empties a host wants nothing kept there.
const drainedConfirms = time.Millisecond

// Begin implements drain.Host.
func (d drained) Begin(ctx context.Context, m drain.Move) (migration.Migration, error) {
	s := migrationService(d)
	kind := map[drain.How]string{
		drain.HowLive: migration.TypeLiveMigration, drain.HowCold: migration.TypeMigration, drain.HowEvacuate: migration.TypeEvacuation,
	}[m.How]
	if d.a.observing() {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, "move "+m.Guest, observes(d.a.name))
	}
	if err := d.a.db.Room(); err != nil {
		return migration.Migration{}, err // its journal would have to wait in the middle
	}
	o, from, err := s.options("move "+m.Guest, kind, d.a.flavorOf(m.Guest), migration.Options{})
	if err != nil {
		return migration.Migration{}, err
	}
	ask := conductor.Request{Instance: m.Guest, Type: kind, Alternates: m.To, Migration: m.Migration, Queue: m.UUID, By: m.By, Options: o, OptionsFrom: from}
	switch m.How {
	case drain.HowEvacuate:
		ask.Source, ask.Stopped, ask.AcceptLoss, ask.Change.Image = m.Host, m.Stopped, m.AcceptLoss, m.Image
	case drain.HowCold:
		confirms := drainedConfirms
		ask.ConfirmWindow = &confirms
		fallthrough
	default:
		if err := s.unconducted("drain", m.Guest, m.Guest); err != nil {
			return migration.Migration{}, err
		}
	}
	return d.a.conductor.Start(ctx, ask)
}

// Get implements drain.Host.
func (d drained) Get(ctx context.Context, id string) (migration.Migration, error) {
	return d.a.conductor.Get(ctx, id)
}

// Watch implements drain.Host.
func (d drained) Watch(ctx context.Context, id string) (<-chan migration.Migration, error) {
	return d.a.conductor.Watch(ctx, id)
}

// Abort implements drain.Host.
func (d drained) Abort(ctx context.Context, id string) error { return d.a.conductor.Abort(ctx, id) }

// Closed implements drain.Host.
func (d drained) Closed(context.Context) (json.RawMessage, error) {
	return json.Marshal(d.a.disabled.Load())
}

// Close implements drain.Host. A host that somebody has disabled stays as it is.
func (d drained) Close(ctx context.Context, of drain.Drain) error {
	a := d.a
	a.settingHost.Lock()
	defer a.settingHost.Unlock()
	if a.disabled.Load() != nil {
		return nil
	}
	return a.disable(ctx, &api.Disabled{Reason: drainWords(of), By: of.By, At: a.rt.Now()})
}

// drainWords are why a host is disabled that is being drained, and by them a drain knows its own.
func drainWords(of drain.Drain) string { return "drain " + of.UUID }

// Open implements drain.Host.
func (d drained) Open(ctx context.Context, of drain.Drain) error {
	a := d.a
	a.settingHost.Lock()
	defer a.settingHost.Unlock()
	if now := a.disabled.Load(); now == nil || now.Reason != drainWords(of) {
		return nil
	}
	return a.enable(ctx, of.By)
}
