package watchdog

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"berth/internal/fault"
)

// TestChain_NoQuorum_LeaseLongerThanACheckpoint_ProvesNothing: what is left of it may be on record.
func TestChain_NoQuorum_LeaseLongerThanACheckpoint_ProvesNothing(t *testing.T) {
	begun := time.Minute
	for lease, want := range map[time.Duration]time.Duration{Checkpoint: 2 * begun, Checkpoint + time.Second: begun} {
		b := Budget{Lease: lease, Timeout: 10 * time.Second}
		if got := (Chain{}).Renewed(begun).NoQuorum(b, 2*begun, 2*begun+time.Second); got.Begun != want {
			t.Errorf("a lease of %s counts from %s, want %s", lease, got.Begun, want)
		}
	}
}

func TestBudget_LeaseTimeoutAndRenewalsMustFit(t *testing.T) {
	for _, tt := range []struct {
		lease, timeout time.Duration
		fits           bool
		window, every  time.Duration
	}{
		{30 * time.Second, 10 * time.Second, true, 8 * time.Second, 2 * time.Second},
		{26 * time.Second, 10 * time.Second, true, 4 * time.Second, time.Second},
		{25 * time.Second, 10 * time.Second, false, 3 * time.Second, time.Second},
		{8 * time.Second, time.Second, true, 4 * time.Second, time.Second},
		{7 * time.Second, time.Second, false, 3 * time.Second, time.Second},
		{3 * time.Second, time.Hour, false, 3*time.Second - 2*time.Hour - 2*time.Second, time.Second},
	} {
		b := Budget{Lease: tt.lease, Timeout: tt.timeout}
		err := b.Check()
		if (err == nil) != tt.fits || err != nil && !errors.Is(err, fault.Invalid) {
			t.Errorf("%v: %v, want it to fit: %v", b, err, tt.fits)
		}
		if b.Window() != tt.window || b.RenewEvery() != tt.every {
			t.Errorf("%v: window %s, renewed every %s", b, b.Window(), b.RenewEvery())
		}
	}
	reasons := fault.ReasonsOf(Budget{Lease: 25 * time.Second, Timeout: 10 * time.Second}.Check())
	if len(reasons) != 1 || reasons[0].Change != "a lease of 26s or more, or a timeout of 9s or less" {
		t.Errorf("what would have to change: %+v", reasons)
	}
}

func TestDecide_AtItsEdges(t *testing.T) {
	b := Budget{Lease: 30 * time.Second, Timeout: 10 * time.Second} // window 8 s
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	renewed := Chain{}.Renewed(at(100))
	for _, tt := range []struct {
		name     string
		chain    Chain
		now, fed time.Duration
		want     Decision
	}{
		{"right after the renewal", renewed, at(100), at(99), Feed},
		{"at the last moment of the window", renewed, at(108) - 1, at(107), Feed},
		{"at its end", renewed, at(108), at(107), Starve},
		{"nothing was ever renewed", Chain{}, at(1), at(0), Starve},
		{"a proof begins the window anew", renewed.NoQuorum(b, at(107), at(110)), at(115) - 1, at(114), Feed},
		{"and no longer", renewed.NoQuorum(b, at(107), at(110)), at(115), at(114), Starve},
		{"a proof that ended as the lease may have is none", renewed.NoQuorum(b, at(129), at(130)), at(130), at(129), Starve},
		{"one that ended right before is one", renewed.NoQuorum(b, at(129), at(130)-1), at(130), at(129), Feed},
		{"a proof without a lease before it is none", Chain{}.NoQuorum(b, at(100), at(101)), at(102), at(101), Starve},
		{"a proof that began before the renewal adds nothing", renewed.NoQuorum(b, at(99), at(101)), at(108), at(107), Starve},
		{"an overtaken renewal takes nothing back", renewed.Renewed(at(90)), at(108) - 1, at(107), Feed},
		{"the watchdog's time is over, and the slack is not", renewed, at(106), at(94) + 1, Feed},
		{"the host should have been reset", renewed, at(106), at(94), Failed},
		{"the same without a window", renewed, at(120), at(107), Failed},
	} {
		if got := Decide(b, tt.chain, tt.now, tt.fed); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// world is a store with a lease, a watchdog and their host, in steps of 10 ms. It knows what
// the host does not: when the lease ends.
type world struct {
	t    *testing.T
	rnd  *rand.Rand
	seed uint64
	b    Budget
	now  time.Duration
	ends time.Duration // of the lease, while the store has a quorum
	// quorum: the store serves, and lets leases end.
	quorum bool
	// resets is when the watchdog does, with this device's own lateness within the slack.
	resets   time.Duration
	lateness time.Duration
	call     *call // of the host to the store; nil for none
	chain    Chain
}

// call is a renewal or, where the store does not serve, a proof of that: it arrives at some
// moment, and its answer is there at a later one.
type call struct {
	begun, arrives, ends time.Duration
	lostThere, lostBack  bool
	served, refused      bool // what the store did at its arrival
}

const tick = 10 * time.Millisecond

// pass lets time go by, and says whether the host is still there.
func (w *world) pass(d time.Duration) bool {
	for end := w.now + d; ; w.now += tick {
		if w.now >= w.resets {
			return false
		}
		if w.quorum && w.now >= w.ends {
			w.t.Fatalf("seed %d: at %s the lease is over and the host runs: it is reset at %s", w.seed, w.now, w.resets)
		}
		if c := w.call; c != nil && w.now == c.arrives && !c.lostThere {
			if c.served, c.refused = w.quorum, !w.quorum; c.served {
				w.ends = w.now + w.b.Lease
			}
		}
		if w.now >= end {
			return true
		}
	}
}

func (w *world) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rnd.Int64N(int64(d)/int64(tick)+1)) * tick
}

