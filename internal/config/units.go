package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/fault"
	"berth/migration/options"
	"berth/topology"
)

// Duration is a time.Duration, written "1m30s".
type Duration time.Duration

// UnmarshalText reads the form of time.ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as \"30s\" or \"1m30s\"", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is time.Duration's.
func (d Duration) String() string { return time.Duration(d).String() }

// D is the value as the rest of the program uses it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// bareTimes refuses each time of a file that has no unit: the reader would take the number for
// nanoseconds, and a shutdown_timeout of 60 for no time at all. Zero needs none.
func bareTimes(path string, data []byte, t reflect.Type) error {
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		return fault.New(fault.Invalid, "read %s: %w", path, err)
	}
	var reasons []fault.Reason
	eachTime(t, tree, "", func(key string, v any) {
		n, bare := v.(int64)
		if !bare || n == 0 {
			return
		}
		reasons = append(reasons, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("%s: %s = %d: a time without a unit", path, key, n), Have: strconv.FormatInt(n, 10),
			Want: "text such as \"30s\" or \"1m30s\"", Change: fmt.Sprintf("write it with its unit, in quotes: \"%ds\" if seconds are meant", n),
		})
	})
	if len(reasons) == 0 {
		return nil
	}
	slices.SortFunc(reasons, func(a, b fault.Reason) int { return strings.Compare(a.Message, b.Message) })
	return fault.Refuse(fault.Invalid, "read "+path, reasons...)
}

// eachTime walks what a file has beside the types that it is read into, and gives what stands
// where a Duration is read.
func eachTime(t reflect.Type, tree any, key string, found func(key string, v any)) {
	switch {
	case t == reflect.TypeFor[Duration]():
		found(key, tree)
	case t.Kind() == reflect.Pointer:
		eachTime(t.Elem(), tree, key, found)
	case t.Kind() == reflect.Slice:
		list, _ := tree.([]any)
		for _, v := range list {
			eachTime(t.Elem(), v, key, found)
		}
	case t.Kind() == reflect.Map:
		table, _ := tree.(map[string]any)
		for k, v := range table {
			eachTime(t.Elem(), v, key+"."+k, found)
		}
	case t.Kind() == reflect.Struct:
		table, _ := tree.(map[string]any)
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("toml"), ",")
			for k, v := range table {
				if strings.EqualFold(k, name) { // as the reader takes them
					eachTime(t.Field(i).Type, v, strings.TrimPrefix(key+"."+name, "."), found)
				}
			}
		}
	}
}

// Rate is bytes a second, written "20MiB/s"; "0" is no bound.
type Rate uint64

// ParseRate reads "20MiB/s", "1GB/s", "500000B/s"; see options.ParseBytes.
func ParseRate(text string) (Rate, error) {
	n, err := options.ParseBytes(text, true)
	return Rate(n), err
}

// UnmarshalText reads the form of ParseRate.
func (r *Rate) UnmarshalText(text []byte) error {
	v, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = v
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String gives the rate with the largest unit that divides it.
func (r Rate) String() string { return options.FormatBytes(uint64(r), true) }

// Size is bytes, written "64MiB"; "0" leaves it to whoever uses it.
type Size uint64

// UnmarshalText reads the form of options.ParseBytes.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := options.ParseBytes(string(text), false)
	if err != nil {
		return err
	}
	*s = Size(n)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (s Size) MarshalText() ([]byte, error) {
	return []byte(options.FormatBytes(uint64(s), false)), nil
}

// Ports is a range of TCP ports, written "49152-49215"; "" is any.
type Ports string

func (p Ports) valid() bool {
	first, last := p.Range()
	return p == "" || first > 0 && first <= last
}

// Range is the first and the last; both 0 for any, and for what is no range.
func (p Ports) Range() (first, last int) {
	from, to, ranged := strings.Cut(string(p), "-")
	if !ranged {
		to = from
	}
	a, aerr := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	b, berr := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	if aerr != nil || berr != nil {
		return 0, 0
	}
	return int(a), int(b)
}

// PageSize is a number of KiB, which is how Nova's reserved_huge_pages has plain
// numbers (2048). Text may have a unit ("2MB", "2MiB", "1G"), all of them powers
// of 1024.
type PageSize int64

// maxPageSize is 1 PiB: no kernel has larger pages, and its bytes fit.
const maxPageSize PageSize = 1 << 40

var pageSizeForm = regexp.MustCompile(`^([0-9]+)\s*(?:([KMGT])i?B?)?$`)

// UnmarshalText reads text; TOML's plain numbers do not come here.
func (p *PageSize) UnmarshalText(text []byte) error {
	m := pageSizeForm.FindStringSubmatch(strings.TrimSpace(string(text)))
	if m != nil {
		n, err := strconv.ParseInt(m[1], 10, 64)
		unit := map[string]PageSize{"": 1, "K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}[m[2]]
		if err == nil && n <= int64(maxPageSize/unit) {
			*p = PageSize(n) * unit
			return nil
		}
	}
	return fmt.Errorf("%q is not a page size such as 2048 (KiB), \"2MiB\" or \"1GiB\"", text)
}

// MarshalText writes a form that UnmarshalText reads.
func (p PageSize) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String is topology.PageSize's.
func (p PageSize) String() string { return p.Bytes().String() }

// Bytes is the size as the rest of the program has it.
func (p PageSize) Bytes() topology.PageSize { return topology.PageSize(p) << 10 }
