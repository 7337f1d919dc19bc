package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// move is what a migration property works with.
type move struct {
	*bench
	Pair
	src, dst driver.LiveMigrator
	id       string
	m        driver.Migration
}

// migration wraps a property with two hosts and a guest that runs on the first.
func migration(name string, test func(*testing.T, *move)) property {
	return property{name, func(t *testing.T, b *bench) {
		p := b.Pair(t)
		src, ok := p.Source.(driver.LiveMigrator)
		if !ok {
			t.Fatalf("%T is no driver.LiveMigrator", p.Source)
		}
		dst := p.Destination.(driver.LiveMigrator)
		id := uuid.NewString()
		must(t, "Define", p.Source.Define(within(t), b.DomainXML("conf-"+id[:8], id)))
		t.Cleanup(func() { b.remove(t, p.Source, id); b.remove(t, p.Destination, id) })
		must(t, "Start", p.Source.Start(within(t), id, false))
		live, err := p.Source.XML(within(t), id, driver.Migratable)
		must(t, "XML", err)
		persistent, err := p.Source.XML(within(t), id, driver.Persistent)
		must(t, "XML", err)
		test(t, &move{bench: b, Pair: p, src: src, dst: dst, id: id, m: driver.Migration{
			DestinationURI: p.DestinationURI, DestinationXML: live, PersistentXML: persistent, Paused: true,
		}})
	}}
}

// begin starts a slow migration and waits until its memory moves.
func (v *move) begin(t *testing.T) (<-chan error, context.CancelFunc) {
	t.Helper()
	v.Slow()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- v.src.Migrate(ctx, v.id, v.m) }()
	eventually(t, "the job", func() bool {
		j, err := v.src.Job(within(t), v.id)
		return err == nil && j.Kind == driver.JobUnbounded && j.MemoryProcessed > 0
	})
	return done, cancel
}

func (v *move) end(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * call):
		t.Fatal("Migrate did not return")
		return nil
	}
}

// wantBack is the state after a rollback: the source runs, the destination has
// no guest.
func (v *move) wantBack(t *testing.T) {
	t.Helper()
	wantState(t, v.Source, v.id, driver.Running)
	eventually(t, "the destination's half to go", func() bool {
		_, err := v.Destination.Domain(within(t), v.id)
		return errors.Is(err, fault.NotFound)
	})
}

func migrations() []property {
	return []property{
		migration("Migrate_PausedHandOver", func(t *testing.T, v *move) {
			v.Fast()
			must(t, "Migrate", v.src.Migrate(context.Background(), v.id, v.m))
			src := wantState(t, v.Source, v.id, driver.ShutOff)
			if src.Reason != driver.ReasonMigrated || !src.Persistent {
				t.Errorf("source is %+v, want shut off (migrated), persistent", src)
			}
			dst := wantState(t, v.Destination, v.id, driver.Paused)
			if dst.Reason != driver.ReasonUser || !dst.Persistent {
				t.Errorf("destination is %+v, want paused (user), persistent", dst)
			}
			if j, err := v.src.CompletedJob(within(t), v.id); err != nil || j.Kind != driver.JobCompleted || j.MemoryProcessed == 0 {
				t.Errorf("completed job %+v, %v", j, err)
			}
			must(t, "Resume", v.Destination.Resume(within(t), v.id))
			wantState(t, v.Destination, v.id, driver.Running)
		}),
		migration("Migrate_JobShowsProgress", func(t *testing.T, v *move) {
			done, _ := v.begin(t)
			j, err := v.src.Job(within(t), v.id)
			must(t, "Job", err)
			if j.MemoryTotal == 0 || j.Elapsed == 0 {
				t.Errorf("job %+v lacks totals", j)
			}
			v.Fast()
			must(t, "SetBandwidth", v.src.SetBandwidth(within(t), v.id, 10<<30))
			must(t, "SetMaxDowntime", v.src.SetMaxDowntime(within(t), v.id, 20*time.Second))
			must(t, "Migrate", v.end(t, done))
		}),
		migration("Migrate_AbortRollsBack", func(t *testing.T, v *move) {
			done, _ := v.begin(t)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			wantKind(t, "Migrate", v.end(t, done), fault.Undone)
			v.wantBack(t)
			must(t, "AbortJob without a job", v.src.AbortJob(within(t), v.id))
		}),
		migration("Migrate_TwiceIsBusy", func(t *testing.T, v *move) {
			done, _ := v.begin(t)
			wantKind(t, "a second Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Busy)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			wantKind(t, "Migrate", v.end(t, done), fault.Undone)
			v.wantBack(t)
		}),
		migration("Migrate_OutlivesItsCaller", func(t *testing.T, v *move) {
			done, cancel := v.begin(t)
			cancel()
			wantKind(t, "Migrate", v.end(t, done), fault.InDoubt)
			j, err := v.src.Job(within(t), v.id)
			must(t, "Job", err)
			if j.Kind != driver.JobUnbounded {
				t.Fatalf("job is %+v, want one in flight", j)
			}
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			eventually(t, "the job's end", func() bool {
				j, err := v.src.Job(within(t), v.id)
				return err == nil && j.Kind == driver.JobNone
			})
			v.wantBack(t)
		}),
		migration("Migrate_APausedGuestArrivesPaused", func(t *testing.T, v *move) {
			v.Fast()
			must(t, "Suspend", v.Source.Suspend(within(t), v.id))
			must(t, "Migrate", v.src.Migrate(context.Background(), v.id, v.m))
			if d := wantState(t, v.Destination, v.id, driver.Paused); d.Reason != driver.ReasonUser {
				t.Errorf("paused for %q, want %q", d.Reason, driver.ReasonUser)
			}
		}),
		migration("Migrate_UnreachableDestinationIsUndone", func(t *testing.T, v *move) {
			v.m.DestinationURI = "qemu+tcp://127.0.0.1:1/system"
			wantKind(t, "Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Undone)
			v.wantBack(t)
		}),
		migration("Migrate_RefusesAStoppedGuest", func(t *testing.T, v *move) {
			must(t, "Destroy", v.Source.Destroy(within(t), v.id))
			wantKind(t, "Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Invalid)
		}),
		migration("Migrate_NeedsBothDocuments", func(t *testing.T, v *move) {
			m := v.m
			m.DestinationXML, m.PersistentXML = "", ""
			err := v.src.Migrate(within(t), v.id, m)
			wantKind(t, "Migrate", err, fault.Invalid)
			if n := len(fault.ReasonsOf(err)); n < 2 {
				t.Errorf("%d reasons in %v, want one for each document", n, err)
			}
			v.wantBack(t)
		}),
		migration("Migrate_UnknownIsNotFound", func(t *testing.T, v *move) {
			wantKind(t, "Migrate", v.src.Migrate(within(t), uuid.NewString(), v.m), fault.NotFound)
			_, err := v.src.Job(within(t), uuid.NewString())
			wantKind(t, "Job", err, fault.NotFound)
		}),
		migration("Job_NoneBeforeAndAfter", func(t *testing.T, v *move) {
			j, err := v.src.Job(within(t), v.id)
			must(t, "Job", err)
			if j.Kind != driver.JobNone {
				t.Errorf("job is %+v, want none", j)
			}
			_, err = v.src.CompletedJob(within(t), v.id)
			wantKind(t, "CompletedJob", err, fault.NotFound)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
		}),
		migration("CheckCPU_AcceptsTheHostsOwnGuest", func(t *testing.T, v *move) {
			must(t, "CheckCPU", v.dst.CheckCPU(within(t), v.m.DestinationXML))
		}),
	}
}
