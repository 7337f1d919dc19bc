package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/fleet"
	"berth/fleet/embedded"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/placement"
	"berth/placementclient"
)

// asHost sends a host's requests to the Placement of a bench as a TLS server hands them on that has
// verified the host's certificate.
type asHost struct {
	bench *fleetBench
	cert  *x509.Certificate
}

func (h asHost) RoundTrip(q *http.Request) (*http.Response, error) {
	if h.cert != nil {
		q.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{h.cert}}
	}
	w := httptest.NewRecorder()
	h.bench.served.Load().ServeHTTP(w, q)
	return w.Result(), nil
}

// newOwnedBench is a bench whose records are those of a real embedded Placement with a database. It
// knows each host by its certificate, and lets it write what package permit allows it.
func newOwnedBench(t *testing.T, names ...string) *fleetBench {
	t.Helper()
	b := emptyFleetBench(t)
	ca, err := pki.Init(t.TempDir(), "test", time.Now(), false)
	b.must(err)
	certs := map[string]*x509.Certificate{}
	for _, name := range names {
		certs[name], err = ca.IssueHost(t.TempDir(), name, nil, time.Now())
		b.must(err)
	}
	b.client = func(name string) fleet.Store {
		c, err := embedded.NewClient(embedded.Options{URL: "http://placement", Token: "admin", Transport: asHost{b, certs[name]}})
		b.must(err)
		return c
	}
	b.serve(ownedPlacement(filepath.Join(t.TempDir(), "placement.db")))
	b.hosts(names...)
	return b
}

func ownedPlacement(db string) placement.Options {
	return placement.Options{
		Listen: "127.0.0.1:0", DB: db, Logger: slog.New(slog.DiscardHandler),
		Beside: func(ctx context.Context, db placement.Store, rt runtime.Runtime, log *slog.Logger) (placement.Beside, error) {
			return embedded.Open(ctx, db, rt, log)
		},
	}
}

// moved gives an instance of host-a that has moved to host-b, and that both hosts knew of before.
func (b *fleetBench) moved() (id string, c migration.Commit) {
	b.Helper()
	id = b.guest("host-a", "web")
	b.round("host-a")
	b.round("host-b")
	c = b.moveAway(id, "host-a", "host-b")
	b.arrive(c, "host-a")
	return id, c
}

// moveAway takes an instance from a host by a move, as far as the hosts' ledgers are concerned.
func (b *fleetBench) moveAway(id, from, to string) migration.Commit {
	b.Helper()
	c, err := b.up[from].tracker.ReleaseOwnership(b.Context(), migration.Ref{Migration: "from-" + from, Instance: id, Attempt: 1, Step: "commit"}, to)
	b.must(err)
	return c
}

// briefly is a record without its description.
func briefly(in fleet.Instance) string {
	return fmt.Sprintf("of %s with epoch %d, described by it: %t", in.Host, in.Epoch, describes(in))
}

// arrive has the instance of a commit on its new host, and nothing of it left at its source but
// what the fleet's records say.
func (b *fleetBench) arrive(c migration.Commit, from string) {
	b.Helper()
	ctx, src, dst := b.Context(), b.up[from], b.up[c.To]
	doc, err := b.fakes.Host(from).XML(ctx, c.Instance, driver.Persistent)
	b.must(err)
	inst, _ := src.tracker.Instance(c.Instance)
	claim, _ := src.tracker.ByOwner(claims.Owner{Instance: c.Instance, Kind: claims.KindInstance})
	inst.Token = claims.Token{Epoch: c.Epoch - 1}
	_, err = dst.tracker.Adopt(ctx, inst, claims.Found{Resources: claim.Resources})
	b.must(err)
	b.must(b.fakes.Host(c.To).Define(ctx, doc))
	b.must(b.fakes.Host(c.To).Start(ctx, c.Instance, false))
	for _, d := range b.domains(from) {
		if d.UUID == c.Instance && d.Active() {
			b.must(b.fakes.Host(from).Destroy(ctx, c.Instance))
		}
	}
	b.must(b.fakes.Host(from).Undefine(ctx, c.Instance))
	had, err := b.place.Allocations(ctx, c.Instance)
	b.must(err)
	had.Allocations = map[string]placementclient.Resources{dst.uuid: {"VCPU": 1, "MEMORY_MB": 64}}
	b.must(b.place.PutAllocations(ctx, c.Instance, had))
	b.must(src.tracker.Release(ctx, claim.Owner))
	b.must(src.tracker.Forget(ctx, c.Instance))
	if got, _ := dst.tracker.Instance(c.Instance); got.Token.Epoch != c.Epoch {
		b.Fatalf("token on %s: %+v, want epoch %d", c.To, got.Token, c.Epoch)
	}
}

