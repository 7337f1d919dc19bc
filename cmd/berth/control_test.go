package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/options"
	"berth/migration/task"
	"berth/migration/turns"
)

// busy is a guest that changes its memory faster than it is sent, in its seventh pass.
func busy(m *migration.Migration) {
	m.Progress = migration.Progress{
		Phase: "memory", Elapsed: 2 * time.Minute, MemoryTotal: 4 << 30, MemoryProcessed: 9 << 30, MemoryRemaining: 1288490188, Rate: 110 << 20, DirtyRate: 130 << 20,
		Iteration: 7, Never: true, ExpectedDowntime: 11700 * time.Millisecond, Stalls: 2, Throttle: 30,
	}
}

// following is a guest in post-copy.
func following(m *migration.Migration) {
	m.Status, m.Step = migration.StatusPostCopy, migration.StepFollowPostCopy
	m.Progress = migration.Progress{Phase: "post-copy", MemoryTotal: 1 << 30, MemoryRemaining: 350 << 20, Rate: 30 << 20, Remaining: 11700 * time.Millisecond, PageRequests: 90}
}

// queued is a move that waits for its turn, with those before it, in the words of whoever
// decides about turns.
func queued(m *migration.Migration) {
	m.Status, m.Step, m.DestCompute, m.Progress = migration.StatusQueued, "", "", migration.Progress{}
	asked := []turns.Move{{ID: "1"}, {ID: "2"}, {ID: "3"}, {ID: "4"}}
	under := []turns.Move{{ID: "5"}, {ID: "6"}}
	m.Waits = turns.Decide(turns.State{Host: "host-a", Limits: turns.Limits{Outbound: 2}, Under: under, Waiting: asked}).Waits["4"]
}

func TestProgressLine_OfALiveMigrationUnderControl(t *testing.T) {
	var out strings.Builder
	for _, tt := range []struct {
		name   string
		common bool // fits 80 columns
		change func(*migration.Migration)
	}{
		{"queued", true, queued},
		{"waits for the link", false, func(m *migration.Migration) {
			m.Status, m.Step = migration.StatusQueued, migration.StepClaim
			m.Waits = turns.Decide(turns.State{
				Host: "host-a", Limits: turns.Limits{PerLink: 1}, Under: []turns.Move{{ID: "1", To: "host-b"}}, Waiting: []turns.Move{{ID: "2", To: "host-b"}},
			}).Waits["2"]
		}},
		{"waits for room at its destination", false, func(m *migration.Migration) {
			m.Status, m.Step = migration.StatusQueued, migration.StepClaim
			m.Waits = []fault.Reason{{Code: "inbound_limit", Message: "2 guests are on their way to host-b already"}}
		}},
		{"setup", true, func(m *migration.Migration) { m.Progress = migration.Progress{Phase: "setup"} }},
		{"first pass", true, func(m *migration.Migration) {
			m.Progress = migration.Progress{Phase: "memory", MemoryTotal: 4 << 30, MemoryRemaining: 1 << 30, Rate: 900 << 20, Iteration: 1, Remaining: 1200 * time.Millisecond}
		}},
		{"second pass", true, func(m *migration.Migration) {
			m.Progress = migration.Progress{Phase: "memory", MemoryTotal: 4 << 30, MemoryRemaining: 12 << 20, Rate: 90 << 20, Iteration: 2, Remaining: 100 * time.Millisecond}
		}},
		{"disks", true, func(m *migration.Migration) {
			m.Progress = migration.Progress{Phase: "disk", DiskTotal: 40 << 30, DiskRemaining: 10 << 30, Rate: 1 << 30}
		}},
		{"busy", false, busy},
		{"switch-over", true, func(m *migration.Migration) { m.Progress.Phase = "switchover" }},
		{"post-copy begins", true, func(m *migration.Migration) { m.Step = migration.StepPostCopy }},
		{"post-copy", true, following},
		{"post-copy, no numbers yet", true, func(m *migration.Migration) { following(m); m.Progress.MemoryTotal = 0 }},
		{"post-copy broke", false, func(m *migration.Migration) { following(m); m.Progress.Phase = "post-copy failed" }},
		{"post-copy broke, in doubt", false, func(m *migration.Migration) {
			following(m)
			m.Status, m.Progress.Phase = migration.StatusError, "post-copy failed"
		}},
		{"over", true, func(m *migration.Migration) {
			m.Status, m.Outcome, m.UpdatedAt = migration.StatusCompleted, migration.OutcomeCompleted, m.CreatedAt.Add(14*time.Second)
		}},
	} {
		m := moving()
		tt.change(&m)
		line := progressLine(m, doingWords(m), plainWidth)
		out.WriteString("# " + tt.name + "\n" + line + "\n")
		if n := utf8.RuneCountInString(line); tt.common && n > 80 {
			t.Errorf("%s: %d columns: %q", tt.name, n, line)
		}
	}
	golden(t, "testdata/progress-live.txt", out.String())
}

