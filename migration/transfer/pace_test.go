package transfer

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"berth/internal/runtime"
	"berth/migration"
)

// slept is a clock that a sleep turns on, and that remembers how long was slept.
type slept struct {
	runtime.System
	mu       sync.Mutex
	now, sum time.Duration
}

func (s *slept) Boot() runtime.BootTime {
	s.mu.Lock()
	defer s.mu.Unlock()
	return runtime.BootTime{Since: s.now}
}

func (s *slept) Sleep(_ context.Context, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.sum = s.now+d, s.sum+d
	return nil
}

func TestPace_BoundsBytesASecond(t *testing.T) {
	rt := &slept{now: time.Hour}
	p := pace{rate: 8 << 20}
	for range 16 { // 64 MiB
		if err := p.wait(t.Context(), rt, migration.ShipBlock); err != nil {
			t.Fatal(err)
		}
		if err := p.wait(t.Context(), rt, 0); err != nil { // zeros
			t.Fatal(err)
		}
	}
	// The first half second's worth goes at once, and the last piece has its time after it.
	if want := 7 * time.Second; rt.sum < want-100*time.Millisecond || rt.sum > want+100*time.Millisecond {
		t.Errorf("64 MiB at 8 MiB/s were held up for %s, want some %s", rt.sum, want)
	}
	rt.now += time.Hour
	before := rt.sum
	for range 16 {
		if err := p.wait(t.Context(), rt, migration.ShipBlock); err != nil {
			t.Fatal(err)
		}
	}
	if late := rt.sum - before; late < 6*time.Second {
		t.Errorf("after a pause of an hour 64 MiB were held up for %s: a pause is no credit", late)
	}
	free := pace{}
	before = rt.sum
	if err := free.wait(t.Context(), rt, 1<<30); err != nil || rt.sum != before {
		t.Errorf("without a bound held up for %s: %v", rt.sum-before, err)
	}
	if got := (&pace{rate: 1 << 20}).time(migration.ShipBlock); got != 4*time.Second {
		t.Errorf("a block at 1 MiB/s: %s", got)
	}
}

// quay is both ends of a shipment of one file: blocks of data where data says, zeros else.
type quay struct {
	blocks int64
	data   func(block int64) bool

	mu     sync.Mutex
	order  Order
	pieces int // with data
	sealed bool
}

func (q *quay) ReadDisk(_ context.Context, _ migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	p := migration.DiskPiece{Path: r.Path, Offset: r.Offset, Size: q.blocks * migration.ShipBlock, Version: "v"}
	at := r.Offset / migration.ShipBlock
	switch {
	case r.Length == 0 || at >= q.blocks:
	case q.data(at):
		p.Data = make([]byte, migration.ShipBlock)
		p.Length, p.Sum = migration.ShipBlock, migration.PieceSum(p.Data)
	default:
		p.Zero = true
		for ; at < q.blocks && !q.data(at); at++ {
			p.Length += migration.ShipBlock
		}
	}
	return p, nil
}

func (q *quay) ShippedSoFar(context.Context, migration.Ref) (migration.Shipped, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return migration.Shipped{Files: []migration.ShippedFile{{Path: "/d", Bytes: q.order.Bytes, Sum: q.order.Sum.String(), Version: "v", Sealed: q.sealed}}}, nil
}

func (q *quay) WriteDisk(_ context.Context, _ migration.Ref, p migration.DiskPiece) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(p.Data) > 0 {
		q.pieces++
	}
	return q.order.Take(p)
}

func (q *quay) SealDisks(context.Context, migration.Ref, migration.Shipped) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sealed = true
	return nil
}

// TestShip_BoundsWhatIsSent and nothing else: what is a hole costs no time. What people see
// is all of it.
func TestShip_BoundsWhatIsSent(t *testing.T) {
	rt, q := &slept{}, &quay{blocks: 4096, data: func(block int64) bool { return block%512 == 0 }} // 8 blocks
	var last migration.Progress
	p, err := Copy(t.Context(), Job{
		Files: []migration.ShipFile{{Target: "vda", Path: "/d"}}, From: q, To: q, Rate: 1 << 20, Stall: time.Second, Runtime: rt, Logger: slog.New(slog.DiscardHandler),
		Show: func(p migration.Progress) { last = p },
	})
	if err != nil || !q.sealed {
		t.Fatalf("ship: %v, sealed: %v", err, q.sealed)
	}
	if q.pieces != 8 || rt.sum < 27*time.Second || rt.sum > 8*33*time.Second {
		t.Errorf("%d pieces, held up for %s", q.pieces, rt.sum)
	}
	if want := uint64(4096 * migration.ShipBlock); p.DiskProcessed != want || p.DiskRemaining != 0 || last.DiskProcessed != want {
		t.Errorf("progress %+v, shown %+v", p, last)
	}
}
