package audit

import (
	"fmt"
	"testing"
)

// every combination of facts there is.
func every(f func(Facts)) {
	bits := func(n int) []uint8 {
		var out []uint8
		for i := range n {
			out = append(out, 1<<i)
		}
		return out
	}
	for _, token := range bits(4) {
		for _, claim := range bits(5) {
			for _, domain := range bits(4) {
				for _, allocation := range bits(7) {
					for _, story := range bits(6) {
						for _, kind := range bits(3) {
							for _, fleet := range bits(6) {
								f(Facts{Token(token), ClaimState(claim), Domain(domain), Allocation(allocation), Story(story), Type(kind), Fleet(fleet)})
							}
						}
					}
				}
			}
		}
	}
}

// laws are what must hold of every judgement, whatever the table says.
var laws = []struct {
	name   string
	broken func(Facts, Judgement) bool
}{
	{"what a guest here uses is not freed", func(f Facts, j Judgement) bool {
		frees := j.Heal == HealDrop || j.Heal == HealDelete
		return frees && (f.Domain == DomainRunning || f.Claim != ClaimNone || f.Token == TokenHere || f.Token == TokenTransit)
	}},
	{"only the token's holder writes its guest's amounts, and only as claimed", func(f Facts, j Judgement) bool {
		return (j.Heal == HealPut || j.Heal == HealTake) && (f.Token != TokenHere || f.Claim != ClaimBound)
	}},
	{"what another host holds is replaced only when that host has said no", func(f Facts, j Judgement) bool {
		return j.Heal == HealTake && f.Fleet != FleetNobody ||
			j.Heal == HealPut && f.Allocation&(AllocationDoubled|AllocationElsewhere) != 0
	}},
	{"a consumer is deleted only when the ledger here knows it as a move that is over, and it holds of nobody else", func(f Facts, j Judgement) bool {
		return j.Heal == HealDelete && (f.Story != StoryOver || f.Token != TokenNone || f.Allocation&allocatedHere == 0)
	}},
	{"one that is said to be an instance is deleted only when every host was asked and none knows it", func(f Facts, j Judgement) bool {
		return j.Heal == HealDelete && f.Type == TypeInstance && f.Fleet != FleetNobody
	}},
	{"a part here is dropped only when somebody else has the guest for certain", func(f Facts, j Judgement) bool {
		durable := f.Fleet == FleetOwner || f.Token == TokenElsewhere && f.Story == StoryOver && f.Allocation == AllocationDoubled
		return j.Heal == HealDrop && !durable
	}},
	{"nothing of a move is written, but for both halves that Placement has lost", func(f Facts, j Judgement) bool {
		return f.Story&moving != 0 && j.Heal != HealNone && !(j.Heal == HealHalves && f.Story == StoryKept && f.Allocation == AllocationNone) ||
			j.Heal == HealHalves && f.Story != StoryKept
	}},
	{"what is about to change elsewhere is left alone", func(f Facts, j Judgement) bool {
		return f.Fleet&(FleetBusy|FleetMoving) != 0 && (j.Heal == HealTake || j.Heal == HealDrop || j.Heal == HealDelete)
	}},
	{"without Placement there is no verdict on allocations, and no write", func(f Facts, j Judgement) bool {
		return f.Allocation == AllocationUnknown && (j.Heal != HealNone || j.Verdict != Unknown && j.Code != CodeUnmanaged)
	}},
	{"without libvirt nothing is freed of a guest", func(f Facts, j Judgement) bool {
		move := f.Story == StoryOver && f.Type != TypeInstance && f.Token == TokenNone
		return f.Domain == DomainUnknown && (j.Heal == HealDrop || j.Heal == HealDelete && !move)
	}},
	{"without libvirt no guest is called gone or unmanaged", func(f Facts, j Judgement) bool {
		switch j.Code {
		case CodeGuestGone, CodeRecordOnly, CodeUnmanaged, CodeUnmanagedCounted, CodeClaimMissing:
			return f.Domain == DomainUnknown
		}
		return false
	}},
	{"one that agrees has no heal", func(_ Facts, j Judgement) bool { return j.Verdict == Agree && j.Heal != HealNone }},
	{"a guest of this host agrees only when it is counted as claimed, moves or is being made", func(f Facts, j Judgement) bool {
		return j.Verdict == Agree && f.Token == TokenHere && f.Allocation != AllocationEqual && f.Story&moving == 0 && f.Claim&(ClaimPending|ClaimArriving) == 0
	}},
	{"what nobody here knows agrees only when it holds nothing here, or another host knows that it moves", func(f Facts, j Judgement) bool {
		return j.Verdict == Agree && f.Token == TokenNone && f.Claim == ClaimNone && f.Story&moving == 0 && f.Allocation&notHere == 0 && f.Fleet != FleetMoving
	}},
	{"a guest that runs unmanaged is named", func(f Facts, j Judgement) bool {
		return f.Token == TokenNone && f.Claim == ClaimNone && f.Domain == DomainRunning && f.Story&moving == 0 && j.Verdict == Agree
	}},
}

func TestDecide_EveryCombinationHasARowAndTheLawsHold(t *testing.T) {
	n, used := 0, map[int]int{}
	every(func(f Facts) {
		n++
		j, found := Decide(f)
		if !found {
			t.Fatalf("no row for %+v", f)
		}
		for i, r := range rules {
			if r.matches(f) {
				used[i]++
				break
			}
		}
		for _, law := range laws {
			if law.broken(f, j) {
				t.Fatalf("%s: %+v gives %+v", law.name, f, j)
			}
		}
	})
	if n != 4*5*4*7*6*3*6 {
		t.Errorf("%d combinations", n)
	}
	for i, r := range rules {
		if used[i] == 0 {
			t.Errorf("row %d is never reached: %+v", i, r)
		}
	}
	t.Logf("%d combinations, %d rows", n, len(rules))
}

// Each law must be able to fail: some judgement of some facts breaks it.
func TestDecide_TheLawsCanFail(t *testing.T) {
	for _, law := range laws {
		broken := false
		for _, heal := range []Heal{HealNone, HealPut, HealTake, HealDrop, HealDelete, HealHalves} {
			for _, then := range []Judgement{{Agree, CodeAgree, heal}, {Differs, CodeUnmanaged, heal}, {LibvirtOnly, CodeGuestGone, heal}} {
				if !broken {
					every(func(f Facts) { broken = broken || law.broken(f, then) })
				}
			}
		}
		if !broken {
			t.Errorf("nothing breaks %q", law.name)
		}
	}
}

// Every code has words of its own.
func TestSay_EveryCodeHasWords(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rules {
		if seen[fmt.Sprint(r.then)] {
			continue
		}
		seen[fmt.Sprint(r.then)] = true
		row := Row{Subject: "s", Verdict: r.then.Verdict, Code: r.then.Code, Heal: r.then.Heal}
		index(Input{}).say(&row)
		if row.Message == "" || row.Verdict != Agree && row.Heal == HealNone && row.Quarantine == "" ||
			row.Verdict != Agree && row.Change == "" && row.Code != CodeCreating {
			t.Errorf("%+v", row)
		}
		if row.Message == "its facts are in no row of the table" {
			t.Errorf("code %s has no words", row.Code)
		}
	}
}
