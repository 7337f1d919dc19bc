package api_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
	"berth/migration/operation"
)

// fakeRights is a configuration.
type fakeRights struct {
	operators, hosts []string
	users, groups    []uint32
	relays           []string // hosts
	// operate are the words of those whom the list has; nil for everybody.
	operate []string

	mu   sync.Mutex
	seen *api.LocalUser // who asked last
}

func (f *fakeRights) Given(right pki.Right, who api.Holder) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = who.Local
	switch {
	case right == pki.RightRelay:
		if slices.Contains(f.relays, who.Host) {
			return "relay host:" + who.Host
		}
	case right == pki.RightConduct:
		if slices.Contains(f.hosts, who.Host) {
			return "conduct host:" + who.Host
		}
	case slices.Contains(f.operators, who.Operator) && who.Operator != "":
		return "share_nothing operator:" + who.Operator
	case who.Local != nil && (slices.Contains(f.users, who.Local.UID) || slices.ContainsFunc(who.Local.Groups, func(g uint32) bool { return slices.Contains(f.groups, g) })):
		return "share_nothing a local user"
	}
	return ""
}

func (f *fakeRights) Operates(who api.Holder) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.operate == nil || slices.Contains(f.operate, "operator:"+who.Operator) || who.Local != nil && slices.Contains(f.operate, fmt.Sprintf("user:%d", who.Local.UID))
}

