package witness

import (
	"slices"
	"testing"
)

// all enumerates every combination of facts.
func all(visit func(Facts)) {
	for store := NoStore; store <= StoreProven; store++ {
		for record := NoRecord; record <= OwnLower; record++ {
			for place := PlacementNotAsked; place <= NotCounted; place++ {
				for origin := Made; origin <= CameTaken; origin++ {
					for bits := range 32 {
						visit(Facts{Store: store, Record: record, LedgerBehind: bits&1 != 0, Running: bits&4 != 0, Died: bits&8 != 0, Moves: bits&16 != 0, Placement: place, SameDatabase: bits&2 != 0, Origin: origin})
					}
				}
			}
		}
	}
}

// TestDecide_EveryCombination_RestsOnAWitness holds the table to what it is for.
func TestDecide_EveryCombination_RestsOnAWitness(t *testing.T) {
	seen := map[string]bool{}
	all(func(f Facts) {
		v := Decide(f)
		seen[v.Code] = true
		if v.Action == Start {
			switch {
			case f.Store == StoreSilent:
				t.Errorf("%+v: started without the store's answer", f)
			case f.asked() && slices.Contains([]Record{RecordUnreadable, OtherHigher, OtherSame, OwnHigher}, f.Record):
				t.Errorf("%+v: started against its record", f)
			case f.Origin == CameTaken || f.Placement == CountedElsewhere:
				t.Errorf("%+v: started against a witness", f)
			case (f.Store == StoreUnproven || f.Store == StoreRemoved) && (f.Placement != CountedHere || f.SameDatabase):
				t.Errorf("%+v: started by a store that lost its records", f)
			case f.Store == NoStore && f.Origin == CameSilent && f.Placement != CountedHere:
				t.Errorf("%+v: started though nobody but the ledger says so", f)
			case f.asked() && f.LedgerBehind && f.Record == NoRecord && !f.Running:
				t.Errorf("%+v: started by a ledger that was rolled back", f)
			}
		}
		if v.Action == GiveWay && (!f.asked() || f.Record != OtherHigher) && f.Origin != CameTaken {
			t.Errorf("%+v: given up without a higher epoch", f)
		}
		if v.Action == GiveWay && f.asked() && f.Record == OtherHigher && f.Running && !f.Died {
			t.Errorf("%+v: an instance that runs is ended for a record alone", f)
		}
		if v.Action == GiveWay && f.asked() && f.Record == OtherHigher && !f.Died && !f.Moves && !f.LedgerBehind {
			t.Errorf("%+v: an instance that is off is given up for a record alone", f)
		}
		if f.Store == StoreUnproven && v.Code == "counted_elsewhere" {
			t.Errorf("%+v: %s: it is not written again, and other hosts believe the store before it is", f, v.Action)
		}
		if f.Store == NoStore && f.Origin == Made && f.Placement != CountedElsewhere && v.Action != Start {
			t.Errorf("%+v: a host by itself must start what is its own: %+v", f, v)
		}
		if f.Store == StoreProven && (f.Record == OwnSame || f.Record == OwnLower || f.Record == OtherLower) && f.Origin != CameTaken && f.Placement != CountedElsewhere && v.Action != Start {
			t.Errorf("%+v: proven, and not started: %+v", f, v)
		}
	})
	for _, r := range rules {
		if !seen[r.code] {
			t.Errorf("row %s decides nothing", r.code)
		}
	}
}

func TestCompare_MemoryAgainstStore_Table(t *testing.T) {
	remembers := Memory{Incarnation: "one", Revision: 7}
	for name, tt := range map[string]struct {
		memory      Memory
		incarnation string
		revision    uint64
		gone, lost  bool
		want        Change
	}{
		"as it was":                    {remembers, "one", 7, false, false, Same},
		"further on":                   {remembers, "one", 8, false, false, Same},
		"further on, the ledger lost":  {remembers, "one", 8, false, true, Same},
		"further back":                 {remembers, "one", 6, false, false, RolledBack},
		"further on, by its clock":     {remembers, "one", 8, true, false, RolledBack},
		"another one":                  {remembers, "two", 9, false, false, Replaced},
		"never seen":                   {Memory{}, "one", 7, false, false, First},
		"never seen, the ledger lost":  {Memory{}, "one", 7, false, true, Replaced},
		"another one, further back":    {remembers, "two", 1, false, false, Replaced},
		"emptied, with an incarnation": {remembers, "two", 0, false, false, Replaced},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Compare(tt.memory, tt.incarnation, tt.revision, tt.gone, tt.lost); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestMissing_HostsThatHaveNotWrittenAgain(t *testing.T) {
	there := []Host{{"self", "", false}, {"wrote", "new", false}, {"old", "before", false}, {"dead", "before", true}}
	got := Missing("self", "new", []string{"dead", "forgotten", "old", "self", "wrote"}, there)
	if want := []string{"forgotten", "old"}; !slices.Equal(got, want) {
		t.Errorf("missing %v, want %v", got, want)
	}
	if got := Missing("self", "new", nil, nil); len(got) != 0 {
		t.Errorf("a host by itself waits for %v", got)
	}
}

// TestOutage_EveryCombinationOfThreeHosts_NeedsAllOfThem: no two of three can prove it.
func TestOutage_EveryCombinationOfThreeHosts_NeedsAllOfThem(t *testing.T) {
	for a := Silent; a <= NotServed; a++ {
		for b := Silent; b <= NotServed; b++ {
			for c := Silent; c <= NotServed; c++ {
				words := map[string]StoreWord{"a": a, "b": b, "c": c}
				want := a == NotServed && b == NotServed && c == NotServed
				proof, host, word := Outage(true, words)
				if proof != want || !proof && words[host] != word || (a == Served || b == Served || c == Served) && word != Served {
					t.Errorf("%v: proof %t, by %s: %v", words, proof, host, word)
				}
				if proof, _, _ := Outage(false, words); proof {
					t.Errorf("%v: a proof, though nobody knows who there is", words)
				}
			}
		}
	}
	if proof, _, _ := Outage(true, nil); !proof {
		t.Error("a fleet of one has nobody to ask")
	}
}
