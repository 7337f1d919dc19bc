package lease

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
)

// TestKeeper_RefusedConnectionsProveNothingUnlessOtherHostsBearThemOut: a firewall in front of one
// host refuses as a dead etcd does, and that host has to be reset before its lease ends.
func TestKeeper_RefusedConnectionsProveNothingUnlessOtherHostsBearThemOut(t *testing.T) {
	without := api.StoreSeen{Asked: true, Age: time.Second}
	served := api.StoreSeen{Asked: true, Served: true, Age: time.Second}
	old := api.StoreSeen{Asked: true, Age: 5 * time.Second} // half of the window are 4 s
	for name, tt := range map[string]struct {
		others []api.StoreSeen // by host-0, host-1, …; one without a word is silent
		dead   int             // the last of them count as dead
		lives  bool
	}{
		"a fleet of one":                        {nil, 0, true},
		"the other of two is not served either": {[]api.StoreSeen{without}, 0, true},
		"the other of two is silent":            {[]api.StoreSeen{{}}, 0, false},
		"the other of two is served":            {[]api.StoreSeen{served}, 0, false},
		"the other of two says what was":        {[]api.StoreSeen{old}, 0, false},
		"the other of two counts as dead":       {[]api.StoreSeen{{}}, 1, true},
		"one of two others":                     {[]api.StoreSeen{without, {}}, 0, false},
		"two of three others":                   {[]api.StoreSeen{without, {}, without}, 0, false},
		"all of three others":                   {[]api.StoreSeen{without, without, without}, 0, true},
		"one side of a partition":               {[]api.StoreSeen{without, without, without, {}, {}}, 0, false},
		"two of four others":                    {[]api.StoreSeen{without, without, {}, {}}, 0, false},
		"all that answer are served but one":    {[]api.StoreSeen{without, served, served}, 0, false},
		"one that keeps no lease says nothing":  {[]api.StoreSeen{{Served: true}, without, without}, 0, false},
		"of those that are left after one died": {[]api.StoreSeen{without, without, {}, {}}, 1, false},
		"all that are left after two died":      {[]api.StoreSeen{without, without, {}, {}}, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			watch(t, func(t *testing.T, w *watched) {
				w.set(func() { w.others = map[string]api.StoreSeen{} })
				for i, word := range tt.others {
					host := "host-" + strconv.Itoa(i)
					if err := w.records.PutHost(t.Context(), fleet.Host{Name: host, Boot: "boot-1"}); err != nil {
						t.Fatal(err)
					}
					if i >= len(tt.others)-tt.dead {
						if _, err := w.records.DeclareDead(t.Context(), fleet.Death{Host: host, Proof: fleet.ProofFenced}); err != nil {
							t.Fatal(err)
						}
					}
					if word != (api.StoreSeen{}) {
						w.set(func() { w.others[host] = word })
					}
				}
				w.pass(2 * time.Minute) // who the others are is read each minute
				w.cut(true)
				w.set(func() { w.refused = true })
				if tt.lives {
					w.pass(time.Hour)
				} else {
					w.pass(20 * time.Second)
				}
				if was, _ := w.reset(); was == tt.lives {
					t.Fatalf("reset %v; the lease stands %v: %s", was, w.alive(), w.health("lease").Detail)
				}
				if ago := w.Keeper.now() - w.standing().Begun; tt.lives && len(w.others) > 0 && ago < without.Age {
					t.Errorf("fed by a proof of %s ago, of hosts that have asked before that", ago)
				}
				if c := w.health("lease"); tt.lives != (c.Reasons[0].Code == "lease_no_quorum") || !tt.lives && !strings.Contains(c.Detail, "etcd refuses") {
					t.Errorf("health of the lease %+v", c)
				}
				w.set(func() { w.broken = true }) // what follows is of a host that is not there any more
			})
		})
	}
}

