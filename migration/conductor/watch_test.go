package conductor

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
)

var testLimits = StreamLimits{
	Stall: 15 * time.Second, Setup: 60 * time.Second,
	Poll: 250 * time.Millisecond, Near: 20 * time.Millisecond,
}

// TestJudge_Series feeds whole streams and looks at the first verdict.
func TestJudge_Series(t *testing.T) {
	raw, err := os.ReadFile("testdata/streams.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(string(raw), "\n-- ")[1:]
	if len(all) < 9 {
		t.Fatalf("%d series", len(all))
	}
	for _, series := range all {
		lines := strings.Split(strings.TrimSpace(series), "\n")
		t.Run(strings.TrimSuffix(lines[0], " --"), func(t *testing.T) {
			want := strings.TrimPrefix(lines[len(lines)-1], "= ")
			got := "none"
			var w StreamWatch
			var v Verdict
			for _, line := range lines[1 : len(lines)-1] {
				s, second := sample(t, line)
				if w, v = w.Judge(s, testLimits); v.Abort != nil {
					got = fmt.Sprintf("%s %s", fault.ReasonsOf(v.Abort)[0].Code, second)
					break
				}
			}
			if got != want {
				t.Errorf("verdict %q, want %q (%v)", got, want, v.Abort)
			}
		})
	}
}

// sample reads one line of testdata/streams.txt.
func sample(t *testing.T, line string) (Sample, string) {
	var second float64
	var p migration.Progress
	second2, rest, _ := strings.Cut(line, " ")
	if _, err := fmt.Sscan(second2, &second); err != nil {
		t.Fatalf("line %q: %v", line, err)
	}
	s := Sample{At: time.Hour + time.Duration(second*float64(time.Second))}
	switch rest {
	case "silent":
	case "over":
		s.Status = &migration.StreamStatus{Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "migrated"}}
	default:
		if _, err := fmt.Sscan(rest, &p.Phase, &p.Iteration, &p.MemoryProcessed, &p.MemoryRemaining, &p.Rate, &p.DiskProcessed); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		p.MemoryProcessed, p.MemoryRemaining, p.DiskProcessed, p.Rate = p.MemoryProcessed<<20, p.MemoryRemaining<<20, p.DiskProcessed<<20, p.Rate<<20
		s.Status = &migration.StreamStatus{InFlight: true, Domain: migration.DomainView{Exists: true, State: "running"}, Progress: p}
	}
	return s, second2
}

// TestJudge_LooksOftenOnlyNearTheEnd: what is seen late is downtime, and what is
// looked at too often is load.
func TestJudge_LooksOftenOnlyNearTheEnd(t *testing.T) {
	running := migration.DomainView{Exists: true, State: "running"}
	for _, tt := range []struct {
		name string
		st   migration.StreamStatus
		want time.Duration
	}{
		{"setting up, nothing remains yet", migration.StreamStatus{InFlight: true, Domain: running, Progress: migration.Progress{Phase: "setup"}}, testLimits.Poll},
		{"much remains", migration.StreamStatus{InFlight: true, Domain: running, Progress: migration.Progress{Phase: "memory", MemoryProcessed: 1, MemoryRemaining: 1 << 30, Rate: 1 << 27}}, testLimits.Poll},
		{"little remains", migration.StreamStatus{InFlight: true, Domain: running, Progress: migration.Progress{Phase: "memory", MemoryProcessed: 1, MemoryRemaining: 1 << 26, Rate: 1 << 27}}, testLimits.Near},
		{"rate unknown", migration.StreamStatus{InFlight: true, Domain: running, Progress: migration.Progress{Phase: "memory", MemoryProcessed: 1, MemoryRemaining: 1 << 26}}, testLimits.Poll},
		{"switching over", migration.StreamStatus{InFlight: true, Domain: running, Progress: migration.Progress{Phase: "switchover"}}, testLimits.Near},
		{"paused by its user", migration.StreamStatus{InFlight: true, Domain: migration.DomainView{Exists: true, State: "paused", Reason: "user"}}, testLimits.Poll},
		{"a transient domain that has gone", migration.StreamStatus{InFlight: true}, testLimits.Near},
		{"in post-copy, of which nobody stands still", migration.StreamStatus{InFlight: true, Domain: migration.DomainView{Exists: true, State: "paused", Reason: "post-copy"}}, testLimits.Poll},
		{"stopped by the switch-over", migration.StreamStatus{InFlight: true, Domain: migration.DomainView{Exists: true, State: "paused", Reason: "migrating"}}, testLimits.Near},
	} {
		if _, v := (StreamWatch{}).Judge(Sample{Status: &tt.st}, testLimits); v.Next != tt.want {
			t.Errorf("%s: next look in %s, want %s", tt.name, v.Next, tt.want)
		}
	}
}

func TestStreamWatch_IsInNoHurryWithAJobThatIsOver(t *testing.T) {
	l := StreamLimits{Poll: time.Second, Near: time.Millisecond}
	for _, inFlight := range []bool{true, false} {
		_, v := StreamWatch{}.Judge(Sample{Status: &migration.StreamStatus{
			InFlight: inFlight, Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "unknown"},
		}}, l)
		want := l.Poll
		if inFlight {
			want = l.Near
		}
		if v.Next != want {
			t.Errorf("in flight %v: the next look is in %s, want %s", inFlight, v.Next, want)
		}
	}
}

// TestJudge_KeepsTheLastFigures: a job that is over has none of its own.
func TestJudge_KeepsTheLastFigures(t *testing.T) {
	moving := migration.Progress{Phase: "memory", Elapsed: time.Second, MemoryTotal: 1 << 30, MemoryProcessed: 1 << 29, Iteration: 2}
	w, _ := StreamWatch{}.Judge(Sample{At: time.Second, Status: &migration.StreamStatus{InFlight: true, Progress: moving}}, testLimits)
	over := &migration.StreamStatus{Domain: migration.DomainView{Exists: true, State: "shut off", Reason: "migrated"}, Progress: migration.Progress{Phase: "switchover"}}
	w, _ = w.Judge(Sample{At: 2 * time.Second, Status: over}, testLimits)
	want := moving
	want.Phase = "switchover"
	if diff := cmp.Diff(want, w.last); diff != "" {
		t.Errorf("what is known of the stream (-want +got):\n%s", diff)
	}
}
