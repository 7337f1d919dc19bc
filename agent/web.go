package agent

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"berth/agent/api"
	"berth/agent/web"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/version"
	"berth/migration"
)

// page is what people look at in a browser. Nothing of the agent depends on it: where it cannot
// be shown that is told, and tried again.
type page struct {
	a      *Agent
	at     config.WebAddress
	on     bool
	closed atomic.Pointer[error]    // why it is not shown; nil pointer where it is, or is not to be
	shown  atomic.Pointer[string]   // the address; nil before
	asked  atomic.Int64             // when somebody looked last, nanoseconds of the boot clock; 0 for never
	guests atomic.Pointer[sighting] // nil before the first answer
}

// sighting is what the hypervisor has said of the guests.
type sighting struct {
	at   time.Time
	list []api.Instance
	err  error
}

func newPage(a *Agent) *page {
	p := &page{a: a}
	p.at, p.on = a.opt.Config.Web.Where()
	return p
}

// How often guests are asked about while somebody looks, and for how long after he has looked
// last somebody does. Both arbitrary; the page itself asks every second.
const (
	guestsEvery = 2 * time.Second
	lookedFor   = 10 * time.Second
)

// run asks how the guests are while somebody looks: the page itself waits for no hypervisor,
// and the hypervisor has its own time, since one that is cut short loses its connection.
func (p *page) run(ctx context.Context) error {
	for p.on && ctx.Err() == nil {
		boot := p.a.rt.Boot().Since
		if at := time.Duration(p.asked.Load()); at > 0 && boot-at < lookedFor {
			list, err := instanceService{p.a}.List(ctx, false)
			if ctx.Err() == nil {
				p.guests.Store(&sighting{at: p.a.rt.Now(), list: list, err: err})
			}
		}
		wait := guestsEvery
		if p.guests.Load() == nil {
			wait /= 10 // the first who looks
		}
		_ = p.a.rt.Sleep(ctx, wait) // its end is looked at in the loop
	}
	return nil
}

// look is the moment that is shown, from memory.
func (p *page) look(ctx context.Context) web.Snapshot {
	a := p.a
	p.asked.Store(max(1, int64(a.rt.Boot().Since)))
	out := web.Snapshot{At: a.rt.Now()}
	var err error
	if out.Status, err = (agentService{a}).Status(ctx); err != nil {
		out.MovesError = "The moves of this host are not known: " + err.Error()
	} else if out.Migrations, err = a.conductor.List(ctx); err != nil {
		out.MovesError = "The moves of this host are not known: " + err.Error()
	}
	slices.SortStableFunc(out.Migrations, func(x, y migration.Migration) int { return y.CreatedAt.Compare(x.CreatedAt) })
	// One of a look long ago is none: guests have come and gone since.
	if s := p.guests.Load(); s != nil && out.At.Sub(s.at) < 2*lookedFor {
		out.Guests, out.GuestsAt = s.list, s.at
		if s.err != nil {
			out.GuestsError = "How the guests are is not known, since the hypervisor does not answer: " + s.err.Error()
		}
	}
	believed, _, _ := a.hardware.view()
	here := api.HostInfo{Description: migration.Description{Name: a.name, BerthVersion: version.Get().String()}, Topology: believed}
	here.Cells, here.Loose = a.cellViews()
	held, err := claimService{a}.List(ctx)
	if err == nil { // it is from the ledger
		out.Host = api.Picture(here, held, out.Guests)
	}
	return out
}

// serve shows the page until ctx ends.
func (p *page) serve(ctx context.Context) error {
	if !p.on {
		return nil
	}
	for ctx.Err() == nil {
		l, id, err := p.listen()
		if err == nil {
			p.closed.Store(nil)
			at := l.Addr().String()
			p.shown.Store(&at)
			p.a.log.Info("the page is shown", "address", at, "tls", id != nil)
			server := web.New(web.Options{Look: p.look, Runtime: p.a.rt, Logger: p.a.log})
			unhook := context.AfterFunc(ctx, func() { _ = server.Close() }) // what it showed is asked for again
			err = server.Serve(l, id)
			unhook()
		}
		if err != nil && p.closed.Swap(&err) == nil {
			p.a.log.Warn("the page is not shown; it is tried again", "address", p.at.Address, "error", err)
		}
		_ = p.a.rt.Sleep(ctx, listenEvery) // its end is looked at in the loop
	}
	return nil
}

// listen opens where the page is shown, and gives what it is shown with: nil in plain text,
// which goes to this machine alone.
func (p *page) listen() (net.Listener, *pki.Identity, error) {
	if p.at.Network == "unix" {
		l, err := listenLocal(p.at.Address, p.a.config().Agent.SocketGroup)
		return l, nil, err
	}
	if !p.at.Loopback && p.a.identity == nil {
		return nil, nil, fault.Refuse(fault.Unavailable, "show the page on "+p.at.Address, fault.Reason{
			Code: "certificates", Message: "there are no certificates, and off this machine it is shown over TLS alone: " + p.a.noPeers.Error(),
			Change: "make certificates (berth pki --help), or set [web] listen to 127.0.0.1 and a port; and restart the agent",
		})
	}
	l, err := net.Listen(p.at.Network, p.at.Address)
	if err != nil {
		return nil, nil, fault.New(fault.Busy, "show the page: %w", err)
	}
	if p.at.Loopback {
		return l, nil, nil
	}
	return l, p.a.identity, nil
}

// condition is how the showing goes; false where it is not to be shown.
func (p *page) condition() (api.Condition, bool) {
	if !p.on {
		return api.Condition{}, false
	}
	if why := p.closed.Load(); why != nil {
		reasons := fault.ReasonsOf(*why)
		if len(reasons) == 0 {
			reasons = []fault.Reason{{Code: "page_port", Message: (*why).Error(), Change: `free the address, or set [web] listen ("" for none) and restart the agent; it is tried again by itself`}}
		}
		return api.Degraded("page", "not shown: "+(*why).Error(), reasons...), true
	}
	address := p.at.Address
	if at := p.shown.Load(); at != nil {
		address = *at
	}
	return api.OK("page", "shown on "+address), true
}
