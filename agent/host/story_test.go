package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/host"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
)

// breakable is a host of which a test breaks operations: as a lost request, or as a lost answer.
type breakable struct {
	migration.Host
	fail func(operation string, answered bool) error
	also []string // operations beside those that make something
}

// making are the operations that make or settle something.
var making = []string{
	operation.CheckDestination.Name, operation.CheckSource.Name, operation.Claim.Name, operation.RecordContext.Name,
	operation.PreLiveMigration.Name, operation.StartStream.Name, operation.Commit.Name, operation.AcceptToken.Name,
	operation.FinishDestination.Name, operation.CleanUpSource.Name,
}

func (b breakable) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if !slices.Contains(making, op.Name) && !slices.Contains(b.also, op.Name) {
		return b.Host.Ask(ctx, ref, op, in)
	}
	if err := b.fail(op.Name, false); err != nil {
		return nil, err
	}
	out, err := b.Host.Ask(ctx, ref, op, in)
	if err == nil {
		err = b.fail(op.Name, true)
	}
	return out, err
}

// hasty is a runtime that sleeps a twentieth: a conductor's pauses between tries
// are long, and not what is looked at here.
type hasty struct{ *clock }

func (h hasty) Sleep(ctx context.Context, d time.Duration) error { return h.System.Sleep(ctx, d/20) }

// conduct runs a conductor on host a over the lab's hosts until the move ends.
func (l *lab) conduct(uuid string, fail func(operation string, answered bool) error, options migration.Options) migration.Migration {
	l.t.Helper()
	m, err := l.tryConduct(uuid, fail, options)
	l.must("live-migrate", err)
	return m
}

// tryConduct gives the refusal of a move that is not accepted.
func (l *lab) tryConduct(uuid string, fail func(operation string, answered bool) error, options migration.Options) (migration.Migration, error) {
	l.t.Helper()
	return l.tryMove("a", "b", uuid, fail, options)
}

// tryMove moves a guest by a conductor on the host that it leaves.
func (l *lab) tryMove(from, to, uuid string, fail func(operation string, answered bool) error, options migration.Options) (migration.Migration, error) {
	l.t.Helper()
	c := conductor.New(conductor.Config{
		Runtime: hasty{l.rt}, Store: l.hosts[from].store, Local: from, Placement: l.placement,
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			if n := l.hosts[name]; n != nil {
				return breakable{Host: n.Host, fail: fail}, nil
			}
			return nil, fault.New(fault.NotFound, "no peer is named %s", name)
		},
		PollInterval: 40 * time.Millisecond, PollNear: 20 * time.Millisecond, StallTimeout: 200 * time.Millisecond,
		UndoLater: 100 * time.Millisecond, VerbTimeout: 5 * time.Second,
		Jitter: func(time.Duration) time.Duration { return 0 },
	})
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	ended := make(chan error, 1)
	l.rt.Go("conductor", func() { ended <- c.Run(ctx) })
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Errorf("conductor: %v", err)
		}
	}()
	var m migration.Migration
	var refused error
	waitFor(l.t, "the conductor", func() bool {
		m, refused = c.LiveMigrate(ctx, conductor.Request{Instance: uuid, Destination: to, Options: options})
		return refused == nil || !strings.Contains(refused.Error(), "the conductor does not run")
	})
	if refused != nil {
		return m, refused
	}
	waitFor(l.t, "the migration's end", func() bool {
		var err error
		m, err = c.Get(ctx, m.UUID)
		l.must("get", err)
		return m.Done()
	})
	return m, nil
}

func never(string, bool) error { return nil }

func TestStory_CompleteLiveMigration(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	m := l.conduct(v.UUID, never, migration.Options{})
	if m.Status != migration.StatusCompleted {
		t.Fatalf("migration %s: %+v", m.Status, m.Error)
	}
	l.same("after the move", picture{
		"b domains":   {"vm1 running"},
		"b claims":    {v.UUID + " instance bound 1 vcpus, 128 MiB, 1 GiB"},
		"b instances": {"vm1 here"},
		"a files":     {"/images"},
		"b files":     {"/images", "/images/vm1-vda.qcow2"},
		"allocations": {v.UUID + " rp-b DISK_GB,MEMORY_MB,VCPU"},
	})
}

