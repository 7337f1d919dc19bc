package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxCPU is the highest CPU or cell number that ParseCPUSet takes. The kernel's
// own CONFIG_NR_CPUS ends at 8192 on every architecture; the room above it costs
// nothing, and an end keeps a garbled "0-4294967295" from eating the memory.
const MaxCPU = 1<<16 - 1

// maxListBytes bounds the text of one list: MaxCPU single numbers of five
// digits and a comma each.
const maxListBytes = 6 * (MaxCPU + 1)

// CPUSet is a set of logical CPU numbers, ascending and without repeats. Make it
// with NewCPUSet or ParseCPUSet, which keep that order; nil is the empty set.
// The methods never change their receiver, and their results share no memory
// with it. In JSON it is a list of numbers, in text (TOML, logs) the kernel's
// list form.
type CPUSet []int

// NewCPUSet gives the set of the numbers named, in any order, repeats allowed.
// Negative numbers name no CPU and are dropped.
func NewCPUSet(cpus ...int) CPUSet {
	s := slices.DeleteFunc(slices.Clone(cpus), func(c int) bool { return c < 0 })
	slices.Sort(s)
	s = slices.Compact(s)
	if len(s) == 0 {
		return nil
	}
	return s
}

// ParseCPUSet reads the kernel's list form, "0-3,8,10-11", with the stepped
// form "0-31:2/4" (of each group of 4, the first 2; kernel
// Documentation/admin-guide/kernel-parameters.rst, "cpu lists"). White space at
// the ends is ignored; the empty text is the empty set. Numbers above MaxCPU,
// ranges that run backwards, and anything else are errors.
func ParseCPUSet(text string) (CPUSet, error) {
	return ParseList(text, MaxCPU)
}

// ParseList is ParseCPUSet with its own highest number, for lists of other
// things than CPUs (NUMA nodes). It takes time and memory for at most highest+1
// numbers, however often the text repeats them.
func ParseList(text string, highest int) (CPUSet, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	if len(text) > maxListBytes {
		return nil, fmt.Errorf("parse list: %d bytes is too long", len(text))
	}
	seen := make([]bool, 0, 64)
	budget := 4 * (highest + 1) // for lists that name the same range again and again
	for part := range strings.SplitSeq(text, ",") {
		r, err := parseRange(part, highest)
		if err != nil {
			return nil, fmt.Errorf("parse list %s: %w", abridge(text), err)
		}
		for len(seen) <= r.last {
			seen = append(seen, false)
		}
		if budget -= r.last - r.first + 1; budget < 0 {
			return nil, fmt.Errorf("parse list %s: the same numbers too often", abridge(text))
		}
		for n := r.first; n <= r.last; n++ {
			if (n-r.first)%r.group < r.used {
				seen[n] = true
			}
		}
	}
	var s CPUSet
	for n, in := range seen {
		if in {
			s = append(s, n)
		}
	}
	return s, nil
}

// listRange is one comma-separated part of the list form: of first..last, the
// first `used` of each `group`.
type listRange struct{ first, last, used, group int }

func parseRange(part string, highest int) (listRange, error) {
	r := listRange{used: 1, group: 1}
	span, step, stepped := strings.Cut(part, ":")
	first, last, ranged := strings.Cut(span, "-")
	var err error
	if r.first, err = parseNumber(first, highest); err != nil {
		return r, err
	}
	r.last = r.first
	if ranged {
		if r.last, err = parseNumber(last, highest); err != nil {
			return r, err
		}
	}
	if r.last < r.first {
		return r, fmt.Errorf("range %q runs backwards", span)
	}
	if !stepped {
		return r, nil
	}
	used, group, ok := strings.Cut(step, "/")
	if !ok || !ranged {
		return r, fmt.Errorf("step of %q is not FIRST-LAST:USED/GROUP", part)
	}
	if r.used, err = parseNumber(used, highest); err != nil {
		return r, err
	}
	if r.group, err = parseNumber(group, highest+1); err != nil {
		return r, err
	}
	if r.used == 0 || r.group == 0 || r.used > r.group {
		return r, fmt.Errorf("step of %q takes %d of each %d", part, r.used, r.group)
	}
	return r, nil
}

