package auditortest

import (
	"reflect"
	"testing"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/placementclient"
)

// leak is one kind of disagreement: how it comes about, what an audit says of it, and
// what Placement has of its subject afterwards.
type leak struct {
	name   string
	askAll bool
	make   func(w *World) (subject string, after map[string]placementclient.Resources)
	code   string
	healed bool
}

const instance, migrating = placementclient.ConsumerInstance, placementclient.ConsumerMigration

var leaks = []leak{
	{"a guest that Placement does not count", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(1)
		w.Put(id, instance, nil)
		return id, w.Claimed(id)
	}, audit.CodeMissing, true},
	{"other amounts", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Put(id, instance, Small(w.Tree.Root()))
		return id, w.Claimed(id)
	}, audit.CodeAmounts, true},
	{"a device that was given back, and is counted on the child still", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Put(id, instance, Both(w.Claimed(id), map[string]placementclient.Resources{w.PCI: {Class: 1}}))
		return id, w.Claimed(id)
	}, audit.CodeMisplaced, true},
	{"a device that is claimed, and not counted", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(2)
		all := w.Claimed(id)
		all[w.PCI] = placementclient.Resources{Class: 1}
		w.Put(id, instance, all)
		return id, w.Claimed(id)
	}, audit.CodeAmounts, true},
	{"the consumer of a move that is over", false, func(w *World) (string, map[string]placementclient.Resources) {
		m := w.Leave(w.Guest(0), true)
		w.Put(m, migrating, Both(Small(w.Tree.Root()), map[string]placementclient.Resources{w.PCI: {Class: 1}}))
		return m, nil
	}, audit.CodeMigrationLeft, true},
	{"the same, said to be an instance", false, func(w *World) (string, map[string]placementclient.Resources) {
		m := w.Leave(w.Guest(0), true)
		w.Put(m, instance, Small(w.Tree.Root()))
		return m, Small(w.Tree.Root())
	}, audit.CodeStranger, false},
	{"the same, and no host knows it", true, func(w *World) (string, map[string]placementclient.Resources) {
		m := w.Leave(w.Guest(0), true)
		w.Put(m, instance, Small(w.Tree.Root()))
		return m, nil
	}, audit.CodeMigrationLeft, true},
	{"a stranger", false, func(w *World) (string, map[string]placementclient.Resources) {
		return w.Stranger(instance, Small(w.Tree.Root())), Small(w.Tree.Root())
	}, audit.CodeStranger, false},
	{"a stranger that no host knows", true, func(w *World) (string, map[string]placementclient.Resources) {
		return w.Stranger(instance, Small(w.Tree.Root())), Small(w.Tree.Root())
	}, audit.CodeStranger, false},
	{"a stranger on the child alone", false, func(w *World) (string, map[string]placementclient.Resources) {
		all := map[string]placementclient.Resources{w.PCI: {Class: 1}}
		return w.Stranger(instance, all), all
	}, audit.CodeStranger, false},
	{"a move that nobody here knows", true, func(w *World) (string, map[string]placementclient.Resources) {
		return w.Stranger(migrating, Small(w.Tree.Root())), Small(w.Tree.Root())
	}, audit.CodeStrangerMove, false},
	{"doubled, and the other host does not know it", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Put(id, instance, Both(Small(w.Tree.Root()), Small(w.Other)))
		return id, w.Claimed(id)
	}, audit.CodeDoubled, true},
	{"doubled, and the other host is silent", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Mute = true
		all := Both(Small(w.Tree.Root()), Small(w.Other))
		w.Put(id, instance, all)
		return id, all
	}, audit.CodeDoubled, false},
	{"doubled, and the other host says that it moves", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Answers[id] = auditor.Known{Busy: "a claim, arriving"}
		all := Both(Small(w.Tree.Root()), Small(w.Other))
		w.Put(id, instance, all)
		return id, all
	}, audit.CodeDoubled, false},
	{"doubled, and this host's is a leftover", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Stranger(instance, Both(Small(w.Tree.Root()), Small(w.Other)))
		w.Answers[id] = auditor.Known{Owner: true, Epoch: 3}
		return id, Small(w.Other)
	}, audit.CodeLeftBehind, true},
	{"doubled after a move that is over", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Leave(id, true)
		w.Mute = true // the journal here knows that it came
		w.Put(id, instance, Both(Small(w.Tree.Root()), Small(w.Other)))
		return id, Small(w.Other)
	}, audit.CodeLeftBehind, true},
	{"a guest of this host that is counted at another", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(1)
		w.Put(id, instance, Small(w.Other))
		return id, w.Claimed(id)
	}, audit.CodeElsewhere, true},
	{"two owners", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		w.Answers[id] = auditor.Known{Owner: true, Epoch: 9}
		all := Both(Small(w.Tree.Root()), Small(w.Other))
		w.Put(id, instance, all)
		return id, all
	}, audit.CodeTwoOwners, false},
	{"a guest that was deleted behind our back", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(1)
		w.Undefined(id)
		return id, w.Claimed(id)
	}, audit.CodeGuestGone, false},
	{"a guest that was forgotten, and counted still", true, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(1)
		all := w.Claimed(id)
		w.Forgotten(id)
		return id, all
	}, audit.CodeStranger, false},
	{"a move whose halves Placement has lost", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		m := w.Stranger(migrating, nil)
		a := func(all map[string]placementclient.Resources) placementclient.Allocations {
			return placementclient.Allocations{Allocations: all, ProjectID: id, UserID: id}
		}
		w.Move(audit.Move{UUID: m, Instance: id, Kept: &audit.Halves{Instance: a(Small(w.Other)), Migration: a(w.Claimed(id))}})
		w.Put(id, instance, nil)
		return id, Small(w.Other)
	}, audit.CodeHalvesMissing, true},
	{"a move that lost one half", false, func(w *World) (string, map[string]placementclient.Resources) {
		id := w.Guest(0)
		m := w.Stranger(migrating, w.Claimed(id))
		w.Move(audit.Move{UUID: m, Instance: id, Kept: &audit.Halves{}})
		w.Put(id, instance, nil)
		return id, nil
	}, audit.CodeMovingMissing, false},
}

