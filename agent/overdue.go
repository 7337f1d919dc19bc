package agent

import (
	"fmt"
	"time"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration/drain"
)

// What should have happened by now and has not, for status: an answer, a step of a drain, a
// certificate that is taken up. Each is a function of what is in memory.

// answerLate is how long a question to Placement may stand without an answer; arbitrary, far
// above what an answer takes, and below what the client waits.
const answerLate = 10 * time.Second

// placementSilent is the condition of a Placement that has been asked and does not answer;
// false where it answers, or was asked a moment ago.
func placementSilent(asked, answered, now time.Time) (api.Condition, bool) {
	if asked.IsZero() || now.Sub(asked) < answerLate {
		return api.Condition{}, false
	}
	since := asked
	if !answered.IsZero() {
		since = answered
	}
	detail := "Placement has not answered since " + since.UTC().Format(time.RFC3339)
	return bad("placement", detail, fault.Reason{
		Code: "placement_silent", Message: fmt.Sprintf("%s; a request has waited since %s", detail, asked.UTC().Format(time.RFC3339)),
		Have: since.UTC().Format(time.RFC3339), Change: "berth doctor, which asks it; see to Placement and to the network to it",
	}), true
}

// After these times a drain in which nothing begins or ends is called stuck. Both are arbitrary:
// between two tries of one instance lie minutes, and one large instance may move for an hour.
const (
	drainStuck       = 5 * time.Minute // and nothing moves
	drainStuckMoving = time.Hour       // and something moves
)

// stuckDrains is the condition of drains in which nothing has begun or ended for long; false
// for none.
func stuckDrains(list []drain.Drain, now time.Time) (api.Condition, bool) {
	var reasons []fault.Reason
	for _, d := range list {
		if d.State.Over() {
			continue
		}
		last, moving, waiting := d.BegunAt, 0, []drain.Guest(nil)
		for _, g := range d.Guests {
			for _, at := range []time.Time{g.BegunAt, g.EndedAt} {
				if at.After(last) {
					last = at
				}
			}
			switch g.State {
			case drain.Moving:
				moving++
			case drain.Waiting, drain.Failed:
				waiting = append(waiting, g)
			}
		}
		limit := drainStuck
		if moving > 0 {
			limit = drainStuckMoving
		}
		if now.Sub(last) < limit {
			continue
		}
		why := fmt.Sprintf("%d instances move, %d wait", moving, len(waiting))
		for _, g := range waiting {
			if len(g.Reasons) > 0 {
				why += "; " + g.Name + ": " + g.Reasons[0].Message
				break
			}
		}
		reasons = append(reasons, fault.Reason{
			Code: "drain_stuck", Message: fmt.Sprintf("the drain of %s is stuck: nothing has begun or ended since %s; %s", d.Host, last.UTC().Format(time.RFC3339), why),
			Have: last.UTC().Format(time.RFC3339), Change: "berth drain status " + d.Host + ", which says what each instance waits for; or berth drain abort " + d.Host,
		})
	}
	if len(reasons) == 0 {
		return api.Condition{}, false
	}
	return bad("drains", reasons[0].Message, reasons...), true
}

// certificateNotTaken is why the certificate files are not what the agent shows other hosts; nil
// where they are, and where it has shown none. It reads three files.
func certificateNotTaken(c config.PKI, used *pki.Identity, now time.Time) error {
	if used == nil {
		return nil
	}
	const restart = "systemctl restart berth (instances go on)"
	found, err := pki.Load(pki.Paths{CA: c.CA, Cert: c.Cert, Key: c.Key}, now)
	switch {
	case err != nil:
		return fault.Refuse(fault.Invalid, "take the certificate files", fault.Reason{
			Code: "certificate_not_taken", Message: "the certificate files are not good, and the agent uses those that it was started with: " + err.Error(),
			Change: "correct the files, then " + restart,
		})
	case !found.Leaf.Equal(used.Leaf):
		return fault.Refuse(fault.Invalid, "take the certificate files", fault.Reason{
			Code: "certificate_not_taken", Message: fmt.Sprintf("%s has a certificate that is good until %s, and the agent uses the one that it was started with, good until %s",
				c.Cert, found.Leaf.NotAfter.UTC().Format(time.RFC3339), used.Leaf.NotAfter.UTC().Format(time.RFC3339)),
			Change: restart,
		})
	}
	return nil
}
