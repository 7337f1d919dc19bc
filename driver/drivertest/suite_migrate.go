package drivertest

import (
	"context"
	"errors"
	"strings"
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
func migration(name string, test func(testing.TB, *move)) property {
	return migrationOf(name, func(t testing.TB, b *bench, p Pair, name, id string) string { return b.DomainXML(name, id) }, test)
}

func migrationOf(name string, doc func(t testing.TB, b *bench, p Pair, name, id string) string, test func(testing.TB, *move)) property {
	return property{name, func(t testing.TB, b *bench) {
		p := b.Pair(t)
		v := &move{bench: b, Pair: p, src: migrator(t, p.Source), dst: migrator(t, p.Destination), id: uuid.NewString()}
		must(t, "Define", p.Source.Define(within(t), doc(t, b, p, "conf-"+v.id[:8], v.id)))
		t.Cleanup(func() { b.remove(t, p.Source, v.id); b.remove(t, p.Destination, v.id) })
		must(t, "Start", p.Source.Start(within(t), v.id, false))
		live, err := p.Source.XML(within(t), v.id, driver.Migratable)
		must(t, "XML", err)
		persistent, err := p.Source.XML(within(t), v.id, driver.Persistent)
		must(t, "XML", err)
		v.m = driver.Migration{DestinationURI: p.DestinationURI, DestinationXML: live, PersistentXML: persistent, Paused: true}
		test(t, v)
	}}
}

// found asks a finder of package driver.
func found[I any](t testing.TB, d driver.Driver, finder func(driver.Driver, driver.Node) (I, error)) I {
	t.Helper()
	n, err := d.Node(within(t))
	must(t, "Node", err)
	able, err := finder(d, n)
	must(t, "find the ability", err)
	return able
}

func migrator(t testing.TB, d driver.Driver) driver.LiveMigrator {
	t.Helper()
	return found(t, d, driver.LiveMigration)
}

// begin starts a slow migration and waits until its memory moves.
func (v *move) begin(t testing.TB) (<-chan error, context.CancelFunc) {
	t.Helper()
	v.Slow()
	return v.start(t)
}

// start starts a migration that lasts, and waits until its memory moves.
func (v *move) start(t testing.TB) (<-chan error, context.CancelFunc) {
	t.Helper()
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

func (v *move) end(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * patience(t)):
		t.Fatal("Migrate did not return")
		return nil
	}
}

// wantBack is the state after a rollback: the source runs, the destination has
// no guest.
func (v *move) wantBack(t testing.TB) {
	t.Helper()
	wantState(t, v.Source, v.id, driver.Running)
	eventually(t, "the destination's half to go", func() bool {
		_, err := v.Destination.Domain(within(t), v.id)
		return errors.Is(err, fault.NotFound)
	})
}

