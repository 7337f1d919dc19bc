package converge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recorded are the series of test/converge, by name.
func recorded(t *testing.T) map[string][]Sample {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d series, %v", len(files), err)
	}
	out := map[string][]Sample{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(f), ".jsonl")
		for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
			var x Sample
			if err := json.Unmarshal(s.Bytes(), &x); err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			out[name] = append(out[name], x)
		}
	}
	return out
}

// replay shows a series to See. Actions have no effect on it, so they are observed.
func replay(series []Sample, p Plan) (looks []look) {
	var s State
	for _, x := range series {
		l := look{x: x}
		s, l.due, l.est = s.See(x, p)
		l.s = s
		looks = append(looks, l)
	}
	return looks
}

// replayed are the plans of the golden files.
var replayed = []struct {
	text     string
	plan     Plan
	schedule string
}{
	{text: "nothing is set"},
	{text: "post-copy permitted", schedule: "2:max-downtime=800ms, 2:max-downtime=4s, 3:post-copy, 4:abort", plan: Plan{PostCopyAllowed: true, Observe: true}},
	{text: "without post-copy", schedule: "2:max-downtime=1s, 3:post-copy, 4:abort", plan: Plan{Observe: true}},
	{text: "a deadline of 30s", schedule: "3:suspend", plan: Plan{Deadline: 30 * time.Second, Observe: true}},
}

// ceilings are those that the recorded jobs had, where it was not the hypervisor's own.
var ceilings = map[string]time.Duration{"moderate": 200 * time.Millisecond, "saw-tooth": 100 * time.Millisecond}

// storyOf is a series and what is decided about it, to be read.
func storyOf(t *testing.T, name string, series []Sample) string {
	t.Helper()
	var out strings.Builder
	looks := replay(series, Plan{MaxDowntime: ceilings[name]})
	end := looks[len(looks)-1]
	fmt.Fprintf(&out, "%s: %d samples in %s; %s of memory and %s of disks sent; %d passes\n\n", name, len(series), long(end.x.Elapsed),
		amount(end.x.MemoryProcessed), amount(end.x.DiskProcessed), end.x.Iteration)
	fmt.Fprintf(&out, "%8s %6s %14s %14s %14s %7s %10s %10s\n", "time", "pass", "begins with", "is sent at", "changes at", "stalls", "downtime", "ends in")
	before := Sample{Iteration: 1 << 62}
	dash := func(d time.Duration) string {
		if d == 0 {
			return "-"
		}
		return long(d)
	}
	for i, l := range looks {
		phase := ""
		switch {
		case l.x.Suspended && !before.Suspended:
			phase = "stands still"
		case l.x.Phase != before.Phase && l.x.Phase == "disk":
			phase = "disks"
		case l.x.Throttle != before.Throttle && i > 0:
			phase = fmt.Sprintf("throttled by %d %%", l.x.Throttle)
		}
		next := i > 0 && l.x.Iteration != before.Iteration && l.s.begun
		before = l.x
		if !next && phase == "" {
			continue
		}
		ends := dash(l.est.Remaining)
		if l.est.Never {
			ends = "never"
		}
		fmt.Fprintln(&out, strings.TrimRight(fmt.Sprintf("%7.2fs %6d %14s %14s %14s %7d %10s %10s  %s", l.x.Elapsed.Seconds(), l.x.Iteration, amount(l.s.pass.left),
			amount(l.est.Rate)+"/s", amount(l.est.DirtyRate)+"/s", l.est.Stalls, dash(l.est.Downtime), ends, phase), " "))
	}
	for _, r := range replayed {
		r.plan.Schedule, r.plan.MaxDowntime = schedule(t, r.schedule), ceilings[name]
		fmt.Fprintf(&out, "\n%s (%s):\n", or(r.schedule, "no schedule"), r.text)
		all, at := actions(replay(series, r.plan))
		if all == nil {
			fmt.Fprintln(&out, "    nothing is done")
		}
		for i, a := range all {
			fmt.Fprintf(&out, "%7.2fs %s: %s\n", at[i].Seconds(), what(a), a.Message)
			if a.Do == ActAbort {
				fmt.Fprintf(&out, "         wanted %s, there is %s: %s\n", a.Want, a.Have, a.Change)
			}
		}
	}
	return out.String()
}

func amount(bytes uint64) string { return size(float64(bytes)) }

func what(a Action) string {
	if a.Do == ActDowntime {
		return string(a.Do) + "=" + a.Downtime.String()
	}
	return string(a.Do)
}

func or(text, empty string) string {
	if text == "" {
		return empty
	}
	return text
}

// What is decided about real migrations stands in testdata/NAME.golden; -update writes it.
func TestRecorded_Decisions(t *testing.T) {
	for name, series := range recorded(t) {
		t.Run(name, func(t *testing.T) {
			got, path := storyOf(t, name, series), filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever is recorded anew, this holds of it.
func TestRecorded_FactsOfRealJobs(t *testing.T) {
	all := recorded(t)
	under := func(name, text string, p Plan) (acts []Action, at []time.Duration) {
		t.Helper()
		if all[name] == nil {
			t.Fatalf("no series %s", name)
		}
		p.Schedule, p.MaxDowntime = schedule(t, text), ceilings[name]
		return actions(replay(all[name], p))
	}
	for name := range all {
		if acts, _ := under(name, "", Plan{}); acts != nil {
			t.Errorf("%s: with nothing set there is %+v", name, acts)
		}
	}
	// The first looks say that nothing remains; and a guest that converges does not stall.
	for _, name := range []string{"idle", "moderate"} {
		if acts, _ := under(name, "2:abort", Plan{Observe: true}); acts != nil {
			t.Errorf("%s: %+v", name, acts)
		}
	}
	for _, name := range []string{"impossible", "suspend", "downtime"} {
		acts, at := under(name, "2:abort", Plan{Observe: true})
		if len(acts) != 1 || at[0] > 20*time.Second {
			t.Errorf("%s: at %v %+v; want one abort before 20 s", name, at, acts)
		}
	}
	// Memory that has not begun does not stall.
	series := all["disk-first"]
	acts, at := under("disk-first", "1:abort", Plan{Observe: true})
	for _, x := range series {
		if len(acts) == 1 && x.Elapsed < at[0] && x.Phase != "disk" && x.Phase != "setup" {
			acts = nil // memory was seen before it
		}
	}
	if len(acts) != 0 {
		t.Errorf("disk-first: at %v %+v while disks are copied", at, acts)
	}
}
