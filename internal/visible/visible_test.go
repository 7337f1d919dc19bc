package visible_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"berth/internal/visible"
)

var texts = map[string]string{
	"plain, with umläuten and 漢字": "plain, with umläuten and 漢字",
	"a\tb\nc":                     "a\tb\nc",
	"\x1b]0;title\a":              `\u001b]0;title\u0007`,
	"\x1b[2J\x1b[31mred":          `\u001b[2J\u001b[31mred`,
	"over\rwritten\b":             `over\u000dwritten\u0008`,
	"\u009b31m":                   `\u009b31m`,
	"\x9b31m":                     `\x9b31m`,
	"\x7f":                        `\u007f`,
	"a\u202egpj.exe":              `a\u202egpj.exe`,
	"\u2066\u2069\u200f\u061c":    `\u2066\u2069\u200f\u061c`,
	"\u2028":                      `\u2028`,
	"\U000e0041":                  `\udb40\udc41`,
	"broken \xff\xfe":             `broken \xff\xfe`,
	"\xe6\xbc":                    `\xe6\xbc`,
	"said \ufffd":                 "said \ufffd",
}

func TestText_ControlCharacters_AreWrittenOut(t *testing.T) {
	for in, want := range texts {
		if got := visible.Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestWriter_ArbitraryPieces_WritesAsText(t *testing.T) {
	for in, want := range texts {
		for size := 1; size <= len(in); size++ {
			var out bytes.Buffer
			w := visible.NewWriter(&out)
			for rest := in; rest != ""; {
				n := min(size, len(rest))
				if wrote, err := w.Write([]byte(rest[:n])); wrote != n || err != nil {
					t.Fatal(wrote, err)
				}
				rest = rest[n:]
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if out.String() != want {
				t.Errorf("%q in pieces of %d: %q, want %q", in, size, out.String(), want)
			}
		}
	}
}

func TestWriter_OwnSequences_PassAndNobodyElses(t *testing.T) {
	var out bytes.Buffer
	w := visible.NewWriter(&out)
	_, _ = w.Write([]byte(w.Introducer() + "31mred \x1b[0m" + visible.NewWriter(nil).Introducer() + w.Introducer() + "0m"))
	if got := out.String(); !strings.HasPrefix(got, "\x1b[31mred \\u001b[0m\\u001b") || !strings.HasSuffix(got, "\x1b[0m") || strings.Count(got, "\x1b") != 2 {
		t.Errorf("%q", got)
	}
}

func TestWriter_JSON_SaysTheSame(t *testing.T) {
	for in := range texts {
		in = strings.ToValidUTF8(in, "\ufffd") // as encoding/json has it
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w := visible.NewWriter(&out)
		_, _ = w.Write(data)
		var got string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != in {
			t.Errorf("%q: %s, %q, %v", in, out.Bytes(), got, err)
		}
	}
}
