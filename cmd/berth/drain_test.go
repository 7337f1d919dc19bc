package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/screen"
)

// emptied is what is planned for a host with a guest of each kind.
func emptied() api.DrainPlan {
	return api.DrainPlan{
		Host: "host-a", MaxOutbound: 2, MaxInbound: 2, Estimate: 3*time.Minute + 12*time.Second,
		Guests: []api.PlannedGuest{
			{Instance: "1", Name: "db-1", State: "running", How: api.DrainLive, To: "host-b"},
			{Instance: "2", Name: "web-1", State: "running", How: api.DrainLive, To: "host-c.example.org"},
			{Instance: "3", Name: "big-1", State: "running", How: api.DrainLive, Blockers: []fault.Reason{
				{Code: "memory_short", Message: "host-b: memory: want 65536 MiB, 4096 MiB free", Change: "free 61440 MiB on host-b"},
				{Code: "memory_short", Message: "host-c.example.org: memory: want 65536 MiB, 2048 MiB free"},
			}},
			{Instance: "4", Name: "gpu-1", State: "running", How: api.DrainCold, To: "host-b", Blockers: []fault.Reason{
				{Code: "device_not_migratable", Message: "pci host device 0000:3b:00.0 cannot be live-migrated"},
			}},
			{Instance: "5", Name: "old-1", State: "shut off", How: api.DrainCold, To: "host-b"},
			{Instance: "66666666-6666-4666-8666-666666666666", State: "running", How: api.DrainStays, Blockers: []fault.Reason{
				{Code: "not_managed", Message: "guest by-hand is not managed, and nothing is claimed for it", Change: "berth instance adopt by-hand"},
			}},
		},
	}
}

// afterwards are the guests of a drain that left some behind.
func afterwards() api.Drain {
	begun := time.Now().Add(-time.Hour)
	d := api.Drain{
		UUID: "d-1", Host: "host-a", State: api.DrainIncomplete, By: "operator:alice", BegunAt: begun, EndedAt: begun.Add(3 * time.Minute),
		Guests: []api.DrainedGuest{
			{Instance: "1", Name: "db-1", How: api.DrainLive, State: api.DrainedMoved, To: "host-b", BegunAt: begun, EndedAt: begun.Add(40 * time.Second), Attempts: 1},
			{Instance: "2", Name: "web-1", How: api.DrainLive, State: api.DrainedFailed, To: "host-c", Migration: "m-2", Attempts: 3, BegunAt: begun, EndedAt: begun.Add(time.Minute), Reasons: []fault.Reason{
				{Code: "cpu_incompatible", Message: "the CPU of host-c lacks avx512f, which the guest uses", Change: "name a host with that CPU: --to HOST"},
			}},
			{Instance: "3", Name: "by-hand", How: api.DrainStays, State: api.DrainedStays, Reasons: []fault.Reason{{Code: "not_managed", Message: "it is not managed", Change: "berth instance adopt by-hand"}}},
			{Instance: "4", Name: "gone-1", How: api.DrainLive, State: api.DrainedGone},
		},
	}
	return d
}

