package agent

import (
	"slices"
	"testing"
	"time"
)

func TestProgress_NamesTheLoopsThatStand(t *testing.T) {
	var p progress
	now := time.Now()
	for _, tt := range []struct {
		what   string
		passes time.Duration
		rounds []string
		want   []string
	}{
		{"nothing has begun", time.Second, nil, nil},
		{"both go round", time.Second, []string{"health", "metrics"}, nil},
		{"one is seen to stand", 30 * time.Second, []string{"health"}, nil},
		{"it stands for too long", 30 * time.Second, []string{"health"}, []string{"metrics"}},
		{"it goes on", time.Second, []string{"health", "metrics"}, nil},
		{"not looked at for a day, and seen to stand for the first time", 24 * time.Hour, nil, nil},
		{"and both go on", time.Second, []string{"health", "metrics"}, nil},
		{"seen to stand twice in a moment", time.Second, nil, nil},
		{"again", time.Second, nil, nil},
		{"both stand", 30 * time.Second, nil, []string{"health", "metrics"}},
	} {
		now = now.Add(tt.passes)
		for _, loop := range tt.rounds {
			p.round(loop)
		}
		if got := p.standing(now); !slices.Equal(got, tt.want) {
			t.Errorf("%s: standing %q, want %q", tt.what, got, tt.want)
		}
	}
}
