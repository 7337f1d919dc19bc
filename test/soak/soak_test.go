package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// chosen are the rounds that nobody gets right at first. Their like runs with other
// moments in `make soak`.
var chosen = []struct {
	strikes   []Strike
	bandwidth uint64
	want      []Outcome // empty: completed or undone
}{
	{[]Strike{{"kill -9 source agent", Moment{Memory: true}, 0}}, 40 << 20, []Outcome{Completed}},
	{[]Strike{{"kill -9 destination agent", Moment{Step: migration.StepPreLiveMigration}, 500 * time.Millisecond}}, 0, []Outcome{Completed}},
	{[]Strike{{"kill -9 destination agent", Moment{Step: migration.StepAcceptToken}, 500 * time.Millisecond}}, 0, []Outcome{Completed}},
	{[]Strike{{"kill -9 source agent", Moment{Step: migration.StepCommit}, 300 * time.Millisecond}}, 0, []Outcome{Completed}},
	{[]Strike{{"Finish reply cut", Moment{}, 0}}, 0, []Outcome{Undone}},
	{[]Strike{{"Perform reply held, then lost", Moment{}, time.Second}}, 0, nil},
	{[]Strike{{"kill -9 both libvirtds", Moment{Memory: true}, 300 * time.Millisecond}}, 10 << 20, []Outcome{Undone}},
	{[]Strike{{"kill -9 destination QEMU", Moment{Memory: true}, 0}}, 10 << 20, []Outcome{Undone}},
	{[]Strike{{"kill -9 Placement", Moment{Step: migration.StepSwapAllocations}, time.Second}}, 0, nil},
	{[]Strike{{"data link cut, short", Moment{Memory: true}, 2 * time.Second}}, 25 << 20, nil},
	{[]Strike{{"data link cut for good", Moment{Memory: true}, 15 * time.Second}}, 10 << 20, []Outcome{Undone}},
	{[]Strike{{"SIGSTOP source agent across its lease", Moment{Step: migration.StepSwapAllocations}, acrossLease}}, 0, nil},
	{[]Strike{{"kill -9 destination stream", Moment{Memory: true}, 0}}, 10 << 20, []Outcome{Undone}},
	{[]Strike{{"kill -9 both agents and Placement", Moment{Memory: true}, time.Second}}, 40 << 20, []Outcome{Completed}},
	{[]Strike{{"Finish reply held, then lost", Moment{}, time.Second}, {"kill -9 source libvirtd and agent", Moment{With: true}, 300 * time.Millisecond}}, 0, []Outcome{Undone}},
	{[]Strike{{"both links cut", Moment{Memory: true}, 14 * time.Second}}, 10 << 20, []Outcome{Undone}},
}

// chosenCold are those of guests that are powered off: each kind and each end once, and
// struck once in each part that decides something.
var chosenCold = []struct {
	story     Story
	strike    Strike
	bandwidth uint64
	want      []Outcome
}{
	{Story{Kind: Cold, End: Revert, Boots: true}, Strike{"kill -9 source agent", Moment{Step: migration.StepShipDisks, After: 200 * time.Millisecond}, 0}, 4 << 20, []Outcome{Reverted}},
	{Story{Kind: ResizeIn, Grow: true, End: Revert, Boots: true}, Strike{"SIGSTOP, then kill -9 source agent", Moment{Step: migration.StepUnapplyChange, Stage: migration.StageRevert}, 500 * time.Millisecond}, 0, []Outcome{Reverted}},
	{Story{Kind: Rebuild}, Strike{"kill -9 source libvirtd", Moment{Step: migration.StepStartChanged}, 300 * time.Millisecond}, 0, nil},
	{Story{Kind: Resize, End: Confirm}, Strike{"kill -9 destination agent", Moment{Step: migration.StepFinishResize}, 300 * time.Millisecond}, 0, []Outcome{Completed}},
	{Story{Kind: Cold, End: Window, Power: Paused}, Strike{"management link cut, short", Moment{Step: migration.StepHandOver}, time.Second}, 0, nil},
	{Story{Kind: Resize, Grow: true, End: Revert}, Strike{"kill -9 both agents and Placement", Moment{Step: migration.StepHandBack, Stage: migration.StageRevert}, 500 * time.Millisecond}, 0, []Outcome{Reverted}},
	{Story{Kind: ApartCold, End: Revert, Boots: true}, Strike{"kill -9 conductor agent", Moment{Step: migration.StepShipDisks, After: 200 * time.Millisecond}, 0}, 4 << 20, []Outcome{Reverted}},
	{Story{Kind: ApartResize, End: Confirm}, Strike{"conductor's link cut, short", Moment{Step: migration.StepHandOver}, time.Second}, 0, nil},
	{Story{Kind: ApartResize, End: Revert}, Strike{"kill -9 conductor agent", Moment{Step: migration.StepHandBack, Stage: migration.StageRevert}, 500 * time.Millisecond}, 0, []Outcome{Reverted}},
}

func TestSoak_ChosenRoundsLeaveOneGuestAndNothingElse(t *testing.T) {
	lab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	dir := lab.TempDir(t)
	var err error
	w := &world{o: Options{Dir: dir, Kinds: Kinds, Say: t.Logf, Logs: filepath.Join(dir, "logs")}}
	if w.binary, err = fleet.Build(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if w.image, err = guest.Build(ctx, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
	if err := w.ready(ctx, Copied); err != nil {
		t.Fatal(err)
	}
	type choice struct {
		Plan
		want []Outcome
	}
	var all []choice
	for _, c := range chosen {
		all = append(all, choice{Plan{Strikes: c.strikes, Bandwidth: c.bandwidth}, c.want})
	}
	for _, c := range chosenCold {
		all = append(all, choice{Plan{Story: c.story, Strikes: []Strike{c.strike}, Bandwidth: c.bandwidth}, c.want})
	}
	for i, c := range all {
		p := c.Plan
		p.Seed = uint64(i)
		if f, _ := find(p.Strikes[0].Fault); f.streams && !w.b.streams {
			continue // without processes of their own there is nothing to kill
		}
		res := w.b.run(ctx, p)
		t.Logf("%-9s %4.1f s, over %s after the last was put right: %s", res.Outcome, res.Took.Seconds(), seconds(res.Settle), p)
		if err := judge(res, c.want); err != nil {
			w.b.show(ctx, t, res)
			t.Fatalf("%s: %v", p, err)
		}
	}
	if err := w.b.ledgersEmpty(ctx); err != nil {
		t.Error(err)
	}
}

// judge holds a chosen round against what is wanted of it.
func judge(res Result, want []Outcome) error {
	if res.Outcome == Failed {
		return res.Err
	}
	for i, yes := range res.Struck {
		if !yes {
			return fmt.Errorf("%s did not strike", res.Plan.Strikes[i])
		}
	}
	if len(want) == 0 {
		want = []Outcome{Completed, Undone}
	}
	for _, o := range want {
		if res.Outcome == o {
			return nil
		}
	}
	return fmt.Errorf("it is %s, want one of %v", res.Outcome, want)
}

// show prints the end of every log of a failed round.
func (b *bed) show(ctx context.Context, t *testing.T, res Result) {
	dir := t.TempDir()
	t.Logf("keep the logs: %v", b.keep(ctx, dir, res, nil))
	files, _ := filepath.Glob(dir + "/*")
	for _, f := range files {
		if filepath.Ext(f) != ".db" {
			text, _ := os.ReadFile(f)
			t.Logf("--- the end of %s\n%s", filepath.Base(f), text[max(0, len(text)-5000):])
		}
	}
}
