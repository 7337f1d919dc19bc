package migration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/task"
)

// shipLanes is how many pieces are under way at once, each of ShipBlock bytes: what one
// migration holds in memory is some twice that product. Arbitrary: enough that source,
// network and destination work at the same time.
const shipLanes = 4

// shippedDisks is the output of ship_disks.
type shippedDisks struct {
	Progress Progress `json:"progress"`
}

// shipDisks brings over what the two hosts do not share, file by file: it asks the
// destination how far each is, reads on from there at the source, and has the
// destination seal all of them when they are whole. Whatever is cut or dies meanwhile,
// nothing that is durable is sent again; what is not durable is at most what the
// destination holds back (agent/host, shipSync).
//
//	what fails                                  what is done
//	a host, or its answer, is away              asked how far it is, and on from there; the
//	                                            step fails when nothing came for a while
//	a file changes, a checksum, no room, …      the step fails: the guest goes back
func (s *story) shipDisks(ctx context.Context, t *task.Task) (any, error) {
	var prepared PreparedCold
	if err := t.Output(StepPrepResize, &prepared); err != nil {
		return nil, err
	}
	if len(prepared.Files) == 0 {
		return nil, nil
	}
	x := &shipping{s: s, t: t, began: s.c.cfg.Runtime.Boot().Since}
	for _, f := range prepared.Files {
		x.files = append(x.files, &shippedSoFar{ShipFile: f, size: -1})
	}
	if err := x.run(ctx); err != nil {
		return nil, fmt.Errorf("ship the disks of %s: %w", s.instance, err)
	}
	return shippedDisks{Progress: x.look()}, nil
}

// shipping is one run of the step.
type shipping struct {
	s     *story
	t     *task.Task
	began time.Duration // boot clock
	files []*shippedSoFar

	// mu guards what follows, and the files' order and next. Leaf lock.
	mu    sync.Mutex
	speed rate
	shown time.Duration // when progress was last shown
	most  int64         // the farthest that all files together ever were
	moved time.Duration // when that was
}

// shippedSoFar is a file as far as it is.
type shippedSoFar struct {
	ShipFile
	size    int64 // -1 until the source was asked
	version string
	order   ShipOrder
	next    int64 // where the next lane begins
}

