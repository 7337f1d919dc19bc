package stream

import "time"

// quiet bounds the lines that strangers can have written: ten at once, then one in
// ten seconds. Arbitrary.
type quiet struct {
	spent  int
	since  time.Duration
	unsaid int
}

func (q *quiet) may(now time.Duration) (say bool, unsaid int) {
	const burst, pause = 10, 10 * time.Second
	if back := int((now - q.since) / pause); back > 0 {
		q.spent = max(0, q.spent-back)
		q.since = now
	}
	if q.spent >= burst {
		q.unsaid++
		return false, 0
	}
	q.spent++
	unsaid, q.unsaid = q.unsaid, 0
	return true, unsaid
}
