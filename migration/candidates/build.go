package candidates

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/placementclient"
	"berth/topology"
)

// Build writes a wish down as requests; of each SameDisk one stands before the
// others. The error is fault.Invalid, with every reason, for extra specs that
// nobody could ask.
func Build(w Wish) ([]Request, error) {
	specs, err := readSpecs(w.ExtraSpecs)
	if err != nil {
		return nil, err
	}
	if needsThreads(w.Topology) && !slices.Contains(specs.required, placementclient.TraitHWCPUHyperthreading) {
		// As Nova: only siblings that share a core will do, so there must be some.
		specs.required = append(specs.required, placementclient.TraitHWCPUHyperthreading)
	}
	ways, left := devicesOf(w.Devices, w.Counted)
	var out []Request
	for _, devices := range ways {
		b := builder{wish: w, specs: specs, devices: devices, left: left}
		out = append(out, b.requests()...)
	}
	slices.SortStableFunc(out, func(a, b Request) int {
		switch {
		case a.SameDisk == b.SameDisk:
			return 0
		case a.SameDisk:
			return -1
		}
		return 1
	})
	return out, nil
}

// needsThreads reports whether a guest wants siblings that share a core. One that
// wants whole cores (isolate) asks for no trait: Nova forbids hosts with siblings to
// it, here they are kept idle.
func needsThreads(t *topology.GuestTopology) bool {
	return t != nil && slices.ContainsFunc(t.Cells, func(c topology.GuestCell) bool { return c.ThreadPolicy == topology.ThreadPolicyRequire })
}

// builder writes the requests for one choice of devices.
type builder struct {
	wish    Wish
	specs   asked
	devices []device
	left    []string
}

func (b *builder) requests() []Request {
	// An operator's own groups that name CPUs or memory say where these come from;
	// cells are not put beside them.
	cells := b.wish.Topology != nil && !b.named(placementclient.ClassVCPU, placementclient.ClassPCPU, placementclient.ClassMemoryMB)
	var out []Request
	switch {
	case cells:
		out = append(out, b.sums(Flat), b.cells())
	case len(b.specs.required) > 0:
		// The traits of a flat host are those of the provider of its resources, of
		// a nested one those of its root, which gives none.
		out = append(out, b.sums(Either), b.rooted())
	default:
		out = append(out, b.sums(Either))
	}
	if b.wish.Topology == nil && !b.named(placementclient.ClassVCPU, placementclient.ClassMemoryMB) && b.wish.Resources.VCPUs > 0 {
		out = append(out, b.spread())
	}
	if b.wish.Disk.Provider != "" && len(b.wish.Disk.Aggregates) > 0 && b.wish.Resources.DiskGB > 0 {
		for _, r := range slices.Clone(out) {
			out = append(out, b.sameDisk(r))
		}
	}
	for i := range out {
		rootless(&out[i])
	}
	return out
}

// rootless makes conditions on an unnumbered group that asks for nothing, which
// Placement refuses, into conditions on the root.
func rootless(r *Request) {
	if len(r.Resources) > 0 {
		return
	}
	for _, trait := range r.Required {
		if !slices.Contains(r.RootRequired, trait) && !slices.Contains(r.HostRequired, trait) {
			r.RootRequired = append(r.RootRequired, trait)
		}
	}
	r.Required, r.Forbidden, r.MemberOf = nil, nil, nil
}

// named reports whether a group of the flavor's asks for one of the classes.
func (b *builder) named(classes ...string) bool {
	for _, g := range b.specs.groups {
		for class := range g.Resources {
			if slices.Contains(classes, class) {
				return true
			}
		}
	}
	return false
}

// amounts are what the unnumbered group asks for: the claim's, without what the
// flavor's own groups take of them, and what no claim counts.
func (b *builder) amounts() placementclient.Resources {
	r := b.wish.Resources
	out := placementclient.Resources{
		placementclient.ClassVCPU: int64(r.VCPUs), placementclient.ClassPCPU: int64(r.PCPUs),
		placementclient.ClassMemoryMB: r.MemoryMB, placementclient.ClassDiskGB: r.DiskGB,
	}
	for _, g := range b.specs.groups {
		for class, n := range g.Resources {
			if _, is := out[class]; is {
				out[class] -= n
			}
		}
	}
	maps.Copy(out, b.specs.resources)
	maps.DeleteFunc(out, func(_ string, n int64) bool { return n <= 0 })
	return out
}

