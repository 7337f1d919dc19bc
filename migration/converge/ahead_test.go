package converge

import (
	"testing"
	"time"
)

// What an estimate says is next is what is done, or nothing where nothing is.
func TestSee_SaysWhatIsNext(t *testing.T) {
	for _, tt := range []struct {
		name string
		job  *job
		plan Plan
		at   time.Duration
		want string
	}{
		{"nothing is set", steady(64, 60), Plan{}, 9 * time.Second, ""},
		{"before the first pass", steady(64, 60), Plan{Schedule: schedule(t, "start:throttle, 2:max-downtime=800ms, 4:abort")}, 3 * time.Second, "max-downtime=800ms after 2 more passes without progress"},
		{"what cannot help is passed over", steady(64, 60), Plan{Schedule: schedule(t, "2:max-downtime=800ms, 4:abort")}, 11 * time.Second, "abort after 3 more passes without progress"},
		{"post-copy", steady(120, 90), Plan{Schedule: schedule(t, "3:post-copy"), PostCopyAllowed: true, Deadline: time.Minute}, 14 * time.Second, "post-copy after 2 more passes without progress, abort at 1m0s"},
		{"only observed", steady(64, 60), Plan{Schedule: schedule(t, "9:suspend"), Observe: true}, 3 * time.Second, "suspend (only observed) after 9 more passes without progress"},
		{"the ladder", steady(64, 60), Plan{MaxDowntime: 500 * time.Millisecond, Steps: 4, StepDelay: 2 * time.Second, DataGiB: 2}, 5 * time.Second, "max-downtime=312ms at 8s"},
		{"a guest that stands still", &job{total: 128 * mib, dirty: writes(64, 60), link: func(at time.Duration) float64 {
			if at > 20500*time.Millisecond {
				return 0.1 * mib
			}
			return 20 * mib
		}}, Plan{Deadline: 20 * time.Second, DeadlineAction: DeadlineSuspend}, 25 * time.Second, "abort at 50s"},
		{"one that has left", steady(120, 90), Plan{Schedule: schedule(t, "2:post-copy"), PostCopyAllowed: true, Deadline: time.Minute}, 2 * time.Minute, ""},
	} {
		looks := play(tt.job, tt.plan, quarter, tt.at)
		if got := looks[len(looks)-1].est.Next; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