// tabbed writes what table writes, in columns.
func tabbed(t *testing.T, b *bytes.Buffer, table func(w *tabwriter.Writer)) {
	t.Helper()
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	table(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestDrainPlan_IsReadInEightyColumns holds the words against a file; a reader of the file
// sees what an operator sees.
func TestDrainPlan_IsReadInEightyColumns(t *testing.T) {
	dead := api.DrainPlan{Host: "host-b", Evacuate: true, MaxOutbound: 2, Guests: []api.PlannedGuest{
		{Instance: "1", Name: "web-1", State: "running", How: api.DrainEvacuate, To: "host-c", Lost: []string{"vda", "vdb"}},
		{Instance: "2", Name: "web-2", State: "shutdown", How: api.DrainStays, Blockers: []fault.Reason{{Code: "moving", Message: "it was on migration m-7 when its host died", Change: "berth migration settle m-7"}}},
	}}
	closed := emptied()
	closed.Guests, closed.Disabled, closed.Estimate = closed.Guests[:2], &api.Disabled{Reason: "fans"}, 0
	var b bytes.Buffer
	unasked := api.DrainPlan{Host: "host-f", MaxOutbound: 2, Guests: []api.PlannedGuest{{Name: "web-1", State: "running", Blockers: []fault.Reason{{Code: "unavailable", Message: "Placement does not answer"}}}}}
	for _, p := range []api.DrainPlan{emptied(), closed, dead, {Host: "host-e"}, unasked} {
		tabbed(t, &b, func(w *tabwriter.Writer) { drainPlanTable(w, p) })
		leaving, staying := splitPlan(p)
		for _, line := range screen.Fold(drainQuestion(p, leaving, staying), planText) {
			b.WriteString("? " + line + "\n")
		}
		b.WriteString("--\n")
	}
	golden(t, "testdata/drain-plan.txt", b.String())
	for line := range strings.SplitSeq(b.String(), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestDrain_TellsWhatItCameTo holds the result of each end, and the table of one that goes on.
func TestDrain_TellsWhatItCameTo(t *testing.T) {
	all, some := afterwards(), afterwards()
	all.State, all.Guests = api.DrainDone, all.Guests[:1]
	some.State, some.Guests = api.DrainAborted, some.Guests[:1]
	some.Guests = append(some.Guests, api.DrainedGuest{Name: "web-9", State: api.DrainedWaiting})
	dead := all
	dead.Host, dead.Evacuate = "host-b", true
	var b bytes.Buffer
	for _, d := range []api.Drain{all, afterwards(), some, dead} {
		tabbed(t, &b, func(w *tabwriter.Writer) { drainResult(w, d) })
		b.WriteString("--\n")
	}
	going := afterwards()
	going.State, going.EndedAt, going.Left = api.DrainRunning, time.Time{}, 90*time.Second
	going.Guests = append(going.Guests, api.DrainedGuest{Instance: "5", Name: "app-2", How: api.DrainLive, State: api.DrainedFailed, Migration: "m-5", Reasons: []fault.Reason{
		{Code: "move_aborted", Message: "somebody aborted its move m-5", Change: "move it by itself, or drain the host again"},
	}})
	going.Guests[3] = api.DrainedGuest{Instance: "4", Name: "app-1", How: api.DrainLive, State: api.DrainedWaiting, Reasons: []fault.Reason{{Code: "outbound_limit", Message: "2 moves are under way"}}}
	tabbed(t, &b, func(w *tabwriter.Writer) { drainTable(w, going) })
	golden(t, "testdata/drain-result.txt", b.String())
}

// steps is a drain as it is seen, change by change.
func steps() []api.Drain {
	begun := time.Now()
	guest := func(name string, state api.DrainedState, attempts int, reasons ...fault.Reason) api.DrainedGuest {
		g := api.DrainedGuest{Instance: name, Name: name, How: api.DrainLive, State: state, Attempts: attempts, Reasons: reasons}
		if state != api.DrainedWaiting {
			g.To, g.BegunAt, g.EndedAt = "host-b", begun, begun.Add(2*time.Second)
		}
		return g
	}
	no := fault.Reason{Code: "x", Message: "host-b is gone"}
	at := func(state api.DrainState, guests ...api.DrainedGuest) api.Drain {
		return api.Drain{UUID: "d-1", Host: "host-a", State: state, BegunAt: begun, EndedAt: begun.Add(9 * time.Second), Left: 5 * time.Second, Guests: guests}
	}
	return []api.Drain{
		at(api.DrainRunning, guest("web", api.DrainedWaiting, 0), guest("db", api.DrainedWaiting, 0)),
		at(api.DrainRunning, guest("web", api.DrainedMoving, 0), guest("db", api.DrainedWaiting, 0)),
		at(api.DrainRunning, guest("web", api.DrainedMoving, 0), guest("db", api.DrainedWaiting, 0)),
		at(api.DrainRunning, guest("web", api.DrainedMoved, 0), guest("db", api.DrainedMoving, 0)),
		at(api.DrainRunning, guest("web", api.DrainedMoved, 0), guest("db", api.DrainedWaiting, 1, no)),
		at(api.DrainRunning, guest("web", api.DrainedMoved, 0), guest("db", api.DrainedMoving, 1)),
		at(api.DrainIncomplete, guest("web", api.DrainedMoved, 0), guest("db", api.DrainedFailed, 2, no)),
	}
}

func TestDrainProgress_IsALineForEachChangeAndOneBelowThemLive(t *testing.T) {
	want := `web  goes live to host-b
web  is on host-b after 2.0s (1 of 2)
db  goes live to host-b
db  attempt 1 failed, and is made again later: host-b is gone
db  goes live to host-b (attempt 2)
db  FAILED after 2 attempts: host-b is gone
`
	var plain, live bytes.Buffer
	p := &drainProgress{line: progress{w: &plain, now: time.Now, width: unknownWidth}, was: map[string]api.DrainedGuest{}}
	l := &drainProgress{line: progress{w: &live, live: true, now: time.Now, width: unknownWidth}, was: map[string]api.DrainedGuest{}}
	for _, d := range steps() {
		p.show(d)
		l.show(d)
	}
	p.end()
	l.end()
	if diff := cmp.Diff(want, plain.String()); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	if got := live.String(); !strings.Contains(got, "\rhost-a  1 of 2 moved, ETA 5.0s  db -> host-b") || !strings.HasSuffix(got, "host-b is gone\n") {
		t.Errorf("live:\n%q", got)
	}
}

// drainer is a host that drains as it was told.
type drainer struct {
	api.Drains
	plan  api.DrainPlan
	then  []api.Drain
	begun []api.DrainRequest
	by    []string
	asked []api.DrainRequest
}

func (d *drainer) Plan(_ context.Context, r api.DrainRequest) (api.DrainPlan, error) {
	d.asked = append(d.asked, r)
	return d.plan, nil
}

func (d *drainer) Begin(_ context.Context, r api.DrainRequest, by string) (api.Drain, error) {
	d.begun, d.by = append(d.begun, r), append(d.by, by)
	return d.then[0], nil
}

func (d *drainer) Get(_ context.Context, host string) (api.Drain, error) {
	if len(d.then) == 0 || host != d.then[0].Host {
		return api.Drain{}, fault.New(fault.NotFound, "no drain of %s", host)
	}
	return d.then[0], nil
}
func (d *drainer) List(context.Context) ([]api.Drain, error) {
	return d.then[:min(1, len(d.then))], nil
}
func (d *drainer) Abort(context.Context, string, string) (api.Drain, error) {
	return d.then[len(d.then)-1], nil
}

func (d *drainer) Watch(context.Context, string) (<-chan api.Drain, error) {
	ch := make(chan api.Drain, len(d.then))
	for _, one := range d.then {
		ch <- one
	}
	close(ch)
	return ch, nil
}

// served runs commands against an agent of host-a with these services. in is what is typed.
func served(t *testing.T, s api.Services) func(line, in string) (code int, out, errs string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	server := api.NewServer(api.Options{Services: s, Name: "host-a", Runtime: &runtime.System{}, Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(line, in string) (int, string, string) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), linked(), append(strings.Fields(line), "-c", socket), strings.NewReader(in), &out, &errs)
		return code, out.String(), errs.String()
	}
}

// TestDrain_ShowsThePlanAsksAndExitsAsItEnds: nothing begins before somebody has said yes,
// and where nobody is there to be asked it is not taken from what a script reads.
func TestDrain_ShowsThePlanAsksAndExitsAsItEnds(t *testing.T) {
	done := steps()
	done[len(done)-1].State = api.DrainDone
	whole := emptied()
	whole.Guests = whole.Guests[:2]
	for _, tt := range []struct {
		name, line, in string
		answers        bool
		plan           api.DrainPlan
		then           []api.Drain
		code, begun    int
		says           []string
	}{
		{"nobody is there to be asked", "host drain", "yes\n", false, emptied(), steps(), exitUsage, 0, []string{"host-a has 6 guests", "say --yes"}},
		{"declined", "host drain", "no\n", true, emptied(), steps(), exitRefused, 0, []string{"This moves 5 guests away from host-a, as far as there is room, and", "Type yes to go on", "nothing was done"}},
		{"left behind", "host drain", "yes\n", true, emptied(), steps(), exitUndone, 1, []string{"1 WOULD STAY", "db  FAILED after 2 attempts", "host-a IS NOT EMPTY"}},
		{"empty", "host drain --yes", "", false, whole, done, exitOK, 1, []string{"2 would move away", "host-a is empty"}},
		{"only planned", "host drain --plan", "", false, emptied(), nil, exitDegraded, 0, []string{"gpu-1 would go cold, since"}},
		{"only planned, and all would go", "host drain --plan", "", false, whole, nil, exitOK, 0, []string{"db-1"}},
		{"left alone", "host drain --yes --detach", "", false, whole, steps(), exitOK, 1, []string{"drain of host-a: RUNNING"}},
		{"as JSON", "host drain --yes --json", "", false, emptied(), steps(), exitUndone, 1, []string{`"state": "incomplete"`}},
		{"asked for by its status", "host drain-status", "", false, whole, steps(), exitOK, 0, []string{"drain of host-a: RUNNING, 0 of 2 guests moved"}},
		{"watched", "host drain-watch host-a", "", false, whole, steps(), exitUndone, 0, []string{"host-a IS NOT EMPTY"}},
		{"aborted", "host drain-abort", "", false, whole, steps()[:2], exitOK, 0, []string{"is being given up"}},
		{"no drain", "host drain-status", "", false, whole, nil, exitNotFound, 0, []string{"drains and evacuates none"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.answers {
				t.Setenv("BERTH_ASK", "1")
			}
			d := &drainer{plan: tt.plan, then: tt.then}
			code, out, errs := served(t, api.Services{Drains: d})(tt.line, tt.in)
			if code != tt.code || len(d.begun) != tt.begun {
				t.Errorf("exit code %d, want %d; begun %d times, want %d\n%s%s", code, tt.code, len(d.begun), tt.begun, out, errs)
			}
			for _, want := range tt.says {
				if !strings.Contains(out+errs, want) {
					t.Errorf("nothing says %q:\n%s%s", want, out, errs)
				}
			}
		})
	}
}

func TestDrain_AsksForWhatItsFlagsMean(t *testing.T) {
	d := &drainer{plan: emptied(), then: steps()}
	run := served(t, api.Services{Drains: d})
	for line, want := range map[string]api.DrainRequest{
		"host drain --cold --to host-b --to host-c": {To: []string{"host-b", "host-c"}, Cold: true},
		"host drain --priority db=5 --first web --first app --last old --last older": {Priorities: map[string]int{
			"db": 5, "web": farPriority + 2, "app": farPriority + 1, "old": -farPriority, "older": -farPriority - 1,
		}},
		"evacuate --host host-s --stopped --accept-data-loss --to host-b": {Host: "host-s", Evacuate: true, Stopped: true, AcceptLoss: true, To: []string{"host-b"}},
	} {
		d.begun, d.asked = nil, nil
		if code, out, errs := run(line+" --yes --detach", ""); code != exitOK || len(d.begun) != 1 || len(d.asked) != 1 {
			t.Fatalf("%s: exit code %d\n%s%s", line, code, out, errs)
		}
		want.UUID = d.begun[0].UUID
		if diff := cmp.Diff(want, d.begun[0]); diff != "" || want.UUID == "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
		if want.UUID = ""; !cmp.Equal(want, d.asked[0]) {
			t.Errorf("%s is planned as %+v", line, d.asked[0])
		}
	}
}

// TestEvacuateHost_AsksForTheLossOfDataAndPlansAnew: what would be lost is said, and said yes
// to, by itself.
func TestEvacuateHost_AsksForTheLossOfDataAndPlansAnew(t *testing.T) {
	t.Setenv("BERTH_ASK", "1")
	d := &drainer{then: steps(), plan: api.DrainPlan{Host: "host-s", Evacuate: true, Guests: []api.PlannedGuest{{
		Name: "web", How: api.DrainEvacuate, Blockers: []fault.Reason{{Code: "data_would_be_lost", Message: "host-c: disk vda (/d) would be made anew, and what was written to it be lost"}},
	}}}}
	run := served(t, api.Services{Drains: d})
	code, _, errs := run("evacuate --host host-s", "no\n")
	if code != exitRefused || len(d.begun) != 0 || !strings.Contains(errs, "DATA WOULD BE LOST. web: host-c: disk vda (/d)") {
		t.Errorf("declined: exit code %d, begun %d times:\n%s", code, len(d.begun), errs)
	}
	// Whoever accepts it is asked once more whether to begin at all.
	code, _, errs = run("evacuate --host host-s", "yes\n")
	if code != exitRefused || len(d.asked) != 3 || d.asked[1].AcceptLoss || !d.asked[2].AcceptLoss || !strings.Contains(errs, "This evacuates 1 guest of host-s") {
		t.Errorf("accepted, and then not: exit code %d, planned %+v:\n%s", code, d.asked, errs)
	}
	code, _, errs = run("evacuate --host host-s", "yes\nyes\n")
	if code != exitUndone || len(d.begun) != 1 || !d.begun[0].AcceptLoss {
		t.Errorf("accepted: exit code %d, begun %+v:\n%s", code, d.begun, errs)
	}
}