// start is a request with the groups that all have: the flavor's own and the
// devices'.
func (b *builder) start(shape Shape) Request {
	r := Request{Shape: shape, Left: slices.Clone(b.left)}
	r.Groups = maps.Clone(b.specs.groups)
	for i, d := range b.devices {
		r.Groups[deviceSuffix(i)] = placementclient.RequestGroup{Resources: placementclient.Resources{d.class: 1}, Required: d.traits}
	}
	r.RootForbidden = append(slices.Clone(b.specs.forbidden), placementclient.TraitComputeStatusDisabled)
	return r
}

func deviceSuffix(i int) string { return fmt.Sprintf("%s%d", suffixDevice, i) }

// end adds what depends on the groups.
func (b *builder) end(r Request, isolate bool) Request {
	r.Limit = limit
	if len(r.Groups) > 1 {
		r.GroupPolicy = "none"
		if isolate {
			r.GroupPolicy = "isolate"
		}
	}
	if b.specs.policy != "" && len(r.Groups) > 0 {
		r.GroupPolicy = b.specs.policy
	}
	return r
}

// sums asks for amounts from anywhere on a host; for Flat not from its cells, else
// not from pools of huge pages, of which a guest that floats has none.
func (b *builder) sums(shape Shape) Request {
	r := b.start(shape)
	r.Resources = b.amounts()
	r.Required, r.Forbidden = slices.Clone(b.specs.required), slices.Clone(b.specs.forbidden)
	switch {
	case shape == Flat:
		r.Forbidden = append(r.Forbidden, placementclient.TraitHWNUMARoot)
	case b.wish.Topology == nil:
		r.Forbidden = append(r.Forbidden, placementclient.TraitPageSizeLarge)
	}
	return b.end(r, false)
}

// rooted asks for amounts of a host whose root has the traits.
func (b *builder) rooted() Request {
	r := b.start(Nested)
	r.Resources = b.amounts()
	b.rootTraits(&r)
	if b.wish.Topology == nil {
		r.Forbidden = append(r.Forbidden, placementclient.TraitPageSizeLarge)
	}
	return b.end(r, false)
}

// spread asks for hosts of which a cell has a little memory, for a guest that
// floats. CPUs are not asked for: they may be left in cells that have no memory.
func (b *builder) spread() Request {
	r := b.start(Nested)
	r.Resources = b.amounts()
	r.Spread = placementclient.Resources{}
	for _, class := range []string{placementclient.ClassVCPU, placementclient.ClassMemoryMB} {
		r.Spread[class] = r.Resources[class]
		delete(r.Resources, class)
	}
	b.rootTraits(&r)
	r.Groups[suffixMemory+"0"] = placementclient.RequestGroup{
		Resources: placementclient.Resources{placementclient.ClassMemoryMB: 1}, Required: []string{placementclient.TraitPageSizeSmall},
	}
	return b.end(r, false)
}

// rootTraits holds the flavor's traits against the root of a nested host. Those of
// storage stay with who gives the disk, which may be a sharing provider; beside
// classes that children give, such as VGPU, a trait may be a child's too.
func (b *builder) rootTraits(r *Request) {
	for _, trait := range b.specs.required {
		if ofStorage(trait) && r.Resources[placementclient.ClassDiskGB] > 0 {
			r.Required = append(r.Required, trait)
			continue
		}
		if len(b.specs.resources) > 0 {
			r.HostRequired = append(r.HostRequired, trait)
			continue
		}
		r.RootRequired = append(r.RootRequired, trait)
	}
	if len(r.Resources) > 0 {
		r.Forbidden = slices.Clone(b.specs.forbidden)
	}
}

