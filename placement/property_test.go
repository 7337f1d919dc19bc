package placement

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	pc "berth/placementclient"
)

// holdsTogether checks the invariants of a state without trusting its indexes.
func holdsTogether(b *base) error {
	used := map[string]pc.Resources{}
	for id, c := range b.consumers {
		for rp, r := range c.Allocations {
			if used[rp] == nil {
				used[rp] = pc.Resources{}
			}
			for class, n := range r {
				if n <= 0 {
					return fmt.Errorf("consumer %s holds %d %s", id, n, class)
				}
				used[rp][class] += n
			}
			if !b.holders[rp][id] {
				return fmt.Errorf("consumer %s is no holder of %s", id, rp)
			}
		}
	}
	for rp, p := range b.providers {
		for class, inv := range p.Inventories {
			if b.used[rp][class] != used[rp][class] {
				return fmt.Errorf("%s of %s: used is %d, the sum of allocations %d", class, rp, b.used[rp][class], used[rp][class])
			}
			if used[rp][class] > inv.Capacity() {
				return fmt.Errorf("%s of %s: %d of %d used", class, rp, used[rp][class], inv.Capacity())
			}
		}
		for class, n := range used[rp] {
			if _, has := p.Inventories[class]; n > 0 && !has {
				return fmt.Errorf("%d %s of %s used without inventory", n, class, rp)
			}
		}
	}
	for rp := range used {
		if b.providers[rp] == nil {
			return fmt.Errorf("allocations on %s, which is gone", rp)
		}
	}
	return nil
}

// TestAllocations_AnyOrderOfWritesAndCrashes holds the server against a model
// that knows only what each consumer was last told to hold.
func TestAllocations_AnyOrderOfWritesAndCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := storetest.NewMemory()
		s := &Server{options: Options{Listen: "127.0.0.1:0"}}
		{
			fresh, err := New(s.options)
			if err != nil {
				t.Fatal(err)
			}
			s = fresh
			s.state.disk = disk
		}
		h := httptest.NewServer(s.Handler())
		defer h.Close()
		c, err := pc.New(pc.Config{URL: h.URL, Token: "admin", Retries: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx := context.Background()
		const providers, consumers = 3, 4
		for i := range providers {
			if _, err := c.CreateProvider(ctx, pc.NewProvider{UUID: id(i), Name: fmt.Sprint("p", i)}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.PutInventories(ctx, id(i), pc.Inventories{Inventories: map[string]pc.Inventory{
				pc.ClassVCPU: {Total: 4, AllocationRatio: 1.5}, pc.ClassMemoryMB: {Total: 8, Reserved: 1, StepSize: 2}}}); err != nil {
				t.Fatal(err)
			}
		}
		model := map[string]pc.Allocations{} // by consumer; absent: holds nothing
		draw := func(label string, consumer string) pc.Allocations {
			a := pc.Allocations{Allocations: map[string]pc.Resources{}, ProjectID: "p", UserID: "u", ConsumerType: pc.ConsumerInstance}
			for i := range providers {
				r := pc.Resources{}
				if n := rapid.Int64Range(0, 5).Draw(t, label+" vcpu"); n > 0 {
					r[pc.ClassVCPU] = n
				}
				if n := rapid.Int64Range(0, 3).Draw(t, label+" memory"); n > 0 {
					r[pc.ClassMemoryMB] = 2 * n
				}
				if len(r) > 0 && rapid.Bool().Draw(t, label+" there") {
					a.Allocations[id(i)] = r
				}
			}
			if old, exists := model[consumer]; exists {
				a.ConsumerGeneration = pc.Generation(*old.ConsumerGeneration)
			} else if len(a.Allocations) == 0 {
				a.Allocations[id(0)] = pc.Resources{pc.ClassVCPU: 1} // a new one with nothing would be an orphan
			}
			if rapid.IntRange(0, 9).Draw(t, label+" stale") == 0 {
				a.ConsumerGeneration = pc.Generation(77)
			}
			return a
		}
		landed := func(consumer string, a pc.Allocations) {
			if len(a.Allocations) == 0 {
				delete(model, consumer)
				return
			}
			next := 1
			if a.ConsumerGeneration != nil {
				next = *a.ConsumerGeneration + 1
			}
			a.ConsumerGeneration = pc.Generation(next)
			model[consumer] = a
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				k := id(100 + rapid.IntRange(0, consumers-1).Draw(t, "consumer"))
				a := draw("put", k)
				if err := c.PutAllocations(ctx, k, a); err == nil {
					landed(k, a)
				} else if kind := fault.KindOf(err); kind != fault.DoesNotFit && kind != fault.GenerationConflict {
					t.Fatal(err)
				}
			},
			"post": func(*rapid.T) {
				set := map[string]pc.Allocations{}
				for range 2 {
					k := id(100 + rapid.IntRange(0, consumers-1).Draw(t, "consumer"))
					set[k] = draw("post", k)
				}
				if err := c.PostAllocations(ctx, set); err == nil {
					for k, a := range set {
						landed(k, a)
					}
				} else if kind := fault.KindOf(err); kind != fault.DoesNotFit && kind != fault.GenerationConflict {
					t.Fatal(err)
				}
			},
			"delete": func(*rapid.T) {
				k := id(100 + rapid.IntRange(0, consumers-1).Draw(t, "consumer"))
				_, there := model[k]
				if err := c.DeleteAllocations(ctx, k); there != (err == nil) || err != nil && !errors.Is(err, fault.NotFound) {
					t.Fatalf("delete of %v: %v", there, err)
				}
				delete(model, k)
			},
			"fail a commit": func(*rapid.T) {
				disk.OnCommit(func(int, []store.Mutation) storetest.Outcome { return storetest.Fail })
				k := id(100 + rapid.IntRange(0, consumers-1).Draw(t, "consumer"))
				if err := c.PutAllocations(ctx, k, draw("fail", k)); err == nil {
					t.Fatal("a write was answered that the disk did not take")
				}
				disk.OnCommit(nil)
			},
			"crash": func(*rapid.T) {
				disk = disk.Crash()
				b, err := load(ctx, disk, "the model disk")
				if err != nil {
					t.Fatal(err)
				}
				s.state.write.Lock()
				s.state.mu.Lock()
				s.state.b, s.state.disk = b, disk
				s.state.mu.Unlock()
				s.state.write.Unlock()
			},
			"": func(*rapid.T) {
				if err := holdsTogether(s.state.b); err != nil {
					t.Fatal(err)
				}
				for i := range consumers {
					k := id(100 + i)
					got, err := c.Allocations(ctx, k)
					if err != nil {
						t.Fatal(err)
					}
					want, exists := model[k]
					if got.Exists() != exists || exists && (!got.SameResources(want) || *got.ConsumerGeneration != *want.ConsumerGeneration) {
						t.Fatalf("consumer %s: got %+v, want %+v", k, got, want)
					}
				}
			},
		})
	})
}

