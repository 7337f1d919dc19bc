package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
)

// someAccounts are a machine with three users and two groups.
func someAccounts(t *testing.T) accounts {
	t.Helper()
	path := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(path, []byte("root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	find := func(ids map[string]string) func(string) (string, error) {
		return func(name string) (string, error) {
			if id, ok := ids[name]; ok {
				return id, nil
			}
			return "", errors.New("unknown")
		}
	}
	return accounts{
		uid: find(map[string]string{"root": "0", "alice": "1000", "nobody": "65534"}), gid: find(map[string]string{"movers": "2000", "alice": "1000"}), passwd: path,
	}
}

func TestRights_ListsNameNumbersOnce(t *testing.T) {
	g, err := readGrants(config.Rights{
		ShareNothing: []string{"operator:bob", "user:alice", "group:movers", "user:4711"}, Conduct: []string{"host:c.example"},
	}, someAccounts(t))
	if err != nil {
		t.Fatal(err)
	}
	local := func(uid uint32, groups ...uint32) api.Holder {
		return api.Holder{Local: &api.LocalUser{UID: uid, Groups: groups}}
	}
	for _, c := range []struct {
		name  string
		right pki.Right
		who   api.Holder
		want  string
	}{
		{"root", pki.RightShareNothing, local(0, 0), ""},
		{"the user", pki.RightShareNothing, local(1000, 1000), "share_nothing user:alice"},
		{"a user by number whom nobody knows", pki.RightShareNothing, local(4711), "share_nothing user:4711"},
		{"a user of the group", pki.RightShareNothing, local(5, 1, 2, 2000), "share_nothing group:movers"},
		{"a group of the user's number", pki.RightShareNothing, local(5, 1000), ""},
		{"a user of the group's number", pki.RightShareNothing, local(2000, 5), ""},
		{"a local user, a host's right", pki.RightConduct, local(1000, 2000), ""},
		{"a socket of which the kernel says nothing", pki.RightShareNothing, api.Holder{}, ""},
		{"the operator", pki.RightShareNothing, api.Holder{Operator: "bob"}, "share_nothing operator:bob"},
		{"an operator called like the user", pki.RightShareNothing, api.Holder{Operator: "alice"}, ""},
		{"the operator, a host's right", pki.RightConduct, api.Holder{Operator: "bob"}, ""},
		{"the host", pki.RightConduct, api.Holder{Host: "c.example"}, "conduct host:c.example"},
		{"the host, an operator's right", pki.RightShareNothing, api.Holder{Host: "c.example"}, ""},
		{"another host", pki.RightConduct, api.Holder{Host: "d.example"}, ""},
	} {
		if got := g.Given(c.right, c.who); got != c.want {
			t.Errorf("%s: given by %q, want %q", c.name, got, c.want)
		}
	}
	if got := []string{g.UserName(1000), g.UserName(4711)}; !cmp.Equal(got, []string{"alice", ""}) {
		t.Errorf("names %q", got)
	}
}

// TestRights_WhoOperates: an empty list is everybody, and one whose names nobody has nobody.
func TestRights_WhoOperates(t *testing.T) {
	local := api.Holder{Local: &api.LocalUser{UID: 1000, Groups: []uint32{2000}}}
	for _, c := range []struct {
		list         []string
		local, alice bool
	}{
		{nil, true, true},
		{[]string{"operator:alice"}, false, true},
		{[]string{"user:alice"}, true, false},
		{[]string{"group:movers"}, true, false},
		{[]string{"group:moovers"}, false, false},
	} {
		g, _ := readGrants(config.Rights{Operate: c.list, ShareNothing: []string{"user:root"}}, someAccounts(t)) // a name that nobody has is another test's
		if l, o := g.Operates(local), g.Operates(api.Holder{Operator: "alice"}); l != c.local || o != c.alice {
			t.Errorf("%q: the local user %v, the operator %v", c.list, l, o)
		}
		if g.Operates(api.Holder{}) != (c.list == nil) || g.Given(pki.RightShareNothing, local) != "" {
			t.Errorf("%q: one whom nobody knows operates, or a list gives another's right", c.list)
		}
	}
}

func TestRights_ANameThatNobodyHasIsToldAndTheOthersHaveTheirs(t *testing.T) {
	g, err := readGrants(config.Rights{ShareNothing: []string{"user:alcie", "user:root", "group:moovers", "user:nobody", "group:65534"}}, someAccounts(t))
	r := fault.ReasonsOf(err)
	if !errors.Is(err, fault.Invalid) || len(r) != 4 {
		t.Fatalf("%v (%d reasons), want four", err, len(r))
	}
	for i, entry := range []string{"user:alcie", "group:moovers", "user:nobody", "group:65534"} {
		if r[i].Have != entry || r[i].Change == "" {
			t.Errorf("reason %d is of %q, want %q and what to do", i, r[i].Have, entry)
		}
	}
	if g.Given(pki.RightShareNothing, api.Holder{Local: &api.LocalUser{UID: 0}}) == "" {
		t.Error("root, who is named rightly, has nothing")
	}
	if by := g.Given(pki.RightShareNothing, api.Holder{Local: &api.LocalUser{UID: overflowID, Groups: []uint32{overflowID}}}); by != "" {
		t.Errorf("everybody who is nobody is given it by %s", by)
	}
}
