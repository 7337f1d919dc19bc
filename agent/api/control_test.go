package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/options"
)

func TestSet_ByOperatorsAndByHostsThatPassItOn(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.rights.give(&fakeRights{relays: []string{"host-b"}})
	want := api.SetMigration{Bandwidth: 20 << 20, MaxDowntime: 800 * time.Millisecond}
	for name, o := range map[string]api.ClientOptions{
		"":       {Socket: w.socket},
		"host-b": {Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"},
	} {
		c := client(t, o)
		m, err := c.SetMigration(t.Context(), "web 1/x", want)
		// A call on the socket carries the name "local" where a host's carries its own.
		from := w.agent.from[len(w.agent.from)-1]
		if err != nil || m.UUID != "web 1/x" || w.agent.sets[len(w.agent.sets)-1] != want || name != "" && from != name {
			t.Errorf("set by %q: %+v, %v, from %q, %+v arrived", name, m, err, from, w.agent.sets)
		}
		if _, err := c.ForceComplete(t.Context(), "m-1"); !errors.Is(err, fault.Forbidden) {
			t.Errorf("force by %q: %v, want %v", name, err, fault.Forbidden)
		}
	}
	c := client(t, api.ClientOptions{Socket: w.socket})
	asked := len(w.agent.sets)
	for _, refused := range []struct {
		code string
		in   api.SetMigration
	}{
		{"nothing_said", api.SetMigration{}}, {"negative_duration", api.SetMigration{MaxDowntime: -time.Second}}, {"bandwidth", api.SetMigration{Bandwidth: api.Unbounded + 1}},
		{"max_downtime", api.SetMigration{MaxDowntime: 800}}, {"max_downtime", api.SetMigration{MaxDowntime: 1 << 62}},
	} {
		code, in := refused.code, refused.in
		_, err := c.SetMigration(t.Context(), "m-1", in)
		if !errors.Is(err, fault.Invalid) || !slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == code && r.Change != "" }) {
			t.Errorf("%+v: %v, want the reason %s", in, err, code)
		}
	}
	if len(w.agent.sets) != asked {
		t.Error("what is refused was passed on to the conductor")
	}
}

func TestPriority_IsAWordOrANumber(t *testing.T) {
	for text, want := range map[string]api.Priority{
		`"maintenance"`: 20, `"user"`: 50, `"drain"`: 100, `"urgent"`: 1000, `7`: 7, `"7"`: 7, `0`: 0, `null`: 0,
	} {
		var p api.Priority
		if err := json.Unmarshal([]byte(text), &p); err != nil || p != want {
			t.Errorf("%s: %d, %v, want %d", text, p, err, want)
		}
	}
	for _, text := range []string{`"high"`, `-1`, `1001`, `""`, `1.5`, `[]`} {
		var p api.Priority
		if err := json.Unmarshal([]byte(text), &p); err == nil {
			t.Errorf("%s is read as %d", text, p)
		}
	}
	if api.Priority(100).String() != "drain" || api.Priority(7).String() != "7" {
		t.Error("a priority is not said as it is read")
	}
	w := serve(t, "host-a", nil)
	if status, _ := raw(t, w.socket, "POST", "/v1/migrations", `{"instance":"web","uuid":"m-1","options":{},"priority":"urgent"}`); status != http.StatusAccepted || w.agent.started[0].Priority != 1000 {
		t.Errorf("asked with a word: %d, %+v", status, w.agent.started)
	}
	status, body := raw(t, w.socket, "POST", "/v1/migrations", `{"instance":"web","options":{},"priority":"high"}`)
	if status != http.StatusBadRequest || len(body.Error.Reasons) != 1 || !strings.Contains(body.Error.Reasons[0].Message, `priority "high": want maintenance, user, drain, urgent, or 1 to 1000`) {
		t.Errorf("a word that is none: %d %+v", status, body)
	}
}

func TestMigrate_CarriesEveryOptionOfALiveMigration(t *testing.T) {
	w := serve(t, "host-a", nil)
	c := client(t, api.ClientOptions{Socket: w.socket})
	want := api.Migrate{Instance: "web", Migration: "m-1", Priority: 100, Options: migration.Options{
		Bandwidth: 1, PostCopyBandwidth: 2, MaxDowntime: time.Second, AutoConverge: options.On, AutoConvergeInitial: 30, Compression: []string{"zstd"},
		PostCopy: options.On, TimeoutAction: options.ActionForce, Schedule: "2:max-downtime=800ms", Observe: options.On, CopyStorage: "inc",
	}}
	if _, err := c.Migrate(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	got := w.agent.started[0]
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("arrived\n%+v, sent\n%+v", got, want)
	}
}

// controlled is a move that does not converge, and about which something was done.
func controlled() migration.Migration {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return migration.Migration{
		UUID: "m-1", Outcome: migration.OutcomeCompleted, OptionsFrom: map[string]options.From{"schedule": options.FromFlavor},
		Progress: migration.Progress{Phase: "memory", Never: true, ExpectedDowntime: 240 * time.Millisecond, Stalls: 2, Throttle: 30},
		Waits:    []fault.Reason{{Code: "outbound_limit", Message: "2 of 2 moves leave host-a, 3 before it", Want: "2", Have: "2"}},
		Control:  []migration.Control{{At: at, Action: converge.Action{Do: converge.ActDowntime, Downtime: time.Second, Why: "asked", Message: "asked for"}, By: "operator:alice", Done: true}},
	}
}

func TestWatch_CarriesEstimatesWaitsAndWhatWasDone(t *testing.T) {
	w := serve(t, "host-a", nil)
	want := controlled()
	w.agent.records = make(chan migration.Migration, 1)
	w.agent.records <- want
	close(w.agent.records)
	var got migration.Migration
	if err := client(t, api.ClientOptions{Socket: w.socket}).WatchMigration(t.Context(), "m-1", time.Minute, func(m migration.Migration) error {
		got = m
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	sent, _ := json.Marshal(want)
	seen, _ := json.Marshal(got)
	if string(sent) != string(seen) {
		t.Errorf("seen\n%s, published\n%s", seen, sent)
	}
	for _, part := range []string{`"never":true`, `"expected_downtime":240000000`, `"throttle":30`, `"code":"outbound_limit"`, `"by":"operator:alice"`, `"options_from":{"schedule":"flavor"}`} {
		if !strings.Contains(string(seen), part) {
			t.Errorf("%s is not in %s", part, seen)
		}
	}
}