// TestKeeper_StoreWithOwners_ARecordIsHandedOverAndNeverDeleted: the source forgets the instance
// before its keeper's next round. The destination's higher epoch alone gives it no right: it waits,
// `berth status` says for whom, and the record is there all the time.
func TestKeeper_StoreWithOwners_ARecordIsHandedOverAndNeverDeleted(t *testing.T) {
	t.Parallel()
	b := newOwnedBench(t, "host-a", "host-b")
	id, c := b.moved()

	k := b.up["host-b"].keeper
	b.round("host-b")
	if in := b.record(id); in.Host != "host-a" {
		t.Fatalf("taken from host-a by a higher epoch: %s", briefly(in))
	}
	if cond, _ := k.condition(); cond.Health != "ok" {
		t.Errorf("told before the source could hand it over: %+v", cond)
	}
	k.owned[id].busy, k.owned[id].next = b.rt.Boot().Since-keepPatient, 0
	b.round("host-b")
	if cond, _ := k.condition(); !strings.Contains(cond.Detail, "host-a has the instance") {
		t.Errorf("the host that is waited for is not named: %+v", cond)
	}

	// A record that nobody can read, of an instance that host-a has deleted, is before it in order.
	const torn = "00000000-0000-4000-8000-000000000000"
	b.must(b.client("").Commit(t.Context(), nil, fleet.Change{Key: fleet.InstancesPrefix + torn, Value: []byte("{")}))
	a := b.up["host-a"].keeper
	a.written[torn] = 1
	a.round(t.Context())
	if a.err == nil {
		t.Error("the record that cannot be read is not told of")
	}
	if in := b.record(id); in.Host != "host-b" || in.Epoch != c.Epoch || len(in.Guest) == 0 {
		t.Fatalf("handed over: %s, want host-b with epoch %d", briefly(in), c.Epoch)
	}
	k.owned[id].next = 0
	b.round("host-b")
	if in := b.record(id); in.Host != "host-b" || in.Epoch != c.Epoch || !describes(in) {
		t.Errorf("written by its new host: %s", briefly(in))
	}
	if cond, _ := k.condition(); cond.Health != "ok" {
		t.Errorf("condition %+v", cond)
	}
	a.round(t.Context())
	if in := b.record(id); in.Host != "host-b" || !describes(in) {
		t.Errorf("the source wrote again: %s", briefly(in))
	}
}

// TestKeeper_StoreWithOwners_ASourceThatDiesBeforeItHandedOver: its death gives its successor the right.
func TestKeeper_StoreWithOwners_ASourceThatDiesBeforeItHandedOver(t *testing.T) {
	t.Parallel()
	b := newOwnedBench(t, "host-a", "host-b")
	id, c := b.moved()
	b.round("host-b")
	if in := b.record(id); in.Host != "host-a" {
		t.Fatalf("record %s", briefly(in))
	}
	_, err := fleet.New(b.client(""), b.rt).DeclareDead(t.Context(), fleet.Death{Host: "host-a", Proof: fleet.ProofOperator, By: "operator:o", Because: "it is scrap"})
	b.must(err)
	b.up["host-b"].keeper.owned[id].next = 0
	b.round("host-b")
	if in := b.record(id); in.Host != "host-b" || in.Epoch != c.Epoch || !describes(in) {
		t.Errorf("record %s, want host-b with epoch %d", briefly(in), c.Epoch)
	}
	// It comes back, and has nothing to say about it.
	b.round("host-a")
	if in := b.record(id); in.Host != "host-b" {
		t.Errorf("record %s", briefly(in))
	}
}

