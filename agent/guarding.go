package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host"
	"berth/claims"
	"berth/internal/fault"
)

// guardian answers libvirt's hook from the ledger, keeps the hook's files, and
// looks at guests that the hook let in without a claim.
type guardian struct {
	a      *Agent
	files  guard.Files
	owners *guard.Owners

	// mu guards the fields below; nothing is called under it.
	mu sync.Mutex
	// begun are arrivals whose `migrate begin` was let in: libvirt's prepare and start
	// of them follow within moments.
	begun map[string]begun
	// quarantined are guests that were let in and could not be adopted, by
	// instance; they run, and are named.
	quarantined map[string]error

	once sync.Once // of recognised
}

// begun is an arrival that was let in: when on the boot clock, and the migration
// that its document names.
type begun struct {
	since     time.Duration
	migration string
}

// begunFor is as the hook's own; see guard.Files.IsBegun.
const begunFor = 30 * time.Second

func newGuardian(a *Agent) *guardian {
	g := &guardian{
		a: a, files: guard.Files{Dir: a.config().GuardDir(), Boot: a.rt.Boot().ID, State: a.config().Agent.StateDir},
		begun: map[string]begun{}, quarantined: map[string]error{},
	}
	g.owners = guard.NewOwners(g.files, g.ledger, a.rt, a.log)
	return g
}