// Leaks seeds each kind of leak, audits with healing, and looks what became of it:
// what is provable is healed, the rest named and left, guests beside it keep what they
// hold, and a second audit writes nothing. client gives one that ends with the test.
func Leaks(t *testing.T, client func(t *testing.T) *placementclient.Client) {
	for _, l := range leaks {
		t.Run(l.name, func(t *testing.T) {
			w := NewWorld(t, client(t))
			beside := w.Guest(1)
			subject, after := l.make(w)
			first := w.Audit(l.askAll)
			got, found := row(first, subject)
			if !found || got.Code != l.code || got.Healed != l.healed {
				t.Fatalf("want %s, healed %v; the audit says %s", l.code, l.healed, words(first))
			}
			if got.Message == "" || !l.healed && (got.Quarantine == "" || got.Change == "") {
				t.Errorf("an operator is not told enough: %+v", got)
			}
			if held := w.Held(subject); len(held)+len(after) > 0 && !reflect.DeepEqual(held, after) {
				t.Errorf("Placement has %v of it, want %v", held, after)
			}
			if held := w.Held(beside); !reflect.DeepEqual(held, w.Claimed(beside)) {
				t.Errorf("the guest beside it holds %v, want %v", held, w.Claimed(beside))
			}
			second := w.Audit(l.askAll)
			again, found := row(second, subject)
			if second.Calls.Writes != 0 || l.healed && found || !l.healed && (!found || !again.Since.Equal(got.Since)) {
				t.Errorf("a second audit makes %d writes and says %s", second.Calls.Writes, words(second))
			}
		})
	}
}
