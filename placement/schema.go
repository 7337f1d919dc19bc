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

// schema is the part of JSON Schema that Placement's bodies and queries need: its
// keywords in the order in which they are looked at. That order decides which of
// several faults is told. A refusal is worded as by Python's jsonschema 4.10, with
// the part of the schema that was not kept and the part of the document that did
// not keep it.
type schema struct {
	rules []rule
}

// rule is one keyword with its value.
type rule struct {
	name   string
	value  any        // bool, json.Number, string or []string, for keywords that hold no schemas
	number float64    // value, where that is a number
	props  []property // of properties and patternProperties
	inner  []*schema  // of anyOf; of items it is one
	re     *regexp.Regexp
}

// property is a named schema; re is its name where that is a pattern.
type property struct {
	name string
	s    *schema
	re   *regexp.Regexp
}

// The keywords.

func (s *schema) with(r ...rule) *schema { return &schema{append(slices.Clip(s.rules), r...)} }

func typed(names ...string) *schema {
	if len(names) == 1 {
		return &schema{[]rule{{name: "type", value: names[0]}}}
	}
	return &schema{[]rule{{name: "type", value: names}}}
}

func bound(keyword, number string) rule {
	f, _ := json.Number(number).Float64() // 0 for what is no number, which a test would find
	return rule{name: keyword, value: json.Number(number), number: f}
}

func pattern(re *regexp.Regexp) rule { return rule{name: "pattern", value: re.String(), re: re} }

func properties(p ...property) rule { return rule{name: "properties", props: p} }

func patternProperties(p ...property) rule {
	for i := range p {
		p[i].re = regexp.MustCompile(p[i].name)
	}
	return rule{name: "patternProperties", props: p}
}

func required(names ...string) rule { return rule{name: "required", value: names} }

func closed() rule { return rule{name: "additionalProperties", value: false} }

func items(s *schema) rule { return rule{name: "items", inner: []*schema{s}} }

func unique() rule { return rule{name: "uniqueItems", value: true} }

func anyOf(s ...*schema) *schema { return &schema{[]rule{{name: "anyOf", inner: s}}} }

func (s *schema) rule(name string) *rule {
	i := slices.IndexFunc(s.rules, func(r rule) bool { return r.name == name })
	if i < 0 {
		return nil
	}
	return &s.rules[i]
}

// document is the schema as a value, for printing.
func (s *schema) document() *object {
	o := &object{m: map[string]any{}}
	set := func(o *object, key string, v any) {
		o.keys = append(o.keys, key)
		o.m[key] = v
	}
	for _, r := range s.rules {
		switch {
		case r.props != nil:
			inner := &object{m: map[string]any{}}
			for _, p := range r.props {
				set(inner, p.name, p.s.document())
			}
			set(o, r.name, inner)
		case r.name == "items":
			set(o, r.name, r.inner[0].document())
		case r.inner != nil:
			list := make([]any, len(r.inner))
			for i, one := range r.inner {
				list[i] = one.document()
			}
			set(o, r.name, list)
		default:
			set(o, r.name, r.value)
		}
	}
	return o
}

// place is where in the document and in the schema a look is.
type place struct {
	up  *place
	key any // of the document: string or int; nil where only the schema was entered
	via []any
}

func (p *place) depth() (n int) {
	for ; p != nil; p = p.up {
		if p.key != nil {
			n++
		}
	}
	return n
}

// index prints the way to a place as Python does.
func index(keys []any) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "[%s]", python(k))
	}
	return b.String()
}

func (p *place) path() (document, schema []any) {
	if p == nil {
		return nil, nil
	}
	document, schema = p.up.path()
	if p.key != nil {
		document = append(document, p.key)
	}
	return document, append(schema, p.via...)
}

// violation is one thing wrong.
type violation struct {
	at      *place
	s       *schema
	keyword string
	v       any // the part of the document
	message string
	context []violation // why each of an anyOf did not do
}

// relevance orders violations as jsonschema's best_match does: the least deep
// first; of those, a failed anyOf last, and a wrong type before what a value of
// the right type lacks. Greater is more relevant.
func (f *violation) relevance() [3]int {
	out := [3]int{-f.at.depth(), 1, 1}
	if f.keyword == "anyOf" {
		out[1] = 0
	}
	if r := f.s.rule("type"); r != nil && isOfType(f.v, r) {
		out[2] = 0
	}
	return out
}

func compare3(a, b [3]int) int { return slices.Compare(a[:], b[:]) }

// validate gives the violation that jsonschema would show.
func (s *schema) validate(v any) error {
	var found []violation
	s.check(v, nil, &found)
	if len(found) == 0 {
		return nil
	}
	best := &found[0]
	for i := range found[1:] {
		if f := &found[i+1]; compare3(f.relevance(), best.relevance()) > 0 {
			best = f
		}
	}
	// Of an anyOf the reason that stands out is told, where one does.
	for len(best.context) > 0 {
		c := best.context
		slices.SortStableFunc(c, func(a, b violation) int { return compare3(a.relevance(), b.relevance()) })
		if len(c) > 1 && compare3(c[0].relevance(), c[1].relevance()) == 0 {
			break
		}
		best = &c[0]
	}
	return fmt.Errorf("%s", best.text())
}

func (f *violation) text() string {
	document, way := f.at.path()
	indented := func(v any) string { return strings.ReplaceAll(pretty(v), "\n", "\n    ") }
	return fmt.Sprintf("%s\n\nFailed validating %s in schema%s:\n    %s\n\nOn instance%s:\n    %s",
		f.message, python(f.keyword), index(way), indented(f.s.document()), index(document), indented(f.v))
}

