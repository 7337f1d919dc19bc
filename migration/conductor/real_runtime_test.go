package conductor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation/operationtest"
	"berth/placementclient"
)

// quick is a host, a store and a Placement on which everything succeeds at once,
// for real goroutines: what is tested is the conductor's own concurrency.
type quick struct {
	mu     sync.Mutex
	data   map[string]map[string][]byte
	held   map[string]placementclient.Allocations
	polled map[string]int
}

func (q *quick) Put(_ context.Context, bucket, key string, value []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.data[bucket] == nil {
		q.data[bucket] = map[string][]byte{}
	}
	q.data[bucket][key] = slices.Clone(value)
	return nil
}

func (q *quick) Delete(_ context.Context, bucket, key string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.data[bucket], key)
	return nil
}

func (q *quick) List(_ context.Context, bucket string) (map[string][]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.data[bucket]), nil
}

func (q *quick) Allocations(_ context.Context, consumer string) (placementclient.Allocations, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held[consumer].Clone(), nil
}

func (q *quick) PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error {
	return q.PostAllocations(ctx, map[string]placementclient.Allocations{consumer: a})
}

func (q *quick) PostAllocations(_ context.Context, set map[string]placementclient.Allocations) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for consumer, a := range set {
		a.ConsumerGeneration = placementclient.Generation(1)
		if q.held[consumer] = a; len(a.Allocations) == 0 {
			delete(q.held, consumer)
		}
	}
	return nil
}

func (q *quick) DeleteAllocations(ctx context.Context, consumer string) error {
	return q.PutAllocations(ctx, consumer, placementclient.Allocations{})
}

func (q *quick) Providers(context.Context, placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error) {
	return []placementclient.ResourceProvider{{UUID: "a", Name: "a"}, {UUID: "b", Name: "b"}}, nil
}

func (q *quick) KnownTraits(_ context.Context, names []string) ([]string, error) { return names, nil }

func (q *quick) KnownClasses(_ context.Context, names []string) ([]string, error) { return names, nil }

func (q *quick) Aggregates(context.Context, string) (placementclient.Aggregates, error) {
	return placementclient.Aggregates{}, nil
}

func (q *quick) AllocationCandidates(context.Context, placementclient.CandidateRequest) (placementclient.AllocationCandidates, error) {
	return placementclient.AllocationCandidates{Candidates: []placementclient.Candidate{
		{Allocations: map[string]placementclient.Resources{"a": nil}}, {Allocations: map[string]placementclient.Resources{"b": nil}},
	}}, nil
}

// quickHost answers every operation of a live migration; its streams take a few polls.
type quickHost struct {
	migration.Host // panics for what is not below
	q              *quick
	name           string
}

func (h quickHost) Describe(context.Context) (migration.Description, error) {
	return migration.Description{Name: h.name, ProviderUUID: h.name, HostUUID: h.name}, nil
}

func (h quickHost) Inspect(_ context.Context, ref migration.Ref) (migration.Guest, error) {
	return migration.Guest{UUID: ref.Instance, Resources: guestSize, PowerState: migration.PowerRunning, Persistent: true}, nil
}

func (h quickHost) CheckDestination(ctx context.Context, _ migration.Ref, _ migration.CheckRequest) (migration.CheckAnswer, error) {
	d, err := h.Describe(ctx)
	return migration.CheckAnswer{Destination: d}, err
}

func (h quickHost) Claim(_ context.Context, _ migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	return migration.ClaimAnswer{Resources: c.Guest.Resources}, nil
}

func (h quickHost) CheckSource(context.Context, migration.Ref, migration.CheckAnswer) (migration.SourceAnswer, error) {
	return migration.SourceAnswer{}, nil
}

func (h quickHost) PreLiveMigration(context.Context, migration.Ref, migration.PreLiveRequest) (migration.Prepared, error) {
	return migration.Prepared{}, nil
}

func (h quickHost) StreamStatus(_ context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	h.q.mu.Lock()
	defer h.q.mu.Unlock()
	if h.q.polled[ref.Migration]++; h.q.polled[ref.Migration] < 10 {
		return migration.StreamStatus{InFlight: true, Domain: migration.DomainView{Exists: true, State: "running"}, Progress: migration.Progress{MemoryProcessed: 1}}, nil
	}
	return migration.StreamStatus{Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "migrated"}}, nil
}

func (h quickHost) Commit(_ context.Context, ref migration.Ref) (migration.Commit, error) {
	return migration.Commit{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt}, nil
}

func (quickHost) StartStream(context.Context, migration.Ref, migration.Stream) error    { return nil }
func (quickHost) RecordContext(context.Context, migration.Ref, migration.Context) error { return nil }
func (quickHost) DropContext(context.Context, migration.Ref) error                      { return nil }
func (quickHost) TuneStream(context.Context, migration.Ref, migration.Tuning) error     { return nil }
func (quickHost) Reclaim(context.Context, migration.Ref) error                          { return nil }
func (quickHost) CleanUpSource(context.Context, migration.Ref) error                    { return nil }
func (quickHost) RenewClaim(context.Context, migration.Ref) error                       { return nil }
func (quickHost) AbortClaim(context.Context, migration.Ref) error                       { return nil }
func (quickHost) RollbackPreLiveMigration(context.Context, migration.Ref) error         { return nil }
func (quickHost) AcceptToken(context.Context, migration.Ref, migration.Commit) error    { return nil }
func (quickHost) FinishDestination(context.Context, migration.Ref) error                { return nil }

func TestConductor_ManyAtOnceOnRealGoroutines(t *testing.T) {
	q := &quick{data: map[string]map[string][]byte{}, held: map[string]placementclient.Allocations{}, polled: map[string]int{}}
	rt := &runtime.System{}
	c := conductor.New(conductor.Config{
		Runtime: rt, Store: q, Local: "a", Placement: q, Lease: 3 * time.Millisecond, PollInterval: time.Millisecond, PollNear: time.Millisecond,
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			return operationtest.Over(quickHost{q: q, name: name}), nil
		},
	})
	if _, err := c.LiveMigrate(context.Background(), move); !errors.Is(err, fault.Unavailable) {
		t.Errorf("before Run: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error)
	rt.Go("run", func() { ran <- c.Run(ctx) })
	for { // Run takes a moment to recover its journal
		if _, err := c.LiveMigrate(ctx, conductor.Request{Instance: "first"}); err == nil {
			break
		}
	}

	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[migration.Outcome]int{}
	for i := range 24 {
		wg.Go(func() {
			m, err := c.LiveMigrate(ctx, conductor.Request{Instance: fmt.Sprint("guest ", i)})
			if err != nil {
				t.Error(err)
				return
			}
			changes, err := c.Watch(ctx, m.UUID)
			if err != nil {
				t.Error(err)
				return
			}
			for m = range changes {
				if i%3 == 0 {
					_ = c.Abort(ctx, m.UUID) // in time or not
				}
				_ = c.Tune(ctx, m.UUID, migration.Tuning{Bandwidth: 1}, "ops")
				_ = c.ForceComplete(ctx, m.UUID, "ops")
				_, _ = c.List(ctx)
			}
			if !m.Done() {
				t.Errorf("the last state of %s is %s", m.UUID, m.Status)
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[m.Outcome]++
		})
	}
	wg.Wait()
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	rt.Wait()
	if outcomes[migration.OutcomeCompleted] < 16 || outcomes[migration.OutcomeCompleted]+outcomes[migration.OutcomeUndone] != 24 {
		t.Errorf("outcomes %v", outcomes)
	}
}