// parseNumber takes decimal digits only: no sign, no blank, no underscore.
func parseNumber(text string, highest int) (int, error) {
	if text == "" {
		return 0, errors.New("a number is missing")
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%s is not a number", abridge(text))
		}
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n > uint64(highest) {
		return 0, fmt.Errorf("%s is above %d", abridge(text), highest)
	}
	return int(n), nil
}

// abridge quotes text for an error, shortened where a garbled file is long.
func abridge(text string) string {
	const most = 40
	if len(text) > most {
		return fmt.Sprintf("%q…", text[:most])
	}
	return strconv.Quote(text)
}

// String gives the kernel's list form, "0-3,8"; the empty set is "".
func (s CPUSet) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] == s[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s[j]))
		}
		i = j + 1
	}
	return b.String()
}

// IsEmpty reports whether no CPU is in the set.
func (s CPUSet) IsEmpty() bool { return len(s) == 0 }

// Len is the number of CPUs in the set.
func (s CPUSet) Len() int { return len(s) }

// Contains reports whether the CPU is in the set.
func (s CPUSet) Contains(cpu int) bool {
	_, found := slices.BinarySearch(s, cpu)
	return found
}

// ContainsAll reports whether every CPU of t is in s.
func (s CPUSet) ContainsAll(t CPUSet) bool { return t.Difference(s).IsEmpty() }

// Intersects reports whether s and t have a CPU in common.
func (s CPUSet) Intersects(t CPUSet) bool { return !s.Intersection(t).IsEmpty() }

// SameAs reports whether s and t hold the same CPUs; nil and empty are the same.
func (s CPUSet) SameAs(t CPUSet) bool { return slices.Equal(s, t) }

// Union is what is in s or t.
func (s CPUSet) Union(t CPUSet) CPUSet {
	return merge(s, t, func(inS, inT bool) bool { return inS || inT })
}

// Intersection is what is in both s and t.
func (s CPUSet) Intersection(t CPUSet) CPUSet {
	return merge(s, t, func(inS, inT bool) bool { return inS && inT })
}

// Difference is what is in s and not in t.
func (s CPUSet) Difference(t CPUSet) CPUSet {
	return merge(s, t, func(inS, inT bool) bool { return inS && !inT })
}

func merge(s, t CPUSet, keep func(inS, inT bool) bool) CPUSet {
	var out CPUSet
	for i, j := 0, 0; i < len(s) || j < len(t); {
		var n int
		inS := i < len(s) && (j >= len(t) || s[i] <= t[j])
		inT := j < len(t) && (i >= len(s) || t[j] <= s[i])
		if inS {
			n = s[i]
			i++
		}
		if inT {
			n = t[j]
			j++
		}
		if keep(inS, inT) {
			out = append(out, n)
		}
	}
	return out
}

// MarshalJSON writes a list of numbers; the empty set is [], not null.
func (s CPUSet) MarshalJSON() ([]byte, error) {
	if len(s) == 0 {
		return []byte("[]"), nil
	}
	return json.Marshal([]int(s))
}

// UnmarshalJSON reads a list of numbers in any order.
func (s *CPUSet) UnmarshalJSON(data []byte) error {
	var cpus []int
	if err := json.Unmarshal(data, &cpus); err != nil {
		return fmt.Errorf("parse cpu set: %w", err)
	}
	for _, c := range cpus {
		if c < 0 || c > MaxCPU {
			return fmt.Errorf("parse cpu set: %d is not in 0..%d", c, MaxCPU)
		}
	}
	*s = NewCPUSet(cpus...)
	return nil
}

// MarshalText writes the kernel's list form.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the kernel's list form.
func (s *CPUSet) UnmarshalText(text []byte) error {
	parsed, err := ParseCPUSet(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
