package claims_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/migration"
	"berth/topology"
)

// onDisk is a tracker over a real database.
func onDisk(t testing.TB, path string, vcpus int) (*claims.Tracker, *store.DB) {
	t.Helper()
	return onDiskAt(t, path, vcpus, &runtime.System{})
}

func onDiskAt(t testing.TB, path string, vcpus int, now runtime.Runtime) (*claims.Tracker, *store.DB) {
	t.Helper()
	db, err := store.Open(path, store.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tracker, err := claims.Open(context.Background(), claims.Options{
		Store: db, Runtime: now, Host: "h", Logger: slog.New(slog.DiscardHandler),
		Capacity: claims.Capacity{Total: topology.Resources{VCPUs: vcpus, MemoryMB: 1 << 30, DiskGB: 1 << 20}},
	})
	if err != nil {
		_ = db.Close()
		t.Fatal(err)
	}
	return tracker, db
}

// 32 callers want twice what there is. Never more than there is is granted, every
// answer is on the disk, and they share commits.
func TestTracker_ManyCallersShareCommitsAndNeverExceed(t *testing.T) {
	const callers, each, vcpus = 32, 8, 128
	path := filepath.Join(t.TempDir(), "berth.db")
	tracker, db := onDisk(t, path, vcpus)
	var granted, refused atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				got, err := tracker.Claim(ctx, claims.Request{Owner: instanceOwner(fmt.Sprintf("i-%d-%d", c, i)),
					Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}})
				switch {
				case err == nil:
					granted.Add(1)
					if _, ok := tracker.Get(got.ID); !ok {
						t.Error("answered and not there")
					}
				case errors.Is(err, fault.DoesNotFit):
					refused.Add(1)
				default:
					t.Error(err)
				}
				if u := tracker.Usage(); u.Used.VCPUs > vcpus {
					t.Errorf("%d vcpus used of %d", u.Used.VCPUs, vcpus)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() != vcpus || refused.Load() != callers*each-vcpus {
		t.Errorf("%d granted, %d refused; want %d and %d", granted.Load(), refused.Load(), vcpus, callers*each-vcpus)
	}
	commits := db.Commits()
	if commits > vcpus/2 {
		t.Errorf("%d commits for %d claims: they are not shared", commits, vcpus)
	}
	t.Logf("%d claims in %d commits", granted.Load(), commits)
	before := tracker.List()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	tracker, db = onDisk(t, path, vcpus)
	defer db.Close()
	if got := len(tracker.List()); got != len(before) {
		t.Errorf("%d claims after reopening, want %d", got, len(before))
	}
}

// All callers are the same conductor, repeating itself.
func TestTracker_OneOwnerManyCallersOneClaim(t *testing.T) {
	tracker, db := onDisk(t, filepath.Join(t.TempDir(), "berth.db"), 128)
	defer db.Close()
	ids := make([]string, 32)
	var wg sync.WaitGroup
	for c := range ids {
		wg.Go(func() {
			got, err := tracker.Claim(ctx, claims.Request{Owner: moveOwner("i1", "m1", 1), Resources: small})
			if err != nil {
				t.Error(err)
			}
			ids[c] = got.ID + got.Ticket
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("different answers: %s and %s", ids[0], id)
		}
	}
	if len(tracker.List()) != 1 {
		t.Errorf("claims: %v", tracker.List())
	}
}

// Of the two decisions of a source, asked for at once, exactly one is made.
func TestTracker_SurrenderAndRefuseCommitRace(t *testing.T) {
	tracker, db := onDisk(t, filepath.Join(t.TempDir(), "berth.db"), 128)
	defer db.Close()
	for round := range 30 {
		uuid := fmt.Sprintf("i%d", round)
		if _, err := tracker.Own(ctx, guest(uuid)); err != nil {
			t.Fatal(err)
		}
		ref := refOf(moveOwner(uuid, "m-"+uuid, 1), "")
		var gave, kept atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if i%2 == 0 {
					if _, err := tracker.ReleaseOwnership(ctx, ref, "other"); err == nil {
						gave.Add(1)
					}
				} else if tracker.RefuseCommit(ctx, ref) == nil {
					kept.Add(1)
				}
			})
		}
		wg.Wait()
		if (gave.Load() > 0) == (kept.Load() > 0) {
			t.Fatalf("round %d: %d surrendered and %d kept", round, gave.Load(), kept.Load())
		}
	}
}

