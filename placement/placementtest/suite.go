package placementtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"berth/internal/fault"
	pc "berth/placementclient"
)

// ClientSuite is what the client must get from any Placement. It makes providers
// of its own and removes them, so that it can run against a server in use.
func ClientSuite(t *testing.T, s Server) {
	for _, v := range []pc.Microversion{28, 33, 37, 39} {
		t.Run("1."+v.String()[2:], func(t *testing.T) {
			for _, c := range []struct {
				name string
				run  func(*testing.T, *pc.Client)
			}{
				{"tree", suiteTree}, {"inventories", suiteInventories}, {"traits", suiteTraits},
				{"aggregates", suiteAggregates}, {"claims", suiteClaims}, {"refusals", suiteRefusals},
				{"move", suiteMove}, {"orphan", suiteOrphan}, {"candidates", suiteCandidates},
			} {
				t.Run(c.name, func(t *testing.T) { c.run(t, s.Client(t, v)) })
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind fault.Kind, conflict pc.Conflict) {
	t.Helper()
	if fault.KindOf(err) != kind || pc.ConflictOf(err) != conflict {
		t.Errorf("got %v (%s, %s), want %s, %s", err, fault.KindOf(err), pc.ConflictOf(err), kind, conflict)
	}
}

func same(t *testing.T, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// makeProvider makes one that goes away with the test.
func makeProvider(t *testing.T, c *pc.Client, parent string, inv map[string]pc.Inventory) pc.ResourceProvider {
	t.Helper()
	id := uuid.NewString()
	p, err := c.CreateProvider(t.Context(), pc.NewProvider{UUID: id, Name: "suite-" + id, ParentProviderUUID: parent})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if a, err := c.ProviderAllocations(ctx, id); err == nil {
			for consumer := range a.Allocations {
				_ = c.DeleteAllocations(ctx, consumer) // the provider's own delete tells when this failed
			}
		}
		if err := c.DeleteProvider(ctx, id); err != nil && !errors.Is(err, fault.NotFound) {
			t.Error(err)
		}
	})
	if inv != nil {
		got, err := c.PutInventories(t.Context(), id, pc.Inventories{Generation: p.Generation, Inventories: inv})
		must(t, err)
		p.Generation = got.Generation
	}
	return p
}

func inventory(total int64) pc.Inventory {
	return pc.Inventory{Total: total, MaxUnit: total}.WithDefaults()
}

func holding(rp string, r pc.Resources, kind string, generation *int) pc.Allocations {
	return pc.Allocations{Allocations: map[string]pc.Resources{rp: r}, ProjectID: "suite-project", UserID: "suite-user",
		ConsumerType: kind, ConsumerGeneration: generation}
}

func suiteTree(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	root := makeProvider(t, c, "", nil)
	child := makeProvider(t, c, root.UUID, nil)
	same(t, pc.ResourceProvider{UUID: child.UUID, Name: child.Name, ParentProviderUUID: root.UUID, RootProviderUUID: root.UUID}, child)
	got, err := c.Provider(ctx, child.UUID)
	must(t, err)
	same(t, child, got)
	got, err = c.ProviderByName(ctx, root.Name)
	must(t, err)
	same(t, root, got)
	tree, err := c.ProvidersInTree(ctx, child.UUID)
	must(t, err)
	want := []pc.ResourceProvider{root, child}
	slices.SortFunc(want, func(a, b pc.ResourceProvider) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	same(t, want, tree)

	_, err = c.CreateProvider(ctx, pc.NewProvider{UUID: uuid.NewString(), Name: root.Name})
	wantKind(t, err, fault.Exists, pc.ConflictExists)
	_, err = c.CreateProvider(ctx, pc.NewProvider{UUID: root.UUID, Name: "suite-" + uuid.NewString()})
	wantKind(t, err, fault.Exists, pc.ConflictExists)
	_, err = c.CreateProvider(ctx, pc.NewProvider{UUID: uuid.NewString(), Name: "suite-" + uuid.NewString(), ParentProviderUUID: uuid.NewString()})
	wantKind(t, err, fault.Invalid, "")
	wantKind(t, c.DeleteProvider(ctx, root.UUID), fault.Busy, pc.ConflictHasChildren)
	renamed, err := c.RenameProvider(ctx, child.UUID, child.Name+"-b")
	must(t, err)
	same(t, child.Name+"-b", renamed.Name)
	same(t, root.UUID, renamed.ParentProviderUUID)
	must(t, c.DeleteProvider(ctx, child.UUID))
	_, err = c.Provider(ctx, child.UUID)
	wantKind(t, err, fault.NotFound, "")
	wantKind(t, c.DeleteProvider(ctx, child.UUID), fault.NotFound, "")
	_, err = c.ProviderByName(ctx, child.Name)
	wantKind(t, err, fault.NotFound, "")
	tree, err = c.ProvidersInTree(ctx, child.UUID)
	must(t, err)
	same(t, 0, len(tree))
}

func suiteInventories(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	p := makeProvider(t, c, "", nil)
	want := map[string]pc.Inventory{
		pc.ClassVCPU:     {Total: 16, Reserved: 2, MinUnit: 1, MaxUnit: 14, StepSize: 1, AllocationRatio: 4},
		pc.ClassMemoryMB: inventory(32768),
	}
	got, err := c.PutInventories(ctx, p.UUID, pc.Inventories{Inventories: want})
	must(t, err)
	same(t, pc.Inventories{Generation: 1, Inventories: want}, got)
	got, err = c.Inventories(ctx, p.UUID)
	must(t, err)
	same(t, pc.Inventories{Generation: 1, Inventories: want}, got)
	_, err = c.PutInventories(ctx, p.UUID, pc.Inventories{Inventories: want})
	wantKind(t, err, fault.GenerationConflict, pc.ConflictProviderGeneration)

	// Defaults that are left out are filled in as Placement does.
	got, err = c.PutInventories(ctx, p.UUID, pc.Inventories{Generation: 1, Inventories: map[string]pc.Inventory{pc.ClassDiskGB: {Total: 10}}})
	must(t, err)
	same(t, pc.Inventory{Total: 10}.WithDefaults(), got.Inventories[pc.ClassDiskGB])

	_, err = c.PutInventories(ctx, p.UUID, pc.Inventories{Generation: 2, Inventories: map[string]pc.Inventory{"CUSTOM_SUITE_NOPE": {Total: 1}}})
	wantKind(t, err, fault.Invalid, "")
	must(t, c.EnsureResourceClass(ctx, "CUSTOM_SUITE"))
	must(t, c.EnsureResourceClass(ctx, "CUSTOM_SUITE"))
	_, err = c.PutInventories(ctx, p.UUID, pc.Inventories{Generation: 2, Inventories: map[string]pc.Inventory{"CUSTOM_SUITE": {Total: 1}}})
	must(t, err)

	must(t, c.PutAllocations(ctx, uuid.NewString(), holding(p.UUID, pc.Resources{"CUSTOM_SUITE": 1}, pc.ConsumerInstance, nil)))
	_, err = c.PutInventories(ctx, p.UUID, pc.Inventories{Generation: 4})
	wantKind(t, err, fault.Busy, pc.ConflictInventoryInUse)
	wantKind(t, c.DeleteProvider(ctx, p.UUID), fault.Busy, pc.ConflictProviderInUse)
	_, err = c.Inventories(ctx, uuid.NewString())
	wantKind(t, err, fault.NotFound, "")
}

func suiteTraits(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	p := makeProvider(t, c, "", nil)
	must(t, c.EnsureTrait(ctx, "CUSTOM_SUITE"))
	must(t, c.EnsureTrait(ctx, "CUSTOM_SUITE"))
	must(t, c.EnsureTrait(ctx, pc.TraitHWNUMARoot))
	wantKind(t, c.EnsureTrait(ctx, "HW_SUITE_NOPE"), fault.NotFound, "")
	known, err := c.KnownTraits(ctx, []string{"CUSTOM_SUITE", "HW_SUITE_NOPE", pc.TraitHWNUMARoot})
	must(t, err)
	same(t, []string{"CUSTOM_SUITE", pc.TraitHWNUMARoot}, known)

	got, err := c.PutTraits(ctx, p.UUID, pc.Traits{Traits: []string{pc.TraitHWNUMARoot, "CUSTOM_SUITE", "CUSTOM_SUITE"}})
	must(t, err)
	same(t, pc.Traits{Generation: 1, Traits: []string{"CUSTOM_SUITE", pc.TraitHWNUMARoot}}, got)
	got, err = c.Traits(ctx, p.UUID)
	must(t, err)
	same(t, pc.Traits{Generation: 1, Traits: []string{"CUSTOM_SUITE", pc.TraitHWNUMARoot}}, got)
	_, err = c.PutTraits(ctx, p.UUID, pc.Traits{})
	wantKind(t, err, fault.GenerationConflict, pc.ConflictProviderGeneration)
	_, err = c.PutTraits(ctx, p.UUID, pc.Traits{Generation: 1, Traits: []string{"CUSTOM_SUITE_NOPE"}})
	wantKind(t, err, fault.Invalid, "")
	// The one write that does not raise the generation when nothing changes.
	got, err = c.PutTraits(ctx, p.UUID, pc.Traits{Generation: 1, Traits: []string{"CUSTOM_SUITE", pc.TraitHWNUMARoot}})
	must(t, err)
	same(t, 1, got.Generation)
	got, err = c.PutTraits(ctx, p.UUID, pc.Traits{Generation: 1})
	must(t, err)
	same(t, 2, got.Generation)
}

func suiteAggregates(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	p := makeProvider(t, c, "", nil)
	agg := uuid.NewString()
	got, err := c.PutAggregates(ctx, p.UUID, pc.Aggregates{Aggregates: []string{agg}})
	must(t, err)
	same(t, pc.Aggregates{Generation: 1, Aggregates: []string{agg}}, got)
	got, err = c.Aggregates(ctx, p.UUID)
	must(t, err)
	same(t, pc.Aggregates{Generation: 1, Aggregates: []string{agg}}, got)
	_, err = c.PutAggregates(ctx, p.UUID, pc.Aggregates{})
	wantKind(t, err, fault.GenerationConflict, pc.ConflictProviderGeneration)
	found, err := c.Providers(ctx, pc.ProviderFilter{MemberOf: []string{agg, uuid.NewString()}})
	must(t, err)
	p.Generation = 1
	same(t, []pc.ResourceProvider{p}, found)
	_, err = c.PutAggregates(ctx, p.UUID, pc.Aggregates{Generation: 1})
	must(t, err)
}

func suiteClaims(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	v, err := c.Version(ctx)
	must(t, err)
	p := makeProvider(t, c, "", map[string]pc.Inventory{pc.ClassVCPU: inventory(8), pc.ClassMemoryMB: inventory(4096)})
	id := uuid.NewString()
	got, err := c.Allocations(ctx, id)
	must(t, err)
	if got.Exists() || len(got.Allocations) != 0 {
		t.Errorf("an unknown consumer holds %+v", got)
	}
	a := holding(p.UUID, pc.Resources{pc.ClassVCPU: 2, pc.ClassMemoryMB: 1024}, pc.ConsumerInstance, nil)
	must(t, c.PutAllocations(ctx, id, a))
	want := a.Clone()
	want.ConsumerGeneration = pc.Generation(1)
	if v < 38 {
		want.ConsumerType = ""
	}
	got, err = c.Allocations(ctx, id)
	must(t, err)
	same(t, want, got)

	wantKind(t, c.PutAllocations(ctx, id, a), fault.GenerationConflict, pc.ConflictConsumerGeneration)
	a.ConsumerGeneration = pc.Generation(7)
	wantKind(t, c.PutAllocations(ctx, id, a), fault.GenerationConflict, pc.ConflictConsumerGeneration)
	a.ConsumerGeneration = pc.Generation(1)
	a.Allocations[p.UUID][pc.ClassVCPU] = 3
	must(t, c.PutAllocations(ctx, id, a))

	usages, err := c.Usages(ctx, p.UUID)
	must(t, err)
	same(t, pc.Usages{Generation: 3, Usages: pc.Resources{pc.ClassVCPU: 3, pc.ClassMemoryMB: 1024}}, usages)
	held, err := c.ProviderAllocations(ctx, p.UUID)
	must(t, err)
	same(t, pc.ProviderAllocations{Generation: 3, Allocations: map[string]pc.Resources{id: a.Allocations[p.UUID]},
		ConsumerGenerations: map[string]int{id: 2}}, held)

	a.Allocations, a.ConsumerGeneration = nil, pc.Generation(2)
	must(t, c.PutAllocations(ctx, id, a))
	got, err = c.Allocations(ctx, id)
	must(t, err)
	same(t, false, got.Exists())
	wantKind(t, c.DeleteAllocations(ctx, id), fault.NotFound, "")
}

func suiteRefusals(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	p := makeProvider(t, c, "", map[string]pc.Inventory{
		pc.ClassVCPU:     {Total: 8, MaxUnit: 4},
		pc.ClassMemoryMB: {Total: 4096, MinUnit: 128, StepSize: 128},
	})
	must(t, c.PutAllocations(ctx, uuid.NewString(), holding(p.UUID, pc.Resources{pc.ClassVCPU: 4}, pc.ConsumerInstance, nil)))
	must(t, c.PutAllocations(ctx, uuid.NewString(), holding(p.UUID, pc.Resources{pc.ClassVCPU: 3}, pc.ConsumerInstance, nil)))
	for _, r := range []struct {
		rp       string
		r        pc.Resources
		kind     fault.Kind
		conflict pc.Conflict
	}{
		{p.UUID, pc.Resources{pc.ClassVCPU: 2}, fault.DoesNotFit, pc.ConflictCapacity},
		{p.UUID, pc.Resources{pc.ClassVCPU: 5}, fault.DoesNotFit, pc.ConflictUnits},
		{p.UUID, pc.Resources{pc.ClassMemoryMB: 64}, fault.DoesNotFit, pc.ConflictUnits},
		{p.UUID, pc.Resources{pc.ClassMemoryMB: 200}, fault.DoesNotFit, pc.ConflictUnits},
		{p.UUID, pc.Resources{pc.ClassVGPU: 1}, fault.DoesNotFit, pc.ConflictNoInventory},
		{p.UUID, pc.Resources{"CUSTOM_SUITE_NOPE": 1}, fault.Invalid, ""},
		{p.UUID, pc.Resources{pc.ClassVCPU: 0}, fault.Invalid, ""},
	} {
		id := uuid.NewString()
		err := c.PutAllocations(ctx, id, holding(r.rp, r.r, pc.ConsumerInstance, nil))
		wantKind(t, err, r.kind, r.conflict)
		if r.kind == fault.DoesNotFit && len(fault.ReasonsOf(err)) != 1 {
			t.Errorf("%v has reasons %v", err, fault.ReasonsOf(err))
		}
		got, err := c.Allocations(ctx, id)
		must(t, err)
		same(t, false, got.Exists())
	}
}

func suiteMove(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	inv := map[string]pc.Inventory{pc.ClassVCPU: inventory(4), pc.ClassMemoryMB: inventory(4096)}
	src, dst := makeProvider(t, c, "", inv), makeProvider(t, c, "", inv)
	r := pc.Resources{pc.ClassVCPU: 2, pc.ClassMemoryMB: 1024}
	instance, migration := uuid.NewString(), uuid.NewString()
	must(t, c.PutAllocations(ctx, instance, holding(src.UUID, r, pc.ConsumerInstance, nil)))
	swap := map[string]pc.Allocations{
		migration: holding(src.UUID, r, pc.ConsumerMigration, nil),
		instance:  holding(dst.UUID, r, pc.ConsumerInstance, pc.Generation(1)),
	}
	must(t, c.PostAllocations(ctx, swap))
	where := func(consumer string) []string {
		a, err := c.Allocations(ctx, consumer)
		must(t, err)
		return pc.Candidate{Allocations: a.Allocations}.Providers()
	}
	same(t, []string{src.UUID}, where(migration))
	same(t, []string{dst.UUID}, where(instance))
	wantKind(t, c.PostAllocations(ctx, swap), fault.GenerationConflict, pc.ConflictConsumerGeneration)

	// Back, in one call; one wrong generation and nothing happens.
	empty := holding(src.UUID, r, pc.ConsumerMigration, pc.Generation(1))
	empty.Allocations = nil
	back := map[string]pc.Allocations{migration: empty, instance: holding(src.UUID, r, pc.ConsumerInstance, pc.Generation(1))}
	wantKind(t, c.PostAllocations(ctx, back), fault.GenerationConflict, pc.ConflictConsumerGeneration)
	same(t, []string{src.UUID}, where(migration))
	back[instance] = holding(src.UUID, r, pc.ConsumerInstance, pc.Generation(2))
	must(t, c.PostAllocations(ctx, back))
	same(t, 0, len(where(migration)))
	same(t, []string{src.UUID}, where(instance))

	// Again, and confirmed.
	swap[instance] = holding(dst.UUID, r, pc.ConsumerInstance, pc.Generation(3))
	must(t, c.PostAllocations(ctx, swap))
	must(t, c.DeleteAllocations(ctx, migration))
	usages, err := c.Usages(ctx, src.UUID)
	must(t, err)
	same(t, pc.Resources{pc.ClassVCPU: 0, pc.ClassMemoryMB: 0}, usages.Usages)
	usages, err = c.Usages(ctx, dst.UUID)
	must(t, err)
	same(t, r, usages.Usages)
}

func suiteOrphan(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	p := makeProvider(t, c, "", map[string]pc.Inventory{pc.ClassVCPU: inventory(8)})
	one := pc.Resources{pc.ClassVCPU: 1}
	instance, migration := uuid.NewString(), uuid.NewString()
	must(t, c.PutAllocations(ctx, instance, holding(p.UUID, one, pc.ConsumerInstance, nil)))
	swap := map[string]pc.Allocations{
		migration: holding(p.UUID, one, pc.ConsumerMigration, nil),
		instance:  holding(uuid.NewString(), one, pc.ConsumerInstance, pc.Generation(1)),
	}
	wantKind(t, c.PostAllocations(ctx, swap), fault.Invalid, "") // leaves the migration behind, unseen
	swap[instance] = holding(p.UUID, pc.Resources{pc.ClassVCPU: 2}, pc.ConsumerInstance, pc.Generation(1))
	must(t, c.PostAllocations(ctx, swap))
	same(t, int64(1), c.Counters().Orphans)
	got, err := c.Allocations(ctx, migration)
	must(t, err)
	same(t, pc.Generation(1), got.ConsumerGeneration)
}

func suiteCandidates(t *testing.T, c *pc.Client) {
	ctx := t.Context()
	v, err := c.Version(ctx)
	must(t, err)
	must(t, c.EnsureTrait(ctx, "CUSTOM_SUITE"))
	p := makeProvider(t, c, "", map[string]pc.Inventory{pc.ClassVCPU: {Total: 8, AllocationRatio: 2}, pc.ClassMemoryMB: inventory(4096)})
	_, err = c.PutTraits(ctx, p.UUID, pc.Traits{Generation: 1, Traits: []string{"CUSTOM_SUITE"}})
	must(t, err)
	r := pc.Resources{pc.ClassVCPU: 2, pc.ClassMemoryMB: 1024}
	must(t, c.PutAllocations(ctx, uuid.NewString(), holding(p.UUID, pc.Resources{pc.ClassVCPU: 3}, pc.ConsumerInstance, nil)))
	ask := pc.CandidateRequest{RequestGroup: pc.RequestGroup{Resources: r, Required: []string{"CUSTOM_SUITE"}}}
	got, err := c.AllocationCandidates(ctx, ask)
	must(t, err)
	i := slices.IndexFunc(got.Candidates, func(k pc.Candidate) bool { return k.Allocations[p.UUID] != nil })
	if i < 0 {
		t.Fatalf("the provider is no candidate: %+v", got)
	}
	want := pc.Candidate{Allocations: map[string]pc.Resources{p.UUID: r}}
	if v >= 34 {
		want.Mappings = map[string][]string{"": {p.UUID}}
	}
	same(t, want, got.Candidates[i])
	summary := pc.ProviderSummary{
		Resources: map[string]pc.ResourceSummary{pc.ClassVCPU: {Capacity: 16, Used: 3}, pc.ClassMemoryMB: {Capacity: 4096}},
		Traits:    []string{"CUSTOM_SUITE"},
	}
	if v >= 29 {
		summary.RootProviderUUID = p.UUID
	}
	same(t, summary, got.Summaries[p.UUID])

	for name, none := range map[string]pc.CandidateRequest{
		"forbidden": {RequestGroup: pc.RequestGroup{Resources: r, Forbidden: []string{"CUSTOM_SUITE"}}},
		"too much":  {RequestGroup: pc.RequestGroup{Resources: pc.Resources{pc.ClassVCPU: 14}, Required: []string{"CUSTOM_SUITE"}}},
	} {
		got, err := c.AllocationCandidates(ctx, none)
		must(t, err)
		if slices.ContainsFunc(got.Candidates, func(k pc.Candidate) bool { return k.Allocations[p.UUID] != nil }) {
			t.Errorf("%s: the provider is a candidate", name)
		}
	}
	_, err = c.AllocationCandidates(ctx, pc.CandidateRequest{RequestGroup: pc.RequestGroup{Resources: pc.Resources{"CUSTOM_SUITE_NOPE": 1}}})
	wantKind(t, err, fault.Invalid, "")
	_, err = c.PutTraits(ctx, p.UUID, pc.Traits{Generation: 3})
	must(t, err)
}
