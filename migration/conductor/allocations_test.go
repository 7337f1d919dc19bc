package conductor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/halves"
	"berth/migration/task"
	"berth/placementclient"
)

// doubled makes the instance hold a destination too, as tools do that know of no
// migration consumer.
func doubled(host string) func(*world) {
	return func(w *world) {
		held := w.placement.consumers[guestUUID]
		held.Allocations = halves.Sum(held.Allocations, w.hosts[host].place(guestSize))
		if disk := held.Allocations[sharedDisk]; disk != nil {
			disk["DISK_GB"] = guestSize.DiskGB
		}
	}
}

// TestLive_MovesADoubledAllocation: by a crash or a lost message at any point, two
// consumers while it moves and one at the end.
func TestLive_MovesADoubledAllocation(t *testing.T) {
	for i, sc := range scenarios {
		// c is no part of the move; b is its destination.
		half := map[string]string{"completes": "b", "second candidate takes it": "b", "hook fails": "b", "aborted in the stream": "b"}[sc.name]
		if half == "" {
			continue
		}
		for seed := uint64(0); seed < 4; seed += uint64(min(stride, 4)) {
			reference, _ := play(t, i, seed, faults{}, doubled(half))
			reference.report(sc.name)
			for point := int(seed); point < reference.points && !t.Failed(); point += 4 * stride {
				one := map[int]bool{point: true}
				for how, f := range map[string]faults{"crash": {crash: one}, "lost request": {requests: one}, "lost answer": {answers: one}} {
					w, m := play(t, i, seed, f, doubled(half))
					if !slices.ContainsFunc(w.trace, func(s string) bool { return strings.Contains(s, "allocations") }) || m.Outcome == migration.OutcomeRefused {
						continue // before the swap nothing is touched, what was doubled neither
					}
					w.report(fmt.Sprintf("%s: %s at point %d (%s), seed %d", sc.name, how, point, reference.trace[point], seed))
				}
			}
		}
	}
}

// TestLive_ADoubledDiskOfASharingProviderIsProvenByItsHost: nobody answers for the sharing
// provider itself, whichever of the two is asked first.
func TestLive_ADoubledDiskOfASharingProviderIsProvenByItsHost(t *testing.T) {
	for _, other := range []string{"c", "z"} { // asked before it, and after it
		for _, half := range []string{other, "b"} {
			t.Run(other+" beside, "+half+" doubled", func(t *testing.T) {
				w := newWorld(t, 2, script{named: "b", hosts: []string{"a", "b", other}, want: completed}, faults{}) // disks of their own
				w.hosts[half].disk = sharedDisk
				doubled(half)(w)
				w.run()
				w.report("moved")
			})
		}
	}
}

// TestLive_AtTheEndTheSourcesHalfGoesWithItsSharedDisk is a move that another tool's
// doubling has overtaken: the migration holds nothing.
func TestLive_AtTheEndTheSourcesHalfGoesWithItsSharedDisk(t *testing.T) {
	w := newWorld(t, 2, script{want: completed}, faults{})
	w.hosts["a"].disk = sharedDisk
	w.placement.consumers[guestUUID].Allocations = w.hosts["a"].place(guestSize)
	crashed(t, w)
	delete(w.placement.consumers, moveUUID)
	w.placement.consumers[guestUUID].Allocations = halves.Sum(w.hosts["a"].place(guestSize), w.hosts["b"].place(guestSize))
	w.asked = true
	w.run()
	w.report("finished")
}

func TestLive_ADoubledAllocationThatCannotBeProvenIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*world)
		codes   []string
	}{
		"something is there": {func(w *world) { w.hosts["c"].claims["other"] = &simClaim{state: "arriving"} }, []string{"allocation_elsewhere", "guest_there"}},
		"the host is silent": {func(w *world) { w.hosts["c"].cut = true }, []string{"allocation_elsewhere", "host_silent"}},
		"the guest is there": {func(w *world) { w.hosts["c"].domain = &simDomain{"running", "booted"} }, []string{"allocation_elsewhere", "guest_there"}},
		"it is nobody's":     {func(w *world) { delete(w.hosts, "c") }, []string{"allocation_elsewhere", "provider_unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2, script{named: "b", hosts: []string{"a", "b", "c"}}, faults{})
			doubled("c")(w)
			was := w.placement.consumers[guestUUID].Clone()
			tt.prepare(w)
			var m migration.Migration
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				if _, err := c.LiveMigrate(context.Background(), conductor.Request{Instance: guestUUID, Migration: moveUUID, Destination: "b"}); err != nil {
					t.Fatal(err)
				}
				m = until(t, p, c, "over", migration.Migration.Done)
			})
			if got := codes(m.Err()); m.Outcome != migration.OutcomeRefused || !slices.Equal(got, tt.codes) {
				t.Errorf("%s with reasons %v, want refused with %v", m.Outcome, got, tt.codes)
			}
			if d := cmp.Diff(&was, w.placement.consumers[guestUUID]); d != "" {
				t.Errorf("its allocation was touched (-was +is):\n%s", d)
			}
		})
	}
}

