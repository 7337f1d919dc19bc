package drain

import (
	"slices"
	"time"

	"berth/migration"
)

// Sample is a move that has completed.
type Sample struct {
	SizeMB int64
	Took   time.Duration
}

// fixedMB is what a move costs beside the guest's memory, as memory: claims, preparation and
// hand-over take about as long as some hundred MiB. Arbitrary, and of weight for tiny guests only.
const fixedMB = 256

// Estimate is how long a queue still takes, by what moves took so far and by the progress of
// those under way; 0 where neither is known. limit is how many go at once.
func Estimate(samples []Sample, guests []Guest, now time.Duration, limit int) time.Duration {
	var took time.Duration
	var size int64
	for _, s := range samples {
		if s.Took > 0 {
			took, size = took+s.Took, size+s.SizeMB+fixedMB
		}
	}
	expect := func(g Guest) time.Duration {
		if size == 0 {
			return 0
		}
		return time.Duration(float64(took) / float64(size) * float64(g.SizeMB+fixedMB))
	}
	var lanes []time.Duration
	known := true
	for _, g := range guests {
		if g.State != Moving || g.doubt || g.queued {
			continue
		}
		left, ok := byProgress(g.progress)
		if whole := expect(g); !ok && whole > 0 {
			left, ok = max(0, whole-max(0, now-g.Begun.Since-g.waited)), true // begun in another boot: all of it
		}
		known = known && ok
		lanes = append(lanes, left)
	}
	for len(lanes) < max(1, limit) {
		lanes = append(lanes, 0)
	}
	for _, g := range guests {
		if g.State != Waiting && !(g.State == Moving && g.queued) {
			continue
		}
		known = known && size > 0
		i := slices.Index(lanes, slices.Min(lanes))
		lanes[i] += expect(g)
	}
	if !known {
		return 0
	}
	return slices.Max(lanes)
}

// longest is what an estimate is at most; sums of some thousand stay a time.Duration. A stream
// that all but stands still would else count for less than nothing. Arbitrary.
const longest = 24 * time.Hour

// byProgress is what a stream still takes at its present rate.
func byProgress(p migration.Progress) (time.Duration, bool) {
	if p.Rate == 0 {
		return 0, false
	}
	left := float64(p.MemoryRemaining+p.DiskRemaining) / float64(p.Rate) * float64(time.Second)
	return time.Duration(min(left, float64(longest))), true
}

// samples are the moves of a drain that have completed.
func samples(guests []Guest) []Sample {
	var out []Sample
	for _, g := range guests {
		if g.State == Moved && g.Took > 0 {
			out = append(out, Sample{SizeMB: g.SizeMB, Took: g.Took})
		}
	}
	return out
}
