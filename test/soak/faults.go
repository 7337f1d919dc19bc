package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"berth/internal/fault"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// Fault is one row of the table: something that goes wrong during a move.
type Fault struct {
	Name string
	// touches are the parts that it breaks: two faults of one round break different
	// ones, so that each can put right what it broke.
	touches []string
	// least and most bound how long it stays. toTheEnd: until the move is over, if
	// that is sooner than most.
	least, most time.Duration
	toTheEnd    bool
	// moments of a live migration that it makes sense at; none for any.
	moments []Moment
	// live: it breaks what a cold move has not. far: it breaks the other host alone, which
	// has no part in what stays.
	live, far bool
	// third: it breaks the host that conducts the move between two others.
	third bool
	// doubt: nobody alive may know afterwards whether the guest left, and then the
	// move may say so.
	doubt bool
	// streams: it needs the forwarding processes.
	streams bool

	// strike breaks it; what it gives puts it right. errNothing where there is
	// nothing to break at that moment.
	strike func(ctx context.Context, r *round) (heal, error)
	// arm, in place of strike, is called before the move begins: what is broken is
	// the next packet of its kind. met is closed when that has come.
	arm func(r *round) (met <-chan struct{}, done heal)
}

type heal = func(ctx context.Context) error

// errNothing says that what was to be broken is not there.
var errNothing = errors.New("nothing there to break")

// Faults is the table.
func Faults() []Fault {
	var all []Fault
	for _, side := range append(slices.Clone(sides), thirdHost) {
		all = append(all, agentFaults(side)...)
	}
	all = append(all,
		Fault{Name: "kill -9 both agents", touches: []string{"source agent", "destination agent"}, most: 1500 * time.Millisecond, strike: both(killAgent)},
		Fault{Name: "kill -9 both agents and Placement", touches: []string{"source agent", "destination agent", "Placement"}, most: 1500 * time.Millisecond,
			strike: together(both(killAgent), killPlacement)},
		Fault{Name: "SIGSTOP source agent across its lease", touches: []string{"source agent"}, least: acrossLease, most: acrossLease + time.Second,
			moments: before, strike: signalAgent(source, syscall.SIGSTOP)},
	)
	for _, side := range sides {
		all = append(all, libvirtdFaults(side)...)
	}
	all = append(all,
		Fault{Name: "kill -9 both libvirtds", touches: []string{"source libvirtd", "destination libvirtd"}, most: time.Second, moments: late, doubt: true, strike: both(killLibvirtd)},
		Fault{Name: "kill -9 source libvirtd and agent", touches: []string{"source libvirtd", "source agent"}, most: time.Second, moments: late, doubt: true,
			strike: together(killLibvirtd(source), killAgent(source))},
		Fault{Name: "kill -9 destination QEMU", touches: []string{"destination QEMU"}, live: true, moments: streaming, strike: signalQEMU(syscall.SIGKILL)},
		Fault{Name: "SIGSTOP destination QEMU", touches: []string{"destination QEMU"}, live: true, least: time.Second, most: 3 * time.Second, moments: streaming, strike: signalQEMU(syscall.SIGSTOP)},
		Fault{Name: "kill -9 Placement", touches: []string{"Placement"}, most: 2 * time.Second, strike: killPlacement},
		Fault{Name: "SIGSTOP Placement", touches: []string{"Placement"}, least: time.Second, most: 3 * time.Second, strike: stopPlacement},
		Fault{Name: "abort by an operator", touches: []string{"abort"}, moments: append(slices.Clone(before), Moment{Memory: true}), strike: abort},
	)
	for _, side := range sides {
		all = append(all, streamFaults(side)...)
	}
	all = append(all, replyFaults()...)
	return append(all, linkFaults()...)
}

func find(name string) (Fault, bool) {
	all := Faults()
	i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, false
	}
	return all[i], true
}

// The moments of faults that need a stream, that need what comes with one, and
// that come before anything has left.
var (
	streaming = []Moment{{Memory: true}, {Step: steps[8]}}
	late      = []Moment{{Memory: true}, {Step: steps[7]}, {Step: steps[8]}, {Step: steps[9]}, {Step: steps[10]}, {Step: steps[11]}, {Step: steps[12]}}
	before    = []Moment{{Step: steps[3]}, {Step: steps[4]}, {Step: steps[7]}, {Step: steps[8]}}
)

// side is one of the two hosts of a round.
type side string

const (
	source      side = "source"
	destination side = "destination"
	thirdHost   side = "conductor" // a third host, of a story whose two are apart
)

var sides = []side{source, destination}

func (r *round) host(s side) *lab.Host {
	switch s {
	case source:
		return r.from
	case thirdHost:
		return r.third()
	}
	return r.to
}

