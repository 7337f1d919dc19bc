package witness

import (
	"maps"
	"slices"
)

// StoreWord is what another host says of the store when it is asked whether the store serves it.
type StoreWord int

// The words. Only NotServed bears out that the store serves nobody.
const (
	Silent    StoreWord = iota // it did not answer in time, or was not asked
	KeepsNone                  // it keeps no lease, so it does not know
	Stale                      // it asked the store too long ago
	Served                     // the store has answered it
	NotServed                  // it asked the store a moment ago, and was not served
)

// Outage says whether refused connections prove that the store serves nobody, so that no lease
// ends: where every host of the fleet bears it out. A firewall that rejects between two rooms
// refuses as a dead store does, and the hosts of one room bear each other out. Those of the other,
// which may declare this one dead, are silent then. known is that the hosts were ever read. host is
// one that does not bear it out, empty where nobody was known.
func Outage(known bool, words map[string]StoreWord) (proof bool, host string, word StoreWord) {
	if !known {
		return false, "", Silent
	}
	// The one that is served first: it is the most telling.
	for _, want := range []StoreWord{Served, Stale, KeepsNone, Silent} {
		for _, name := range slices.Sorted(maps.Keys(words)) {
			if words[name] == want {
				return false, name, want
			}
		}
	}
	return true, "", NotServed
}