// run goes on from where the destination is, until all is sealed.
func (x *shipping) run(ctx context.Context) error {
	rt := x.s.c.cfg.Runtime
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
		// As long as a destination of a live migration may take to begin: an agent that is
		// restarted is back by then.
		if limit := x.s.limits().Setup; silent >= limit {
			return fault.Refuse(fault.Unavailable, "", fault.Reason{
				Code: "stalled", Message: fmt.Sprintf("no disk bytes moved for %s: %v", silent.Round(time.Millisecond), err),
				Want: limit.String(), Have: silent.Round(time.Millisecond).String(), Change: "check both hosts' agents and the network between them",
			})
		}
		if came {
			pause = 200 * time.Millisecond
		}
		x.s.c.cfg.Logger.Warn("the shipping of disks broke off, going on from where the destination is", "migration", x.s.uuid, "instance", x.s.instance, "error", err)
		if err := rt.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// round is one try at all that is left.
func (x *shipping) round(ctx context.Context) error {
	cfg := x.s.c.cfg
	var far Shipped
	err := x.destination(ctx, cfg.SlowVerbTimeout, func(ctx context.Context, h Host) (err error) {
		far, err = h.ShippedSoFar(ctx, x.s.ref(StepShipDisks))
		return err
	})
	if err != nil {
		return err
	}
	sealed := true
	for _, f := range x.files {
		i := slices.IndexFunc(far.Files, func(s ShippedFile) bool { return s.Path == f.Path })
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
	want := Shipped{}
	for _, f := range x.files {
		if err := x.send(ctx, f); err != nil {
			return err
		}
		want.Files = append(want.Files, ShippedFile{Path: f.Path, Bytes: f.order.Bytes, Sum: f.order.Sum.String(), Version: f.version})
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
	return x.destination(ctx, cfg.SlowVerbTimeout, func(ctx context.Context, h Host) error {
		return h.SealDisks(ctx, x.s.ref(StepShipDisks), want)
	})
}

// resume takes a file up where the destination has it.
func (x *shipping) resume(ctx context.Context, f *shippedSoFar, far ShippedFile) error {
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
	sum, err := ParseShipSum(far.Sum)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	f.order, f.next = ShipOrder{Bytes: far.Bytes, Sum: sum}, far.Bytes
	return nil
}

func fileChanged(path string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "disk_changed", Message: path + " was written to while it was shipped", Want: path, Change: "find out who writes to it, and try again",
	})
}

// send brings the rest of one file, by several lanes. The first failure ends them all.
func (x *shipping) send(ctx context.Context, f *shippedSoFar) error {
	if f.order.Bytes >= f.size {
		return nil
	}
	rt := x.s.c.cfg.Runtime
	lanes, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var first error // guarded by x.mu
	var group runtime.Group
	for i := range shipLanes {
		group.Go(rt, fmt.Sprintf("ship %s %d", x.s.uuid, i), func() {
			if err := x.lane(lanes, f); err != nil {
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
func (x *shipping) lane(ctx context.Context, f *shippedSoFar) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		x.mu.Lock()
		at := f.next
		end := min(at+ShipBlock, f.size)
		f.next = end
		x.mu.Unlock()
		if at >= end {
			return nil
		}
		p, err := x.read(ctx, f, at, ShipRun)
		if err != nil {
			return err
		}
		if p.Offset != at || p.Length < end-at || p.Size != f.size || p.Version != f.version || !p.Zero && p.Length != end-at {
			return fileChanged(f.Path)
		}
		pieces := []DiskPiece{p}
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
func (x *shipping) zeros(f *shippedSoFar, p DiskPiece, own int64) []DiskPiece {
	x.mu.Lock()
	defer x.mu.Unlock()
	end := p.Offset + p.Length
	rest := p
	p.Length = own - p.Offset
	if end <= f.next {
		return []DiskPiece{p}
	}
	rest.Offset, rest.Length = f.next, end-f.next
	f.next = end
	if rest.Offset == own {
		p.Length = end - p.Offset
		return []DiskPiece{p}
	}
	return []DiskPiece{p, rest}
}

func (x *shipping) read(ctx context.Context, f *shippedSoFar, at, most int64) (p DiskPiece, err error) {
	err = x.s.askOnce(ctx, x.s.c.cfg.VerbTimeout, x.s.source, func(ctx context.Context, h Host) (err error) {
		p, err = h.ReadDisk(ctx, x.s.ref(StepShipDisks), DiskRange{Path: f.Path, Offset: at, Length: most, SumOnly: f.Compare})
		return err
	})
	return p, err
}

func (x *shipping) write(ctx context.Context, f *shippedSoFar, p DiskPiece) error {
	err := x.destination(ctx, x.s.c.cfg.VerbTimeout, func(ctx context.Context, h Host) error {
		return h.WriteDisk(ctx, x.s.ref(StepShipDisks), p)
	})
	if err != nil {
		return err
	}
	x.mu.Lock()
	err = f.order.Take(p)
	x.mu.Unlock()
	x.show(false)
	return err
}

// destination asks it once; a round that broke off is the repetition.
func (x *shipping) destination(ctx context.Context, timeout time.Duration, f func(context.Context, Host) error) error {
	return x.s.once(ctx, x.t, timeout, f)
}

// show tells people how far it is, not more often than they look.
func (x *shipping) show(now bool) {
	at := x.s.c.cfg.Runtime.Boot().Since
	x.mu.Lock()
	var far int64
	for _, f := range x.files {
		far += f.order.Bytes
	}
	if far > x.most {
		x.most, x.moved = far, at
	}
	if !now && at-x.shown < x.s.c.cfg.PollInterval {
		x.mu.Unlock()
		return
	}
	x.shown = at
	x.mu.Unlock()
	x.s.progress(x.look())
}

// look is the progress: the bytes of all files, holes and what is only compared included.
func (x *shipping) look() Progress {
	at := x.s.c.cfg.Runtime.Boot().Since
	x.mu.Lock()
	defer x.mu.Unlock()
	p := Progress{Phase: "disk", Elapsed: at - x.began}
	for _, f := range x.files {
		p.DiskTotal += uint64(max(f.size, 0))
		p.DiskProcessed += uint64(f.order.Bytes)
	}
	p.DiskRemaining = p.DiskTotal - p.DiskProcessed
	x.speed = x.speed.see(at, p)
	p.Rate = x.speed.value
	return p
}
