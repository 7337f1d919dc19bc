package host_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/placementclient"
)

// A conductor learns from both hosts on which providers they count the guest, and
// from any host whether it has anything of it.
func TestVerbs_TellWhereAGuestIsCounted(t *testing.T) {
	l := newLab(t, "a", "b")
	ctx := t.Context()
	a, b := l.hosts["a"], l.hosts["b"]
	v := l.guest("a", "web")
	ref := refFor(v.UUID, 1)
	nothing := func(on *node) bool {
		t.Helper()
		st, err := operation.DestinationStatus.Ask(ctx, on, ref)
		l.must("status", err)
		return st.Nothing
	}
	if nothing(a) || !nothing(b) {
		t.Errorf("a has nothing: %t, b has nothing: %t; it runs on a", nothing(a), nothing(b))
	}
	g, err := operation.Inspect.Ask(ctx, a, migration.Ref{Instance: v.UUID})
	l.must("inspect", err)
	on := func(host string) map[string]placementclient.Resources {
		return map[string]placementclient.Resources{"rp-" + host: {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}}
	}
	if d := cmp.Diff(on("a"), g.Allocations); d != "" {
		t.Errorf("the source counts it on (-want +got):\n%s", d)
	}
	claim, err := operation.Claim.Ask(ctx, b, ref, migration.ClaimRequest{Guest: g, Context: contextFor(g)})
	l.must("claim", err)
	if d := cmp.Diff(on("b"), claim.Allocations); d != "" {
		t.Errorf("the destination counts it on (-want +got):\n%s", d)
	}
	if nothing(b) {
		t.Error("b has nothing of it, and has a claim")
	}
	l.must("abort", operation.AbortClaim.Ask(ctx, b, ref))
	if !nothing(b) {
		t.Error("b has something of it after the claim was aborted")
	}
	d, err := b.Describe(ctx)
	l.must("describe", err)
	if diff := cmp.Diff([]string{"rp-b"}, d.Providers); diff != "" {
		t.Errorf("providers of b (-want +got):\n%s", diff)
	}
	l.must("define a stranger", b.fake.Define(ctx, foreignXML("foreign", "", "")))
	if st, err := operation.DestinationStatus.Ask(ctx, b, refFor("44444444-4444-4444-8444-444444444444", 1)); err != nil || st.Nothing {
		t.Errorf("b has nothing of a domain that it has: %t, %v", st.Nothing, err)
	}
	l.must("destroy", a.fake.Destroy(ctx, v.UUID))
	l.must("undefine", a.fake.Undefine(ctx, v.UUID))
	_, err = operation.Inspect.Ask(ctx, a, migration.Ref{Instance: v.UUID})
	if got := codes(err); fault.KindOf(err) != fault.NotFound || len(got) != 1 || got[0] != migration.ReasonGuestGone {
		t.Errorf("inspect what only the ledger has: %v with %v", err, got)
	}
	_, err = operation.Inspect.Ask(ctx, b, migration.Ref{Instance: v.UUID})
	if got := codes(err); fault.KindOf(err) != fault.NotFound || len(got) != 1 || got[0] != migration.ReasonGuestGone {
		t.Errorf("inspect where it is not: %v with %v", err, got)
	}
}

func contextFor(g migration.Guest) migration.Context {
	return migration.Context{
		Source: "a", Destination: "b", OldResources: g.Resources, NewResources: g.Resources,
		OldFlavor: g.Flavor, NewFlavor: g.Flavor, PowerState: g.PowerState,
	}
}
