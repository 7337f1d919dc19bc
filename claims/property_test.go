package claims_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/topology"
)

// The model knows of a host what answers have told, and nothing else: after any
// order of verbs, failed commits, crashes and reboots the ledger must be what
// was answered.
type model struct {
	*bench
	claims map[string]claims.Claim // by uuid
	tokens map[string]claims.Token // by instance
	buried map[string]int          // by migration: the highest attempt whose claim was aborted

	outcome storetest.Outcome
	// doubt holds the instances whose last commit was reported as failed but may
	// be on the disk. A crash may bring it to light, the next commit ends it.
	doubt map[string]bool
}

// fleet is three hosts that hand tokens to each other.
type fleet struct {
	hosts   []*model
	commits []migration.Commit // all that were ever answered, to be sent again and late
	gave    map[string]bool    // migration/attempt: ReleaseOwnership succeeded
	kept    map[string]bool    // migration/attempt: RefuseCommit succeeded
}

func newFleet(t *rapid.T) *fleet {
	f := &fleet{gave: map[string]bool{}, kept: map[string]bool{}}
	for _, name := range []string{"host-a", "host-b", "host-c"} {
		m := &model{bench: newBench(t, name), claims: map[string]claims.Claim{}, tokens: map[string]claims.Token{},
			buried: map[string]int{}, doubt: map[string]bool{}}
		m.watch()
		f.hosts = append(f.hosts, m)
	}
	return f
}

func (m *model) watch() {
	m.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
		if m.outcome == storetest.Commit {
			clear(m.doubt)
		}
		return m.outcome
	})
}

// answered notes what an error leaves open.
func (m *model) answered(t *rapid.T, instance string, err error) bool {
	if err == nil {
		return true
	}
	if fault.KindOf(err) == fault.Internal {
		t.Fatalf("%s: %v", m.host, err)
	}
	if errors.Is(err, storetest.ErrCommit) && m.outcome == storetest.FailWritten {
		m.doubt[instance] = true
	}
	return false
}

// crash kills the agent, and the host with it when it reboots.
func (f *fleet) crash(t *rapid.T, m *model, reboot bool) {
	m.outcome = storetest.Commit
	doubt := m.doubt
	m.doubt = map[string]bool{}
	if reboot {
		m.clock.reboot()
		for id, c := range m.claims {
			if c.State == claims.Pending {
				delete(m.claims, id)
			}
		}
	}
	m.restart()
	m.watch()
	for instance := range doubt {
		for id, c := range m.claims {
			if c.Owner.Instance == instance {
				delete(m.claims, id)
			}
		}
		for _, c := range m.ByInstance(instance) {
			m.claims[c.ID] = c
		}
		delete(m.tokens, instance)
		if i, ok := m.Instance(instance); ok {
			m.tokens[instance] = i.Token
		}
		for _, migration := range migrationsOf(instance) {
			if c, ok := m.Committed(migration); ok {
				f.commits = append(f.commits, c)
			}
		}
	}
}

// given notes the answer of a ReleaseOwnership, which may be the old one again.
func (f *fleet) given(m *model, c migration.Commit) {
	f.commits = append(f.commits, c)
	f.gave[fmt.Sprint(m.host, c.Migration, c.Attempt)] = true
	if k := m.tokens[c.Instance]; k.State == claims.TokenHere && k.Epoch < c.Epoch {
		m.tokens[c.Instance] = claims.Token{Epoch: c.Epoch, State: claims.TokenSurrendered, Holder: c.To, Migration: c.Migration}
	}
}