// TestLive_UndoAsksTheSourceFirst has a move fail after its swap, while the source
// says what has become of the guest.
func TestLive_UndoAsksTheSourceFirst(t *testing.T) {
	gone := fault.Refuse(fault.NotFound, "", fault.Reason{Code: migration.ReasonGuestGone, Message: "no such domain"})
	for _, tt := range []struct {
		name    string
		say     error
		once    bool // then the guest is there again, or gone
		deleted bool // its consumer, by the control plane
		holds   string
	}{
		{"here", nil, false, false, "a"},
		{"here, its allocation deleted", nil, false, true, "a"},
		{"gone", gone, false, false, ""},
		{"gone, and deleted", gone, false, true, ""},
		{"one wrong answer", gone, true, false, "a"},
		{"elsewhere", fault.Refuse(fault.Forbidden, "", fault.Reason{Code: migration.ReasonTokenElsewhere, Message: "it went to c"}), false, false, "b"},
		{"elsewhere, its allocation deleted", fault.Refuse(fault.Forbidden, "", fault.Reason{Code: migration.ReasonTokenElsewhere, Message: "it went to c"}), false, true, ""},
		{"silent for a while", fault.New(fault.Unavailable, "libvirt does not answer"), true, false, "a"},
		{"silent for a while, then gone", fault.New(fault.Unavailable, "libvirt does not answer"), true, false, ""},
		{"a disk that cannot be read", fault.New(fault.NotFound, "disk vda: no such file"), false, false, "a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, script{hookFails: true}, faults{})
			said := 0
			w.inspect = func() error {
				if w.placement.consumers[moveUUID] == nil {
					return nil // before the swap
				}
				if said++; said == 1 && tt.deleted {
					delete(w.placement.consumers, guestUUID)
				}
				if tt.once && said > 1 {
					if tt.holds == "" {
						return gone
					}
					return nil
				}
				return tt.say
			}
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				if _, err := c.LiveMigrate(context.Background(), asked(conductor.Request{}, "b")); err != nil {
					t.Fatal(err)
				}
				if m := until(t, p, c, "over", migration.Migration.Done); m.Outcome != migration.OutcomeUndone {
					t.Errorf("outcome %s (%v)", m.Outcome, m.Error)
				}
			})
			if said == 0 {
				t.Fatal("the source was not asked")
			}
			want := map[string]halves.Amounts{}
			if tt.holds != "" {
				want[guestUUID] = w.hosts[tt.holds].place(guestSize)
			}
			got := map[string]halves.Amounts{}
			for consumer, a := range w.placement.consumers {
				got[consumer] = a.Allocations
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("consumers at the end (-want +got):\n%s", d)
			}
		})
	}
}

// TestLive_TheSourceChangesItsShapeBeforeTheSwap: a reporter that has read of no move yet
// reshapes the host while one begins.
func TestLive_TheSourceChangesItsShapeBeforeTheSwap(t *testing.T) {
	w := newWorld(t, 2, script{want: undone}, faults{}) // flat hosts
	w.placement.swapping = func() {
		a, held := w.hosts["a"], w.placement.consumers[guestUUID]
		a.pages, w.placement.lost = a.provider+"_pages", map[string]string{a.provider: placementclient.ClassMemoryMB}
		held.Allocations = a.place(guestSize)
		held.ConsumerGeneration = placementclient.Generation(*held.ConsumerGeneration + 1)
	}
	w.run()
	w.report("reshaped")
}

// crashed runs a migration until it streams, and kills its conductor.
func crashed(t *testing.T, w *world) {
	t.Helper()
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.LiveMigrate(context.Background(), move); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
	})
}

// TestConductor_GoesOnWithTheJournalOfAnOlderAgent: one that wrote nothing of
// providers, and no output of the swap.
func TestConductor_GoesOnWithTheJournalOfAnOlderAgent(t *testing.T) {
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprintf("abort %t", abort), func(t *testing.T) {
			w := newWorld(t, 2, script{}, faults{}) // flat hosts
			w.oldAgents = true
			crashed(t, w)
			for key, raw := range w.store.data["tasks"] {
				var st map[string]any
				if err := json.Unmarshal(raw, &st); err != nil {
					t.Fatal(err)
				}
				for _, s := range st["steps"].([]any) {
					step := s.(map[string]any)
					switch out, _ := step["output"].(map[string]any); step["name"] {
					case migration.StepSwapAllocations:
						delete(step, "output")
					case migration.StepInspectSource:
						delete(out, "found")
						for _, part := range []string{"guest", "source"} {
							delete(out[part].(map[string]any), "allocations")
							delete(out[part].(map[string]any), "providers")
						}
					case migration.StepCheckDestination:
						delete(out["destination"].(map[string]any), "providers")
					}
				}
				w.store.data["tasks"][key], _ = json.Marshal(st)
			}
			if abort {
				w.script.abortAfter = time.Nanosecond
			}
			w.script.want = map[bool][]migration.Outcome{false: completed, true: undone}[abort]
			w.asked = true
			if abort {
				w.store.data["aborts"] = map[string][]byte{moveUUID: []byte("true")}
				w.script.abortAfter = 0
			}
			w.run()
			w.report("older journal")
		})
	}
}

