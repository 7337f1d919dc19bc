package placement

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The bodies are read by a small parser of their own for two reasons: the order
// of keys decides which of several refusals is told, as in the real service, and
// its texts for malformed JSON are part of the answer.

// object is a JSON object in the order it was written; a repeated key keeps its
// first place and its last value.
type object struct {
	keys []string
	m    map[string]any
}

func (o *object) get(key string) (any, bool) { v, found := o.m[key]; return v, found }

func (o *object) object(key string) *object { v, _ := o.m[key].(*object); return v }

func (o *object) text(key string) string { s, _ := o.m[key].(string); return s }

// integer gives a number that the schema has found to be whole.
func (o *object) integer(key string) (int64, bool) {
	n, found := o.m[key].(json.Number)
	if !found {
		return 0, false
	}
	return wholeNumber(n)
}

func (o *object) texts(key string) []string {
	list, _ := o.m[key].([]any)
	out := make([]string, 0, len(list))
	for _, v := range list {
		if s, is := v.(string); is {
			out = append(out, s)
		}
	}
	return out
}

func wholeNumber(n json.Number) (int64, bool) {
	if i, err := n.Int64(); err == nil {
		return i, true
	}
	f, err := n.Float64()
	if err != nil || f != float64(int64(f)) {
		return 0, false
	}
	return int64(f), true
}

// parser reads one document.
type parser struct {
	s      string
	i      int
	nes    int
	values int
}

const (
	deepest = 64 // levels of nesting; the deepest real body has seven
	// mostValues bounds what a body becomes in memory: a hundred times its text. Allocations of as many
	// consumers as one request may have are half of them.
	mostValues = 1 << 20
)

// parseJSON gives *object, []any, string, json.Number, bool or nil.
func parseJSON(b []byte) (any, error) {
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("the body is not UTF-8")
	}
	p := &parser{s: string(b)}
	p.space()
	v, err := p.value()
	if err != nil {
		return nil, err
	}
	p.space()
	if p.i < len(p.s) {
		return nil, p.fail("Extra data", p.i)
	}
	return v, nil
}

// fail says where, in the way Python's json module does.
func (p *parser) fail(what string, at int) error {
	line := strings.Count(p.s[:at], "\n") + 1
	col := utf8.RuneCountInString(p.s[strings.LastIndexByte(p.s[:at], '\n')+1:at]) + 1
	return fmt.Errorf("%s: line %d column %d (char %d)", what, line, col, utf8.RuneCountInString(p.s[:at]))
}

func (p *parser) space() {
	for p.i < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.i]) >= 0 {
		p.i++
	}
}

func (p *parser) peek() byte {
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *parser) value() (any, error) {
	p.nes++
	defer func() { p.nes-- }()
	if p.nes > deepest {
		return nil, p.fail("Too deeply nested", p.i)
	}
	if p.values++; p.values > mostValues {
		return nil, p.fail("Too many values", p.i)
	}
	switch c := p.peek(); {
	case c == '{':
		return p.object()
	case c == '[':
		return p.array()
	case c == '"':
		return p.str()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	for word, v := range map[string]any{"null": nil, "true": true, "false": false} {
		if strings.HasPrefix(p.s[p.i:], word) {
			p.i += len(word)
			return v, nil
		}
	}
	return nil, p.fail("Expecting value", p.i)
}

func (p *parser) object() (any, error) {
	o := &object{m: map[string]any{}}
	p.i++
	p.space()
	if p.peek() == '}' {
		p.i++
		return o, nil
	}
	for {
		if p.peek() != '"' {
			return nil, p.fail("Expecting property name enclosed in double quotes", p.i)
		}
		key, err := p.str()
		if err != nil {
			return nil, err
		}
		p.space()
		if p.peek() != ':' {
			return nil, p.fail("Expecting ':' delimiter", p.i)
		}
		p.i++
		p.space()
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		if _, again := o.m[key]; !again {
			o.keys = append(o.keys, key)
		}
		o.m[key] = v
		p.space()
		switch p.peek() {
		case ',':
			p.i++
			p.space()
		case '}':
			p.i++
			return o, nil
		default:
			return nil, p.fail("Expecting ',' delimiter", p.i)
		}
	}
}

func (p *parser) array() (any, error) {
	out := []any{}
	p.i++
	p.space()
	if p.peek() == ']' {
		p.i++
		return out, nil
	}
	for {
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		p.space()
		switch p.peek() {
		case ',':
			p.i++
			p.space()
		case ']':
			p.i++
			return out, nil
		default:
			return nil, p.fail("Expecting ',' delimiter", p.i)
		}
	}
}

func (p *parser) str() (string, error) {
	start := p.i
	for p.i++; p.i < len(p.s); p.i++ {
		switch c := p.s[p.i]; {
		case c == '\\':
			p.i++
		case c < ' ':
			return "", p.fail("Invalid control character at", p.i)
		case c == '"':
			p.i++
			var s string
			if err := json.Unmarshal([]byte(p.s[start:p.i]), &s); err != nil {
				return "", p.fail("Invalid \\escape", start)
			}
			return s, nil
		}
	}
	return "", p.fail("Unterminated string starting at", start)
}

func (p *parser) number() (any, error) {
	start := p.i
	for p.i < len(p.s) && strings.IndexByte("+-0123456789.eE", p.s[p.i]) >= 0 {
		p.i++
	}
	n := p.s[start:p.i]
	if !json.Valid([]byte(n)) {
		return nil, p.fail("Expecting value", start)
	}
	return json.Number(n), nil
}
