package drain

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/task"
)

const bucket = "drains"

// Host is what a drain needs of the agent whose host is emptied, or that evacuates a dead one:
// its guests, the conductor of their moves, and whether it takes new guests.
type Host interface {
	// Guests are all that are on the host of the request now, those included that nobody may
	// move. A guest that is missing is taken for gone.
	Guests(ctx context.Context, r Request) ([]Present, error)
	// Way says how a guest could leave now. It changes nothing. An error is of what could not be
	// asked; it is asked again later.
	Way(ctx context.Context, r Request, p Present) (Way, error)

	// Begin begins the move of a guest with the uuid given, and answers with the one that was
	// begun with it where there is one.
	Begin(ctx context.Context, m Move) (migration.Migration, error)
	// Get, Watch and Abort are the conductor's.
	Get(ctx context.Context, migration string) (migration.Migration, error)
	Watch(ctx context.Context, migration string) (<-chan migration.Migration, error)
	Abort(ctx context.Context, migration string) error

	// Closed is whether this host takes new guests, and why not, in a form that Open takes.
	Closed(ctx context.Context) (json.RawMessage, error)
	// Close keeps new guests away, for a drain. Safe to repeat.
	Close(ctx context.Context, d Drain) error
	// Open gives back what was before Close (d.Was), unless somebody has set it otherwise since.
	// Safe to repeat.
	Open(ctx context.Context, d Drain) error
}

// Move is one guest's.
type Move struct {
	Request
	Guest     string // uuid
	How       How
	Migration string // the uuid that it gets
}

// Config configures a Drainer.
type Config struct {
	Runtime runtime.Runtime
	Store   task.Store
	Host    Host
	Local   string        // provider's name of this host
	Limits  func() Limits // asked at each decision
	Samples func() []Sample
	Logger  *slog.Logger // nil discards
	Random  io.Reader    // of uuids; nil for the system's

	Look  time.Duration // between two looks at the host's guests; default 10 s
	Doubt time.Duration // how long a move may be in doubt when nothing else is left; default 1 minute
	Keep  int           // drains that are over; default 10
}

// Drainer does the drains of one agent. Its methods may be called from several actors. It is
// built with New and works while Run runs.
type Drainer struct {
	cfg   Config
	begin runtime.Lock // over the write of a new drain: one is active for a host
	group runtime.Group

	// mu guards what follows, and every queue's fields that say so. Leaf lock: nothing is asked
	// and nothing waits under it, but watchers' buffered channels are filled.
	mu     sync.Mutex
	run    context.Context // of Run; nil while it does not run
	queues map[string]*queue
}

// New makes one. It does nothing before Run.
func New(cfg Config) *Drainer {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Random == nil {
		cfg.Random = crand.Reader
	}
	if cfg.Samples == nil {
		cfg.Samples = func() []Sample { return nil }
	}
	cfg.Look, cfg.Doubt = cmp.Or(cfg.Look, 10*time.Second), cmp.Or(cfg.Doubt, time.Minute)
	cfg.Keep = cmp.Or(cfg.Keep, 10)
	return &Drainer{cfg: cfg, queues: map[string]*queue{}}
}

// Run goes on with the drains that are not over until ctx ends; then it waits for its actors
// and returns nil. What is not over goes on at the next Run, also in another process. The
// conductor must run before. It returns an error only when the records cannot be listed.
func (d *Drainer) Run(ctx context.Context) error {
	if err := d.recover(ctx); err != nil {
		return fmt.Errorf("recover drains: %w", err)
	}
	d.mu.Lock()
	d.run = ctx
	queues := d.sortedLocked()
	d.mu.Unlock()
	for _, q := range queues {
		switch {
		case !q.state().Over():
			d.cfg.Logger.Info("drain goes on", "drain", q.req.UUID, "host", q.req.Host)
			d.group.Go(d.cfg.Runtime, "drain "+q.req.UUID, func() { q.drive(ctx) })
		case q.bootOver() && !q.head().Reopened:
			d.group.Go(d.cfg.Runtime, "end of drain "+q.req.UUID, func() { q.reopen(ctx) })
		}
	}
	for ctx.Err() == nil {
		_ = d.cfg.Runtime.Sleep(ctx, time.Hour) // a sleep that ctx ends, so that a simulator sees it
	}
	d.mu.Lock()
	d.run = nil
	d.mu.Unlock()
	d.group.Wait(d.cfg.Runtime)
	return nil
}

