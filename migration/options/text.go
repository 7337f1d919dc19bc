package options

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/fault"
)

// Find gives the option that is called so in JSON, on the command line, or in the
// configuration.
func Find(name string) (Option, bool) {
	at := slices.IndexFunc(table[:], func(o Option) bool { return o.Name == name || o.Flag == name || o.Key == name })
	if at < 0 {
		return Option{}, false
	}
	return table[at], true
}

// Set lays one option, as Find knows it and in people's words, over those of l. An option
// that there is not, and a value that cannot be, are fault.Invalid with the reason; l stays
// as it was.
func Set(l *Live, name, text string) error {
	o, known := Find(name)
	if !known {
		return fault.Refuse(fault.Invalid, "", fault.Reason{Code: "option_unknown", Message: name + " is no option of a live migration", Have: name, Change: "see docs/live-migration-options.md"})
	}
	if why := o.set(l, text); why != "" {
		return fault.Refuse(fault.Invalid, "", refused(o.Flag, quote(text), why))
	}
	return nil
}

// refused is the reason against a value of an option that is called name.
func refused(name, have, want string) fault.Reason {
	return fault.Reason{Code: "option_value", Message: fmt.Sprintf("%s %s: want %s", name, have, want), Have: have, Want: want, Change: "correct " + name}
}

// set reads a value into its field, or says what is wanted.
func (o Option) set(l *Live, text string) string {
	text = strings.TrimSpace(text)
	next := *l
	field := o.at(&next)
	if o.None && slices.Contains([]string{"none", "unlimited", "0", "0s"}, text) {
		switch field := field.(type) {
		case *uint64:
			*field = NoRate
		case *time.Duration:
			*field = NoTime
		case *string:
			*field = "none"
		}
		*l = next
		return ""
	}
	read := true
	var err error
	switch field := field.(type) {
	case *uint64:
		*field, err = ParseBytes(text, o.Kind == KindRate)
	case *time.Duration:
		*field, err = time.ParseDuration(text)
	case *int:
		if o.Kind == KindPercent {
			text = strings.TrimSpace(strings.TrimSuffix(text, "%"))
		}
		*field, err = strconv.Atoi(text)
	case *Switch:
		*field, read = parseSwitch(text)
	case *Action:
		*field = Action(strings.ReplaceAll(text, "_", "-"))
	case *[]string:
		*field = splitWords(text)
	case *string:
		*field = text
	}
	if err != nil && o.Kind == KindRate && bareNumber.MatchString(text) {
		return fmt.Sprintf("a unit: %sMiB/s is what virsh means by %s", text, text)
	}
	if err != nil || !read || !o.said(next) {
		return o.Want()
	}
	if why := o.wrong(next); why != "" {
		return why
	}
	*l = next
	return ""
}

// quote quotes what somebody wrote, shortened where it is a book.
func quote(text string) string {
	if len(text) > mostSchedule {
		return strconv.Quote(strings.ToValidUTF8(text[:mostSchedule], "")) + "…"
	}
	return strconv.Quote(text)
}

// Want is what values the option takes, in words for people.
func (o Option) Want() string {
	var want string
	bound := func(b uint64) string {
		switch o.Kind {
		case KindRate, KindSize:
			return FormatBytes(b, o.Kind == KindRate)
		case KindDuration:
			return time.Duration(b).String()
		}
		return strconv.FormatUint(b, 10)
	}
	switch o.Kind {
	case KindRate:
		want = "a rate such as 20MiB/s or 1GiB/s"
	case KindSize:
		want = "a power of two from " + bound(o.Min) + " to " + bound(o.Max)
	case KindDuration:
		want = "a time from " + bound(o.Min) + " to " + bound(o.Max)
	case KindPercent:
		want = "per cent from " + bound(o.Min) + " to " + bound(o.Max)
	case KindNumber:
		want = "a number from " + bound(o.Min) + " to " + bound(o.Max)
	case KindSwitch:
		want = "on or off"
	case KindWord:
		want = "one of " + strings.Join(o.Words, ", ")
	case KindWords:
		want = "none, or some of " + strings.Join(o.Words[1:], ", ")
	case KindText:
		want = "a schedule such as 2:max-downtime=2s, 4:abort"
	}
	if o.None {
		want += ", or none"
	}
	return want
}

// Text is the option's value as Set reads it; empty where it is not said.
func (o Option) Text(l Live) string {
	if !o.said(l) {
		return ""
	}
	switch v := o.at(&l).(type) {
	case *uint64:
		if *v == NoRate {
			return "none"
		}
		return FormatBytes(*v, o.Kind == KindRate)
	case *time.Duration:
		if *v == NoTime {
			return "none"
		}
		return v.String()
	case *int:
		if o.Kind == KindPercent {
			return strconv.Itoa(*v) + "%"
		}
		return strconv.Itoa(*v)
	case *Switch:
		return string(*v)
	case *Action:
		return string(*v)
	case *[]string:
		return strings.Join(*v, ",")
	case *string:
		return *v
	}
	return ""
}

// said reports whether somebody has said the option.
func (o Option) said(l Live) bool {
	switch v := o.at(&l).(type) {
	case *uint64:
		return *v != 0
	case *time.Duration:
		return *v != 0
	case *int:
		return *v != 0
	case *Switch:
		return *v != Unsaid
	case *Action:
		return *v != ""
	case *[]string:
		return len(*v) > 0
	case *string:
		return *v != ""
	}
	return false
}

func parseSwitch(text string) (Switch, bool) {
	switch strings.ToLower(text) {
	case "on", "yes", "true", "1":
		return On, true
	case "off", "no", "false", "0":
		return Off, true
	}
	return Unsaid, false
}

func splitWords(text string) []string {
	var out []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

var bareNumber = regexp.MustCompile(`^[0-9]+$`)

var bytesForm = regexp.MustCompile(`^([0-9]+)\s*([KMGT]i?B|B)?(/s)?$`)

// ParseBytes reads "20MiB", "1GB", "500000", and where they are a rate the same with "/s".
// Units without i are powers of ten, as everywhere but in virsh. A rate other than 0 needs
// its unit: virsh means MiB/s by a bare number.
func ParseBytes(text string, rate bool) (uint64, error) {
	bad := func() (uint64, error) {
		if rate {
			return 0, fmt.Errorf("%q is not a rate such as \"20MiB/s\" or \"1GiB/s\"", text)
		}
		return 0, fmt.Errorf("%q is not a size such as \"64MiB\" or \"1GiB\"", text)
	}
	m := bytesForm.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil || m[3] != "" && !rate {
		return bad()
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		return bad()
	}
	if rate && n != 0 && m[2] == "" {
		return 0, fmt.Errorf("%q has no unit: write %sMiB/s (what virsh means by it) or %sB/s", text, m[1], m[1])
	}
	unit := map[string]uint64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[m[2]]
	// libvirt keeps bandwidths as signed MiB/s and bytes/s.
	if n > (1<<63-1)/unit {
		return bad()
	}
	return n * unit, nil
}

// FormatBytes gives bytes, or a rate, with the largest unit that divides them.
func FormatBytes(n uint64, rate bool) string {
	if n == 0 {
		return "0"
	}
	unit, size := "B", uint64(1)
	for _, u := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n%u.size == 0 {
			unit, size = u.name, u.size
			break
		}
	}
	if rate {
		unit += "/s"
	}
	return strconv.FormatUint(n/size, 10) + unit
}
