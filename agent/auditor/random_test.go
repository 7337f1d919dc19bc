package auditor_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/auditor/auditortest"
	"berth/placementclient"
)

// Random leaks in any order, several on one consumer, and other hosts that answer
// anything: what a running guest of this host holds of it is never less than before
// unless it is more than its claim, every row agrees or is named with its reason, and
// a second audit writes nothing.
func TestAuditor_RandomLeaksAreHealedOrNamed(t *testing.T) {
	client := embedded(t)(t)
	rapid.Check(t, func(r *rapid.T) {
		w := auditortest.NewWorld(t, client)
		var guests, strangers []string
		for range rapid.IntRange(1, 3).Draw(r, "guests") {
			guests = append(guests, w.Guest(rapid.IntRange(0, 2).Draw(r, "devices")))
		}
		left, moves := map[string]bool{}, map[string]bool{}
		spot := func() map[string]placementclient.Resources {
			out := map[string]placementclient.Resources{}
			for _, rp := range []string{w.Tree.Root(), w.Other} {
				if rapid.Bool().Draw(r, "holds") {
					out[rp] = placementclient.Resources{"VCPU": int64(rapid.IntRange(1, 4).Draw(r, "vcpus"))}
				}
			}
			if rapid.IntRange(0, 3).Draw(r, "device") == 0 {
				out[w.PCI] = placementclient.Resources{auditortest.Class: 1}
			}
			return out
		}
		for range rapid.IntRange(1, 5).Draw(r, "leaks") {
			switch rapid.SampledFrom([]string{"write", "stranger", "leave", "forget", "undefine", "move"}).Draw(r, "leak") {
			case "write":
				w.Put(rapid.SampledFrom(guests).Draw(r, "guest"), placementclient.ConsumerInstance, spot())
			case "stranger":
				if all := spot(); len(all) > 0 {
					kind := rapid.SampledFrom([]string{placementclient.ConsumerInstance, placementclient.ConsumerMigration}).Draw(r, "type")
					strangers = append(strangers, w.Stranger(kind, all))
				}
			case "leave":
				g := rapid.SampledFrom(guests).Draw(r, "guest")
				m := w.Leave(g, true)
				left[g] = true
				if all := spot(); len(all) > 0 {
					w.Put(m, placementclient.ConsumerMigration, all)
				}
			case "forget":
				g := rapid.SampledFrom(guests).Draw(r, "guest")
				w.Forgotten(g)
				left[g] = true
			case "undefine":
				w.Undefined(rapid.SampledFrom(guests).Draw(r, "guest"))
			case "move":
				g := rapid.SampledFrom(guests).Draw(r, "guest")
				w.Move(audit.Move{UUID: w.Stranger(placementclient.ConsumerMigration, nil), Instance: g})
				moves[g] = true
			}
		}
		for _, c := range append(slices.Clone(guests), strangers...) {
			w.Answers[c] = rapid.SampledFrom([]auditor.Known{{}, {}, {Owner: true}, {Busy: "it moves"}, {Unsure: "libvirt is silent"}}).Draw(r, "answer")
		}
		w.Mute, w.Silent = rapid.IntRange(0, 4).Draw(r, "mute") == 0, rapid.IntRange(0, 4).Draw(r, "silent") == 0
		before := map[string]map[string]placementclient.Resources{}
		for _, c := range append(slices.Clone(guests), strangers...) {
			before[c] = w.Held(c)
		}
		askAll := rapid.Bool().Draw(r, "ask all")
		first := w.Audit(askAll)
		for _, row := range first.Rows {
			if !row.Healed && row.Quarantine == "" || row.Failed != "" {
				r.Fatalf("neither healed nor named: %+v", row)
			}
		}
		for _, g := range guests {
			said := w.Answers[g]
			no := !w.Mute && !said.Owner && said.Busy == "" && said.Unsure == ""
			if other := before[g][w.Other]; !no && !maps.Equal(other, w.Held(g)[w.Other]) {
				r.Fatalf("guest %s lost what it held of another host that did not say no: %v, and %v now", g, before[g], w.Held(g))
			}
			if moves[g] && !reflect.DeepEqual(w.Held(g), before[g]) {
				r.Fatalf("guest %s moves, held %v, and holds %v", g, before[g], w.Held(g))
			}
			if left[g] {
				continue
			}
			now, claimed := w.Held(g), w.Claimed(g)
			for rp, had := range before[g] {
				for class, n := range had {
					if now[rp][class] < min(n, claimed[rp][class]) {
						r.Fatalf("running guest %s had %v, claims %v, and holds %v", g, before[g], claimed, now)
					}
				}
			}
		}
		for _, s := range strangers {
			owner := w.Answers[s].Owner && !w.Mute && !w.Silent
			if !owner && !reflect.DeepEqual(w.Held(s), before[s]) {
				r.Fatalf("stranger %s held %v, and %v now", s, before[s], w.Held(s))
			}
			if other := before[s][w.Other]; !maps.Equal(other, w.Held(s)[w.Other]) {
				r.Fatalf("stranger %s lost what it holds of another host: %v", s, w.Held(s))
			}
		}
		second := w.Audit(askAll)
		if second.Calls.Writes != 0 || second.Healed != 0 {
			r.Fatalf("a second audit makes %d writes:\n%s", second.Calls.Writes, rows(second))
		}
		if len(second.Left()) != len(first.Left()) {
			r.Fatalf("first %s\nsecond %s", rows(first), rows(second))
		}
	})
}

func rows(r auditor.Result) string {
	var out string
	for _, row := range r.Rows {
		out += fmt.Sprintf("%s %s %s healed %v\n", row.Subject, row.Verdict, row.Code, row.Healed)
	}
	return out
}

