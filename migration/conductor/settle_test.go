package conductor

import (
	"slices"
	"testing"

	"berth/internal/fault"
	"berth/migration"
)

func codesOf(reasons []fault.Reason) (out []string) {
	for _, r := range reasons {
		out = append(out, r.Code)
	}
	return out
}

// TestSettle_WhatIsRefused has the rows by which an operator's word is held against the
// facts.
func TestSettle_WhatIsRefused(t *testing.T) {
	off := Facts{Source: SourceOff, Destination: DestinationArrived, Journal: JournalUndoing, Ledger: migration.LedgerHere}
	with := func(f Facts, change func(*Facts)) Facts { change(&f); return f }
	for name, tt := range map[string]struct {
		stage     settleStage
		facts     Facts
		answering []string
		word      migration.Settlement
		want      []string
	}{
		"forward, off beside a whole copy":        {stage: stageUndecided, facts: off, word: migration.Settlement{GuestIsAt: "b"}},
		"back, off beside a whole copy":           {stage: stageUndecided, facts: off, word: migration.Settlement{GuestIsAt: "a"}},
		"back, it runs there":                     {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Destination = DestinationRunning }), word: migration.Settlement{GuestIsAt: "a"}, want: []string{"runs_there"}},
		"forward, no copy there":                  {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Destination = DestinationSilent }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"no_copy"}},
		"back, the destination is silent":         {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Destination = DestinationSilent }), word: migration.Settlement{GuestIsAt: "a"}},
		"the source has its memory":               {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Source = SourceMemory }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"not_in_doubt", "runs_here"}},
		"it stands still, and runs there":         {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Source, f.Destination = SourceHeld, DestinationRunning }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"stands_here"}},
		"it has left, as libvirt says":            {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Source = SourceMigrated }), word: migration.Settlement{GuestIsAt: "a"}, want: []string{"not_in_doubt"}},
		"the source's libvirt is away":            {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Source, f.Ledger = SourceSilent, migration.LedgerUnknown }), word: migration.Settlement{GuestIsAt: "a"}, want: []string{"source_silent"}},
		"the token is somewhere else":             {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Ledger = migration.LedgerElsewhere }), word: migration.Settlement{GuestIsAt: "a"}, want: []string{"token_elsewhere"}},
		"a third host":                            {stage: stageUndecided, facts: off, word: migration.Settlement{GuestIsAt: "c"}, want: []string{"not_a_party"}},
		"before the stream":                       {stage: stageBefore, word: migration.Settlement{GuestIsAt: "a"}, want: []string{"not_in_doubt"}},
		"undoing, nobody is named":                {stage: stageKept, word: migration.Settlement{GuestIsAt: "a"}, want: []string{"not_in_doubt"}},
		"undoing, Placement is gone":              {stage: stageKept, word: migration.Settlement{GuestIsAt: "a", Gone: []string{migration.GonePlacement}}},
		"undoing, both are gone":                  {stage: stageKept, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b", migration.GonePlacement}}},
		"undoing, what is gone answers":           {stage: stageKept, answering: []string{"b"}, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"answers"}},
		"undoing, forward":                        {stage: stageKept, word: migration.Settlement{GuestIsAt: "b", Gone: []string{migration.GonePlacement}}, want: []string{"source_keeps"}},
		"undoing, the source is gone":             {stage: stageKept, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"a"}}, want: []string{"not_a_party"}},
		"committed, back":                         {stage: stageCommitted, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}},
		"committed, back, nobody is named":        {stage: stageCommitted, word: migration.Settlement{GuestIsAt: "a"}, want: []string{"destination_not_named"}},
		"committed, back, it answers":             {stage: stageCommitted, answering: []string{"b"}, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"answers"}},
		"committed, forward":                      {stage: stageCommitted, word: migration.Settlement{GuestIsAt: "b"}, want: []string{"not_in_doubt"}},
		"following, forward, its half is lost":    {stage: stageFollowing, facts: off, word: migration.Settlement{GuestIsAt: "b"}},
		"following, forward, its half is there":   {stage: stageFollowing, facts: with(off, func(f *Facts) { f.Source = SourcePostCopy }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"not_in_doubt"}},
		"following, forward, it runs there":       {stage: stageFollowing, facts: with(off, func(f *Facts) { f.Source, f.Destination = SourcePostCopy, DestinationRunning }), word: migration.Settlement{GuestIsAt: "b"}},
		"following, forward, all has followed":    {stage: stageFollowing, facts: with(off, func(f *Facts) { f.Source = SourceMigrated }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"not_in_doubt"}},
		"following, forward, the source's away":   {stage: stageFollowing, facts: with(off, func(f *Facts) { f.Source = SourceSilent }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"source_silent"}},
		"following, back, nobody is named":        {stage: stageFollowing, facts: off, word: migration.Settlement{GuestIsAt: "a"}, want: []string{"destination_not_named"}},
		"following, forward, half a copy there":   {stage: stageFollowing, facts: with(off, func(f *Facts) { f.Destination = DestinationPostCopy }), word: migration.Settlement{GuestIsAt: "b"}, want: []string{"half_there"}},
		"following, back, the destination's gone": {stage: stageFollowing, facts: off, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}},
		"following, back, with half a guest":      {stage: stageFollowing, facts: with(off, func(f *Facts) { f.Source = SourcePostCopy }), word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"half_here"}},
		"forward, half a copy there":              {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Destination = DestinationPostCopy }), word: migration.Settlement{GuestIsAt: "b"}},
		"back, half a copy there":                 {stage: stageUndecided, facts: with(off, func(f *Facts) { f.Destination = DestinationPostCopy }), word: migration.Settlement{GuestIsAt: "a"}, want: []string{"runs_there"}},
		"finished, back":                          {stage: stageFinished, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"destination_has_guest"}},
		"finished, Placement is gone":             {stage: stageFinished, word: migration.Settlement{GuestIsAt: "b", Gone: []string{migration.GonePlacement}}},
		"deciding, either way":                    {stage: stageDeciding, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"decides_itself"}},
		"unfit":                                   {stage: stageUnfit, word: migration.Settlement{GuestIsAt: "b"}, want: []string{"nowhere"}},
		"confirming, nobody is gone":              {stage: stageConfirming, word: migration.Settlement{GuestIsAt: "b"}, want: []string{"not_in_doubt"}},
		"confirming, both are gone":               {stage: stageConfirming, word: migration.Settlement{GuestIsAt: "b", Gone: []string{"b", migration.GonePlacement}}},
		"confirming, back":                        {stage: stageConfirming, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"destination_has_guest"}},
		"a revert undone, Placement gone":         {stage: stageThere, word: migration.Settlement{GuestIsAt: "b", Gone: []string{migration.GonePlacement}}},
		"a revert undone, back":                   {stage: stageThere, word: migration.Settlement{GuestIsAt: "a"}, want: []string{"destination_has_guest"}},
		"returned, nobody is gone":                {stage: stageReturned, word: migration.Settlement{GuestIsAt: "a"}, want: []string{"not_in_doubt"}},
		"returned, the other host is gone":        {stage: stageReturned, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}},
		"returned, there":                         {stage: stageReturned, word: migration.Settlement{GuestIsAt: "b", Gone: []string{"b"}}, want: []string{"source_has_guest"}},
		"returned, what is gone answers":          {stage: stageReturned, answering: []string{"b"}, word: migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, want: []string{"answers"}},
		"finished, forward, nobody is gone":       {stage: stageFinished, word: migration.Settlement{GuestIsAt: "b"}, want: []string{"not_in_doubt"}},
	} {
		f := settleFacts{Source: "a", Destination: "b", Stage: tt.stage, Facts: tt.facts, Answering: tt.answering}
		if got := codesOf(settleRefusal(f, tt.word)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: refused for %v, want %v", name, got, tt.want)
		}
	}
}