func agentFaults(s side) []Fault {
	part := []string{string(s) + " agent"}
	return of(s, []Fault{
		{Name: "kill -9 " + part[0], touches: part, most: 1500 * time.Millisecond, strike: killAgent(s)},
		{Name: "SIGTERM " + part[0], touches: part, most: 1500 * time.Millisecond, strike: stopAgent(s)},
		{Name: "SIGSTOP " + part[0], touches: part, least: 500 * time.Millisecond, most: 4 * time.Second, strike: signalAgent(s, syscall.SIGSTOP)},
		{Name: "SIGSTOP, then kill -9 " + part[0], touches: part, least: 500 * time.Millisecond, most: 3 * time.Second, strike: stopThenKill(s)},
	})
}

// of marks faults of one host alone.
func of(s side, list []Fault) []Fault {
	for i := range list {
		list[i].far, list[i].third = s == destination, s == thirdHost
	}
	return list
}

func libvirtdFaults(s side) []Fault {
	part := []string{string(s) + " libvirtd"}
	return of(s, []Fault{
		{Name: "kill -9 " + part[0], touches: part, most: time.Second, doubt: s == source, strike: killLibvirtd(s)},
		// One that ends a migration lives until its job has ended, half a minute.
		{Name: "SIGTERM " + part[0], touches: part, most: time.Second, moments: []Moment{{Step: steps[4]}, {Step: steps[10]}, {Step: steps[11]}, {Step: steps[12]}},
			doubt: s == source, strike: stopLibvirtd(s)},
		{Name: "SIGSTOP " + part[0], touches: part, least: time.Second, most: 4 * time.Second, strike: pauseLibvirtd(s)},
	})
}

func streamFaults(s side) []Fault {
	part := []string{string(s) + " stream"}
	return []Fault{
		{Name: "kill -9 " + part[0], touches: part, moments: late, streams: true, strike: signalStreams(s, syscall.SIGKILL)},
		{Name: "SIGSTOP " + part[0], touches: part, least: time.Second, most: 3 * time.Second, moments: late, streams: true, strike: signalStreams(s, syscall.SIGSTOP)},
		{Name: "SIGSTOP, then kill -9 " + part[0], touches: part, least: time.Second, most: 2 * time.Second, moments: late, streams: true, strike: stopStreamsThenKill(s)},
	}
}

// both is one strike on both sides.
func both(of func(side) func(context.Context, *round) (heal, error)) func(context.Context, *round) (heal, error) {
	return together(of(source), of(destination))
}

// together is one strike on several parts; put right in the opposite order.
func together(list ...func(context.Context, *round) (heal, error)) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		var heals []heal
		var all []error
		for _, f := range list {
			h, err := f(ctx, r)
			all = append(all, err)
			if err == nil {
				heals = append(heals, h)
			}
		}
		slices.Reverse(heals)
		return func(ctx context.Context) error {
			var all []error
			for _, h := range heals {
				all = append(all, h(ctx))
			}
			return errors.Join(all...)
		}, errors.Join(all...)
	}
}

func killAgent(s side) func(context.Context, *round) (heal, error) {
	return func(_ context.Context, r *round) (heal, error) {
		h := r.host(s)
		r.Agent(h.Name).Kill()
		return func(ctx context.Context) error { return r.StartAgent(ctx, h.Name) }, nil
	}
}

func stopAgent(s side) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		h := r.host(s)
		ctx, cancel := context.WithTimeout(ctx, truthMost)
		defer cancel()
		if err := r.Agent(h.Name).Stop(ctx); err != nil {
			return nil, fmt.Errorf("SIGTERM the agent of %s: %w", h.Name, err)
		}
		return func(ctx context.Context) error { return r.StartAgent(ctx, h.Name) }, nil
	}
}

func signalAgent(s side, sig syscall.Signal) func(context.Context, *round) (heal, error) {
	return func(_ context.Context, r *round) (heal, error) {
		p := r.Agent(r.host(s).Name).Cmd.Process
		return func(context.Context) error { return p.Signal(syscall.SIGCONT) }, p.Signal(sig)
	}
}

func stopThenKill(s side) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		_, err := signalAgent(s, syscall.SIGSTOP)(ctx, r)
		return func(ctx context.Context) error {
			start, err := killAgent(s)(ctx, r)
			return errors.Join(err, start(ctx))
		}, err
	}
}

func killLibvirtd(s side) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		h := r.host(s)
		return func(ctx context.Context) error { return h.StartLibvirtd(ctx) }, h.KillLibvirtd(ctx)
	}
}

func stopLibvirtd(s side) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		h := r.host(s)
		return func(ctx context.Context) error { return h.StartLibvirtd(ctx) }, h.StopLibvirtd(ctx)
	}
}

