package agent

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

func root(name string) placementclient.ResourceProvider {
	return placementclient.ResourceProvider{UUID: "uuid of " + name, Name: name, RootProviderUUID: "uuid of " + name}
}

func child(name, of string) placementclient.ResourceProvider {
	parent := "uuid of " + of
	return placementclient.ResourceProvider{UUID: "uuid of " + name, Name: name, RootProviderUUID: parent, ParentProviderUUID: parent}
}

func TestCandidates_LikeliestOwnersAreAskedFirst(t *testing.T) {
	providers := []placementclient.ResourceProvider{root("here"), root("a"), root("b"), root("c"), child("c_numa0", "c")}
	on := func(names ...string) placementclient.Allocations {
		held := placementclient.Allocations{Allocations: map[string]placementclient.Resources{}}
		for _, n := range names {
			held.Allocations["uuid of "+n] = placementclient.Resources{"VCPU": 1}
		}
		return held
	}
	for _, tt := range []struct {
		name, source string
		peers        []string
		held         placementclient.Allocations
		want         []candidate
		without      string
	}{
		{"nobody is named: every provider, and nobody's silence matters", "", nil, on(), []candidate{{"a", false}, {"b", false}, {"c", false}}, ""},
		{"the named source first", "b", nil, on(), []candidate{{"b", true}, {"a", false}, {"c", false}}, ""},
		{"a name that is no host of ours is not asked", "elsewhere", nil, on(), []candidate{{"a", false}, {"b", false}, {"c", false}}, ""},
		{"who holds the allocation matters, also by a child", "", nil, on("c_numa0"), []candidate{{"c", true}, {"a", false}, {"b", false}}, ""},
		{"peers matter, also those that Placement does not know", "", []string{"d"}, on(), []candidate{{"d", true}, {"a", false}, {"b", false}, {"c", false}}, ""},
		{"a peer may be the source", "d", []string{"a", "d"}, on("b"), []candidate{{"d", true}, {"b", true}, {"a", true}, {"c", false}}, ""},
		{"never itself", "here", []string{"here"}, on("here"), []candidate{{"a", false}, {"b", false}, {"c", false}}, ""},
		{"nobody waits for a host without Berth", "b", nil, on("c"), []candidate{{"b", true}, {"c", false}, {"a", false}}, "c"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := candidates("here", tt.source, tt.peers, providers, tt.held, func(host string) bool { return host == tt.without })
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(candidate{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTakeFrom_SilenceOfAnOwnerKeepsTheAnswerOpen(t *testing.T) {
	notMine := fault.New(fault.NotFound, "no such guest")
	wentOn := fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "token_elsewhere", Message: "it went on"})
	silent := fault.New(fault.Unavailable, "connection refused")
	keeps := fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "guest_runs_here", Message: "it runs here"})
	for _, tt := range []struct {
		name    string
		answers map[string]error // of a, b and c, asked in this order; a and b matter
		from    string
		asked   string
		kind    fault.Kind
	}{
		{"the first gives it, and nobody else is asked", map[string]error{}, "a", "a", ""},
		{"one after the other", map[string]error{"a": notMine, "b": wentOn}, "c", "abc", ""},
		{"nobody has it", map[string]error{"a": notMine, "b": wentOn, "c": notMine}, "", "abc", ""},
		{"an owner that may be is silent", map[string]error{"a": silent, "b": notMine, "c": notMine}, "", "abc", fault.Unavailable},
		{"silence does not matter when another gives it", map[string]error{"a": silent, "b": notMine}, "c", "abc", ""},
		{"nor that of a provider without an agent", map[string]error{"a": notMine, "b": notMine, "c": silent}, "", "abc", ""},
		{"a host that keeps it ends the question", map[string]error{"a": notMine, "b": keeps}, "", "ab", fault.Forbidden},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := ""
			c, given, err := takeFrom([]candidate{{"a", true}, {"b", true}, {"c", false}}, func(host string) (migration.Commit, error) {
				asked += host
				return migration.Commit{From: host}, tt.answers[host]
			})
			if asked != tt.asked || given != (tt.from != "") || given && c.From != tt.from {
				t.Errorf("asked %s, given %t by %q; want %s, %q", asked, given, c.From, tt.asked, tt.from)
			}
			if (err == nil) != (tt.kind == "") || err != nil && !errors.Is(err, tt.kind) {
				t.Errorf("error %v, want kind %q", err, tt.kind)
			}
		})
	}
}

func TestElsewhere_OwnProvidersAreTheHostsWhateverTheirDepth(t *testing.T) {
	here := &inventory.Tree{Providers: []inventory.Provider{{UUID: "uuid of here"}}, Disk: "uuid of here"}
	providers := []placementclient.ResourceProvider{root("here"), child("here_numa0", "here"), root("a"), child("a_numa0", "a")}
	for name, want := range map[string]bool{"here": false, "here_numa0": false, "a": true, "a_numa0": true, "one that nobody lists": true} {
		held := placementclient.Allocations{Allocations: map[string]placementclient.Resources{"uuid of " + name: {"VCPU": 1}}}
		if got := elsewhere(here, providers, held); got != want {
			t.Errorf("an allocation of %s is elsewhere: %v, want %v", name, got, want)
		}
	}
	if elsewhere(here, providers, placementclient.Allocations{}) {
		t.Error("no allocation is elsewhere")
	}
}
