package auditor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"berth/agent/audit"
	"berth/agent/inventory"
	"berth/internal/runtime"
	"berth/placementclient"
)

// Placement is what an audit asks of the service.
type Placement interface {
	ProviderAllocations(ctx context.Context, rp string) (placementclient.ProviderAllocations, error)
	Provider(ctx context.Context, uuid string) (placementclient.ResourceProvider, error)
	Allocations(ctx context.Context, consumer string) (placementclient.Allocations, error)
	PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error
	PostAllocations(ctx context.Context, set map[string]placementclient.Allocations) error
}

// Peers are the other hosts.
type Peers interface {
	// Hosts are all others that Placement and the configuration know.
	Hosts(ctx context.Context) ([]string, error)
	// Knows asks one what it knows of consumers. An error is no answer.
	Knows(ctx context.Context, host string, consumers []string) ([]Known, error)
}

// Known is what a host knows of one consumer, an instance or a move. Without any of
// it the host knows nothing.
type Known struct {
	Consumer string `json:"consumer"`
	Owner    bool   `json:"owner,omitempty"` // its token is durably here
	Epoch    uint64 `json:"epoch,omitempty"` // of the token
	// Busy says what is about to change: an unfinished move, a claim, a domain that
	// nobody manages. Empty for nothing.
	Busy string `json:"busy,omitempty"`
	// Moving: what makes it busy is an unfinished move. Never true of older agents.
	Moving bool `json:"moving,omitempty"`
	// Active: libvirt has its domain, and that is active. Never true of older agents.
	Active bool `json:"active,omitempty"`
	// Unsure says why the host cannot tell, empty where it can.
	Unsure string `json:"unsure,omitempty"`
}

// Options are what an Auditor is made of.
type Options struct {
	Host      string // provider's name
	Placement Placement
	Runtime   runtime.Runtime
	Logger    *slog.Logger // nil for slog.Default()

	// Tree is the host's as it stands in Placement, false while nobody knows.
	Tree func() (*inventory.Tree, bool)
	// Report makes the tree stand in Placement when a provider of it is missing there:
	// its database was lost.
	Report func(ctx context.Context) error
	// Ledger is what is recorded at this moment. It must not block.
	Ledger func() audit.Ledger
	// Domains lists libvirt's; an error means that nothing is known.
	Domains func(ctx context.Context) ([]audit.LibvirtDomain, error)
	// Peers are the other hosts; nil for none.
	Peers Peers
	// Alone runs f while no verb works on an instance; nil where there are no verbs.
	Alone func(ctx context.Context, instance string, f func(ctx context.Context) error) error

	Interval time.Duration // between two audits of Run
	// Refuse says why nothing may be written now, nil where it may. nil for never.
	Refuse func() error
}

// Auditor audits one host. Make it with New.
type Auditor struct {
	o      Options
	log    *slog.Logger
	jitter func() float64

	// working holds one token while an audit is at work: one at a time. It is held over
	// calls to Placement, libvirt and peers, so that nothing that must answer at once
	// takes it, and whoever waits for it gives up with his context.
	working chan struct{}
	since   map[string]first // by subject and code; only who works touches it

	last  atomic.Pointer[Result]
	calls struct{ reads, writes, peers, audits atomic.Int64 }
}

// first is when a row was first seen, for people and by the clock that never steps.
type first struct {
	at   time.Time
	boot time.Duration
}

// New makes an auditor. It asks nobody anything yet.
func New(o Options) *Auditor {
	if o.Alone == nil {
		o.Alone = func(ctx context.Context, _ string, f func(context.Context) error) error { return f(ctx) }
	}
	if o.Refuse == nil {
		o.Refuse = func() error { return nil }
	}
	return &Auditor{o: o, log: cmp.Or(o.Logger, slog.Default()), jitter: rand.Float64, working: make(chan struct{}, 1), since: map[string]first{}}
}

// Order says what an audit is to do beside looking.
type Order struct {
	Heal bool // write what is provable
	// AskAll asks all other hosts for consumers that nobody here knows, not only those
	// that hold a part of them.
	AskAll bool
	// Patient leaves what concerns another host until it has stood for a while: who moves
	// guests without Berth may count one on both hosts before the move begins.
	Patient bool
	// Report makes the host's tree stand first, whether a provider was missed or not.
	Report bool
}

// Result is one audit.
type Result struct {
	Host   string        `json:"host"`
	At     time.Time     `json:"at"` // of its end
	Took   time.Duration `json:"took"`
	Healed int           `json:"healed"` // rows that were healed
	// Verdicts counts the rows by verdict, as they were found.
	Verdicts map[audit.Verdict]int `json:"verdicts"`
	// Rows are those that do not agree, and those that were healed.
	Rows []audit.Row `json:"rows"`
	// Silent is who could not be asked, and why: "placement", "libvirt", or a host.
	Silent map[string]string `json:"silent,omitempty"`
	// Refused is why nothing was written, where healing was ordered.
	Refused string `json:"refused,omitempty"`
	Calls   Calls  `json:"calls"`
}

