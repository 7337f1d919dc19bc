package auditor_test

import (
	"context"
	"reflect"
	"testing"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/auditor/auditortest"
	"berth/internal/fault"
	"berth/placementclient"
)

// A host that has said that it does not know a guest may have begun something with it
// before the write, and the guest may be at a third host by then.
func TestAuditor_AsksAgainRightBeforeItWritesByAnothersWord(t *testing.T) {
	client := embedded(t)
	t.Run("the host has begun to take it", func(t *testing.T) {
		w := auditortest.NewWorld(t, client(t))
		id := w.Guest(0)
		double := auditortest.Both(auditortest.Small(w.Tree.Root()), auditortest.Small(w.Other))
		w.Put(id, placementclient.ConsumerInstance, double)
		w.Between = func() { w.Answers[id] = auditor.Known{Busy: "a claim, pending"} }
		if r := w.Audit(false); r.Calls.Writes != 0 || !reflect.DeepEqual(w.Held(id), double) || len(r.Left()) != 1 {
			t.Errorf("it holds %v, want %v\n%s", w.Held(id), double, rows(r))
		}
	})
	t.Run("it is at a third host by now", func(t *testing.T) {
		w := auditortest.NewWorld(t, client(t))
		id, third := w.Guest(0), w.Third()
		w.Put(id, placementclient.ConsumerInstance, auditortest.Small(w.Other))
		w.Between = func() {
			if _, holds := w.Held(id)[third]; !holds {
				w.Put(id, placementclient.ConsumerInstance, auditortest.Small(third))
			}
		}
		if r := w.Audit(false); !reflect.DeepEqual(w.Held(id), auditortest.Small(third)) {
			t.Errorf("it holds %v, want what the third host has of it\n%s", w.Held(id), rows(r))
		}
	})
}

// What is over gives back before what is missing takes: on a full host there is room
// for it in one audit.
func TestAuditor_GivesBackBeforeItTakes(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	own, gone := w.Guest(0), w.Guest(0)
	for _, id := range []string{own, gone} {
		w.Put(id, placementclient.ConsumerInstance, nil)
	}
	w.Put(w.Leave(gone, true), placementclient.ConsumerMigration, map[string]placementclient.Resources{w.Tree.Root(): {"VCPU": 256}})
	if r := w.Audit(false); r.Healed != 2 || len(r.Left()) > 0 || !reflect.DeepEqual(w.Held(own), w.Claimed(own)) {
		t.Errorf("it holds %v\n%s", w.Held(own), rows(r))
	}
}

// A host that may write no more, when it comes to the write, writes nothing.
func TestAuditor_AHostThatMayWriteNoMoreStopsAtOnce(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	w.Put(w.Guest(0), placementclient.ConsumerInstance, nil)
	w.Between = func() { w.Refuse = fault.New(fault.Forbidden, "the provider is another host's") }
	if r := w.Audit(false); r.Calls.Writes != 0 || len(r.Left()) != 1 || r.Left()[0].Failed != w.Refuse.Error() {
		t.Errorf("%d writes, %s", r.Calls.Writes, rows(r))
	}
	if r := w.Audit(false); r.Calls.Writes != 0 || r.Refused != w.Refuse.Error() {
		t.Errorf("%d writes, refused %q", r.Calls.Writes, r.Refused)
	}
}

// Whoever gives an audit up has seen nothing: what the last one found stands, and when
// it was first found.
func TestAuditor_AnAuditThatIsGivenUpIsForgotten(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	stranger := w.Stranger(placementclient.ConsumerInstance, auditortest.Small(w.Tree.Root()))
	w.Audit(false)
	last := w.Auditor.Last()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if r := w.Auditor.Audit(gone, auditor.Order{Heal: true}); len(r.Silent) == 0 {
			t.Fatalf("it was not given up: %s", rows(r))
		}
	}
	if w.Auditor.Last() != last {
		t.Errorf("what is known is %s", rows(*w.Auditor.Last()))
	}
	if r := w.Audit(false); len(r.Left()) != 1 || r.Left()[0].Subject != stranger || !r.Left()[0].Since.Equal(last.Left()[0].Since) {
		t.Errorf("%+v, first found %v", r.Left(), last.Left()[0].Since)
	}
}

func TestAuditor_WaitsForAnotherAuditNoLongerThanItsCaller(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	w.Put(w.Guest(0), placementclient.ConsumerInstance, nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var second auditor.Result
	w.Between = func() { second = w.Auditor.Audit(gone, auditor.Order{}) }
	if r := w.Audit(false); r.Healed != 1 || second.Silent[w.Name] == "" || second.Verdicts[audit.Agree] != 0 {
		t.Errorf("the first %s, the second silent %v", rows(r), second.Silent)
	}
}
