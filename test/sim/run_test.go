package sim_test

import (
	"strings"
	"testing"

	"berth/test/sim"
)

func TestStories_Quiet(t *testing.T) {
	for _, s := range sim.Stories() {
		t.Run(s.Name, func(t *testing.T) {
			r := sim.Run(sim.Options{Seed: 1, Story: s, KeepPoints: true, KeepTrace: true})
			t.Logf("%d points, %d turns, %s, %v", r.Points, r.Turns, r.Elapsed, r.Outcomes)
			if len(r.Violations) > 0 {
				t.Errorf("%s\n%s", strings.Join(r.Violations, "\n"), r.Trace)
			}
		})
	}
}