// keepOwners keeps the owner files; in mode observe there are none to keep, and
// nothing is written.
func (g *guardian) keepOwners(ctx context.Context) error {
	wait := g.a.recognised
	if g.a.observing() {
		wait = nil
	}
	// Until then the files of an earlier agent of this boot are the better word.
	select {
	case <-wait:
		return g.owners.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// recognised is told that the ledger is this machine's: on a copied one the tokens
// are the other's.
func (g *guardian) recognised() { g.once.Do(func() { close(g.a.recognised) }) }

// known reports whether that, or the contrary, has been seen.
func (g *guardian) known() bool {
	select {
	case <-g.a.recognised:
		return true
	default:
		return g.a.estranged() != nil
	}
}

// ledger is what the owner files should say.
func (g *guardian) ledger() []guard.Owner {
	a := g.a
	if a.observing() || a.estranged() != nil {
		return nil
	}
	leaving := map[string]string{}
	for _, c := range a.tracker.Contexts() {
		leaving[c.Instance] = c.Migration
	}
	for _, c := range a.tracker.List() {
		if c.Context != nil && c.Context.Source == a.name && c.Context.Destination == a.name {
			leaving[c.Owner.Instance] = c.Owner.Migration // it changes where it is
		}
	}
	rows := map[string]guard.Owner{}
	claimed := map[string]bool{}
	awaits := func(uuid string) bool {
		_, waits := a.host.Unconfirmed(uuid)
		return waits
	}
	for _, c := range a.tracker.List() {
		o := c.Owner
		switch {
		case o.Kind == claims.KindInstance:
			claimed[o.Instance] = true
		case o.Kind == claims.KindLiveMigration && c.State == claims.Arriving && !a.host.External().Undone(o):
			rows[o.Instance] = guard.Owner{
				Instance: o.Instance, State: guard.OwnerArriving, Migration: o.Migration, Foreign: a.host.External().Foreign(o),
			}
		}
	}
	for _, inst := range a.tracker.Instances() {
		if _, arriving := rows[inst.UUID]; arriving {
			continue
		}
		switch {
		case inst.Token.State != claims.TokenHere:
			rows[inst.UUID] = guard.Owner{Instance: inst.UUID, Name: inst.Name, State: guard.OwnerGone, Holder: inst.Token.Holder}
		case leaving[inst.UUID] != "" && !a.host.Lives(inst.UUID):
			rows[inst.UUID] = guard.Owner{Instance: inst.UUID, Name: inst.Name, State: guard.OwnerMoving, Migration: leaving[inst.UUID]}
		case a.host.LeftByHand(inst.UUID):
			rows[inst.UUID] = guard.Owner{Instance: inst.UUID, Name: inst.Name, State: guard.OwnerLeft}
		case awaits(inst.UUID):
			rows[inst.UUID] = guard.Owner{Instance: inst.UUID, Name: inst.Name, State: guard.OwnerAwaits}
		case claimed[inst.UUID]:
			rows[inst.UUID] = guard.Owner{Instance: inst.UUID, Name: inst.Name, State: guard.OwnerHere}
		}
	}
	return slices.Collect(maps.Values(rows))
}

// facts are what the ledger says about the instance of a call, and of a start the process table. It
// may block for a moment where a process does not answer.
func (g *guardian) facts(c guard.Call, d guard.Document) guard.Facts {
	a := g.a
	f := guard.Facts{
		Operation: c.Operation, Observing: a.observing(), Stranger: a.estranged() != nil,
		Marked: d.Marked, DocMigration: d.Migration,
		Defined: d.Migration != "" && d.Migration == c.Defined,
	}
	if inst, known := a.tracker.Instance(d.UUID); known {
		f.Known, f.TokenHere, f.Holder = true, inst.Token.State == claims.TokenHere, inst.Token.Holder
		if inst.Token.State == claims.TokenDoubt {
			f.Holder = "nobody knows which (its ledger was lost; berth instance adopt, where it is nowhere else)"
		}
		f.Leaving, _ = a.host.Moving(d.UUID)
		if a.host.Starts(d.UUID) || a.host.Lives(d.UUID) {
			f.Leaving = ""
		}
		f.Left = a.host.LeftByHand(d.UUID)
		f.Unconfirmed, _ = a.host.Unconfirmed(d.UUID)
		if f.TokenHere && c.Operation != guard.Migrate {
			f.Alive = host.Alive(a.host, inst)
		}
	}
	for _, claim := range a.tracker.ByInstance(d.UUID) {
		o := claim.Owner
		switch o.Kind {
		case claims.KindInstance:
			f.Claimed = true
		case claims.KindLiveMigration:
			f.Arrival = &guard.Arrival{
				Migration: o.Migration, Foreign: a.host.External().Foreign(o), Undone: a.host.External().Undone(o),
				Pending: claim.State == claims.Pending, Begun: g.isBegun(d),
			}
		case claims.KindResize, claims.KindEvacuation:
			// Of a guest that comes while it is off: no stream brings it, and nobody but the
			// agent starts it. What a guest that is here changes to is none.
			if !f.TokenHere && !(f.Known && claim.State == claims.Held) {
				f.Arrival = &guard.Arrival{Migration: o.Migration, Cold: true}
			}
		}
	}
	return f
}

// Guard implements api.Guard. It asks the ledger and the process table, never libvirt, which waits
// for the answer while it holds the instance.
func (g *guardian) Guard(ctx context.Context, c guard.Call) (guard.Answer, error) {
	if !c.Watched() {
		return guard.Answer{Allow: true}, nil
	}
	if !g.a.observing() && !g.known() {
		// The hook goes by the owner files, then.
		return guard.Answer{}, fault.New(fault.Unavailable, "guard %s of guest %s: libvirt's identity has not been seen yet", c.Operation, c.Guest)
	}
	d := guard.ReadDocument(c.DomainXML)
	if d.UUID == "" && !g.a.observing() {
		return guard.Answer{}, fault.New(fault.Invalid, "guard %s of guest %s: its document has no uuid", c.Operation, c.Guest)
	}
	decision, reasons := guard.Decide(g.facts(c, d))
	log := g.a.log.With("instance", d.UUID, "name", c.Guest, "operation", c.Operation)
	answer := guard.Answer{Allow: decision != guard.Refuse, Reasons: reasons}
	switch decision {
	case guard.AllowArrival:
		// The metadata named the migration, and nothing else of the text is believed.
		document, err := g.a.host.PreparedXML(d.UUID, d.Migration)
		if err != nil {
			answer = refusedBy(err)
			break
		}
		g.begin(guard.ReadDocument(document))
		answer.DomainXML = document
	case guard.ClaimArrival:
		document, err := g.a.host.External().ClaimArrival(ctx, c.DomainXML)
		if err != nil {
			answer = refusedBy(err)
			break
		}
		g.begin(guard.ReadDocument(document))
		answer.DomainXML = document
	case guard.AllowAndAdopt:
		if c.Operation == guard.Start {
			// Best effort: a guest that nobody manages starts, whatever happens.
			if err := g.files.NoteStarted(guard.Started{Instance: d.UUID}); err != nil {
				log.Warn("a guest is started by hand, and could not be noted for adoption", "error", err)
			}
		}
	case guard.Allow:
		if c.Operation == guard.Start {
			g.end(d.UUID)
		}
	}
	if answer.Allow {
		log.Debug("the guard lets a guest in", "decision", decision)
	} else {
		log.Warn("the guard refuses a guest", "reasons", answer.Reasons)
	}
	return answer, nil
}

// refusedBy is a no with every reason.
func refusedBy(err error) guard.Answer {
	reasons := fault.ReasonsOf(err)
	if len(reasons) == 0 {
		reasons = []fault.Reason{{Code: string(fault.KindOf(err)), Message: err.Error(), Change: "see the agent's log"}}
	}
	return guard.Answer{Message: err.Error(), Reasons: reasons}
}

func (g *guardian) begin(d guard.Document) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun[d.UUID] = begun{g.a.rt.Boot().Since, d.Migration}
}

// end is called when libvirt starts what was let in: the next start is another.
func (g *guardian) end(instance string) {
	g.mu.Lock()
	delete(g.begun, instance)
	g.mu.Unlock()
	// It ends by itself in a moment, too.
	_ = g.files.End(instance)
}

// isBegun also takes the hook's word for what it let in before this agent came up.
func (g *guardian) isBegun(d guard.Document) bool {
	now := g.a.rt.Boot().Since
	g.mu.Lock()
	was, found := g.begun[d.UUID]
	if found && now-was.since >= begunFor {
		delete(g.begun, d.UUID)
		found = false
	}
	g.mu.Unlock()
	migration, alone := g.files.Begun(d.UUID, now)
	return found && was.migration == d.Migration || alone && migration == d.Migration
}

// run looks at guests that were let in without a claim, until ctx ends.
func (g *guardian) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if !g.a.observing() {
			g.lookAtStarted(ctx)
		}
		_ = g.a.rt.Sleep(ctx, time.Second) // its end is looked at in the loop
	}
	return nil
}

