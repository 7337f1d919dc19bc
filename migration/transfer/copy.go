package transfer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
)

// lanes is how many pieces are under way at once, each of ShipBlock bytes: what one
// migration holds in memory is some twice that product. Arbitrary: enough that source,
// network and destination work at the same time.
const lanes = 4

// Source gives pieces of files; each question is bounded by who implements it.
type Source interface {
	ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error)
}

// Destination takes them; likewise.
type Destination interface {
	ShippedSoFar(ctx context.Context, ref migration.Ref) (migration.Shipped, error)
	WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error
	SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error
}

// Job is what Copy brings, from where to where.
type Job struct {
	Ref     migration.Ref
	Files   []migration.ShipFile
	From    Source
	To      Destination
	Rate    uint64        // bytes a second of what is sent; 0 for no bound
	Stall   time.Duration // without a byte for so long it fails
	Runtime runtime.Runtime
	Logger  *slog.Logger

	// Show is told how far it is, at once after each round and at most every Look; nil for
	// nobody. It does not block.
	Show func(migration.Progress)
	Look time.Duration
}

// Copy brings files of a guest that is off to where it goes, one after another: it asks
// the destination how far each is, reads on from there at the source, and has the
// destination seal all of them when they are whole. Whoever dies or is cut off meanwhile,
// also whoever ships, nothing that is durable is sent again; what is not durable is at
// most what the destination holds back (agent/host/shipping, syncEvery).
//
//	what fails                                  what is done
//	a host, or its answer, is away              asked how far it is, and on from there;
//	                                            fault.Unavailable when nothing came for Stall
//	a file changes, a checksum, no room, …      Copy fails with it
//
// Two that ship the same files at once do no harm: the destination takes each piece once,
// whoever brings it first.
func Copy(ctx context.Context, s Job) (migration.Progress, error) {
	x := &copying{Job: s, began: s.Runtime.Boot().Since, bound: pace{rate: s.Rate}}
	for _, f := range s.Files {
		x.files = append(x.files, &file{ShipFile: f, size: -1})
	}
	err := x.run(ctx)
	return x.look(), err
}

// copying is one run of Copy.
type copying struct {
	Job
	began time.Duration // boot clock
	files []*file
	bound pace

	showing sync.Mutex // one Show at a time, none behind a later one; above mu
	// mu guards what follows, and the files' order and next. Leaf lock.
	mu    sync.Mutex
	speed Rate
	shown time.Duration // when progress was last shown
	most  int64         // the farthest that all files together ever were
	moved time.Duration // when that was
}

// file is one as far as it is.
type file struct {
	migration.ShipFile
	size    int64 // -1 until the source was asked
	version string
	order   Order
	next    int64 // where the next lane begins
}

// run goes on from where the destination is, until all is sealed.
func (x *copying) run(ctx context.Context) error {
	rt := x.Runtime
	x.moved = rt.Boot().Since
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		before := x.most
		err := x.round(ctx)
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		switch fault.KindOf(err) {
		case fault.Unavailable, fault.InDoubt, fault.Busy:
		default:
			return err
		}
		x.mu.Lock()
		silent, came := rt.Boot().Since-x.moved, x.most > before
		x.mu.Unlock()
		if limit := x.stall(); silent >= limit {
			return task.By(task.Whose(err), fault.Refuse(fault.Unavailable, "", fault.Reason{
				Code: "stalled", Message: fmt.Sprintf("no disk bytes moved for %s: %v", silent.Round(time.Millisecond), err),
				Want: limit.String(), Have: silent.Round(time.Millisecond).String(), Change: "check both hosts' agents and the network between them",
			}))
		}
		if came {
			pause = 200 * time.Millisecond
		}
		x.Logger.Warn("the shipping of disks broke off, going on from where the destination is", "error", err)
		if err := rt.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// round is one try at all that is left.
func (x *copying) round(ctx context.Context) error {
	far, err := x.To.ShippedSoFar(ctx, x.Ref)
	if err != nil {
		return err
	}
	sealed := true
	for _, f := range x.files {
		i := slices.IndexFunc(far.Files, func(s migration.ShippedFile) bool { return s.Path == f.Path })
		if i < 0 {
			return fault.New(fault.Internal, "the destination does not know %s", f.Path)
		}
		if err := x.resume(ctx, f, far.Files[i]); err != nil {
			return err
		}
		sealed = sealed && far.Files[i].Sealed
	}
	x.show(true)
	if sealed {
		return nil // its answer was lost
	}
	want := migration.Shipped{}
	for _, f := range x.files {
		if err := x.send(ctx, f); err != nil {
			return err
		}
		want.Files = append(want.Files, migration.ShippedFile{Path: f.Path, Bytes: f.order.Bytes, Sum: f.order.Sum.String(), Version: f.version})
	}
	x.show(true)
	for _, f := range x.files {
		// Also after the last of its pieces nobody may have written to it.
		if p, err := x.read(ctx, f, 0, 0); err != nil {
			return err
		} else if p.Version != f.version {
			return fileChanged(f.Path)
		}
	}
	return x.To.SealDisks(ctx, x.Ref, want)
}

// resume takes a file up where the destination has it.
func (x *copying) resume(ctx context.Context, f *file, far migration.ShippedFile) error {
	if f.size < 0 {
		p, err := x.read(ctx, f, 0, 0)
		if err != nil {
			return err
		}
		f.size, f.version = p.Size, p.Version
	}
	if far.Bytes > 0 && far.Version != f.version {
		return fileChanged(f.Path)
	}
	sum, err := migration.ParseShipSum(far.Sum)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	f.order, f.next = Order{Bytes: far.Bytes, Sum: sum}, far.Bytes
	return nil
}

func fileChanged(path string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "disk_changed", Message: path + " was written to while it was shipped", Want: path, Change: "find out who writes to it, and try again",
	})
}

