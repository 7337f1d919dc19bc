package conductor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/candidates"
	"berth/migration/operation"
	"berth/migration/options"
	"berth/placementclient"
)

// PlanPlacement is what a plan reads of Placement; *placementclient.Client is one.
type PlanPlacement interface {
	candidates.Placement
	candidates.Reader
}

// Planner makes plans. It changes nothing anywhere, and asks no question that
// does.
type Planner struct {
	Placement PlanPlacement
	Runtime   runtime.Runtime
	// Hosts finds a host by its provider's name, Room asks it; Known are names beside
	// those that Placement has, Local is this host.
	Hosts func(ctx context.Context, name string) (migration.Host, error)
	Room  func(ctx context.Context, name string, r migration.RoomRequest) (migration.RoomAnswer, error)
	Known []string
	Local string
	// NearWeight is what a move would go by; see Config.
	NearWeight NearWeight
}

// The bounds of a plan: how many hosts are asked, how many at the same time, how
// long each, and of how many that Placement does not offer it is read why. All
// arbitrary.
const (
	planHosts    = 64
	planParallel = 16
	planPatience = 10 * time.Second
	planReasons  = 16
)

// Plan makes one. A Placement that does not answer is a blocker in it, and the
// hosts that are known without it are asked all the same; the error is of what
// cannot be planned at all.
func (p Planner) Plan(ctx context.Context, r migration.PlanRequest) (migration.Plan, error) {
	wish := candidates.Wish{Resources: r.Room.Resources, Topology: r.Room.Topology, Devices: r.Room.Devices, ExtraSpecs: r.Room.Flavor.ExtraSpecs}
	out := migration.Plan{
		Kind: r.Kind, Flavor: cmp.Or(r.Guest.Flavor.Name, r.Room.Flavor.Name), Instance: r.Guest.UUID, InstanceName: r.Guest.Name, Source: r.Source.Name,
		Proof: r.Proof, Blockers: append([]fault.Reason{}, r.Blockers...), Hosts: []migration.PlanHost{}, Questions: []string{}, Providers: map[string]string{},
	}
	if r.Kind == migration.PlanLive {
		out.Options, out.OptionsFrom = r.Options, r.OptionsFrom
		out.Blockers = append(out.Blockers, fault.ReasonsOf(movable(r.Guest))...)
	}
	look := planning{Planner: p, request: r, plan: &out}
	src := inspectedSource{Guest: r.Guest, Source: r.Source, Wanted: r.Wanted}
	if r.Kind == migration.PlanResize {
		if r.Wanted == nil {
			out.Wants = r.Guest.Resources
			return out, ctx.Err()
		}
		out.Flavor = r.Wanted.Flavor.Name
		out.Blockers = append(out.Blockers, fault.ReasonsOf(changes(src))...)
	}
	var err error
	if r.Kind != migration.PlanNew {
		wish, err = wishOf(ctx, p.Placement, src, p.NearWeight)
	}
	if err == nil {
		err = look.find(ctx, wish)
	}
	if k := fault.KindOf(err); r.Named != "" && (k == fault.DoesNotFit || k == fault.Invalid) {
		// Whoever names the host does not ask Placement for candidates.
		look.remarks, err = reasonsOr(err), nil
	}
	if err != nil {
		// Without Placement nothing moves: the swap of the allocations is its.
		out.Blockers = append(out.Blockers, reasonsOr(err)...)
	}
	out.Wants = wish.Resources
	if out.Wants.IsZero() {
		out.Wants = src.wanted().Resources
	}
	look.ask(ctx)
	if err == nil {
		look.explain(ctx, wish)
	}
	look.gather()
	look.choose()
	look.forget()
	return out, ctx.Err()
}

// reasonsOr gives an error's reasons, or one made of it.
func reasonsOr(err error) []fault.Reason {
	if r := fault.ReasonsOf(err); len(r) > 0 {
		return r
	}
	return []fault.Reason{{Code: string(fault.KindOf(err)), Message: err.Error()}}
}

// planning is one plan in the making.
type planning struct {
	Planner
	request migration.PlanRequest
	plan    *migration.Plan
	trees   map[string][]placementclient.ResourceProvider // by root
	remarks []fault.Reason                                // why Placement could not be asked for candidates
	stays   error                                         // why a guest cannot be resized on its own host
}

