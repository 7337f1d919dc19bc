package sim

import (
	"context"
	"strings"
	"time"

	"berth/driver/drivertest"
)

// aim is one place that half of the runs break wherever they come to it. By chance alone
// most faults fall on what a fleet does most, and the messages and commits that decide a
// move are few.
type aim struct {
	at    string // how the point's name begins; or the phase of a migration
	fates []fate // one of them; none for an abort by the user
	dies  bool   // the agent does, after the effect: it will ask for it again
}

// aims are all of them.
func aims() []aim {
	message := []fate{requestLate, requestLate, twice, answerLost, requestLost}
	commit := []fate{answerLost, refused}
	return []aim{
		{at: "Claim on ", fates: message},
		{at: "Claim on ", fates: message[:1]}, // late claims and prepares are what tombstones are for
		{at: "PreLiveMigration on ", fates: message},
		{at: "PreLiveMigration on ", fates: message[:1]},
		{at: "AcceptToken on ", fates: message},
		{at: "FinishDestination on ", fates: message},
		{at: "AbortClaim on ", fates: message},
		{at: "RollbackPreLiveMigration on ", fates: message},
		{at: "CopyInstance on ", fates: message},
		{at: "PrepResize on ", fates: message[:1]},
		{at: "PowerOff on ", fates: message[:1]},
		{at: "Disconnect on ", fates: message[:1]},
		{at: "HandOver on ", dies: true},
		{at: "AcceptHanded on ", fates: message},
		{at: "ShowInstance on ", dies: true},
		{at: "placement POST ", fates: []fate{requestLate, requestLate, answerLost, raced}},
		{at: "placement DELETE ", fates: []fate{requestLate, answerLost, refused}},
		{at: "put halves/", fates: commit},
		{at: "put instances/", fates: commit},
		{at: "put claims/", fates: commit},
		{at: "delete claims/", fates: commit},
		{at: "libvirt Migrate", fates: []fate{answerLost, answerLost, requestLost}},
		{at: "StartStream on "},
		{at: "StartStream on ", dies: true},
		{at: "Commit on ", dies: true},
		{at: "Commit on ", dies: true},
		{at: "EndStream on ", dies: true},
		{at: "StartPostCopy on ", dies: true},
		{at: "RecoverPostCopy on ", dies: true},
		{at: "libvirt StartPostCopy", fates: []fate{answerLost, requestLost}},
		{at: drivertest.PhaseFinish},
		{at: drivertest.PhaseFinish},
		{at: drivertest.PhaseConfirm},
		{at: drivertest.PhaseConfirm},
	}
}

// lateAims are those of stories in which hosts die: what decides an evacuation is a commit of the
// fleet's records, and who is prepared for it.
func lateAims() []aim {
	late := []fate{requestLate, requestLate, requestLate, answerLost}
	return []aim{
		{at: "records put instances/", fates: late},
		{at: "records put instances/", dies: true},
		{at: "records put deaths/", fates: late},
		{at: "records put hosts/", fates: late},
		{at: "PrepEvacuation on ", fates: late},
		{at: "AcceptEvacuated on ", fates: late},
		{at: "FinishEvacuation on ", dies: true},
		{at: "records delete evacuated/", dies: true},
	}
}

// shots is how often a run breaks what it aims at.
const shots = 2

// takeAim draws a run's aim, or none.
func (c *chaos) takeAim() {
	all := aims()
	if c.w.story.Records {
		all = lateAims()
	}
	if c.rng.IntN(2) == 0 {
		c.aim, c.shots = &all[c.rng.IntN(len(all))], shots
	}
}

// aimed says whether a run aims at a point, and hits it.
func (c *chaos) aimed(what string) bool {
	if c.aim == nil || c.shots == 0 || !strings.HasPrefix(what, c.aim.at) || c.rng.IntN(3) == 0 {
		return false
	}
	c.shots--
	c.budget--
	return true
}

// aimedFate is what becomes of a point that was hit.
func (c *chaos) aimedFate(a *agent) fate {
	if c.aim.dies {
		a.m.kill(c.downtime())
		return goesWell
	}
	if len(c.aim.fates) == 0 {
		c.abort(a.m, 10*time.Millisecond)
		return goesWell
	}
	return c.impatient(a, c.aim.fates[c.rng.IntN(len(c.aim.fates))])
}

// phase is asked when a migration comes to a phase.
func (c *chaos) phase(phase, uuid string) {
	if c.spent() || !c.aimed(phase) {
		return
	}
	if h := c.w.holders(uuid); len(h) == 1 {
		c.abort(c.w.machines[h[0]], time.Duration(c.rng.IntN(10))*time.Millisecond)
	}
}

// abort has users abort their moves from a host.
func (c *chaos) abort(from *machine, after time.Duration) {
	a := from.agent
	if a == nil || a.dead() || !a.ready {
		return
	}
	for _, m := range c.w.moves {
		if m.by != from.name || !m.accepted {
			continue
		}
		a.process.Go("abort", func() {
			_ = a.process.Sleep(context.Background(), after)
			_ = a.conductor.Abort(context.Background(), m.uuid) // or it comes too late
		})
	}
}