// Calls counts what audits have cost.
type Calls struct {
	Reads  int64 `json:"reads"`  // of Placement
	Writes int64 `json:"writes"` // of Placement, refused ones included
	Peers  int64 `json:"peers"`  // questions to other hosts
}

// Left are the rows that still do not agree.
func (r Result) Left() []audit.Row {
	var out []audit.Row
	for _, row := range r.Rows {
		if !row.Agrees() {
			out = append(out, row)
		}
	}
	return out
}

// Last is the newest audit's result, nil before the first. It never blocks.
func (a *Auditor) Last() *Result { return a.last.Load() }

// Calls are all that were made since the start. It never blocks.
func (a *Auditor) Calls() Calls {
	return Calls{Reads: a.calls.reads.Load(), Writes: a.calls.writes.Load(), Peers: a.calls.peers.Load()}
}

// patience bounds one audit by itself; arbitrary, above what some hundred reads of a
// busy Placement take.
const patience = 5 * time.Minute

// sooner is how long an audit that could not ask somebody, or that saw what settles by
// itself, waits for the next, at first; the pause doubles up to the interval.
const sooner = 5 * time.Second

// Run audits at once and then at each interval, give or take a tenth, until ctx ends.
func (a *Auditor) Run(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		auditing, cancel := a.o.Runtime.WithTimeout(ctx, patience)
		r := a.Audit(auditing, Order{Heal: true, Patient: true})
		cancel()
		wait := time.Duration((0.9 + 0.2*a.jitter()) * float64(a.o.Interval))
		if len(r.Silent) > 0 || slices.ContainsFunc(r.Left(), audit.Row.Settles) {
			pause = min(max(2*pause, sooner), wait)
			wait = pause
		} else {
			pause = 0
		}
		if a.o.Runtime.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// Audit looks once, and heals where that is ordered and the agent manages. It blocks
// for as long as Placement, libvirt and other hosts take, and for an audit that is at
// work already; what they do not answer stands in the result. One whose caller has
// given up is forgotten: it has seen nothing to the end.
func (a *Auditor) Audit(ctx context.Context, o Order) Result {
	select {
	case a.working <- struct{}{}:
		defer func() { <-a.working }()
	case <-ctx.Done():
		return Result{
			Host: a.o.Host, At: a.o.Runtime.Now(), Verdicts: map[audit.Verdict]int{}, Rows: []audit.Row{},
			Silent: map[string]string{a.o.Host: "another audit is at work"},
		}
	}
	before, began := a.Calls(), a.o.Runtime.Boot().Since
	l := &look{a: a, order: o, silent: map[string]string{}}
	l.gather(ctx)
	rows := audit.Join(l.in)
	r := Result{Host: a.o.Host, Verdicts: map[audit.Verdict]int{}, Rows: []audit.Row{}, Silent: l.silent}
	for _, row := range rows {
		r.Verdicts[row.Verdict]++
	}
	if o.Heal {
		if err := a.o.Refuse(); err != nil {
			r.Refused = err.Error()
		} else {
			l.heal(ctx, rows)
		}
	}
	now := a.o.Runtime.Now()
	seen := map[string]first{}
	for _, row := range rows {
		if row.Verdict == audit.Agree {
			continue
		}
		from, ok := a.since[key(row)]
		if !ok {
			from = first{now, began}
		}
		row.Since = from.at
		if row.Healed {
			r.Healed++
		} else {
			seen[key(row)] = from
		}
		r.Rows = append(r.Rows, row)
	}
	after := a.Calls()
	r.At, r.Took = now, a.o.Runtime.Boot().Since-began
	r.Calls = Calls{Reads: after.Reads - before.Reads, Writes: after.Writes - before.Writes, Peers: after.Peers - before.Peers}
	if !errors.Is(ctx.Err(), context.Canceled) {
		a.since = seen
		a.tell(r)
		a.last.Store(&r)
	}
	return r
}

// key tells a row from another: the same subject may be wrong in another way later.
func key(r audit.Row) string { return r.Subject + " " + r.Code }

// tell logs what has changed since the last audit: what was healed, and what is new
// among the rest.
func (a *Auditor) tell(r Result) {
	known := map[string]bool{}
	if last := a.last.Load(); last != nil {
		for _, row := range last.Left() {
			known[key(row)] = true
		}
	}
	for _, row := range r.Rows {
		log := a.log.With("subject", row.Subject, "verdict", string(row.Verdict), "code", row.Code)
		switch {
		case row.Healed:
			log.Info("audit: healed", "heal", string(row.Heal), "message", row.Message)
		case known[key(row)]:
		case row.Failed != "":
			log.Warn("audit: could not be healed", "message", row.Message, "error", row.Failed)
		default:
			log.Warn("audit: does not agree", "message", row.Message, "why", row.Quarantine)
		}
	}
}
