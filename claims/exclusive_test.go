package claims_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/topology"
)

// guests draws what guests ask for: pinned, mixed, shared, floating; huge pages
// or none; devices or none. Small, so that many fit, and some do not.
func guests() *rapid.Generator[claims.Request] {
	return rapid.Custom(func(t *rapid.T) claims.Request {
		var r claims.Request
		switch rapid.IntRange(0, 3).Draw(t, "devices") {
		case 2:
			r.PCI = vfs(rapid.IntRange(1, 2).Draw(t, "vfs"))
		case 3:
			r.PCI = pfs(1)
		}
		if rapid.IntRange(0, 4).Draw(t, "floats") == 0 {
			r.Resources = topology.Resources{VCPUs: 1, MemoryMB: rapid.Int64Range(1, 1500).Draw(t, "memory")}
			return r
		}
		page := rapid.SampledFrom([]topology.PageRequest{huge, huge, topology.PagesDefault, topology.PagesSmall, topology.PagesAny}).Draw(t, "page")
		guest := &topology.GuestTopology{}
		next := 0
		for range rapid.IntRange(1, 2).Draw(t, "cells") {
			c := topology.GuestCell{PageSize: page, MemoryMB: 2 * rapid.Int64Range(1, 700).Draw(t, "memory")}
			dedicated, floating := rapid.IntRange(0, 3).Draw(t, "dedicated"), rapid.IntRange(0, 2).Draw(t, "shared")
			if dedicated+floating == 0 {
				dedicated = 1
			}
			for range dedicated {
				c.DedicatedVCPUs = append(c.DedicatedVCPUs, next)
				next++
			}
			for range floating {
				c.SharedVCPUs = append(c.SharedVCPUs, next)
				next++
			}
			guest.Cells = append(guest.Cells, c)
		}
		policy := topology.CPUPolicyMixed
		switch shared, dedicated := guest.CPUs(); {
		case dedicated == 0:
			policy = topology.CPUPolicyShared
		case shared == 0:
			policy = topology.CPUPolicyDedicated
		}
		for i := range guest.Cells {
			guest.Cells[i].CPUPolicy = policy
		}
		if policy != topology.CPUPolicyShared && rapid.Bool().Draw(t, "emulator") {
			guest.Emulator = topology.EmulatorIsolate
		}
		return request(claims.Owner{}, guest, r.PCI...)
	})
}

// lawful holds a host against the laws: nothing exclusive is held twice, and
// what is counted from moment to moment is what the claims add up to.
func (b *bench) lawful(t *rapid.T) {
	list := b.List()
	if err := (hostState{b.capacity, list}).broken(); err != nil {
		t.Fatalf("%s: %v", b.host, err)
	}
	if d := b.Audit().Differences; len(d) != 0 {
		t.Fatalf("%s: %v", b.host, d)
	}
	u := b.Usage()
	if u.Free.VCPUs < 0 || u.Free.PCPUs < 0 || u.Free.MemoryMB < 0 || u.Free.DiskGB < 0 {
		t.Fatalf("%s: free %s", b.host, u.Free)
	}
	for _, c := range b.Machine().Cells {
		pinned := topology.CPUSet(nil)
		for _, claim := range list {
			for _, a := range claim.Assignment.Cells {
				pinned = pinned.Union(a.Exclusive())
			}
		}
		if got := pinned.Intersection(c.Dedicated); !got.SameAs(c.Pinned.Intersection(c.Dedicated)) {
			t.Fatalf("%s cell %d: %s counted, the claims hold %s", b.host, c.ID, c.Pinned, got)
		}
	}
}

// kept notes what each claim was given, and requires that it never changes.
type kept map[string]topology.Assignment

func (k kept) note(t *rapid.T, c claims.Claim) {
	before, known := k[c.ID]
	if !known {
		k[c.ID] = c.Assignment
		return
	}
	if fmt.Sprint(before) != fmt.Sprint(c.Assignment) {
		t.Fatalf("claim %s was given %+v and has %+v", c.ID, before, c.Assignment)
	}
}

