package shipping

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/transfer"
)

// stepShip is the step under which all that is shipped here is buried.
const stepShip = "ship_disks"

// The steps under which it remembers.
const (
	MemoryComing = "shipped"     // what comes here, and how far it is
	MemoryGoing  = "ships_files" // what left from here
)

// Files are the host's files; what each method promises is said with disks.Files.
type Files interface {
	disks.Finder
	Image(ctx context.Context, path, format string) (disks.Image, error)
	Space(path string) (disks.Space, error)
	Plan(migration, part, path string) (disks.Made, error)
	Build(ctx context.Context, m *disks.Made, format string, size int64) error
	Publish(m disks.Made) error
	Keep(m disks.Made)
	Unmake(m disks.Made) error
	ReadBlock(path string, offset, most, block int64) (disks.Block, error)
	OpenPart(m disks.Made) (disks.Part, error)
}

// Guests is what the host knows of its guests.
type Guests interface {
	// Off refuses while the guest may write: it must be off by this attempt, and this
	// host's, or have left by it.
	Off(ctx context.Context, ref migration.Ref) error
	// Disks are the files of a guest that this attempt has powered off, that it writes to.
	Disks(ref migration.Ref) ([]Disk, error)
	// Held gives the files that this attempt holds as they are; false where it holds none.
	Held(ref migration.Ref) (migration.Snapshot, bool, error)
	// Place refuses a path at which no disk is made here, System one at which none ever is.
	Place(path string) (fault.Reason, bool)
	System(path string) bool
	// FileUsers finds who uses which file here.
	FileUsers(ctx context.Context) (*fileusers.Survey, error)
}

// Disk is a file of a guest.
type Disk struct {
	Target    string
	Path      string
	Format    string // of which its definition says it is; empty for raw
	Variables bool   // no disk but the firmware's variables: nothing is below, and perhaps none is there
}

// Config is what a Dock is made of. All is needed but Reserve and Stall.
type Config struct {
	Name    string // provider's name of the host
	Memory  *memory.Memory
	Files   Files
	Guests  Guests
	Runtime runtime.Runtime
	Logger  *slog.Logger
	// Reserve is how much is left free of each filesystem to which files come, bytes.
	Reserve int64
	// Stall is how long nothing may move of what is shipped from here; 0 for 15 s: whoever
	// conducts can carry the files himself, and does not wait longer than for a stream.
	Stall time.Duration
	// Peer reaches another host.
	Peer func(ctx context.Context, host string) (transfer.Destination, error)
	// Go runs what goes on by itself, false when the host ends; Context ends with the host.
	Go      func(name string, f func()) bool
	Context context.Context
}

// Dock is where disks come to a host and leave from it. What it knows beside its records
// is of this process: a later Dock on the same memory goes on.
type Dock struct {
	c   Config
	log *slog.Logger

	// mu guards the maps. Leaf lock: map work only.
	mu      sync.Mutex
	coming  map[string]*shipment     // by migration and attempt
	going   map[string]going         // by instance: the last attempt's
	readAt  map[string]time.Duration // by instance, boot clock
	sending map[string]*sending      // by migration and attempt
	opening runtime.Lock             // makes one shipment of one record
}

// New makes a Dock. It reads and writes nothing.
func New(c Config) *Dock {
	if c.Stall <= 0 {
		c.Stall = 15 * time.Second
	}
	return &Dock{c: c, log: c.Logger, coming: map[string]*shipment{}, going: map[string]going{}, readAt: map[string]time.Duration{}, sending: map[string]*sending{}}
}
