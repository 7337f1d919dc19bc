package sim_test

import (
	"slices"
	"strings"
	"testing"

	"berth/test/sim"
)

func TestZZ_EveryPostCopy(t *testing.T) {
	cases := slices.DeleteFunc(sim.Cases(sim.Hows()), func(c sim.Case) bool { return !strings.HasPrefix(c.Story.Name, "post-copy, ") })
	t.Logf("%d points", len(cases))
	report(t, sim.Many(len(cases)/6, 0, func(i int) sim.Options { return cases[i*6].Options() }, nil))
}
