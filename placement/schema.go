package placement

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// schema is the part of JSON Schema that Placement's bodies and queries need.
// The texts of its errors are those of Python's jsonschema, without the tail in
// which that prints the schema itself.
type schema struct {
	types    []string // object, array, string, integer, number, null; empty for any
	props    []property
	patterns []patternProperty
	required []string
	closed   bool // no other properties
	minProps int

	items    *schema
	minItems int
	unique   bool

	pattern *regexp.Regexp
	minLen  int
	maxLen  int // 0 for no bound
	uuid    bool
	enum    []string

	min, max *float64

	anyOf []*schema
}

type property struct {
	name string
	s    *schema
}

type patternProperty struct {
	re *regexp.Regexp
	s  *schema
}

// violation is one thing wrong, with how deep in the document it is.
type violation struct {
	depth int
	text  string
}

// validate gives the violation that jsonschema would show: the least deep, and
// of those the first.
func (s *schema) validate(v any) error {
	found := s.check(v, 0, nil)
	if len(found) == 0 {
		return nil
	}
	best := found[0]
	for _, f := range found[1:] {
		if f.depth < best.depth {
			best = f
		}
	}
	return fmt.Errorf("%s", best.text)
}

func (s *schema) check(v any, depth int, found []violation) []violation {
	say := func(text string, args ...any) { found = append(found, violation{depth, fmt.Sprintf(text, args...)}) }
	if len(s.types) > 0 && !slices.ContainsFunc(s.types, func(t string) bool { return isType(v, t) }) {
		var quoted []string
		for _, t := range s.types {
			quoted = append(quoted, "'"+t+"'")
		}
		say("%s is not of type %s", python(v), strings.Join(quoted, ", "))
	}
	switch v := v.(type) {
	case *object:
		found = s.checkObject(v, depth, found)
	case []any:
		if len(v) < s.minItems {
			say("%s is too short", python(v))
		}
		if s.items != nil {
			for _, e := range v {
				found = s.items.check(e, depth+1, found)
			}
		}
		if s.unique && repeats(v) {
			say("%s has non-unique elements", python(v))
		}
	case string:
		n := utf8.RuneCountInString(v)
		if s.uuid && canonicalUUID(v) == "" {
			say("%s is not a 'uuid'", python(v))
		}
		if n < s.minLen {
			say("%s is too short", python(v))
		}
		if s.maxLen > 0 && n > s.maxLen {
			say("%s is too long", python(v))
		}
		if s.pattern != nil && !s.pattern.MatchString(v) {
			say("%s does not match %s", python(v), python(s.pattern.String()))
		}
		if len(s.enum) > 0 && !slices.Contains(s.enum, v) {
			say("%s is not one of %s", python(v), python(s.enum))
		}
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			f = math.Inf(1)
		}
		if s.min != nil && f < *s.min {
			say("%s is less than the minimum of %.0f", v, *s.min)
		}
		if s.max != nil && f > *s.max {
			say("%s is greater than the maximum of %.0f", v, *s.max)
		}
	}
	if len(s.anyOf) > 0 {
		var inner []violation
		for _, a := range s.anyOf {
			f := a.check(v, depth, nil)
			if len(f) == 0 {
				return found
			}
			inner = append(inner, f...)
		}
		found = append(found, inner[0])
	}
	return found
}

func (s *schema) checkObject(o *object, depth int, found []violation) []violation {
	say := func(text string, args ...any) { found = append(found, violation{depth, fmt.Sprintf(text, args...)}) }
	if len(o.keys) < s.minProps {
		say("%s does not have enough properties", python(o))
	}
	for _, p := range s.props {
		if v, there := o.get(p.name); there {
			found = p.s.check(v, depth+1, found)
		}
	}
	var extra []string
	for _, key := range o.keys {
		known := slices.ContainsFunc(s.props, func(p property) bool { return p.name == key })
		for _, p := range s.patterns {
			if p.re.MatchString(key) {
				known = true
				found = p.s.check(o.m[key], depth+1, found)
			}
		}
		if !known {
			extra = append(extra, python(key))
		}
	}
	for _, name := range s.required {
		if _, there := o.get(name); !there {
			say("%s is a required property", python(name))
		}
	}
	if s.closed && len(extra) > 0 {
		if len(s.patterns) > 0 {
			var res []string
			for _, p := range s.patterns {
				res = append(res, python(p.re.String()))
			}
			slices.Sort(res)
			verb := "does"
			if len(extra) > 1 {
				verb = "do"
			}
			say("%s %s not match any of the regexes: %s", strings.Join(extra, ", "), verb, strings.Join(res, ", "))
		} else {
			verb := "was"
			if len(extra) > 1 {
				verb = "were"
			}
			say("Additional properties are not allowed (%s %s unexpected)", strings.Join(extra, ", "), verb)
		}
	}
	return found
}

func isType(v any, t string) bool {
	switch t {
	case "object":
		_, is := v.(*object)
		return is
	case "array":
		_, is := v.([]any)
		return is
	case "string":
		_, is := v.(string)
		return is
	case "null":
		return v == nil
	case "number":
		_, is := v.(json.Number)
		return is
	case "integer":
		n, is := v.(json.Number)
		if !is {
			return false
		}
		_, whole := wholeNumber(n)
		return whole
	}
	return false
}

func repeats(list []any) bool {
	seen := map[string]bool{}
	for _, v := range list {
		k := python(v)
		if seen[k] {
			return true
		}
		seen[k] = true
	}
	return false
}

// canonicalUUID gives the lower case form with dashes of anything Python's
// uuid.UUID takes, or "".
func canonicalUUID(s string) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, "urn:", ""), "uuid:", "")
	s = strings.ToLower(strings.ReplaceAll(strings.Trim(s, "{}"), "-", ""))
	if len(s) != 32 {
		return ""
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// extract reads and validates a body.
func extract(body []byte, s *schema) (any, error) {
	v, err := parseJSON(body)
	if err != nil {
		return nil, badRequest("Malformed JSON: %v", err)
	}
	if err := s.validate(v); err != nil {
		return nil, badRequest("JSON does not validate: %v", err)
	}
	return v, nil
}

// extractObject is extract for the schemas that want an object.
func extractObject(body []byte, s *schema) (*object, error) {
	v, err := extract(body, s)
	if err != nil {
		return nil, err
	}
	o, is := v.(*object)
	if !is {
		return nil, badRequest("JSON does not validate: %s is not of type 'object'", python(v))
	}
	return o, nil
}
