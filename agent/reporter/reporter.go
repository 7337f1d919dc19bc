package reporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

// Placement is what the reporter asks of the service.
type Placement interface {
	Provider(ctx context.Context, uuid string) (placementclient.ResourceProvider, error)
	ProviderByName(ctx context.Context, name string) (placementclient.ResourceProvider, error)
	CreateProvider(ctx context.Context, p placementclient.NewProvider) (placementclient.ResourceProvider, error)
	Inventories(ctx context.Context, rp string) (placementclient.Inventories, error)
	PutInventories(ctx context.Context, rp string, inv placementclient.Inventories) (placementclient.Inventories, error)
	Traits(ctx context.Context, rp string) (placementclient.Traits, error)
	PutTraits(ctx context.Context, rp string, t placementclient.Traits) (placementclient.Traits, error)
	KnownTraits(ctx context.Context, names []string) ([]string, error)
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
	// must not block.
	Input func() (inventory.Input, bool, string)

	// Found is told each report that was computed, before it is written: the
	// capacity that claims are fitted in follows Placement's ratios. It must not
	// block. Nil for nobody.
	Found func(inventory.Report)

	// Estranged is told after each attempt whether Placement's provider is somebody
	// else's: with the refusal that names both, or nil. It must not block. Nil for
	// nobody.
	Estranged func(error)

	Interval time.Duration
	Observe  bool // compare and tell, write nothing
}

// Reporter keeps one provider. Make it with New.
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

	// mu guards status alone; nothing is called under it.
	mu     sync.Mutex
	status Status
	// tree is the host's as it stood after the last comparison that ended well;
	// guarded by mu.
	tree *inventory.Tree
}

// observation is what was last read or written, and what was computed from it.
type observation struct {
	provider    placementclient.ResourceProvider
	inventories placementclient.Inventories
	traits      []string
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
	Kept         []string  `json:"kept,omitempty"`    // classes that the host has no more of and guests still have: see putInventories
	// UnknownTraits are those of this host that Placement does not know, and that are
	// not reported therefore.
	UnknownTraits []string `json:"unknown_traits,omitempty"`
	Reads         uint64   `json:"reads"`
	Writes        uint64   `json:"writes"`

	Err error `json:"-"` // Error with its kind and reasons
}

// New makes a reporter. It asks Placement nothing yet.
func New(o Options) *Reporter {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Reporter{
		opt: o, kick: make(chan struct{}, 1), jitter: rand.Float64,
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
		// Somebody wrote in between: read again, compute again.
		r.seen = nil
	}
	if err != nil {
		r.seen, r.settable = nil, nil
	}
	r.finish(err)
	return err
}

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
	case after != "" && after != before:
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

