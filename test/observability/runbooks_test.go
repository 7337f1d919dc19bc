package observability

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRunbooks_NameWhatThereIs: commands and flags as the program's own reference has them, and
// metrics as they are on record. Both pages are held against the program by tests of their own.
func TestRunbooks_NameWhatThereIs(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	reference, metrics := read("../../docs/reference/command-line.md"), read("../../agent/metrics/testdata/metrics.txt")
	everywhere, _, found := strings.Cut(reference, "\n| command |")
	if !found {
		t.Fatal("the reference has no table of commands")
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq(reference, "\n## ") {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
	}
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var (
		command = regexp.MustCompile("(?m)(?:^|`)(berth [a-z][^`\n]*)")
		word    = regexp.MustCompile(`^[a-z][a-z-]*$`)
		flag    = regexp.MustCompile(`--[a-z-]+`)
		metric  = regexp.MustCompile("`(berth_[a-z_]+)`")
		seen    int
	)
	for _, path := range pages {
		page, text := filepath.Base(path), read(path)
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			name := "berth"
			for _, w := range strings.Fields(m[1])[1:] {
				if !word.MatchString(w) {
					break
				}
				name += " " + w
			}
			section, is := sections[name]
			if !is {
				t.Errorf("%s: %q is no command", page, name)
			}
			for _, f := range flag.FindAllString(m[1], -1) {
				if !strings.Contains(section+everywhere, f) {
					t.Errorf("%s: %q has no flag %s", page, name, f)
				}
			}
			seen++
		}
		for _, m := range metric.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(metrics, "# TYPE "+m[1]+" ") {
				t.Errorf("%s: nobody has the metric %s", page, m[1])
			}
			seen++
		}
	}
	if len(pages) < 15 || seen < 40 {
		t.Errorf("%d commands and metrics on %d pages: the test looks at too little", seen, len(pages))
	}
}