func pauseLibvirtd(s side) func(context.Context, *round) (heal, error) {
	return func(_ context.Context, r *round) (heal, error) {
		h := r.host(s)
		return func(ctx context.Context) error { return r.libvirtdGoesOn(ctx, h) }, h.PauseLibvirtd()
	}
}

// signalQEMU waits a moment for the destination's QEMU, which begins after the
// stream was asked for.
func signalQEMU(sig syscall.Signal) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		var pid int
		err := await(ctx, 10*time.Second, 5*time.Millisecond, func() (err error) {
			pid, err = r.to.QEMUPID(r.name)
			return err
		})
		if err != nil {
			return nil, errNothing
		}
		if err := syscall.Kill(pid, sig); err != nil {
			return nil, errNothing // it has just ended
		}
		return func(context.Context) error { return signalAll([]int{pid}, syscall.SIGCONT) }, nil
	}
}

func signalStreams(s side, sig syscall.Signal) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		var pids []int
		err := await(ctx, 10*time.Second, 5*time.Millisecond, func() error {
			if pids = streamProcesses(r.host(s)); len(pids) == 0 {
				return errNothing
			}
			return nil
		})
		if err != nil {
			return nil, errNothing
		}
		return func(context.Context) error { return signalAll(pids, syscall.SIGCONT) }, signalAll(pids, sig)
	}
}

func stopStreamsThenKill(s side) func(context.Context, *round) (heal, error) {
	return func(ctx context.Context, r *round) (heal, error) {
		if _, err := signalStreams(s, syscall.SIGSTOP)(ctx, r); err != nil {
			return nil, err
		}
		return func(context.Context) error { return signalAll(streamProcesses(r.host(s)), syscall.SIGKILL) }, nil
	}
}

func killPlacement(_ context.Context, r *round) (heal, error) {
	r.Placement().Kill()
	return r.StartPlacement, nil
}

func stopPlacement(_ context.Context, r *round) (heal, error) {
	p := r.Placement().Cmd.Process
	return func(context.Context) error { return p.Signal(syscall.SIGCONT) }, p.Signal(syscall.SIGSTOP)
}

// abort asks for one. That it comes too late is an answer, and not a fault.
func abort(ctx context.Context, r *round) (heal, error) {
	_, err := r.conducts().AbortMigration(ctx, r.uuid)
	if k := fault.KindOf(err); k == fault.Forbidden || k == fault.Busy {
		return nil, errNothing
	}
	return func(context.Context) error { return nil }, err
}

// lengthOf draws how long a fault lasts.
func (f Fault) lengthOf(rng *rand.Rand) time.Duration {
	d := f.least
	if f.most > f.least && !f.toTheEnd {
		d += time.Duration(rng.Int64N(int64(f.most-f.least)/1e6)) * time.Millisecond
	} else if f.toTheEnd {
		d = f.most
	}
	return d
}

// replyFaults are those of single packets of libvirt's protocol: what one libvirtd
// asks of the other (Prepare, Finish), and what the agent asks of its own (Perform,
// which is the whole migration).
func replyFaults() []Fault {
	var all []Fault
	for _, call := range []struct {
		name      string
		procedure uint32
		proxies   func(r *round) []*rpcproxy.Proxy
		length    time.Duration // of a hold
	}{
		{"Prepare", rpcproxy.Prepare3Params, (*round).towardsDestination, 3 * time.Second},
		{"Perform", rpcproxy.Perform3Params, (*round).towardsSource, 3 * time.Second},
		{"Finish", rpcproxy.Finish3Params, (*round).towardsDestination, 3 * time.Second},
	} {
		part := []string{call.name}
		rule := func(m rpcproxy.Match, a func(release <-chan struct{}) rpcproxy.Action) func(*round) (<-chan struct{}, heal) {
			return func(r *round) (<-chan struct{}, heal) { return armed(call.proxies(r), m, a) }
		}
		all = append(all,
			Fault{Name: call.name + " call cut", touches: part, arm: rule(rpcproxy.CallOf(call.procedure), func(<-chan struct{}) rpcproxy.Action { return rpcproxy.CutInstead })},
			Fault{Name: call.name + " reply cut", touches: part, arm: rule(rpcproxy.ReplyOf(call.procedure), func(<-chan struct{}) rpcproxy.Action { return rpcproxy.CutInstead })},
			Fault{Name: call.name + " reply held, then lost", touches: part, least: time.Second, most: call.length,
				arm: rule(rpcproxy.ReplyOf(call.procedure), func(release <-chan struct{}) rpcproxy.Action {
					return rpcproxy.Action{Hold: release, Drop: true, Cut: true}
				})},
			Fault{Name: call.name + " reply held, then late", touches: part, least: time.Second, most: call.length,
				arm: rule(rpcproxy.ReplyOf(call.procedure), func(release <-chan struct{}) rpcproxy.Action {
					return rpcproxy.Action{Hold: release}
				})},
		)
	}
	return all
}