// TestConductor_GivesAMigrationWithoutAUUIDOne takes over a move that another tool has
// begun under a number, with a doubled allocation.
func TestConductor_GivesAMigrationWithoutAUUIDOne(t *testing.T) {
	const number = "42"
	for _, abort := range []bool{false, true} {
		for crash := range 14 {
			t.Run(fmt.Sprintf("abort %t, crash at %d", abort, crash), func(t *testing.T) {
				w := newWorld(t, 2, script{}, faults{})
				crashed(t, w)
				called := func(s string) string { return strings.ReplaceAll(s, moveUUID, number) }
				for bucket, all := range w.store.data {
					renamed := map[string][]byte{}
					for key, raw := range all {
						renamed[called(key)] = []byte(called(string(raw)))
					}
					w.store.data[bucket] = renamed
				}
				var record map[string]any
				if err := json.Unmarshal(w.store.data["migrations"][number], &record); err != nil {
					t.Fatal(err)
				}
				record["migration"].(map[string]any)["uuid"] = "" // as it was before there were any
				w.store.data["migrations"][number], _ = json.Marshal(record)
				for _, h := range w.hosts {
					rename(h.claims, called)
					rename(h.contexts, called)
					rename(h.tombs, called)
					rename(h.started, called)
					rename(h.made, called)
					if h.job != nil {
						h.job.ref.Migration = number
					}
				}
				delete(w.placement.consumers, moveUUID)
				w.placement.consumers[guestUUID].Allocations = halves.Sum(w.hosts["a"].place(guestSize), w.hosts["b"].place(guestSize))
				if abort {
					w.store.data["aborts"] = map[string][]byte{number: []byte("true")}
				}
				if crash > 0 {
					w.faults.crash = map[int]bool{w.points + crash - 1: true}
				}
				var m migration.Migration
				w.restart(func(c *conductor.Conductor) bool {
					list, _ := c.List(context.Background())
					if len(list) == 1 {
						m = list[0]
					}
					return len(list) == 1 && m.Done()
				})
				if u, err := uuid.Parse(m.UUID); err != nil || u.String() != m.UUID {
					t.Errorf("the migration is called %q", m.UUID)
				}
				owner := "b"
				if abort {
					owner = "a"
				}
				if _, kept := w.store.data["migrations"][m.UUID]; !kept || len(w.store.data["migrations"]) != 1 {
					t.Errorf("records %v, want one of %s", slices.Collect(maps.Keys(w.store.data["migrations"])), m.UUID)
				}
				if n := len(w.store.data["tasks"]) + len(w.store.data["aborts"]); n > 0 {
					t.Errorf("%d journals and aborts are left", n)
				}
				w.placement.verify(w.hosts[owner], guestSize)
				w.report("a migration without a uuid")
			})
		}
	}
}

func rename[V any](m map[string]V, f func(string) string) {
	for _, key := range slices.Collect(maps.Keys(m)) {
		if v, to := m[key], f(key); to != key {
			delete(m, key)
			m[to] = v
		}
	}
}

func TestMigration_KeepsWhatTheHostsDoNotShare(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{}) // trees of two providers, and a shared disk
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.LiveMigrate(context.Background(), move); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		want := map[string]placementclient.Resources{"rp-a": {"VCPU": 2}, "rp-a_pages": {"MEMORY_MB": 1024}}
		if d := cmp.Diff(want, w.placement.consumers[moveUUID].Allocations); d != "" {
			t.Errorf("the migration holds (-want +got):\n%s", d)
		}
		told, ok := c.Halves(m.UUID)
		if !ok || !halves.Same(told.Migration.Allocations, want) || !halves.Same(told.Instance.Allocations, w.hosts["b"].place(guestSize)) {
			t.Errorf("it is told to hold %+v, %t", told, ok)
		}
		i := slices.IndexFunc(m.Steps, func(s migration.StepRecord) bool { return s.Name == migration.StepSwapAllocations })
		if i < 0 || m.Steps[i].State != task.StepEnded {
			t.Errorf("steps %+v", m.Steps)
		}
		until(t, p, c, "done", migration.Migration.Done)
	})
}
