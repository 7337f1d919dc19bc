package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/task"
)

// moving is a migration in the middle of its memory.
func moving() migration.Migration {
	return migration.Migration{
		InstanceName: "web-1", SourceCompute: "host-a", DestCompute: "host-b", Status: migration.StatusRunning, Phase: task.Doing, Step: migration.StepStream,
		Progress: migration.Progress{
			Phase: "memory", MemoryTotal: 128 << 20, MemoryRemaining: 32 << 20, Rate: 20 << 20, DirtyRate: 4 << 20, Iteration: 3,
		},
	}
}

func TestProgressLine(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*migration.Migration)
		want   []string
	}{
		{"sending memory", func(*migration.Migration) {}, []string{"web-1  host-a -> host-b  memory", " 75%", "20 MiB/s", "32 MiB left", "dirty 4.0 MiB/s", "pass 3", "ETA 2.0s"}},
		{"a bar where there is room", func(m *migration.Migration) { m.Progress.DirtyRate, m.Progress.Iteration = 0, 1 }, []string{"left  [###############.....]"}},
		{"sending disks", func(m *migration.Migration) {
			m.Progress = migration.Progress{Phase: "disk", DiskTotal: 64 << 20, DiskRemaining: 32 << 20, Rate: 16 << 20}
		}, []string{"host-b  disks", " 50%", "ETA 2.0s"}},
		{"never ends", func(m *migration.Migration) { m.Progress.DirtyRate = 30 << 20 }, []string{"ETA never"}},
		{"no rate yet", func(m *migration.Migration) { m.Progress.Rate = 0 }, []string{"ETA ?"}},
		{"nothing sent yet", func(m *migration.Migration) { m.Progress = migration.Progress{Phase: "setup"} }, []string{"starting the transfer"}},
		{"preparing", func(m *migration.Migration) {
			m.Status, m.Step, m.Progress = migration.StatusPreparing, migration.StepPreLiveMigration, migration.Progress{}
		}, []string{"preparing host-b"}},
		{"undoing", func(m *migration.Migration) { m.Phase = task.Undoing }, []string{"putting back: stopping the transfer"}},
		{"held up", func(m *migration.Migration) { m.Status, m.Step = migration.StatusError, migration.StepAcceptToken }, []string{"held up, trying again: handing the guest over"}},
		{"over", func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusCompleted, migration.OutcomeCompleted
			m.UpdatedAt = m.CreatedAt.Add(9400 * time.Millisecond)
		}, []string{"moved in 9.4s"}},
		{"no destination yet", func(m *migration.Migration) { m.Step, m.DestCompute = migration.StepInspectSource, "" }, []string{"host-a -> (choosing)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := moving()
			tt.change(&m)
			line := progressLine(m, doingWords(m), 120)
			for _, want := range tt.want {
				if !strings.Contains(line, want) {
					t.Errorf("%q lacks %q", line, want)
				}
			}
		})
	}
}

func TestDoingWords_EveryStepHasWords(t *testing.T) {
	for _, story := range conductor.Stories() {
		for _, step := range story.Steps {
			m := moving()
			m.MigrationType, m.Stage, m.InPlace, m.Status, m.Step = story.Type, story.Stage, story.InPlace, step.Status, step.Name
			words := doingWords(m)
			if words == "" || strings.Contains(words, "_") {
				t.Errorf("%s: step %s is shown as %q", story.Name, step.Name, words)
			}
			// What nobody has found words for is shown as the end of it.
			if words == "cleaning up" && !step.Forward {
				t.Errorf("%s: step %s is shown as %q", story.Name, step.Name, words)
			}
		}
	}
}

