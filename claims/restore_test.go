package claims

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/migration"
	"berth/topology"
)

const (
	lostGuest = "00000000-0000-4000-8000-00000000000a"
	lostMove  = "00000000-0000-4000-8000-0000000000aa"
)

// onDisk is a tracker on a real file.
func onDisk(t *testing.T, path string, tolerant bool) (*Tracker, *store.DB) {
	t.Helper()
	db, err := store.Open(path, store.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	rt := &runtime.System{}
	t.Cleanup(rt.Wait)
	tracker, err := Open(t.Context(), Options{
		Store: db, Runtime: rt, Host: "host-a", Tolerant: tolerant, Logger: slog.New(slog.DiscardHandler),
		Capacity: Capacity{Total: topology.Resources{VCPUs: 8, MemoryMB: 4096, DiskGB: 100}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tracker, db
}

func lost(token Token) Restored {
	return Restored{
		Instance: Instance{UUID: lostGuest, Name: "lost", Flavor: topology.Flavor{Name: "m", VCPUs: 2, MemoryMB: 512}, Token: token},
		Found:    Found{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512}},
	}
}

func TestTracker_RestorePutsBackTokenAndClaimOnce(t *testing.T) {
	ctx := t.Context()
	tracker, _ := onDisk(t, filepath.Join(t.TempDir(), "berth.db"), false)
	tracker.Refuse("the ledger is being rebuilt")
	token := Token{Epoch: 3, State: TokenHere, Holder: "host-a", Migration: lostMove}
	for range 2 {
		if err := tracker.Restore(ctx, lost(token)); err != nil {
			t.Fatal(err)
		}
	}
	list := tracker.List()
	if len(list) != 1 || list[0].State != Bound || list[0].Owner != (Owner{Instance: lostGuest, Kind: KindInstance}) {
		t.Fatalf("claims %+v, want one, bound, the instance's own", list)
	}
	if i, _ := tracker.Instance(lostGuest); i.Token != token {
		t.Errorf("token %+v, want %+v", i.Token, token)
	}
	// A lower epoch takes nothing back; a higher one is right.
	if err := tracker.Restore(ctx, lost(Token{Epoch: 2, State: TokenSurrendered, Holder: "host-b"})); err != nil {
		t.Fatal(err)
	}
	if i, _ := tracker.Instance(lostGuest); i.Token != token {
		t.Errorf("token %+v after a lower epoch", i.Token)
	}
	away := Token{Epoch: 4, State: TokenSurrendered, Holder: "host-b"}
	if err := tracker.Restore(ctx, lost(away)); err != nil {
		t.Fatal(err)
	}
	if i, _ := tracker.Instance(lostGuest); i.Token != away {
		t.Errorf("token %+v after a higher epoch, want %+v", i.Token, away)
	}
}

func TestTracker_AGuestInDoubtIsCountedAndNobodysUntilAWord(t *testing.T) {
	ctx := t.Context()
	tracker, _ := onDisk(t, filepath.Join(t.TempDir(), "berth.db"), false)
	if err := tracker.Restore(ctx, lost(Token{Epoch: 3, State: TokenDoubt})); err != nil {
		t.Fatal(err)
	}
	if epoch, _ := tracker.Epoch(lostGuest); epoch != 0 {
		t.Errorf("epoch %d is told of a guest in doubt: its owner would give way to it", epoch)
	}
	if u := tracker.Usage(); u.Used.MemoryMB != 512 {
		t.Errorf("used %v: it is not counted", u.Used)
	}
	ref := migration.Ref{Migration: lostMove, Instance: lostGuest, Attempt: 1}
	if _, err := tracker.ReleaseOwnership(ctx, ref, "host-b"); !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Code != "token_in_doubt" {
		t.Errorf("it is given away: %v", err)
	}
	if _, err := tracker.Own(ctx, Instance{UUID: lostGuest, Name: "lost"}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("it is owned without a word: %v", err)
	}
	if err := tracker.Decide(ctx, lostGuest); err != nil {
		t.Fatal(err)
	}
	want := Token{Epoch: 4, State: TokenHere, Holder: "host-a"}
	if i, _ := tracker.Instance(lostGuest); i.Token != want {
		t.Errorf("token %+v, want %+v", i.Token, want)
	}
	if err := tracker.Decide(ctx, lostGuest); err != nil {
		t.Fatal(err)
	}
	if i, _ := tracker.Instance(lostGuest); i.Token != want {
		t.Errorf("token %+v after a second word, want it unchanged", i.Token)
	}
}

func TestTracker_ARestoredArrivalIsFinishedByItsConductor(t *testing.T) {
	ctx := t.Context()
	move := Owner{Instance: lostGuest, Migration: lostMove, Attempt: 2, Kind: KindLiveMigration}
	r := lost(Token{})
	r.Move, r.Context = move, &MigrationContext{Migration: lostMove, Instance: lostGuest, Source: "host-b", Destination: "host-a"}
	commit := migration.Commit{Instance: lostGuest, Migration: lostMove, Attempt: 2, Epoch: 5, From: "host-b", To: "host-a"}

	for what, accepted := range map[string]bool{"not accepted yet": false, "accepted, and not finished": true} {
		t.Run(what, func(t *testing.T) {
			tracker, _ := onDisk(t, filepath.Join(t.TempDir(), "berth.db"), false)
			r := r
			if r.Accepted = accepted; accepted {
				r.Instance.Token = Token{Epoch: 5, State: TokenHere, Holder: "host-a", Migration: lostMove}
			}
			if err := tracker.Restore(ctx, r); err != nil {
				t.Fatal(err)
			}
			if _, known := tracker.Instance(lostGuest); known != accepted {
				t.Errorf("known: %v, want %v", known, accepted)
			}
			if c, _ := tracker.ByOwner(move); c.State != Arriving || c.Context == nil || c.Context.Source != "host-b" {
				t.Errorf("claim %+v, want it arriving, with its context", c)
			}
			if err := tracker.AcceptToken(ctx, commit, r.Instance); err != nil {
				t.Fatal(err)
			}
			c, err := tracker.Bind(ctx, move)
			if err != nil || c.Owner.Kind != KindInstance || c.State != Bound {
				t.Errorf("bind: %+v, %v", c, err)
			}
			if tracker.Accepted(lostMove) != 2 {
				t.Errorf("accepted by attempt %d, want 2", tracker.Accepted(lostMove))
			}
		})
	}
}

func TestOpen_ATolerantTrackerPassesOverWhatCannotBeRead(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "berth.db")
	tracker, db := onDisk(t, path, false)
	if err := tracker.Restore(ctx, lost(Token{Epoch: 1, State: TokenHere, Holder: "host-a"})); err != nil {
		t.Fatal(err)
	}
	garbled := []byte(`{"claim":7}`)
	if err := errors.Join(db.Put(ctx, bucketClaims, "garbled", garbled), db.Put(ctx, bucketHalves, "h", []byte(`no JSON`)), db.Close()); err != nil {
		t.Fatal(err)
	}
	tracker, db = onDisk(t, path, true)
	var got []string
	for _, u := range tracker.Unread() {
		got = append(got, u.Bucket+"/"+u.Key)
	}
	if diff := cmp.Diff([]string{"claims/garbled", "halves/h"}, got); diff != "" {
		t.Errorf("unread (-want +got):\n%s", diff)
	}
	if len(tracker.List()) != 1 || len(tracker.Instances()) != 1 {
		t.Errorf("%d claims and %d instances: the others went with it", len(tracker.List()), len(tracker.Instances()))
	}
	if err := errors.Join(tracker.SetUnreadAside(ctx), tracker.SetUnreadAside(ctx)); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := db.Get(ctx, bucketUnread, "claims/garbled"); err != nil || !ok || !bytes.Equal(v, garbled) {
		t.Errorf("set aside: %q, %v, %v", v, ok, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	onDisk(t, path, false) // and now a strict one opens
}

// A really full disk: no claim is given, with the reason; every release and undo
// goes through; with room again claims are given.
func TestTracker_OnAFullDiskReleasesAndUndosGoOn(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	ctx, dir := t.Context(), t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m,mode=0700"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	tracker, db := onDisk(t, filepath.Join(dir, "berth.db"), false)
	id := func(kind, i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%04d%08d", kind, i) }
	one := topology.Resources{VCPUs: 1, MemoryMB: 1}
	tracker.SetCapacity(Capacity{Total: topology.Resources{VCPUs: 100000, MemoryMB: 100000}})
	guests, moves := 0, 0
	claim := func() error {
		// By turns a guest's own claim and a move's, as they come.
		if guests <= moves {
			o := Owner{Instance: id(1, guests), Kind: KindInstance}
			_, err := tracker.Claim(ctx, Request{Owner: o, Resources: one})
			if err == nil {
				_, err = tracker.Bind(ctx, o)
				guests++
			}
			return err
		}
		o := Owner{Instance: id(2, moves), Migration: id(3, moves), Attempt: 1, Kind: KindLiveMigration}
		_, err := tracker.Claim(ctx, Request{Owner: o, Resources: one, Context: &MigrationContext{Migration: o.Migration, Instance: o.Instance}})
		if err == nil {
			moves++
		}
		return err
	}
	for range 60 {
		if err := claim(); err != nil {
			t.Fatal(err)
		}
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 6<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	var err error
	for i := 0; err == nil && i < 5000; i++ {
		err = claim()
	}
	if !errors.Is(err, fault.Unavailable) || len(fault.ReasonsOf(err)) == 0 || fault.ReasonsOf(err)[0].Code != "disk_full" {
		t.Fatalf("after %d claims on a full disk: %v, want a refusal for want of room", guests+moves, err)
	}
	// A claim that was given before is still answered.
	o := Owner{Instance: id(1, 0), Kind: KindInstance}
	if _, err := tracker.Claim(context.WithoutCancel(ctx), Request{Owner: o, Resources: one}); err != nil {
		t.Errorf("the same claim again: %v", err)
	}
	for i := range moves {
		ref := migration.Ref{Migration: id(3, i), Instance: id(2, i), Attempt: 1}
		prepare := ref
		prepare.Step = "pre_live_migration"
		if err := errors.Join(tracker.WriteTombstone(ctx, prepare), tracker.Abort(ctx, ref)); err != nil {
			t.Fatalf("undo of move %d of %d: %v", i, moves, err)
		}
	}
	for i := range guests {
		if err := tracker.Release(ctx, Owner{Instance: id(1, i), Kind: KindInstance}); err != nil {
			t.Fatalf("release %d of %d: %v", i, guests, err)
		}
	}
	if n := len(tracker.List()); n > 0 {
		t.Errorf("%d claims left", n)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	guests, moves = 5000, 5000
	if err := claim(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