// TestStory_FailureAtEachVerb breaks each verb for good, before and after its
// effect: the guest runs once, and either all is as before or the move is done.
func TestStory_FailureAtEachVerb(t *testing.T) {
	requireQemuImg(t)
	verbs := []string{
		operation.CheckSource.Name, operation.Claim.Name, operation.RecordContext.Name, operation.PreLiveMigration.Name, operation.StartStream.Name,
		operation.Commit.Name, operation.AcceptToken.Name, operation.FinishDestination.Name, operation.CleanUpSource.Name,
	}
	for i, verb := range verbs {
		forward := i >= 5 // from the point of no return on it is tried until it succeeds
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s answered=%v", verb, after), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, "a", "b")
				v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
				l.hosts["b"].put(t, "/images/kept", "stays", 0o644)
				before := l.picture()
				failures := 0
				m := l.conduct(v.UUID, func(v string, answered bool) error {
					if v != verb || answered != after || forward && failures == 2 {
						return nil
					}
					failures++
					return fault.New(fault.Internal, "%s is broken", v)
				}, migration.Options{})
				if failures == 0 {
					t.Fatal("nothing was broken")
				}
				if !forward {
					if m.Outcome == migration.OutcomeCompleted {
						t.Errorf("completed in spite of %s", verb)
					}
					l.state("a", v.UUID, driver.Running)
					l.same("left behind", before)
					return
				}
				if m.Status != migration.StatusCompleted {
					t.Fatalf("migration %s: %+v", m.Status, m.Error)
				}
				l.state("b", v.UUID, driver.Running)
				if p := l.picture(); p["a domains"] != nil || p["a claims"] != nil || len(p["allocations"]) != 1 || len(p["a files"]) != 1 {
					t.Errorf("left behind: %v", p)
				}
			})
		}
	}
}

func TestStory_CutLinkIsNoticedAndUndone(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := l.picture()
	l.fleet.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond, Rate: 256 << 20, DirtyRate: 512 << 20})
	moved := false
	l.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhasePerform && !moved {
			moved = true
			l.fleet.CutData("a", "b")
		}
		return nil
	})
	m := l.conduct(v.UUID, never, migration.Options{StallTimeout: 50 * time.Millisecond})
	if m.Outcome != migration.OutcomeUndone || !moved {
		t.Errorf("outcome %q, cut %v: %+v", m.Outcome, moved, m.Error)
	}
	l.state("a", v.UUID, driver.Running)
	l.same("left behind", before)
}

func TestStory_LostFinishReply(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	before := l.picture()
	l.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhaseFinishReply {
			return fault.New(fault.InDoubt, "the reply was lost")
		}
		return nil
	})
	m := l.conduct(v.UUID, never, migration.Options{})
	if m.Outcome != migration.OutcomeUndone {
		t.Errorf("outcome %q: %+v", m.Outcome, m.Error)
	}
	l.state("a", v.UUID, driver.Running)
	l.same("left behind", before)
}

func TestStory_GuestThatDiesAtTheSourceStaysThere(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	l.fleet.FaultPhase(func(phase, uuid string) error {
		if phase == drivertest.PhasePerform {
			l.hosts["a"].fake.CrashGuest(uuid)
		}
		return nil
	})
	m := l.conduct(v.UUID, never, migration.Options{})
	if m.Outcome != migration.OutcomeUndone {
		t.Errorf("outcome %q: %+v", m.Outcome, m.Error)
	}
	l.fleet.FaultPhase(nil)
	l.state("a", v.UUID, driver.ShutOff)
	l.must("start", l.hosts["a"].Start(t.Context(), "vm1", false))
	if p := l.picture(); p["b claims"] != nil || p["b domains"] != nil {
		t.Errorf("left at the destination: %v", p)
	}
}

