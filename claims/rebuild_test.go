package claims

import (
	"math/bits"
	"slices"
	"testing"
)

// allFacts are all that parties can say together. A guest of which the ledger, a
// move or another host's token tells is managed.
func allFacts() []Facts {
	var out []Facts
	each := func(all uint8, f func(bit uint8)) {
		for b := uint8(1); b != 0 && b <= all; b <<= 1 {
			if all&b != 0 {
				f(b)
			}
		}
	}
	each(uint8(anyDomain), func(d uint8) {
		each(uint8(anyRecord), func(r uint8) {
			each(uint8(anyOthers), func(o uint8) {
				each(uint8(anyWay), func(w uint8) {
					each(uint8(anyAllocated), func(a uint8) {
						for _, managed := range []bool{false, true} {
							f := Facts{Domain(d), managed, Record(r), Others(o), Way(w), Allocated(a)}
							told := f.Record != RecordNone || f.Others&(OthersOwn|OthersLower) != 0 || f.Way != WayNone || f.Allocated == AllocatedHere
							if told && !managed {
								continue
							}
							out = append(out, f)
						}
					})
				})
			})
		})
	})
	return out
}

func TestFacts_EveryCombinationHasAVerdictThatKeepsTheLaws(t *testing.T) {
	seen := map[Verdict]int{}
	used := make([]int, len(rebuildTable))
	for _, f := range allFacts() {
		row := slices.IndexFunc(rebuildTable, func(r rebuildRow) bool { return r.holds(f) })
		if row < 0 {
			t.Fatalf("no row for %+v", f)
		}
		used[row]++
		v, why := f.Judge()
		seen[v]++
		law := func(holds bool, words string) {
			t.Helper()
			if !holds {
				t.Errorf("%+v: %s (%s): %s", f, v, why, words)
			}
		}
		law((v == VerdictDoubt) == (why != ""), "a doubt says why, and nothing else does")
		own := v == VerdictOwn || v == VerdictKeep && f.Record != RecordGone
		law(!own || f.Others != OthersOwn, "of two owners the higher epoch is right")
		law(v != VerdictOwn || f.Domain != DomainNone, "nothing is owned that is not there")
		law(v != VerdictOwn || f.Domain != DomainLeft, "what has left is not taken back by guess")
		startable := own && f.Domain&(DomainOff|DomainLeft) != 0 && f.Record != RecordHere
		law(!startable || f.Others != OthersSilent, "nothing may be started that a silent host may run")
		law(!startable || f.Way&(WayIn|WayOut) == 0, "nothing may be started in the middle of a move")
		law(f.Record != RecordGone || v == VerdictKeep, "what was given away stays so")
		law(f.Record != RecordHere || f.Others == OthersOwn || v == VerdictKeep, "what the last commit says stands")
		law(v != VerdictNothing || f.Domain == DomainNone, "what is there is counted")
		law(v != VerdictStranger || !f.Managed, "a managed guest is no stranger")
		law(v != VerdictArriving || f.Domain == DomainHalfway && f.Way&(WayIn|WayGiven) != 0, "only a copy that a move brings arrives")
		law(f.Domain != DomainRunning || v != VerdictElsewhere || f.Record == RecordGone, "a guest that runs is not written off")
		law(f.Domain != DomainRunning || f.Managed == (v != VerdictStranger), "a managed guest that runs is counted")
	}
	for i, n := range used {
		if n == 0 {
			t.Errorf("row %d decides nothing: %+v", i, rebuildTable[i])
		}
	}
	for _, v := range []Verdict{VerdictKeep, VerdictOwn, VerdictArriving, VerdictElsewhere, VerdictStranger, VerdictNothing, VerdictDoubt} {
		if seen[v] == 0 {
			t.Errorf("no combination is %s", v)
		}
	}
	if bits.OnesCount8(uint8(anyDomain)) != 5 || len(allFacts()) != 1310 {
		t.Errorf("%d combinations: not all", len(allFacts()))
	}
	t.Logf("%d combinations: %v", len(allFacts()), seen)
}

// To learn more never takes away a right: where all hosts have answered, a guest that
// was this host's by less is this host's still.
func TestFacts_AnAnswerThatOwnsNothingOnlyHelps(t *testing.T) {
	for _, f := range allFacts() {
		if f.Others != OthersSilent {
			continue
		}
		before, _ := f.Judge()
		f.Others = OthersNone
		after, _ := f.Judge()
		if before != VerdictDoubt && after != before {
			t.Errorf("%+v: %s once all have answered, %s before", f, after, before)
		}
	}
}
