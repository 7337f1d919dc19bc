package bundle

import (
	"regexp"
	"strings"
)

// hidden stands where a secret was.
const hidden = "(left out)"

// secretWords are parts of names whose values are secret: of keys, variables and arguments.
const secretWords = `password|passwd|passphrase|secret|token|ticket|private[_-]?key|api[_-]?key|credential|authorization`

var (
	secretName = regexp.MustCompile(`(?i)(` + secretWords + `)`)
	// name=value, name: value, "name":"value", name='value', --name value; a value ends where
	// its quotes do, or at white space.
	assigned   = regexp.MustCompile(`(?i)([A-Za-z0-9_.-]*(?:` + secretWords + `)[A-Za-z0-9_-]*["']?(?:\s*[=:]\s*|\s+))("[^"\n]*"|'[^'\n]*'|(?:Bearer\s+|Basic\s+)?[^\s,;}\]<]+)`)
	inAddress  = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:/@]+:)[^\s@/]+(@)`)
	privatePEM = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`)
)

// plainWords follow a secret's name in sentences and are no value.
var plainWords = regexp.MustCompile(`(?i)^(is|was|are|of|for|from|to|and|or|in|at|that|the|here|there|left|leaves|surrendered|gone|file|files|not|has|without|which|by|on|with|may|must)$`)

// Redact leaves out of a text what looks like a secret.
func Redact(text []byte) []byte {
	out := privatePEM.ReplaceAll(text, []byte(hidden))
	out = inAddress.ReplaceAll(out, []byte("${1}"+hidden+"${2}"))
	return assigned.ReplaceAllFunc(out, func(found []byte) []byte {
		m := assigned.FindSubmatch(found)
		if strings.HasSuffix(strings.TrimRight(string(m[1]), "\"' \t=:"), "_file") {
			return found // where one is, and not what it is
		}
		option := strings.HasPrefix(string(m[1]), "-")
		if plainWords.Match(m[2]) || !option && !strings.ContainsAny(string(m[1]), "=:") {
			return found // words of a sentence
		}
		quote := ""
		if c := m[2][0]; c == '"' || c == '\'' {
			quote = string(c)
		}
		return append(append([]byte{}, m[1]...), quote+hidden+quote...)
	})
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
