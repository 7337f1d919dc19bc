package observability

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRunbooks_NameMetricsThatThereAre: as they are on record, which is held against the program
// by a test of its own. Commands are read with those of all pages, by the command line itself.
func TestRunbooks_NameMetricsThatThereAre(t *testing.T) {
	metrics, err := os.ReadFile("../../agent/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	metric, seen := regexp.MustCompile("`(berth_[a-z_]+)`"), 0
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metric.FindAllSubmatch(text, -1) {
			if seen++; !strings.Contains(string(metrics), "# TYPE "+string(m[1])+" ") {
				t.Errorf("%s: nobody has the metric %s", filepath.Base(path), m[1])
			}
		}
	}
	if len(pages) < 15 || seen < 3 {
		t.Errorf("%d metrics on %d pages: the test looks at too little", seen, len(pages))
	}
}
