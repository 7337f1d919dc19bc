package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/version"
	"berth/migration"
	"berth/placementclient"
)

type agentService struct{ a *Agent }

// Status implements api.Agent.
func (s agentService) Status(ctx context.Context) (api.Status, error) {
	a := s.a
	conditions := a.health.conditions()
	out := api.Status{
		Name: a.name, ProviderUUID: a.uuid, Mode: string(a.config().Agent.Mode), Version: version.Get().String(),
		Health: overall(conditions), Ready: a.ready.Load(), StartedAt: a.opt.Started, StartupTime: a.readyAt.Load(),
		Conditions: conditions, Usage: usage(a.tracker.Usage()),
		Instances: len(a.tracker.Instances()), Claims: len(a.tracker.List()), Migrations: []string{}, Unconfirmed: []string{},
		Audit: a.health.audited.Load(), Disabled: a.disabled.Load(),
	}
	list, err := a.conductor.List(ctx)
	for _, m := range list {
		switch {
		case m.Status == migration.StatusFinished:
			out.Unconfirmed = append(out.Unconfirmed, m.UUID)
		case !m.Done():
			out.Migrations = append(out.Migrations, m.UUID)
		}
	}
	return out, err
}

// Host implements api.Agent.
func (s agentService) Host(ctx context.Context) (api.HostInfo, error) {
	a := s.a
	d, err := a.host.Describe(ctx)
	if err != nil {
		// Without libvirt the rest is still worth showing.
		d = migration.Description{Name: a.name, ProviderUUID: a.uuid, Mode: string(a.config().Agent.Mode), BerthVersion: version.Get().String(), Arch: machine()}
	}
	believed, _, _ := a.hardware.view()
	out := api.HostInfo{
		Description: d, Health: overall(a.health.conditions()), Disabled: a.disabled.Load(), Usage: usage(a.tracker.Usage()),
		Placement: a.reporter.Status(), Topology: believed, Capabilities: a.hypervisor.capabilities(),
	}
	out.Cells, out.Loose = a.cellViews()
	if out.Providers, err = a.providers(ctx); err != nil {
		out.Providers, out.ProvidersError = []api.ProviderView{}, err.Error()
	}
	return out, nil
}

// Hosts implements api.Agent.
func (s agentService) Hosts(ctx context.Context) ([]api.HostEntry, error) {
	a := s.a
	byName := map[string]*api.HostEntry{a.name: {Name: a.name, ProviderUUID: a.uuid, Local: true}}
	for name := range a.config().Peers {
		if byName[name] == nil {
			byName[name] = &api.HostEntry{Name: name}
		}
	}
	asking, cancel := a.rt.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	providers, err := a.placement.Providers(asking, placementclient.ProviderFilter{})
	if err != nil {
		byName[a.name].Error = "Placement could not be asked for others: " + err.Error()
	}
	for _, p := range providers {
		if !p.IsRoot() {
			continue
		}
		if byName[p.Name] == nil {
			byName[p.Name] = &api.HostEntry{Name: p.Name}
		}
		byName[p.Name].ProviderUUID = p.UUID
	}
	var wg sync.WaitGroup
	for name, e := range byName {
		e.Address, _ = a.peers.address(name)
		wg.Go(func() { s.ask(ctx, e) })
	}
	wg.Wait()
	out := make([]api.HostEntry, 0, len(byName))
	for _, e := range byName {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(x, y api.HostEntry) int {
		if x.Name < y.Name {
			return -1
		}
		return 1
	})
	return out, nil
}

// ask fills in what a host says about itself.
func (s agentService) ask(ctx context.Context, e *api.HostEntry) {
	if e.Local {
		e.Reachable, e.Mode, e.Version = true, string(s.a.config().Agent.Mode), version.Get().String()
		e.Disabled = whyDisabled(s.a.disabled.Load())
		return
	}
	ctx, cancel := s.a.rt.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	c, err := s.a.peers.client(e.Name)
	if err == nil {
		var st api.Status
		if st, err = c.Status(ctx); err == nil {
			e.Reachable, e.Mode, e.Version, e.Disabled = true, st.Mode, st.Version, whyDisabled(st.Disabled)
			return
		}
	}
	e.Error = err.Error()
}

type instanceService struct{ a *Agent }