// settled checks what must hold whatever went wrong: the guest runs once, with
// its token and claim there and one allocation, and nothing is left elsewhere.
func (l *lab) settled(m migration.Migration, uuid string, before picture) {
	l.t.Helper()
	switch m.Outcome {
	case migration.OutcomeCompleted:
		l.state("b", uuid, driver.Running)
		l.same("after the move", picture{
			"b domains": before["a domains"], "b claims": before["a claims"], "b instances": before["a instances"],
			"b files": before["a files"], "a files": {"/images"},
			"allocations": {strings.Replace(before["allocations"][0], "rp-a", "rp-b", 1)},
		})
	case migration.OutcomeUndone, migration.OutcomeRefused:
		l.state("a", uuid, driver.Running)
		l.same("left behind", before)
	default:
		l.t.Errorf("outcome %q: %+v", m.Outcome, m.Error)
	}
}

// TestStory_ErrorAtEveryHypervisorCall loses each single call to either
// hypervisor in a whole move, once as a request and once as an answer.
func TestStory_ErrorAtEveryHypervisorCall(t *testing.T) {
	requireQemuImg(t)
	for _, on := range []string{"a", "b"} {
		for _, answered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s answered=%v", on, answered), func(t *testing.T) {
				t.Parallel()
				completed, undone := 0, 0
				for nth, reached := 1, true; reached; nth += stride {
					reached = false
					l := newLab(t, "a", "b")
					v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
					before := l.picture()
					var calls atomic.Int64
					name := ""
					lose := func(call, _ string) error {
						if calls.Add(1) != int64(nth) {
							return nil
						}
						reached, name = true, call
						switch call {
						case "Node", "Domains", "Domain", "XML", "Job", "CompletedJob", "CheckCPU", "Events":
							return fault.New(fault.Unavailable, "%s was lost", call)
						case "Arrive":
							return fault.New(fault.Forbidden, "%s was refused", call)
						}
						return fault.New(fault.InDoubt, "%s was lost", call)
					}
					if answered {
						l.hosts[on].fake.FaultReply(lose)
					} else {
						l.hosts[on].fake.Fault(lose)
					}
					m, err := l.tryConduct(v.UUID, never, migration.Options{})
					l.hosts[on].fake.Fault(nil)
					l.hosts[on].fake.FaultReply(nil)
					if err != nil {
						l.same(fmt.Sprintf("refused at call %d, %s", nth, name), before)
						undone++
						continue
					}
					l.settled(m, v.UUID, before)
					if t.Failed() {
						t.Fatalf("call %d, %s: outcome %s, %+v", nth, name, m.Outcome, m.Error)
					}
					if m.Outcome == migration.OutcomeCompleted {
						completed++
					} else {
						undone++
					}
				}
				t.Logf("%d completed, %d undone", completed, undone)
				if stride == 1 && (completed == 0 || undone == 0) {
					t.Error("one of the two outcomes was never seen: the calls were not lost")
				}
			})
		}
	}
}

// TestStory_FailedCommitAtTheDestination fails each commit of the destination's
// ledger, as a full disk would for a moment.
func TestStory_FailedCommitAtTheDestination(t *testing.T) {
	requireQemuImg(t)
	t.Parallel()
	for nth, reached := 1, true; reached; nth++ {
		reached = false
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
		before := l.picture()
		n := 0
		l.hosts["b"].store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
			if n++; n == nth {
				reached = true
				return storetest.Fail
			}
			return storetest.Commit
		})
		m, err := l.tryConduct(v.UUID, never, migration.Options{})
		l.hosts["b"].store.OnCommit(nil)
		l.must("live-migrate", err)
		l.settled(m, v.UUID, before)
		if t.Failed() {
			t.Fatalf("commit %d: outcome %s, %+v", nth, m.Outcome, m.Error)
		}
	}
}
