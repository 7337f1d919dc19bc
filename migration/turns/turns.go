package turns

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
)

// The codes of the reasons by which a move waits.
const (
	CodeOutbound = "outbound_limit" // as many as may leave this host are under way
	CodeLink     = "link_limit"     // as many as may go between two hosts
	CodeInbound  = "inbound_limit"  // as many as may come to the destination, which has said so
)

// Limits bound how many moves are under way at once; 0 is no bound.
type Limits struct {
	Outbound int // from this host: [migration] max_outbound
	PerLink  int // between this host and one other: [migration] max_per_link
}

// Move is one that is under way, or waits.
type Move struct {
	ID       string // uuid
	Priority int
	Asked    time.Time // when it was asked for
	// To is its destination; empty before one is chosen, and then it needs no turn of a link.
	To string
	// Asks: its destination had it wait, and is asked again, or is to be.
	Asks bool
}

// State is all that is known on one host.
type State struct {
	Host string // this one, in the words of reasons
	Limits
	Under   []Move // hold their turns
	Waiting []Move // would go at once
	// Paused were told by their destinations to wait, and ask again after a pause.
	Paused []Move
	// Incoming is how many guests are on their way here, by the host that they come from: a
	// link has one bound for both directions. A host that is not in it sends none.
	Incoming map[string]int
}

// Decision is what follows from a State.
type Decision struct {
	Go []string // in their order; each takes its turns with that
	// Waits is what each of those that wait waits for: every limit that keeps it.
	Waits map[string][]fault.Reason
}

// Decide says who may go. It is a function of its argument.
func Decide(s State) Decision {
	d := Decision{Waits: map[string][]fault.Reason{}}
	under, link := len(s.Under), map[string]int{}
	for host, n := range s.Incoming {
		link[host] += n
	}
	for _, m := range s.Under {
		link[m.To]++
	}
	waiting := slices.SortedFunc(slices.Values(s.Waiting), Order)
	behind, behindAt := 0, map[string]int{} // those that wait for a turn, or for one of a link
	room := slices.Clone(s.Paused)          // those that wait for room, or ask for it
	for _, m := range s.Under {
		if m.Asks {
			room = append(room, m)
		}
	}
	for _, m := range waiting {
		var why []fault.Reason
		if s.Outbound > 0 && under >= s.Outbound {
			why = append(why, s.outbound(under, behind))
		}
		if m.To != "" && s.PerLink > 0 && link[m.To] >= s.PerLink {
			why = append(why, s.link(m.To, link[m.To], behindAt[m.To]))
		}
		if n := before(room, m); n > 0 {
			n += behindAt[m.To] // they wait for the same, behind those
			why = append(why, fault.Reason{
				Code:    CodeInbound,
				Message: fmt.Sprintf("%s of %s's own %s before it for room at %s, where as many guests as may come are on their way", count(n, "move"), s.Host, waits(n), m.To),
				Want:    "0 before it", Have: fmt.Sprint(n),
				Change: "wait, ask for it with a higher priority, name another destination, or raise [migration] max_inbound on " + m.To,
			})
		}
		if len(why) == 0 {
			under++
			link[m.To]++
			if d.Go = append(d.Go, m.ID); m.Asks {
				room = append(room, m)
			}
			continue
		}
		d.Waits[m.ID] = why
		behind++
		behindAt[m.To]++
	}
	return d
}

// Order compares two moves by who goes first.
func Order(a, b Move) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Asked.Compare(b.Asked), cmp.Compare(a.ID, b.ID))
}

// before counts those of some moves that have the destination of this one, and go before it.
func before(some []Move, m Move) int {
	n := 0
	for _, o := range some {
		if m.To != "" && o.To == m.To && Order(o, m) < 0 {
			n++
		}
	}
	return n
}

func (s State) outbound(under, ahead int) fault.Reason {
	return fault.Reason{
		Code:    CodeOutbound,
		Message: fmt.Sprintf("%s (limit %d)%s", leaving(under, s.Host), s.Outbound, others(ahead)),
		Want:    fmt.Sprintf("fewer than %d", s.Outbound), Have: fmt.Sprint(under),
		Change: "wait until one of them has come, ask for it with a higher priority, or raise [migration] max_outbound on " + s.Host,
	}
}

func (s State) link(to string, under, ahead int) fault.Reason {
	return fault.Reason{
		Code:    CodeLink,
		Message: fmt.Sprintf("%s on the way between %s and %s (limit %d)%s", are(under), s.Host, to, s.PerLink, others(ahead)),
		Want:    fmt.Sprintf("fewer than %d", s.PerLink), Have: fmt.Sprint(under),
		Change: "wait until one of them has come, name another destination, or raise [migration] max_per_link on " + s.Host,
	}
}

func leaving(n int, host string) string {
	if n == 1 {
		return "1 guest leaves " + host
	}
	return fmt.Sprintf("%d guests leave %s", n, host)
}

func are(n int) string {
	if n == 1 {
		return "1 guest is"
	}
	return fmt.Sprintf("%d guests are", n)
}

func waits(n int) string {
	if n == 1 {
		return "waits"
	}
	return "wait"
}

// others says how many wait before a move.
func others(n int) string {
	if n == 0 {
		return "; it is the next"
	}
	return fmt.Sprintf("; %s %s before it", count(n, "move"), waits(n))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
