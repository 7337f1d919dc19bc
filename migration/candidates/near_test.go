package candidates_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/migration/candidates"
	pc "berth/placementclient"
	"berth/topology"
)

// inAggregates is a canned Placement of which hosts are in aggregates; the guest is on
// host 0.
type inAggregates struct {
	canned
	members map[string][]int // by aggregate
	unknown bool             // it does not know the guest's host
	asked   []string         // about aggregates
	refuses string           // the question that it does not answer
}

func (p *inAggregates) ask(what string) error {
	if what == p.refuses {
		return fault.New(fault.Unavailable, "no answer")
	}
	p.asked = append(p.asked, what)
	return nil
}

func (p *inAggregates) Aggregates(_ context.Context, rp string) (pc.Aggregates, error) {
	if err := p.ask("aggregates"); err != nil {
		return pc.Aggregates{}, err
	}
	if p.unknown {
		return pc.Aggregates{}, fault.New(fault.NotFound, "no provider %s", rp)
	}
	var out pc.Aggregates
	for _, a := range slices.Sorted(maps.Keys(p.members)) {
		if slices.ContainsFunc(p.members[a], func(n int) bool { return p.uuid(n) == rp }) {
			out.Aggregates = append(out.Aggregates, a)
		}
	}
	return out, nil
}

func (p *inAggregates) Providers(ctx context.Context, f pc.ProviderFilter) ([]pc.ResourceProvider, error) {
	if len(f.MemberOf) == 0 {
		return p.canned.Providers(ctx, f)
	}
	if err := p.ask("in " + strings.Join(f.MemberOf, ",")); err != nil {
		return nil, err
	}
	var out []pc.ResourceProvider
	for _, a := range f.MemberOf {
		for _, n := range p.members[a] {
			out = append(out, pc.ResourceProvider{UUID: p.uuid(n)})
			// A child may be in an aggregate that its root is not in.
			out = append(out, pc.ResourceProvider{UUID: p.uuid(n + 1), ParentProviderUUID: p.uuid(n)})
		}
	}
	return out, nil
}

func (p *inAggregates) wish(near candidates.NearWeight) candidates.Wish {
	return candidates.Wish{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}, Source: p.uuid(0), Near: near}
}