func TestTracker_NothingExclusiveIsEverHeldTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBenchWith(t, "h", cells)
		outcome := storetest.Commit
		watch := func() {
			b.store.OnCommit(func(int, []store.Mutation) storetest.Outcome { return outcome })
		}
		watch()
		given := kept{}
		names := rapid.SampledFrom([]string{"i1", "i2", "i3", "i4", "i5", "i6"})
		owners := rapid.Custom(func(t *rapid.T) claims.Owner {
			i := names.Draw(t, "instance")
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				return moveOwner(i, i+"-in", 1)
			case 1:
				return resizeOwner(i, i+"-resize")
			}
			return instanceOwner(i)
		})
		verb := func(f func(claims.Owner) (claims.Claim, error)) func(*rapid.T) {
			return func(t *rapid.T) {
				if c, err := f(owners.Draw(t, "owner")); err == nil {
					given.note(t, c)
				}
			}
		}
		claim := func(t *rapid.T) {
			r := guests().Draw(t, "guest")
			r.Owner = owners.Draw(t, "owner")
			r.Lease = time.Duration(rapid.IntRange(1, 60).Draw(t, "lease")) * time.Second
			c, err := b.Claim(ctx, r)
			if errors.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			given.note(t, c)
			again, err := b.Claim(ctx, r)
			if err != nil || again.ID != c.ID {
				t.Fatalf("repeated: %s, %v; want %s", again.ID, err, c.ID)
			}
			given.note(t, again)
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": claim, "claim2": claim, "claim3": claim,
			"arrive": verb(func(o claims.Owner) (claims.Claim, error) { return b.Arrive(ctx, o) }),
			"bind":   verb(func(o claims.Owner) (claims.Claim, error) { return b.Bind(ctx, o) }),
			"bind2":  verb(func(o claims.Owner) (claims.Claim, error) { return b.Bind(ctx, o) }),
			"hold":   verb(func(o claims.Owner) (claims.Claim, error) { return b.Hold(ctx, o) }),
			"exchange": verb(func(o claims.Owner) (claims.Claim, error) {
				return b.Exchange(ctx, refOf(resizeOwner(o.Instance, o.Instance+"-resize"), ""), claims.KindResize)
			}),
			"exchange back": verb(func(o claims.Owner) (claims.Claim, error) {
				return b.ExchangeBack(ctx, refOf(resizeOwner(o.Instance, o.Instance+"-resize"), ""), claims.KindResize)
			}),
			"abort": func(t *rapid.T) {
				o := owners.Draw(t, "owner")
				_ = b.Abort(ctx, refOf(o, fmt.Sprint("claim-", rapid.IntRange(0, 1).Draw(t, "step")))) // the claim's own step would bar the owner for good
			},
			"release": func(t *rapid.T) { _ = b.Release(ctx, owners.Draw(t, "owner")) },
			"adopt": func(t *rapid.T) {
				// Whatever is found: cores, pages and devices that others have too.
				i := names.Draw(t, "instance")
				pins := rapid.SliceOfNDistinct(rapid.IntRange(0, 15), 0, 3, rapid.ID[int]).Draw(t, "cpus")
				cell := topology.AssignedCell{HostCell: topology.CellID(rapid.IntRange(0, 2).Draw(t, "cell")), MemoryMB: 2 * rapid.Int64Range(1, 1500).Draw(t, "memory")}
				if rapid.Bool().Draw(t, "huge") {
					cell.PageSize = topology.PageSize2M
				}
				for v, cpu := range pins {
					cell.Pins = append(cell.Pins, topology.Pin{VCPU: v, CPU: cpu})
				}
				f := claims.Found{Resources: topology.Resources{VCPUs: 1, PCPUs: len(pins), MemoryMB: cell.MemoryMB}}
				f.Assignment.Cells = []topology.AssignedCell{cell}
				if rapid.Bool().Draw(t, "device") {
					f.Assignment.Devices = []topology.AssignedDevice{{Address: rapid.SampledFrom(cells.Devices).Draw(t, "which").Address}}
				}
				if c, err := b.Adopt(ctx, guest(i), f); err == nil {
					given[c.ID] = c.Assignment // Adopt follows the guest
				} else if errors.Is(err, fault.DoesNotFit) {
					t.Fatalf("adoption refused: %v", err)
				}
			},
			"expire": func(t *rapid.T) {
				b.clock.advance(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
				_, _ = b.Expire(ctx)
			},
			"crash": func(t *rapid.T) {
				outcome = storetest.Commit
				if rapid.Bool().Draw(t, "reboot") {
					b.clock.reboot()
				}
				b.restart()
				watch()
				given = kept{} // a commit reported as failed may be on the disk
				for _, c := range b.List() {
					given.note(t, c)
				}
			},
			"disk": func(t *rapid.T) {
				outcome = rapid.SampledFrom([]storetest.Outcome{storetest.Commit, storetest.Commit, storetest.Fail, storetest.FailWritten}).Draw(t, "outcome")
			},
			"read again": func(t *rapid.T) { b.SetCapacity(cells) },
			"": func(t *rapid.T) {
				for _, c := range b.List() {
					given.note(t, c)
				}
				b.lawful(t)
			},
		})
	})
}

