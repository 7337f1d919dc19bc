package auditor_test

import (
	"reflect"
	"testing"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/auditor/auditortest"
	"berth/agent/inventory"
	"berth/placementclient"
)

// Who is asked for a guest, and what counts of the answers.
func TestAuditor_AsksWhoMayHaveAGuest(t *testing.T) {
	client := embedded(t)
	type held = map[string]placementclient.Resources
	for _, tt := range []struct {
		name string
		make func(w *auditortest.World) (id string, after held)
	}{
		{"a host that cannot tell has not said no", func(w *auditortest.World) (string, held) {
			id := w.Guest(0)
			both := auditortest.Both(auditortest.Small(w.Tree.Root()), auditortest.Small(w.Other))
			w.Put(id, placementclient.ConsumerInstance, both)
			w.Answers[id] = auditor.Known{Unsure: "libvirt does not answer"}
			return id, both
		}},
		{"the one that the token was given to", func(w *auditortest.World) (string, held) {
			id := w.Guest(0)
			w.Leave(id, true)
			w.Put(id, placementclient.ConsumerInstance, auditortest.Small(w.Tree.Root()))
			w.Answers[id] = auditor.Known{Owner: true}
			return id, nil
		}},
		{"the host of a child", func(w *auditortest.World) (string, held) {
			id := w.Guest(0)
			w.Put(id, placementclient.ConsumerInstance, auditortest.Both(auditortest.Small(w.Tree.Root()), held{w.OtherChild(): {auditortest.Class: 1}}))
			return id, w.Claimed(id)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := auditortest.NewWorld(t, client(t))
			id, after := tt.make(w)
			r := w.Audit(false)
			if got := w.Held(id); len(got)+len(after) > 0 && !reflect.DeepEqual(got, after) {
				t.Errorf("it holds %v, want %v\n%s", got, after, rows(r))
			}
			if len(r.Silent) > 0 {
				t.Errorf("silent: %v", r.Silent)
			}
		})
	}
}

// What was read while the host changed its shape is of no tree: it is read again, and of a
// host that goes on changing nothing is said.
func TestAuditor_JudgesByOneTreeAlone(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	id := w.Guest(0)
	w.Put(id, placementclient.ConsumerInstance, w.Claimed(id))
	other := *w.Tree
	other.Shape, other.Disk = inventory.Nested, ""
	asked := 0
	w.Stands = func() *inventory.Tree {
		if asked++; asked == 1 {
			return &other
		}
		return w.Tree
	}
	if r := w.Audit(false); len(r.Rows)+len(r.Silent) > 0 || asked < 4 {
		t.Errorf("changed once, asked %d times\n%s", asked, rows(r))
	}
	w.Stands = func() *inventory.Tree {
		if asked++; asked%2 == 0 {
			return &other
		}
		return w.Tree
	}
	if r := w.Audit(false); len(r.Silent) == 0 {
		t.Errorf("changed again and again\n%s", rows(r))
	}
}

// A retired provider is listed as the tree's own are, and so is a pool that holds the
// disks: what is counted there alone is found.
func TestAuditor_ListsRetiredProvidersAndThePoolOfDisks(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	w.Tree.Retired, w.Tree.Providers = w.Tree.Providers[1:], w.Tree.Providers[:1]
	device := map[string]placementclient.Resources{w.PCI: {auditortest.Class: 1}}
	stranger := w.Stranger(placementclient.ConsumerInstance, device)
	if r := w.Audit(false); len(r.Left()) != 1 || r.Left()[0].Subject != stranger {
		t.Errorf("a retired provider: %s", rows(r))
	}
	w.Tree.Disk = w.Other
	own, _ := w.Guest(0), w.Guest(0)
	if r := w.Audit(false); len(r.Left()) != 1 || r.Left()[0].Subject != stranger || r.Calls.Reads != 4 {
		t.Errorf("guest %s has its disk in a pool: %+v %s", own, r.Calls, rows(r))
	}
}

// A guest that was off, or not there, when an audit began may run by the time that it
// writes.
func TestAuditor_LooksForWhatRunsAgainBeforeItWrites(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	both := auditortest.Both(auditortest.Small(w.Tree.Root()), auditortest.Small(w.Other))
	id := w.Stranger(placementclient.ConsumerInstance, both)
	w.Answers[id] = auditor.Known{Owner: true}
	w.Asked = func() { w.Runs(id) }
	if r := w.Audit(false); r.Calls.Writes != 0 || !reflect.DeepEqual(w.Held(id), both) {
		t.Errorf("it holds %v: %s", w.Held(id), rows(r))
	}
}

// A host that has changed its shape since the audit began is written by its new one.
func TestAuditor_WritesByTheTreeThatStandsThen(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	id := w.Guest(1)
	double := auditortest.Both(auditortest.Small(w.Tree.Root()), auditortest.Small(w.Other))
	w.Put(id, placementclient.ConsumerInstance, double)
	w.Child("disks")
	next := *w.Tree
	moved := next.Providers[2].UUID
	next.Disk = moved
	w.Provide(moved, "DISK_GB", 100)
	w.Asked = func() { w.Tree = &next }
	if r := w.Audit(false); r.Healed != 1 || w.Held(id)[moved]["DISK_GB"] == 0 {
		t.Errorf("it holds %v: %s", w.Held(id), rows(r))
	}
}

// What Placement has lost is reported before it is read, once, and not again where that
// was ordered.
func TestAuditor_ReportsWhereAProviderIsMissing(t *testing.T) {
	w := auditortest.NewWorld(t, embedded(t)(t))
	id := w.Guest(0)
	lost := &inventory.Tree{Shape: inventory.Flat, Providers: []inventory.Provider{{UUID: "11111111-2222-4333-8444-555555555555", Name: "lost"}}}
	good := w.Tree
	for _, order := range []auditor.Order{{}, {Report: true}} {
		w.Tree, w.Reports = lost, 0
		w.Reported = func() { w.Tree = good }
		r := w.Auditor.Audit(t.Context(), order)
		if w.Reports != 1 || len(r.Silent) > 0 || r.Verdicts[audit.Agree] != 1 {
			t.Errorf("%+v: %d reports, silent %v, %s of guest %s", order, w.Reports, r.Silent, rows(r), id)
		}
		w.Tree, w.Reports, w.Reported = lost, 0, nil
		if r = w.Auditor.Audit(t.Context(), order); w.Reports != 1 || r.Silent["placement"] == "" {
			t.Errorf("%+v, and it stays missing: %d reports, silent %v", order, w.Reports, r.Silent)
		}
	}
}