func (g *guardian) lookAtStarted(ctx context.Context) {
	list, err := g.files.Started()
	if err != nil {
		g.a.log.Warn("guests that were started by hand could not be looked for", "error", err)
	}
	left := map[string]error{}
	for _, s := range list {
		if _, begun := g.files.Begun(s.Instance, g.a.rt.Boot().Since); s.Arrived && begun {
			continue // libvirt may not have its domain yet
		}
		err := g.a.host.AdoptStarted(ctx, s.Instance, s.Arrived)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if err = g.files.DropStarted(s.Instance); err == nil {
				continue
			}
		}
		left[s.Instance] = err
	}
	g.mu.Lock()
	was := g.quarantined
	g.quarantined = left
	g.mu.Unlock()
	for instance, err := range left {
		if old := was[instance]; old == nil || old.Error() != err.Error() {
			g.a.log.Log(ctx, slog.LevelWarn, "a guest that was let in is in quarantine: it runs, and has no claim", "instance", instance, "error", err)
		}
	}
}

// unsettledCode is the reason's own where an instance waits for a file system or a process.
func unsettledCode(why error) string {
	for _, r := range fault.ReasonsOf(why) {
		if host.WaitsAlone(r.Code) {
			return r.Code
		}
	}
	return "arrival_unsettled"
}

// condition is the guard in berth status.
func (g *guardian) condition() api.Condition {
	c := g.a.config()
	var reasons []fault.Reason
	g.mu.Lock()
	quarantined := maps.Clone(g.quarantined)
	g.mu.Unlock()
	for _, instance := range slices.Sorted(maps.Keys(quarantined)) {
		reasons = append(reasons, fault.Reason{
			Code: "quarantined", Message: fmt.Sprintf("guest %s was let in and has no claim: %v", instance, quarantined[instance]),
			Change: "make room, or stop it; berth instance adopt takes it all the same",
		})
	}
	for _, s := range g.a.host.Strangers() {
		if _, told := quarantined[s.UUID]; told || s.Why == nil {
			continue
		}
		reasons = append(reasons, fault.Reason{
			Code: "quarantined", Message: fmt.Sprintf("guest %s runs here and has no claim: %v", s.Name, s.Why), Have: s.Resources.String(),
			Change: "make room, or stop it; berth instance adopt takes it all the same",
		})
	}
	unsettled := g.a.host.Unsettled()
	for _, instance := range slices.Sorted(maps.Keys(unsettled)) {
		if errors.Is(unsettled[instance], fault.Busy) {
			continue // the other side is not through yet
		}
		reasons = append(reasons, fault.Reason{Code: unsettledCode(unsettled[instance]), Message: unsettled[instance].Error(), Change: cmp.Or(fault.RemedyOf(unsettled[instance]), "see the agent's log")})
	}
	if err := g.owners.Err(); err != nil {
		reasons = append(reasons, fault.Reason{
			Code: "owner_files", Message: "owner files are not as the ledger says, so guests may not start while the agent is down: " + err.Error(),
			Change: "make room in " + g.files.Dir + ", and let the agent write there",
		})
	}
	state, change := g.state(c.Guard.Hook)
	if len(reasons) > 0 {
		return api.Degraded("guard", state+"; "+reasons[0].Message, reasons...)
	}
	out := api.OK("guard", state)
	if change != "" {
		out.Reasons = []fault.Reason{{Code: "guard_not_active", Message: state, Change: change}}
	}
	return out
}

// state says whether libvirt asks before it starts or takes in a guest. Nothing
// asks libvirt: the daemon that runs now either has called the hook, or nobody
// can know that it will. A host without the guard is no fault of its own.
func (g *guardian) state(hook string) (state, change string) {
	if g.a.observing() {
		return "guard not active: mode observe", ""
	}
	st, err := os.Stat(hook)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "guard not active: " + hook + " is not installed", "install it and restart libvirtd (guests go on); without it virsh starts and brings guests unasked"
	case err != nil:
		return "guard not active: " + err.Error(), "let the agent read " + hook
	case st.Mode()&0o111 == 0:
		return "guard not active: " + hook + " is not executable", "chmod 755 " + hook
	}
	at, alive := g.files.Called("/proc")
	if !alive {
		return "guard not active: libvirt has not called it since its daemon started", "restart libvirtd (guests go on) if the hook was installed after it started; else the next start shows"
	}
	return fmt.Sprintf("active, last called %s ago", g.a.rt.Now().Sub(at).Round(time.Second)), ""
}

var _ api.Guard = (*guardian)(nil)
