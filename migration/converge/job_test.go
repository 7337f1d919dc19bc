package converge

import (
	"math/rand/v2"
	"time"
)

const mib = 1 << 20

// job is a guest that is sent by a hypervisor: passes as QEMU makes them, by which the guest is
// held back or let go, and a link. It does what it is told.
type job struct {
	total  float64                                    // bytes
	dirty  func(at time.Duration) (set, rate float64) // what is written anew, and how fast: bytes, bytes a second
	link   func(at time.Duration) float64             // bytes a second
	setup  time.Duration
	disk   float64 // bytes, sent first
	told   bool    // the hypervisor tells the dirty rate
	offset uint64  // what its counter begins with

	at        time.Duration
	ceiling   time.Duration
	suspended bool
	postCopy  bool
	ended     bool
	aborted   bool

	iteration uint64
	remaining float64
	written   float64 // since the pass began
	passAt    time.Duration
	lastDirty float64
	processed float64
	diskSent  float64
}

// tick is the step of the model.
const tick = 10 * time.Millisecond

// run lets time pass.
func (j *job) run(d time.Duration) {
	for end := j.at + d; j.at < end && !j.over(); j.at += tick {
		j.step()
	}
}

func (j *job) over() bool { return j.ended || j.aborted || j.postCopy }

func (j *job) step() {
	if j.at < j.setup {
		return
	}
	room := j.link(j.at) * tick.Seconds()
	if j.diskSent < j.disk {
		j.diskSent += min(room, j.disk-j.diskSent)
		return
	}
	if j.iteration == 0 {
		j.iteration, j.remaining, j.passAt = j.offset+1, j.total, j.at
	}
	sent := min(room, j.remaining)
	j.remaining, j.processed = j.remaining-sent, j.processed+sent
	set, rate := j.dirty(j.at)
	if !j.suspended {
		j.written = min(max(set, j.written), j.written+rate*tick.Seconds())
	}
	threshold := j.link(j.at) * j.ceiling.Seconds()
	if j.remaining > threshold && j.remaining > 0 {
		return
	}
	// The end of a pass: what was written meanwhile is found. What was not sent yet and is
	// written again counts once.
	j.lastDirty = j.written / max(tick, j.at-j.passAt).Seconds()
	j.remaining, j.written, j.passAt = min(j.remaining+j.written, max(set, j.remaining), j.total), 0, j.at
	j.iteration++
	j.ended = j.remaining <= threshold
}

// sample is what a look at it shows.
func (j *job) sample() Sample {
	x := Sample{At: time.Hour + j.at, Elapsed: j.at, Phase: "memory", Iteration: j.iteration, Suspended: j.suspended,
		DiskTotal: uint64(j.disk), DiskProcessed: uint64(j.diskSent), DiskRemaining: uint64(j.disk - j.diskSent)}
	switch {
	case j.postCopy:
		x.Phase = "post-copy"
	case j.iteration > 0:
		x.MemoryTotal, x.MemoryProcessed, x.MemoryRemaining = uint64(j.total), uint64(j.processed), uint64(j.remaining)
	case j.at > j.setup && j.disk > 0:
		x.Phase = "disk"
	default:
		x.Phase = "setup"
	}
	if j.told && j.iteration > j.offset+1 {
		x.DirtyRate = uint64(j.lastDirty)
	}
	return x
}

// do carries an action out.
func (j *job) do(a Action) {
	if a.Observed {
		return
	}
	switch a.Do {
	case ActDowntime:
		j.ceiling = a.Downtime
	case ActSuspend:
		j.suspended = true
	case ActPostCopy:
		j.postCopy = true
	case ActAbort:
		j.aborted = true
	}
}

// look is one look at a job, and what came of it.
type look struct {
	x   Sample
	due []Action
	est Estimate
	s   State
}

// play watches a job to its end, or for so long.
func play(j *job, p Plan, every, most time.Duration) []look {
	if j.ceiling = p.FirstDowntime(); j.ceiling == 0 {
		j.ceiling = hypervisorDowntime
	}
	var s State
	var out []look
	for j.at < most && !j.over() {
		x := j.sample()
		var l look
		s, l.due, l.est = s.See(x, p)
		l.x, l.s = x, s
		out = append(out, l)
		for _, a := range l.due {
			j.do(a)
		}
		j.run(every)
	}
	return out
}

// actions are all of them, with when.
func actions(looks []look) (out []Action, at []time.Duration) {
	for _, l := range looks {
		for _, a := range l.due {
			out, at = append(out, a), append(at, l.x.Elapsed)
		}
	}
	return out, at
}

func always(v float64) func(time.Duration) float64 { return func(time.Duration) float64 { return v } }

func writes(set, rate float64) func(time.Duration) (float64, float64) {
	return func(time.Duration) (float64, float64) { return set * mib, rate * mib }
}

// steady is a guest of 128 MiB over a link of 20 MiB/s.
func steady(set, rate float64) *job {
	return &job{total: 128 * mib, dirty: writes(set, rate), link: always(20 * mib), setup: 1500 * time.Millisecond}
}

// drawn is a job by chance.
func drawn(r *rand.Rand) *job {
	between := func(a, b float64) float64 { return a + (b-a)*r.Float64() }
	rate, set, speed := between(0, 80), between(1, 128), between(5, 60)
	period, drop, dropped := time.Duration(between(2, 30)*1e9), time.Duration(between(5, 60)*1e9), time.Duration(between(0, 12)*1e9)
	bursty, wobble := r.IntN(3) == 0, between(0, 0.4)
	noise := rand.New(rand.NewPCG(r.Uint64(), 0))
	j := &job{total: between(64, 256) * mib, setup: time.Duration(between(0, 2.5) * 1e9), told: r.IntN(2) == 0, offset: r.Uint64N(5)}
	if r.IntN(3) == 0 {
		j.disk = between(1, 200) * mib
	}
	j.dirty = func(at time.Duration) (float64, float64) {
		if bursty && at%period < period/3 {
			return set * mib, 0
		}
		return set * mib, rate * mib
	}
	j.link = func(at time.Duration) float64 {
		if at >= drop && at < drop+dropped {
			return 0
		}
		return speed * mib * (1 - wobble*noise.Float64())
	}
	return j
}

// plans are those of the properties.
func drawnPlan(r *rand.Rand) Plan {
	texts := []string{"", "1:abort", "2:max-downtime=1s, 2:max-downtime=4s, 3:post-copy, 4:abort", "3:suspend", "start:throttle, 2:post-copy, 2:abort",
		"1:max-downtime=400ms, 1:max-downtime=500ms, 1:max-downtime=20s", "2:max-downtime=2s, 2:suspend"}
	s, err := ParseSchedule(texts[r.IntN(len(texts))])
	if err != nil {
		panic(err)
	}
	p := Plan{Schedule: s, Observe: r.IntN(4) == 0, MaxDowntime: time.Duration(r.IntN(3)) * 250 * time.Millisecond, PostCopyAllowed: r.IntN(2) == 0}
	if r.IntN(2) == 0 {
		p.Steps, p.StepDelay, p.DataGiB = 2+r.IntN(6), time.Duration(1+r.IntN(10))*time.Second, 1+r.IntN(3)
	}
	if r.IntN(2) == 0 {
		p.Deadline = time.Duration(10+r.IntN(60)) * time.Second
		p.DeadlineAction = []DeadlineAction{"", DeadlineAbort, DeadlineSuspend, DeadlinePostCopy, DeadlineForce}[r.IntN(5)]
	}
	return p
}