func (r *Reporter) syncOnce(ctx context.Context) error {
	r.note(func(s *Status) { s.Pending = nil })
	in, known, why := r.opt.Input()
	if !known {
		return fault.Refuse(fault.Unavailable, "report the host to placement", fault.Reason{
			Code: "host_unknown", Message: why, Change: "see `berth host show` for what cannot be read",
		})
	}
	in.UUID, in.Name = r.opt.UUID, r.opt.Name
	provider, exists, err := r.find(ctx)
	if err != nil {
		return err
	}
	if !exists {
		if r.opt.Observe {
			report := inventory.Compute(in, nil)
			r.found(report)
			r.note(func(s *Status) {
				s.Pending = []string{fmt.Sprintf("create resource provider %s (%s)", r.opt.Name, r.opt.UUID), "put inventories", "put traits"}
			})
			return nil
		}
		if provider, err = r.create(ctx); err != nil {
			return err
		}
	}
	if err := r.observe(ctx, provider); err != nil {
		return err
	}
	stands := inventory.Standing{Provider: provider, Inventories: r.seen.inventories.Inventories, Traits: r.seen.traits}
	report := inventory.Compute(in, []inventory.Standing{stands})
	root := &report.Tree.Providers[0]
	if root.Traits, err = r.withoutUnknown(ctx, root.Traits); err != nil {
		return err
	}
	r.found(report)
	sameInventories, sameTraits := root.Equal(stands)
	if r.opt.Observe {
		r.note(func(s *Status) {
			if !sameInventories {
				s.Pending = append(s.Pending, "put inventories")
			}
			if !sameTraits {
				s.Pending = append(s.Pending, "put traits")
			}
		})
		return nil
	}
	if !sameInventories {
		if err := r.putInventories(ctx, report); err != nil {
			return err
		}
	} else {
		r.note(func(s *Status) { s.Kept = nil })
	}
	if !sameTraits {
		if err := r.putTraits(ctx, report); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tree = report.Tree
	return nil
}

// withoutUnknown leaves out the traits that Placement does not have. Those that
// stand on the provider it has, so in a steady state nothing is asked.
func (r *Reporter) withoutUnknown(ctx context.Context, traits []string) ([]string, error) {
	var ask []string
	for _, t := range traits {
		if _, asked := r.settable[t]; !asked && !slices.Contains(r.seen.traits, t) {
			ask = append(ask, t)
		}
	}
	if len(ask) > 0 {
		r.read()
		have, err := r.opt.Placement.KnownTraits(ctx, ask)
		if err != nil {
			return nil, err
		}
		if r.settable == nil {
			r.settable = map[string]bool{}
		}
		var unknown []string
		for _, t := range ask {
			if r.settable[t] = slices.Contains(have, t); !r.settable[t] {
				unknown = append(unknown, t)
			}
		}
		if len(unknown) > 0 {
			r.opt.Logger.Info("traits that this placement does not know are not reported", "provider", r.opt.UUID, "traits", unknown)
		}
	}
	var out, unknown []string
	for _, t := range traits {
		if known, asked := r.settable[t]; asked && !known && !slices.Contains(r.seen.traits, t) {
			unknown = append(unknown, t)
		} else {
			out = append(out, t)
		}
	}
	r.note(func(s *Status) { s.UnknownTraits = unknown })
	return out, nil
}

func (r *Reporter) found(report inventory.Report) {
	r.note(func(s *Status) { s.Traits = report.Tree.Providers[0].Traits })
	if r.opt.Found != nil {
		r.opt.Found(report)
	}
}

// find gives this host's provider, or refuses when name and uuid do not belong
// together in Placement.
func (r *Reporter) find(ctx context.Context) (placementclient.ResourceProvider, bool, error) {
	r.read()
	p, err := r.opt.Placement.Provider(ctx, r.opt.UUID)
	if err == nil {
		if p.Name != r.opt.Name {
			return p, true, r.conflict("resource provider "+p.UUID+" is named "+p.Name, p.Name+" ("+p.UUID+")",
				"this host is a copy of "+p.Name+" or was renamed: remove "+IdentityFile+" from its state directory if it is a copy, or set [agent] name")
		}
		return p, true, nil
	}
	if !errors.Is(err, fault.NotFound) {
		return p, false, err
	}
	r.read()
	p, err = r.opt.Placement.ProviderByName(ctx, r.opt.Name)
	if errors.Is(err, fault.NotFound) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	return p, false, r.conflict("resource provider "+p.Name+" has uuid "+p.UUID, p.Name+" ("+p.UUID+")",
		"if nothing else writes it, put its uuid into "+IdentityFile+" in the state directory; if nova-compute or another host does, do not manage this host with Berth")
}

const codeIdentity = "provider_identity"

// identityReason tells a refusal of ours from one of Placement's own (401, 403).
func identityReason(err error) bool {
	return slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == codeIdentity })
}

// conflict names both identities.
func (r *Reporter) conflict(message, have, change string) error {
	want := r.opt.Name + " (" + r.opt.UUID + ")"
	return fault.Refuse(fault.Forbidden, "report the host to placement", fault.Reason{
		Code: codeIdentity, Message: message + ", this host is " + want, Want: want, Have: have, Change: change,
	})
}

