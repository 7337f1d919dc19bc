package reporter

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
)

// Placement is what the reporter asks of the service.
type Placement interface {
	Version(ctx context.Context) (placementclient.Microversion, error)
	Provider(ctx context.Context, uuid string) (placementclient.ResourceProvider, error)
	Providers(ctx context.Context, f placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error)
	ProvidersInTree(ctx context.Context, uuid string) ([]placementclient.ResourceProvider, error)
	ProviderByName(ctx context.Context, name string) (placementclient.ResourceProvider, error)
	CreateProvider(ctx context.Context, p placementclient.NewProvider) (placementclient.ResourceProvider, error)
	PlaceProvider(ctx context.Context, uuid, name, parent string) (placementclient.ResourceProvider, error)
	DeleteProvider(ctx context.Context, uuid string) error
	Inventories(ctx context.Context, rp string) (placementclient.Inventories, error)
	PutInventories(ctx context.Context, rp string, inv placementclient.Inventories) (placementclient.Inventories, error)
	Traits(ctx context.Context, rp string) (placementclient.Traits, error)
	PutTraits(ctx context.Context, rp string, t placementclient.Traits) (placementclient.Traits, error)
	Aggregates(ctx context.Context, rp string) (placementclient.Aggregates, error)
	Usages(ctx context.Context, rp string) (placementclient.Usages, error)
	KnownTraits(ctx context.Context, names []string) ([]string, error)
	EnsureTrait(ctx context.Context, name string) error
	EnsureResourceClass(ctx context.Context, name string) error
	ProviderAllocations(ctx context.Context, rp string) (placementclient.ProviderAllocations, error)
	Allocations(ctx context.Context, consumer string) (placementclient.Allocations, error)
	Reshape(ctx context.Context, r placementclient.Reshape) error
}

// Options are what a Reporter is made of.
type Options struct {
	Placement Placement
	Runtime   runtime.Runtime
	Logger    *slog.Logger

	Name string // the provider's name
	UUID string // the provider's uuid, from Identity

	// Input gives what the host is now, or false with the reason while that is
	// not known: then nothing is reported and what stands in Placement stays. It
	// must not block. UUID, Name, Sharing and Applied are set by the reporter.
	Input func() (inventory.Input, bool, string)

	// Found is told each report that was computed, before it is written: the
	// capacity that claims are fitted in follows Placement's ratios. It must not
	// block. Nil for nobody.
	Found func(inventory.Report)

	// Held gives what the guest of a consumer holds by its claim, false for one that
	// no claim is known of; Migration says that a consumer is a migration's, Moving
	// that its story is not over. None may block; nil for nobody.
	Held      func(consumer string) (inventory.Held, bool)
	Migration func(consumer string) bool
	Moving    func(consumer string) bool

	// Remembered is what Keep was last told, Keep makes it durable before it returns.
	// nil for a reporter that forgets.
	Remembered Remembered
	Keep       func(ctx context.Context, r Remembered) error

	// Estranged is told after each attempt whether Placement's provider is somebody
	// else's: with the refusal that names both, or nil. It must not block. Nil for
	// nobody.
	Estranged func(error)

	Interval time.Duration
	Observe  bool           // compare and tell, write nothing
	Jitter   func() float64 // of a pause after a conflict, from 0 to 1; nil for chance
}

// Reporter keeps one host's tree of providers. Make it with New.
type Reporter struct {
	opt    Options
	kick   chan struct{}
	jitter func() float64

	// syncing keeps one Sync at a time; held over calls to Placement, so it is
	// never taken by anything that must answer at once.
	syncing sync.Mutex
	seen    *observation // guarded by syncing
	// settable says of each trait that Placement was asked for whether it has it: one
	// of an older os-traits refuses a whole PUT for one name. Forgotten after a
	// failure, since a Placement that was upgraded was away. Guarded by syncing.
	settable map[string]bool
	// ensured are custom classes and traits that are there; guarded by syncing.
	ensured map[string]bool
	// remembered is what is durable; refused is why the last reshape did not go, and
	// stands for refusedFor more comparisons; refusals are how often Placement itself
	// refused one in a row. Guarded by syncing.
	remembered Remembered
	refused    *fault.Reason
	refusedFor int
	refusals   int

	// mu guards status alone; nothing is called under it.
	mu     sync.Mutex
	status Status
	// tree is the host's as it stood after the last comparison that ended well;
	// guarded by mu.
	tree *inventory.Tree
}

// Status is how reporting stands.
type Status struct {
	ProviderUUID string    `json:"provider_uuid"`
	ProviderName string    `json:"provider_name"`
	Generation   int       `json:"generation"`
	InSync       bool      `json:"in_sync"`           // the last comparison found, or made, both equal
	At           time.Time `json:"at"`                // of the last attempt; zero before the first
	SyncedAt     time.Time `json:"synced_at"`         // when both were last known to be equal
	Error        string    `json:"error,omitempty"`   // why they are not
	Pending      []string  `json:"pending,omitempty"` // what would be written, in mode observe
	Traits       []string  `json:"traits,omitempty"`  // as last computed
	// Kept is what the host has no more of and guests still have: classes of the root,
	// classes of children with their provider's name, and whole children.
	Kept []string `json:"kept,omitempty"`
	// Shape is the tree's, Disk the uuid of who has its DISK_GB: the root, or a
	// provider that shares it. Waiting is why they are not what is wanted; nil where
	// they are.
	Shape   inventory.Shape `json:"shape,omitempty"`
	Disk    string          `json:"disk_provider,omitempty"`
	Waiting *Waiting        `json:"waiting,omitempty"`
	// Disabled says that the root has COMPUTE_STATUS_DISABLED, whoever set it.
	Disabled bool `json:"disabled"`
	// Reasons are remarks on provider config files and devices: what of them is not
	// reported, and why.
	Reasons []fault.Reason `json:"reasons,omitempty"`
	// UnknownTraits are those of this host that Placement does not know, and that are
	// not reported therefore.
	UnknownTraits []string `json:"unknown_traits,omitempty"`
	Reads         uint64   `json:"reads"`
	Writes        uint64   `json:"writes"`

	Err error `json:"-"` // Error with its kind and reasons
}

