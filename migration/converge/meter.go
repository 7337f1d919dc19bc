package converge

import "time"

// Smoothing. A window is a second, since a hypervisor that holds itself to a bandwidth sends in
// bursts of a tenth; of two looks in a row nothing can be told.
const (
	window = time.Second
	// newest is what the newest window, and the newest pass, weigh: after three of them a
	// change is seen for nearly four fifths.
	newest = 0.4
	// usually is the same of the rate that the link has as a rule: ten windows.
	usually = 0.1
	// collapsed is the part of the usual rate below which the network is in trouble: half of
	// it is no noise, and what another transfer beside leaves is a third at worst.
	collapsed = 0.5
	// lasting is after how long a low rate is the usual one. A link whose other half failed,
	// or a bound that somebody set, does not come back.
	lasting = 20 * time.Second
)

// meter tells the rates of a transfer.
type meter struct {
	at   time.Duration // when the window began
	sent uint64        // in it, on the wire
	gone uint64        // in it, of what is to be sent: pages of zeroes are gone for nothing

	wire  float64 // smoothed, bytes a second; 0 for unknown
	drain float64 // smoothed, of what is to be sent
	usual float64 // what the link gives as a rule; 0 for unknown

	slow      bool // the link has broken down
	slowSince time.Duration
	mixed     bool // the window began before another bandwidth was set
}

// anew is the meter of a link to which another bandwidth is given.
func (m meter) anew(at time.Duration) meter {
	return meter{at: at, wire: m.wire, drain: m.drain, mixed: true}
}

// add takes what happened between two looks.
func (m meter) add(before, x Sample) meter {
	sent, again := less(x.MemoryProcessed+x.DiskProcessed, before.MemoryProcessed+before.DiskProcessed)
	if again || x.At < before.At {
		return meter{at: x.At} // another job
	}
	gone := sent
	if x.Iteration == before.Iteration {
		if d, grown := less(before.MemoryRemaining+before.DiskRemaining, x.MemoryRemaining+x.DiskRemaining); !grown {
			gone = max(gone, d)
		}
	}
	m.sent, m.gone = m.sent+sent, m.gone+gone
	if x.At-m.at < window {
		return m
	}
	seconds := (x.At - m.at).Seconds()
	wire, drain := float64(m.sent)/seconds, float64(m.gone)/seconds
	slow := m.usual > 0 && drain < m.usual*collapsed
	switch {
	case slow && !m.slow:
		m.slowSince = m.at
	case slow && x.At-m.slowSince >= lasting:
		slow, m.usual = false, wire
	}
	m.slow = slow
	if !slow && !m.mixed {
		m.usual = smooth(m.usual, wire, usually)
	}
	m.mixed = false
	m.wire, m.drain = smooth(m.wire, wire, newest), smooth(m.drain, drain, newest)
	m.at, m.sent, m.gone = x.At, 0, 0
	return m
}

// less is a − b, or true where b is more.
func less(a, b uint64) (uint64, bool) {
	if b > a {
		return 0, true
	}
	return a - b, false
}

// smooth is an exponentially weighted mean; its first value is the first that is seen.
func smooth(mean, value, weight float64) float64 {
	if mean == 0 {
		return value
	}
	return mean + weight*(value-mean)
}
