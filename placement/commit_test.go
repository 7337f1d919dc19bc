package placement

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/placement/placementtest"
	pc "berth/placementclient"
)

// gate is a disk whose commits wait until they are let through.
type gate struct {
	*storetest.Memory
	let chan struct{}
}

func (g *gate) Enqueue(m ...store.Mutation) *store.Pending {
	<-g.let
	return g.Memory.Enqueue(m...)
}

// gated is a server with one provider of 8 VCPU, 6 of them held by id(2), whose
// next commits wait.
func gated(t *testing.T) (*Server, *gate, *pc.Client) {
	t.Helper()
	s := memory(t)
	s.log = slog.New(slog.DiscardHandler) // failures are meant
	g := &gate{storetest.NewMemory(), make(chan struct{})}
	s.state.disk = g.Memory
	c, err := pc.New(pc.Config{URL: serve(t, s).URL, Token: "admin", Retries: -1})
	must(t, err)
	t.Cleanup(c.Close)
	ctx := t.Context()
	_, err = c.CreateProvider(ctx, pc.NewProvider{UUID: id(1), Name: "a"})
	must(t, err)
	_, err = c.PutInventories(ctx, id(1), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}})
	must(t, err)
	must(t, c.PutAllocations(ctx, id(2), holding(id(1), pc.Resources{pc.ClassVCPU: 6}, pc.ConsumerInstance, nil)))
	s.state.disk = g
	return s, g, c
}

// until waits for what another goroutine is about to do.
func until(t *testing.T, s *Server, is func(*state) bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; runtime.Gosched() {
		s.state.mu.RLock()
		ok := is(s.state)
		s.state.mu.RUnlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it did not come to that within 30 s")
		}
	}
}

// one claims one VCPU for a consumer.
func one(t *testing.T, c *pc.Client, n int) error {
	return c.PutAllocations(t.Context(), id(n), holding(id(1), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil))
}

func TestState_WritesThatMeetShareACommit(t *testing.T) {
	s, g, c := gated(t)
	before := g.Commits()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.DeleteAllocations(t.Context(), id(2)); err != nil {
			t.Error(err)
		}
	})
	until(t, s, func(s *state) bool { return s.flying != nil })
	for n := range 7 {
		wg.Go(func() {
			if err := one(t, c, 10+n); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, s, func(s *state) bool { return s.open != nil && len(s.open.changed.consumers) == 7 })
	close(g.let)
	wg.Wait()
	same(t, before+2, g.Commits())
	again, err := load(t.Context(), g.Crash(), "the model disk")
	must(t, err)
	same(t, dump(t, s), dump(t, &Server{state: &state{b: again}}))
}

func TestState_AFailedCommitTakesBackWhatWasDecidedOnIt(t *testing.T) {
	s, g, c := gated(t)
	before := dump(t, s)
	g.OnCommit(func(int, []store.Mutation) storetest.Outcome { return storetest.Fail })
	var wg sync.WaitGroup
	lost := func(do func() error) {
		wg.Go(func() {
			err := do()
			if api, is := errors.AsType[*pc.APIError](err); !is || api.Status != http.StatusInternalServerError {
				t.Errorf("got %v, want a 500", err)
			}
		})
	}
	lost(func() error { return c.DeleteAllocations(t.Context(), id(2)) })
	until(t, s, func(s *state) bool { return s.flying != nil })
	// Seven fit only because of the delete that will not be.
	for n := range 7 {
		lost(func() error { return one(t, c, 10+n) })
	}
	until(t, s, func(s *state) bool { return s.open != nil && len(s.open.changed.consumers) == 7 })
	// One that reads, and one that is refused for want of room, see what they will
	// have to look at again.
	wg.Go(func() {
		u, err := c.Usages(t.Context(), id(1))
		if err != nil || u.Usages[pc.ClassVCPU] != 6 {
			t.Errorf("usages %v (%v), want the 6 that are there", u.Usages, err)
		}
	})
	wg.Go(func() {
		g := 1 // right before the delete and after it was taken back
		err := c.PutAllocations(t.Context(), id(2), holding(id(1), pc.Resources{pc.ClassVCPU: 8}, pc.ConsumerInstance, &g))
		if api, is := errors.AsType[*pc.APIError](err); !is || api.Status != http.StatusInternalServerError {
			t.Errorf("got %v, want a 500: the disk fails", err)
		}
	})
	close(g.let)
	wg.Wait()
	same(t, before, dump(t, s))
	g.OnCommit(nil)
	must(t, one(t, c, 10))
	again, err := load(context.Background(), g.Crash(), "the model disk")
	must(t, err)
	same(t, dump(t, s), dump(t, &Server{state: &state{b: again}}))
}

// A write that was answered 500 may have been done or not; all that was answered
// otherwise has an order.
func TestAllocations_AreLinearizableOnADiskThatFails(t *testing.T) {
	s := memory(t)
	s.log = slog.New(slog.DiscardHandler) // failures are meant
	disk := storetest.NewMemory()
	seed := rand.Uint64()
	choices := rand.New(rand.NewPCG(seed, 0))
	failed := 0
	disk.OnCommit(func(_ int, batch []store.Mutation) storetest.Outcome {
		for _, m := range batch {
			if m.Bucket == bucketConsumers && choices.IntN(25) == 0 {
				failed++
				return []storetest.Outcome{storetest.Fail, storetest.FailWritten}[choices.IntN(2)]
			}
		}
		return storetest.Commit
	})
	s.state.disk = disk
	server := placementtest.Server{URL: serve(t, s).URL}
	counts := placementtest.Linearizable(t, server, placementtest.Linear{Seed: seed, Histories: 10, Clients: 4, Requests: 12, Exact: true})
	t.Logf("seed %d: %d commits failed, %v", seed, failed, counts)
	if failed == 0 {
		t.Error("no commit failed")
	}
}
