package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

// scripted conducts one move, of which each word brings what it was told to.
type scripted struct {
	api.Migrations
	asked []string
	got   api.Migrate
	// then are the records that follow on each word, the last of which ends a watch.
	then map[string][]migration.Migration
	now  []migration.Migration
}

func (s *scripted) word(name string) (migration.Migration, error) {
	s.asked = append(s.asked, name)
	if s.now = s.then[name]; len(s.now) == 0 {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, name+" web-1", fault.Reason{Code: "x", Message: "no", Change: "nothing"})
	}
	return s.now[0], nil
}

func (s *scripted) Start(_ context.Context, r api.Migrate) (migration.Migration, error) {
	s.got = r
	return s.word("start")
}
func (s *scripted) Confirm(_ context.Context, ref string) (migration.Migration, error) {
	return s.word("confirm")
}
func (s *scripted) Revert(_ context.Context, ref string) (migration.Migration, error) {
	return s.word("revert")
}
func (s *scripted) Abort(context.Context, string) (migration.Migration, error) {
	return s.word("abort")
}
func (s *scripted) Watch(context.Context, string) (<-chan migration.Migration, error) {
	ch := make(chan migration.Migration, len(s.now))
	for _, m := range s.now {
		ch <- m
	}
	if s.now[len(s.now)-1].Done() {
		close(ch)
	}
	return ch, nil
}

func TestResize_WatchesConfirmsAndExitsAsItEnds(t *testing.T) {
	at := func(status migration.Status, change func(*migration.Migration)) migration.Migration {
		m := resized()
		m.Status, m.Stage, m.Moved, m.Steps, m.Phase = status, migration.StageMove, 0, nil, task.Doing
		if status == migration.StatusFinished {
			m.Stage = migration.StageFinished
		}
		if change != nil {
			change(&m)
		}
		return m
	}
	ended := func(status migration.Status, o migration.Outcome, err error) migration.Migration {
		return at(status, func(m *migration.Migration) {
			if m.Outcome = o; err != nil {
				m.Error = task.Keep(err)
			}
		})
	}
	accepted, there := at(migration.StatusAccepted, nil), at(migration.StatusFinished, nil)
	confirming := at(migration.StatusConfirming, func(m *migration.Migration) { m.Stage, m.Step = migration.StageConfirm, migration.StepConfirmSource })
	reverting := at(migration.StatusReverting, func(m *migration.Migration) { m.Stage, m.Step = migration.StageRevert, migration.StepHandBack })
	waits := []migration.Migration{accepted, there}
	for _, tt := range []struct {
		name, line string
		then       map[string][]migration.Migration
		code       int
		asked      string
		says       []string
	}{
		{"it waits", "resize web-1 host-b --flavor large", map[string][]migration.Migration{"start": waits}, 0, "start",
			[]string{"web-1 has flavor large now, on host-b", "confirm with `berth resize confirm web-1`"}},
		{"it is confirmed at once", "resize web-1 host-b --flavor large --confirm", map[string][]migration.Migration{
			"start": waits, "confirm": {confirming, ended(migration.StatusConfirmed, migration.OutcomeCompleted, nil)},
		}, 0, "start confirm", []string{"confirmed: web-1 stays on host-b"}},
		{"it fails and is undone", "resize web-1 host-b --flavor large --confirm", map[string][]migration.Migration{
			"start": {accepted, ended(migration.StatusFailed, migration.OutcomeUndone, fault.New(fault.Unavailable, "host-b is gone"))},
		}, 8, "start", []string{"web-1 stays on host-a", "host-b is gone"}},
		{"it is refused", "migrate web-1 host-b --cold", map[string][]migration.Migration{}, 3, "start", []string{"to do:   nothing"}},
		{"no destination takes it", "migrate web-1 --cold", map[string][]migration.Migration{
			"start": {accepted, ended(migration.StatusFailed, migration.OutcomeRefused, fault.New(fault.DoesNotFit, "no room anywhere"))},
		}, 3, "start", []string{"no room anywhere"}},
		{"it is in doubt", "rebuild web-1 --image /srv/x.raw", map[string][]migration.Migration{
			"start": {accepted, ended(migration.StatusError, migration.OutcomeInDoubt, fault.New(fault.InDoubt, "libvirt does not say"))},
		}, 9, "start", []string{"libvirt does not say"}},
		{"confirmed by hand", "resize confirm web-1", map[string][]migration.Migration{
			"confirm": {confirming, ended(migration.StatusConfirmed, migration.OutcomeCompleted, nil)},
		}, 0, "confirm", []string{"confirmed: web-1 stays on host-b"}},
		{"reverted by hand", "resize revert web-1", map[string][]migration.Migration{
			"revert": {reverting, ended(migration.StatusReverted, migration.OutcomeReverted, nil)},
		}, 0, "revert", []string{"handing the guest back", "web-1 is on host-a again, as it was before"}},
		{"a revert that is given up", "resize revert web-1", map[string][]migration.Migration{
			"revert": {reverting, at(migration.StatusFinished, func(m *migration.Migration) {
				m.Error = task.Keep(fault.New(fault.Unavailable, "host-a does not answer"))
			})},
		}, 8, "revert", []string{"the revert of web-1 was given up: host-a does not answer"}},
		{"a revert that is aborted", "migration abort web-1 --wait", map[string][]migration.Migration{"abort": {reverting, there}}, 0, "abort",
			[]string{"finished", "berth resize revert web-1"}},
		{"accepted and left alone", "resize web-1 --vcpus 2 --memory 512 --detach", map[string][]migration.Migration{"start": waits}, 0, "start", []string{"accepted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			moves := &scripted{then: tt.then}
			code, out := conduct(t, moves)(strings.Fields(tt.line)...)
			if code != tt.code || strings.Join(moves.asked, " ") != tt.asked {
				t.Errorf("exit code %d after %q, want %d after %q", code, moves.asked, tt.code, tt.asked)
			}
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("nothing says %q:\n%s", want, out)
				}
			}
		})
	}
}

func TestMigrate_AsksForTheTypeThatItsFlagsMean(t *testing.T) {
	moves := &scripted{}
	run := conduct(t, moves)
	zero, day := time.Duration(0), 24*time.Hour
	for line, want := range map[string]api.Migrate{
		"migrate web host-b":                                                   {Destination: "host-b"},
		"migrate web --live":                                                   {MigrationType: migration.TypeLiveMigration},
		"migrate web --max-downtime 1s":                                        {MigrationType: migration.TypeLiveMigration, Options: migration.Options{MaxDowntime: time.Second}},
		"migrate web --cold --bandwidth 1MiB/s":                                {MigrationType: migration.TypeMigration, Options: migration.Options{Bandwidth: 1 << 20}},
		"migrate web --offline":                                                {MigrationType: migration.TypeMigration, Offline: true},
		"migrate web --confirm-window 24h":                                     {MigrationType: migration.TypeMigration, ConfirmWindow: &day},
		"resize web --flavor large --shutdown-timeout 0":                       {MigrationType: migration.TypeResize, FlavorName: "large", ShutdownTimeout: &zero},
		"rebuild web --image /x --image-format raw --property hw_numa_nodes=2": {MigrationType: migration.TypeRebuild, Image: &migration.Image{Path: "/x", Format: "raw", Properties: map[string]string{"hw_numa_nodes": "2"}}},
	} {
		if code, out := run(strings.Fields(line)...); code != exitRefused {
			t.Errorf("%s: exit code %d: %s", line, code, out)
		}
		want.Instance, want.Migration = "web", moves.got.Migration
		if diff := cmp.Diff(want, moves.got); diff != "" || want.Migration == "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
}