// TestSettle_OfMovesOfOthers: a conductor at neither host can give up either of them, and
// says where the guest is in nobody's place.
func TestSettle_OfMovesOfOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		stage settleStage
		word  migration.Settlement
		want  []string
	}{
		"undoing, the destination is gone":        {stageKept, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, nil},
		"undoing, the source is gone with it":     {stageKept, migration.Settlement{GuestIsAt: "a", Gone: []string{"a"}}, []string{"gone_with_it"}},
		"committed, back":                         {stageCommitted, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, []string{"say_it_there"}},
		"committed, forward, the source is gone":  {stageCommitted, migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}}, nil},
		"committed, forward, nobody is gone":      {stageCommitted, migration.Settlement{GuestIsAt: "b"}, []string{"not_in_doubt"}},
		"confirming, the source is gone":          {stageConfirming, migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}}, nil},
		"a revert undone, the source is gone":     {stageThere, migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}}, nil},
		"returned, the other host is gone":        {stageReturned, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, nil},
		"deciding: it decides":                    {stageDeciding, migration.Settlement{GuestIsAt: "b", Gone: []string{"a"}}, []string{"decides_itself"}},
		"the conductor is nobody to be given up":  {stageKept, migration.Settlement{GuestIsAt: "a", Gone: []string{"c"}}, []string{"not_a_party"}},
		"nor is the guest with it":                {stageKept, migration.Settlement{GuestIsAt: "c"}, []string{"not_a_party"}},
		"confirming, and the source has not left": {stageConfirming, migration.Settlement{GuestIsAt: "a", Gone: []string{"b"}}, []string{"destination_has_guest"}},
	} {
		f := settleFacts{Source: "a", Destination: "b", Stage: tt.stage, Apart: true}
		if got := codesOf(settleRefusal(f, tt.word)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: refused for %v, want %v", name, got, tt.want)
		}
	}
}

