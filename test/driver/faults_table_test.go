package driver

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// row is one case of the fault table: what was broken, during what, what the
// driver said, after how long, and how long it took to be well again.
type row struct {
	fault, verb, kind string
	took, well        time.Duration
}

// table collects the rows of one test and shows them when it has ended: each with
// the test's log, all together as Markdown where BERTH_FAULT_TABLE names a file,
// at whose end it is written.
type table struct {
	name string
	mu   sync.Mutex // guards rows
	rows []row
}

func newTable(t *testing.T) *table {
	c := &table{name: t.Name()}
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		text := c.markdown()
		t.Log("\n" + text)
		path := os.Getenv("BERTH_FAULT_TABLE")
		if path == "" {
			return
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := f.WriteString(text); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *table) add(r row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows = append(c.rows, r)
}

// markdown is one line for each fault, in the order of their first rows.
func (c *table) markdown() string {
	var order []string
	by := map[string][]row{}
	for _, r := range c.rows {
		if by[r.fault] == nil {
			order = append(order, r.fault)
		}
		by[r.fault] = append(by[r.fault], r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n| broken | cases | answers | answered after | well after |\n|---|---|---|---|---|\n", c.name)
	for _, what := range order {
		rows := by[what]
		verbs := map[string][]string{}
		for _, r := range rows {
			if !slices.Contains(verbs[r.kind], r.verb) {
				verbs[r.kind] = append(verbs[r.kind], r.verb)
			}
		}
		var kinds []string
		for _, k := range slices.SortedFunc(maps.Keys(verbs), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(verbs[b]), len(verbs[a])), cmp.Compare(a, b))
		}) {
			names := fmt.Sprintf("%d verbs", len(verbs[k]))
			if len(verbs[k]) <= 4 {
				slices.Sort(verbs[k])
				names = strings.Join(verbs[k], ", ")
			}
			kinds = append(kinds, k+" ("+names+")")
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", what, len(rows), strings.Join(kinds, "; "),
			span(rows, func(r row) time.Duration { return r.took }), span(rows, func(r row) time.Duration { return r.well }))
	}
	return b.String() + "\n"
}

// span is the least and the greatest.
func span(rows []row, of func(row) time.Duration) string {
	least, most := of(rows[0]), of(rows[0])
	for _, r := range rows {
		least, most = min(least, of(r)), max(most, of(r))
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.0f", d.Seconds()*1000) }
	return ms(least) + "–" + ms(most) + " ms"
}
