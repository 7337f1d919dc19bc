package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// A store whose members refuse the connection may be dead, or a firewall may refuse in its place:
// then it serves others, this host's lease ends, and its watchdog must not be fed. So refused
// connections are a proof that no lease ends only where other hosts bear it out: more than half of
// those that are known answer now and say that the store has not served them when they asked a
// moment ago, before one says that it has. Of one or two hosts that is all others.

// storeAsked is a question to the store that has ended.
type storeAsked struct {
	there  bool // there was one
	begun  time.Duration
	served bool
}

// servedBy says whether the store has answered, if only to refuse.
func servedBy(err error) bool {
	kind := fault.KindOf(err)
	return err == nil || kind != fault.Unavailable && kind != fault.InDoubt && !ended(err)
}

// How others are asked; arbitrary but for what is said.
const (
	othersEvery    = time.Minute      // who they are is read
	othersPatience = 10 * time.Second // for that
	askPatience    = time.Second      // for all that are asked: below what the window of a lease leaves
	askAtOnce      = 32
	oldestWord     = 5 * time.Second // of another host that counts; half of the window where that is less
)

// storeSeen is what this host tells others.
func (v *vigil) storeSeen() api.StoreSeen {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.asked.there {
		return api.StoreSeen{}
	}
	return api.StoreSeen{Asked: true, Served: v.asked.served, Age: v.now() - v.asked.begun}
}

func (v *vigil) served() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked.served
}

// keepOthers keeps who the other hosts of the fleet are, without those that count as dead, until
// ctx ends. While the store does not say, it stays as it was.
func (v *vigil) keepOthers(ctx context.Context, records liveRecords) {
	for ctx.Err() == nil {
		wait := othersEvery
		if names, err := v.readOthers(ctx, records); err == nil {
			v.mu.Lock()
			v.others, v.known = names, true
			v.mu.Unlock()
		} else {
			wait = announceWait
		}
		_ = v.o.Runtime.Sleep(ctx, wait) // its end is looked at in the loop
	}
}

func (v *vigil) readOthers(ctx context.Context, records liveRecords) ([]string, error) {
	ctx, cancel := v.o.Runtime.WithTimeout(ctx, othersPatience)
	defer cancel()
	hosts, err := records.Hosts(ctx)
	unreadable, err := fleet.Unreadable(err)
	if err != nil {
		return nil, err
	}
	for _, key := range unreadable { // whose host there is, and may be asked
		hosts = append(hosts, fleet.Host{Name: fleet.NameOf(key)})
	}
	deaths, err := records.Deaths(ctx)
	if _, err = fleet.Unreadable(err); err != nil {
		return nil, err
	}
	out := map[string]bool{v.o.Host: true}
	for _, d := range deaths {
		out[d.Host] = true
	}
	var names []string
	for _, h := range hosts {
		if !out[h.Name] {
			names = append(names, h.Name)
		}
	}
	return names, nil
}

// borneOut is nil where other hosts say that the store serves nobody. since is when the first
// of them found that.
func (v *vigil) borneOut(ctx context.Context) (since time.Duration, err error) {
	v.mu.Lock()
	others, known := v.others, v.known
	v.mu.Unlock()
	switch {
	case !known:
		return 0, fault.New(fault.Unavailable, "etcd refuses connections, and which hosts could bear out that it serves nobody was never heard")
	case len(others) == 0:
		return v.now(), nil
	}
	ctx, cancel := v.o.Runtime.WithTimeout(ctx, askPatience)
	defer cancel()
	p := poll{v: v, order: rand.Perm(len(others)), others: others, need: len(others)/2 + 1, since: v.now(), stop: cancel}
	var asking runtime.Group
	for range min(len(others), askAtOnce) {
		asking.Go(v.o.Runtime, "does the store serve others", func() { p.ask(ctx) })
	}
	asking.Wait(v.o.Runtime)
	return p.since, p.verdict()
}

// poll is one question to all others.
type poll struct {
	v      *vigil
	others []string
	order  []int
	need   int
	stop   func() // when it is decided

	// mu guards the rest; nothing is called under it.
	mu     sync.Mutex
	next   int
	agree  int
	served string        // one that the store serves
	since  time.Duration // the earliest question of those that agree
}

// ask asks one host after the other until it is decided, or ctx ends.
func (p *poll) ask(ctx context.Context) {
	for ctx.Err() == nil {
		p.mu.Lock()
		i := p.next
		p.next++
		p.mu.Unlock()
		if i >= len(p.order) {
			return
		}
		host := p.others[p.order[i]]
		begun := p.v.now()
		word, err := p.v.o.Ask(ctx, host)
		if err != nil || !word.Asked || word.Age < 0 || word.Age > min(oldestWord, p.v.budget.Window()/2) {
			continue
		}
		p.mu.Lock()
		if word.Served {
			p.served = host
		} else {
			p.agree++
			p.since = min(p.since, begun-word.Age)
		}
		decided := p.served != "" || p.agree >= p.need
		p.mu.Unlock()
		if decided {
			p.stop()
			return
		}
	}
}

func (p *poll) verdict() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.served != "":
		return fault.New(fault.Unavailable, "etcd refuses this host's connections, and serves host %s", p.served)
	case p.agree < p.need:
		return fault.New(fault.Unavailable, "etcd refuses connections, and %d of %d other hosts bear out that it serves nobody, of %d that must", p.agree, len(p.others), p.need)
	}
	return nil
}