// Create implements api.Instances.
func (s instanceService) Create(ctx context.Context, r api.CreateInstance) (api.Instance, error) {
	if r.FlavorName != "" {
		f, ok := (*s.a.flavors.Load())[r.FlavorName]
		if !ok {
			return api.Instance{}, s.a.noFlavor("create instance "+r.Name, r.FlavorName)
		}
		r.Flavor = f
	}
	if err := s.a.refuseDisabled("create instance " + r.Name); err != nil {
		return api.Instance{}, err
	}
	c := s.a.config().Placement
	if r.ProjectID == "" {
		r.ProjectID = c.ProjectID
	}
	if r.UserID == "" {
		r.UserID = c.UserID
	}
	return s.a.host.Create(ctx, r.CreateRequest)
}

// Adopt implements api.Instances.
func (s instanceService) Adopt(ctx context.Context, r api.AdoptInstances) (api.AdoptedList, error) {
	refs := r.Instances
	if r.All == (len(refs) > 0) {
		return api.AdoptedList{}, fault.New(fault.Invalid, "adopt: name instances, or all of them")
	}
	if r.All {
		refs = []string{""}
	}
	out := api.AdoptedList{Instances: []host.Adopted{}}
	var errs []error
	for _, ref := range refs {
		list, err := s.a.host.Adopt(ctx, ref)
		out.Instances = append(out.Instances, list...)
		if len(list) == 0 {
			// What failed for a guest stands in its own row.
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// List implements api.Instances.
func (s instanceService) List(ctx context.Context, hidden bool) ([]api.Instance, error) {
	look := s.a.host.List
	if hidden {
		look = s.a.host.ListHidden
	}
	list, err := look(ctx)
	if list == nil {
		list = []api.Instance{}
	}
	stands := s.a.standing(ctx)
	for i := range list {
		stands.tell(&list[i])
	}
	return list, err
}

// Show implements api.Instances.
func (s instanceService) Show(ctx context.Context, ref string) (api.InstanceDetail, error) {
	in, err := s.a.host.Show(ctx, ref)
	if err != nil {
		return api.InstanceDetail{}, err
	}
	s.a.standing(ctx).tell(&in)
	out := api.InstanceDetail{Instance: in, Remarks: s.a.host.Remarks(ctx, in.UUID), Allocations: []api.Allocation{}}
	if held, err := s.a.held(ctx, in.UUID); err != nil {
		out.AllocationsError = err.Error()
	} else if held != nil {
		out.Allocations = held
	}
	return out, nil
}

// Start implements api.Instances.
func (s instanceService) Start(ctx context.Context, ref string, o api.StartInstance) (api.Instance, error) {
	if o.ConfirmOwnership {
		if err := s.a.host.ConfirmByHand(ctx, ref, o.Because, o.By); err != nil {
			return api.Instance{}, err
		}
	}
	if err := s.a.host.Start(ctx, ref, false); err != nil {
		return api.Instance{}, err
	}
	return s.a.host.Show(ctx, ref)
}

// Stop implements api.Instances.
func (s instanceService) Stop(ctx context.Context, ref string, o api.StopInstance) (api.Instance, error) {
	if err := s.a.host.Stop(ctx, ref, o); err != nil {
		return api.Instance{}, err
	}
	return s.a.host.Show(ctx, ref)
}

// Delete implements api.Instances.
func (s instanceService) Delete(ctx context.Context, ref string, o api.DeleteInstance) (api.Deleted, error) {
	return s.a.host.Delete(ctx, ref, o)
}

type claimService struct{ a *Agent }

// List implements api.Claims.
func (s claimService) List(context.Context) ([]api.Claim, error) {
	out := []api.Claim{}
	for _, c := range s.a.tracker.List() {
		out = append(out, s.view(c))
	}
	return out, nil
}

// Show implements api.Claims.
func (s claimService) Show(_ context.Context, ref string) (api.Claim, error) {
	c, err := s.find(ref)
	if err != nil {
		return api.Claim{}, err
	}
	return s.view(c), nil
}

// Explain implements api.Claims.
func (s claimService) Explain(_ context.Context, ref string) (api.Explanation, error) {
	c, err := s.find(ref)
	if err != nil {
		return api.Explanation{}, err
	}
	return s.a.explain(c), nil
}

// find gives the claim that ref names.
func (s claimService) find(ref string) (claims.Claim, error) {
	if c, ok := s.a.tracker.Get(ref); ok {
		return c, nil
	}
	uuid := ref
	if inst, ok := s.a.tracker.InstanceByName(ref); ok {
		uuid = inst.UUID
	}
	if list := s.a.tracker.ByInstance(uuid); len(list) > 0 {
		return list[0], nil
	}
	for _, c := range s.a.tracker.List() {
		// The short form that lists print.
		if len(ref) >= 8 && len(c.ID) > len(ref) && c.ID[:len(ref)] == ref {
			return c, nil
		}
	}
	return claims.Claim{}, fault.New(fault.NotFound, "host %s has no claim %s, and none of an instance of that name", s.a.name, ref)
}

func (s claimService) view(c claims.Claim) api.Claim {
	out := api.Claim{
		ID: c.ID, Kind: string(c.Owner.Kind), State: string(c.State), Instance: c.Owner.Instance, Migration: c.Owner.Migration,
		Attempt: c.Owner.Attempt, Resources: c.Resources, Forced: c.Forced, ByHand: c.ByHand, CreatedAt: c.CreatedAt,
		Topology: c.Topology, PCI: c.PCI, Assignment: c.Assignment,
	}
	if inst, ok := s.a.tracker.Instance(c.Owner.Instance); ok {
		out.Name = inst.Name
	}
	if c.Lease != nil {
		out.Lease = c.Lease.Length
		if boot := s.a.rt.Boot(); boot.ID == c.Lease.Until.ID {
			out.ExpiresIn = c.Lease.Until.Since - boot.Since
		}
	}
	for _, w := range s.a.host.Waiting() {
		if c.Owner.Migration == w.Migration && c.Owner.Attempt == w.Attempt {
			out.WaitsFor = w.For
		}
	}
	if m := c.Context; m != nil {
		wire := host.WireContext(*m)
		out.Context = &wire
	}
	return out
}

// parties answers from the ledger which hosts a migration is between, and which conducts it.
type parties struct{ tracker *claims.Tracker }

// PartiesOf answers by a host's ledger.
func PartiesOf(t *claims.Tracker) api.Parties { return parties{t} }

// Parties implements api.Parties.
func (p parties) Parties(migration, instance string) (api.Between, bool) {
	if migration == "" {
		for _, c := range p.tracker.Contexts() {
			if c.Instance == instance {
				migration = c.Migration
				break
			}
		}
	}
	b, known := p.sides(migration)
	if !known {
		return api.Between{}, false
	}
	if b.Conductor = p.tracker.Conductor(migration); b.Conductor == "" {
		b.Conductor = b.Source
	}
	return b, true
}

// sides gives the two hosts of a migration, and whose it is.
func (p parties) sides(migration string) (b api.Between, known bool) {
	between := func(source, destination, instance string) (api.Between, bool) {
		return api.Between{Source: source, Destination: destination, Instance: instance}, true
	}
	if migration == "" {
		return b, false
	}
	if c, ok := p.tracker.Context(migration); ok {
		return between(c.Source, c.Destination, c.Instance)
	}
	for _, c := range p.tracker.ByMigration(migration) {
		if c.Context != nil {
			return between(c.Context.Source, c.Context.Destination, c.Context.Instance)
		}
	}
	// What is left of it when claim and context are gone. A move that was reverted has
	// left with one attempt and come back with a later one: the first tells which
	// host is its source.
	left, hasLeft := p.tracker.Left(migration)
	came, hasCome := p.tracker.Came(migration)
	if hasLeft && !(hasCome && came.Attempt < left.Attempt) {
		return between(left.From, left.To, left.Instance)
	}
	if hasCome {
		return between(came.From, came.To, came.Instance)
	}
	if peer, guest := p.tracker.Peer(migration); peer != "" {
		return between(p.tracker.Host(), peer, guest)
	}
	// A rebuilt ledger has nothing of it but where the guest is by it.
	for _, i := range p.tracker.Instances() {
		if k := i.Token; k.Migration == migration && k.State == claims.TokenSurrendered {
			return between(p.tracker.Host(), k.Holder, i.UUID)
		}
	}
	return b, false
}
