package conductor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation/operationtest"
	"berth/placementclient"
)

// forgetful is a host whose domain is off and does not say why, while a whole
// copy waits at the destination, until somebody has ended that copy.
type forgetful struct {
	quickHost
	ended *atomic.Bool
}

func (h forgetful) StartStream(context.Context, migration.Ref, migration.Stream) error {
	return fault.New(fault.Unavailable, "the hypervisor does not answer")
}

func (h forgetful) StreamStatus(context.Context, migration.Ref) (migration.StreamStatus, error) {
	return migration.StreamStatus{Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "unknown"}}, nil
}

func (h forgetful) DestinationStatus(context.Context, migration.Ref) (migration.DestinationStatus, error) {
	if h.ended.Load() {
		return migration.DestinationStatus{}, nil
	}
	return migration.DestinationStatus{Domain: migration.DomainView{Exists: true, State: "paused", Reason: "user"}}, nil
}

// What an undo cannot decide is in doubt as much as what a step cannot, and the
// doubt ends with its cause.
func TestConductor_AnUndoThatNothingDecidesIsInDoubt(t *testing.T) {
	q := &quick{data: map[string]map[string][]byte{}, held: map[string]placementclient.Allocations{}, polled: map[string]int{}}
	rt := &runtime.System{}
	var ended atomic.Bool
	c := conductor.New(conductor.Config{
		Runtime: rt, Store: q, Local: "a", Placement: q, Lease: 3 * time.Millisecond, PollInterval: time.Millisecond, PollNear: time.Millisecond,
		UndoLater: 10 * time.Millisecond,
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			return operationtest.Over(forgetful{quickHost{q: q, name: name}, &ended}), nil
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error)
	rt.Go("run", func() { ran <- c.Run(ctx) })
	var m migration.Migration
	for { // Run takes a moment to recover its journal
		var err error
		if m, err = c.LiveMigrate(ctx, conductor.Request{Instance: "guest", Destination: "b"}); err == nil {
			break
		}
		if !errors.Is(err, fault.Unavailable) {
			t.Fatal(err)
		}
	}
	changes, err := c.Watch(ctx, m.UUID)
	if err != nil {
		t.Fatal(err)
	}
	doubted := false
	for m = range changes {
		if m.Outcome == migration.OutcomeInDoubt && !doubted {
			doubted = true
			if m.Status != migration.StatusError || !errors.Is(m.Err(), fault.InDoubt) || m.Done() {
				t.Errorf("in doubt, yet status %s, done %v: %v", m.Status, m.Done(), m.Err())
			}
			ended.Store(true)
		}
	}
	if !doubted || m.Outcome != migration.OutcomeUndone {
		t.Errorf("in doubt %v, and ended %s %q: %v", doubted, m.Status, m.Outcome, m.Err())
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	rt.Wait()
}