// give makes it another's; nil for an empty one.
func (f *fakeRights) give(other *fakeRights) {
	if other == nil {
		other = &fakeRights{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.operators, f.hosts, f.users, f.groups, f.operate, f.relays = other.operators, other.hosts, other.users, other.groups, other.operate, other.relays
}

func (f *fakeRights) UserName(uid uint32) string {
	if uid == uint32(os.Getuid()) {
		return "me"
	}
	return ""
}

// TestRights_EveryCallerRightAndPlace asks for a share-nothing move's confirmation, and
// for a first look at a guest of another move, as each kind of caller who was given the
// right in each place, or is named wrongly there.
func TestRights_EveryCallerRightAndPlace(t *testing.T) {
	ours := newCA(t, "ours")
	me, mine := uint32(os.Getuid()), uint32(os.Getgid())
	operator := func(rights ...pki.Right) *pki.Identity { return ours.operator("alice", rights...) }
	host := func(rights ...pki.Right) *pki.Identity { return ours.host("host-c", rights...) }
	// berth pki refuses to sign this; another CA may not.
	wrong := foreignCertificates(t, ours)
	for _, c := range []struct {
		name    string
		id      *pki.Identity // nil for the local socket
		as      string        // a host's name
		given   *fakeRights
		confirm string // what gives share-nothing, by the log; empty for a refusal
		conduct string // what gives conduct; empty for a refusal
		want    []string
	}{
		{name: "local user, nothing", want: []string{"user:me", "share-nothing", `share_nothing = ["user:me"]`, "berth pki operator NAME --right share-nothing"}},
		{name: "local user, listed", given: &fakeRights{users: []uint32{me}}, confirm: "[rights] share_nothing a local user"},
		{name: "local user, another listed", given: &fakeRights{users: []uint32{me + 1}}},
		{name: "local user, group listed", given: &fakeRights{groups: []uint32{mine}}, confirm: "[rights] share_nothing a local user"},
		{name: "local user, an operator called like him listed", given: &fakeRights{operators: []string{"me", "local"}}},
		{name: "local user, a host called like him listed", given: &fakeRights{hosts: []string{"me", "local"}}},

		{name: "operator, nothing", id: operator(), want: []string{"operator:alice", "share-nothing", `share_nothing = ["operator:alice"]`, "berth pki operator alice --right share-nothing"}},
		{name: "operator, by certificate", id: operator(pki.RightShareNothing), confirm: "certificate"},
		{name: "operator, listed", id: operator(), given: &fakeRights{operators: []string{"alice"}}, confirm: "[rights] share_nothing operator:alice"},
		{name: "operator, another listed", id: operator(), given: &fakeRights{operators: []string{"bob"}}},
		{name: "operator, listed as a host", id: operator(), given: &fakeRights{hosts: []string{"alice"}}},
		{name: "operator, a host's right in his certificate", id: wrong.operator},

		{name: "host, nothing", id: host(), as: "host-c", want: []string{"host host-c", "conduct", `conduct = ["host:host-c"]`, "berth pki host host-c --right conduct"}},
		{name: "host, by certificate", id: host(pki.RightConduct), as: "host-c", conduct: "certificate"},
		{name: "host, listed", id: host(), as: "host-c", given: &fakeRights{hosts: []string{"host-c"}}, conduct: "[rights] conduct host:host-c"},
		{name: "host, another listed", id: host(), as: "host-c", given: &fakeRights{hosts: []string{"host-b"}}},
		{name: "host, an operator called like it listed", id: host(), as: "host-c", given: &fakeRights{operators: []string{"host-c"}}},
		{name: "host, an operator's right in its certificate", id: wrong.host, as: "host-c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := ours.host("host-a")
			id.Roots.AddCert(wrong.root)
			w := serve(t, "host-a", id)
			w.rights.give(c.given)
			o := api.ClientOptions{Socket: w.socket}
			if c.id != nil {
				o = api.ClientOptions{Address: w.address, Name: "host-a", Identity: c.id, As: c.as}
			}
			asker := client(t, o)
			_, confirmed := asker.ConfirmMigration(t.Context(), "apart-1")
			_, looked := operation.Inspect.Ask(t.Context(), asker, migration.Ref{Instance: "i-1"})
			for _, got := range []struct {
				err   error
				right string
				by    string
			}{{confirmed, "share-nothing", c.confirm}, {looked, "conduct", c.conduct}} {
				line := "right=" + got.right
				switch used := strings.Contains(w.log.String(), line); {
				case got.by == "" && (!errors.Is(got.err, fault.Forbidden) || used):
					t.Errorf("%s: %v (used, by the log: %v), want it refused", got.right, got.err, used)
				case got.by != "" && (got.err != nil || !used || !strings.Contains(w.log.String(), got.by)):
					t.Errorf("%s: %v, want it given by %s, and a line in the log:\n%s", got.right, got.err, got.by, w.log)
				}
			}
			told := ""
			for _, err := range []error{confirmed, looked} {
				for _, r := range fault.ReasonsOf(err) {
					told += r.Message + "\n" + r.Change + "\n"
				}
			}
			for _, word := range c.want {
				if !strings.Contains(told, word) {
					t.Errorf("not told: %s, in\n%s", word, told)
				}
			}
		})
	}
}

// TestRights_AHostThatPassesOnGivesNobodyMore has host-s pass on what its own callers ask
// of host-c, which conducts a move from host-s to host-d.
func TestRights_AHostThatPassesOnGivesNobodyMore(t *testing.T) {
	ours := newCA(t, "ours")
	conductor := serve(t, "host-c", ours.host("host-c"))
	conductor.parties["apart-1"], conductor.parties["conducted"] = [2]string{"host-s", "host-d"}, [2]string{"host-c"}
	conductor.parties["m-1"] = [2]string{"host-s", "host-d"}
	for _, c := range []struct {
		name   string
		host   string
		id     *pki.Identity // that host's
		given  *fakeRights   // at that host
		trusts *fakeRights   // at the conductor
		asker  *pki.Identity // nil for the local socket
		forged bool          // the asker writes the headers himself
		good   bool
		code   string // of the refusal; empty for right_missing
	}{
		{name: "a party, of an asker who has the right there", host: "host-s", given: &fakeRights{users: []uint32{uint32(os.Getuid())}}, good: true},
		{name: "a party, of an operator who shows it there", host: "host-s", asker: ours.operator("alice", pki.RightShareNothing), good: true},
		{name: "the destination, which may not confirm", host: "host-d", asker: ours.operator("alice", pki.RightShareNothing), code: api.ReasonAskThere},
		{name: "the destination, which may pass on", host: "host-d", asker: ours.operator("alice", pki.RightShareNothing), trusts: &fakeRights{relays: []string{"host-d"}}, good: true},
		{name: "a party, of an asker who has it not", host: "host-s"},
		{name: "a party, of one who has it not there and would at the conductor", host: "host-s", trusts: &fakeRights{users: []uint32{uint32(os.Getuid())}}},
		{name: "a party, of one who forges what it says", host: "host-s", forged: true},
		{name: "no party", host: "host-x", given: &fakeRights{users: []uint32{uint32(os.Getuid())}}, code: api.ReasonAskThere},
		{name: "no party, that may conduct itself", host: "host-x", given: &fakeRights{users: []uint32{uint32(os.Getuid())}}, trusts: &fakeRights{hosts: []string{"host-x"}}, code: api.ReasonAskThere},
		{name: "no party, that may pass on", host: "host-x", given: &fakeRights{users: []uint32{uint32(os.Getuid())}}, trusts: &fakeRights{relays: []string{"host-x"}}, good: true},
		{name: "no party, that may pass on, of one who has it not", host: "host-x", trusts: &fakeRights{relays: []string{"host-x"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := ours.host(c.host)
			between := serve(t, c.host, id)
			between.rights.give(c.given)
			conductor.rights.give(c.trusts)
			peer := client(t, api.ClientOptions{Address: conductor.address, Name: "host-c", Identity: id, As: c.host})
			between.peer = func(string) (*api.Client, error) { return peer, nil }
			o := api.ClientOptions{Socket: between.socket}
			if c.asker != nil {
				o = api.ClientOptions{Address: between.address, Name: c.host, Identity: c.asker}
			}
			var err error
			if c.forged {
				status, body := raw(t, between.socket, "POST", "/v1/migrations/apart-1/confirm?host=host-c", "{}", "Berth-Asker", "user:root", "Berth-Asker-Rights", "share-nothing")
				if status >= 300 {
					err = body.Err()
				}
			} else {
				_, err = client(t, o).Via("host-c").ConfirmMigration(t.Context(), "apart-1")
			}
			r := fault.ReasonsOf(err)
			if c.code == "" {
				c.code = "right_missing"
			}
			if c.good && err != nil || !c.good && (!errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != c.code || r[0].Change == "") {
				t.Errorf("%v (%+v), want it accepted: %v", err, r, c.good)
			}
		})
	}
	// The host's own key asks for nobody.
	bare := client(t, api.ClientOptions{Address: conductor.address, Name: "host-c", Identity: ours.host("host-s"), As: "host-s"})
	if _, err := bare.ConfirmMigration(t.Context(), "apart-1"); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a host by itself: %v, want %v", err, fault.Forbidden)
	}
	if _, err := bare.ConfirmMigration(t.Context(), "m-1"); err != nil {
		t.Errorf("a move that is none between hosts that share nothing: %v", err)
	}
}

func TestApartVerbs_TheRecordedThirdHostConductsAndNobodyElse(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	as := func(name string, rights ...pki.Right) *api.Client {
		return client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host(name, rights...), As: name})
	}
	third, rival, other := as("host-c"), as("host-x", pki.RightConduct), as("host-b")
	refused := func(what string, verbs map[string]func(context.Context) error) {
		t.Helper()
		for name, call := range verbs {
			if err := call(t.Context()); !errors.Is(err, fault.Forbidden) || w.verbs.count(name) != 0 {
				t.Errorf("%s of %s: %v (%d calls), want it refused", name, what, err, w.verbs.count(name))
			}
		}
	}
	forget := func(verbs map[string]func(context.Context) error) map[string]func(context.Context) error {
		delete(verbs, "RemoveCopy") // answered where nothing is recorded
		return verbs
	}
	refused("a guest of which nothing is recorded, with the right", forget(apartVerbs(rival)))
	w.parties["m-1"], w.parties["conducted"] = [2]string{"host-a", "host-b"}, [2]string{"host-c"}
	refused("another host that may conduct", apartVerbs(rival))
	refused("the other host of the move", apartVerbs(other))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	refused("the source, which does not conduct", apartVerbs(other))
	refused("the source, which does not conduct", map[string]func(context.Context) error{
		"AcceptHanded": func(ctx context.Context) error {
			return operation.AcceptHanded.Ask(ctx, other, ref, migration.Commit{From: "host-b"})
		},
		"FinishResize": func(ctx context.Context) error { return operation.FinishResize.Ask(ctx, other, ref) },
	})
	for name, call := range apartVerbs(third) {
		if err := call(t.Context()); err != nil || w.verbs.count(name) != 1 {
			t.Errorf("%s: %v, %d calls", name, err, w.verbs.count(name))
		}
	}
	if err := operation.AcceptHanded.Ask(t.Context(), third, ref, migration.Commit{From: "host-b"}); err != nil {
		t.Errorf("the conductor brings what the source has sealed: %v", err)
	}
	if err := operation.AcceptHanded.Ask(t.Context(), third, ref, migration.Commit{From: "host-x"}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("the conductor brings what a stranger has written: %v, want %v", err, fault.Forbidden)
	}
}

