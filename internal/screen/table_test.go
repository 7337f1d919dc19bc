package screen_test

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"
	"unicode/utf8"

	"berth/internal/screen"
)

func TestTable_FitsTheScreenOrSaysWhatIsLeftOut(t *testing.T) {
	l := screen.Table{
		Columns: []string{"INSTANCE", "UUID", "STATE", "TOKEN", "REMARK"},
		Spare:   []string{"UUID", "TOKEN"},
		Full:    "berth instance list -o json has all",
	}
	const long = "moved here, confirm or revert it (6f1c0d6e), conducted by host-m, does not fit, changed by hand"
	for _, tt := range []struct {
		name, remark string
		width        int
		want, not    []string
	}{
		{"wide", "does not fit", 120, []string{"UUID", "TOKEN", "does not fit"}, []string{"not shown"}},
		{"eighty", "does not fit", 80, []string{"UUID", "does not fit"}, []string{"not shown"}},
		{"narrow", "does not fit", 60, []string{"TOKEN", "does not fit", "not shown: UUID; berth instance list -o json has all"}, []string{"8ccd3f5e"}},
		{"a long remark stands below, whole", long, 80, []string{"UUID", "web-1: moved here, confirm", "changed by hand"}, []string{"REMARK", "not shown"}},
		{"no remark, no column", "", 64, []string{"8ccd3f5e", "INSTANCE"}, []string{"REMARK", "not shown"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l.Rows = [][]any{{"web-1", "8ccd3f5e-4bd3-4b3a-8f3a-0b1f0d5f7c11", "running", "held", tt.remark}}
			var b bytes.Buffer
			w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
			l.Write(w, tt.width)
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > tt.width {
					t.Errorf("a line of %d columns, want at most %d: %q", n, tt.width, line)
				}
			}
			text := strings.Join(strings.Fields(b.String()), " ")
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q is not in:\n%s", want, &b)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(text, not) {
					t.Errorf("%q is in:\n%s", not, &b)
				}
			}
		})
	}
}
