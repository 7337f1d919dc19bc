package permit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
)

func value(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCheck_WhoMayChangeWhichRecord tries each change as each writer. Host a has instance u, d is
// dead and had instance v, and x is a host with a good certificate and no part in anything.
func TestCheck_WhoMayChangeWhichRecord(t *testing.T) {
	instance := func(uuid, host string, epoch uint64) []byte {
		return value(t, fleet.Instance{UUID: uuid, Host: host, Epoch: epoch})
	}
	records := map[string][]byte{
		"hosts/a": value(t, fleet.Host{Name: "a"}), "hosts/d": value(t, fleet.Host{Name: "d"}), "deaths/d": value(t, fleet.Death{Host: "d", Proof: fleet.ProofFenced}),
		"instances/u": instance("u", "a", 3), "instances/v": instance("v", "d", 5), "instances/torn": []byte("{"), "evacuated/d/m0": value(t, fleet.Evacuated{Source: "d", Migration: "m0"}),
	}
	holders := map[string][]string{"u2": {"a"}, "u3": {}}
	writers := map[string]permit.Writer{"operator": {Operator: true, Words: "operator:alice", Is: func(string) bool { return false }}}
	for _, name := range []string{"a", "d", "x"} {
		writers[name] = permit.Writer{Words: "host:" + name, Is: func(host string) bool { return host == name }}
	}
	fencer := writers["x"]
	fencer.Fences = true
	writers["fencer"] = fencer
	takeOver := []fleet.Change{
		{Key: "instances/v", Value: instance("v", "x", 6)},
		{Key: "evacuated/d/m1", Value: value(t, fleet.Evacuated{Migration: "m1", Instance: "v", Source: "d", To: "x", Epoch: 6})},
	}
	for _, c := range []struct {
		name    string
		changes []fleet.Change
		want    string // the writers that may, beside an operator
	}{
		{"a host's record", []fleet.Change{{Key: "hosts/a", Value: value(t, fleet.Host{Name: "a", Boot: "2"})}}, "a"},
		{"a host's record, deleted", []fleet.Change{{Key: "hosts/a"}}, "a"},
		{"a dead host's record, deleted", []fleet.Change{{Key: "hosts/d"}}, "d fencer"},
		{"a lease", []fleet.Change{{Key: "alive/a", Value: []byte(`"b"`)}}, "a"},
		{"a death", []fleet.Change{{Key: "deaths/a", Value: value(t, fleet.Death{Host: "a"})}}, "fencer"},
		{"a death whose value is of another", []fleet.Change{{Key: "deaths/a", Value: value(t, fleet.Death{Host: "b"})}}, ""},
		{"its own death", []fleet.Change{{Key: "deaths/x", Value: value(t, fleet.Death{Host: "x"})}}, ""},
		{"a death taken away", []fleet.Change{{Key: "deaths/d"}}, "d"},
		{"a death taken away that is not there", []fleet.Change{{Key: "deaths/a"}}, "a d x fencer"},
		{"a return", []fleet.Change{{Key: "hosts/d", Value: value(t, fleet.Host{Name: "d", Boot: "2"})}, {Key: "deaths/d"}}, "d"},
		{"an instance, by its holder", []fleet.Change{{Key: "instances/u", Value: instance("u", "a", 4)}}, "a"},
		{"an instance, back to a lower epoch", []fleet.Change{{Key: "instances/u", Value: instance("u", "a", 2)}}, ""},
		{"an instance, handed over", []fleet.Change{{Key: "instances/u", Value: instance("u", "x", 4)}}, "a"},
		{"an instance, taken by a higher epoch", []fleet.Change{{Key: "instances/u", Value: instance("u", "x", 1<<60)}}, "a"},
		{"an instance, deleted", []fleet.Change{{Key: "instances/u"}}, "a"},
		{"an instance, as it is", []fleet.Change{{Key: "instances/u", Value: records["instances/u"]}}, "a d x fencer"},
		{"an instance, under another's key", []fleet.Change{{Key: "instances/u", Value: instance("v", "a", 4)}}, ""},
		{"a dead host's instance, taken over", takeOver, "a d x fencer"},
		{"a dead host's instance, with no higher epoch", []fleet.Change{{Key: "instances/v", Value: instance("v", "x", 5)}}, "d"},
		{"a dead host's instance, deleted", []fleet.Change{{Key: "instances/v"}}, "d fencer"},
		{"an instance of a host that is declared dead in the same commit", []fleet.Change{
			{Key: "deaths/a", Value: value(t, fleet.Death{Host: "a"})}, {Key: "instances/u", Value: instance("u", "x", 9)},
		}, ""},
		{"an evacuation that was not", takeOver[1:], ""},
		{"an evacuation from a host that lives", []fleet.Change{{Key: "evacuated/a/m1", Value: value(t, fleet.Evacuated{Migration: "m1", Instance: "u", Source: "a", To: "x", Epoch: 3})}}, ""},
		{"an evacuation, cleaned up", []fleet.Change{{Key: "evacuated/d/m0"}}, "d fencer"},
		{"a new instance that Placement counts on its host", []fleet.Change{{Key: "instances/u2", Value: instance("u2", "a", 1)}}, "a"},
		{"a new instance that Placement counts on another", []fleet.Change{{Key: "instances/u2", Value: instance("u2", "x", 1<<60)}}, ""},
		{"a new instance that nobody is counted with", []fleet.Change{{Key: "instances/u3", Value: instance("u3", "x", 1)}}, "x fencer"},
		{"a new instance while Placement says nothing", []fleet.Change{{Key: "instances/u4", Value: instance("u4", "x", 1)}}, ""},
		{"an instance of which nobody can read whose it is", []fleet.Change{{Key: "instances/torn", Value: instance("torn", "x", 1)}}, ""},
		{"an unknown key", []fleet.Change{{Key: "incarnation", Value: []byte("1")}}, ""},
		{"a key that looks like another", []fleet.Change{{Key: "hosts/a/x", Value: []byte("1")}}, ""},
		{"one that is allowed and one that is not", []fleet.Change{{Key: "hosts/a", Value: []byte("1")}, {Key: "hosts/d", Value: []byte("1")}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := append(strings.Fields(c.want), "operator")
			for name, w := range writers {
				err := permit.Check(w, permit.Store{
					Get:     func(key string) ([]byte, bool) { v, ok := records[key]; return v, ok },
					Holders: func(uuid string) ([]string, bool) { h, ok := holders[uuid]; return h, ok },
				}, c.changes)
				if may := slices.Contains(want, name); may != (err == nil) {
					t.Errorf("%s: %v, want it allowed: %v", name, err, may)
				}
				for _, r := range fault.ReasonsOf(err) {
					if !errors.Is(err, fault.Forbidden) || r.Code != permit.ReasonNotYours || r.Message == "" || r.Have != w.Words {
						t.Errorf("%s: %s", name, fmt.Sprintf("%+v", r))
					}
				}
			}
		})
	}
}
