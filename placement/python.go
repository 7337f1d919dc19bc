package placement

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// python is the value as Python prints it, for texts that quote what was sent.
func python(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case json.Number:
		return pythonNumber(v.String())
	case string:
		return pythonText(v)
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = python(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case []string:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = python(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case *object:
		return pythonDict(v, v.keys, python)
	}
	return fmt.Sprint(v)
}

// pythonText quotes with ', or with " what has a ' but no ".
func pythonText(s string) string {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, c := range s {
		switch {
		case c == quote, c == '\\':
			b.WriteRune('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

func pythonDict(o *object, keys []string, print func(any) string) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = python(k) + ": " + print(o.m[k])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// pythonNumber prints a number of a JSON document: a whole one as it is, any other
// as a float.
func pythonNumber(n string) string {
	if !strings.ContainsAny(n, ".eE") {
		return n
	}
	f, err := strconv.ParseFloat(n, 64)
	if err != nil { // out of range
		return strings.Replace(strings.ToLower(pythonFloat(f)), "+inf", "inf", 1)
	}
	return pythonFloat(f)
}

// pythonFloat prints a float as Python does: in as few digits as tell it apart, with
// an exponent from 1e16 on and below 1e-4, and else always with a point.
func pythonFloat(f float64) string {
	if size := math.Abs(f); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// pretty is a value as Python's pprint lays it out, 72 columns wide, keys in order.
func pretty(v any) string {
	var p prettyPrinter
	p.format(v, 0, 0, 0)
	return p.b.String()
}

type prettyPrinter struct{ b strings.Builder }

const prettyWidth = 72

// short is a value on one line.
func short(v any) string {
	switch v := v.(type) {
	case *object:
		return pythonDict(v, keysInOrder(v), short)
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = short(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return python(v)
}

func keysInOrder(o *object) []string { return slices.Sorted(slices.Values(o.keys)) }

// format writes a value that begins at column indent and after whose last line
// allowance columns are wanted for closing brackets.
func (p *prettyPrinter) format(v any, indent, allowance, level int) {
	line := short(v)
	if utf8.RuneCountInString(line) <= prettyWidth-indent-allowance {
		p.b.WriteString(line)
		return
	}
	switch v := v.(type) {
	case *object:
		p.b.WriteByte('{')
		keys := keysInOrder(v)
		for i, k := range keys {
			name := python(k)
			p.b.WriteString(name + ": ")
			p.format(v.m[k], indent+1+utf8.RuneCountInString(name)+2, p.room(i, len(keys), allowance), level+1)
			p.next(i, len(keys), indent)
		}
		p.b.WriteByte('}')
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		p.format(list, indent, allowance, level)
	case []any:
		p.b.WriteByte('[')
		for i, e := range v {
			p.format(e, indent+1, p.room(i, len(v), allowance), level+1)
			p.next(i, len(v), indent)
		}
		p.b.WriteByte(']')
	case string:
		p.text(v, indent, allowance, level)
	default:
		p.b.WriteString(line)
	}
}

// room is what the i-th of n must leave: a comma, or the brackets.
func (p *prettyPrinter) room(i, n, allowance int) int {
	if i < n-1 {
		return 1
	}
	return allowance + 1
}

func (p *prettyPrinter) next(i, n, indent int) {
	if i < n-1 {
		p.b.WriteString(",\n" + strings.Repeat(" ", indent+1))
	}
}

var words = regexp.MustCompile(`\S*\s*`)

// text breaks a long string at its blanks.
func (p *prettyPrinter) text(s string, indent, allowance, level int) {
	if level == 0 {
		indent++
		allowance++
	}
	var chunks []string
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	width := func(s string) int { return utf8.RuneCountInString(python(s)) }
	for i, line := range lines {
		limit := prettyWidth - indent
		whole := limit
		if i == len(lines)-1 {
			whole -= allowance
		}
		if width(line) <= whole {
			chunks = append(chunks, python(line))
			continue
		}
		parts, current := words.FindAllString(line, -1), ""
		if len(parts) > 0 && parts[len(parts)-1] == "" {
			parts = parts[:len(parts)-1]
		}
		for j, part := range parts {
			if j == len(parts)-1 && i == len(lines)-1 {
				limit -= allowance
			}
			if width(current+part) > limit {
				if current != "" {
					chunks = append(chunks, python(current))
				}
				current = part
			} else {
				current += part
			}
		}
		if current != "" {
			chunks = append(chunks, python(current))
		}
	}
	if len(chunks) == 1 {
		p.b.WriteString(chunks[0])
		return
	}
	joined := strings.Join(chunks, "\n"+strings.Repeat(" ", indent))
	if level == 0 {
		joined = "(" + joined + ")"
	}
	p.b.WriteString(joined)
}