// Running reports whether Run has read the records and has not been told to stop: from then on
// every drain is known, and new ones are taken.
func (d *Drainer) Running() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.run != nil && d.run.Err() == nil
}

// recover reads the records. One that cannot be read is logged and left; a guest's without its
// drain was left behind by a deletion.
func (d *Drainer) recover(ctx context.Context) error {
	records, err := d.cfg.Store.List(ctx, bucket)
	if err != nil {
		return err
	}
	queues := map[string]*queue{}
	for key, raw := range records {
		if strings.Contains(key, "/") {
			continue
		}
		q := newQueue(d)
		if err := json.Unmarshal(raw, &q.rec); err != nil {
			d.cfg.Logger.Error("the record of a drain cannot be read", "drain", key, "error", err)
			continue
		}
		q.req = q.rec.Request
		queues[key] = q
	}
	for key, raw := range records {
		id, _, ofGuest := strings.Cut(key, "/")
		if !ofGuest {
			continue
		}
		g := &Guest{}
		switch q := queues[id]; {
		case q != nil:
			if err := json.Unmarshal(raw, g); err != nil {
				d.cfg.Logger.Error("the record of a guest of a drain cannot be read", "record", key, "error", err)
				continue
			}
			q.guests[g.Instance] = g
			q.turn = max(q.turn, g.Turn)
		case records[id] == nil:
			d.drop(ctx, key)
		}
	}
	d.mu.Lock()
	d.queues = queues
	d.mu.Unlock()
	d.prune(ctx)
	return nil
}

// Begin begins a drain; when it returns it is durable, and goes on by itself.
//
//	fault.Invalid      the request makes no sense
//	fault.Exists       another drain of the host is active, or the uuid is another's
//	fault.Unavailable  Run does not run, or the host's guests could not be read
func (d *Drainer) Begin(ctx context.Context, r Request) (Drain, error) {
	if r.Kind == KindDrain {
		r.Host = cmp.Or(r.Host, d.cfg.Local)
	}
	doing := string(r.Kind) + " host " + r.Host
	if err := d.validate(doing, r); err != nil {
		return Drain{}, err
	}
	if r.UUID == "" {
		id, err := uuid.NewRandomFromReader(d.cfg.Random)
		if err != nil {
			return Drain{}, fault.New(fault.Internal, "make a uuid: %w", err)
		}
		r.UUID = id.String()
	}
	if err := d.begin.Lock(ctx, d.cfg.Runtime); err != nil {
		return Drain{}, err
	}
	defer d.begin.Unlock()
	if view, known, err := d.begun(doing, r); known || err != nil {
		return view, err
	}
	d.mu.Lock()
	run := d.run
	d.mu.Unlock()
	if run == nil || run.Err() != nil {
		return Drain{}, fault.New(fault.Unavailable, "%s: drains do not run", doing)
	}
	q := newQueue(d)
	q.req = r
	q.rec = Drain{Request: r, State: Running, BegunAt: d.cfg.Runtime.Now(), Boot: d.cfg.Runtime.Boot().ID}
	list, err := d.cfg.Host.Guests(ctx, r)
	if err != nil {
		return Drain{}, fmt.Errorf("%s: %w", doing, err)
	}
	if err := unknownGuests(doing, r, list); err != nil {
		return Drain{}, err
	}
	if r.Kind == KindDrain {
		if q.rec.Was, err = d.cfg.Host.Closed(ctx); err != nil {
			return Drain{}, fmt.Errorf("%s: %w", doing, err)
		}
	}
	q.merge(list, 0)
	if err := q.putHead(ctx, q.rec); err != nil {
		// It may have landed all the same: a drain that nobody was told of would begin at the
		// next start.
		d.drop(context.WithoutCancel(ctx), r.UUID)
		return Drain{}, fmt.Errorf("%s: %w", doing, err)
	}
	d.mu.Lock()
	d.queues[r.UUID] = q
	view := q.viewLocked()
	d.mu.Unlock()
	d.cfg.Logger.Info("drain begun", "drain", r.UUID, "host", r.Host, "kind", string(r.Kind), "by", r.By, "guests", len(view.Guests))
	d.group.Go(d.cfg.Runtime, "drain "+r.UUID, func() { q.drive(run) })
	return view, nil
}