// TestKeeper_HostThatIsNotAsked_DeclaresNoDeathByLease: a host that came back, or is new, is not asked
// whether the store serves it. So it must not take this one for dead by its lease.
func TestKeeper_HostThatIsNotAsked_DeclaresNoDeathByLease(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		elsewhere := w.elsewhere()
		put := func(host string) {
			if err := elsewhere.PutHost(t.Context(), fleet.Host{Name: host, Boot: "boot-1"}); err != nil {
				t.Fatal(err)
			}
		}
		put("agrees")
		put("returned")
		if _, err := elsewhere.DeclareDead(t.Context(), fleet.Death{Host: "returned", Proof: fleet.ProofFenced}); err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.others = map[string]api.StoreSeen{"agrees": {Asked: true, Age: time.Second}} })
		w.pass(2 * time.Minute)
		w.cut(true) // a firewall refuses, on the way of both
		w.set(func() { w.refused = true })
		if _, err := elsewhere.Return(t.Context(), "returned", "boot-2"); err != nil {
			t.Fatal(err)
		}
		put("new")
		for range 20 {
			w.pass(5 * time.Second)
			_ = elsewhere.WatchLapsed(t.Context())
			for _, host := range []string{"returned", "new"} {
				if _, err := elsewhere.DeclareDeadByLease(t.Context(), watchedHost, host, "operator:o"); !fault.HasReason(err, "not_a_witness") && !fault.HasReason(err, "lease_stands") {
					t.Fatalf("host %s is not asked, and declares it dead: %v", host, err)
				}
			}
		}
		if was, _ := w.reset(); was || w.alive() {
			t.Errorf("reset %t, the lease stands %t: the test looks at nothing", was, w.alive())
		}
		if _, err := elsewhere.DeclareDeadByLease(t.Context(), watchedHost, "returned", "operator:o"); !strings.Contains(fault.RemedyOf(err), "-c agrees") {
			t.Errorf("it is not said whom to ask: %v", err)
		}
		w.set(func() { w.broken = true })
	})
}

// TestKeeper_HostThatIsStillOnRecord_IsAsked: it counts as dead, and this host's record names it
// until it could be written.
func TestKeeper_HostThatIsStillOnRecord_IsAsked(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		elsewhere := w.elsewhere()
		for _, host := range []string{"agrees", "gone"} {
			if err := elsewhere.PutHost(t.Context(), fleet.Host{Name: host, Boot: "boot-1"}); err != nil {
				t.Fatal(err)
			}
		}
		w.set(func() { w.others = map[string]api.StoreSeen{"agrees": {Asked: true, Age: time.Second}} })
		w.pass(2 * time.Minute)
		w.set(func() { // its lease is renewed, and its record cannot be written
			w.fate = func(c fleettest.Call) fleettest.Outcome {
				if c.Write && c.Key == "hosts/"+watchedHost {
					return fleettest.Refused
				}
				return fleettest.Answered
			}
		})
		if _, err := elsewhere.DeclareDead(t.Context(), fleet.Death{Host: "gone", Proof: fleet.ProofFenced}); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * time.Minute)
		w.cut(true)
		w.set(func() { w.refused = true })
		w.pass(20 * time.Second)
		if was, _ := w.reset(); !was {
			t.Errorf("it is fed, though host gone may declare it dead: %s", w.health("lease").Detail)
		}
		w.set(func() { w.broken = true })
	})
}

// TestKeeper_TellsOthersHowTheStoreAnswers: with what it has seen itself, and how long ago.
func TestKeeper_TellsOthersHowTheStoreAnswers(t *testing.T) {
	watch(t, func(t *testing.T, w *watched) {
		w.pass(time.Minute)
		if got := w.StoreSeen(); !got.Asked || !got.Served || got.Age > 2*time.Second {
			t.Errorf("while it serves: %+v", got)
		}
		w.cut(true)
		w.pass(5 * time.Second)
		if got := w.StoreSeen(); !got.Asked || got.Served || got.Age > 2*time.Second {
			t.Errorf("while it does not: %+v", got)
		}
		w.set(func() { w.broken = true }) // it is not fed
	})
	for err, want := range map[error]bool{
		nil: true, fault.New(fault.Forbidden, "no"): true, fault.New(fault.Unavailable, "silent"): false, fault.New(fault.InDoubt, "lost"): false,
	} {
		if got := servedBy(err); got != want {
			t.Errorf("after %v it counts as served: %v", err, got)
		}
	}
}
