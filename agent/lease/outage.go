package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/witness"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// A store whose members refuse the connection may be dead, or a firewall may refuse in its place:
// then it serves others, this host's lease ends, and its watchdog must not be fed. So refused
// connections are a proof that no lease ends only where every other host that is known answers now
// and says that the store has not served it when it asked a moment ago: see witness.Outage. A silent
// host may be on the other side of a partition, where the store is.

// storeAsked is a question to the store that has ended.
type storeAsked struct {
	there  bool // there was one
	begun  time.Duration
	served bool
}

// servedBy says whether the store has answered, if only to refuse.
func servedBy(err error) bool {
	kind := fault.KindOf(err)
	return err == nil || kind != fault.Unavailable && kind != fault.InDoubt && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// How others are asked; arbitrary but for what is said.
const (
	othersEvery    = time.Minute      // who they are is read
	othersAgain    = 10 * time.Second // after they have changed: hosts of a new fleet come one after another
	othersPatience = 10 * time.Second // for that
	askPatience    = time.Second      // for all that are asked: below what the window of a lease leaves
	askAtOnce      = 32
	oldestWord     = 5 * time.Second // of another host that counts; half of the window where that is less
)

// storeSeen is what this host tells others.
func (v *Keeper) StoreSeen() api.StoreSeen {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.asked.there {
		return api.StoreSeen{}
	}
	return api.StoreSeen{Asked: true, Served: v.asked.served, Age: v.now() - v.asked.begun}
}

func (v *Keeper) served() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked.served
}

// keepOthers keeps who the other hosts of the fleet are, without those that count as dead, until
// ctx ends. While the store does not say, it stays as it was. One that has gone is asked still until
// this host's record does not name it any more: until then it may declare this host dead.
func (v *Keeper) keepOthers(ctx context.Context, records Records) {
	for ctx.Err() == nil {
		wait := othersEvery
		if names, named, err := v.readOthers(ctx, records); err == nil {
			v.mu.Lock()
			if !v.known || !slices.Equal(v.named, names) {
				wait = othersAgain
			}
			v.others, v.named, v.known = union(v.others, names, named), names, true
			v.mu.Unlock()
		} else {
			wait = announceWait
		}
		_ = v.o.Runtime.Sleep(ctx, wait) // its end is looked at in the loop
	}
}

func union(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

// witnesses are the hosts that are to be on record; never nil.
func (v *Keeper) witnesses() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string{}, v.named...)
}

// onRecord notes that this host's record names names and no other. After a write that failed the
// next one does not count yet: the first may land after it.
func (v *Keeper) onRecord(names []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.untold == nil {
		v.others = union(names, v.named)
	}
}

// readOthers gives them in order, and those that the record of this host names.
func (v *Keeper) readOthers(ctx context.Context, records Records) (names, named []string, err error) {
	ctx, cancel := v.o.Runtime.WithTimeout(ctx, othersPatience)
	defer cancel()
	hosts, err := records.Hosts(ctx)
	unreadable, err := fleet.Unreadable(err)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range unreadable { // whose host there is, and may be asked
		hosts = append(hosts, fleet.Host{Name: fleet.NameOf(key)})
	}
	deaths, err := records.Deaths(ctx)
	if _, err = fleet.Unreadable(err); err != nil {
		return nil, nil, err
	}
	out := map[string]bool{v.o.Host: true}
	for _, d := range deaths {
		out[d.Host] = true
	}
	for _, h := range hosts {
		if h.Name == v.o.Host {
			named = h.Witnesses
		}
		if !out[h.Name] {
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	return names, named, nil
}

// borneOut is nil where other hosts say that the store serves nobody. since is when the first
// of them found that.
func (v *Keeper) borneOut(ctx context.Context) (since time.Duration, err error) {
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
	p := poll{v: v, order: rand.Perm(len(others)), others: others, words: map[string]witness.StoreWord{}, since: v.now(), stop: cancel}
	for _, host := range others {
		p.words[host] = witness.Silent
	}
	var asking runtime.Group
	for range min(len(others), askAtOnce) {
		asking.Go(v.o.Runtime, "does the store serve others", func() { p.ask(ctx) })
	}
	asking.Wait(v.o.Runtime)
	return p.since, p.verdict()
}

// poll is one question to all others.
type poll struct {
	v      *Keeper
	others []string
	order  []int
	stop   func() // when it is decided

	// mu guards the rest; nothing is called under it.
	mu    sync.Mutex
	next  int
	words map[string]witness.StoreWord
	since time.Duration // the earliest question of those that agree
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
		seen, err := p.v.o.Ask(ctx, host)
		if err != nil && ctx.Err() != nil {
			return // it is decided without this one, or the time is over
		}
		word := witness.NotServed
		switch {
		case err != nil:
			word = witness.Silent
		case !seen.Asked:
			word = witness.KeepsNone
		case seen.Age < 0 || seen.Age > min(oldestWord, p.v.budget.Window()/2):
			word = witness.Stale
		case seen.Served:
			word = witness.Served
		}
		p.mu.Lock()
		p.words[host] = word
		if word == witness.NotServed {
			p.since = min(p.since, begun-seen.Age)
		}
		p.mu.Unlock()
		if word != witness.NotServed {
			p.stop() // one is enough
			return
		}
	}
}

func (p *poll) verdict() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	proof, host, word := witness.Outage(true, p.words)
	switch {
	case proof:
		return nil
	case word == witness.Served:
		return fault.New(fault.Unavailable, "etcd refuses this host's connections, and serves host %s", host)
	}
	why := map[witness.StoreWord]string{
		witness.Silent: "does not answer, and may be where etcd is", witness.KeepsNone: "keeps no lease, so it does not know", witness.Stale: "asked etcd too long ago",
	}[word]
	return fault.New(fault.Unavailable, "etcd refuses connections, and whether it serves nobody has to be borne out by all other hosts: host %s %s", host, why)
}
