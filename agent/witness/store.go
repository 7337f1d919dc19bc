// Package witness decides by what is known from others whether an instance of an earlier boot may
// be started here. It asks nobody and writes nothing: facts in, an action and its reason out.
//
// The ledger of a host is rolled back together with its disk. So it is no witness of what happened
// while the host was down. The witnesses are the fleet's records, Placement where it is another
// database than theirs, and the ledger of the host that the instance came from. Store (this file)
// says whether the records can be one, and Decide (start.go) joins all of them.
package witness

import "slices"

// Memory is what a host remembers of the store of the fleet's records, in its ledger.
type Memory struct {
	// Incarnation and Revision are the latest that it has seen; empty before it has seen any.
	Incarnation string `json:"incarnation,omitempty"`
	Revision    uint64 `json:"revision,omitempty"`
	// Session is the run of the store's server that told Revision; empty for none.
	Session string `json:"session,omitempty"`
	// Unproven: other hosts have not all written their records again in this incarnation.
	Unproven bool `json:"unproven,omitempty"`
	// Hosts are the other hosts that have been seen in the store, in order of name.
	Hosts []string `json:"hosts,omitempty"`
}

// Change is what a host finds when it compares the store with its memory.
type Change int

// The changes.
const (
	// Same: the store that it remembers, and not older.
	Same Change = iota
	// First: it remembers none, and its ledger is whole.
	First
	// Replaced: another incarnation: the store was emptied, restored or renewed.
	Replaced
	// RolledBack: the same incarnation without a revision that was seen.
	RolledBack
)

// Compare says what has become of the store. gone says that the store has not what it had at the
// remembered revision, though its last one may be later. lost says that this host's ledger is not
// whole, so that what it remembered may be lost too.
func Compare(m Memory, incarnation string, revision uint64, gone, lost bool) Change {
	switch {
	case m.Incarnation == "" && lost:
		return Replaced
	case m.Incarnation == "":
		return First
	case m.Incarnation != incarnation:
		return Replaced
	case gone || revision < m.Revision:
		return RolledBack
	}
	return Same
}

// Host is another host of the store, as its record says.
type Host struct {
	Name        string
	Incarnation string // in which it has written all its records; empty for none
	Dead        bool   // a proof of its death stands: it runs nothing
}

// Missing gives the names of the hosts that have not written their records again in an
// incarnation: those of the store and those that are remembered, without self and the dead ones.
func Missing(self, incarnation string, remembered []string, there []Host) []string {
	var missing []string
	known := map[string]bool{self: true}
	for _, h := range there {
		if !known[h.Name] && !h.Dead && h.Incarnation != incarnation {
			missing = append(missing, h.Name)
		}
		known[h.Name] = true
	}
	for _, name := range remembered {
		if !known[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}
