package turns_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration/turns"
)

var morning = time.Date(2026, 1, 1, 8, 0, 0, 0, time.UTC)

// move is one of a priority, asked for at a minute.
func move(id string, priority, minute int, to string) turns.Move {
	return turns.Move{ID: id, Priority: priority, Asked: morning.Add(time.Duration(minute) * time.Minute), To: to}
}

func TestDecide(t *testing.T) {
	one := move("one", 50, 0, "b")
	for _, c := range []struct {
		name  string
		state turns.State
		goes  []string
		waits map[string][]string // codes
	}{
		{name: "nobody waits"},
		{name: "no limits", state: turns.State{Under: []turns.Move{one}, Waiting: []turns.Move{move("x", 50, 0, "b"), move("y", 50, 0, "")}}, goes: []string{"x", "y"}},
		{name: "the older of two", state: turns.State{Limits: turns.Limits{Outbound: 1}, Waiting: []turns.Move{move("a", 50, 2, ""), move("z", 50, 1, "")}},
			goes: []string{"z"}, waits: map[string][]string{"a": {turns.CodeOutbound}}},
		{name: "the more urgent of two", state: turns.State{Limits: turns.Limits{Outbound: 1}, Waiting: []turns.Move{move("a", 50, 1, ""), move("z", 100, 2, "")}},
			goes: []string{"z"}, waits: map[string][]string{"a": {turns.CodeOutbound}}},
		{name: "the lower uuid of two as old", state: turns.State{Limits: turns.Limits{Outbound: 1}, Waiting: []turns.Move{move("z", 50, 1, ""), move("a", 50, 1, "")}},
			goes: []string{"a"}, waits: map[string][]string{"z": {turns.CodeOutbound}}},
		{name: "a limit that was lowered under what goes on", state: turns.State{Limits: turns.Limits{Outbound: 1}, Under: []turns.Move{one, move("two", 50, 0, "c")}, Waiting: []turns.Move{move("x", 1000, 0, "")}},
			waits: map[string][]string{"x": {turns.CodeOutbound}}},
		{name: "a full link keeps back nobody else", state: turns.State{Limits: turns.Limits{Outbound: 3, PerLink: 1}, Under: []turns.Move{one},
			Waiting: []turns.Move{move("x", 100, 0, "b"), move("y", 50, 5, "c"), move("z", 50, 6, "")}},
			goes: []string{"y", "z"}, waits: map[string][]string{"x": {turns.CodeLink}}},
		{name: "both", state: turns.State{Limits: turns.Limits{Outbound: 1, PerLink: 1}, Under: []turns.Move{one}, Waiting: []turns.Move{move("x", 50, 0, "b")}},
			waits: map[string][]string{"x": {turns.CodeOutbound, turns.CodeLink}}},
		{name: "who comes the other way is on the same link", state: turns.State{Limits: turns.Limits{PerLink: 1}, Incoming: map[string]int{"b": 1}, Waiting: []turns.Move{move("x", 50, 0, "b"), move("y", 50, 0, "c")}},
			goes: []string{"y"}, waits: map[string][]string{"x": {turns.CodeLink}}},
		{name: "a link has room for no one twice", state: turns.State{Limits: turns.Limits{PerLink: 2}, Under: []turns.Move{one}, Waiting: []turns.Move{move("x", 50, 0, "b"), move("y", 50, 1, "b")}},
			goes: []string{"x"}, waits: map[string][]string{"y": {turns.CodeLink}}},
		{name: "before the destination is chosen no link is needed", state: turns.State{Limits: turns.Limits{PerLink: 1}, Under: []turns.Move{move("u", 50, 0, "")}, Waiting: []turns.Move{move("x", 50, 0, ""), move("y", 50, 0, "")}},
			goes: []string{"x", "y"}},
		{name: "nobody passes by one that its destination had wait", state: turns.State{Paused: []turns.Move{move("p", 50, 1, "b")}, Waiting: []turns.Move{move("x", 50, 2, "b"), move("y", 50, 2, "c"), move("z", 100, 2, "b")}},
			goes: []string{"z", "y"}, waits: map[string][]string{"x": {turns.CodeInbound}}},
		{name: "nor one that asks again", state: turns.State{Under: []turns.Move{{ID: "p", Priority: 50, Asked: morning, To: "b", Asks: true}}, Waiting: []turns.Move{move("x", 50, 2, "b"), move("z", 100, 2, "b")}},
			goes: []string{"z"}, waits: map[string][]string{"x": {turns.CodeInbound}}},
		{name: "nor one that may ask again", state: turns.State{Waiting: []turns.Move{{ID: "p", Priority: 50, Asked: morning, To: "b", Asks: true}, move("x", 50, 2, "b"), move("z", 100, 2, "b")}},
			goes: []string{"z", "p"}, waits: map[string][]string{"x": {turns.CodeInbound}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.state.Host = "host-a"
			d := turns.Decide(c.state)
			got := map[string][]string{}
			for id, why := range d.Waits {
				for _, r := range why {
					got[id] = append(got[id], r.Code)
				}
			}
			if c.waits == nil {
				c.waits = map[string][]string{}
			}
			if diff := cmp.Diff(c.goes, d.Go); diff != "" {
				t.Errorf("who goes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.waits, got); diff != "" {
				t.Errorf("who waits for what (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecide_TellsWhatIsWaitedFor(t *testing.T) {
	s := turns.State{
		Host: "host-a", Limits: turns.Limits{Outbound: 2, PerLink: 1}, Under: []turns.Move{move("u", 50, 0, "host-b"), move("v", 50, 0, "host-c")},
		Waiting: []turns.Move{move("w", 50, 1, ""), move("x", 50, 2, ""), move("y", 50, 3, "host-b")}, Paused: []turns.Move{move("p", 50, 0, "host-b")},
	}
	want := map[string][]fault.Reason{
		"w": {{Code: "outbound_limit", Message: "2 guests leave host-a (limit 2); it is the next", Want: "fewer than 2", Have: "2",
			Change: "wait until one of them has come, ask for it with a higher priority, or raise [migration] max_outbound on host-a"}},
		"x": {{Code: "outbound_limit", Message: "2 guests leave host-a (limit 2); 1 move waits before it", Want: "fewer than 2", Have: "2",
			Change: "wait until one of them has come, ask for it with a higher priority, or raise [migration] max_outbound on host-a"}},
		"y": {
			{Code: "outbound_limit", Message: "2 guests leave host-a (limit 2); 2 moves wait before it", Want: "fewer than 2", Have: "2",
				Change: "wait until one of them has come, ask for it with a higher priority, or raise [migration] max_outbound on host-a"},
			{Code: "link_limit", Message: "1 guest is on the way between host-a and host-b (limit 1); it is the next", Want: "fewer than 1", Have: "1",
				Change: "wait until one of them has come, name another destination, or raise [migration] max_per_link on host-a"},
			{Code: "inbound_limit", Message: "1 move of host-a's own waits before it for room at host-b, where as many guests as may come are on their way", Want: "0 before it", Have: "1",
				Change: "wait, ask for it with a higher priority, name another destination, or raise [migration] max_inbound on host-b"},
		},
	}
	if diff := cmp.Diff(want, turns.Decide(s).Waits); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestDecide_CountsAllThatWaitForOneDestination(t *testing.T) {
	s := turns.State{Host: "host-a", Paused: []turns.Move{move("p", 50, 0, "host-b")}}
	for i := range 3 {
		s.Waiting = append(s.Waiting, move(fmt.Sprint("w", i), 50, 1+i, "host-b"))
	}
	d := turns.Decide(s)
	for i, m := range s.Waiting {
		if why := d.Waits[m.ID]; len(why) != 1 || why[0].Have != fmt.Sprint(i+1) {
			t.Errorf("%s waits for %+v, want %d before it", m.ID, why, i+1)
		}
	}
}

// TestDecide_Properties: in any state no limit is exceeded by who goes, who waits is kept by a
// limit that those before it fill, and who goes was kept by none.
func TestDecide_Properties(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		hosts := []string{"", "b", "c", "d"}
		some := func(prefix string, most int) []turns.Move {
			var out []turns.Move
			for i := range rng.IntN(most) {
				out = append(out, move(fmt.Sprint(prefix, i), 10*rng.IntN(4), rng.IntN(4), hosts[rng.IntN(len(hosts))]))
			}
			rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
			return out
		}
		s := turns.State{
			Host: "a", Limits: turns.Limits{Outbound: rng.IntN(6), PerLink: rng.IntN(4)}, Under: some("u", 6), Waiting: some("w", 10), Paused: some("p", 3),
			Incoming: map[string]int{"b": rng.IntN(2)},
		}
		given := fmt.Sprintf("%+v", s)
		d := turns.Decide(s)
		if fmt.Sprintf("%+v", s) != given {
			t.Fatalf("seed %d: the state was changed", seed)
		}
		if len(d.Go)+len(d.Waits) != len(s.Waiting) {
			t.Fatalf("seed %d: %d go and %d wait of %d", seed, len(d.Go), len(d.Waits), len(s.Waiting))
		}
		// The oracle goes through them one by one.
		order := slices.SortedFunc(slices.Values(s.Waiting), turns.Order)
		under := slices.Clone(s.Under)
		onLink := func(to string) int {
			n := s.Incoming[to]
			for _, m := range under {
				if m.To == to {
					n++
				}
			}
			return n
		}
		var goes []string
		for i, m := range order {
			if i > 0 && turns.Order(order[i-1], m) >= 0 {
				t.Fatalf("seed %d: %s and %s have no order", seed, order[i-1].ID, m.ID)
			}
			full := map[string]bool{
				turns.CodeOutbound: s.Outbound > 0 && len(under) >= s.Outbound,
				turns.CodeLink:     m.To != "" && s.PerLink > 0 && onLink(m.To) >= s.PerLink,
				turns.CodeInbound:  m.To != "" && slices.ContainsFunc(s.Paused, func(p turns.Move) bool { return p.To == m.To && turns.Order(p, m) < 0 }),
			}
			kept := false
			for code, is := range full {
				kept = kept || is
				if says := slices.ContainsFunc(d.Waits[m.ID], func(r fault.Reason) bool {
					return r.Code == code && r.Message != "" && strings.Contains(r.Change, "[migration] max_")
				}); says != is {
					t.Fatalf("seed %d: of %s %s is %v, and said: %v", seed, m.ID, code, is, d.Waits[m.ID])
				}
			}
			if !kept {
				goes, under = append(goes, m.ID), append(under, m)
			}
		}
		if !slices.Equal(goes, d.Go) {
			t.Fatalf("seed %d: %v go, want %v", seed, d.Go, goes)
		}
	}
}