// Waiting is a shape that the tree does not have yet, and why.
type Waiting struct {
	Shape  inventory.Shape `json:"shape"` // that is wanted
	Reason fault.Reason    `json:"reason"`
}

// New makes a reporter. It asks Placement nothing yet.
func New(o Options) *Reporter {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return &Reporter{
		opt: o, kick: make(chan struct{}, 1), jitter: o.Jitter, remembered: o.Remembered,
		status: Status{ProviderUUID: o.UUID, ProviderName: o.Name},
	}
}

// Status gives how reporting stands; it never blocks.
func (r *Reporter) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Tree is the host's provider tree as it stands in Placement, and false before a
// comparison has ended well: nobody knows then where a claim is counted. It never
// blocks.
func (r *Reporter) Tree() (*inventory.Tree, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tree, r.tree != nil
}

// Kick asks Run to compare at once: the host or the configuration changed.
func (r *Reporter) Kick() {
	select {
	case r.kick <- struct{}{}:
	default: // one is waiting already, and it will see the newest
	}
}

// Run compares at once, then at each interval and kick, until ctx ends. After a
// failure the pause grows, up to the interval.
func (r *Reporter) Run(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		err := r.Sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := r.opt.Interval
		if err != nil {
			pause = min(max(2*pause, time.Second), r.opt.Interval)
			wait = pause
		} else {
			pause = 0
		}
		if !r.wait(ctx, wait) {
			return nil
		}
	}
}

// wait sleeps on the runtime's clock until d is over, somebody kicks, or ctx ends.
func (r *Reporter) wait(ctx context.Context, d time.Duration) bool {
	sleeping, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan struct{})
	r.opt.Runtime.Go("reporter pause", func() {
		defer close(over)
		// Its end is all that is wanted; why it ended is asked of ctx below.
		_ = r.opt.Runtime.Sleep(sleeping, d)
	})
	select {
	case <-over:
	case <-r.kick:
		stop()
		<-over
	}
	return ctx.Err() == nil
}

// attempts bounds how often a generation conflict is answered by reading again.
// Nova takes four (ResourceTracker._update_to_placement).
const attempts = 4

// Sync makes Placement equal to the host once. It blocks for as long as
// Placement takes.
func (r *Reporter) Sync(ctx context.Context) error {
	r.syncing.Lock()
	defer r.syncing.Unlock()
	var err error
	for attempt := range attempts {
		if attempt > 0 {
			pause := time.Duration((0.5 + r.jitter()) * float64(100*time.Millisecond<<attempt))
			if r.opt.Runtime.Sleep(ctx, pause) != nil {
				break
			}
		}
		if err = r.syncOnce(ctx); !errors.Is(err, fault.GenerationConflict) {
			break
		}
		// Somebody wrote in between, or put Placement back: read again, compute again.
		r.seen, r.ensured = nil, nil
	}
	if err != nil {
		r.seen, r.settable, r.ensured = nil, nil, nil
	}
	r.finish(err)
	return err
}

// requestID is in what Placement answers, and another each time.
var requestID = regexp.MustCompile(`\breq-[0-9a-f-]+`)

func (r *Reporter) finish(err error) {
	now := r.opt.Runtime.Now()
	r.mu.Lock()
	before := r.status.Error
	r.status.At = now
	r.status.Err, r.status.Error = err, ""
	r.status.InSync = err == nil && len(r.status.Pending) == 0
	if err != nil {
		r.status.Error = err.Error()
	} else if r.status.InSync {
		r.status.SyncedAt = now
	}
	after := r.status.Error
	r.mu.Unlock()
	if r.opt.Estranged != nil {
		switch {
		case errors.Is(err, fault.Forbidden) && identityReason(err):
			r.opt.Estranged(err)
		case err == nil:
			r.opt.Estranged(nil) // any other failure says nothing about it
		}
	}
	switch {
	case after != "" && requestID.ReplaceAllString(after, "") != requestID.ReplaceAllString(before, ""):
		r.opt.Logger.Warn("placement is not equal to the host", "provider", r.opt.UUID, "error", after)
	case after == "" && before != "":
		r.opt.Logger.Info("placement is equal to the host again", "provider", r.opt.UUID)
	}
}

func (r *Reporter) note(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

func (r *Reporter) read()  { r.note(func(s *Status) { s.Reads++ }) }
func (r *Reporter) wrote() { r.note(func(s *Status) { s.Writes++ }) }

const codeIdentity = "provider_identity"

// identityReason tells a refusal of ours from one of Placement's own (401, 403).
func identityReason(err error) bool {
	return fault.HasReason(err, codeIdentity)
}

// conflict names both identities.
func (r *Reporter) conflict(message, have, change string) error {
	want := r.opt.Name + " (" + r.opt.UUID + ")"
	return fault.Refuse(fault.Forbidden, "report the host to placement", fault.Reason{
		Code: codeIdentity, Message: message + ", this host is " + want, Want: want, Have: have, Change: change,
	})
}
