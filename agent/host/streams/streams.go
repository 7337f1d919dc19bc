package streams

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/agent/host/disks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/runtime"
	"berth/migration"
)

// Guests is what streams ask of the rest of the host.
type Guests interface {
	// MayLeave is nil while this host may let the guest go: it is managed here, and its
	// token is here. The caller has the instance's turn.
	MayLeave(instance string) error
	// Chosen is the power state that the guest's user has chosen, as far as its domain
	// tells.
	Chosen(d driver.Domain) migration.PowerState
	// Resume lets the guest's CPUs run again here, where its move left it paused.
	Resume(ctx context.Context, instance string) error
	// Copied gives the files behind the disks of these targets, by the guest's document:
	// exactly they are removed in the end.
	Copied(domainXML string, targets []string) ([]disks.Moved, error)
}

// Options are what Streams are made of.
type Options struct {
	Host    string // provider's name
	Tracker *claims.Tracker
	Memory  *memory.Memory
	Driver  driver.Driver
	Runtime runtime.Runtime
	Logger  *slog.Logger
	Guests  Guests
	// Spawn runs f as an actor whose end the host waits for; its context ends when the
	// agent does. false when that was first.
	Spawn func(name string, f func(ctx context.Context)) bool

	Processes Processes           // nil: guests come and go by libvirt's TLS alone
	Transport migration.Transport // how guests come here; empty for libvirt's TLS
	TLS       bool                // memory and disks by QEMU's own TLS, where libvirt's TLS is the transport

	Poll  time.Duration // how often jobs are looked at
	Agree time.Duration // four times the time between two looks that must agree that no job is there
}

// Streams are those of one host. Safe for concurrent use.
type Streams struct {
	o   Options
	log *slog.Logger
	// migrator is nil where the driver's code knows no live migration.
	migrator driver.LiveMigrator

	// mu guards the maps. Nothing but map work happens under it, and no other lock is
	// taken.
	mu    sync.Mutex
	watch map[string]*stream // by attempt and job: actors of this process
	told  map[string]bool    // by attempt: see noteTold

	// recording makes the results of streams come one after another, and none after its
	// stream was forgotten: what is known is never overwritten by what is not. Durable
	// writes happen under it, nothing else; it is taken after an instance's turn, never
	// before.
	recording runtime.Lock
}

// New makes Streams. It reads and writes nothing.
func New(o Options) *Streams {
	s := &Streams{o: o, log: o.Logger, watch: map[string]*stream{}, told: map[string]bool{}}
	s.migrator, _ = o.Driver.(driver.LiveMigrator)
	return s
}

// The steps under which streams are remembered; a stream's undo buries Step.
const (
	Step        = "stream"
	MemoryAsked = "stream_asked"
	MemoryEnded = "stream_result"
	// MemoryEndWanted is kept when the first job's end is asked for, MemorySuspended before a
	// guest's CPUs are stopped for its sake.
	MemoryEndWanted = "stream_end_wanted"
	MemorySuspended = "stream_suspended"
	// Of the second job.
	MemoryPostCopy      = "post_copy_asked"
	MemoryPostCopyEnded = "post_copy_result"
	// MemoryHalf is kept once the domain was seen in post-copy: should this half die before the
	// token has left, nobody could tell otherwise that the destination has run since.
	MemoryHalf = "post_copy_begun"
)

// job is one of the two that an attempt may have; see StartPostCopy.
type job struct{ name, asked, ended string }

var (
	first  = job{"stream", MemoryAsked, MemoryEnded}
	second = job{"post-copy", MemoryPostCopy, MemoryPostCopyEnded}
)

// Asked is the record that a stream was asked for.
type Asked struct {
	Persistent  bool                 `json:"persistent"` // the source's domain had a definition
	PowerState  migration.PowerState `json:"power_state"`
	Destination string               `json:"dest_compute"`
	DomainXML   string               `json:"domain_xml"` // for hooks, when the domain is gone
	Copied      []disks.Moved        `json:"copied,omitempty"`
}

// Ended is the record of what came of a stream.
type Ended struct {
	Result Result              `json:"result"`
	Error  string              `json:"error,omitempty"`
	Last   *migration.Progress `json:"last,omitempty"` // of the completed job
}

// Result is what is known of the hypervisor's call.
type Result string

// The results. None and Lost may become another one, Left and Undone never.
const (
	None   Result = ""       // asked for, or about to be
	Left   Result = "left"   // it ended well, or the domain was seen `shut off (migrated)`
	Undone Result = "undone" // the hypervisor says that it rolled back
	Lost   Result = "lost"   // it ended, nobody knows how
)

func (s *Streams) asked(ref migration.Ref, j job) (Asked, bool, error) {
	return memory.Recall[Asked](s.o.Memory, ref, j.asked)
}

func (s *Streams) ended(ref migration.Ref, j job) (Ended, bool, error) {
	return memory.Recall[Ended](s.o.Memory, ref, j.ended)
}

// current is the job that counts, the second once it was asked for, with its record.
func (s *Streams) current(ref migration.Ref) (j job, rec Asked, found bool, err error) {
	if rec, found, err = s.asked(ref, second); err != nil || found {
		return second, rec, found, err
	}
	rec, found, err = s.asked(ref, first)
	return first, rec, found, err
}

// Known is what is on record of the job that counts.
type Known struct {
	Asked
	Found    bool // a job was asked for
	PostCopy bool // the second one
	Half     bool // the domain was seen in post-copy by it
	Result   Result
}

// wasHalf reports whether the domain was seen in post-copy.
func (s *Streams) wasHalf(ref migration.Ref) (bool, error) {
	half, _, err := memory.Recall[bool](s.o.Memory, ref, MemoryHalf)
	return half, err
}

// Known reads it.
func (s *Streams) Known(ref migration.Ref) (Known, error) {
	j, asked, found, err := s.current(ref)
	if err != nil {
		return Known{}, err
	}
	got, _, err := s.ended(ref, j)
	if err != nil {
		return Known{}, err
	}
	half, err := s.wasHalf(ref)
	return Known{Asked: asked, Found: found, PostCopy: j == second, Half: half, Result: got.Result}, err
}

func (s *Streams) domain(ctx context.Context, ref migration.Ref) (driver.Domain, bool, error) {
	return driver.Find(ctx, s.o.Driver, ref.Instance)
}

// Forget drops what the stream of one attempt remembered. Safe to repeat.
func (s *Streams) Forget(ctx context.Context, ref migration.Ref) error {
	if err := s.recording.Lock(ctx, s.o.Runtime); err != nil {
		return err
	}
	defer s.recording.Unlock()
	s.noteTold(ref, false)
	// The second job's last: as long as it is known, it counts.
	for _, step := range []string{MemoryEndWanted, MemorySuspended, MemoryAsked, MemoryEnded, MemoryPostCopyEnded, MemoryHalf, MemoryPostCopy} {
		if err := s.o.Memory.Forget(ctx, ref, step); err != nil {
			return err
		}
	}
	return nil
}