// A word that was joined to an earlier one is the same word when it comes again.
func TestSettle_TheSameWordAgain(t *testing.T) {
	kept := &migration.Settlement{GuestIsAt: "a", Gone: []string{"b", migration.GonePlacement}, Why: "scrap", By: "ann"}
	for name, tt := range map[string]struct {
		word migration.Settlement
		want bool
	}{
		"as it was kept":   {*kept, true},
		"its own part":     {migration.Settlement{GuestIsAt: "a", Gone: []string{migration.GonePlacement}, Why: "scrap", By: "ann"}, true},
		"one more is gone": {migration.Settlement{GuestIsAt: "a", Gone: []string{"b", "c"}, Why: "scrap", By: "ann"}, false},
		"at the other":     {migration.Settlement{GuestIsAt: "b", Why: "scrap", By: "ann"}, false},
		"by somebody else": {migration.Settlement{GuestIsAt: "a", Why: "scrap", By: "bob"}, false},
	} {
		if got := kept.Same(tt.word); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if (*migration.Settlement)(nil).Same(*kept) {
		t.Error("no word is the same as one")
	}
}

// TestSettle_NeverMakesTwo holds over every combination of facts that no word is taken
// that would leave the guest with two hosts, or take it from one that answers and has it.
func TestSettle_NeverMakesTwo(t *testing.T) {
	taken := 0
	everyFact(func(facts Facts) {
		facts.Word = migration.WordNone
		for _, at := range []string{"a", "b"} {
			f := settleFacts{Source: "a", Destination: "b", Stage: stageUndecided, Facts: facts}
			if len(settleRefusal(f, migration.Settlement{GuestIsAt: at})) > 0 {
				continue
			}
			taken++
			facts.Word = map[string]migration.WordFact{"a": migration.WordSource, "b": migration.WordDestination}[at]
			action, why := Decide(facts)
			bad := func(law string) { t.Errorf("%v, said to be at %s: %s (%s): %s", facts, at, action, why, law) }
			switch memory := facts.Source == SourceMemory || facts.Source == SourceJob; {
			case at == "b" && memory:
				bad("the source has its memory")
			case at == "a" && (facts.Destination == DestinationRunning || facts.There == migration.LedgerAccepted):
				bad("it runs at the destination")
			case at == "a" && action != ActionReclaim || at == "b" && action != ActionCommit:
				bad("the word does not settle it")
			}
			facts.Word = migration.WordNone
		}
	})
	if taken == 0 {
		t.Error("no word is ever taken")
	}
}
