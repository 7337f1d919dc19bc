package remake

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"berth/agent/host/disks"
	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Files make the new ones; disks.Files does, and says what each promises.
type Files interface {
	BuildFrom(ctx context.Context, m *disks.Made, format string, size int64, image, imageFormat string) error
	BuildCopy(ctx context.Context, r *disks.Replaced, format string, size int64) error
	Space(path string) (disks.Space, error)
}

// Options are what a Bench is made of.
type Options struct {
	Files   Files
	Runtime runtime.Runtime
	// Agent ends with the agent, and Spawn runs f as an actor whose end the host waits
	// for; false when the agent's was first.
	Agent context.Context
	Spawn func(name string, f func()) bool
}

// Bench is where a host makes files anew. Safe for concurrent use.
type Bench struct {
	o Options

	// mu guards copies. Nothing but map work happens under it, and no other lock is taken.
	mu     sync.Mutex
	copies map[string]*copying // by attempt and disk: files that are being made
}

// New makes a Bench. It reads and writes nothing.
func New(o Options) *Bench { return &Bench{o: o, copies: map[string]*copying{}} }

// Disk is a disk of which a new file is made, as its caller has it on record.
type Disk struct {
	disks.Replaced
	Target string `json:"target"`
	Format string `json:"format"`
	Size   int64  `json:"virtual_size_bytes"`
	Image  bool   `json:"image,omitempty"` // from the image, else from the old file
}

// copying is a file that is being made. It may take longer than any verb: the verb says
// that it lasts and is asked again, and its undo ends it.
type copying struct {
	stop context.CancelFunc
	done chan struct{} // closed when what follows stands
	disk Disk
	err  error
}

func copyKey(ref migration.Ref, target string) string { return memory.Key(ref) + "/" + target }

// Build makes the new file of a disk: from the image, or from its old file. Where it
// lasts longer than ctx it goes on, and the same call finds it. fault.Unavailable then.
func (b *Bench) Build(ctx context.Context, ref migration.Ref, d *Disk, image *migration.Image) error {
	key := copyKey(ref, d.Target)
	b.mu.Lock()
	c := b.copies[key]
	b.mu.Unlock()
	if c == nil {
		work, stop := context.WithCancel(b.o.Agent)
		c = &copying{stop: stop, done: make(chan struct{}), disk: *d}
		if !b.o.Spawn("make a disk for "+ref.Instance, func() {
			defer close(c.done)
			if c.disk.Image {
				c.err = b.o.Files.BuildFrom(work, &c.disk.Made, c.disk.Format, c.disk.Size, image.Path, image.Format)
			} else {
				c.err = b.o.Files.BuildCopy(work, &c.disk.Replaced, c.disk.Format, c.disk.Size)
			}
		}) {
			stop()
			return fault.New(fault.Unavailable, "make disk %s: the agent ends", d.Path)
		}
		b.mu.Lock()
		b.copies[key] = c
		b.mu.Unlock()
	}
	if err := runtime.Await(ctx, b.o.Runtime, c.done); err != nil {
		return fault.New(fault.Unavailable, "make disk %s: it lasts: %w", d.Path, err)
	}
	b.mu.Lock()
	delete(b.copies, key)
	b.mu.Unlock()
	c.stop()
	if c.err == nil {
		*d = c.disk
	}
	return c.err
}

// Stop ends what an attempt makes, and waits for it: nothing writes after it. The
// caller has the instance's turn, and the verbs that would begin anew are late.
func (b *Bench) Stop(ctx context.Context, ref migration.Ref) error {
	b.mu.Lock()
	var mine []*copying
	for key, c := range b.copies {
		if strings.HasPrefix(key, copyKey(ref, "")) {
			mine = append(mine, c)
			c.stop()
		}
	}
	b.mu.Unlock()
	for _, c := range mine {
		if err := runtime.Await(ctx, b.o.Runtime, c.done); err != nil {
			return fault.New(fault.Unavailable, "end the copy of disk %s: %w", c.disk.Path, err)
		}
		b.mu.Lock()
		delete(b.copies, copyKey(ref, c.disk.Target))
		b.mu.Unlock()
	}
	return nil
}

// spaceBeside is what tables of an image and of its folder may take besides its data.
const spaceBeside = 4 << 20

// Room asks for room for a file beside another one.
func (b *Bench) Room(no *fault.Refusal, path string, bytes int64) error {
	space, err := b.o.Files.Space(path)
	if err != nil {
		return err
	}
	if need := bytes + spaceBeside; space.Bytes < need {
		no.Add(fault.DoesNotFit, fault.Reason{
			Code: "disk_space", Message: fmt.Sprintf("the folder of %s has %s free, the new file beside it needs %s", path, MiB(space.Bytes), MiB(need)),
			Have: MiB(space.Bytes), Want: MiB(need), Change: "make room there",
		})
	}
	return nil
}

// MiB is an amount for people, rounded up.
func MiB(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