// send brings the rest of one file, by several lanes. The first failure ends them all.
func (x *copying) send(ctx context.Context, f *file) error {
	if f.order.Bytes >= f.size {
		return nil
	}
	rt := x.Runtime
	going, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var first error // guarded by x.mu
	var group runtime.Group
	for i := range lanes {
		group.Go(rt, fmt.Sprintf("ship %s %d", x.Ref.Migration, i), func() {
			if err := x.lane(going, f); err != nil {
				x.mu.Lock()
				if first == nil {
					first = err
				}
				x.mu.Unlock()
				stop(err)
			}
		})
	}
	group.Wait(rt)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if first == nil && f.order.Bytes != f.size {
		return fault.New(fault.Internal, "%s came to %d of %d bytes", f.Path, f.order.Bytes, f.size)
	}
	return first
}

// lane brings one block after another.
func (x *copying) lane(ctx context.Context, f *file) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		x.mu.Lock()
		at := f.next
		end := min(at+migration.ShipBlock, f.size)
		f.next = end
		x.mu.Unlock()
		if at >= end {
			return nil
		}
		p, err := x.read(ctx, f, at, migration.ShipRun)
		if err != nil {
			return err
		}
		if p.Offset != at || p.Length < end-at || p.Size != f.size || p.Version != f.version || !p.Zero && p.Length != end-at {
			return fileChanged(f.Path)
		}
		pieces := []migration.DiskPiece{p}
		if p.Zero {
			pieces = x.zeros(f, p, end)
		}
		for _, p := range pieces {
			if err := x.write(ctx, f, p); err != nil {
				return err
			}
		}
	}
}

// zeros is what of a run of zeros belongs to the lane that found it: its own block, and
// what no lane has begun yet.
func (x *copying) zeros(f *file, p migration.DiskPiece, own int64) []migration.DiskPiece {
	x.mu.Lock()
	defer x.mu.Unlock()
	end := p.Offset + p.Length
	rest := p
	p.Length = own - p.Offset
	if end <= f.next {
		return []migration.DiskPiece{p}
	}
	rest.Offset, rest.Length = f.next, end-f.next
	f.next = end
	if rest.Offset == own {
		p.Length = end - p.Offset
		return []migration.DiskPiece{p}
	}
	return []migration.DiskPiece{p, rest}
}

func (x *copying) read(ctx context.Context, f *file, at, most int64) (migration.DiskPiece, error) {
	return x.From.ReadDisk(ctx, x.Ref, migration.DiskRange{Path: f.Path, Offset: at, Length: most, SumOnly: f.Compare})
}

func (x *copying) write(ctx context.Context, f *file, p migration.DiskPiece) error {
	if err := x.bound.wait(ctx, x.Runtime, len(p.Data)); err != nil {
		return err
	}
	if err := x.To.WriteDisk(ctx, x.Ref, p); err != nil {
		return err
	}
	x.mu.Lock()
	err := f.order.Take(p)
	x.mu.Unlock()
	x.show(false)
	return err
}

// stall is how long nothing may come: a bound that lets one piece through in a longer time
// is nobody's fault.
func (x *copying) stall() time.Duration {
	return max(x.Stall, 2*x.bound.time(lanes*migration.ShipBlock))
}

// show tells people how far it is, not more often than they look.
func (x *copying) show(now bool) {
	at := x.Runtime.Boot().Since
	x.mu.Lock()
	var far int64
	for _, f := range x.files {
		far += f.order.Bytes
	}
	if far > x.most {
		x.most, x.moved = far, at
	}
	if !now && at-x.shown < x.Look {
		x.mu.Unlock()
		return
	}
	x.shown = at
	x.mu.Unlock()
	if x.Show != nil {
		x.showing.Lock()
		defer x.showing.Unlock()
		x.Show(x.look())
	}
}

// look is the progress: the bytes of all files, holes and what is only compared included.
func (x *copying) look() migration.Progress {
	at := x.Runtime.Boot().Since
	x.mu.Lock()
	defer x.mu.Unlock()
	p := migration.Progress{Phase: "disk", Elapsed: at - x.began}
	for _, f := range x.files {
		p.DiskTotal += uint64(max(f.size, 0))
		p.DiskProcessed += uint64(f.order.Bytes)
	}
	p.DiskRemaining = p.DiskTotal - p.DiskProcessed
	x.speed = x.speed.See(at, p)
	p.Rate = x.speed.Value()
	return p
}