// find lists the hosts: candidates first, then all others.
func (p *planning) find(ctx context.Context, wish candidates.Wish) error {
	list, err := p.Placement.Providers(ctx, placementclient.ProviderFilter{})
	if err != nil {
		p.others(nil)
		return fmt.Errorf("ask Placement for its providers: %w", err)
	}
	sharing, err := p.Placement.Providers(ctx, placementclient.ProviderFilter{Required: []string{placementclient.TraitMiscSharesViaAggregate}})
	if err != nil {
		p.others(nil)
		return fmt.Errorf("ask Placement for its sharing providers: %w", err)
	}
	shares := map[string]bool{}
	for _, rp := range sharing {
		shares[rp.UUID] = true
	}
	p.trees = map[string][]placementclient.ResourceProvider{}
	var roots []placementclient.ResourceProvider
	for _, rp := range list {
		p.plan.Providers[rp.UUID] = rp.Name
		root := cmp.Or(rp.RootProviderUUID, rp.UUID)
		p.trees[root] = append(p.trees[root], rp)
		if rp.IsRoot() && !shares[rp.UUID] {
			roots = append(roots, rp)
		}
	}
	found, err := candidates.Find(ctx, p.Placement, wish, nil)
	for _, q := range found.Requests {
		p.plan.Questions = append(p.plan.Questions, q.Query(placementclient.MaxMicroversion))
		for _, text := range q.Left {
			if !slices.Contains(p.plan.Left, text) {
				p.plan.Left = append(p.plan.Left, text)
			}
		}
	}
	p.plan.Truncated = found.Truncated
	for _, h := range found.Hosts {
		if p.wanted(h.Name) && h.Name != p.own() {
			p.plan.Hosts = append(p.plan.Hosts, migration.PlanHost{
				Name: h.Name, ProviderUUID: h.Root, Candidate: true, SameDisk: h.SameDisk, MemoryUsed: h.MemoryUsed, Proposed: h.Allocations,
			})
		}
	}
	p.others(roots)
	p.weigh(found.Nearness)
	return err
}

// weigh says of every other host that Placement has whether it is near, and what that counts.
func (p *planning) weigh(n candidates.Nearness) {
	for i := range p.plan.Hosts {
		h := &p.plan.Hosts[i]
		if !n.Known() || h.OwnHost || h.ProviderUUID == "" {
			continue
		}
		var near bool
		near, h.Weight = n.Of(h.ProviderUUID)
		h.Near = &near
	}
}

// wanted reports whether a host is looked at: the one that the guest is on only for a resize.
func (p *planning) wanted(name string) bool {
	return (p.request.Kind == migration.PlanNew || p.own() != "" || name != p.request.Source.Name) && (p.request.Named == "" || p.request.Named == name)
}

// own is the host on which a guest may be resized in its place; empty for no resize, and
// for one that is to leave its host whatever that has.
func (p *planning) own() string {
	if p.request.Kind != migration.PlanResize || p.request.ShareNothing {
		return ""
	}
	return p.request.Source.Name
}

// others adds the hosts that are no candidates, by name, and before all the guest's own.
func (p *planning) others(roots []placementclient.ResourceProvider) {
	if own := p.own(); own != "" && p.wanted(own) {
		p.plan.Hosts = slices.Insert(p.plan.Hosts, 0, migration.PlanHost{Name: own, ProviderUUID: p.request.Source.ProviderUUID, OwnHost: true})
	}
	byName := map[string]string{}
	for _, name := range append(slices.Clone(p.Known), p.Local, p.request.Named) {
		byName[name] = ""
	}
	for _, rp := range roots {
		byName[rp.Name] = rp.UUID
	}
	first := len(p.plan.Hosts)
	for name, uuid := range byName {
		if name == "" || !p.wanted(name) || slices.ContainsFunc(p.plan.Hosts, func(h migration.PlanHost) bool { return h.Name == name }) {
			continue
		}
		p.plan.Hosts = append(p.plan.Hosts, migration.PlanHost{Name: name, ProviderUUID: uuid})
	}
	slices.SortFunc(p.plan.Hosts[first:], func(a, b migration.PlanHost) int { return strings.Compare(a.Name, b.Name) })
}

// each calls f for every host, some at a time.
func (p *planning) each(f func(h *migration.PlanHost)) {
	var workers runtime.Group
	var next atomic.Int64
	for range min(planParallel, len(p.plan.Hosts)) {
		workers.Go(p.Runtime, "plan", func() {
			for i := int(next.Add(1)) - 1; i < len(p.plan.Hosts); i = int(next.Add(1)) - 1 {
				f(&p.plan.Hosts[i])
			}
		})
	}
	workers.Wait(p.Runtime)
}

// ask has every host say what it would claim, or why it would not.
func (p *planning) ask(ctx context.Context) {
	for i := planHosts; i < len(p.plan.Hosts); i++ {
		p.plan.Hosts[i].Verdict = migration.VerdictUnasked
	}
	p.each(func(h *migration.PlanHost) {
		if h.Verdict == migration.VerdictUnasked {
			return
		}
		ctx, cancel := p.Runtime.WithTimeout(ctx, planPatience)
		defer cancel()
		answer, err := p.askOne(ctx, h)
		if h.OwnHost {
			p.stays = err
		}
		switch fault.KindOf(err) {
		case "":
			h.Verdict, h.Claim = migration.VerdictTakes, &answer
		case fault.DoesNotFit, fault.Forbidden, fault.Invalid, fault.Exists, fault.Busy, fault.NotFound:
			h.Verdict, h.Reasons = migration.VerdictRefuses, reasonsOr(err)
		default:
			h.Verdict, h.Reasons = migration.VerdictSilent, reasonsOr(err)
		}
		if errors.Is(err, fault.Unavailable) {
			h.Reasons = append(h.Reasons, p.byAThird(h.Name)...)
		}
	})
}

