package api

import (
	"testing"
	"time"
)

// TestAhead_KnowsNoMoreThanTheAnswerTells: a date has whole seconds, and the answer took some
// time, so a small difference is none.
func TestAhead_KnowsNoMoreThanTheAnswerTells(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	for _, tt := range []struct {
		name                  string
		asked, answered, date float64
		want                  time.Duration
	}{
		{"equal", 0.3, 0.4, 0, 0},
		{"the second changes", 0.9, 1.1, 1, 0},
		{"a slow answer", 0, 9, 5, 0},
		{"ahead", 0, 0.5, 10, 9500 * time.Millisecond},
		{"behind", 20, 20.5, 10, -9 * time.Second},
	} {
		if got := ahead(at(tt.asked), at(tt.answered), at(tt.date)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