func (s *schema) check(v any, at *place, found *[]violation) {
	for i := range s.rules {
		r := &s.rules[i]
		say := func(message string, args ...any) {
			*found = append(*found, violation{at: at, s: s, keyword: r.name, v: v, message: fmt.Sprintf(message, args...)})
		}
		switch r.name {
		case "type":
			if !isOfType(v, r) {
				names, many := r.value.([]string)
				if !many {
					names = []string{r.value.(string)}
				}
				quoted := make([]string, len(names))
				for i, n := range names {
					quoted[i] = python(n)
				}
				say("%s is not of type %s", python(v), strings.Join(quoted, ", "))
			}
			continue
		case "anyOf":
			r.checkAny(s, v, at, found)
			continue
		}
		switch v := v.(type) {
		case *object:
			r.checkObject(s, v, at, found, say)
		case []any:
			r.checkArray(v, at, found, say)
		case string:
			r.checkString(v, say)
		case json.Number:
			f, err := v.Float64()
			if err != nil {
				f = math.Inf(1)
			}
			switch {
			case r.name == "minimum" && f < r.number:
				say("%s is less than the minimum of %s", python(v), python(r.value))
			case r.name == "maximum" && f > r.number:
				say("%s is greater than the maximum of %s", python(v), python(r.value))
			}
		}
	}
}

func (r *rule) checkAny(s *schema, v any, at *place, found *[]violation) {
	var context []violation
	for i, one := range r.inner {
		var inner []violation
		one.check(v, &place{via: []any{i}}, &inner)
		if len(inner) == 0 {
			return
		}
		context = append(context, inner...)
	}
	*found = append(*found, violation{at: at, s: s, keyword: r.name, v: v, context: context,
		message: python(v) + " is not valid under any of the given schemas"})
}

func (r *rule) checkObject(s *schema, o *object, at *place, found *[]violation, say func(string, ...any)) {
	switch r.name {
	case "minProperties":
		if float64(len(o.keys)) < r.number {
			say("%s does not have enough properties", python(o))
		}
	case "properties":
		for _, p := range r.props {
			if v, there := o.get(p.name); there {
				p.s.check(v, &place{at, p.name, []any{r.name, p.name}}, found)
			}
		}
	case "patternProperties":
		for _, p := range r.props {
			for _, key := range o.keys {
				if p.re.MatchString(key) {
					p.s.check(o.m[key], &place{at, key, []any{r.name, p.name}}, found)
				}
			}
		}
	case "required":
		for _, name := range r.value.([]string) {
			if _, there := o.get(name); !there {
				say("%s is a required property", python(name))
			}
		}
	case "additionalProperties":
		s.checkExtra(o, say)
	}
}

// checkExtra refuses properties that no rule names.
func (s *schema) checkExtra(o *object, say func(string, ...any)) {
	var known, patterns []property
	if r := s.rule("properties"); r != nil {
		known = r.props
	}
	r := s.rule("patternProperties")
	if r != nil {
		patterns = r.props
	}
	var extra []string
	for _, key := range o.keys {
		if !slices.ContainsFunc(known, func(p property) bool { return p.name == key }) &&
			!slices.ContainsFunc(patterns, func(p property) bool { return p.re.MatchString(key) }) {
			extra = append(extra, key)
		}
	}
	if len(extra) == 0 {
		return
	}
	quoted := func(names []string) string {
		slices.Sort(names)
		for i := range names {
			names[i] = python(names[i])
		}
		return strings.Join(names, ", ")
	}
	if r == nil {
		verb := "was"
		if len(extra) > 1 {
			verb = "were"
		}
		say("Additional properties are not allowed (%s %s unexpected)", quoted(extra), verb)
		return
	}
	verb := "does"
	if len(extra) > 1 {
		verb = "do"
	}
	var res []string
	for _, p := range patterns {
		res = append(res, p.name)
	}
	say("%s %s not match any of the regexes: %s", quoted(extra), verb, quoted(res))
}

func (r *rule) checkArray(v []any, at *place, found *[]violation, say func(string, ...any)) {
	switch r.name {
	case "minItems":
		if float64(len(v)) < r.number {
			say("%s is too short", python(v))
		}
	case "items":
		for i, e := range v {
			r.inner[0].check(e, &place{at, i, []any{r.name}}, found)
		}
	case "uniqueItems":
		if repeats(v) {
			say("%s has non-unique elements", python(v))
		}
	}
}

func (r *rule) checkString(v string, say func(string, ...any)) {
	switch r.name {
	case "format": // uuid is the only one
		if canonicalUUID(v) == "" {
			say("%s is not a %s", python(v), python(r.value))
		}
	case "minLength":
		if float64(utf8.RuneCountInString(v)) < r.number {
			say("%s is too short", python(v))
		}
	case "maxLength":
		if float64(utf8.RuneCountInString(v)) > r.number {
			say("%s is too long", python(v))
		}
	case "pattern":
		if !r.re.MatchString(v) {
			say("%s does not match %s", python(v), python(r.value))
		}
	case "enum":
		if !slices.Contains(r.value.([]string), v) {
			say("%s is not one of %s", python(v), python(r.value))
		}
	}
}

// isOfType says whether a value is of one of the types of the rule.
func isOfType(v any, r *rule) bool {
	if one, is := r.value.(string); is {
		return isType(v, one)
	}
	return slices.ContainsFunc(r.value.([]string), func(t string) bool { return isType(v, t) })
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