// begun gives the drain that an earlier request with the same uuid has made, and refuses a
// second one of a host.
func (d *Drainer) begun(doing string, r Request) (Drain, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.queues[r.UUID]; q != nil {
		if q.rec.Host != r.Host || q.rec.Kind != r.Kind {
			return Drain{}, false, fault.Refuse(fault.Exists, doing, fault.Reason{
				Code: "uuid_taken", Message: "drain " + r.UUID + " is another: " + string(q.rec.Kind) + " of " + q.rec.Host, Have: q.rec.Host, Want: r.Host, Change: "name another uuid",
			})
		}
		return q.viewLocked(), true, nil
	}
	for _, q := range d.queues {
		if q.rec.Host == r.Host && !q.rec.State.Over() {
			return Drain{}, false, fault.Refuse(fault.Exists, doing, fault.Reason{
				Code: "drain_active", Message: "drain " + q.rec.UUID + " of " + r.Host + " goes on since " + q.rec.BegunAt.Format(time.RFC3339) + ", asked for by " + q.rec.By, Have: q.rec.UUID,
				Change: "berth host drain-watch " + r.Host + ", or berth host drain-abort " + r.Host,
			})
		}
	}
	return Drain{}, false, nil
}

func (d *Drainer) validate(doing string, r Request) error {
	var reasons []fault.Reason
	bad := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	switch r.Kind {
	case KindDrain:
		if r.Host != d.cfg.Local {
			bad("host", r.Host+" is another host, which drains itself", "ask it, with -c "+r.Host+"; a dead one is evacuated")
		}
		if r.Stopped || r.AcceptLoss || r.Image != nil {
			bad("evacuation", "stopped, accept_data_loss and image are of evacuations", "leave them out")
		}
	case KindEvacuate:
		if r.Host == "" || r.Host == d.cfg.Local {
			bad("host", "a host cannot evacuate itself", "name the dead host")
		}
		if r.Cold || r.Shutdown {
			bad("cold", "an evacuation is neither cold nor live", "leave it out")
		}
	default:
		bad("kind", "kind "+string(r.Kind)+" is not known", "drain or evacuate")
	}
	if len(r.To) > conductor.MostAlternates { // each move would be refused for it
		bad("dest_computes", fmt.Sprintf("%d destinations are more than %d", len(r.To), conductor.MostAlternates), "name fewer, or none")
	}
	for i, name := range r.To {
		if name == "" || name == r.Host || slices.Contains(r.To[:i], name) {
			bad("dest_computes", fmt.Sprintf("destination %q is empty, the host itself, or named twice", name), "name other hosts, each once")
		}
	}
	if r.UUID != "" {
		if id, err := uuid.Parse(r.UUID); err != nil || id.String() != r.UUID {
			bad("uuid", fmt.Sprintf("uuid %q: want one in its usual form", r.UUID), "leave it out, and one is made")
		}
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, doing, reasons...)
	}
	return nil
}

// unknownGuests refuses priorities of guests that the host does not have: a name that was typed
// wrong would else go in no order at all.
func unknownGuests(doing string, r Request, list []Present) error {
	var reasons []fault.Reason
	for _, name := range slices.Sorted(maps.Keys(r.Priorities)) {
		if !slices.ContainsFunc(list, func(p Present) bool { return p.Instance == name || p.Name == name }) {
			reasons = append(reasons, fault.Reason{
				Code: "guest_unknown", Message: r.Host + " has no guest " + name + ", of which a priority is given", Want: name, Change: "name a guest of " + r.Host + ", or leave it out",
			})
		}
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, doing, reasons...)
	}
	return nil
}

// newest is the active drain of a host, or the one that began last; nil for none. Called with
// mu held.
func (d *Drainer) newest(host string) *queue {
	var out *queue
	for _, q := range d.sortedLocked() {
		if q.rec.Host == cmp.Or(host, d.cfg.Local) {
			out = q
		}
	}
	return out
}

// sortedLocked gives all, oldest first, and active ones last.
func (d *Drainer) sortedLocked() []*queue {
	var out []*queue
	for _, q := range d.queues {
		out = append(out, q)
	}
	active := func(q *queue) int {
		if q.rec.State.Over() {
			return 0
		}
		return 1
	}
	slices.SortFunc(out, func(a, b *queue) int {
		return cmp.Or(cmp.Compare(active(a), active(b)), a.rec.BegunAt.Compare(b.rec.BegunAt), cmp.Compare(a.rec.UUID, b.rec.UUID))
	})
	return out
}