func TestListRemark_OfALiveMigrationUnderControl(t *testing.T) {
	for want, change := range map[string]func(*migration.Migration){
		"waiting: 2 guests leave host-a (limit 2); 3 moves wait before it":        queued,
		"sending memory, 70%, does not end by itself":                             busy,
		"running there, memory follows, 65%, ETA 11.7s":                           following,
		"post-copy broke: the guest waits on host-b for memory, connecting again": func(m *migration.Migration) { following(m); m.Progress.Phase = phaseBroken },
	} {
		m := moving()
		change(&m)
		if got := listRemark(m, time.Now()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPrintMigration_UnderControl(t *testing.T) {
	show := func(change func(*migration.Migration)) string {
		m := moving()
		m.UUID, m.InstanceUUID, m.Attempt = "6f1c0d6e-2b1f-4c44-9d0b-7f6a1c2d3e4f", "11111111-1111-4111-8111-111111111111", 1
		m.MigrationType, m.CreatedAt = migration.TypeLiveMigration, time.Now().Add(-90*time.Second)
		change(&m)
		var out strings.Builder
		if err := (&app{out: &out}).printMigration(m); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	minute := func(n int) time.Time { return time.Now().Add(-time.Duration(n) * time.Minute) }
	streaming := func(m *migration.Migration) {
		busy(m)
		m.Steps = []migration.StepRecord{{Name: migration.StepStream, State: task.StepBegun, Begun: minute(2), Tries: 1}}
	}
	controlled := func(m *migration.Migration) {
		streaming(m)
		m.Progress.Next = "post-copy after 1 more pass without progress, abort at 20m0s"
		m.Options, m.OptionsFrom = options.Merge(
			options.Layer{From: options.FromRequest, Live: options.Live{MaxDowntime: 2 * time.Second, Bandwidth: options.NoRate}},
			options.Layer{From: options.FromFlavor, Live: options.Live{Schedule: "2:max-downtime=800ms, 3:post-copy, 4:abort", PostCopy: options.On}},
			options.Layer{From: options.FromConfig, Live: options.Live{Bandwidth: 50 << 20, StallTimeout: 30 * time.Second}},
		)
		m.Control = []migration.Control{
			{At: minute(6), Done: true, Action: converge.Action{Do: converge.ActDowntime, Downtime: 800 * time.Millisecond, Why: converge.WhyStalled, Message: "2 passes came no nearer to the end"}},
			{At: minute(5), Done: true, By: "operator:alice", Bandwidth: 50 << 20, Action: converge.Action{Do: "bandwidth", Why: "set", Message: "the bandwidth was set on the way"}},
			{At: minute(4), Error: "the host does not answer", Action: converge.Action{Do: converge.ActPostCopy, Message: "3 passes came no nearer to the end"}},
			{At: minute(3), Action: converge.Action{Do: converge.ActAbort, Observed: true, Message: "4 passes came no nearer to the end"}},
		}
	}
	golden(t, "testdata/migration-control.txt", "# waits for its turn\n"+show(func(m *migration.Migration) {
		queued(m)
		m.Priority = migration.PriorityDrain
		m.Waits = append(m.Waits, fault.Reason{Code: "link_limit", Message: "1 of 1 moves is between host-a and host-b"})
	})+"\n# does not converge\n"+show(controlled)+"\n# does not converge, and nothing is set\n"+show(streaming)+"\n# over, by post-copy\n"+show(func(m *migration.Migration) {
		following(m)
		m.Status, m.Outcome, m.Step = migration.StatusCompleted, migration.OutcomeCompleted, ""
		m.Progress.Downtime, m.HandoverDowntime = 180*time.Millisecond, 20*time.Millisecond
		m.Steps = []migration.StepRecord{{Name: migration.StepFollowPostCopy, State: task.StepEnded, Duration: 12 * time.Second, Tries: 1}}
	}))
}

func TestOutcomeWords_OfPostCopy(t *testing.T) {
	m := moving()
	m.MigrationType, m.Status, m.Outcome = migration.TypeLiveMigration, migration.StatusCompleted, migration.OutcomeCompleted
	m.Progress.Downtime, m.HandoverDowntime = 180*time.Millisecond, 20*time.Millisecond
	plain := "web-1 runs on host-b; it stood still for 200ms, of which the hand-over took 20ms"
	if got := outcomeWords(m, time.Now()); got != plain {
		t.Errorf("%q, want %q", got, plain)
	}
	m.Steps = []migration.StepRecord{{Name: migration.StepFollowPostCopy, State: task.StepEnded, Duration: 12 * time.Second}}
	if got, want := outcomeWords(m, time.Now()), plain+", and its memory followed in 12.0s (post-copy)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// controlled answers what is done to a move on its way.
type controlled struct {
	scripted
	set []api.SetMigration
}

func (s *controlled) Set(_ context.Context, ref string, in api.SetMigration) (migration.Migration, error) {
	s.set = append(s.set, in)
	return s.word("set " + ref)
}

func (s *controlled) ForceComplete(_ context.Context, ref string) (migration.Migration, error) {
	return s.word("force " + ref)
}

// serveMoves serves moves until the test ends, and gives the socket.
func serveMoves(t *testing.T, moves api.Migrations) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	server := api.NewServer(api.Options{Services: api.Services{Migrations: moves}, Name: "host-a", Runtime: &runtime.System{}, Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// conduct serves moves until the test ends, and runs commands that ask there.
func conduct(t *testing.T, moves api.Migrations) func(line ...string) (code int, out string) {
	t.Helper()
	socket := serveMoves(t, moves)
	return func(line ...string) (int, string) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), linked(), append(line, "-c", socket), strings.NewReader(""), &out, &errs)
		return code, out.String() + errs.String()
	}
}

func TestMigrationSet_SaysWhatHoldsNow(t *testing.T) {
	m := moving()
	moves := &controlled{scripted: scripted{then: map[string][]migration.Migration{"set web-1": {m}}}}
	run := conduct(t, moves)
	for _, tt := range []struct {
		line string
		want api.SetMigration
		says string
	}{
		{"--max-downtime 2s", api.SetMigration{MaxDowntime: 2 * time.Second}, "web-1: it may stand still for 2.0s\n"},
		{"--bandwidth 50MiB/s --max-downtime 800ms", api.SetMigration{Bandwidth: 50 << 20, MaxDowntime: 800 * time.Millisecond}, "web-1: sent with at most 50.0 MiB/s; it may stand still for 800ms\n"},
		{"--bandwidth none", api.SetMigration{Bandwidth: api.Unbounded}, "web-1: sent without a bound\n"},
		{"--bandwidth 0", api.SetMigration{Bandwidth: api.Unbounded}, "web-1: sent without a bound\n"},
	} {
		code, out := run(append([]string{"migration", "set", "web-1"}, strings.Fields(tt.line)...)...)
		if code != 0 || out != tt.says || moves.set[len(moves.set)-1] != tt.want {
			t.Errorf("%s: exit code %d, %q, asked %+v", tt.line, code, out, moves.set)
		}
	}
	if code, out := run("migration", "set", "other", "--max-downtime", "1s"); code != exitRefused || !strings.Contains(out, "set other web-1") {
		t.Errorf("what is refused: exit code %d: %s", code, out)
	}
}

func TestMigrationForceComplete_WatchesWhereItIsToldTo(t *testing.T) {
	forced, over := moving(), moving()
	forced.UUID, over.UUID = "6f1c", "6f1c"
	forced.Control = []migration.Control{{Done: true, By: "user:root", Action: converge.Action{Do: converge.ActSuspend, Why: whyForced}}}
	over.Status, over.Outcome, over.MigrationType = migration.StatusCompleted, migration.OutcomeCompleted, migration.TypeLiveMigration
	moves := &controlled{scripted: scripted{then: map[string][]migration.Migration{"force web-1": {forced, over}}}}
	run := conduct(t, moves)
	if code, out := run("migration", "force-complete", "web-1"); code != 0 || !strings.Contains(out, "web-1 is forced to its end: its CPUs stand still until its memory is there") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := run("migration", "force-complete", "web-1", "--wait"); code != 0 || !strings.Contains(out, "web-1 runs on host-b") {
		t.Errorf("watched: exit code %d: %s", code, out)
	}
	if code, out := run("migration", "force-complete", "other"); code != exitRefused {
		t.Errorf("what is refused: exit code %d: %s", code, out)
	}
}

func TestMigrate_TakesEveryOptionOfALiveMigration(t *testing.T) {
	moves := &controlled{}
	run := conduct(t, moves)
	values := map[options.Kind]string{
		options.KindRate: "20MiB/s", options.KindSize: "64MiB", options.KindDuration: "2s", options.KindPercent: "30", options.KindNumber: "3", options.KindSwitch: "on",
		options.KindText: "2:max-downtime=800ms, 4:abort",
	}
	for _, o := range options.All() {
		text, spelled := values[o.Kind]
		if !spelled {
			text = o.Words[len(o.Words)-1]
		}
		var want migration.Options
		if err := options.Set(&want, o.Name, text); err != nil {
			t.Fatalf("%s %s: %v", o.Name, text, err)
		}
		run("migrate", "web", "--"+o.Flag+"="+text)
		if diff := cmp.Diff(want, moves.got.Options); diff != "" {
			t.Errorf("--%s %s (-want +got):\n%s", o.Flag, text, diff)
		}
		if kind := moves.got.MigrationType; o.Flag != "bandwidth" && kind != migration.TypeLiveMigration {
			t.Errorf("--%s asks for the type %q", o.Flag, kind)
		}
	}
	for line, want := range map[string]api.Migrate{
		"migrate web --priority urgent":      {Priority: migration.PriorityUrgent},
		"migrate web --priority 7":           {Priority: 7},
		"migrate web --post-copy":            {MigrationType: migration.TypeLiveMigration, Options: migration.Options{PostCopy: options.On}},
		"migrate web --postcopy=off":         {MigrationType: migration.TypeLiveMigration, Options: migration.Options{PostCopy: options.Off}},
		"migrate web --parallel 4":           {MigrationType: migration.TypeLiveMigration, Options: migration.Options{Parallel: 4}},
		"migrate web --bandwidth none":       {Options: migration.Options{Bandwidth: options.NoRate}},
		"migrate web --schedule 2:post-copy": {MigrationType: migration.TypeLiveMigration, Options: migration.Options{Schedule: "2:post-copy"}},
	} {
		if code, out := run(strings.Fields(line)...); code != exitRefused {
			t.Errorf("%s: exit code %d: %s", line, code, out)
		}
		want.Instance, want.Migration = "web", moves.got.Migration
		if diff := cmp.Diff(want, moves.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}

// TestMigrate_HelpHasEveryFlagInAGroup: what is in none would be lost among the others.
func TestMigrate_HelpHasEveryFlagInAGroup(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	var out, errs bytes.Buffer
	if code := execute(t.Context(), linked(), []string{"migrate", "--help"}, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	golden(t, "testdata/migrate-help.txt", out.String())
	var grouped []string
	for _, g := range migrateGroups {
		grouped = append(grouped, g.names...)
	}
	for _, o := range options.All() {
		if !slices.Contains(grouped, o.Flag) {
			t.Errorf("--%s is in no group", o.Flag)
		}
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 92 { // as wide as the house's other help
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
