package shipping

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/transfer"
)

func TestSend_GoesOnWhereItWasCut(t *testing.T) {
	a, b, _ := rig(t)
	r := b.prepare(ref)
	failing := map[string]bool{"ShippedSoFar": true, "WriteDisk": true, "SealDisks": true}
	var mu sync.Mutex
	a.peer = b.through(func(verb string) error {
		mu.Lock()
		defer mu.Unlock()
		if failing[verb] {
			delete(failing, verb)
			if verb == "SealDisks" {
				b.restart()
			}
			return fault.New(fault.Unavailable, "%w", errCut)
		}
		return nil
	})
	if err := a.Send(t.Context(), ref, r); err != nil {
		t.Fatal(err)
	}
	b.arrived()
	if err := a.Send(t.Context(), ref, r); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// TestSend_IsJoined by whoever asks while it is under way, also by a conductor whose first
// question was lost.
func TestSend_IsJoined(t *testing.T) {
	a, b, _ := rig(t)
	r := b.prepare(ref)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var rounds atomic.Int32
	a.peer = b.through(func(verb string) error {
		switch verb {
		case "ShippedSoFar":
			rounds.Add(1)
		case "WriteDisk":
			once.Do(func() { close(begun); <-goOn })
		}
		return nil
	})
	gone, leave := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { first <- a.Send(gone, ref, r) }()
	<-begun
	leave()
	a.wantKind("whoever goes", <-first, fault.Busy)
	elsewhere := r
	elsewhere.Destination = "c"
	a.wantKind("to another host", a.Send(t.Context(), ref, elsewhere), fault.Forbidden)
	if err := a.Send(gone, ref, r); fault.KindOf(err) != fault.Busy || !strings.Contains(err.Error(), "under way") {
		t.Errorf("once more: %v", err)
	}
	if n := rounds.Load(); n != 1 {
		t.Errorf("it was begun %d times", n)
	}
	close(goOn)
	if err := a.Send(t.Context(), ref, r); err != nil {
		t.Fatal(err)
	}
	b.arrived()
}

func TestSend_EndsWithWhatItStandsOn(t *testing.T) {
	for name, undo := range map[string]func(a, b *port) error{
		"the snapshot": func(a, _ *port) error {
			a.mu.Lock()
			a.held = nil
			a.mu.Unlock()
			return a.Stop(t.Context(), ref)
		},
		"the preparation":  func(_, b *port) error { return b.Undo(t.Context(), ref) },
		"the guest is off": func(a, _ *port) error { a.mu.Lock(); a.off = false; a.mu.Unlock(); return a.Forget(t.Context(), ref) },
	} {
		a, b, w := rig(t)
		r := b.prepare(ref)
		begun, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		a.peer = b.through(func(verb string) error {
			if verb == "WriteDisk" {
				once.Do(func() { close(begun); <-goOn })
			}
			return nil
		})
		sent, undone := make(chan error), make(chan error)
		go func() { sent <- a.Send(t.Context(), ref, r) }()
		<-begun
		go func() { undone <- undo(a, b) }()
		if name == "the preparation" {
			if err := <-undone; err != nil {
				t.Error(err)
			}
			close(goOn)
		} else {
			close(goOn)
			if err := <-undone; err != nil {
				t.Error(err)
			}
		}
		if err := <-sent; err == nil {
			// It was over before the undo came.
			b.arrived()
		} else {
			a.wantKind("send without "+name, err, fault.Forbidden)
		}
		if name != "the preparation" {
			a.wantKind("send again without "+name, a.Send(t.Context(), ref, r), fault.Forbidden)
			if err := b.Undo(t.Context(), ref); err != nil {
				t.Error(err)
			}
		}
		if marked := w.Host("b").Marked(); len(marked) > 0 {
			t.Errorf("without %s, left at the destination: %v", name, marked)
		}
	}
}

// TestSend_EndsWhenNothingMoves, so that whoever conducts can carry the files himself.
func TestSend_EndsWhenNothingMoves(t *testing.T) {
	a, b, _ := rig(t)
	r := b.prepare(ref)
	a.Dock.c.Stall = 20 * time.Millisecond
	a.peer = func() (transfer.Destination, error) { return nil, fault.New(fault.Unavailable, "no route") }
	err := a.Send(t.Context(), ref, r)
	a.wantKind("send without a way", err, fault.Unavailable)
	if !strings.Contains(err.Error(), "no route") {
		t.Errorf("it does not say why: %v", err)
	}
	a.Dock.c.Stall = time.Minute
	a.peer = b.through(func(string) error { return nil })
	if err := a.Send(t.Context(), ref, r); err != nil {
		t.Fatal(err)
	}
	b.arrived()
}

func TestSend_GivesOnlyWhatIsHeld(t *testing.T) {
	a, b, _ := rig(t)
	r := b.prepare(ref)
	a.files.Write(disk, "written meanwhile")
	err := a.Send(t.Context(), ref, r)
	a.wantKind("a disk that changed since it was held", err, fault.Forbidden)
	if rs := fault.ReasonsOf(err); len(rs) != 1 || rs[0].Code != "disk_changed" {
		t.Errorf("refused with %v", err)
	}
	a.held.Files = nil
	_, err = a.ReadDisk(t.Context(), ref, migration.DiskRange{Path: disk, Length: migration.ShipRun})
	a.wantKind("a disk that is not held", err, fault.Forbidden)
	a.held = nil
	a.wantKind("where nothing is held", a.Send(t.Context(), ref, r), fault.Forbidden)
	if _, err := a.ReadDisk(t.Context(), ref, migration.DiskRange{Path: disk, Length: migration.ShipRun}); err != nil {
		t.Errorf("a conductor that is the source reads without: %v", err)
	}
}

// TestRoom_IsLookedForBeforeTheFirstByte, and what other moves have yet to write counts.
func TestRoom_IsLookedForBeforeTheFirstByte(t *testing.T) {
	_, b, w := rig(t)
	check := func(bytes int64) error {
		var no fault.Refusal
		other := ref
		other.Migration = "33333333-3333-4333-8333-333333333333"
		g := guest(bytes)
		g.Disks[0].Path = "/images/vm2.raw"
		if err := b.Check(t.Context(), &no, other, g, []string{"vda"}, nil); err != nil {
			t.Fatal(err)
		}
		return no.Err("check")
	}
	plan := func(grow ...migration.DiskGrowth) error {
		_, err := b.Plan(t.Context(), ref, migration.PrepRequest{Guest: guest(20), CopyDisks: []string{"vda"}, Wanted: migration.Wanted{Grow: grow}})
		return err
	}
	w.Host("b").SetFree(disk, 3)
	b.wantKind("prepare without room", plan(), fault.DoesNotFit)
	w.Host("b").SetFree(disk, 1<<20)
	b.wantKind("prepare without room to grow", plan(migration.DiskGrowth{Target: "vda", VirtualSize: 66 << 20}), fault.DoesNotFit)
	w.Host("b").SetFree(disk, 50)
	if err := check(50); err != nil {
		t.Errorf("all of it: %v", err)
	}
	b.prepare(ref) // 20 bytes
	b.wantKind("beside another", check(31), fault.DoesNotFit)
	if err := check(30); err != nil {
		t.Errorf("beside another, what is left: %v", err)
	}
	b.Dock.c.Reserve = 1
	b.wantKind("with one byte to be left", check(30), fault.DoesNotFit)
}

// TestRoom_EndsInTheMiddle is a refusal of the destination, which says what it wants.
func TestRoom_EndsInTheMiddle(t *testing.T) {
	a, b, w := rig(t)
	r := b.prepare(ref)
	w.Host("b").SetFree(disk, 3)
	err := a.Send(t.Context(), ref, r)
	a.wantKind("send without room", err, fault.DoesNotFit)
	i := slices.IndexFunc(fault.ReasonsOf(err), func(r fault.Reason) bool {
		return r.Code == "disk_room_short" && r.Want == "1 MiB" && r.Have != "" && strings.Contains(r.Message, disk)
	})
	if i < 0 {
		t.Errorf("reasons %+v", fault.ReasonsOf(err))
	}
	if err := b.Undo(t.Context(), ref); err != nil {
		t.Error(err)
	}
	if _, _, exists := w.Host("b").Data(disk); exists || len(w.Host("b").Marked()) > 0 {
		t.Errorf("left at the destination: %v", w.Host("b").List())
	}
}