// check holds the ledgers against what was answered, and the fleet against the
// laws.
func (f *fleet) check(t *rapid.T) {
	owners := map[string]string{}
	for _, m := range f.hosts {
		got := map[string]claims.Claim{}
		var sum topology.Resources
		for _, c := range m.List() {
			got[c.ID] = c
			sum = sum.Add(c.Resources)
		}
		if diff := cmp.Diff(m.claims, got, cmpopts.IgnoreFields(claims.Claim{}, "Lease")); diff != "" {
			t.Fatalf("%s: claims (-answered +found):\n%s", m.host, diff)
		}
		u := m.Usage()
		if u.Used != sum {
			t.Fatalf("%s: used %s, the sum of claims is %s", m.host, u.Used, sum)
		}
		tokens := map[string]claims.Token{}
		for _, i := range m.Instances() {
			tokens[i.UUID] = i.Token
			if i.Token.State != claims.TokenHere {
				continue
			}
			if other, two := owners[i.UUID]; two {
				t.Fatalf("two owners of %s: %s and %s", i.UUID, other, m.host)
			}
			owners[i.UUID] = m.host
		}
		if diff := cmp.Diff(m.tokens, tokens); diff != "" {
			t.Fatalf("%s: tokens (-answered +found):\n%s", m.host, diff)
		}
	}
	for attempt := range f.gave {
		if f.kept[attempt] {
			t.Fatalf("both ReleaseOwnership and RefuseCommit succeeded for %s", attempt)
		}
	}
}

// granted requires that a new claim fits beside what was there.
func granted(t *rapid.T, before claims.Usage, c claims.Claim) {
	free := func(total, reserved, used int64, ratio float64) int64 {
		return int64(math.Floor(float64(total-reserved)*ratio)) - used
	}
	k := before.Capacity
	for _, x := range [][2]int64{
		{int64(c.Resources.VCPUs), free(int64(k.Total.VCPUs), int64(k.Reserved.VCPUs), int64(before.Used.VCPUs), k.CPURatio)},
		{c.Resources.MemoryMB, free(k.Total.MemoryMB, k.Reserved.MemoryMB, before.Used.MemoryMB, k.RAMRatio)},
		{c.Resources.DiskGB, free(k.Total.DiskGB, k.Reserved.DiskGB, before.Used.DiskGB, k.DiskRatio)},
	} {
		if x[0] > 0 && x[0] > x[1] {
			t.Fatalf("claim %s granted on %+v", c.Resources, before)
		}
	}
}

func migrationsOf(instance string) []string { return []string{instance + "-m1", instance + "-m2"} }