// Ten guests are moved around between three hosts, in any order, several moves
// at a time, any of them given up before it ends and any host's agent killed.
func TestTracker_TenGuestsMovedAroundNeverShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type move struct {
			from, to *bench
			owner    claims.Owner
			request  claims.Request
			arriving bool
		}
		var hosts []*bench
		for _, name := range []string{"host-a", "host-b", "host-c"} {
			hosts = append(hosts, newBenchWith(t, name, cells))
		}
		at := map[string]*bench{}
		asks := map[string]claims.Request{}
		moving := map[string]*move{}
		attempts := 0
		for n := range 10 {
			name := fmt.Sprint("guest-", n)
			r := guests().Draw(t, name)
			r.Owner = instanceOwner(name)
			for i := range hosts {
				h := hosts[(n+i)%len(hosts)]
				if _, err := h.Claim(ctx, r); err == nil {
					if _, err := h.Bind(ctx, r.Owner); err != nil {
						t.Fatal(err)
					}
					at[name], asks[name] = h, r
					break
				}
			}
		}
		under := func(t *rapid.T) (string, *move) {
			if len(moving) == 0 {
				t.Skip("nothing moves")
			}
			var all []string
			for name := range moving {
				all = append(all, name)
			}
			slices.Sort(all)
			name := rapid.SampledFrom(all).Draw(t, "guest")
			return name, moving[name]
		}
		begin := func(t *rapid.T) {
			name := fmt.Sprint("guest-", rapid.IntRange(0, 9).Draw(t, "guest"))
			to := rapid.SampledFrom(hosts).Draw(t, "to")
			if at[name] == nil || at[name] == to || moving[name] != nil {
				t.Skip("it cannot move there now")
			}
			attempts++
			m := &move{from: at[name], to: to, request: asks[name]}
			m.owner = moveOwner(name, fmt.Sprint("move-", attempts), 1)
			m.request.Owner = m.owner
			if _, err := to.Claim(ctx, m.request); err == nil {
				moving[name] = m
			} else if !errors.Is(err, fault.DoesNotFit) {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": begin, "begin2": begin,
			"arrive": func(t *rapid.T) {
				_, m := under(t)
				if _, err := m.to.Arrive(ctx, m.owner); err != nil {
					t.Fatal(err)
				}
				m.arriving = true
			},
			"finish": func(t *rapid.T) {
				name, m := under(t)
				if !m.arriving {
					t.Skip("it has not begun")
				}
				before, _ := m.to.ByOwner(m.owner)
				c, err := m.to.Bind(ctx, m.owner)
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(before.Assignment) != fmt.Sprint(c.Assignment) {
					t.Fatalf("%s came to %+v and was given %+v", name, c.Assignment, before.Assignment)
				}
				m.to.lawful(t) // both sides hold it for a moment
				if err := m.from.Release(ctx, instanceOwner(name)); err != nil {
					t.Fatal(err)
				}
				at[name] = m.to
				delete(moving, name)
			},
			"give up": func(t *rapid.T) {
				name, m := under(t)
				if err := m.to.Abort(ctx, refOf(m.owner, "")); err != nil {
					t.Fatal(err)
				}
				delete(moving, name)
			},
			"crash": func(t *rapid.T) { rapid.SampledFrom(hosts).Draw(t, "host").restart() },
			"": func(t *rapid.T) {
				held := 0
				for _, h := range hosts {
					h.lawful(t)
					if doubled := h.Audit().Doubled; len(doubled) != 0 {
						t.Fatalf("%s: %v", h.host, doubled)
					}
					held += len(h.List())
				}
				if held != len(at)+len(moving) {
					t.Fatalf("%d claims for %d guests of which %d move", held, len(at), len(moving))
				}
			},
		})
	})
}
