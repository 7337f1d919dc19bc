package bundle

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// hidden stands where a secret was.
const hidden = "(left out)"

// secretWords are parts of names whose values are secret: of keys, variables and arguments.
const secretWords = `password|passwd|passphrase|secret|token|ticket|private[_-]?key|api[_-]?key|credential|authorization`

// beginnings are what each of secretWords has in it, in small letters.
var beginnings = [][]byte{[]byte("passw"), []byte("passphrase"), []byte("secret"), []byte("token"), []byte("ticket"), []byte("private"), []byte("api"), []byte("credential"), []byte("authorization")}

var (
	secretName = regexp.MustCompile(`(?i)(` + secretWords + `)`)
	// name=value, name: value, "name":"value", name='value', --name value, and \"name\":\"value\" of
	// a document in a line that is quoted itself; a value ends where its quotes do, or at white space.
	assigned   = regexp.MustCompile(`(?i)([A-Za-z0-9_.-]*(?:` + secretWords + `)[A-Za-z0-9_-]*\\*["']?(?:\s*[=:]\s*|\s+))(\\+"[^"\n]*"|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|(?:Bearer\s+|Basic\s+)?[^\s,;}\]<]+)`)
	inAddress  = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]+:)[^\s@/]+(@)`)
	privatePEM = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`)
)

// plainWords follow a secret's name in sentences and are no value.
var plainWords = regexp.MustCompile(`(?i)^(is|was|are|of|for|from|to|and|or|in|at|that|the|here|there|left|leaves|surrendered|gone|file|files|not|has|without|which|by|on|with|may|must)$`)

// Redact leaves out of a text what looks like a secret.
func Redact(text []byte) []byte {
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		text = privatePEM.ReplaceAll(text, []byte(hidden))
	}
	out := make([]byte, 0, len(text))
	for line := range bytes.Lines(text) {
		// The expressions are slow, and most lines of a log have nothing for them.
		if bytes.Contains(line, []byte("://")) {
			line = inAddress.ReplaceAll(line, []byte("${1}"+hidden+"${2}"))
		}
		if lower := bytes.ToLower(line); slices.ContainsFunc(beginnings, func(b []byte) bool { return bytes.Contains(lower, b) }) {
			line = assigned.ReplaceAllFunc(line, withoutValue)
		}
		out = append(out, line...)
	}
	return out
}

// withoutValue is a match of assigned without its value, where that is one.
func withoutValue(found []byte) []byte {
	m := assigned.FindSubmatch(found)
	name := string(m[1])
	switch {
	case strings.HasSuffix(strings.TrimRight(name, "\"' \t=:"), "_file"):
		return found // where one is, and not what it is
	case plainWords.Match(m[2]), !strings.HasPrefix(name, "-") && !strings.ContainsAny(name, "=:"):
		return found // words of a sentence
	}
	quote := ""
	if c := m[2][0]; c == '"' || c == '\'' {
		quote = string(c)
	}
	return []byte(name + quote + hidden + quote)
}

// withoutSecrets leaves the values out whose keys say that they are secret, at any depth. What
// is no text is none: the ownership token of a guest is a table, and is what is looked for.
func withoutSecrets(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			if text, is := inner.(string); is && text != "" && secretName.MatchString(k) && !strings.HasSuffix(k, "_file") {
				v[k] = hidden
				continue
			}
			v[k] = withoutSecrets(inner)
		}
	case []any:
		for i := range v {
			v[i] = withoutSecrets(v[i])
		}
	case string:
		return string(Redact([]byte(v)))
	}
	return v
}
