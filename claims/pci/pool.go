package pci

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"berth/topology"
)

// Pool is a number of like functions that are free: claims/fit's Pool with the
// addresses behind its count.
type Pool struct {
	Vendor, Product string // four hexadecimal digits
	Type            topology.PCIType
	Cell            topology.CellID // UnknownCell when unknown
	Tags            map[string]string
	Count           int // len(Addresses), at least 1

	// Addresses are in the order in which they are best taken. VFs come from the PF
	// of which most are taken already, until it is full, so that whole PFs stay
	// free; everything else comes in ascending address.
	Addresses []topology.PCIAddress

	// Excludes are the indexes of pools that cannot be used beside this one, a
	// PF's and those of its VFs; ascending, and said on both sides.
	Excludes []int
}

// Pools gives the free functions of the devices in pools, in an order that
// depends on nothing but its arguments: like pools stand together, those of the
// most used PF first.
//
// taken names the guest that has each taken function, also functions that are no
// Device (of guests that Berth did not start). A guest's own functions do not
// bar it from the rest of their IOMMU group; they are not free to it either:
// whoever wants a guest's old functions to count as free for itself, as in a
// resize on the same host, leaves them out of taken. guest "" is a new one.
func Pools(devices []Device, taken map[topology.PCIAddress]string, guest string) []Pool {
	u := usage{taken: taken, guest: guest, vfs: map[topology.PCIAddress]int{}}
	u.count(devices)
	var free []*Device
	freeVFs := map[topology.PCIAddress]int{} // PF → free VFs
	freePFs := map[topology.PCIAddress]bool{}
	for i := range devices {
		d := &devices[i]
		if !u.free(d) {
			continue
		}
		free = append(free, d)
		if d.Parent != nil {
			freeVFs[*d.Parent]++
		} else {
			freePFs[d.Address] = true
		}
	}
	// The order of taking is made first: pools keep it.
	slices.SortFunc(free, func(a, b *Device) int {
		return cmp.Or(cmp.Compare(u.vfsOf(b), u.vfsOf(a)), parentOrSelf(a).Compare(parentOrSelf(b)), a.Address.Compare(b.Address))
	})
	var pools []family
	for _, d := range free {
		pf := parentOrSelf(d)
		apart := d.Parent != nil && freePFs[pf] || d.Parent == nil && freeVFs[pf] > 0
		// Backwards: like functions follow each other. Without text for a key, since
		// this may run under the claim lock.
		i := len(pools) - 1
		for i >= 0 && !pools[i].holds(d, pf, apart) {
			i--
		}
		if i < 0 {
			i = len(pools)
			p := Pool{Vendor: d.Vendor, Product: d.Product, Type: d.Type, Cell: d.Cell, Tags: maps.Clone(d.Tags)}
			pools = append(pools, family{Pool: p, pf: pf, apart: apart})
		}
		pools[i].Addresses = append(pools[i].Addresses, d.Address)
		pools[i].Count++
	}
	slices.SortStableFunc(pools, family.compare)
	return exclude(pools)
}

// exclude names in each pool of a PF those of its VFs, and the other way round.
func exclude(pools []family) []Pool {
	pfs := map[topology.PCIAddress]int{}
	out := make([]Pool, len(pools))
	for i, p := range pools {
		out[i] = p.Pool
		if p.apart && p.Type != topology.PCITypeVF {
			pfs[p.pf] = i
		}
	}
	for i, p := range pools {
		if p.apart && p.Type == topology.PCITypeVF {
			pf := pfs[p.pf]
			out[i].Excludes = []int{pf}
			out[pf].Excludes = append(out[pf].Excludes, i)
		}
	}
	return out
}

// family is a pool in the making.
type family struct {
	Pool
	pf    topology.PCIAddress // of its first function the PF, or the function itself
	apart bool                // holds one PF that has free VFs, or free VFs of one free PF
}

func (p *family) holds(d *Device, pf topology.PCIAddress, apart bool) bool {
	return p.Vendor == d.Vendor && p.Product == d.Product && p.Type == d.Type && p.Cell == d.Cell &&
		p.apart == apart && (!apart || p.pf == pf) && maps.Equal(p.Tags, d.Tags)
}

// compare orders pools by what they hold, and says nothing between like ones.
func (p family) compare(q family) int {
	if c := cmp.Or(cmp.Compare(p.Vendor, q.Vendor), cmp.Compare(p.Product, q.Product), cmp.Compare(p.Type, q.Type), cmp.Compare(p.Cell, q.Cell)); c != 0 {
		return c
	}
	if maps.Equal(p.Tags, q.Tags) {
		return 0
	}
	return cmp.Compare(spell(p.Tags), spell(q.Tags))
}

// spell gives tags one text to be ordered by; NUL stands in none of them.
func spell(tags map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		b.WriteString(k + "\x00" + tags[k] + "\x00")
	}
	return b.String()
}

func parentOrSelf(d *Device) topology.PCIAddress {
	if d.Parent != nil {
		return *d.Parent
	}
	return d.Address
}

// usage is what is taken, seen from one guest.
type usage struct {
	taken map[topology.PCIAddress]string
	guest string
	vfs   map[topology.PCIAddress]int // PF → how many of its VFs are taken
}

// count counts the taken VFs of each PF, by what the PF names and, where the PF
// is no Device, by what its VFs name.
func (u *usage) count(devices []Device) {
	seen := map[topology.PCIAddress]bool{}
	add := func(pf, vf topology.PCIAddress) {
		if _, is := u.taken[vf]; is && !seen[vf] {
			seen[vf] = true
			u.vfs[pf]++
		}
	}
	for i := range devices {
		d := &devices[i]
		for _, vf := range d.VFs {
			add(d.Address, vf)
		}
		if d.Parent != nil {
			add(*d.Parent, d.Address)
		}
	}
}

func (u *usage) vfsOf(d *Device) int {
	if d.Parent == nil {
		return 0
	}
	return u.vfs[*d.Parent]
}

// free reports whether the guest may get the function; see the package comment.
func (u *usage) free(d *Device) bool {
	if _, is := u.taken[d.Address]; is || len(d.Unfit) > 0 || u.vfs[d.Address] > 0 {
		return false
	}
	if d.Parent != nil {
		if _, is := u.taken[*d.Parent]; is {
			return false
		}
	}
	return !slices.ContainsFunc(d.Group, func(a topology.PCIAddress) bool {
		owner, is := u.taken[a]
		return is && (owner != u.guest || u.guest == "")
	})
}
