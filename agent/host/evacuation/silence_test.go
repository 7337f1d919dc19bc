package evacuation

import "testing"

func everyState(f func(State)) (n int) {
	for _, token := range []Token{Owned, Other, Moved, Unowned} {
		for _, claim := range []Claim{Pending, Arriving, None} {
			for _, conductor := range []Conductor{Heard, Quiet, Silent} {
				for _, records := range []Records{Unasked, Unanswered, Given, Open, Never} {
					f(State{Token: token, Claim: claim, Conductor: conductor, Records: records})
					n++
				}
			}
		}
	}
	return n
}

// TestDecide_EveryRow holds the laws of the table over every combination, and that each row
// decides something.
func TestDecide_EveryRow(t *testing.T) {
	reached := make([]bool, len(table))
	n := everyState(func(s State) {
		reached[rowOf(s)] = true
		then, why := Decide(s)
		bad := func(law string) { t.Errorf("%v: %s (%s): %s", s, then, why, law) }
		here := s.Token == Owned || s.Token == Moved
		if why == "" {
			bad("no reason")
		}
		if (then == Finish) != (here && (s.Token == Moved || s.Conductor != Heard)) {
			bad("it is finished where the token came by this attempt, and nowhere else")
		}
		if then == Accept && s.Records != Given {
			bad("only the records give a token")
		}
		if s.Records == Given && (then == RollBack || then == GiveUp) {
			bad("nobody else has the guest")
		}
		if (then == RollBack || then == GiveUp) && s.Token != Unowned {
			bad("the token is here")
		}
		if then == RollBack && s.Records != Never {
			bad("it may be given to this host still")
		}
		if then == GiveUp && (s.Records != Open || s.Claim == Arriving && s.Conductor != Silent) {
			bad("its conductor may be at work")
		}
		if (then == Ask) != (s.Records == Unasked && s.Token == Unowned && s.Conductor != Heard) {
			bad("the records are asked once, where they decide")
		}
		if s.Conductor == Heard && then != Wait && s.Token != Moved && s.Token != Other {
			bad("the conductor works on it")
		}
		if then == Wait && s.Claim == Arriving && s.Conductor == Silent && s.Records != Unasked {
			bad("it would wait for ever, and nobody be told")
		}
	})
	if want := 4 * 3 * 3 * 5; n != want {
		t.Errorf("%d combinations, want %d", n, want)
	}
	for i, is := range reached {
		if !is {
			t.Errorf("row %d decides nothing: %+v", i, table[i])
		}
	}
}