// hear takes an answer that has come.
func (w *world) hear() {
	c := w.call
	if c == nil || w.now < c.ends {
		return
	}
	w.call = nil
	switch {
	case c.lostBack:
	case c.served:
		w.chain = w.chain.Renewed(c.begun)
	case c.refused:
		w.chain = w.chain.NoQuorum(w.b, c.begun, w.now)
	}
}

// live has a host with that many things in ten going wrong, and says whether it is there at the
// end. One that is not was reset in time.
func live(t *testing.T, seed uint64, wrongs int) bool {
	w := &world{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 9)), quorum: true}
	wrong := func() bool { return w.rnd.IntN(10) < wrongs }
	timeout := time.Duration(1+w.rnd.IntN(10)) * time.Second
	w.b = Budget{Lease: 2*timeout + Slack + shortestWindow + w.upTo(20*time.Second).Truncate(time.Second), Timeout: timeout}
	if err := w.b.Check(); err != nil {
		t.Fatal(err)
	}
	// The lease was taken, and the device opened and armed.
	w.chain, w.ends = Chain{}.Renewed(w.now), w.now+w.b.Lease
	w.lateness = w.upTo(Slack - 2*tick)
	w.resets = w.now + timeout + w.lateness
	fed, renewAt := w.now, w.now
	stall := func() bool { // of the process, anywhere
		return !wrong() || w.rnd.IntN(40) > 0 || w.pass(w.upTo(w.b.Timeout+Slack))
	}
	for range 300 {
		w.hear()
		if w.call == nil && w.now >= renewAt {
			half := w.upTo(w.b.RenewEvery() / 4)
			if wrong() {
				half = w.upTo(w.b.RenewEvery() / 2)
			}
			w.call = &call{begun: w.now, arrives: w.now + half, ends: w.now + 2*half, lostThere: wrong(), lostBack: wrong()}
			renewAt = w.now + w.b.RenewEvery()
		}
		if Decide(w.b, w.chain, w.now, fed) == Feed {
			if !stall() { // between the look at the clock and the keep-alive
				break
			}
			w.resets = w.now + timeout + w.lateness
			if !stall() {
				break
			}
			fed = w.now
		}
		if wrong() && w.rnd.IntN(20) == 0 {
			if w.quorum = !w.quorum; w.quorum {
				w.ends = w.now + w.b.Lease // a new leader has every lease begin anew
			}
		}
		if !w.pass(w.b.FeedEvery()) {
			break
		}
	}
	if w.now < w.resets {
		return true
	}
	if w.quorum && w.ends < w.resets {
		t.Fatalf("seed %d: the lease ends at %s, before the reset at %s", seed, w.ends, w.resets)
	}
	return false
}

// TestFeeding_TheResetComesBeforeTheLeaseEnds lives through renewals that are slow, lost on their
// way there or back, stores that come and go, and a feeder that stands still anywhere for as long
// as the watchdog lets it.
func TestFeeding_TheResetComesBeforeTheLeaseEnds(t *testing.T) {
	resets, survived := 0, 0
	for seed := range uint64(600) {
		wrongs := int(seed % 6)
		switch {
		case live(t, seed, wrongs):
			survived++
		case wrongs == 0:
			t.Fatalf("seed %d: a sound host was reset", seed)
		default:
			resets++
		}
	}
	if resets < 100 || survived < 200 {
		t.Errorf("%d resets and %d that lived on: the test looks at one side only", resets, survived)
	}
}
