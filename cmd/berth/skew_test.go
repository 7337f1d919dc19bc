package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
)

func TestSkewOf_NamesWhoIsBehind(t *testing.T) {
	for _, tt := range []struct {
		name   string
		runs   string // HOST=VERSION; a host without one does not answer
		newest string
		behind []string
		apart  bool
		none   bool
	}{
		{name: "all the same", runs: "a=0.9.0 b=0.9.0 c=", none: true},
		{name: "nobody answers", runs: "a= b=", none: true},
		{name: "one version apart", runs: "a=0.9.0 b=0.10.0 c=0.10.1", newest: "0.10.1", behind: []string{"a", "b"}},
		{name: "two versions apart", runs: "a=0.8.4 b=0.10.0", newest: "0.10.0", behind: []string{"a"}, apart: true},
		{name: "over a major version", runs: "a=0.9.0 b=1.0.0", newest: "1.0.0", behind: []string{"a"}},
		{name: "a build from a work tree", runs: "a=0.9.0 b=devel+0123456789ab"},
		{name: "a build before a release", runs: "a=0.9.0 b=0.10.0-rc1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var hosts []api.HostEntry
			for _, one := range strings.Fields(tt.runs) {
				name, version, _ := strings.Cut(one, "=")
				hosts = append(hosts, api.HostEntry{Name: name, Version: version, Reachable: version != ""})
			}
			got := skewOf(hosts)
			if got == nil || tt.none {
				if (got == nil) != tt.none {
					t.Fatalf("%+v", got)
				}
				return
			}
			if got.Newest != tt.newest || got.Apart != tt.apart || !cmp.Equal(got.Behind, tt.behind) {
				t.Errorf("%+v", got)
			}
			var b strings.Builder
			got.lines(&b)
			if said := strings.Contains(b.String(), "to do: upgrade to "+tt.newest); said != (tt.newest != "") {
				t.Errorf("said:\n%s", b.String())
			}
		})
	}
}