// towardsDestination are the proxies on the source's libvirtd's way to the
// destination's: straight, or through a stream that ends where the agent's own
// connection does.
func (r *round) towardsDestination() []*rpcproxy.Proxy {
	return []*rpcproxy.Proxy{r.peer[r.to], r.own[r.to]}
}

func (r *round) towardsSource() []*rpcproxy.Proxy { return []*rpcproxy.Proxy{r.own[r.from]} }

// armed sets one rule at several proxies. What it gives first is closed when one
// has met its packet.
func armed(proxies []*rpcproxy.Proxy, m rpcproxy.Match, a func(release <-chan struct{}) rpcproxy.Action) (<-chan struct{}, heal) {
	release, over, met := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var rules []*rpcproxy.Rule
	first := make(chan struct{}, len(proxies))
	for _, p := range proxies {
		rule := p.Add(m, a(release))
		rules = append(rules, rule)
		go func() {
			select {
			case <-rule.Met():
				first <- struct{}{}
			case <-over:
			}
		}()
	}
	go func() {
		select {
		case <-first:
			close(met)
		case <-over:
		}
	}()
	return met, func(context.Context) error {
		close(release)
		close(over)
		for _, rule := range rules {
			rule.Remove()
		}
		return nil
	}
}

// linkFaults are those of the two networks.
func linkFaults() []Fault {
	flows := []Moment{{Memory: true}, {Step: steps[3]}, {Step: steps[7]}, {Step: steps[8]}, {Step: steps[9]}, {Step: steps[10]}, {}}
	cut := func(name string, s side, least, most time.Duration, toTheEnd bool, links ...lab.Link) Fault {
		f := Fault{Name: name, least: least, most: most, toTheEnd: toTheEnd, moments: flows, strike: func(ctx context.Context, r *round) (heal, error) {
			var strikes []func(context.Context, *round) (heal, error)
			for _, l := range links {
				strikes = append(strikes, func(ctx context.Context, r *round) (heal, error) {
					return func(ctx context.Context) error { return r.host(s).Heal(ctx, l) }, r.host(s).Cut(ctx, l)
				})
			}
			return together(strikes...)(ctx, r)
		}}
		f.far, f.third, f.live = s == destination, s == thirdHost, !slices.Contains(links, lab.Mgmt)
		for _, l := range links {
			f.touches = append(f.touches, string(l)+" link")
		}
		return f
	}
	weather := func(name string, link lab.Link, w Weather) Fault {
		return Fault{Name: name, touches: []string{string(link) + " link"}, least: 2 * time.Second, most: 5 * time.Second, moments: flows, live: link == lab.Mig, far: true,
			strike: func(ctx context.Context, r *round) (heal, error) {
				s, err := brew(ctx, r.Switch, r.to, link, w, r.plan.Seed)
				if err != nil {
					return nil, err
				}
				return s.clear, nil
			}}
	}
	limit := func(name string, link lab.Link, mibps int) Fault {
		return Fault{Name: name, touches: []string{string(link) + " link"}, least: 2 * time.Second, most: 5 * time.Second, moments: flows, live: link == lab.Mig,
			strike: func(ctx context.Context, r *round) (heal, error) {
				return func(ctx context.Context) error { return r.from.Limit(ctx, link, 0) }, r.from.Limit(ctx, link, mibps)
			}}
	}
	second := time.Second
	return []Fault{
		cut("data link cut, short", destination, second, 3*second, false, lab.Mig),
		cut("data link cut for good", source, 15*second, 15*second, true, lab.Mig),
		cut("management link cut, short", destination, second, 4*second, false, lab.Mgmt),
		cut("management link cut, long", source, 9*second, 12*second, false, lab.Mgmt),
		cut("conductor's link cut, short", thirdHost, second, 4*second, false, lab.Mgmt),
		cut("conductor's link cut, long", thirdHost, 9*second, 12*second, false, lab.Mgmt),
		cut("both links cut", destination, second, 10*second, false, lab.Mgmt, lab.Mig),
		limit("data link slow", lab.Mig, 4),
		limit("management link slow", lab.Mgmt, 1),
		weather("data link late and lossy", lab.Mig, Weather{Delay: 5 * time.Millisecond, Jitter: 10 * time.Millisecond, Loss: 0.02}),
		weather("management link late and lossy", lab.Mgmt, Weather{Delay: 20 * time.Millisecond, Jitter: 30 * time.Millisecond, Loss: 0.05}),
	}
}

// acrossLease is longer than claim_lease (bed.go).
const acrossLease = 4 * time.Second