func migrations() []property {
	return []property{
		migration("Migrate_PausedHandOver", func(t testing.TB, v *move) {
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
		migration("Migrate_JobShowsProgress", func(t testing.TB, v *move) {
			v.Fast()
			v.m.Bandwidth = 4 << 20
			done, _ := v.start(t)
			j, err := v.src.Job(within(t), v.id)
			must(t, "Job", err)
			if j.MemoryTotal == 0 || j.Elapsed == 0 {
				t.Errorf("job %+v lacks totals", j)
			}
			// What two seconds more would send: the hypervisor bounds the rate in steps.
			if bound := uint64(float64(v.m.Bandwidth) * (j.Elapsed.Seconds() + 2)); j.MemoryProcessed > bound {
				t.Errorf("%d bytes are sent after %v, at %d bytes a second at most", j.MemoryProcessed, j.Elapsed, v.m.Bandwidth)
			}
			must(t, "SetBandwidth", v.src.SetBandwidth(within(t), v.id, 10<<30))
			must(t, "Migrate", v.end(t, done))
		}),
		migration("Migrate_MayStandStillForLonger", func(t testing.TB, v *move) {
			v.Endless(t, &v.m)
			done, _ := v.start(t)
			must(t, "SetMaxDowntime", v.src.SetMaxDowntime(within(t), v.id, 20*time.Second))
			must(t, "Migrate", v.end(t, done))
			wantState(t, v.Destination, v.id, driver.Paused)
		}),
		migration("Migrate_AbortRollsBack", func(t testing.TB, v *move) {
			done, _ := v.begin(t)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			wantKind(t, "Migrate", v.end(t, done), fault.Undone)
			v.wantBack(t)
			must(t, "AbortJob without a job", v.src.AbortJob(within(t), v.id))
		}),
		migration("Migrate_TwiceIsBusy", func(t testing.TB, v *move) {
			done, _ := v.begin(t)
			wantKind(t, "a second Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Busy)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			wantKind(t, "Migrate", v.end(t, done), fault.Undone)
			v.wantBack(t)
		}),
		migration("Migrate_OutlivesItsCaller", func(t testing.TB, v *move) {
			done, cancel := v.begin(t)
			cancel()
			wantKind(t, "Migrate", v.end(t, done), fault.InDoubt)
			var first driver.Job
			eventually(t, "the job to go on", func() bool {
				j, err := v.src.Job(within(t), v.id)
				must(t, "Job", err)
				if j.Kind != driver.JobUnbounded {
					t.Fatalf("job is %+v, want one in flight", j)
				}
				if first.Elapsed == 0 {
					first = j
				}
				return j.Elapsed > first.Elapsed
			})
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
			eventually(t, "the job's end", func() bool {
				j, err := v.src.Job(within(t), v.id)
				return err == nil && j.Kind == driver.JobNone
			})
			v.wantBack(t)
		}),
		migration("Migrate_APausedGuestArrivesPaused", func(t testing.TB, v *move) {
			v.Fast()
			must(t, "Suspend", v.Source.Suspend(within(t), v.id))
			must(t, "Migrate", v.src.Migrate(context.Background(), v.id, v.m))
			if d := wantState(t, v.Destination, v.id, driver.Paused); d.Reason != driver.ReasonUser {
				t.Errorf("paused for %q, want %q", d.Reason, driver.ReasonUser)
			}
		}),
		migration("Migrate_UnreachableDestinationIsUndone", func(t testing.TB, v *move) {
			v.m.DestinationURI = "qemu+tcp://127.0.0.1:1/system"
			wantKind(t, "Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Undone)
			v.wantBack(t)
		}),
		migration("Migrate_RefusesAStoppedGuest", func(t testing.TB, v *move) {
			must(t, "Destroy", v.Source.Destroy(within(t), v.id))
			wantKind(t, "Migrate", v.src.Migrate(within(t), v.id, v.m), fault.Invalid)
		}),
		migration("Migrate_NeedsBothDocuments", func(t testing.TB, v *move) {
			m := v.m
			m.DestinationXML, m.PersistentXML = "", ""
			err := v.src.Migrate(within(t), v.id, m)
			wantKind(t, "Migrate", err, fault.Invalid)
			if n := len(fault.ReasonsOf(err)); n < 2 {
				t.Errorf("%d reasons in %v, want one for each document", n, err)
			}
			v.wantBack(t)
		}),
		migration("Migrate_UnknownIsNotFound", func(t testing.TB, v *move) {
			wantKind(t, "Migrate", v.src.Migrate(within(t), uuid.NewString(), v.m), fault.NotFound)
			_, err := v.src.Job(within(t), uuid.NewString())
			wantKind(t, "Job", err, fault.NotFound)
			_, err = v.src.CompletedJob(within(t), uuid.NewString())
			wantKind(t, "CompletedJob", err, fault.NotFound)
			wantKind(t, "AbortJob", v.src.AbortJob(within(t), uuid.NewString()), fault.NotFound)
			wantKind(t, "SetMaxDowntime", v.src.SetMaxDowntime(within(t), uuid.NewString(), time.Second), fault.NotFound)
			wantKind(t, "SetBandwidth", v.src.SetBandwidth(within(t), uuid.NewString(), 1<<20), fault.NotFound)
		}),
		migration("Job_NoneBeforeAndAfter", func(t testing.TB, v *move) {
			j, err := v.src.Job(within(t), v.id)
			must(t, "Job", err)
			if j.Kind != driver.JobNone {
				t.Errorf("job is %+v, want none", j)
			}
			_, err = v.src.CompletedJob(within(t), v.id)
			wantKind(t, "CompletedJob", err, fault.NotFound)
			must(t, "AbortJob", v.src.AbortJob(within(t), v.id))
		}),
		migration("CheckCPU_AcceptsTheHostsOwnGuest", func(t testing.TB, v *move) {
			must(t, "CheckCPU", v.dst.CheckCPU(within(t), v.m.DestinationXML))
		}),
		migration("CheckCPU_NamesWhatIsMissing", func(t testing.TB, v *move) {
			err := v.dst.CheckCPU(within(t), withFeature(v.m.DestinationXML, v.Lacks))
			wantKind(t, "CheckCPU", err, fault.DoesNotFit)
			if len(fault.ReasonsOf(err)) == 0 || !strings.Contains(err.Error(), v.Lacks) {
				t.Errorf("%v: want a reason that names %s", err, v.Lacks)
			}
		}),
		migrationOf("StorageCopy_ShowsEachDisk", withDisk, func(t testing.TB, v *move) {
			copier := found(t, v.Source, driver.StorageCopy)
			v.m.CopyDisks = []string{"vda"}
			v.Slow()
			done := make(chan error, 1)
			go func() { done <- v.src.Migrate(context.Background(), v.id, v.m) }()
			eventually(t, "the copy", func() bool {
				c, err := copier.DiskCopies(within(t), v.id)
				must(t, "DiskCopies", err)
				return len(c) == 1 && c["vda"].Total > 0 && c["vda"].Copied > 0 && c["vda"].Copied <= c["vda"].Total
			})
			v.Fast()
			must(t, "Migrate", v.end(t, done))
			wantState(t, v.Destination, v.id, driver.Paused)
			c, err := copier.DiskCopies(within(t), v.id)
			must(t, "DiskCopies afterwards", err)
			if len(c) > 0 {
				t.Errorf("copies %+v after the migration, want none", c)
			}
		}),
		migrationOf("StorageCopy_OverUnixSockets", withDisk, func(t testing.TB, v *move) {
			found(t, v.Source, driver.StorageCopy)
			v.Fast()
			connections := v.Forward(t, v.id, &v.m)
			v.m.CopyDisks, v.m.ParallelConnections = []string{"vda"}, 2
			must(t, "Migrate", v.src.Migrate(context.Background(), v.id, v.m))
			wantState(t, v.Source, v.id, driver.ShutOff)
			wantState(t, v.Destination, v.id, driver.Paused)
			if control, memory, disks := connections(); control == 0 || memory < v.m.ParallelConnections || disks == 0 {
				t.Errorf("%d, %d and %d connections for libvirt, memory and disks, want one, %d and one at least", control, memory, disks, v.m.ParallelConnections)
			}
		}),
		migration("StorageCopy_IsNoneWithoutAJob", func(t testing.TB, v *move) {
			copier := found(t, v.Source, driver.StorageCopy)
			if c, err := copier.DiskCopies(within(t), v.id); err != nil || len(c) > 0 {
				t.Errorf("copies %+v, %v, want none", c, err)
			}
			_, err := copier.DiskCopies(within(t), uuid.NewString())
			wantKind(t, "DiskCopies of an unknown domain", err, fault.NotFound)
		}),
	}
}

func withDisk(t testing.TB, _ *bench, p Pair, name, id string) string {
	t.Helper()
	return p.DiskXML(t, name, id)
}

// withFeature makes a document's CPU need a feature.
func withFeature(doc, feature string) string {
	need := "<feature policy='require' name='" + feature + "'/></cpu>"
	if strings.Contains(doc, "</cpu>") {
		return strings.Replace(doc, "</cpu>", need, 1)
	}
	return strings.Replace(doc, "</domain>", "<cpu>"+need+"</domain>", 1)
}