func (p *planning) askOne(ctx context.Context, host *migration.PlanHost) (migration.RoomAnswer, error) {
	r, name := p.request, host.Name
	check := migration.CheckRequest{Guest: r.Guest, Source: r.Source}
	if r.Kind == migration.PlanLive {
		check.Options, check.PostCopyAsked = r.Options, r.OptionsFrom["post_copy"] == options.FromRequest
	}
	switch {
	case r.Kind == migration.PlanNew:
		return p.Room(ctx, name, migration.RoomRequest{Flavor: r.Room.Flavor})
	case r.Kind == migration.PlanResize:
		check.Kind, check.Wanted = migration.TypeResize, r.Wanted
	case r.Kind == migration.PlanEvacuation:
		check.Kind, check.Wanted = migration.TypeEvacuation, r.Guest.RebuiltFrom(r.Image)
	case r.Kind == migration.PlanCold && r.Wanted != nil:
		check.Kind, check.Wanted = migration.TypeMigration, r.Wanted
	case r.Kind == migration.PlanCold:
		return p.Room(ctx, name, migration.RoomRequest{
			Flavor: r.Guest.Flavor, Instance: r.Guest.UUID, Resources: r.Guest.Resources, Topology: r.Guest.Topology, Devices: r.Guest.PCIRequests,
		})
	}
	h, err := p.Hosts(ctx, name)
	if err != nil {
		return migration.RoomAnswer{}, err
	}
	ref := migration.Ref{Instance: r.Guest.UUID, Step: migration.StepCheckDestination}
	answer, err := operation.CheckDestination.Ask(ctx, h, ref, check)
	if err != nil {
		return migration.RoomAnswer{}, err
	}
	switch {
	case r.Kind == migration.PlanEvacuation:
		if err := p.suits(host, answer); err != nil {
			return migration.RoomAnswer{}, err
		}
	case name != p.own():
		if err := sameHost(r.Source, answer.Destination); err != nil {
			return migration.RoomAnswer{}, err
		}
		var disks migration.SourceAnswer
		source, err := p.Hosts(ctx, r.Source.Name)
		if err == nil {
			answer.Options, answer.PostCopyAsked = check.Options, check.PostCopyAsked
			disks, err = operation.CheckSource.Ask(ctx, source, ref, answer)
		}
		if err != nil {
			return migration.RoomAnswer{}, err
		}
		host.Dropped = slices.Concat(answer.Dropped, disks.Dropped)
		if r.ShareNothing {
			host.Way, host.WayReason = p.disksWay(ctx, name, disks)
		}
	}
	room := answer.WouldClaim
	if room == nil { // an agent that does not tell it yet
		room = &migration.RoomAnswer{Resources: p.plan.Wants}
	}
	return *room, nil
}

// explain adds why Placement does not offer a host.
func (p *planning) explain(ctx context.Context, wish candidates.Wish) {
	read := 0
	for i := range p.plan.Hosts {
		h := &p.plan.Hosts[i]
		if h.Candidate || h.OwnHost {
			continue
		}
		why := p.remarks
		switch tree := p.trees[h.ProviderUUID]; {
		case len(why) > 0:
		case len(tree) == 0:
			why = []fault.Reason{{
				Code: candidates.CodeNotOffered, Message: "Placement has no provider named " + h.Name, Want: h.Name,
				Change: "look whether its agent reports (berth status -c " + h.Name + ")",
			}}
		case read == planReasons:
			why = []fault.Reason{{Code: candidates.CodeNotOffered, Message: "Placement does not offer " + h.Name}}
		default:
			read++
			seen, err := candidates.See(ctx, p.Placement, tree)
			if why = reasonsOf(err); err == nil {
				why = candidates.Explain(wish, h.Name, seen)
			}
		}
		h.Reasons = append(why, h.Reasons...)
	}
}

func reasonsOf(err error) []fault.Reason {
	if err == nil {
		return nil
	}
	return reasonsOr(err)
}

// ownCodes are reasons that lie in the guest and not in a host.
var ownCodes = []string{"guest_not_running", "not_running", "device_not_migratable", "device_stays", "not_persistent", "job_in_flight", "moving"}

// gather makes what is the guest's own out of what each host says of it. What keeps it
// from being resized on its own host keeps it from that elsewhere, but for the room.
func (p *planning) gather() {
	if p.stays != nil && !errors.Is(p.stays, fault.DoesNotFit) {
		p.plan.Blockers = append(p.plan.Blockers, reasonsOr(p.stays)...)
	}
	for i := range p.plan.Hosts {
		h := &p.plan.Hosts[i]
		h.Reasons = slices.DeleteFunc(h.Reasons, func(r fault.Reason) bool {
			own := slices.Contains(ownCodes, r.Code)
			known := slices.Contains(p.plan.Blockers, r)
			if own && !known {
				p.plan.Blockers = append(p.plan.Blockers, r)
			}
			return own || known
		})
	}
}
