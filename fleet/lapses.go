package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/internal/fault"
)

// A lease can end early: a leader of etcd that stood still, and was replaced meanwhile, ends
// leases by its own clock that were renewed with its successor (etcd before 3.4.27 and 3.5.8).
// So one that is over proves nothing at once. Its host renews several times within a length, and
// has it again at the next of them if it can; if it cannot, it is reset a length after the last.
// Who has seen for a whole length that there is none has seen that it did not come back.

// lapse is what this process has seen of a lease that is over. All times are on the boot clock,
// which counts suspend.
type lapse struct {
	since, looked time.Duration // it was over at every look from the first to the last; since is -1 where it was not
	asked         time.Duration // for the host's death, the last time
	length        time.Duration
}

// unknownLength is taken for a lease whose length its host has not told. Arbitrary: twice the
// default of [fleet] lease.
const unknownLength Seconds = 60

// watchAsked is for how long after its length a lease is looked at for which nobody asks any
// more. Arbitrary: an operator who comes back when he was told to.
const watchAsked = 2 * time.Minute

// lapsed looks at the lease of a host whose death is asked for, and says for how long it has still
// to be over. fault.Forbidden, with reason lease_stands, where it is not.
func (r *Records) lapsed(ctx context.Context, host string, length Seconds) (left time.Duration, err error) {
	if length <= 0 {
		length = unknownLength
	}
	r.mu.Lock()
	l := r.lapses[host]
	if l == nil {
		l = &lapse{since: -1}
		r.lapses[host] = l
	}
	l.asked, l.length = r.rt.Boot().Since, time.Duration(length)*time.Second
	r.mu.Unlock()
	return r.look(ctx, host)
}

// look reads a lease once. Half of a length without a look, or one that failed, and what was seen
// before does not count any more: it may have been there in between.
func (r *Records) look(ctx context.Context, host string) (left time.Duration, err error) {
	begun := r.rt.Boot().Since
	var boot string
	rev, err := r.read(ctx, alivePrefix+host, &boot)
	ended := r.rt.Boot().Since
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.lapses[host]
	switch {
	case l == nil:
		l = &lapse{since: -1} // nobody asks any more
	case err != nil || rev != 0:
		l.since = -1
	case l.since < 0 || ended > l.looked+l.length/2:
		// The first look counts from its end, and the last until its begin.
		l.since, l.looked = ended, ended
	default:
		l.looked = max(l.looked, begun)
	}
	switch {
	case err != nil:
		return 0, err
	case rev != 0:
		return 0, refuse(ReasonLeaseStands, "host "+host+" is alive: its lease stands", "wait until it is over, or fence the host")
	case l.since < 0:
		return unknownLength.duration(), nil
	}
	return max(l.length-(l.looked-l.since), 0), nil
}

func (s Seconds) duration() time.Duration { return time.Duration(s) * time.Second }

// WatchLapsed looks again at each lease that was over when the death of its host was asked for,
// so that it is known how long it is over when somebody asks again. It is to be called
// every second or two. Without anybody who has asked it reads nothing.
func (r *Records) WatchLapsed(ctx context.Context) error {
	now := r.rt.Boot().Since
	var hosts []string
	r.mu.Lock()
	for host, l := range r.lapses {
		if now > l.asked+l.length+watchAsked {
			delete(r.lapses, host)
			continue
		}
		hosts = append(hosts, host)
	}
	r.mu.Unlock()
	var failed error
	for _, host := range hosts {
		if _, err := r.look(ctx, host); err != nil && !errors.Is(err, fault.Forbidden) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func lately(host string, left time.Duration) error {
	left = (left + time.Second - 1).Truncate(time.Second)
	return fault.Refuse(fault.Busy, "", fault.Reason{
		Code:    ReasonLeaseOverLately,
		Message: fmt.Sprintf("the lease of host %s is over, and has to be seen so for %s more: it can end early, and the host's watchdog then needs that long", host, left),
		Have:    left.String(), Change: "ask again in " + left.String() + ", or fence the host",
	})
}

// ReasonLeaseStands is the reason's code where a host is alive by its lease.
const ReasonLeaseStands = "lease_stands"

// ReasonLeaseOverLately is the reason's code of a death by a lease that is over for too short a
// time; Have is how long it still takes.
const ReasonLeaseOverLately = "lease_over_lately"