// TestApart_ADestinationThatConductsGivesBackWhatItHas is a move that the host fetches to
// which the guest goes.
func TestApart_ADestinationThatConductsGivesBackWhatItHas(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"], w.parties["conducted"] = [2]string{"host-a", "host-b"}, [2]string{"host-b"}
	b := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	if err := operation.AcceptHanded.Ask(t.Context(), b, ref, migration.Commit{From: "host-b", To: "host-a"}); err != nil {
		t.Errorf("handed back: %v", err)
	}
	if err := operation.FinishRevert.Ask(t.Context(), b, ref); err != nil {
		t.Errorf("finished: %v", err)
	}
	if err := operation.AcceptHanded.Ask(t.Context(), b, ref, migration.Commit{From: "host-x", To: "host-a"}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("of a stranger: %v, want %v", err, fault.Forbidden)
	}
}

// TestApart_FirstContactNamesItsConductor: who begins is who is recorded.
func TestApart_FirstContactNamesItsConductor(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	may := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-c", pki.RightConduct), As: "host-c"})
	context := func(source, destination, conductor string) migration.Context {
		return migration.Context{Source: source, Destination: destination, Conductor: conductor}
	}
	for _, c := range []struct {
		name string
		call func() error
		good bool
	}{
		{"record, itself", func() error {
			return operation.RecordContext.Ask(t.Context(), may, ref, context("host-a", "host-b", "host-c"))
		}, true},
		{"record, nobody", func() error {
			return operation.RecordContext.Ask(t.Context(), may, ref, context("host-a", "host-b", ""))
		}, false},
		{"record, another", func() error {
			return operation.RecordContext.Ask(t.Context(), may, ref, context("host-a", "host-b", "host-x"))
		}, false},
		{"record, of another host's guest", func() error {
			return operation.RecordContext.Ask(t.Context(), may, ref, context("host-b", "host-a", "host-c"))
		}, false},
		{"claim, itself", func() error {
			_, err := operation.Claim.Ask(t.Context(), may, ref, migration.ClaimRequest{Context: context("host-b", "host-a", "host-c")})
			return err
		}, true},
		{"claim, another", func() error {
			_, err := operation.Claim.Ask(t.Context(), may, ref, migration.ClaimRequest{Context: context("host-b", "host-a", "host-b")})
			return err
		}, false},
		{"claim, as a source whose conductor is another", func() error {
			_, err := operation.Claim.Ask(t.Context(), may, ref, migration.ClaimRequest{Context: context("host-c", "host-a", "host-b")})
			return err
		}, false},
		{"check", func() error {
			_, err := operation.CheckDestination.Ask(t.Context(), may, ref, migration.CheckRequest{Source: migration.Description{Name: "host-b"}})
			return err
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.call(); c.good && err != nil || !c.good && !errors.Is(err, fault.Forbidden) {
				t.Errorf("%v, want it accepted: %v", err, c.good)
			}
		})
	}
}

