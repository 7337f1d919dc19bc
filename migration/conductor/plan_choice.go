package conductor

import (
	"fmt"
	"slices"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/candidates"
	"berth/placementclient"
)

// choose names the host that a move would go to: the first candidate that takes
// the guest. Who names a host has it also where it is disabled or lacks a trait,
// since then Placement is not asked for candidates, but not without the room.
func (p *planning) choose() {
	if len(p.plan.Blockers) > 0 {
		return
	}
	for i := range p.plan.Hosts {
		h := &p.plan.Hosts[i]
		byName := p.request.Named != "" && !slices.ContainsFunc(h.Reasons, func(r fault.Reason) bool {
			return r.Code == candidates.CodeShort || r.Code == candidates.CodeNotOffered
		})
		if h.Verdict != migration.VerdictTakes || !h.Candidate && !h.OwnHost && !byName {
			continue
		}
		if p.plan.Hosts[0].OwnHost {
			i-- // a look at the own host is no attempt
		}
		if i >= defaultAttempts && p.request.Kind != migration.PlanNew {
			h.Reasons = append(h.Reasons, fault.Reason{
				Code: "beyond_attempts", Message: fmt.Sprintf("a move that names no host gives up after %d, before it comes to %s", defaultAttempts, h.Name),
				Change: "name it: " + p.naming() + " " + h.Name,
			})
		}
		p.plan.Chosen = h.Name
		return
	}
}

// naming is the command that moves the guest so; a host follows.
func (p *planning) naming() string {
	with := ""
	if p.request.ShareNothing {
		with = " --share-nothing"
	}
	switch p.request.Kind {
	case migration.PlanEvacuation:
		return "berth evacuate " + p.plan.InstanceName
	case migration.PlanResize:
		return "berth resize " + p.plan.InstanceName + " --flavor " + p.plan.Flavor + with
	}
	return "berth migrate " + p.plan.InstanceName + with
}

// forget keeps the names of the providers that the plan names.
func (p *planning) forget() {
	named := map[string]string{}
	keep := func(m map[string]placementclient.Resources) {
		for rp := range m {
			named[rp] = p.plan.Providers[rp]
		}
	}
	for _, h := range p.plan.Hosts {
		keep(h.Proposed)
		if h.Claim != nil {
			keep(h.Claim.Allocations)
		}
	}
	p.plan.Providers = named
}