// What another agent writes between the judgement and the write is read again: a
// guest that begins to move, is deleted or is counted rightly meanwhile is left.
func TestAuditor_LooksAgainRightBeforeItWrites(t *testing.T) {
	client := embedded(t)
	for _, tt := range []struct {
		name    string
		between func(w *auditortest.World, id string)
		after   func(w *auditortest.World, id string) map[string]placementclient.Resources
	}{
		{"it begins to move", func(w *auditortest.World, id string) {
			w.Move(audit.Move{UUID: "m", Instance: id})
		}, func(*auditortest.World, string) map[string]placementclient.Resources { return nil }},
		{"it is deleted", func(w *auditortest.World, id string) { w.Forgotten(id) }, func(*auditortest.World, string) map[string]placementclient.Resources { return nil }},
		{"its conductor has written it", func(w *auditortest.World, id string) {
			if len(w.Held(id)) == 0 {
				w.Put(id, placementclient.ConsumerInstance, auditortest.Small(w.Other))
				w.Move(audit.Move{UUID: "m", Instance: id})
			}
		}, func(w *auditortest.World, _ string) map[string]placementclient.Resources {
			return auditortest.Small(w.Other)
		}},
		{"it is written otherwise", func(w *auditortest.World, id string) {
			if len(w.Held(id)) == 0 {
				w.Put(id, placementclient.ConsumerInstance, auditortest.Small(w.Tree.Root()))
			}
		}, func(w *auditortest.World, id string) map[string]placementclient.Resources { return w.Claimed(id) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := auditortest.NewWorld(t, client(t))
			id := w.Guest(0)
			w.Put(id, placementclient.ConsumerInstance, nil)
			w.Between = func() { tt.between(w, id) }
			r := w.Audit(false)
			w.Between = nil
			if got, want := w.Held(id), tt.after(w, id); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("it holds %v, want %v\n%s", got, want, rows(r))
			}
		})
	}
}

func TestAuditor_WherePlacementOrLibvirtIsSilentNothingIsWritten(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	id := w.Guest(0)
	w.Leave(id, true)
	w.Put(id, placementclient.ConsumerInstance, auditortest.Both(auditortest.Small(w.Tree.Root()), auditortest.Small(w.Other)))
	w.Silent = true
	r := w.Audit(false)
	if r.Calls.Writes != 0 || r.Silent["libvirt"] == "" || len(r.Left()) != 1 || r.Left()[0].Verdict != audit.Unknown {
		t.Errorf("%d writes, silent %v, %s", r.Calls.Writes, r.Silent, rows(r))
	}
}

// Calls of an audit where all agrees: one for each provider, whatever guests there
// are, 4 here and for 50 guests; and of consumers only those that do not agree.
func TestAuditor_CallsAreOneForEachProvider(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	w.Child("gpu")
	w.Child("sev")
	var all []string
	for range 50 {
		all = append(all, w.Guest(0))
	}
	if r := w.Audit(true); r.Calls != (auditor.Calls{Reads: 4}) || len(r.Rows) > 0 {
		t.Errorf("calls %+v, rows %s", r.Calls, rows(r))
	}
	w.Put(all[0], placementclient.ConsumerInstance, nil)
	// Read whole once to judge it, and once more right before it is written.
	if r := w.Audit(true); r.Calls != (auditor.Calls{Reads: 4 + 2, Writes: 1}) {
		t.Errorf("calls %+v with one to heal", r.Calls)
	}
}

// More is allocated than a provider gives once a reserve rose: named, and healed by
// nobody.
func TestAuditor_NamesWhatIsOverCapacity(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	w.Guest(0)
	inv := w.Tree.Providers[0].Inventories
	memory := inv["MEMORY_MB"]
	memory.Reserved = memory.Total - 100
	inv["MEMORY_MB"] = memory
	r := w.Audit(false)
	if len(r.Rows) != 1 || r.Rows[0].Code != audit.CodeOverCapacity || r.Rows[0].Heal != audit.HealNone || r.Calls.Writes != 0 {
		t.Errorf("%s", rows(r))
	}
}

// By itself an agent leaves what is counted on two hosts for a while, however often
// somebody looks: a move by other hands may be about to begin. What is its own it puts
// right at once.
func TestAuditor_ByItselfItLeavesWhatConcernsAnotherHostForAWhile(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	double := auditortest.Both(auditortest.Small(w.Tree.Root()), auditortest.Small(w.Other))
	theirs, own := w.Stranger(placementclient.ConsumerInstance, double), w.Guest(0)
	w.Answers[theirs] = auditor.Known{Owner: true}
	w.Put(own, placementclient.ConsumerInstance, nil)
	patient := auditor.Order{Heal: true, Patient: true}
	if r := w.Auditor.Audit(t.Context(), patient); r.Healed != 1 || len(r.Left()) != 1 || !reflect.DeepEqual(w.Held(theirs), double) || len(w.Held(own)) == 0 {
		t.Errorf("the first: %s", rows(r))
	}
	w.Auditor.Audit(t.Context(), auditor.Order{})
	if r := w.Auditor.Audit(t.Context(), patient); r.Calls.Writes != 0 || !reflect.DeepEqual(w.Held(theirs), double) {
		t.Errorf("moments later: %s", rows(r))
	}
	w.Pass(3 * time.Minute)
	if r := w.Auditor.Audit(t.Context(), patient); r.Healed != 1 || !reflect.DeepEqual(w.Held(theirs), auditortest.Small(w.Other)) {
		t.Errorf("minutes later: %s", rows(r))
	}
}
