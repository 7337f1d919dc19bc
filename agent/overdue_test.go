package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/answers"
	"berth/agent/api"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/drain"
)

// inALine is a condition in a line.
func inALine(c api.Condition, is bool) string {
	if !is {
		return "nothing"
	}
	out := c.Name + " " + string(c.Health)
	for _, r := range c.Reasons {
		out += " [" + r.Code + "] " + r.Message + " | " + r.Change
	}
	return out
}

func TestPlacementSilent_SinceTheLastAnswer(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		what            string
		asked, answered time.Time
		want            string
	}{
		{"never asked", time.Time{}, time.Time{}, "nothing"},
		{"it has answered", time.Time{}, now.Add(-time.Hour), "nothing"},
		{"asked a moment ago", now.Add(-time.Second), now.Add(-time.Hour), "nothing"},
		{"asked for long", now.Add(-30 * time.Second), now.Add(-time.Minute), "not answered since 2026-05-06T11:59:00Z"},
		{"asked for long, and never answered", now.Add(-30 * time.Second), time.Time{}, "not answered since 2026-05-06T11:59:30Z"},
	} {
		if got := inALine(placementSilent(answers.Times{Asked: c.asked, Answered: c.answered}, now)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

func TestStuckDrains_NothingBeganOrEnded(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	guest := func(state drain.GuestState, begun, ended time.Duration) drain.Guest {
		g := drain.Guest{Name: "web", State: state, Reasons: []fault.Reason{{Code: "no_room", Message: "no host has room"}}}
		if begun > 0 {
			g.BegunAt = now.Add(-begun)
		}
		if ended > 0 {
			g.EndedAt = now.Add(-ended)
		}
		return g
	}
	for _, c := range []struct {
		what  string
		state drain.State
		begun time.Duration
		list  []drain.Guest
		want  string
	}{
		{"just begun", drain.Running, time.Minute, []drain.Guest{guest(drain.Waiting, 0, 0)}, "nothing"},
		{"over", drain.Incomplete, 9 * time.Hour, []drain.Guest{guest(drain.Failed, 0, 0)}, "nothing"},
		{"all wait", drain.Running, time.Hour, []drain.Guest{guest(drain.Waiting, 0, 0)}, "since 2026-05-06T11:00:00Z; 0 instances move, 1 wait; web: no host has room"},
		{"one ended of late", drain.Running, time.Hour, []drain.Guest{guest(drain.Moved, time.Hour, time.Minute), guest(drain.Waiting, 0, 0)}, "nothing"},
		{"one failed of late", drain.Running, time.Hour, []drain.Guest{guest(drain.Failed, time.Hour, time.Minute)}, "nothing"},
		{"one moves", drain.Running, time.Hour, []drain.Guest{guest(drain.Moving, 30*time.Minute, 0), guest(drain.Waiting, 0, 0)}, "nothing"},
		{"one moves for ever", drain.Running, 5 * time.Hour, []drain.Guest{guest(drain.Moving, 3*time.Hour, 0), guest(drain.Waiting, 0, 0)}, "since 2026-05-06T09:00:00Z; 1 instances move, 1 wait"},
		{"an abort that does not end", drain.Aborting, 5 * time.Hour, []drain.Guest{guest(drain.Moving, 3*time.Hour, 0)}, "drain_stuck"},
	} {
		d := drain.Drain{Request: drain.Request{Host: "host-a"}, State: c.state, BegunAt: now.Add(-c.begun), Guests: c.list}
		if got := inALine(stuckDrains([]drain.Drain{d}, now)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

type someDeaths struct {
	deaths []fleet.Death
	has    map[string][]fleet.Instance
	err    error
	asked  []string
}

func (s *someDeaths) Deaths(context.Context) ([]fleet.Death, error) { return s.deaths, s.err }
func (s *someDeaths) Instances(_ context.Context, host string) ([]fleet.Instance, error) {
	s.asked = append(s.asked, host)
	return s.has[host], s.err
}

func TestLostHosts_NamesWhatNobodyEvacuated(t *testing.T) {
	at := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	r := &someDeaths{
		deaths: []fleet.Death{{Host: "host-a", At: at}, {Host: "host-b", At: at}, {Host: "host-c", At: at}, {Host: "host-d", At: at, Forgotten: true}},
		has:    map[string][]fleet.Instance{"host-a": {{Name: "own"}}, "host-b": {{Name: "web"}, {Name: "db"}}, "host-d": {{Name: "given up"}}},
	}
	hosts, err := lostHosts(t.Context(), r, "host-a")
	if err != nil {
		t.Fatal(err)
	}
	want := "evacuation degraded [not_evacuated] host host-b counts as dead since 2026-05-06T12:00:00Z, and nobody has evacuated its instances: web, db | berth evacuate --host host-b, on any host; or bring host-b back"
	if got := inALine(lostCondition(hosts, nil)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := inALine(lostCondition(nil, nil)); got != "nothing" {
		t.Error(got)
	}
	r.err = fault.New(fault.Unavailable, "silent")
	if _, err := lostHosts(t.Context(), r, "host-a"); err == nil {
		t.Error("a store that is silent is a fleet without deaths")
	}
}

func TestSilentHosts_NamesThoseWithInstances(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	r := &someDeaths{has: map[string][]fleet.Instance{"host-b": {{Name: "web"}, {Name: "db"}}, "host-d": {{Name: "answers"}}, "host-e": {{Name: "once"}}}}
	times := map[string]answers.Times{
		"host-b": {Asked: ago(2 * time.Minute), Answered: ago(3 * time.Minute), Missed: ago(time.Second)},
		"host-c": {Asked: ago(2 * time.Minute), Missed: ago(time.Second)}, // has no instances
		"host-d": {Answered: ago(time.Second)},
		"host-e": {Asked: ago(3 * time.Second), Missed: ago(3 * time.Second)}, // missed once
	}
	silent, err := silentHosts(t.Context(), r, []string{"host-b", "host-c", "host-d", "host-e"}, func(h string) answers.Times { return times[h] }, now)
	if err != nil {
		t.Fatal(err)
	}
	want := "evacuation degraded [host_silent] host host-b has not answered since 2026-05-06T11:57:00Z, and does not count as dead; instances on record there: 2" +
		` | start its agent (systemctl start berth); or, where the host is lost, berth host fence host-b, or berth host declare-dead host-b --reason "how you know", then berth evacuate --host host-b`
	if got := inALine(lostCondition(nil, silent)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if !slices.Equal(r.asked, []string{"host-b", "host-c"}) {
		t.Errorf("the records were asked for the instances of %v, want those of silent hosts", r.asked)
	}
	r.err = fault.New(fault.Unavailable, "silent")
	if _, err := silentHosts(t.Context(), r, []string{"host-b"}, func(h string) answers.Times { return times[h] }, now); err == nil {
		t.Error("a store that is silent has no instances")
	}
}

func TestNextAsked_EachHostHasItsTurn(t *testing.T) {
	var hosts []string
	for i := range 60 {
		hosts = append(hosts, fmt.Sprintf("host-%02d", i))
	}
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	for _, silent := range []int{0, 1, 20, 60} {
		last := map[string]time.Time{}
		for round := range 10 {
			ask := nextAsked(hosts, func(h string) bool { return h < fmt.Sprintf("host-%02d", silent) }, last)
			if len(ask) != mostAsked {
				t.Errorf("%d are silent: %d are asked in a round", silent, len(ask))
			}
			for _, h := range ask {
				last[h] = now.Add(time.Duration(round+1) * time.Minute)
			}
		}
		if len(last) != len(hosts) {
			t.Errorf("%d are silent: %d of %d hosts were asked", silent, len(last), len(hosts))
		}
	}
	if ask := nextAsked(hosts[:3], func(string) bool { return false }, nil); len(ask) != 3 {
		t.Errorf("of three hosts %v are asked", ask)
	}
}

func TestWithLate_SaysSinceWhenAtItsPart(t *testing.T) {
	at := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	late := []answers.Silent{{Part: loopAudit, Since: at, Within: time.Hour}, {Part: loopFleet, Since: at, Within: time.Minute}, {Part: loopHosts, Since: at, Within: time.Minute}}
	got := withLate([]api.Condition{api.OK("allocations", "agree"), api.Degraded("fleet", "no answer", fault.Reason{Code: "fleet_store"}), api.OK("claims", "3 held")}, late)
	var lines []string
	for _, c := range got {
		lines = append(lines, c.Name+" "+string(c.Health)+" "+c.Detail)
	}
	want := []string{
		"allocations degraded the allocations were not audited since 2026-05-06T12:00:00Z; it should at least every 1h0m0s",
		"fleet degraded no answer; the store of the fleet's records has not answered since 2026-05-06T12:00:00Z; it should at least every 1m0s",
		"claims ok 3 held",
		"evacuation degraded no look at the other hosts has ended since 2026-05-06T12:00:00Z; it should at least every 1m0s",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("%s\nwant %s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	for loop, w := range loopWords {
		if w.condition == "" || w.does == "" {
			t.Errorf("loop %s has no words", loop)
		}
	}
}

func TestSilentParties_OfOpenMovesAlone(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	silent := answers.Times{Asked: now.Add(-time.Minute), Answered: now.Add(-2 * time.Minute), Missed: now.Add(-time.Second)}
	move := func(change func(*migration.Migration)) []migration.Migration {
		m := migration.Migration{UUID: "m1", InstanceName: "web", SourceCompute: "host-a", DestCompute: "host-b", Status: migration.StatusRunning}
		if change != nil {
			change(&m)
		}
		return []migration.Migration{m}
	}
	for _, c := range []struct {
		what  string
		list  []migration.Migration
		times answers.Times
		want  string
	}{
		{"silent", move(nil), silent, "host host-b has not answered since 2026-05-06T11:58:00Z, and migration m1 of web needs it"},
		{"an evacuation of it", move(func(m *migration.Migration) {
			m.MigrationType, m.SourceCompute, m.DestCompute = migration.TypeEvacuation, "host-b", "host-a"
		}), silent, ""},
		{"it answers", move(nil), answers.Times{Answered: now}, ""},
		{"nobody has asked of late", move(nil), answers.Times{Asked: now.Add(-time.Hour), Missed: now.Add(-time.Hour)}, ""},
		{"it waits to be confirmed", move(func(m *migration.Migration) { m.Stage = migration.StageFinished }), silent, ""},
		{"it is over", move(func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusCompleted, migration.OutcomeCompleted
		}), silent, ""},
	} {
		var got string
		for _, r := range silentParties(c.list, "host-a", func(string) answers.Times { return c.times }, now) {
			got += r.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

func TestUntaken_NamedAtTheSecondLook(t *testing.T) {
	p := newPapers(t, 6*365*24*time.Hour)
	p.Issue(p.Before, 0)
	p.begin(0)
	var u untaken
	named := func() bool { u.note(p.a); return len(p.a.faults.conditions()) > 0 }
	if named() {
		t.Error("the files are those in use")
	}
	p.Issue(p.Before, 0)
	if named() {
		t.Error("files that may still be written are named")
	}
	if !named() {
		t.Error("certificate files that nobody had taken up are not named")
	}
	p.begin(0)
	if named() {
		t.Error("a fault that is over is named")
	}
}

func TestCertificateNotTaken_UntilARestart(t *testing.T) {
	p := newPapers(t, 6*365*24*time.Hour)
	p.Issue(p.Before, 0)
	p.begin(0)
	paths, used := p.a.config().PKI, p.a.identity
	if err := certificateNotTaken(paths, used, p.Now); err != nil {
		t.Errorf("the files are those in use: %v", err)
	}
	p.Issue(p.Before, 0)
	err := certificateNotTaken(paths, used, p.Now)
	if rs := fault.ReasonsOf(err); len(rs) != 1 || rs[0].Code != "certificate_not_taken" || !strings.Contains(rs[0].Change, "systemctl restart berth") {
		t.Errorf("other files: %v", err)
	}
	if err := os.Truncate(paths.Key, 3); err != nil {
		t.Fatal(err)
	}
	if err := certificateNotTaken(paths, used, p.Now); err == nil || !strings.Contains(err.Error(), "not good") {
		t.Errorf("half a key: %v", err)
	}
	if err := certificateNotTaken(paths, nil, p.Now); err != nil {
		t.Errorf("none in use: %v", err)
	}
}

func TestLookAtSilent_HostThatRefusesConnections(t *testing.T) {
	p := newPapers(t, 6*365*24*time.Hour)
	p.Issue(p.Before, 0)
	p.begin(0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := p.a.config()
	c.Peers = map[string]string{"host-b": l.Addr().String()}
	p.a.conf.Store(&c)
	p.a.peers = newPeers(p.a)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	records := fleet.New(struct{ fleet.Store }{fleettest.NewMemory(p.a.rt).Client("host-a")}, p.a.rt) // without leases
	if err := records.PutHost(t.Context(), fleet.Host{Name: "host-b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := records.PutInstance(t.Context(), fleet.Instance{UUID: "u1", Name: "web", Host: "host-b", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	u := unevacuated{a: p.a, memory: storetest.NewMemory()}
	u.lookAtSilent(t.Context(), records)
	if got := inALine(u.condition()); got != "nothing" {
		t.Errorf("after one look: %s", got)
	}
	// The two may have no way to each other: then it is no fault.
	p.a.asked.End(peerPart("host-b"))
	p.a.asked.Miss(peerPart("host-b"), p.a.rt.Now().Add(-deadEvery))
	u.lookAtSilent(t.Context(), records)
	if got := inALine(u.condition()); !strings.HasPrefix(got, "evacuation ok [host_never_answered] host host-b has never answered this host") {
		t.Errorf("after two looks at a host that has never answered: %s", got)
	}
	p.a.asked.Answer(peerPart("host-b"), p.a.rt.Now().Add(-2*deadEvery))
	u.lookAtSilent(t.Context(), records) // notes that it did
	u.ever = nil                         // the agent is restarted
	p.a.asked.Answer(peerPart("host-b"), p.a.rt.Now().Add(-2*deadEvery))
	p.a.asked.Miss(peerPart("host-b"), p.a.rt.Now().Add(-deadEvery)) // the look before
	u.lookAtSilent(t.Context(), records)
	if got := inALine(u.condition()); !strings.Contains(got, "[host_silent] host host-b has not answered since ") || !strings.Contains(got, "instances on record there: 1") {
		t.Errorf("after two looks: %s", got)
	}
	p.a.asked.Answer(peerPart("host-b"), p.a.rt.Now())
	if got := inALine(u.condition()); got != "nothing" || len(u.told()) != 0 {
		t.Errorf("after it answered: %s", got)
	}
	if _, err := records.DeclareDead(t.Context(), fleet.Death{Host: "host-b", Proof: fleet.ProofOperator, By: "ada", Because: "it burned"}); err != nil {
		t.Fatal(err)
	}
	u.look(t.Context(), records)
	u.lookAtSilent(t.Context(), records)
	if got := inALine(u.condition()); strings.Contains(got, "host_silent") || !strings.Contains(got, "not_evacuated") {
		t.Errorf("after it was declared dead: %s", got)
	}
}
