package converge

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
)

func TestParseSchedule(t *testing.T) {
	for _, tt := range []struct {
		text, canonical string
		want            Schedule
	}{
		{"", "", nil},
		{"  ", "", nil},
		{"start:throttle", "start:throttle", Schedule{{Do: ActThrottle}}},
		{"start: throttle = 30% + 20%", "start:throttle=30+20", Schedule{{Do: ActThrottle, Initial: 30, Increment: 20}}},
		{"start:throttle=30", "start:throttle=30", Schedule{{Do: ActThrottle, Initial: 30}}},
		{"start:throttle=30+20, 2:max-downtime=800ms,2 : max-downtime = 2s , 3:post-copy, 4:abort",
			"start:throttle=30+20, 2:max-downtime=800ms, 2:max-downtime=2s, 3:post-copy, 4:abort",
			Schedule{
				{Do: ActThrottle, Initial: 30, Increment: 20}, {After: 2, Do: ActDowntime, Downtime: 800 * time.Millisecond},
				{After: 2, Do: ActDowntime, Downtime: 2 * time.Second}, {After: 3, Do: ActPostCopy}, {After: 4, Do: ActAbort},
			}},
		{"1:max-downtime=1m30s, 100:suspend", "1:max-downtime=1m30s, 100:suspend",
			Schedule{{After: 1, Do: ActDowntime, Downtime: 90 * time.Second}, {After: 100, Do: ActSuspend}}},
	} {
		got, err := ParseSchedule(tt.text)
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
		if got.String() != tt.canonical {
			t.Errorf("%q is %q, want %q", tt.text, got, tt.canonical)
		}
	}
}

func TestParseSchedule_NamesAllThatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string // a part of each reason, in order
	}{
		{"2", []string{`step "2": want STALLS:ACTION`}},
		{"two:abort, 0:abort, 101:post-copy, -1:suspend", []string{`"two"`, `"0"`, `"101"`, `"-1"`}},
		{"2:throttle", []string{"at the start alone"}},
		{"start:abort", []string{"at the start there is throttle alone"}},
		{"start:throttle=0, start:throttle=100+x", []string{`"0": want per cent`, `"100": want per cent`, `"x": want per cent`}},
		{"2:abort, start:throttle", []string{"throttle is the first step", "nothing follows abort"}},
		{"2:max-downtime, 2:max-downtime=0s, 2:max-downtime=1h, 2:max-downtime=1us", []string{`""`, `"0s"`, `"1h"`, `"1us"`}},
		{"2:max-downtime=2s, 2:max-downtime=2s", []string{"2s is no more than the 2s before it"}},
		{"2:post-copy=yes, 2:postcopy, 1:", []string{"post-copy takes no value", `no action "postcopy"`, `no action ""`}},
		{"2:suspend, 3:abort", []string{"nothing follows suspend"}},
		{"2:post-copy, 2:post-copy", []string{"post-copy is there already"}},
		{"2:abort,", []string{`step "": want STALLS:ACTION`}},
		{strings.Repeat("1:abort,", 40), []string{"at most 32"}},
	} {
		got, err := ParseSchedule(tt.text)
		reasons := fault.ReasonsOf(err)
		if !errors.Is(err, fault.Invalid) || got != nil || len(reasons) != len(tt.want) {
			t.Errorf("%q: %v, %v: want %d reasons of %v", tt.text, got, err, len(tt.want), fault.Invalid)
			continue
		}
		for i, r := range reasons {
			if r.Code != CodeSchedule || !strings.Contains(r.Message, tt.want[i]) {
				t.Errorf("%q: reason %d is %q, want it to say %q", tt.text, i, r.Message, tt.want[i])
			}
		}
	}
}

func TestSchedule_JSONIsItsText(t *testing.T) {
	type holder struct {
		Schedule Schedule `json:"schedule,omitempty"`
	}
	const text = `{"schedule":"start:throttle, 2:max-downtime=1s, 3:abort"}`
	var h holder
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		t.Fatal(err)
	}
	if out, err := json.Marshal(h); err != nil || string(out) != text {
		t.Errorf("got %s, %v", out, err)
	}
	if out, err := json.Marshal(holder{}); err != nil || string(out) != "{}" {
		t.Errorf("the empty one is %s, %v", out, err)
	}
	if err := json.Unmarshal([]byte(`{"schedule":"abort"}`), &h); !errors.Is(err, fault.Invalid) {
		t.Errorf("a wrong one gives %v", err)
	}
}

func TestSchedule_ThrottleAndHas(t *testing.T) {
	s, err := ParseSchedule("start:throttle=30+20, 3:post-copy")
	if err != nil {
		t.Fatal(err)
	}
	if a, b, ok := s.Throttle(); a != 30 || b != 20 || !ok {
		t.Errorf("throttle %d+%d, %t", a, b, ok)
	}
	if !s.Has(ActPostCopy) || s.Has(ActAbort) {
		t.Error("it has post-copy, and no abort")
	}
	if _, _, ok := s[1:].Throttle(); ok {
		t.Error("one without throttle throttles")
	}
}

func FuzzParseSchedule(f *testing.F) {
	for _, text := range []string{"", "start:throttle=30+20, 2:max-downtime=800ms, 3:post-copy, 4:abort", "1:suspend", "2:max-downtime=1m0.5s", ":=,+"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchedule(text)
		if err != nil {
			if !errors.Is(err, fault.Invalid) || len(fault.ReasonsOf(err)) == 0 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := ParseSchedule(s.String())
		if err != nil || !slices.Equal(again, s) {
			t.Fatalf("%q reads as %q, and that as %q, %v", text, s, again, err)
		}
	})
}
