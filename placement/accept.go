package placement

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// acceptRange is one media range of an Accept header.
type acceptRange struct {
	kind    string // in lower case
	quality float64
	plain   bool // without parameters of the media type
}

const (
	token      = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"
	quoted     = `"(?:[^"\\]|\\.)*"`
	mediaParam = `[ \t]*;[ \t]*` + token + `=(?:` + token + `|` + quoted + `)`
	weight     = `[ \t]*;[ \t]*[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)`
	extension  = `[ \t]*;[ \t]*` + token + `(?:=(?:` + token + `|` + quoted + `))?`
)

var (
	mediaRange  = regexp.MustCompile(`^(` + token + `/` + token + `)((?:` + mediaParam + `)*)$`)
	mediaWeight = regexp.MustCompile(`^(.*?)` + weight + `(?:` + extension + `)*$`)
	firstComma  = regexp.MustCompile(`^,|,[ \t]*$`)
)

// accepted is the client's Accept header. None, and the one that takes everything,
// mean JSON.
func accepted(q *http.Request) string {
	if a := strings.Join(q.Header.Values("Accept"), ","); a != "" && a != "*/*" {
		return a
	}
	return "application/json"
}

// parseAccept reads an Accept header as RFC 7231 has it; false means that it is
// none.
func parseAccept(header string) ([]acceptRange, bool) {
	if firstComma.MatchString(header) {
		return nil, false
	}
	var out []acceptRange
	for _, part := range splitQuoted(header) {
		part = strings.Trim(part, " \t")
		if part == "" {
			continue
		}
		r := acceptRange{quality: 1}
		if m := mediaWeight.FindStringSubmatch(part); m != nil {
			q, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				return nil, false
			}
			part, r.quality = m[1], q
		}
		m := mediaRange.FindStringSubmatch(part)
		if m == nil {
			return nil, false
		}
		r.kind, r.plain = strings.ToLower(m[1]), m[2] == ""
		out = append(out, r)
	}
	return out, true
}

// splitQuoted cuts at the commas that are not in quotes.
func splitQuoted(s string) []string {
	var parts []string
	start, in := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case in && s[i] == '\\':
			i++
		case s[i] == '"':
			in = !in
		case s[i] == ',' && !in:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// quality is how much a media type is wanted; 0 means not at all. The most specific
// range that covers it decides.
func quality(ranges []acceptRange, kind string) float64 {
	var q float64
	best := 0
	for _, r := range ranges {
		specificity := 0
		switch {
		case r.kind == kind && r.plain:
			specificity = 3
		case r.kind == strings.SplitN(kind, "/", 2)[0]+"/*":
			specificity = 2
		case r.kind == "*/*":
			specificity = 1
		}
		if specificity > best {
			best, q = specificity, r.quality
		}
	}
	return q
}

// acceptsJSON says whether the client takes an answer in JSON. A header that is
// none does not count.
func acceptsJSON(q *http.Request) bool {
	header := accepted(q)
	if header == "application/json" { // nearly always
		return true
	}
	ranges, ok := parseAccept(header)
	return !ok || quality(ranges, "application/json") > 0
}

// refusalType is the media type of a refusal: what the client wants more, and plain
// text for who wants neither.
func refusalType(q *http.Request) string {
	const html, json = "text/html", "application/json"
	ranges, ok := parseAccept(accepted(q))
	if !ok {
		return html
	}
	switch h, j := quality(ranges, html), quality(ranges, json); {
	case h > 0 && h >= j:
		return html
	case j > 0:
		return json
	}
	return "text/plain"
}