// order is where a guest goes first: hosts by name, each with its weight where it has one.
func order(hosts []candidates.Host) string {
	var out []string
	for _, h := range hosts {
		name := h.Name
		if h.Weight != 0 {
			name += fmt.Sprintf("=%g", h.Weight)
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func TestFind_NearHostsGoFirstOrLast(t *testing.T) {
	rack := map[string][]int{"rack": {0, 3, 5}, "old": {5, 1}, "storage": {0, 1}}
	by := func(x float64, pairs ...any) candidates.NearWeight {
		w := candidates.NearWeight{Multiplier: x, ByAggregate: map[string]float64{}}
		for i := 0; i < len(pairs); i += 2 {
			w.ByAggregate[pairs[i].(string)] = pairs[i+1].(float64)
		}
		return w
	}
	const mine = "aggregates; in rack,storage"
	for _, tt := range []struct {
		name    string
		members map[string][]int
		near    candidates.NearWeight
		want    string
		asked   string
	}{
		{"nothing is configured", rack, candidates.NearWeight{}, "h2 h3 h1 h4 h5", ""},
		{"near", rack, by(10), "h3=10 h1=10 h5=10 h2 h4", mine},
		{"drained", rack, by(-10), "h2 h4 h3=-10 h1=-10 h5=-10", mine},
		{"0", rack, by(0, "old", 0.0), "h2 h3 h1 h4 h5", ""},
		{"an aggregate of its own weight", rack, by(10, "old", 20.0), "h1=20 h5=20 h3=10 h2 h4", mine + "; in old"},
		{"one aggregate is drained", rack, by(10, "old", -1.0), "h3=10 h2 h4 h1=-1 h5=-1", mine + "; in old"},
		{"one alone counts", rack, by(0, "old", 1.0), "h1=1 h5=1 h2 h3 h4", mine + "; in old"},
		{"0 in one", rack, by(10, "old", 0.0), "h3=10 h2 h1 h4 h5", mine + "; in old"},
		{"the smallest of several", rack, by(10, "old", 7.0, "rack", 5.0, "storage", 6.0), "h1=6 h3=5 h5=5 h2 h4", mine + "; in old; in rack; in storage"},
		{"an aggregate without hosts", rack, by(10, "gone", 7.0), "h3=10 h1=10 h5=10 h2 h4", mine + "; in gone"},
		{"far hosts of an aggregate weigh 0", map[string][]int{"rack": {0, 3}, "old": {4}}, by(10, "old", 20.0), "h3=10 h2 h1 h4 h5", "aggregates; in rack; in old"},
		{"the guest's host is in no aggregate", map[string][]int{"rack": {3}}, by(10, "rack", 20.0), "h2 h3 h1 h4 h5", "aggregates"},
		{"it is alone in its aggregate", map[string][]int{"rack": {0}}, by(10, "old", 20.0), "h2 h3 h1 h4 h5", "aggregates; in rack"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &inAggregates{canned: canned{used: map[int]int64{1: 30, 2: 10, 3: 20, 4: 40, 5: 50}, times: 1, mark: true}, members: tt.members}
			found, err := candidates.Find(t.Context(), p, p.wish(tt.near), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := order(found.Hosts); got != tt.want {
				t.Errorf("order %s, want %s", got, tt.want)
			}
			if got := strings.Join(p.asked, "; "); got != tt.asked {
				t.Errorf("asked %q, want %q", got, tt.asked)
			}
			for _, h := range found.Hosts {
				if _, weight := found.Nearness.Of(h.Root); weight != h.Weight {
					t.Errorf("%s weighs %g, and is known to weigh %g", h.Name, h.Weight, weight)
				}
			}
			if known := strings.Contains(tt.asked, "in "); found.Nearness.Known() != known {
				t.Errorf("nearness is known: %v, want %v", !known, known)
			}
		})
	}
}

func TestFind_ASourceThatPlacementDoesNotKnowIsNearToNobody(t *testing.T) {
	p := &inAggregates{canned: canned{used: map[int]int64{1: 0}, times: 1}, unknown: true}
	found, err := candidates.Find(t.Context(), p, p.wish(candidates.NearWeight{Multiplier: 10}), nil)
	if err != nil || order(found.Hosts) != "h1" || found.Nearness.Known() {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestFind_AWeightThatCannotBeAskedForIsAnError: a read error is no order of its own.
func TestFind_AWeightThatCannotBeAskedForIsAnError(t *testing.T) {
	for _, question := range []string{"aggregates", "in rack", "in old"} {
		p := &inAggregates{canned: canned{used: map[int]int64{1: 0, 2: 0}, times: 1}, members: map[string][]int{"rack": {0, 1}}, refuses: question}
		w := p.wish(candidates.NearWeight{Multiplier: 10, ByAggregate: map[string]float64{"old": 1}})
		if _, err := candidates.Find(t.Context(), p, w, nil); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "ask Placement") {
			t.Errorf("without an answer to %q: %v, want %v", question, err, fault.Unavailable)
		}
	}
}

// TestFind_OneHostIsNotWeighed: where there is nothing to choose.
func TestFind_OneHostIsNotWeighed(t *testing.T) {
	p := &inAggregates{canned: canned{used: map[int]int64{1: 0}, times: 1}, members: map[string][]int{"rack": {0, 1}}}
	found, err := candidates.Find(t.Context(), p, p.wish(candidates.NearWeight{Multiplier: 10}), func([]candidates.Host) bool { return true })
	if err != nil || order(found.Hosts) != "h1" || len(p.asked) > 0 {
		t.Errorf("%+v, %v; asked %v", found, err, p.asked)
	}
}

// TestFind_OrderIsTotalAndByWeight: over random fleets, whatever the order of the answers,
// hosts stand by weight and those of one weight as they would without; and near hosts
// stand before far ones or behind, by the sign of the one weight that there is.
func TestFind_OrderIsTotalAndByWeight(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	find := func(p *inAggregates, near candidates.NearWeight) candidates.Found {
		t.Helper()
		found, err := candidates.Find(t.Context(), p, p.wish(near), nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		return found
	}
	for range 100 {
		p := &inAggregates{canned: canned{used: map[int]int64{}, times: 1, mark: true}, members: map[string][]int{}}
		for n := range 1 + random.IntN(9) {
			p.used[n] = int64(random.IntN(3))
		}
		near := candidates.NearWeight{Multiplier: float64(random.IntN(5) - 2), ByAggregate: map[string]float64{}}
		for a := range random.IntN(4) {
			name := fmt.Sprint("aggregate-", a)
			for n := range p.used {
				if random.IntN(2) == 0 {
					p.members[name] = append(p.members[name], n)
				}
			}
			if random.IntN(3) == 0 {
				near.ByAggregate[name] = float64(random.IntN(5) - 2)
			}
		}
		plain, weighed := find(p, candidates.NearWeight{}), find(p, near)
		if again := find(p, near); order(again.Hosts) != order(weighed.Hosts) {
			t.Fatalf("seed %d: %s, and then %s", seed, order(weighed.Hosts), order(again.Hosts))
		}
		// A stable sort by weight of the order without weights is the only one.
		want := slices.Clone(plain.Hosts)
		for i := range want {
			_, want[i].Weight = weighed.Nearness.Of(want[i].Root)
		}
		slices.SortStableFunc(want, func(a, b candidates.Host) int { return cmp.Compare(b.Weight, a.Weight) })
		if order(want) != order(weighed.Hosts) {
			t.Fatalf("seed %d: %+v of %v:\n got %s\nwant %s", seed, near, p.members, order(weighed.Hosts), order(want))
		}
		if len(near.ByAggregate) > 0 {
			continue
		}
		sides := ""
		for _, h := range weighed.Hosts {
			side := "far"
			if is, _ := weighed.Nearness.Of(h.Root); is {
				side = "near"
			}
			if !strings.HasSuffix(sides, side) {
				sides += " " + side
			}
		}
		wrong := map[bool]string{true: "far near", false: "near far"}[near.Multiplier > 0]
		if near.Multiplier != 0 && strings.Contains(sides, wrong) {
			t.Fatalf("seed %d: weight %g gives%s", seed, near.Multiplier, sides)
		}
	}
}
