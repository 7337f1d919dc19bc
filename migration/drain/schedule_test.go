package drain

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
)

func at(s time.Duration) runtime.BootTime {
	return runtime.BootTime{ID: "boot", Since: s * time.Second}
}

func TestDecide(t *testing.T) {
	wait := func(id string) Guest { return Guest{Instance: id, State: Waiting, How: HowLive} }
	moving := Guest{Instance: "m", State: Moving, How: HowLive}
	doubt := moving
	doubt.doubt, doubt.doubted = true, -50*time.Second
	moment := doubt
	moment.doubted = 5 * time.Second
	later := wait("later")
	later.After = at(30)
	later.Reasons = []fault.Reason{{Code: migration.CodeInboundLimit}}
	otherBoot := wait("rebooted")
	otherBoot.After = runtime.BootTime{ID: "before", Since: time.Hour}
	others := wait("others")
	others.waits = []fault.Reason{{Code: "moving"}}
	unknown := wait("unknown")
	unknown.How = HowUnknown
	over := []Guest{{State: Moved}, {State: Gone}, {State: Failed}, {State: Stays}}
	for _, c := range []struct {
		name   string
		state  State
		guests []Guest
		begin  []string
		waits  map[string]string
		over   bool
		wake   time.Duration
	}{
		{name: "as many as go at once", guests: []Guest{wait("a"), wait("b"), wait("c")}, begin: []string{"a", "b"}, waits: map[string]string{"c": "outbound_limit"}},
		{name: "what is under way counts", guests: []Guest{moving, wait("a"), wait("b")}, begin: []string{"a"}, waits: map[string]string{"b": "outbound_limit"}},
		{name: "what is in doubt for a moment does", guests: []Guest{moment, wait("a"), wait("b")}, begin: []string{"a"}, waits: map[string]string{"b": "outbound_limit"}, wake: 55 * time.Second},
		{name: "what is in doubt for a minute does not", guests: []Guest{doubt, wait("a"), wait("b")}, begin: []string{"a", "b"}},
		{name: "who must wait lets others go", guests: []Guest{later, others, unknown, wait("a")}, begin: []string{"a"},
			waits: map[string]string{"later": migration.CodeInboundLimit, "others": "moving", "unknown": "unplanned"}, wake: 20 * time.Second},
		{name: "a pause ends with the boot", guests: []Guest{otherBoot}, begin: []string{"rebooted"}},
		{name: "nobody is left", guests: over, over: true},
		{name: "an aborted one begins nothing", state: Aborting, guests: []Guest{wait("a"), moving}},
		{name: "an aborted one ends with its moves", state: Aborting, guests: []Guest{wait("a")}, over: true},
		{name: "of a host without guests", over: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.state == "" {
				c.state = Running
			}
			d := Decide(c.state, c.guests, at(10), Limits{Outbound: 2, Attempts: 3})
			waits := map[string]string{}
			for id, why := range d.Waits {
				waits[id] = why[0].Code
			}
			if c.waits == nil {
				c.waits = map[string]string{}
			}
			if diff := cmp.Diff(c.waits, waits); diff != "" {
				t.Errorf("waits (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.begin, d.Begin); diff != "" || d.Over != c.over || d.Wake != c.wake {
				t.Errorf("over %v, wake %s; begin (-want +got):\n%s", d.Over, d.Wake, diff)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	guests := []*Guest{
		{Name: "failed-late", Turn: 2, Priority: 9}, {Name: "failed", Turn: 1}, {Name: "off", How: HowCold}, {Name: "b", How: HowLive}, {Name: "a", How: HowLive},
		{Name: "first", How: HowCold, Priority: 1}, {Name: "last", How: HowLive, Priority: -1},
	}
	slices.SortFunc(guests, before)
	var got []string
	for _, g := range guests {
		got = append(got, g.Name)
	}
	if diff := cmp.Diff([]string{"first", "a", "b", "off", "last", "failed", "failed-late"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestFateOf(t *testing.T) {
	limit := fault.Reason{Code: migration.CodeInboundLimit, Message: "two arrive"}
	lost := fault.Reason{Code: migration.ReasonDataLost, Message: "vda"}
	for _, c := range []struct {
		name string
		m    migration.Migration
		err  error
		want fate
		code string
	}{
		{"completed", migration.Migration{Outcome: migration.OutcomeCompleted}, nil, fateMoved, ""},
		{"its destination was busy", migration.Migration{Outcome: migration.OutcomeRefused, Error: task.Keep(fault.Refuse(fault.Busy, "claim", limit))}, nil, fateBusy, migration.CodeInboundLimit},
		{"one of its destinations was busy", migration.Migration{
			Outcome: migration.OutcomeRefused, Error: task.Keep(fault.Refuse(fault.DoesNotFit, "claim", fault.Reason{Code: "memory_short"})),
			Refusals: []migration.Refusal{{Reasons: []fault.Reason{limit}}},
		}, nil, fateBusy, "memory_short"},
		{"its link was full", migration.Migration{
			Outcome: migration.OutcomeRefused, Error: task.Keep(fault.Refuse(fault.DoesNotFit, "claim", fault.Reason{Code: "memory_short"})),
			Refusals: []migration.Refusal{{Reasons: []fault.Reason{{Code: migration.CodeLinkLimit}}}},
		}, nil, fateBusy, "memory_short"},
		{"nobody has room", migration.Migration{Outcome: migration.OutcomeRefused, Error: task.Keep(fault.Refuse(fault.DoesNotFit, "claim", fault.Reason{Code: "memory_short"}))}, nil, fateFailed, "memory_short"},
		{"undone", migration.Migration{Outcome: migration.OutcomeUndone}, nil, fateFailed, "undone"},
		{"taken back, since it could not live there", migration.Migration{Outcome: migration.OutcomeReverted}, nil, fateFailed, "undone"},
		{"aborted by a person", migration.Migration{Outcome: migration.OutcomeUndone, Status: migration.StatusCancelled, AbortRequested: true}, nil, fateGivenUp, "move_aborted"},
		{"an abort that came too late", migration.Migration{Outcome: migration.OutcomeCompleted, AbortRequested: true}, nil, fateMoved, ""},
		{"not begun: it is on a move", migration.Migration{}, fault.Refuse(fault.Busy, "", fault.Reason{Code: "migration_unfinished"}), fateBusy, "migration_unfinished"},
		{"not begun: refused", migration.Migration{}, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "qemu_older"}), fateFailed, "qemu_older"},
		{"its data would be lost, wherever it goes", migration.Migration{}, fault.Refuse(fault.Forbidden, "", lost, lost), fateRefused, migration.ReasonDataLost},
		{"its data would be lost at one, and another is full", migration.Migration{}, fault.Refuse(fault.Forbidden, "", lost, fault.Reason{Code: "memory_short"}), fateFailed, migration.ReasonDataLost},
		{"not begun: no answer", migration.Migration{}, errors.New("boom"), fateFailed, "internal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, why := fateOf(c.m, c.err)
			code := ""
			if len(why) > 0 {
				code = why[0].Code
			}
			if got != c.want || code != c.code {
				t.Errorf("%s because of %q, want %s because of %q", got, code, c.want, c.code)
			}
		})
	}
}

func TestGuest_AfterAMove(t *testing.T) {
	l := Limits{Outbound: 2, Attempts: 3}
	g := Guest{State: Moving, Begun: at(5)}
	if moved := g.after(fateMoved, nil, time.Time{}, at(25), 1, l); moved.State != Moved || moved.Took != 20*time.Second {
		t.Errorf("moved: %+v", moved)
	}
	if moved := g.after(fateMoved, nil, time.Time{}, runtime.BootTime{ID: "next", Since: time.Second}, 1, l); moved.Took != 0 {
		t.Errorf("over a reboot it took %s", moved.Took)
	}
	if refused := g.after(fateRefused, nil, time.Time{}, at(25), 4, l); refused.State != Failed || refused.Attempts != 1 || refused.Turn != 4 {
		t.Errorf("refused for good: %+v", refused)
	}
	var pauses []time.Duration
	busy := g
	for range 6 {
		busy = busy.after(fateBusy, nil, time.Time{}, at(100), 1, l)
		pauses = append(pauses, busy.After.Since-100*time.Second)
	}
	want := []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second}
	if diff := cmp.Diff(want, pauses); diff != "" || busy.Attempts != 0 || busy.Turn != 0 || busy.State != Waiting {
		t.Errorf("busy: %+v; pauses (-want +got):\n%s", busy, diff)
	}
	failed := busy.after(fateFailed, nil, time.Time{}, at(100), 7, l)
	if failed.State != Waiting || failed.Attempts != 1 || failed.Turn != 7 || failed.Busy != 0 || failed.After != at(105) {
		t.Errorf("failed once: %+v", failed)
	}
	if failed = failed.after(fateFailed, nil, time.Time{}, at(100), 8, l); failed.After != at(115) {
		t.Errorf("failed twice: %+v", failed)
	}
	if failed = failed.after(fateFailed, nil, time.Time{}, at(100), 9, l); failed.State != Failed || failed.Attempts != 3 {
		t.Errorf("failed three times: %+v", failed)
	}
}

func TestEstimate(t *testing.T) {
	measured := []Sample{{SizeMB: 744, Took: 10 * time.Second}, {SizeMB: 744, Took: 0}} // 100 MiB each second
	waits := Guest{State: Waiting, SizeMB: 744}
	halfway := Guest{State: Moving, SizeMB: 744, Begun: at(0)}
	streams := Guest{State: Moving, progress: migration.Progress{MemoryRemaining: 300, Rate: 100}}
	for _, c := range []struct {
		name    string
		samples []Sample
		guests  []Guest
		want    time.Duration
	}{
		{"nothing is left", measured, nil, 0},
		{"nothing is known", nil, []Guest{waits}, 0},
		{"two at a time", measured, []Guest{waits, waits, waits}, 20 * time.Second},
		{"what is under way is halfway", measured, []Guest{halfway, halfway, waits}, 16 * time.Second},
		{"a stream says itself", nil, []Guest{streams}, 3 * time.Second},
		{"what waits is not known by one stream", nil, []Guest{streams, waits}, 0},
		{"a stream that all but stands still", nil, []Guest{{State: Moving, progress: migration.Progress{MemoryRemaining: 1 << 44, Rate: 1}}}, longest},
		{"one that was begun in another boot", measured, []Guest{{State: Moving, SizeMB: 744, Begun: at(1000)}}, 10 * time.Second},
		{"what waits for its turn has not begun", measured, []Guest{{State: Moving, SizeMB: 744, Begun: at(0), queued: true}, waits, waits}, 20 * time.Second},
		{"what has waited for its turn", measured, []Guest{{State: Moving, SizeMB: 744, Begun: at(0), waited: 3 * time.Second}}, 9 * time.Second},
		{"who stays takes no time", measured, []Guest{{State: Stays}, {State: Failed}, {State: Moving, doubt: true}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Estimate(c.samples, c.guests, 4*time.Second, 2); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestQueue_ALookThatBeganBeforeAMovesEndSaysNothingOfItsGuest: it may have been made while the
// guest was nowhere, or at its source still.
func TestQueue_ALookThatBeganBeforeAMovesEndSaysNothingOfItsGuest(t *testing.T) {
	q := newQueue(New(Config{Runtime: &runtime.System{}}))
	q.guests["back"] = &Guest{Instance: "back", State: Waiting, ended: 3}
	q.guests["left"] = &Guest{Instance: "left", State: Moved, ended: 2}
	q.guests["long gone"] = &Guest{Instance: "long gone", State: Waiting, ended: 1}
	q.guests["failed"] = &Guest{Instance: "failed", State: Failed} // stays so, whatever else is in its way
	q.merge([]Present{{Instance: "left"}, {Instance: "failed", Blocked: []fault.Reason{{Code: "not_managed"}}}}, 1)
	got := map[string]GuestState{}
	for id, g := range q.guests {
		got[id] = g.State
	}
	if diff := cmp.Diff(map[string]GuestState{"back": Waiting, "left": Moved, "long gone": Gone, "failed": Failed}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
