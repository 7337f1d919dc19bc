package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/agent/answers"
	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/drain"
)

// What should have happened by now and has not, for status: an answer, a step of a drain, a
// certificate that is taken up. Each is a function of what is in memory.

// answerLate is how long a question to Placement, or to a host of an open move, may stand without an
// answer; arbitrary, far above what an answer takes, and below what the clients wait.
const answerLate = 10 * time.Second

// placementSilent is the condition of a Placement that has been asked and does not answer;
// false where it answers, or was asked a moment ago.
func placementSilent(t answers.Times, now time.Time) (api.Condition, bool) {
	since, late := t.Late(now, answerLate)
	if !late {
		return api.Condition{}, false
	}
	detail := "Placement has not answered since " + since.UTC().Format(time.RFC3339)
	return api.Degraded("placement", detail, fault.Reason{
		Code: "placement_silent", Message: fmt.Sprintf("%s; a request has waited since %s", detail, t.Asked.UTC().Format(time.RFC3339)),
		Have: since.UTC().Format(time.RFC3339), Change: "berth doctor, which asks it; see to Placement and to the network to it",
	}), true
}

// loopLate is beyond the pause between two rounds of a loop: what a round may take in which each
// question ends by its own deadline. Arbitrary.
const loopLate = 5 * time.Minute

// The loops that ask others, by the names in the table of answers: the condition that each belongs to, and
// what it does.
const (
	loopPlacement = "reporter"
	loopAudit     = "audit"
	loopFleet     = "fleet records"
	loopHosts     = "other hosts"
	loopLibvirt   = "instances"
	loopMoves     = "sides of moves"
	loopArrivals  = "arrivals"
)

var loopWords = map[string]struct{ condition, does string }{
	loopPlacement: {"placement", "Placement was not compared with the host"},
	loopAudit:     {"allocations", "the allocations were not audited"},
	loopFleet:     {"fleet", "the store of the fleet's records has not answered"},
	loopHosts:     {"evacuation", "no look at the other hosts has ended"},
	loopLibvirt:   {"libvirt", "no look at libvirt's instances has ended"},
	loopMoves:     {"migrations", "no look at moves that wait for another host has ended"},
	loopArrivals:  {"migrations", "no look at instances that arrive has ended"},
}

// withLate adds to the conditions, each at its own, since when loops have not come round.
func withLate(list []api.Condition, late []answers.Silent) []api.Condition {
	for _, l := range late {
		w := loopWords[l.Part]
		message := fmt.Sprintf("%s since %s; it should at least every %s", w.does, l.Since.UTC().Format(time.RFC3339), l.Within)
		r := fault.Reason{
			Code: "no_answer_since", Message: message, Have: l.Since.UTC().Format(time.RFC3339),
			Change: "berth doctor, which asks each part; where it finds nothing, systemctl restart berth (instances go on)",
		}
		i := slices.IndexFunc(list, func(c api.Condition) bool { return c.Name == w.condition })
		switch {
		case i < 0:
			list = append(list, api.Degraded(w.condition, message, r))
		case list[i].Health == api.HealthOK:
			list[i] = api.Degraded(w.condition, message, append([]fault.Reason{r}, list[i].Reasons...)...)
		default:
			list[i].Detail += "; " + message
			list[i].Reasons = append(slices.Clip(list[i].Reasons), r)
		}
	}
	return list
}

// comesRound gives a run of a loop that asks others, of which status says when it has not come round
// within a time. Whoever runs notes the rounds in the table, by the same name.
func comesRound(a *Agent, loop string, within time.Duration, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		a.asked.Begin(loop, a.rt.Now(), within)
		defer a.asked.End(loop)
		return run(ctx)
	}
}

// sleeper is a runtime for a part that sleeps in one loop alone: each sleep is a round of it.
type sleeper struct {
	runtime.Runtime
	asked *answers.Table
	loop  string
}

// Sleep notes that the loop has come round, then sleeps.
func (s sleeper) Sleep(ctx context.Context, d time.Duration) error {
	s.asked.Round(s.loop, s.Now())
	return s.Runtime.Sleep(ctx, d)
}

// missedLately is how old an unanswered question to another host may be that still says something of it.
const missedLately = 5 * time.Minute

// silentParties are the hosts of open moves that have been asked and do not answer. of gives what
// this host knows of another one's answers.
func silentParties(list []migration.Migration, self string, of func(host string) answers.Times, now time.Time) []fault.Reason {
	var out []fault.Reason
	seen := map[string]bool{self: true, "": true}
	for _, m := range list {
		if m.Done() || m.Stage == migration.StageFinished {
			continue
		}
		parties := []string{m.DestCompute, m.Conductor}
		if m.MigrationType != migration.TypeEvacuation { // whose source is dead, and is not needed
			parties = append(parties, m.SourceCompute)
		}
		for _, host := range parties {
			t := of(host)
			since, late := t.Late(now, answerLate)
			if seen[host] || !late || now.Sub(t.Missed) > missedLately {
				continue
			}
			seen[host] = true
			at := since.UTC().Format(time.RFC3339)
			out = append(out, fault.Reason{
				Code: "no_answer_since", Message: fmt.Sprintf("host %s has not answered since %s, and migration %s of %s needs it", host, at, m.UUID, m.InstanceName), Have: at,
				Change: "start the agent on " + host + " (systemctl start berth), or see to the network to it; berth migration show " + m.UUID + " says what the move waits for",
			})
		}
	}
	return out
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
			Have: last.UTC().Format(time.RFC3339), Change: "berth host drain-status " + d.Host + ", which says what each instance waits for; or berth host drain-abort " + d.Host,
		})
	}
	if len(reasons) == 0 {
		return api.Condition{}, false
	}
	return api.Degraded("drains", reasons[0].Message, reasons...), true
}

// certificateEvery is how often the certificate files are held against what the agent uses.
const certificateEvery = time.Minute

// untaken looks for certificate files that nobody had the agent take up.
type untaken struct{ before bool }

// note says so in status where two looks in a row find it: files may be written one after the other.
func (u *untaken) note(a *Agent) {
	err := certificateNotTaken(a.config().PKI, a.identity, a.rt.Now())
	if err == nil || u.before {
		a.faults.note(partCertificate, err)
	}
	u.before = err != nil
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