// TestKeeper_StoreWithOwners_RestoredRecordsAreHandedOverAgain: the backup has the instance on host-a,
// which has given it to host-b, and that to host-c. Nobody but its holder by the record may write it.
func TestKeeper_StoreWithOwners_RestoredRecordsAreHandedOverAgain(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{"moved once": "host-b", "moved twice": "host-c", "moved and back": "host-a"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newOwnedBench(t, "host-a", "host-b", "host-c")
			id := b.guest("host-a", "web")
			b.all(2)
			backup, db := filepath.Join(t.TempDir(), "backup.json"), filepath.Join(t.TempDir(), "placement.db")
			b.must(placement.Backup(t.Context(), b.url, nil, backup))

			c := b.moveAway(id, "host-a", "host-b")
			b.arrive(c, "host-a")
			if last != "host-b" {
				c = b.moveAway(id, "host-b", last)
				b.arrive(c, "host-b")
			}
			b.all(3)
			if in := b.record(id); in.Host != last || in.Epoch != c.Epoch {
				t.Fatalf("record %s, want %s with epoch %d", briefly(in), last, c.Epoch)
			}

			b.must(placement.Restore(t.Context(), backup, db, slog.New(slog.DiscardHandler)))
			b.serve(ownedPlacement(db))
			if in := b.record(id); in.Host != "host-a" || in.Epoch != 1 {
				t.Fatalf("restored: %s", briefly(in))
			}
			b.all(6)
			if in := b.record(id); in.Host != last || in.Epoch != c.Epoch || !describes(in) {
				t.Errorf("record %s, want %s with epoch %d", briefly(in), last, c.Epoch)
			}
			for host, a := range b.up {
				if cond, _ := a.keeper.condition(); a.keeper.unproven || cond.Health != "ok" {
					t.Errorf("%s: missing %v, condition %+v", host, a.keeper.missing, cond)
				}
			}
		})
	}
}

// all is so many rounds of all hosts, with nothing put off to a later moment.
func (b *fleetBench) all(rounds int) {
	b.Helper()
	for range rounds {
		for _, host := range slices.Sorted(maps.Keys(b.up)) {
			k := b.up[host].keeper
			k.asks, k.trust.others, k.trust.learned = 0, 0, 0
			for _, rec := range k.owned {
				rec.next = 0
			}
			k.round(b.Context())
		}
	}
}

// TestKeeper_StoreWithOwners_RestoredToBeforeAnEvacuation: the host that was evacuated comes back and
// knows of nothing. Neither host believes the other's word; the remedy that status shows ends it.
func TestKeeper_StoreWithOwners_RestoredToBeforeAnEvacuation(t *testing.T) {
	t.Parallel()
	b := newOwnedBench(t, "host-a", "host-b")
	ctx, dead := t.Context(), fleet.Death{Host: "host-a", Proof: fleet.ProofOperator, By: "operator:o", Because: "it looked so"}
	id := b.guest("host-a", "web")
	b.all(2)
	backup, db := filepath.Join(t.TempDir(), "backup.json"), filepath.Join(t.TempDir(), "placement.db")
	b.must(placement.Backup(ctx, b.url, nil, backup))
	declare := func() uint64 {
		records := fleet.New(b.client(""), b.rt)
		_, err := records.DeclareDead(ctx, dead)
		b.must(err)
		_, revision, err := records.Dead(ctx, "host-a")
		b.must(err)
		return revision
	}
	death := declare()
	records := fleet.New(b.client("host-b"), b.rt)
	_, revision, err := records.Instance(ctx, id)
	b.must(err)
	_, err = records.TakeOver(ctx, fleet.TakeOver{Instance: id, Migration: returning, Attempt: 1, Source: "host-a", To: "host-b", Epoch: 1, Record: revision, Death: death})
	b.must(err)
	_, err = b.up["host-b"].tracker.Own(ctx, claims.Instance{UUID: id, Name: "web", Token: claims.Token{Epoch: 1}})
	b.must(err)
	b.must(placement.Restore(ctx, backup, db, slog.New(slog.DiscardHandler)))
	b.serve(ownedPlacement(db))

	b.all(4)
	if in := b.record(id); in.Host != "host-a" || in.Epoch != 1 {
		t.Fatalf("record %s", briefly(in))
	}
	k := b.up["host-b"].keeper
	for host, a := range b.up {
		if !a.keeper.unproven {
			t.Errorf("%s believes the store", host)
		}
	}
	k.owned[id].busy = b.rt.Boot().Since - keepPatient
	b.all(1)
	if c, _ := k.condition(); !slices.ContainsFunc(c.Reasons, func(r fault.Reason) bool {
		return strings.Contains(r.Change, "stop its agent") && strings.Contains(r.Change, "berth host declare-dead host-a")
	}) {
		t.Errorf("no remedy: %+v", c)
	}
	declare() // while the agent of host-a is stopped
	k.owned[id].next = 0
	k.round(ctx)
	if in := b.record(id); in.Host != "host-b" || in.Epoch != 2 {
		t.Errorf("record %s, want that of host-b", briefly(in))
	}
	b.all(3)
	if inst, _ := b.up["host-a"].tracker.Instance(id); inst.Token.State == claims.TokenHere {
		t.Errorf("host-a has not given way: %+v", inst.Token)
	}
	if got := b.running("host-a"); len(got) > 0 {
		t.Errorf("runs on host-a: %v", got)
	}
	for host, a := range b.up {
		if a.keeper.unproven {
			t.Errorf("%s still misses %v", host, a.keeper.missing)
		}
	}
}
