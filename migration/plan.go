package migration

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
	"berth/migration/candidates"
	"berth/migration/options"
	"berth/placementclient"
	"berth/topology"
)

// PlanKind is what is planned.
type PlanKind string

// The kinds.
const (
	PlanLive PlanKind = "live-migration"
	// PlanCold is of a guest that does not run, or is to be shut off for its move.
	PlanCold PlanKind = "cold-migration"
	// PlanResize is of a guest that gets another flavor, on its own host or on another.
	PlanResize PlanKind = "resize"
	PlanNew    PlanKind = "new" // of a guest that is not there yet
	// PlanEvacuation is of a guest of a dead host.
	PlanEvacuation PlanKind = "evacuation"
)

// PlanVerdict is what a host says.
type PlanVerdict string

// The verdicts.
const (
	VerdictTakes   PlanVerdict = "takes it"
	VerdictRefuses PlanVerdict = "refuses"
	VerdictSilent  PlanVerdict = "no answer"
	VerdictUnasked PlanVerdict = "not asked"
)

// Plan says where a guest could go now. It holds nothing: by the time of a move
// another guest may have the room.
type Plan struct {
	Kind         PlanKind           `json:"kind"`
	Instance     string             `json:"instance_uuid,omitempty"` // empty for a new guest
	InstanceName string             `json:"instance_name,omitempty"`
	Flavor       string             `json:"flavor,omitempty"` // of a resize the new one
	Source       string             `json:"source_compute,omitempty"`
	Wants        topology.Resources `json:"wants"`
	// Proof is by what the host counts as dead whose guest is to be evacuated.
	Proof *DeathProof `json:"proof,omitempty"`
	// Options are those of a live migration, merged, and OptionsFrom who said each.
	Options     Options                 `json:"options,omitzero"`
	OptionsFrom map[string]options.From `json:"options_from,omitempty"`
	// Chosen is the host that a move would go to, empty for none.
	Chosen string `json:"chosen,omitempty"`
	// Blockers are what keeps the guest where it is, whatever the destination.
	Blockers []fault.Reason `json:"blockers"`
	// Hosts are the candidates of Placement in the order in which a move would try
	// them, then every other host, by name.
	Hosts []PlanHost `json:"hosts"`
	// Questions are what Placement was asked for candidates, and Left what of the
	// guest's wish is in none of them; the hosts' own checks look at it all.
	Questions []string `json:"questions"`
	Left      []string `json:"left_to_hosts,omitempty"`
	// Truncated says that Placement's answer ended at its limit: hosts that it does
	// not offer here may be candidates all the same.
	Truncated bool `json:"truncated,omitempty"`
	// Providers gives the name of each provider in Hosts, by uuid.
	Providers map[string]string `json:"providers"`
}

// PlanHost is one host of a plan.
type PlanHost struct {
	Name         string `json:"name"`
	ProviderUUID string `json:"provider_uuid,omitempty"`
	Candidate    bool   `json:"candidate"` // Placement offers it
	// OwnHost is the one that the guest is on: a resize tries it first, without asking
	// Placement for candidates.
	OwnHost  bool `json:"own_host,omitempty"`
	SameDisk bool `json:"same_disk,omitempty"`
	// Near says that the host shares an aggregate of Placement's with the one that the guest
	// is on; nil where that counts nothing, or the guest's host is in no aggregate. Weight
	// is what it counts: of candidates the greatest goes first, whatever else there is.
	Near   *bool   `json:"near,omitempty"`
	Weight float64 `json:"weight"`
	// MemoryUsed is the part of the host's memory that is allocated, 0 to 1; of
	// candidates only.
	MemoryUsed float64 `json:"memory_used,omitempty"`
	// Proposed is what Placement would have it hold, by provider. The host's own
	// claim decides.
	Proposed map[string]placementclient.Resources `json:"proposed,omitempty"`
	Verdict  PlanVerdict                          `json:"verdict"`
	Reasons  []fault.Reason                       `json:"reasons,omitempty"` // why not, Placement's and its own
	Claim    *RoomAnswer                          `json:"would_claim,omitempty"`
	// Dropped are options that the guest would go there without; see SourceAnswer.Dropped.
	Dropped []fault.Reason `json:"dropped,omitempty"`
	// Way is how the guest's disks would go there, and WayReason why so; of a host that
	// would take a guest from one with which it shares nothing.
	Way       Way    `json:"way,omitempty"`
	WayReason string `json:"way_reason,omitempty"`
	// Disks are what the host would do about the disks of a guest of a dead host, also where
	// that speaks against it; nil where it was not asked, and of other plans.
	Disks *EvacuatedDisks `json:"evacuated_disks,omitempty"`
}

