package halves

import (
	"maps"
	"slices"

	"berth/placementclient"
)

// Home is what an instance is to hold where it came from, by what both consumers hold during
// the move: the way back of one who has not seen its beginning. kept is the migration's, inst
// the instance's, old what the guest held of each class before the move, and away the
// providers of the host that it leaves. What kept lacks of old was not swapped: the instance
// has held it all along, of a provider that both hosts use.
func Home(inst, kept Amounts, old placementclient.Resources, away func(rp string) bool) Amounts {
	lacks := placementclient.Resources{}
	maps.Copy(lacks, old)
	for class, n := range sums(kept) {
		lacks[class] -= n
	}
	stayed := Amounts{}
	for _, rp := range slices.Sorted(maps.Keys(inst)) {
		for class, n := range inst[rp] {
			if n = min(n, lacks[class]); n <= 0 || away(rp) {
				continue
			}
			lacks[class] -= n
			if stayed[rp] == nil {
				stayed[rp] = placementclient.Resources{}
			}
			stayed[rp][class] = n
		}
	}
	return Sum(kept, stayed)
}
