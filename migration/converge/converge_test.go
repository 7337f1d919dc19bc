package converge

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func schedule(t testing.TB, text string) Schedule {
	t.Helper()
	s, err := ParseSchedule(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const quarter = 250 * time.Millisecond

// told is what was decided, in a line each.
func told(looks []look) string {
	var out []string
	all, at := actions(looks)
	for i, a := range all {
		line := at[i].Truncate(100*time.Millisecond).String() + " " + string(a.Do)
		if a.Downtime > 0 {
			line += "=" + a.Downtime.String()
		}
		if a.Observed {
			line += " (observed)"
		}
		out = append(out, line+" "+a.Why)
	}
	return strings.Join(out, "\n")
}

func TestSee_Decides(t *testing.T) {
	const full = "2:max-downtime=800ms, 2:max-downtime=4s, 3:post-copy, 4:abort"
	slow := func(from, to time.Duration, rate float64) func(time.Duration) float64 {
		return func(at time.Duration) float64 {
			if at >= from && at < to {
				return rate * mib
			}
			return 20 * mib
		}
	}
	for _, tt := range []struct {
		name string
		job  *job
		plan Plan
		most time.Duration
		want string
		ends bool
	}{
		{name: "nothing is set", job: steady(64, 60), most: time.Hour},
		{name: "an idle guest", job: steady(0, 0), plan: Plan{Schedule: schedule(t, "1:abort")}, most: time.Minute, ends: true},
		{name: "one that converges", job: steady(32, 8), plan: Plan{Schedule: schedule(t, "1:abort")}, most: time.Minute, ends: true},
		// 64 MiB a pass, 3.2 s each: 800 ms cannot help and is passed over, 4 s do.
		{name: "a downtime that helps, none that does not", job: steady(64, 60), plan: Plan{Schedule: schedule(t, full), PostCopyAllowed: true}, most: time.Minute,
			want: "13.5s max-downtime=4s stalled", ends: true},
		{name: "post-copy where no downtime helps", job: steady(120, 90), plan: Plan{Schedule: schedule(t, full), PostCopyAllowed: true}, most: 2 * time.Minute,
			want: "24.7s post-copy stalled"},
		{name: "post-copy that is not permitted is passed over", job: steady(120, 90), plan: Plan{Schedule: schedule(t, full)}, most: 2 * time.Minute,
			want: "30.5s abort stalled"},
		{name: "what cannot help is not waited for", job: steady(120, 90), plan: Plan{Schedule: schedule(t, "9:max-downtime=800ms, 9:post-copy, 2:abort")}, most: 2 * time.Minute,
			want: "19s abort stalled"},
		{name: "suspend", job: steady(64, 60), plan: Plan{Schedule: schedule(t, "3:suspend")}, most: time.Minute, want: "16.5s suspend stalled", ends: true},
		{name: "disks are not the guest's fault", job: &job{total: 128 * mib, disk: 400 * mib, dirty: writes(64, 60), link: always(20 * mib), setup: time.Second},
			plan: Plan{Schedule: schedule(t, "2:abort")}, most: time.Minute, want: "33s abort stalled"},
		{name: "a counter that began before", job: &job{total: 128 * mib, offset: 40, dirty: writes(64, 60), link: always(20 * mib)},
			plan: Plan{Schedule: schedule(t, "2:abort")}, most: time.Minute, want: "12s abort stalled"},
		// 6 MiB/s of a guest that converges at 20: passes get longer while the link is slow.
		{name: "a broken link is not the guest's fault", job: &job{total: 128 * mib, dirty: writes(100, 12), link: slow(8*time.Second, 18*time.Second, 2)},
			plan: Plan{Schedule: schedule(t, "1:abort")}, most: 2 * time.Minute, ends: true},
		{name: "one that stays slow is the usual one", job: &job{total: 128 * mib, dirty: writes(100, 12), link: slow(8*time.Second, time.Hour, 6)},
			plan: Plan{Schedule: schedule(t, "2:abort")}, most: 5 * time.Minute, want: "1m3.7s abort stalled"},
		{name: "abort at the deadline", job: steady(64, 60), plan: Plan{Deadline: 20 * time.Second}, most: time.Minute, want: "20s abort timeout"},
		{name: "suspend at the deadline", job: steady(64, 60), plan: Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineSuspend}, most: time.Minute,
			want: "20s suspend timeout", ends: true},
		{name: "a switch-over that does not end", job: &job{total: 128 * mib, dirty: writes(64, 60), link: slow(20*time.Second, time.Hour, 0.1)},
			plan: Plan{Schedule: schedule(t, "2:suspend"), Deadline: 24 * time.Second, DeadlineAction: DeadlineForce}, most: 5 * time.Minute,
			want: "12s suspend stalled", ends: true},
		{name: "the time after the deadline is bounded", job: &job{total: 128 * mib, dirty: writes(64, 60), link: slow(20500*time.Millisecond, time.Hour, 0.1)},
			plan: Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineSuspend}, most: 5 * time.Minute,
			want: "20s suspend timeout\n50s abort timeout"},
		{name: "nobody is suspended while the link is down", job: &job{total: 128 * mib, dirty: writes(64, 60), link: slow(15*time.Second, 25*time.Second, 0)},
			plan: Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineSuspend}, most: 5 * time.Minute,
			want: "26.2s suspend timeout", ends: true},
		{name: "force is post-copy where it is permitted", job: steady(64, 60), plan: Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineForce, PostCopyAllowed: true},
			most: time.Minute, want: "20s post-copy timeout"},
		{name: "force is suspend where it is not", job: steady(64, 60), plan: Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineForce},
			most: time.Minute, want: "20s suspend timeout", ends: true},
		{name: "post-copy at the deadline is abort where it is not permitted", job: steady(64, 60), plan: Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlinePostCopy},
			most: time.Minute, want: "20s abort timeout"},
		{name: "the ladder", job: steady(64, 60), plan: Plan{MaxDowntime: 500 * time.Millisecond, Steps: 4, StepDelay: 2 * time.Second, DataGiB: 2}, most: 30 * time.Second,
			want: "4s max-downtime=218ms downtime_ladder\n8s max-downtime=312ms downtime_ladder\n12s max-downtime=406ms downtime_ladder\n16s max-downtime=500ms downtime_ladder"},
		{name: "only looked at", job: steady(64, 60), plan: Plan{Observe: true, Schedule: schedule(t, "1:max-downtime=5s, 2:suspend"), Deadline: 30 * time.Second}, most: time.Minute,
			want: "10.5s max-downtime=5s (observed) stalled\n16.5s suspend (observed) stalled\n30s abort timeout"},
		{name: "a downtime passed over is taken when it helps", plan: Plan{Schedule: schedule(t, "2:max-downtime=2s, 4:abort")}, most: time.Minute,
			job: &job{total: 128 * mib, link: always(20 * mib), dirty: func(at time.Duration) (float64, float64) {
				if at < 16*time.Second {
					return 100 * mib, 60 * mib
				}
				return 30 * mib, 60 * mib
			}}, want: "22.7s max-downtime=2s stalled", ends: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			looks := play(tt.job, tt.plan, quarter, tt.most)
			if diff := cmp.Diff(tt.want, told(looks)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.job.ended != tt.ends {
				t.Errorf("it ended: %t, want %t", tt.job.ended, tt.ends)
			}
		})
	}
}

// A guest that is slowed down more and more is not given up before it is seen that the last of it
// does not help.
func TestSee_WaitsForTheThrottle(t *testing.T) {
	for _, tt := range []struct {
		name string
		top  int
		ends bool
	}{{"until it helps", 80, true}, {"and not for ever", 30, false}} {
		j := steady(64, 60)
		throttle := func(at time.Duration) int { return min(tt.top, int(at/(6*time.Second))*10) }
		j.dirty = func(at time.Duration) (float64, float64) {
			if throttle(at) >= 70 {
				return 64 * mib, 2 * mib
			}
			return 64 * mib, 60 * mib
		}
		j.ceiling = hypervisorDowntime
		var s State
		var due []Action
		for j.at < 2*time.Minute && !j.over() {
			x := j.sample()
			x.Throttle = throttle(j.at)
			if s, due, _ = s.See(x, Plan{Schedule: schedule(t, "3:abort")}); len(due) > 0 {
				j.do(due[0])
			}
			j.run(quarter)
		}
		if j.ended != tt.ends || j.aborted == tt.ends {
			t.Errorf("%s: it ended: %t, and was given up: %t, at %s", tt.name, j.ended, j.aborted, j.at)
		}
	}
}
