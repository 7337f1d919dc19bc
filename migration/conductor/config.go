package conductor

import (
	"context"
	crand "crypto/rand"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/candidates"
	"berth/migration/task"
	"berth/placementclient"
)

// Placement is what a conductor asks of Placement; *placementclient.Client is one.
type Placement interface {
	// Allocations of a consumer that does not exist are empty, and no error.
	Allocations(ctx context.Context, consumer string) (placementclient.Allocations, error)
	PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error
	// PostAllocations replaces what several consumers hold, all or none.
	PostAllocations(ctx context.Context, set map[string]placementclient.Allocations) error
	DeleteAllocations(ctx context.Context, consumer string) error
	candidates.Placement
}

// NearWeight is what it counts that a destination is near to the source.
type NearWeight = candidates.NearWeight

// Config configures a Conductor. Zero durations and numbers mean the defaults.
type Config struct {
	Runtime runtime.Runtime
	Store   task.Store
	// Local is the provider's name of the host whose agent this is: the source of every
	// migration that the conductor accepts but those that share nothing.
	Local string
	// Hosts finds a host by its provider's name, the local one included. It may
	// dial. fault.NotFound for a name that no peer has.
	Hosts func(ctx context.Context, name string) (migration.Host, error)
	// Ready waits until this host knows its own records: moves that an earlier conductor
	// left rest until then, and are not undone for an answer that this host cannot give
	// yet; those that can only go forward do not wait. Its error is that of an ended ctx. nil
	// where they are known at once.
	Ready     func(ctx context.Context) error
	Placement Placement
	// Fleet are the records that hosts keep of each other; nil where there are none, and
	// then nothing is evacuated.
	Fleet  Fleet
	Logger *slog.Logger // nil discards

	// NearWeight is what it counts that a candidate of Placement's is near to the source;
	// it is asked for at each choice. nil for nothing.
	NearWeight func() NearWeight
	// MaxOutbound is how many live migrations are under way at once, MaxPerLink how many of
	// them and of the guests that come from there between this host and one other. Asked for
	// at each decision; nil or 0 for no bound.
	MaxOutbound, MaxPerLink func() int
	// Incoming counts the guests that are on their way here from a host; nil counts none.
	Incoming    func(host string) int
	MaxAttempts int           // destinations tried when none is named, alternates included; default 5
	Lease       time.Duration // of the destination's claim, renewed at a third; default 60 s
	// StallTimeout is the default of Options.StallTimeout: 15 s. While the
	// destination still sets up, four times that is allowed.
	StallTimeout time.Duration
	// PollInterval is between two looks at a stream (default 250 ms), and
	// PollNear when its end is near (default 20 ms): what is seen late is downtime.
	PollInterval, PollNear time.Duration
	// VerbTimeout bounds one quick verb (default 30 s), SlowVerbTimeout those
	// that make disks, run hooks or wait for a job's end (default 10 minutes).
	VerbTimeout, SlowVerbTimeout time.Duration
	// Patience is how long somebody who must answer may be silent before the
	// migration is shown as in doubt (default 1 minute).
	Patience time.Duration
	// AttemptTimeout bounds one attempt: what is not over then is undone where it still
	// can be, and else shown as in doubt. 0 for Nova's rule, 800 s for each GiB of the
	// guest's memory and disks, of at least two. Longer where a move's options are.
	AttemptTimeout time.Duration
	// ConfirmWindow is after which time a finished cold move or resize is confirmed by
	// itself; 0 for never.
	ConfirmWindow time.Duration
	// ShutdownTimeout is how long a guest that is to be off is given to shut itself down;
	// default 60 s, as Nova's, and below 0 its plug is pulled at once.
	ShutdownTimeout time.Duration
	// UndoLater is the longest pause between two passes of an undo that did not succeed
	// (default 30 s).
	UndoLater time.Duration
	// KeepFinished is how many finished migrations are kept (default 1000).
	KeepFinished int
	// Random makes the uuids of migrations; nil means the machine's.
	Random io.Reader
	// Jitter gives a random duration below its argument; nil means math/rand.
	Jitter func(time.Duration) time.Duration
}

// defaultAttempts is how many destinations are tried. Arbitrary: each may be asked
// for up to VerbTimeout.
const defaultAttempts = 5

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Lease, time.Minute)
	def(&c.StallTimeout, 15*time.Second)
	def(&c.PollInterval, 250*time.Millisecond)
	def(&c.PollNear, 20*time.Millisecond)
	def(&c.VerbTimeout, 30*time.Second)
	def(&c.SlowVerbTimeout, 10*time.Minute)
	def(&c.Patience, time.Minute)
	def(&c.UndoLater, 30*time.Second)
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = time.Minute
	}
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = defaultAttempts
	}
	if c.NearWeight == nil {
		c.NearWeight = func() NearWeight { return NearWeight{} }
	}
	if c.KeepFinished <= 0 {
		c.KeepFinished = 1000
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Random == nil {
		c.Random = crand.Reader
	}
	if c.Jitter == nil {
		c.Jitter = func(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(max(d, 1)))) }
	}
	return c
}
