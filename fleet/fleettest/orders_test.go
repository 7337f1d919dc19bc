package fleettest

import (
	"context"
	"math/rand/v2"
	"testing"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// turns lets actors do one call of the store at a time, in an order that is given.
type turns struct {
	asks chan int // an actor wants its next call, or is over: ^actor
	may  []chan struct{}
}

// gated is an actor's store.
type gated struct {
	fleet.Store
	actor int
	turns *turns
}

func (g gated) next() {
	g.turns.asks <- g.actor
	<-g.turns.may[g.actor]
}

func (g gated) Get(ctx context.Context, key string) (fleet.Record, error) {
	g.next()
	return g.Store.Get(ctx, key)
}

func (g gated) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	g.next()
	return g.Store.List(ctx, prefix)
}

func (g gated) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	g.next()
	return g.Store.Commit(ctx, when, changes...)
}

// inOrder runs actors, each with calls of its own, and lets the one that choose says go on, of
// those that can.
func inOrder(actors []func(g gated), choose func(can []int) int) {
	tu := &turns{asks: make(chan int)}
	for i, act := range actors {
		tu.may = append(tu.may, make(chan struct{}))
		go func() {
			act(gated{actor: i, turns: tu})
			tu.asks <- ^i
		}()
	}
	waits, over := map[int]bool{}, 0
	for over < len(actors) {
		for len(waits)+over < len(actors) {
			if a := <-tu.asks; a < 0 {
				over++
			} else {
				waits[a] = true
			}
		}
		if len(waits) == 0 {
			return
		}
		var can []int
		for i := range actors {
			if waits[i] {
				can = append(can, i)
			}
		}
		next := can[choose(can)]
		delete(waits, next)
		tu.may[next] <- struct{}{}
	}
}

// everyOrder calls run with a chooser until each sequence of choices was made once.
func everyOrder(run func(choose func(can []int) int)) (orders int) {
	var path, ways []int
	for {
		depth := 0
		run(func(can []int) int {
			if depth == len(path) {
				path, ways = append(path, 0), append(ways, len(can))
			}
			depth++
			return path[depth-1]
		})
		orders++
		path, ways = path[:depth], ways[:depth]
		for len(path) > 0 && path[len(path)-1]+1 == ways[len(ways)-1] {
			path, ways = path[:len(path)-1], ways[:len(ways)-1]
		}
		if len(path) == 0 {
			return orders
		}
		path[len(path)-1]++
	}
}

// someOrders draws three hundred; always the same.
func someOrders(run func(choose func(can []int) int)) (orders int) {
	rng := rand.New(rand.NewPCG(1, 2))
	for ; orders < 300; orders++ {
		run(func(can []int) int { return rng.IntN(len(can)) })
	}
	return orders
}

// prepared is a store with a dead host's guest, and what its race begins with.
func prepared(t *testing.T) (*Memory, race) {
	m := NewMemory(&runtime.System{})
	f := newFixture(t, m.Client("before"))
	var r race
	r.prepare(f)
	return m, r
}

func TestRecords_InEveryOrderOneHasTheGuest(t *testing.T) {
	for _, names := range races {
		walk := everyOrder
		if len(names) > 2 { // there are millions
			walk = someOrders
		}
		orders := walk(func(choose func([]int) int) {
			m, r := prepared(t)
			var actors []func(gated)
			for _, name := range names {
				actors = append(actors, func(g gated) {
					g.Store = m.Client(name)
					r.act(context.Background(), name, fleet.New(g, &runtime.System{}))
				})
			}
			var order []int
			inOrder(actors, func(can []int) int {
				c := choose(can)
				order = append(order, can[c])
				return c
			})
			if err := r.judge(context.Background(), fleet.New(m.Client("after"), &runtime.System{})); err != nil {
				t.Fatalf("%v in the order %v: %v", names, order, err)
			}
		})
		t.Logf("%v: %d orders", names, orders)
		if orders < 20 {
			t.Errorf("%v: only %d orders: they did not meet", names, orders)
		}
	}
}

// TestRecords_ALateTakeOverIsRefusedOnceGivenUp keeps the commit of a take-over back until each
// moment after it.
func TestRecords_ALateTakeOverIsRefusedOnceGivenUp(t *testing.T) {
	seen := map[bool]int{}
	everyOrder(func(choose func([]int) int) {
		m, r := prepared(t)
		conductor := func(g gated) {
			c := m.Client("conductor")
			c.Before = func(_ context.Context, call Call) Outcome {
				if call.Verb != "commit" {
					return Answered
				}
				return Late
			}
			g.Store = c
			rec := fleet.New(g, &runtime.System{})
			_, err := rec.TakeOver(context.Background(), r.asks[0])
			if fault.KindOf(err) != fault.InDoubt {
				t.Errorf("the answer was lost, and it says %v", err)
			}
			c.Before = nil
			r.gave = rec.GiveUp(context.Background(), r.asks[0])
		}
		network := func(g gated) {
			for range 5 { // moments, some of them after the commit is on its way
				g.next()
				m.Land()
			}
		}
		inOrder([]func(gated){conductor, network}, choose)
		rec := fleet.New(m.Client("after"), &runtime.System{})
		in, _, err := rec.Instance(context.Background(), guest)
		if err != nil {
			t.Fatal(err)
		}
		if took := in.Host == first; took == (r.gave == nil) {
			t.Fatalf("given up: %v, and the guest is at %s", r.gave, in.Host)
		}
		seen[r.gave == nil]++
	})
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("given up in %d orders, too late in %d: both must come", seen[true], seen[false])
	}
}
