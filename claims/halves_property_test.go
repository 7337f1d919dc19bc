package claims_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"berth/claims"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/topology"
)

// ledger is all that a host's ledger says of one guest.
type ledger struct {
	Instances []claims.Instance
	Claims    []claims.Claim
	Contexts  []claims.MigrationContext
	Commits   map[string]string // by migration: what is said of its token
}

func (b *bench) ledger() ledger {
	l := ledger{Instances: b.Instances(), Claims: b.List(), Contexts: b.Contexts(), Commits: map[string]string{}}
	for _, m := range []string{"m1", "m2"} {
		left, _ := b.Left(m)
		gone, away := b.Committed(m)
		came, _ := b.Came(m)
		l.Commits[m] = fmt.Sprint(left, gone, away, came, b.Accepted(m), b.CommitRefused(m, 1), b.CommitRefused(m, 2), b.CommitRefused(m, 3))
	}
	return l
}

func sameLedger(a, b ledger) string {
	return cmp.Diff(a, b, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(claims.Claim{}, "Lease"))
}

// TestTracker_HalvesAreChangedAsAWhole: two hosts between which one guest is resized and
// taken back, and on either of which it is changed in place, in any order and repeated
// late. Each operation is one commit: killed before it nothing has happened, killed after
// it all has, and asked again it is answered as if it never had been.
func TestTracker_HalvesAreChangedAsAWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := newBench(t, "host-a"), newBench(t, "host-b")
		hosts := []*bench{a, b}
		if _, err := a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}); err != nil {
			t.Fatal(err)
		}
		var commits []migration.Commit
		given := map[string]topology.Resources{} // by claim: what was given never changes
		holder := func() (*bench, uint64) {
			var at *bench
			var epoch uint64
			for _, h := range hosts {
				if i, known := h.Instance("i1"); known && i.Token.State == claims.TokenHere {
					if at != nil {
						t.Fatalf("two owners")
					}
					at, epoch = h, i.Token.Epoch
				}
			}
			return at, epoch
		}
		epoch := uint64(0)

		// do carries an operation out, with a crash before or after its commit or none.
		do := func(t *rapid.T, h *bench, op func() error) {
			before := h.ledger()
			fate := rapid.SampledFrom([]storetest.Outcome{storetest.Commit, storetest.Commit, storetest.Commit, storetest.Fail, storetest.FailWritten}).Draw(t, "fate")
			h.failCommits(fate)
			commit := h.store.Commits()
			err := op()
			tried := h.store.Commits() > commit
			h.healCommits()
			switch {
			case !tried:
				if diff := sameLedger(before, h.ledger()); diff != "" {
					t.Fatalf("changed without a commit (%v):\n%s", err, diff)
				}
				return
			case fate == storetest.Fail:
				h.restart()
				if diff := sameLedger(before, h.ledger()); err == nil || diff != "" {
					t.Fatalf("killed before its commit (%v):\n%s", err, diff)
				}
				return
			case fate == storetest.FailWritten:
				h.restart()
			case err != nil:
				t.Fatalf("a commit that was made is answered by %v", err)
			}
			done := h.ledger()
			if again := op(); again != nil {
				t.Fatalf("done, and asked again: %v", again)
			}
			if diff := sameLedger(done, h.ledger()); diff != "" {
				t.Fatalf("asked again it did more (-once +twice):\n%s", diff)
			}
			h.restart()
			if diff := sameLedger(done, h.ledger()); diff != "" {
				t.Fatalf("not what is on the disk (-told +found):\n%s", diff)
			}
		}
		ends := map[string]bool{} // claims that something has ended on purpose
		noteEnds := func(h *bench, op func() error) func() error {
			return func() error {
				err := op()
				for key := range given {
					if id, mine := strings.CutPrefix(key, h.host+" "); mine {
						if _, there := h.Get(id); !there {
							ends[key] = true
						}
					}
				}
				return err
			}
		}
		host := rapid.SampledFrom(hosts)
		move := func(t *rapid.T) claims.Owner { // between the hosts
			return claims.Owner{Instance: "i1", Migration: "m1", Attempt: rapid.IntRange(1, 3).Draw(t, "attempt"), Kind: claims.KindResize}
		}
		change := func(t *rapid.T) claims.Owner { // on one
			return claims.Owner{Instance: "i1", Migration: "m2", Attempt: rapid.IntRange(1, 2).Draw(t, "attempt"),
				Kind: rapid.SampledFrom([]claims.Kind{claims.KindResize, claims.KindRebuild}).Draw(t, "kind")}
		}
		claim := func(t *rapid.T, h *bench, o claims.Owner, source, destination string) {
			r := claims.Request{Owner: o, Resources: topology.Resources{VCPUs: o.Attempt, MemoryMB: 512 * int64(o.Attempt), DiskGB: 5}, Context: &claims.MigrationContext{
				Migration: o.Migration, Instance: "i1", Source: source, Destination: destination,
			}}
			do(t, h, func() error { _, err := h.Claim(ctx, r); return err })
		}
		other := func(h *bench) *bench {
			if h == a {
				return b
			}
			return a
		}
		on := func(f func(h *bench, o claims.Owner) error) func(*rapid.T) {
			return func(t *rapid.T) {
				h, o := host.Draw(t, "host"), move(t)
				do(t, h, func() error { return f(h, o) })
			}
		}
		changed := func(f func(h *bench, o claims.Owner) error) func(*rapid.T) {
			return func(t *rapid.T) {
				h, o := host.Draw(t, "host"), change(t)
				do(t, h, func() error { return f(h, o) })
			}
		}
		surrender := func(t *rapid.T) {
			h, o := host.Draw(t, "host"), move(t)
			do(t, h, func() error {
				c, err := h.ReleaseHeldOwnership(ctx, refOf(o, "hand_over"), o.Kind, other(h).host, "")
				if err == nil && !slices.Contains(commits, c) {
					commits = append(commits, c)
				}
				return err
			})
		}
		accept := func(t *rapid.T) {
			if len(commits) == 0 {
				t.Skip("nothing was given")
			}
			c := rapid.SampledFrom(commits).Draw(t, "commit")
			h := hosts[slices.IndexFunc(hosts, func(h *bench) bool { return h.host == c.To })]
			do(t, h, func() error { return h.AcceptToken(ctx, c, guest("i1")) })
		}
		await := on(func(h *bench, o claims.Owner) error {
			_, err := h.AwaitReturn(ctx, refOf(o, fmt.Sprint("await-", o.Attempt)), o.Kind)
			return err
		})
		bind := on(func(h *bench, o claims.Owner) error { _, err := h.Bind(ctx, o); return err })
		exchange := changed(func(h *bench, o claims.Owner) error {
			_, err := h.Exchange(ctx, refOf(o, fmt.Sprint("apply-", o.Attempt)), o.Kind)
			return err
		})
		// The usual orders, so that deep states are reached; any part may fail.
		whole := func(t *rapid.T) {
			from, _ := holder()
			if from == nil {
				t.Skip("on its way")
			}
			to, o := other(from), move(t)
			_ = from.RecordContext(ctx, refOf(o, "record_context"), claims.MigrationContext{Migration: "m1", Instance: "i1", Source: from.host, Destination: to.host})
			_, _ = to.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: &claims.MigrationContext{Migration: "m1", Instance: "i1", Source: from.host, Destination: to.host}})
			_, _ = to.Arrive(ctx, o)
			_, _ = to.AwaitReturn(ctx, refOf(o, ""), o.Kind)
			if rapid.Bool().Draw(t, "stops") {
				return
			}
			if c, err := from.ReleaseHeldOwnership(ctx, refOf(o, "hand_over"), o.Kind, to.host, ""); err == nil {
				commits = append(commits, c)
				_ = to.AcceptToken(ctx, c, guest("i1"))
				_, _ = to.Bind(ctx, o)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"whole move": whole, "whole move2": whole,
			"whole change": func(t *rapid.T) {
				h, _ := holder()
				if h == nil {
					t.Skip("on its way")
				}
				o := change(t)
				_, _ = h.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: &claims.MigrationContext{Migration: "m2", Instance: "i1", Source: h.host, Destination: h.host}})
				_, _ = h.Hold(ctx, o)
				_, _ = h.Exchange(ctx, refOf(o, ""), o.Kind)
			},
			"claim there": func(t *rapid.T) {
				h, _ := holder()
				if h == nil {
					t.Skip("on its way")
				}
				o := move(t)
				claim(t, other(h), o, h.host, other(h).host)
			},
			"claim here": func(t *rapid.T) {
				if h, _ := holder(); h != nil {
					claim(t, h, change(t), h.host, h.host)
				}
			},
			"arrive":     on(func(h *bench, o claims.Owner) error { _, err := h.Arrive(ctx, o); return err }),
			"surrender":  surrender,
			"surrender2": surrender,
			"accept":     accept,
			"accept2":    accept,
			"bind":       bind,
			"bind2":      bind,
			"refuse":     on(func(h *bench, o claims.Owner) error { return h.RefuseCommit(ctx, refOf(o, "")) }),
			"await":      await,
			"await2":     await,
			"cancel return": on(func(h *bench, o claims.Owner) error {
				return h.CancelReturn(ctx, refOf(o, fmt.Sprint("await-", o.Attempt)), o.Kind)
			}),
			"record": func(t *rapid.T) {
				h, o := host.Draw(t, "host"), move(t)
				do(t, h, func() error {
					return h.RecordContext(ctx, refOf(o, "record_context"), claims.MigrationContext{Migration: "m1", Instance: "i1", Source: h.host, Destination: other(h).host})
				})
			},
			"drop":     on(func(h *bench, o claims.Owner) error { return h.DropContext(ctx, refOf(o, "")) }),
			"exchange": exchange, "exchange2": exchange,
			"hold": changed(func(h *bench, o claims.Owner) error { _, err := h.Hold(ctx, o); return err }),
			"exchange back": changed(func(h *bench, o claims.Owner) error {
				_, err := h.ExchangeBack(ctx, refOf(o, fmt.Sprint("apply-", o.Attempt)), o.Kind)
				return err
			}),
			"abort": func(t *rapid.T) {
				h, o := host.Draw(t, "host"), rapid.SampledFrom([]claims.Owner{move(t), change(t)}).Draw(t, "owner")
				do(t, h, noteEnds(h, func() error { return h.Abort(ctx, refOf(o, "other-step")) })) // the claim's own would bar the rest
			},
			"release": func(t *rapid.T) {
				h, o := host.Draw(t, "host"), rapid.SampledFrom([]claims.Owner{move(t), change(t)}).Draw(t, "owner")
				do(t, h, noteEnds(h, func() error { return h.Release(ctx, o) }))
			},
			"confirmed": func(t *rapid.T) {
				if h, _ := holder(); h != nil {
					do(t, h, func() error { return h.DropContext(ctx, migration.Ref{Migration: "m1", Instance: "i1", Attempt: 9}) })
				}
			},
			"forget": func(t *rapid.T) {
				h := host.Draw(t, "host")
				do(t, h, noteEnds(h, func() error { return h.Forget(ctx, "i1") }))
			},
			"": func(t *rapid.T) {
				at, now := holder()
				if now < epoch && at != nil {
					t.Fatalf("epoch %d after %d", now, epoch)
				}
				epoch = max(epoch, now)
				there := map[string]bool{}
				for _, h := range hosts {
					var sum topology.Resources
					own, others := 0, 0
					for _, c := range h.List() {
						key := h.host + " " + c.ID
						there[key] = true
						sum = sum.Max(c.Resources)
						if was, known := given[key]; known && was != c.Resources {
							t.Fatalf("claim %s was given %s and has %s", key, was, c.Resources)
						}
						given[key] = c.Resources
						if c.Owner.Kind == claims.KindInstance {
							own++
						} else {
							others++
						}
						if c.Owner.Migration != "" && c.State == claims.Bound {
							t.Fatalf("%s: a bound claim of %+v", h.host, c.Owner)
						}
						if own > 1 || others > 1 {
							t.Fatalf("%s: %d claims of its own, %d of moves", h.host, own, others)
						}
						if c.Owner.Kind == claims.KindInstance && c.State != claims.Bound {
							t.Fatalf("%s: what the guest uses is %s", h.host, c.State)
						}
					}
					if u := h.Usage(); u.Used != sum {
						t.Fatalf("%s: used %s, want the larger of each amount, %s", h.host, u.Used, sum)
					}
					if audit := h.Audit(); len(audit.Differences)+len(audit.Doubled) != 0 {
						t.Fatalf("%s: %+v", h.host, audit)
					}
					if h == at && own+others == 0 {
						t.Fatalf("%s has the token and no claim", h.host)
					}
				}
				for key := range given {
					if !there[key] && !ends[key] {
						t.Fatalf("claim %s is gone, and nothing has ended it", key)
					}
				}
			},
		})
	})
}
