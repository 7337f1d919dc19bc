package drivertest

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// underControl are the properties of a migration that somebody watches and steers.
func underControl() []property {
	return []property{
		migration("Migrate_TellsHowItConverges", func(t testing.TB, v *move) {
			eventually(t, "Health", func() bool { return v.Source.Health() == nil })
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ch, err := v.Source.Events(ctx)
			must(t, "Events", err)
			v.Endless(t, &v.m)
			v.m.AutoConverge, v.m.Throttle = true, driver.Throttle{Initial: 35, Increment: 20}
			done, _ := v.start(t)
			for pass := 0; pass < 3; {
				e := await(t, ch, driver.EventIteration, v.id)
				n, err := strconv.Atoi(e.Detail)
				if err != nil || n <= pass {
					t.Fatalf("event %+v after pass %d, want one with a higher number", e, pass)
				}
				pass = n
				j, err := v.src.Job(within(t), v.id)
				must(t, "Job", err)
				if j.Iteration < uint64(pass) {
					t.Errorf("the job is at pass %d, and one began that is its %dth", j.Iteration, pass)
				}
			}
			var seen []int
			eventually(t, "a second step of the throttle", func() bool {
				j, err := v.src.Job(within(t), v.id)
				must(t, "Job", err)
				if j.Throttle > 0 && !slices.Contains(seen, j.Throttle) {
					seen = append(seen, j.Throttle)
				}
				return len(seen) > 0 && seen[len(seen)-1] >= 55
			})
			if slices.ContainsFunc(seen, func(n int) bool { return n < 99 && (n-35)%20 != 0 }) {
				t.Errorf("the guest is slowed down by %v per cent, want by 35, then by 20 more each time", seen)
			}
			v.giveUp(t, done)
		}),
		migration("Migrate_AGuestThatStandsStillConverges", func(t testing.TB, v *move) {
			v.Endless(t, &v.m)
			v.m.Paused = false
			done, _ := v.start(t)
			must(t, "Suspend", v.Source.Suspend(within(t), v.id))
			must(t, "SetBandwidth", v.src.SetBandwidth(within(t), v.id, 0)) // it need not last
			must(t, "Migrate", v.end(t, done))
			if d := wantState(t, v.Source, v.id, driver.ShutOff); d.Reason != driver.ReasonMigrated {
				t.Errorf("source is %+v, want shut off (migrated)", d)
			}
			// It was suspended for the migration's sake, and does not arrive so.
			wantState(t, v.Destination, v.id, driver.Running)
		}),
		migration("Migrate_ASuspendEndsWithTheRollback", func(t testing.TB, v *move) {
			done, _ := v.begin(t)
			must(t, "Suspend", v.Source.Suspend(within(t), v.id))
			if d := wantState(t, v.Source, v.id, driver.Paused); d.Reason != driver.ReasonMigrating {
				t.Errorf("paused for %q, want %q", d.Reason, driver.ReasonMigrating)
			}
			v.giveUp(t, done)
		}),
		migration("Migrate_BoundsEndWithTheirJob", func(t testing.TB, v *move) {
			v.m.MaxDowntime, v.m.Bandwidth = time.Millisecond, 1<<20
			done, _ := v.begin(t)
			must(t, "SetBandwidth", v.src.SetBandwidth(within(t), v.id, 2<<20))
			must(t, "SetMaxDowntime", v.src.SetMaxDowntime(within(t), v.id, 2*time.Millisecond))
			v.giveUp(t, done)
			v.Fast()
			v.m.MaxDowntime, v.m.Bandwidth = 0, 0
			must(t, "Migrate without bounds", v.src.Migrate(within(t), v.id, v.m))
			wantState(t, v.Destination, v.id, driver.Paused)
		}),
		migrationOf("Migrate_RefusesOptionsByName", withDisk, func(t testing.TB, v *move) {
			n, err := v.Source.Node(within(t))
			must(t, "Node", err)
			m, all := v.m, migrationOptions()
			for _, o := range all {
				if _, unknown := n.MigrationOptions[o.name]; unknown {
					one := v.m
					o.ask(&one)
					wantNamed(t, v.src.Migrate(within(t), v.id, one), o.name)
					o.ask(&m)
				}
			}
			for name, why := range n.MigrationOptions {
				if why == "" || !slices.ContainsFunc(all, func(o option) bool { return o.name == name }) {
					t.Errorf("the hypervisor does not know %q because of %q: no such option, or no reason", name, why)
				}
			}
			v.wantBack(t)
		}),
		migrationOf("Migrate_TakesEveryOptionThatItKnows", withDisk, func(t testing.TB, v *move) {
			n, err := v.Source.Node(within(t))
			must(t, "Node", err)
			m := v.m
			for _, o := range migrationOptions() {
				if _, unknown := n.MigrationOptions[o.name]; !unknown && !apart(o) {
					o.ask(&m)
				}
			}
			v.Fast()
			must(t, "Migrate", v.src.Migrate(context.Background(), v.id, m))
			wantState(t, v.Source, v.id, driver.ShutOff)
			wantState(t, v.Destination, v.id, driver.Running) // post-copy is permitted, so not paused
		}),
	}
}

// apart are the options that exclude others, of which a migration each would be too long:
// parallel connections have a property of their own, and with them go the two packings;
// zero copy needs a network card that can.
func apart(o option) bool {
	var m driver.Migration
	o.ask(&m)
	return m.ParallelConnections > 1
}

// wantNamed is a refusal of one option.
func wantNamed(t testing.TB, err error, name string) {
	t.Helper()
	wantKind(t, "Migrate with "+name, err, fault.Invalid)
	named := map[string]bool{}
	for _, r := range fault.ReasonsOf(err) {
		named[r.Want] = true
	}
	if !named[name] {
		t.Errorf("%v names %v, want %s", err, slices.Sorted(maps.Keys(named)), name)
	}
}

// giveUp aborts a migration, and waits until the guest is back.
func (v *move) giveUp(t testing.TB, done <-chan error) {
	t.Helper()
	must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
	wantKind(t, "Migrate", v.end(t, done), fault.Undone)
	v.wantBack(t)
}