func TestAllocations_32ClientsNeverExceedAProvider(t *testing.T) {
	s := on(t, t.TempDir()+"/placement.db")
	h := serve(t, s)
	ctx := t.Context()
	c := client(t, h.URL, 39)
	const hosts, clients, rounds = 4, 32, 6
	for i := range hosts {
		_, err := c.CreateProvider(ctx, pc.NewProvider{UUID: id(i), Name: fmt.Sprint("host", i)})
		must(t, err)
		_, err = c.PutInventories(ctx, id(i), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(6)}})
		must(t, err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	landed := map[string]int{} // consumer to host
	for n := range clients {
		wg.Go(func() {
			c, err := pc.New(pc.Config{URL: h.URL, Token: "admin", RetryWait: time.Millisecond})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			instance, migration := id(1000+n), id(2000+n)
			one := pc.Resources{pc.ClassVCPU: 1}
			on, generation := -1, 0
			for round := range rounds {
				to := (n + round) % hosts
				if on < 0 {
					err = c.PutAllocations(ctx, instance, holding(id(to), one, pc.ConsumerInstance, nil))
				} else {
					err = c.PostAllocations(ctx, map[string]pc.Allocations{
						migration: holding(id(on), one, pc.ConsumerMigration, nil),
						instance:  holding(id(to), one, pc.ConsumerInstance, pc.Generation(generation)),
					})
					if err == nil {
						err = c.DeleteAllocations(ctx, migration)
					}
				}
				if err == nil {
					on = to
					generation++
				} else if fault.KindOf(err) != fault.DoesNotFit {
					t.Errorf("client %d: %v", n, err)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if on >= 0 {
				landed[instance] = on
			}
		})
	}
	wg.Wait()
	must(t, holdsTogether(s.state.b))
	same(t, len(landed), len(s.state.b.consumers))
	for instance, host := range landed {
		got, err := c.Allocations(ctx, instance)
		must(t, err)
		same(t, map[string]pc.Resources{id(host): {pc.ClassVCPU: 1}}, got.Allocations)
	}
	// A move holds two places for a moment, so somebody may have been refused
	// while there was room in the end. Asked again in peace, no room is lost.
	for n := range clients {
		for host := 0; host < hosts && len(landed) < hosts*6; host++ {
			instance := id(1000 + n)
			if _, ok := landed[instance]; ok {
				break
			}
			if err := c.PutAllocations(ctx, instance, holding(id(host), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil)); err == nil {
				landed[instance] = host
			} else if fault.KindOf(err) != fault.DoesNotFit {
				t.Fatal(err)
			}
		}
	}
	if len(landed) != hosts*6 {
		t.Errorf("%d instances have a place, %d would have fitted", len(landed), hosts*6)
	}
}