// Get gives the active drain of a host, or else its newest; empty is this host.
// fault.NotFound for none.
func (d *Drainer) Get(_ context.Context, host string) (Drain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.newest(host)
	if q == nil {
		return Drain{}, d.none(host)
	}
	return q.viewLocked(), nil
}

func (d *Drainer) none(host string) error {
	host = cmp.Or(host, d.cfg.Local)
	return fault.Refuse(fault.NotFound, "look for a drain of "+host, fault.Reason{
		Code: "drain_unknown", Message: "host " + d.cfg.Local + " knows of no drain of " + host, Want: host, Change: "berth host drain-status, with -c for what another host does",
	})
}

// List gives all drains that are kept, newest first.
func (d *Drainer) List(context.Context) []Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Drain
	for _, q := range d.sortedLocked() {
		out = append(out, q.viewLocked())
	}
	slices.Reverse(out)
	return out
}

// Going gives the drains that are not over.
func (d *Drainer) Going() []Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Drain
	for _, q := range d.sortedLocked() {
		if !q.rec.State.Over() {
			out = append(out, q.viewLocked())
		}
	}
	return out
}

// Abort begins no further move of a host's drain and gives up those that can be; those that
// have passed their point of no return are finished. It returns when the wish is durable.
// fault.NotFound; fault.Forbidden when it is over.
func (d *Drainer) Abort(ctx context.Context, host, by string) (Drain, error) {
	d.mu.Lock()
	q := d.newest(host)
	d.mu.Unlock()
	if q == nil {
		return Drain{}, d.none(host)
	}
	if err := q.abort(ctx, by); err != nil {
		return Drain{}, fmt.Errorf("abort the drain of %s: %w", q.req.Host, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return q.viewLocked(), nil
}

// CallOff takes back what was done for a shutdown that does not come after all, or for a sleep
// that is over: a drain for it that is active is aborted, and the host takes guests as before.
func (d *Drainer) CallOff(ctx context.Context, by string) error {
	d.mu.Lock()
	q := d.newest("")
	d.mu.Unlock()
	switch {
	case q == nil || !q.req.Shutdown || q.head().Reopened:
		return nil
	case !q.state().Over():
		return q.abort(ctx, by)
	}
	q.reopen(ctx)
	return ctx.Err()
}

// Watch gives the newest drain of a host now and after each change; a slow reader skips to the
// newest view. The channel is closed after the last view of one that is over, and when ctx ends.
// fault.NotFound.
func (d *Drainer) Watch(ctx context.Context, host string) (<-chan Drain, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.newest(host)
	if q == nil {
		return nil, d.none(host)
	}
	ch := make(chan Drain, 1)
	ch <- q.viewLocked()
	if q.rec.State.Over() {
		close(ch)
		return ch, nil
	}
	q.watchers[ch] = context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, still := q.watchers[ch]; still {
			delete(q.watchers, ch)
			close(ch)
		}
	})
	return ch, nil
}

// prune deletes the oldest drains that are over, beyond Keep. Best effort: one that stays is one
// more line in a list.
func (d *Drainer) prune(ctx context.Context) {
	d.mu.Lock()
	var over []*queue
	for _, q := range d.sortedLocked() {
		if q.rec.State.Over() && (q.rec.Reopened || !q.rec.Shutdown) {
			over = append(over, q)
		}
	}
	over = over[:max(0, len(over)-d.cfg.Keep)]
	for _, q := range over {
		delete(d.queues, q.rec.UUID)
	}
	var keys []string // the drain first: guests without it are dropped at the next start
	for _, q := range over {
		keys = append(keys, q.req.UUID)
		for _, g := range q.orderedLocked() {
			keys = append(keys, q.key(g.Instance))
		}
	}
	d.mu.Unlock()
	for _, key := range keys {
		d.drop(ctx, key)
	}
}

func (d *Drainer) drop(ctx context.Context, key string) {
	if err := d.cfg.Store.Delete(ctx, bucket, key); err != nil && ctx.Err() == nil {
		d.cfg.Logger.Warn("an old record of a drain stays", "record", key, "error", err)
	}
}