// A database written by schema 1 opens, with everything in it. Run with
// BERTH_WRITE_SNAPSHOT=1 to write a new one beside it when the schema grows.
func TestOpen_ReadsTheLedgerOfSchema1(t *testing.T) {
	const snapshot = "../internal/store/testdata/schema-1.db"
	if os.Getenv("BERTH_WRITE_SNAPSHOT") != "" {
		writeSnapshot(t, snapshot)
	}
	data, err := os.ReadFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "berth.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	tracker, db := onDiskAt(t, path, 128, newClock()) // another boot than the snapshot's
	defer db.Close()
	states := map[string]claims.State{}
	for _, c := range tracker.List() {
		states[c.Owner.Instance] = c.State
	}
	// "comes" was pending: that machine's boot is over.
	want := map[string]claims.State{"lives": claims.Bound, "left": claims.Bound, "arrives": claims.Arriving}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("claims %v, want %v", states, want)
	}
	if i, ok := tracker.InstanceByName("name-lives"); !ok || i.Token.Epoch != 5 || i.Flavor.ExtraSpecs["a"] != "b" {
		t.Errorf("instance %+v", i)
	}
	if c, ok := tracker.Committed("m-left"); !ok || c.To != "elsewhere" {
		t.Errorf("commit %+v", c)
	}
	if c, ok := tracker.Context("m-stays"); !ok || c.Destination != "elsewhere" || !tracker.CommitRefused("m-stays", 1) {
		t.Errorf("context %+v", c)
	}
	var made []string
	ref := refOf(moveOwner("arrives", "m-arrives", 1), "prepare")
	if ok, err := tracker.Recall(ref, &made); !ok || err != nil || len(made) != 1 {
		t.Errorf("verb: %v, %v, %v", made, ok, err)
	}
	if !tracker.HasTombstone(refOf(moveOwner("arrives", "m-arrives", 1), "stream")) {
		t.Error("tombstone is lost")
	}
}

func writeSnapshot(t *testing.T, path string) {
	t.Helper()
	tracker, db := onDisk(t, path, 128)
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lives := guest("lives")
	lives.Token.Epoch = 4
	check(tracker.Adopt(ctx, lives, claims.Found{Resources: small}))
	check(tracker.Adopt(ctx, guest("left"), claims.Found{Resources: small}))
	check(tracker.ReleaseOwnership(ctx, refOf(moveOwner("left", "m-left", 1), ""), "elsewhere"))
	check(tracker.Own(ctx, guest("stays")))
	stays := refOf(moveOwner("stays", "m-stays", 1), "record-context")
	check(nil, tracker.RecordContext(ctx, stays, claims.MigrationContext{Migration: "m-stays", Instance: "stays", Destination: "elsewhere"}))
	check(nil, tracker.RefuseCommit(ctx, stays))
	arrives := moveOwner("arrives", "m-arrives", 1)
	check(tracker.Claim(ctx, claims.Request{Owner: arrives, Resources: small}))
	check(tracker.Arrive(ctx, arrives))
	check(nil, tracker.Remember(ctx, refOf(arrives, "prepare"), []string{"/var/lib/libvirt/images/disk"}))
	check(nil, tracker.WriteTombstone(ctx, refOf(arrives, "stream")))
	check(tracker.Claim(ctx, claims.Request{Owner: moveOwner("comes", "m-comes", 1), Resources: small}))
	check(nil, db.Put(ctx, "journal", "m-left/0001", []byte(`{"step":"claim"}`)))
	check(nil, db.Put(ctx, "journal", "m-left/0002", []byte(`{"step":"swap"}`)))
	check(nil, db.Close())
}

// BenchmarkTracker_Claim claims and releases on a host with 500 guests, durably.
func BenchmarkTracker_Claim(b *testing.B) {
	for _, callers := range []int{1, 32} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			tracker, db := onDisk(b, filepath.Join(b.TempDir(), "berth.db"), 1<<20)
			defer db.Close()
			var setup sync.WaitGroup
			for i := range 500 {
				setup.Go(func() {
					if _, err := tracker.Adopt(ctx, guest(fmt.Sprintf("guest-%d", i)), claims.Found{Resources: small}); err != nil {
						b.Error(err)
					}
				})
			}
			setup.Wait()
			before := db.Commits()
			var wg sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				wg.Go(func() {
					o := instanceOwner(fmt.Sprintf("new-%d", c))
					for i := c; i < b.N; i += callers {
						_, err := tracker.Claim(ctx, claims.Request{Owner: o, Resources: small})
						if err := errors.Join(err, tracker.Abort(ctx, migration.Ref{Instance: o.Instance})); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
			b.ReportMetric(2*float64(b.N)/float64(db.Commits()-before), "changes/commit")
		})
	}
}