// cells asks a nested host for each guest cell's part from one of its cells.
func (b *builder) cells() Request {
	t := b.wish.Topology
	r := b.start(Nested)
	r.Resources = b.amounts()
	for _, class := range []string{placementclient.ClassVCPU, placementclient.ClassPCPU, placementclient.ClassMemoryMB} {
		delete(r.Resources, class) // the cells'
	}
	b.rootTraits(&r)
	chosen := largest(t)
	if n := len(t.Cells) - len(chosen); n > 0 {
		r.Left = append(r.Left, fmt.Sprintf("%d of %d guest cells: only the %d largest are asked for by groups", n, len(t.Cells), len(chosen)))
	}
	apart := true
	for _, d := range b.devices {
		apart = apart && d.apart
	}
	for _, i := range chosen {
		cpus, memory := cellGroups(t, i)
		cell, mem := fmt.Sprintf("%s%d", suffixCell, i), fmt.Sprintf("%s%d", suffixMemory, i)
		r.Groups[cell], r.Groups[mem] = cpus, memory
		tied := []string{cell, mem}
		for j, d := range b.devices {
			// With several cells any of them will do, which no request can say.
			if d.affinity == topology.AffinityRequired && len(t.Cells) == 1 {
				tied = append(tied, deviceSuffix(j))
			}
		}
		r.SameSubtree = append(r.SameSubtree, tied)
	}
	// Guest cells are on different cells of the host. Were devices that one provider
	// has several of held to that too, hosts with enough of them would be missed.
	return b.end(r, len(t.Cells) > 1 && apart && len(b.specs.groups) == 0)
}

// largest are the cells that are asked for, in order: those with most memory, then
// with most vCPUs, since where these do not fit nothing does.
func largest(t *topology.GuestTopology) []int {
	var all []int
	for i := range t.Cells {
		all = append(all, i)
	}
	slices.SortStableFunc(all, func(i, j int) int {
		a, b := t.Cells[i], t.Cells[j]
		if a.MemoryMB != b.MemoryMB {
			return int(b.MemoryMB - a.MemoryMB)
		}
		return b.VCPUs().Len() - a.VCPUs().Len()
	})
	all = all[:min(len(all), maxCells)]
	slices.Sort(all)
	return all
}

// cellGroups are what a guest cell asks of a cell's own provider, and of the one
// with its pages.
func cellGroups(t *topology.GuestTopology, i int) (cpus, memory placementclient.RequestGroup) {
	c := t.Cells[i]
	pinned := int64(c.DedicatedVCPUs.Len())
	if i == 0 && t.Emulator == topology.EmulatorIsolate {
		pinned++
	}
	cpus = placementclient.RequestGroup{
		Resources: placementclient.Resources{placementclient.ClassVCPU: int64(c.SharedVCPUs.Len()), placementclient.ClassPCPU: pinned},
		Required:  []string{placementclient.TraitHWNUMARoot},
	}
	maps.DeleteFunc(cpus.Resources, func(_ string, n int64) bool { return n == 0 })
	memory = placementclient.RequestGroup{Resources: placementclient.Resources{placementclient.ClassMemoryMB: c.MemoryMB}}
	if trait := pageTrait(c.PageSize); trait != "" {
		memory.Required = []string{trait}
	}
	return cpus, memory
}

// pageTrait is the trait of memory that a request for pages takes; "" for any.
func pageTrait(p topology.PageRequest) string {
	switch p {
	case topology.PagesAny:
		return ""
	case topology.PagesDefault, topology.PagesSmall:
		return placementclient.TraitPageSizeSmall
	case topology.PagesLarge:
		return placementclient.TraitPageSizeLarge
	}
	return placementclient.TraitPageSize(int64(p))
}

// sameDisk is the request without the disk and what is asked of it, of hosts that
// share the one there is.
func (b *builder) sameDisk(r Request) Request {
	r.SameDisk = true
	r.Resources = maps.Clone(r.Resources)
	delete(r.Resources, placementclient.ClassDiskGB)
	r.Required = slices.DeleteFunc(slices.Clone(r.Required), ofStorage)
	if r.Shape != Nested {
		r.MemberOf = b.wish.Disk.Aggregates // of nested ones only the root is a member
	}
	return r
}

func ofStorage(trait string) bool { return strings.HasPrefix(trait, "STORAGE_") }