// story is what a watcher is told of a whole move, a second apart.
func story() []migration.Migration {
	at := func(change func(*migration.Migration)) migration.Migration {
		m := moving()
		m.Progress = migration.Progress{}
		change(&m)
		return m
	}
	step := func(name string) migration.Migration {
		return at(func(m *migration.Migration) { m.Step = name })
	}
	sending := func(left uint64) migration.Migration {
		return at(func(m *migration.Migration) {
			m.Progress = migration.Progress{Phase: "memory", MemoryTotal: 100 << 20, MemoryRemaining: left << 20, Rate: 10 << 20}
		})
	}
	return []migration.Migration{
		at(func(m *migration.Migration) { m.Status, m.Step, m.DestCompute = migration.StatusAccepted, "", "" }),
		at(func(m *migration.Migration) { m.Step, m.DestCompute = migration.StepChooseDestination, "" }),
		step(migration.StepCheckDestination), step(migration.StepClaim), step(migration.StepPreLiveMigration), step(migration.StepStream),
		sending(90), sending(80), sending(70), sending(60),
		step(migration.StepStream), // the job is over, and its numbers are gone
		step(migration.StepCommit), step(migration.StepCleanUpSource), step(""),
		at(func(m *migration.Migration) {
			m.Step, m.Outcome, m.UpdatedAt = "", migration.OutcomeCompleted, m.CreatedAt.Add(14*time.Second)
		}),
	}
}

func TestProgress_PlainPrintsALineForEachChangeAndNoMoreThanOneInTwoSeconds(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	p := &progress{w: &out, to: "host-b", now: func() time.Time { return now }}
	for _, m := range story() {
		p.show(m)
		now = now.Add(time.Second)
	}
	p.end()
	want := `web-1  host-a -> host-b  checking both hosts
web-1  host-a -> host-b  checking both hosts
web-1  host-a -> host-b  claiming room on host-b
web-1  host-a -> host-b  preparing host-b
web-1  host-a -> host-b  starting the transfer
web-1  host-a -> host-b  memory  10%  ETA 9.0s    10 MiB/s   90 MiB left
web-1  host-a -> host-b  memory  30%  ETA 7.0s    10 MiB/s   70 MiB left
web-1  host-a -> host-b  sending memory
web-1  host-a -> host-b  handing the guest over
web-1  host-a -> host-b  cleaning up
web-1  host-a -> host-b  moved in 14.0s
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgress_LiveIsOneLineThatFitsTheTerminal(t *testing.T) {
	var out strings.Builder
	p := &progress{w: &out, live: true, width: 60, to: "host-b", now: time.Now}
	for _, m := range story() {
		p.show(m)
	}
	p.end()
	text, ended := strings.CutSuffix(out.String(), "\n")
	if !ended || strings.Contains(text, "\n") {
		t.Errorf("%q is not one line", text)
	}
	for _, drawn := range strings.Split(text, "\r") {
		if len(drawn) >= 60 {
			t.Errorf("%q is wider than the terminal", drawn)
		}
	}
	if last := text[strings.LastIndex(text, "\r")+1:]; strings.TrimRight(last, " ") != "web-1  host-a -> host-b  moved in 14.0s" {
		t.Errorf("ends with %q", last)
	}
}

func TestRestored_NamesWhatHadHappenedInTheOrderOfItsUndo(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	done := func(name string, begun time.Time) migration.StepRecord {
		return migration.StepRecord{Name: name, State: task.StepUndone, Begun: begun, Ended: begun.Add(time.Second)}
	}
	m := moving()
	m.UpdatedAt = begun.Add(4 * time.Second)
	m.Steps = []migration.StepRecord{
		done(migration.StepCheckDestination, begun), done(migration.StepClaim, begun), done(migration.StepSwapAllocations, begun),
		{Name: migration.StepPreLiveMigration, State: task.StepUndone},
	}
	want := "the allocation is on host-a again, the claim on host-b is released; that took 3.0s"
	if got := restored(m); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := restored(migration.Migration{}); got != "nothing had to be put back" {
		t.Errorf("%q of a move that did nothing", got)
	}
}