// TestLocalSocket_TheKernelNamesUserAndAllGroups connects as another user, who is in more
// groups than are asked for at first.
func TestLocalSocket_TheKernelNamesUserAndAllGroups(t *testing.T) {
	const in = "BERTH_TEST_CONNECT"
	if socket := os.Getenv(in); socket != "" {
		if _, err := client(t, api.ClientOptions{Socket: socket}).ConfirmMigration(t.Context(), "apart-1"); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	w := serve(t, "host-a", nil)
	// Reached by everybody.
	dir, err := os.MkdirTemp("", "berth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o711), os.Link(w.socket, dir+"/s"), os.Chmod(w.socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(dir+"/t", self, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	var groups []uint32
	for g := range uint32(100) {
		groups = append(groups, 70000+g)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, dir+"/t", "-test.run=^"+t.Name()+"$")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), in+"="+dir+"/s")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 60001, Gid: 60002, Groups: groups}}
	w.rights.give(&fakeRights{groups: groups[99:]})
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("who is given it by his last group: %v: %s", err, out)
	}
	w.rights.mu.Lock()
	defer w.rights.mu.Unlock()
	slices.Sort(w.rights.seen.Groups)
	if diff := cmp.Diff(&api.LocalUser{UID: 60001, Groups: append([]uint32{60002}, groups...)}, w.rights.seen); diff != "" {
		t.Errorf("who asked (-want +got):\n%s", diff)
	}
}
