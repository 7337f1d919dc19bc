package fitcase

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"berth/topology"
)

// reader keeps where it is and what it met.
type reader struct {
	at     []string
	faults []string
	cpuSum int // CPUs in all lists so far
}

func (r *reader) fault(format string, args ...any) {
	const most = 20 // the first are enough to start with
	if len(r.faults) < most {
		r.faults = append(r.faults, pointer(r.at...)+": "+fmt.Sprintf(format, args...))
	}
}

func (r *reader) in(key string, read func()) {
	r.at = append(r.at, key)
	read()
	r.at = r.at[:len(r.at)-1]
}

// id takes numbers too.
func (r *reader) id(doc map[string]any) string {
	switch v := doc["id"].(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	}
	r.in("id", func() { r.fault("want a text") })
	return ""
}

func (r *reader) object(v any) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		r.fault("want an object%s", got(v))
	}
	return m
}

// list gives what is in a list; nothing where there is none.
func (r *reader) list(m map[string]any, key string, most int) []any {
	if m[key] == nil {
		return nil
	}
	l, ok := m[key].([]any)
	switch {
	case !ok:
		r.in(key, func() { r.fault("want a list%s", got(m[key])) })
	case len(l) > most:
		r.in(key, func() { r.fault("%d entries, want at most %d", len(l), most) })
		l = nil
	}
	return l
}

func (r *reader) each(m map[string]any, key string, most int, read func(i int, v any)) {
	l := r.list(m, key, most)
	r.in(key, func() {
		for i, v := range l {
			r.in(strconv.Itoa(i), func() { read(i, v) })
		}
	})
}

// count reads a number of things: whole, from least to most. Absent and null
// are 0, or a fault where the field is needed.
func (r *reader) count(m map[string]any, key string, least, most int64, needed bool) int64 {
	if m[key] == nil {
		if needed {
			r.in(key, func() { r.fault("missing") })
		}
		return 0
	}
	n, ok := whole(m[key])
	switch {
	case !ok:
		r.in(key, func() { r.fault("want a whole number%s", got(m[key])) })
	case n < least || n > most:
		r.in(key, func() { r.fault("%d, want %d to %d", n, least, most) })
	default:
		return n
	}
	return 0
}

func whole(v any) (int64, bool) {
	number, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	if n, err := strconv.ParseInt(number.String(), 10, 64); err == nil {
		return n, true
	}
	f, err := number.Float64()
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

func (r *reader) cpus(v any) topology.CPUSet {
	if v == nil {
		return nil
	}
	text, ok := v.(string)
	if !ok {
		r.fault("want a list of CPUs as text%s", got(v))
		return nil
	}
	if r.cpuSum > mostCPUs {
		r.fault("the lists of CPUs before this one hold more than %d already", mostCPUs)
		return nil
	}
	s, err := topology.ParseCPUSet(text)
	if err != nil {
		r.fault("%s", err)
	}
	r.cpuSum += len(s)
	return s
}

func (r *reader) cpusOf(m map[string]any, key string) (s topology.CPUSet) {
	if m[key] == nil {
		return nil
	}
	r.in(key, func() { s = r.cpus(m[key]) })
	return s
}

// text takes numbers and booleans as their JSON text: Nova's image properties
// come as either.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

func (r *reader) texts(m map[string]any, key string) map[string]string {
	if m[key] == nil {
		return nil
	}
	var out map[string]string
	r.in(key, func() {
		o := r.object(m[key])
		out = make(map[string]string, len(o))
		for _, k := range slices.Sorted(maps.Keys(o)) {
			v, ok := text(o[k])
			if !ok {
				r.in(k, func() { r.fault("want a text, a number or a boolean%s", got(o[k])) })
				continue
			}
			out[k] = v
		}
	})
	return out
}

// got says what stands in the place of what was wanted.
func got(v any) string {
	switch v := v.(type) {
	case nil:
		return ", there is none"
	case map[string]any:
		return ", got an object"
	case []any:
		return ", got a list"
	default:
		text := fmt.Sprintf("%v", v)
		if len(text) > 40 {
			text = text[:40] + "…"
		}
		return fmt.Sprintf(", got %q", text)
	}
}
