package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
)

// probes say in a line or two, to whoever asks by HTTP, whether the agent works and whether
// its host takes on work. They answer from the last look (run), so that an answer waits for
// nothing; a look that does not come to its end is itself what is wrong.
//
//	/healthz  200 while the agent's loops go on, the same that systemd's watchdog is told by:
//	          to be restarted where it does not. Whatever else is down is no fault of it.
//	/readyz   200 while the host takes guests and moves: the start is over, the ledger known,
//	          libvirt answers and is joined with it, claims are given, other hosts can connect
//	          where they are to, and in mode manage Placement answers. A host that an operator
//	          has disabled is ready, and says that it takes no new guests.
type probes struct {
	now  func() time.Duration // on the boot clock
	look func() look
	last atomic.Pointer[look]
}

// look is what was seen at one moment.
type look struct {
	at    time.Duration // when it came to its end, on the boot clock
	alive bool
	parts []readiness
}

// readiness is one thing that a host must have to take on work.
type readiness struct {
	part string
	err  error  // nil where it is so
	says string // beside a part that is as it should be; empty for nothing
}

func newProbes(a *Agent) *probes {
	now := func() time.Duration { return a.rt.Boot().Since }
	return &probes{now: now, look: func() look {
		alive, parts := a.health.alive(), a.readiness()
		return look{at: now(), alive: alive, parts: parts}
	}}
}

// lookEvery is how often is looked. lookPatience is how old the last look may be: arbitrary,
// far above what a look takes on a machine that is busy, below what systemd's watchdog waits.
const (
	lookEvery    = 2 * time.Second
	lookPatience = 20 * time.Second
)

func (p *probes) run(ctx context.Context, sleep func(context.Context, time.Duration) error) error {
	for ctx.Err() == nil {
		l := p.look()
		p.last.Store(&l)
		_ = sleep(ctx, lookEvery) // its end is looked at in the loop
	}
	return nil
}

// healthy is why the agent does not work; nil where it does.
func (p *probes) healthy() error {
	l := p.last.Load()
	if l == nil {
		return fault.New(fault.Unavailable, "the agent begins")
	}
	if age := p.now() - l.at; age > lookPatience {
		return fault.New(fault.Unavailable, "the agent hangs: it has not come to look at itself for %s", age.Round(time.Second))
	}
	if !l.alive {
		return fault.New(fault.Unavailable, "a loop of the agent does not go on, see its log")
	}
	return nil
}

// ready is why the host takes on no work; nil where it does.
func (p *probes) ready() error {
	if err := p.healthy(); err != nil {
		return err
	}
	for _, r := range p.last.Load().parts {
		if r.err != nil {
			return fault.New(fault.KindOf(r.err), "%s: %w", r.part, r.err)
		}
	}
	return nil
}

// ServeHTTP answers both questions.
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var words strings.Builder
	err, good := p.healthy(), "ok"
	if r.URL.Path == api.ReadyzPath && err == nil {
		good = "ready"
		err = p.ready()
		for _, part := range p.last.Load().parts {
			switch {
			case part.err != nil:
				fmt.Fprintf(&words, "no   %s: %s\n", part.part, code(part.err))
			case part.says != "":
				fmt.Fprintf(&words, "yes  %s: %s\n", part.part, part.says)
			default:
				fmt.Fprintf(&words, "yes  %s\n", part.part)
			}
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case err == nil:
		fmt.Fprintf(w, "%s\n%s", good, &words) // a caller that is gone does not read an error either
	case words.Len() > 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "not ready: berth status says more\n%s", &words)
	default:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "%v\n", err)
	}
}

// code is the word for a fault that may be told to whoever can connect: no address, no name.
func code(err error) string {
	if reasons := fault.ReasonsOf(err); len(reasons) > 0 && reasons[0].Code != "" {
		return reasons[0].Code
	}
	return string(fault.KindOf(err))
}

// readiness looks at all that the host must have to take on work. Like conditions it blocks
// on memory alone.
func (a *Agent) readiness() []readiness {
	out := []readiness{
		{part: "start", err: a.started()},
		{part: "ledger", err: a.ledger.state()},
		{part: "libvirt", err: a.joined()},
		{part: "claims", err: a.claiming()},
		{part: "peers", err: a.listening()},
	}
	if !a.observing() {
		out = append(out, readiness{part: "placement", err: a.counting()})
	}
	if d := a.disabled.Load(); d != nil {
		out = append(out, readiness{part: "host", says: "disabled, takes no new guests"})
	}
	return out
}

func (a *Agent) started() error {
	switch {
	case a.stopping.Load():
		return notYet("stopping", "the agent is going down")
	case !a.ready.Load():
		return notYet("starting", "the start is not over")
	}
	return nil
}

// joined is why libvirt cannot be worked with.
func (a *Agent) joined() error {
	if err := a.driver.Health(); err != nil {
		return notYet("libvirt_unavailable", err.Error())
	}
	if err := a.settled.Load(); err == nil || *err != nil {
		return notYet("not_settled", "ledger and hypervisor are not joined yet")
	}
	return nil
}

// claiming is why no new claim is given.
func (a *Agent) claiming() error {
	if why := a.tracker.Refused(); why != "" {
		return notYet("claims_refused", why)
	}
	return nil
}

// listening is why other hosts cannot connect, where they are to.
func (a *Agent) listening() error {
	if why := a.deaf.Load(); why != nil {
		return notYet("peers_port", (*why).Error())
	}
	return nil
}

// counting is why nothing can be counted in Placement.
func (a *Agent) counting() error {
	s := a.reporter.Status()
	if s.At.IsZero() || errors.Is(s.Err, fault.Unavailable) {
		return notYet("placement_unavailable", cmp.Or(s.Error, "Placement has not answered yet"))
	}
	return nil
}

func notYet(code, message string) error {
	return fault.Refuse(fault.Unavailable, "take on work", fault.Reason{Code: code, Message: message})
}
