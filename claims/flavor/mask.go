package flavor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth/topology"
)

// span is the numbers from first to last.
type span struct{ first, last int64 }

// mask is a set of vCPU numbers as a text names it: spans ascending, disjoint,
// not adjacent. It stays that small however far a span reaches.
type mask []span

// parseMask reads Nova's CPU set text (parse_cpu_spec): numbers and ranges,
// each with a caret in front to take it out again, wherever it stands; empty
// parts are passed over. base is there before the text, which may take of it.
func parseMask(text string, base ...span) (mask, error) {
	in, out := mask(base), mask(nil)
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		rest, taken := strings.CutPrefix(part, "^")
		low, high, ranged := strings.Cut(rest, "-")
		first, ok := integer(low)
		last := first
		if ranged && ok {
			last, ok = integer(high)
		}
		switch {
		case !ok: // also of numbers below zero: their sign makes a range with no start
			return nil, fmt.Errorf("%s is no vCPU number or range FIRST-LAST", quote(part))
		case first > last:
			return nil, fmt.Errorf("range %s runs backwards", quote(part))
		}
		if taken {
			out = append(out, span{first, last})
		} else {
			in = append(in, span{first, last})
		}
	}
	return in.merged().without(out.merged()), nil
}

// merged sorts the spans and joins those that touch.
func (m mask) merged() mask {
	m = slices.Clone(m)
	slices.SortFunc(m, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	out := m[:0]
	for _, s := range m {
		if n := len(out); n > 0 && s.first-1 <= out[n-1].last {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}

// without is m less t; both are merged.
func (m mask) without(t mask) mask {
	var out mask
spans:
	for _, s := range m {
		for len(t) > 0 && t[0].last < s.first {
			t = t[1:]
		}
		for i := 0; i < len(t) && t[i].first <= s.last; i++ {
			if t[i].first > s.first {
				out = append(out, span{s.first, t[i].first - 1})
			}
			if t[i].last >= s.last { // nothing of s is left; also keeps last+1 from running over
				continue spans
			}
			s.first = t[i].last + 1
		}
		out = append(out, s)
	}
	return out
}

// below is what of m is under n, as a set.
func (m mask) below(n int) topology.CPUSet {
	var out []int
	for _, s := range m {
		for cpu := s.first; cpu <= s.last && cpu < int64(n); cpu++ {
			out = append(out, int(cpu))
		}
	}
	return topology.NewCPUSet(out...)
}

// beyond is the first number of m that is n or more.
func (m mask) beyond(n int) (cpu int64, some bool) {
	for _, s := range m {
		if s.last >= int64(n) {
			return max(s.first, int64(n)), true
		}
	}
	return 0, false
}

// exclusive reads a mask that, where it starts with a caret, takes out of all
// vCPUs (hw:cpu_dedicated_mask, hw:cpu_realtime_mask).
func (r *reader) exclusive(text string) (mask, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "^") {
		return parseMask(text, span{0, int64(r.vcpus) - 1})
	}
	return parseMask(text)
}

// allVCPUs are the guest's vCPUs.
func (r *reader) allVCPUs() topology.CPUSet { return mask{{0, int64(r.vcpus) - 1}}.below(r.vcpus) }