func (r *Reporter) create(ctx context.Context) (placementclient.ResourceProvider, error) {
	r.wrote()
	p, err := r.opt.Placement.CreateProvider(ctx, placementclient.NewProvider{UUID: r.opt.UUID, Name: r.opt.Name})
	if errors.Is(err, fault.Exists) {
		// Made in between, by a lost request of ours or by somebody else: find tells.
		return p, fault.New(fault.GenerationConflict, "create resource provider: %w", err)
	}
	if err != nil {
		return p, err
	}
	r.opt.Logger.Info("resource provider created", "provider", p.UUID, "name", p.Name)
	return p, nil
}

// observe reads inventories and traits, unless the generation says that they are
// as last seen.
func (r *Reporter) observe(ctx context.Context, p placementclient.ResourceProvider) error {
	r.note(func(s *Status) { s.Generation = p.Generation })
	if r.seen != nil && r.seen.provider == p {
		return nil
	}
	r.read()
	inv, err := r.opt.Placement.Inventories(ctx, p.UUID)
	if err != nil {
		return err
	}
	r.read()
	traits, err := r.opt.Placement.Traits(ctx, p.UUID)
	if err != nil {
		return err
	}
	// What was read between two writes of somebody else is no observation.
	if inv.Generation != p.Generation || traits.Generation != p.Generation {
		return fault.New(fault.GenerationConflict, "read resource provider %s: its generation went from %d to %d while it was read", p.UUID, p.Generation, traits.Generation)
	}
	r.seen = &observation{provider: p, inventories: inv, traits: traits.Traits}
	return nil
}

// putInventories puts what was computed. Placement lets a total fall below what is
// allocated of it, but not a class go, and then takes nothing of the whole write
// (409 placement.inventory.inuse): CPUs may go while guests are pinned to them.
// Such a class stays as it stands with all of it reserved, so that nobody gets
// more of it, and everything else is put; each comparison tries again to take it
// out.
func (r *Reporter) putInventories(ctx context.Context, report inventory.Report) error {
	err := r.put(ctx, report.Tree.Providers[0].Inventories, report.Capacity.Total)
	if err == nil {
		r.note(func(s *Status) { s.Kept = nil })
		return nil
	}
	if placementclient.ConflictOf(err) != placementclient.ConflictInventoryInUse {
		return err
	}
	without, kept := maps.Clone(report.Tree.Providers[0].Inventories), []string(nil)
	for class, stands := range r.seen.inventories.Inventories {
		if _, has := without[class]; !has {
			stands.Reserved = stands.Total
			without[class], kept = stands, append(kept, class)
		}
	}
	slices.Sort(kept)
	if same, _ := (inventory.Provider{Inventories: without}).Equal(inventory.Standing{Inventories: r.seen.inventories.Inventories}); !same {
		if err := r.put(ctx, without, report.Capacity.Total); err != nil {
			return err
		}
		r.opt.Logger.Warn("the host has no more of classes that guests have: nobody gets more of them", "provider", r.opt.UUID, "classes", kept)
	}
	r.note(func(s *Status) { s.Kept = kept })
	return nil
}

func (r *Reporter) put(ctx context.Context, inventories map[string]placementclient.Inventory, total topology.Resources) error {
	r.wrote()
	got, err := r.opt.Placement.PutInventories(ctx, r.opt.UUID, placementclient.Inventories{
		Generation: r.seen.provider.Generation, Inventories: inventories,
	})
	if err != nil {
		return err
	}
	r.seen.inventories = got
	r.advance(got.Generation)
	r.opt.Logger.Info("inventories put", "provider", r.opt.UUID, "generation", got.Generation, "capacity", total)
	return nil
}

func (r *Reporter) putTraits(ctx context.Context, report inventory.Report) error {
	r.wrote()
	got, err := r.opt.Placement.PutTraits(ctx, r.opt.UUID, placementclient.Traits{
		Generation: r.seen.provider.Generation, Traits: report.Tree.Providers[0].Traits,
	})
	if err != nil {
		return err
	}
	r.seen.traits = got.Traits
	r.advance(got.Generation)
	r.opt.Logger.Info("traits put", "provider", r.opt.UUID, "generation", got.Generation, "traits", got.Traits)
	return nil
}

func (r *Reporter) advance(generation int) {
	r.seen.provider.Generation = generation
	r.note(func(s *Status) { s.Generation = generation })
}
