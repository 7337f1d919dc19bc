package watchdog

import (
	"fmt"
	"time"

	"berth/internal/fault"
)

// Slack is what a host may live on after its watchdog's time: timers that count in whole
// seconds, and the reset itself. Arbitrary: softdog counts in a timer of the kernel's, iTCO in
// steps of 0.6 s.
const Slack = 2 * time.Second

// shortestWindow leaves room for some renewals of the lease, a second apart, before one that
// is late starves the watchdog.
const shortestWindow = 4 * time.Second

// Budget is how the time of a lease is shared out. All times of this file are instants on one
// clock of this boot, which counts suspend too.
//
//	renewal begun                                                          the lease may end
//	|———— window: fed ————|—— a late keep-alive ——|—— the timeout ——|—— slack ——|
//	0            Lease − 2·Timeout − Slack    Lease − Timeout − Slack           Lease
type Budget struct {
	Lease   time.Duration // how long it stands after a renewal was begun, at least
	Timeout time.Duration // of the watchdog, as the device has taken it
}

// Margin is how long before Lease − Timeout the feeding ends. Between a look at the clock and
// the keep-alive that it allows the process may stand still, and for how long nothing bounds
// but the watchdog itself: had it stood longer than Timeout, the host would be reset.
func (b Budget) Margin() time.Duration { return b.Timeout + Slack }

// Window is how long after a renewal was begun the watchdog is fed by it.
func (b Budget) Window() time.Duration { return b.Lease - b.Timeout - b.Margin() }

// RenewEvery is how often a lease is renewed, and how long one renewal may take: four fit into
// the window, so that three may fail.
func (b Budget) RenewEvery() time.Duration { return max(b.Window()/4, shortestWindow/4) }

// FeedEvery is how often the watchdog is fed.
func (b Budget) FeedEvery() time.Duration { return min(b.Timeout/4, time.Second) }

// Check is fault.Invalid where lease and timeout do not go together.
func (b Budget) Check() error {
	if b.Window() >= shortestWindow {
		return nil
	}
	// The longest timeout in whole seconds, which is what devices count in.
	longest := ((b.Lease - Slack - shortestWindow) / 2).Truncate(time.Second)
	change := fmt.Sprintf("a lease of %s or more", 2*b.Timeout+Slack+shortestWindow)
	if longest >= time.Second {
		change += fmt.Sprintf(", or a timeout of %s or less", longest)
	}
	return fault.Refuse(fault.Invalid, "share out the lease", fault.Reason{
		Code: "self_fence_budget",
		Message: fmt.Sprintf("a lease of %s has no room for a watchdog of %s: the host must be reset before its lease ends, which takes twice the timeout and %s, and %s are left for renewals",
			b.Lease, b.Timeout, Slack, shortestWindow),
		Want: (2*b.Timeout + Slack + shortestWindow).String(), Have: b.Lease.String(), Change: change,
	})
}

// Chain is since when the lease is known to stand. The zero value is that it is not.
type Chain struct {
	// Begun is when the last successful renewal was begun, or the last proof that counts.
	Begun time.Duration
	// Known is false before the first renewal.
	Known bool
}

// Renewed is the chain after a renewal that has succeeded, begun then.
func (c Chain) Renewed(begun time.Duration) Chain {
	if c.Known && begun < c.Begun {
		return c // an answer that was overtaken
	}
	return Chain{Begun: begun, Known: true}
}

// Checkpoint is etcd's interval of lease checkpoints, where they are switched on: what is left of a
// longer lease is on record then, and it does not begin anew after an election.
const Checkpoint = 5 * time.Minute

// NoQuorum is the chain after a proof that the store served nobody at one moment between begun
// and ended. Leases that stood at that moment stand anew, in full, once it serves again. The
// proof says nothing of a lease that may have ended before, nor of one longer than Checkpoint.
func (c Chain) NoQuorum(b Budget, begun, ended time.Duration) Chain {
	if !c.Known || b.Lease > Checkpoint || begun < c.Begun || ended >= c.Begun+b.Lease {
		return c
	}
	return Chain{Begun: begun, Known: true}
}

// Decision is what a feeder does now.
type Decision string

// The decisions.
const (
	// Feed it: the reset, should nothing follow, comes before the lease ends.
	Feed Decision = "feed"
	// Starve it: nothing is known by which the lease stands long enough.
	Starve Decision = "starve"
	// Failed: the host should have been reset by now. The watchdog does not work, or its clock
	// stood still, as in suspend: it proves nothing.
	Failed Decision = "failed"
)

// Decide is whether to feed a watchdog now that was fed last at fed.
func Decide(b Budget, c Chain, now, fed time.Duration) Decision {
	switch {
	case now >= fed+b.Timeout+Slack:
		return Failed
	case b.May(c, now):
		return Feed
	}
	return Starve
}

// May says whether the watchdog may be opened or fed by this chain now.
func (b Budget) May(c Chain, now time.Duration) bool {
	return c.Known && now < c.Begun+b.Window()
}