func TestTracker_LedgerIsWhatWasAnswered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(t)
		hosts := rapid.SampledFrom(f.hosts)
		instances := rapid.SampledFrom([]string{"i1", "i2", "i3"})
		attempts := rapid.IntRange(1, 3)
		amounts := rapid.SampledFrom([]topology.Resources{small, {VCPUs: 2, MemoryMB: 1500, DiskGB: 5}, {VCPUs: 3, MemoryMB: 512, DiskGB: 0}})
		owner := func(t *rapid.T) claims.Owner {
			i := instances.Draw(t, "instance")
			if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
				return instanceOwner(i)
			}
			return moveOwner(i, rapid.SampledFrom(migrationsOf(i)).Draw(t, "migration"), attempts.Draw(t, "attempt"))
		}
		move := func(t *rapid.T) claims.Owner {
			i := instances.Draw(t, "instance")
			return moveOwner(i, rapid.SampledFrom(migrationsOf(i)).Draw(t, "migration"), attempts.Draw(t, "attempt"))
		}
		stateVerb := func(name string, verb func(*model) func(owner claims.Owner) (claims.Claim, error)) func(*rapid.T) {
			return func(t *rapid.T) {
				m := hosts.Draw(t, "host")
				o := owner(t)
				if c, err := verb(m)(o); m.answered(t, o.Instance, err) {
					m.claims[c.ID] = c
				}
			}
		}
		bindTo := func(f func(m *model, o claims.Owner) (claims.Claim, error)) func(*model) func(claims.Owner) (claims.Claim, error) {
			return func(m *model) func(claims.Owner) (claims.Claim, error) {
				return func(o claims.Owner) (claims.Claim, error) { return f(m, o) }
			}
		}
		claim := func(t *rapid.T) {
			m, o := hosts.Draw(t, "host"), owner(t)
			before := m.Usage()
			r := claims.Request{Owner: o, Resources: amounts.Draw(t, "resources"), Lease: time.Duration(rapid.IntRange(1, 60).Draw(t, "lease")) * time.Second}
			if o.Migration != "" {
				r.Context = &claims.MigrationContext{Migration: o.Migration, Instance: o.Instance, NewResources: r.Resources}
			}
			c, err := m.Claim(ctx, r)
			if !m.answered(t, o.Instance, err) {
				return
			}
			if o.Migration != "" && m.buried[o.Migration] >= o.Attempt {
				t.Fatalf("%s: attempt %d of %s was aborted and claims again", m.host, o.Attempt, o.Migration)
			}
			if _, known := m.claims[c.ID]; !known {
				granted(t, before, c)
			}
			m.claims[c.ID] = c
		}
		surrender := func(t *rapid.T) {
			m, o, to := hosts.Draw(t, "host"), move(t), hosts.Draw(t, "to")
			c, err := m.ReleaseOwnership(ctx, refOf(o, ""), to.host)
			if !m.answered(t, o.Instance, err) {
				return
			}
			f.given(m, c)
		}
		accept := func(t *rapid.T) {
			if len(f.commits) == 0 {
				t.Skip("no commit yet")
			}
			m, c := hosts.Draw(t, "host"), rapid.SampledFrom(f.commits).Draw(t, "commit")
			if m.answered(t, c.Instance, m.AcceptToken(ctx, c, guest(c.Instance))) {
				m.tokens[c.Instance] = claims.Token{Epoch: c.Epoch, State: claims.TokenHere, Holder: m.host, Migration: c.Migration}
			}
		}
		dropInstance := func(m *model, instance string) {
			delete(m.tokens, instance)
			for id, c := range m.claims {
				if c.Owner == instanceOwner(instance) {
					delete(m.claims, id)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim":  claim,
			"claim2": claim, // drawn more often
			"renew":  stateVerb("renew", bindTo(func(m *model, o claims.Owner) (claims.Claim, error) { return m.Renew(ctx, o) })),
			"arrive": stateVerb("arrive", bindTo(func(m *model, o claims.Owner) (claims.Claim, error) { return m.Arrive(ctx, o) })),
			"bind":   stateVerb("bind", bindTo(func(m *model, o claims.Owner) (claims.Claim, error) { return m.Bind(ctx, o) })),
			"hold":   stateVerb("hold", bindTo(func(m *model, o claims.Owner) (claims.Claim, error) { return m.Hold(ctx, o) })),
			"abort": func(t *rapid.T) {
				m, o := hosts.Draw(t, "host"), owner(t)
				if !m.answered(t, o.Instance, m.Abort(ctx, refOf(o, ""))) {
					return
				}
				for id, c := range m.claims {
					if c.Owner == o {
						delete(m.claims, id)
					}
				}
				if o.Migration != "" {
					m.buried[o.Migration] = max(m.buried[o.Migration], o.Attempt)
				}
			},
			"release": func(t *rapid.T) {
				m, o := hosts.Draw(t, "host"), owner(t)
				if m.answered(t, o.Instance, m.Release(ctx, o)) {
					for id, c := range m.claims {
						if c.Owner == o {
							delete(m.claims, id)
						}
					}
				}
			},
			"adopt": func(t *rapid.T) {
				// A guest is created once in the fleet; from then on its token moves.
				m, i := hosts.Draw(t, "host"), instances.Draw(t, "instance")
				for _, other := range f.hosts {
					if _, known := other.tokens[i]; (known || other.doubt[i]) && other != m {
						t.Skip("it lives elsewhere")
					}
				}
				for _, c := range f.commits {
					if c.Instance == i && m.tokens[i].State != claims.TokenHere {
						t.Skip("its token may be on its way")
					}
				}
				if c, err := m.Adopt(ctx, guest(i), claims.Found{Resources: amounts.Draw(t, "resources")}); m.answered(t, i, err) {
					m.claims[c.ID] = c
					if m.tokens[i].Epoch == 0 {
						m.tokens[i] = claims.Token{Epoch: 1, State: claims.TokenHere, Holder: m.host}
					}
				}
			},
			"surrender": surrender,
			"refuse commit": func(t *rapid.T) {
				m, o := hosts.Draw(t, "host"), move(t)
				if m.answered(t, o.Instance, m.RefuseCommit(ctx, refOf(o, ""))) {
					f.kept[fmt.Sprint(m.host, o.Migration, o.Attempt)] = true
					if m.tokens[o.Instance].State != claims.TokenHere {
						t.Fatalf("%s keeps %s, whose token is not there", m.host, o.Instance)
					}
				}
			},
			"accept": accept,
			"whole move": func(t *rapid.T) {
				// The usual order, so that deep states are reached; any part may fail.
				to, o := hosts.Draw(t, "to"), move(t)
				c, err := to.Claim(ctx, claims.Request{Owner: o, Resources: small})
				if to.answered(t, o.Instance, err) {
					to.claims[c.ID] = c
				}
				if c, err := to.Arrive(ctx, o); to.answered(t, o.Instance, err) {
					to.claims[c.ID] = c
				}
				for _, m := range f.hosts {
					if m.tokens[o.Instance].State != claims.TokenHere || m == to {
						continue
					}
					commit, err := m.ReleaseOwnership(ctx, refOf(o, ""), to.host)
					if !m.answered(t, o.Instance, err) {
						continue
					}
					f.given(m, commit)
					if to.answered(t, o.Instance, to.AcceptToken(ctx, commit, guest(o.Instance))) {
						to.tokens[o.Instance] = claims.Token{Epoch: commit.Epoch, State: claims.TokenHere, Holder: to.host, Migration: o.Migration}
					}
					break
				}
				if c, err := to.Bind(ctx, o); to.answered(t, o.Instance, err) {
					to.claims[c.ID] = c
				}
			},
			"forget": func(t *rapid.T) {
				m, i := hosts.Draw(t, "host"), instances.Draw(t, "instance")
				if m.answered(t, i, m.Forget(ctx, i)) && m.tokens[i].State == claims.TokenSurrendered {
					dropInstance(m, i)
				}
			},
			"expire": func(t *rapid.T) {
				m := hosts.Draw(t, "host")
				m.clock.advance(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
				gone, err := m.Expire(ctx)
				for _, c := range gone {
					if c.State != claims.Pending {
						t.Fatalf("%s: a claim %s expired", m.host, c.State)
					}
					delete(m.claims, c.ID)
				}
				if err != nil {
					for _, i := range []string{"i1", "i2", "i3"} {
						m.answered(t, i, err)
					}
				}
			},
			"crash":  func(t *rapid.T) { f.crash(t, hosts.Draw(t, "host"), false) },
			"reboot": func(t *rapid.T) { f.crash(t, hosts.Draw(t, "host"), true) },
			"disk": func(t *rapid.T) {
				hosts.Draw(t, "host").outcome = rapid.SampledFrom([]storetest.Outcome{
					storetest.Commit, storetest.Commit, storetest.Fail, storetest.FailWritten}).Draw(t, "outcome")
			},
			"capacity": func(t *rapid.T) {
				c := capacity
				c.Total.VCPUs = rapid.IntRange(1, 8).Draw(t, "vcpus")
				c.RAMRatio = float64(rapid.IntRange(50, 200).Draw(t, "ram")) / 100
				hosts.Draw(t, "host").SetCapacity(c)
			},
			"": f.check,
		})
	})
}