// RoomRequest asks what a host would claim for a guest: one that is there, or one
// of a flavor, which the host reads by its own aliases.
type RoomRequest struct {
	Flavor    topology.Flavor         `json:"flavor"`
	Instance  string                  `json:"instance_uuid,omitempty"` // empty for a new guest; then only Flavor is read
	Resources topology.Resources      `json:"resources,omitzero"`
	Topology  *topology.GuestTopology `json:"numa_topology,omitempty"`
	Devices   []topology.PCIRequest   `json:"pci_requests,omitempty"`
}

// RoomAnswer is what a host would claim now.
type RoomAnswer struct {
	Resources  topology.Resources  `json:"resources"`
	Assignment topology.Assignment `json:"assignment,omitzero"`
	// Allocations is the same by provider; nil while the host does not know its tree.
	Allocations map[string]placementclient.Resources `json:"allocations,omitempty"`
}

// PlanRequest asks for a plan.
type PlanRequest struct {
	Kind   PlanKind
	Guest  Guest       // of live and cold moves, and resizes
	Source Description // of the same
	// Wanted is what a cold move or a resize makes of the guest, as PlanChange has told; nil
	// where it could not. Then hosts are asked for the room alone of a guest that stays as it
	// is, and for nothing of one that was to be resized.
	Wanted *Wanted
	// Options are those of a live migration, merged, and OptionsFrom who said each.
	Options     Options
	OptionsFrom map[string]options.From
	Room        RoomRequest // of new guests: Resources, Topology and Devices as this host reads the flavor
	Named       string      // only this host; empty for all
	// ShareNothing plans a cold move or a resize that this host would conduct, whether it has
	// the guest or not: the source is asked by its verbs, as the others are.
	ShareNothing bool
	// Of evacuations: the proof, what disks may be made from, and whether their loss is accepted.
	Proof      *DeathProof
	Image      *Image
	AcceptLoss bool
	// Blockers are found already.
	Blockers []fault.Reason
}

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
	Hosts func(ctx context.Context, name string) (Host, error)
	Room  func(ctx context.Context, name string, r RoomRequest) (RoomAnswer, error)
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
func (p Planner) Plan(ctx context.Context, r PlanRequest) (Plan, error) {
	wish := candidates.Wish{Resources: r.Room.Resources, Topology: r.Room.Topology, Devices: r.Room.Devices, ExtraSpecs: r.Room.Flavor.ExtraSpecs}
	out := Plan{
		Kind: r.Kind, Flavor: cmp.Or(r.Guest.Flavor.Name, r.Room.Flavor.Name), Instance: r.Guest.UUID, InstanceName: r.Guest.Name, Source: r.Source.Name,
		Proof: r.Proof, Blockers: append([]fault.Reason{}, r.Blockers...), Hosts: []PlanHost{}, Questions: []string{}, Providers: map[string]string{},
	}
	if r.Kind == PlanLive {
		out.Options, out.OptionsFrom = r.Options, r.OptionsFrom
		out.Blockers = append(out.Blockers, fault.ReasonsOf(movable(r.Guest))...)
	}
	look := planning{Planner: p, request: r, plan: &out}
	src := inspectedSource{Guest: r.Guest, Source: r.Source, Wanted: r.Wanted}
	if r.Kind == PlanResize {
		if r.Wanted == nil {
			out.Wants = r.Guest.Resources
			return out, ctx.Err()
		}
		out.Flavor = r.Wanted.Flavor.Name
		out.Blockers = append(out.Blockers, fault.ReasonsOf(changes(src))...)
	}
	var err error
	if r.Kind != PlanNew {
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
	request PlanRequest
	plan    *Plan
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
			p.plan.Hosts = append(p.plan.Hosts, PlanHost{
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
	return (p.request.Kind == PlanNew || p.own() != "" || name != p.request.Source.Name) && (p.request.Named == "" || p.request.Named == name)
}

// own is the host on which a guest may be resized in its place; empty for no resize, and
// for one that is to leave its host whatever that has.
func (p *planning) own() string {
	if p.request.Kind != PlanResize || p.request.ShareNothing {
		return ""
	}
	return p.request.Source.Name
}

// others adds the hosts that are no candidates, by name, and before all the guest's own.
func (p *planning) others(roots []placementclient.ResourceProvider) {
	if own := p.own(); own != "" && p.wanted(own) {
		p.plan.Hosts = slices.Insert(p.plan.Hosts, 0, PlanHost{Name: own, ProviderUUID: p.request.Source.ProviderUUID, OwnHost: true})
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
		if name == "" || !p.wanted(name) || slices.ContainsFunc(p.plan.Hosts, func(h PlanHost) bool { return h.Name == name }) {
			continue
		}
		p.plan.Hosts = append(p.plan.Hosts, PlanHost{Name: name, ProviderUUID: uuid})
	}
	slices.SortFunc(p.plan.Hosts[first:], func(a, b PlanHost) int { return strings.Compare(a.Name, b.Name) })
}

// each calls f for every host, some at a time.
func (p *planning) each(f func(h *PlanHost)) {
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
		p.plan.Hosts[i].Verdict = VerdictUnasked
	}
	p.each(func(h *PlanHost) {
		if h.Verdict == VerdictUnasked {
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
			h.Verdict, h.Claim = VerdictTakes, &answer
		case fault.DoesNotFit, fault.Forbidden, fault.Invalid, fault.Exists, fault.Busy, fault.NotFound:
			h.Verdict, h.Reasons = VerdictRefuses, reasonsOr(err)
		default:
			h.Verdict, h.Reasons = VerdictSilent, reasonsOr(err)
		}
		if errors.Is(err, fault.Unavailable) {
			h.Reasons = append(h.Reasons, p.byAThird(h.Name)...)
		}
	})
}

func (p *planning) askOne(ctx context.Context, host *PlanHost) (RoomAnswer, error) {
	r, name := p.request, host.Name
	check := CheckRequest{Guest: r.Guest, Source: r.Source}
	if r.Kind == PlanLive {
		check.Options, check.PostCopyAsked = r.Options, r.OptionsFrom["post_copy"] == options.FromRequest
	}
	switch {
	case r.Kind == PlanNew:
		return p.Room(ctx, name, RoomRequest{Flavor: r.Room.Flavor})
	case r.Kind == PlanResize:
		check.Kind, check.Wanted = TypeResize, r.Wanted
	case r.Kind == PlanEvacuation:
		check.Kind, check.Wanted = TypeEvacuation, r.Guest.RebuiltFrom(r.Image)
	case r.Kind == PlanCold && r.Wanted != nil:
		check.Kind, check.Wanted = TypeMigration, r.Wanted
	case r.Kind == PlanCold:
		return p.Room(ctx, name, RoomRequest{
			Flavor: r.Guest.Flavor, Instance: r.Guest.UUID, Resources: r.Guest.Resources, Topology: r.Guest.Topology, Devices: r.Guest.PCIRequests,
		})
	}
	h, err := p.Hosts(ctx, name)
	if err != nil {
		return RoomAnswer{}, err
	}
	ref := Ref{Instance: r.Guest.UUID, Step: StepCheckDestination}
	answer, err := h.CheckDestination(ctx, ref, check)
	if err != nil {
		return RoomAnswer{}, err
	}
	switch {
	case r.Kind == PlanEvacuation:
		if err := p.suits(host, answer); err != nil {
			return RoomAnswer{}, err
		}
	case name != p.own():
		if err := sameHost(r.Source, answer.Destination); err != nil {
			return RoomAnswer{}, err
		}
		var disks SourceAnswer
		source, err := p.Hosts(ctx, r.Source.Name)
		if err == nil {
			answer.Options, answer.PostCopyAsked = check.Options, check.PostCopyAsked
			disks, err = source.CheckSource(ctx, ref, answer)
		}
		if err != nil {
			return RoomAnswer{}, err
		}
		host.Dropped = slices.Concat(answer.Dropped, disks.Dropped)
		if r.ShareNothing {
			host.Way, host.WayReason = p.disksWay(ctx, name, disks)
		}
	}
	room := answer.WouldClaim
	if room == nil { // an agent that does not tell it yet
		room = &RoomAnswer{Resources: p.plan.Wants}
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
