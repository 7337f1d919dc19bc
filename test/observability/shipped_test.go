package observability

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/driver/drivertest"
)

const (
	rulesFile     = "../../packaging/prometheus/berth.rules.yml"
	dashboardFile = "../../packaging/grafana/berth.json"
	runbooks      = "../../docs/runbooks"
)

var rulesTests = []string{"../../packaging/prometheus/berth.rules.test.yml", "../../packaging/prometheus/berth.rules.days.test.yml"}

// promtool runs it, and gives what it said.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command(Require(t, "promtool"), args...).CombinedOutput()
	return string(out), err
}

func TestRules_AreSoundAndDoWhatTheySay(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", rulesFile}, append([]string{"test", "rules"}, rulesTests...)} {
		if said, err := promtool(t, args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, said)
		}
	}
}

// TestRules_TheTestsMissEachAlert has every alert be silent, and the tests of the rules name
// each of them.
func TestRules_TheTestsMissEachAlert(t *testing.T) {
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	dir, alert := t.TempDir(), regexp.MustCompile(`(?m)^(      - alert: (\w+)\n        expr:) .*$`)
	alerts := alert.FindAllSubmatch(rules, -1)
	if len(alerts) != bytes.Count(rules, []byte("- alert: ")) || len(alerts) < 15 {
		t.Fatalf("only %d alerts found", len(alerts))
	}
	files := map[string][]byte{filepath.Base(rulesFile): alert.ReplaceAll(rules, []byte("$1 vector(0) > 1"))}
	args := []string{"test", "rules"}
	for _, file := range rulesTests {
		if files[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		args = append(args, filepath.Join(dir, filepath.Base(file)))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said, err := promtool(t, args...)
	if err == nil {
		t.Fatalf("rules that are silent pass:\n%s", said)
	}
	for _, m := range alerts {
		if !strings.Contains(said, `alertname="`+string(m[2])+`"`) {
			t.Errorf("no test misses %s", m[2])
		}
	}
}

// target is one query of the dashboard.
type target struct{ panel, expr string }

// dashboard reads its queries, and those of its variables.
func dashboard(t *testing.T) (queries []target, variables []string) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Type    string `json:"type"`
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				RefID string `json:"refId"`
				Expr  string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Type  string          `json:"type"`
				Query json.RawMessage `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	decode := json.NewDecoder(bytes.NewReader(text))
	if err := decode.Decode(&board); err != nil {
		t.Fatal(err)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			queries = append(queries, target{p.Title + " " + q.RefID, q.Expr})
		}
	}
	for _, v := range board.Templating.List {
		if v.Type == "query" {
			var q struct{ Query string }
			if err := json.Unmarshal(v.Query, &q); err != nil {
				t.Fatal(err)
			}
			variables = append(variables, q.Query)
		}
	}
	return queries, variables
}

// filled is an expression as Grafana sends it with all hosts chosen.
var filled = strings.NewReplacer("$__rate_interval", "5m", "$job", "berth", "$host", ".*").Replace

// busyHosts has two agents do all that there is to measure, and a Prometheus see it. A counter
// has risen for Prometheus only when it was seen before.
func busyHosts(t *testing.T) (*two, *Prometheus) {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	w := newTwo(t)
	p := Start(t, rules, slices.Sorted(maps.Values(w.metrics))...)
	made := func(host, name string, memory int64) string {
		t.Helper()
		id, err := w.guest(host, name, memory)
		w.must(err)
		return id
	}
	// Twice each: a guest that is made, a move that ends, one that breaks off.
	unlucky := made("host-a", "unlucky", 128)
	w.fleet.FaultPhase(func(phase, uuid string) error {
		if phase == drivertest.PhasePerform && uuid == unlucky {
			return errors.New("the stream breaks off")
		}
		return nil
	})
	for i := range 2 {
		guest := made("host-a", fmt.Sprintf("guest-%d", i), 128)
		if m := w.over("host-a", w.move(guest, "host-a", "host-b")); m.Err() != nil {
			t.Fatal(m.Err())
		}
		if m := w.over("host-a", w.move(unlucky, "host-a", "host-b")); m.Err() == nil {
			t.Fatal("a guest went over a stream that breaks off")
		}
		p.Has(fmt.Sprintf(`sum(berth_migrations_finished_total{status="completed"}) == %d`, i+1))
		p.Has(fmt.Sprintf(`sum(berth_migration_failures_total) == %d`, i+1))
	}
	// One on its way that does not end by itself, and one that waits for it.
	busy, next := made("host-a", "busy", 1<<10), made("host-a", "next", 128)
	w.fleet.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond, Rate: 256 << 20, DirtyRate: 512 << 20})
	w.move(busy, "host-a", "host-b")
	p.Has(`berth_migration_rate_bytes_per_second{instance_name="busy"} > 0`)
	w.move(next, "host-a", "host-b")
	p.Has(`berth_migrations_waiting > 0`)
	return w, p
}

// TestPrometheus_AnswersEveryQueryAndEveryRule: no panel is empty, no rule speaks of a metric
// that is not there, and every alert has its page and every page its alert.
func TestPrometheus_AnswersEveryQueryAndEveryRule(t *testing.T) {
	Require(t, "prometheus")
	queries, variables := dashboard(t)
	w, p := busyHosts(t)
	if rows, err := p.Query(`up{job="berth"} == 1`); err != nil || len(rows) != 2 {
		t.Fatalf("hosts that are scraped: %v, %v", rows, err)
	}
	for _, q := range queries {
		t.Run("panel "+q.panel, func(t *testing.T) {
			p := *p
			p.t = t
			p.Has(filled(q.expr))
		})
	}
	variable := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	for _, v := range variables {
		m := variable.FindStringSubmatch(v)
		if m == nil {
			t.Fatalf("variable %q", v)
		}
		if rows, err := p.Query("count by (" + m[2] + ") (" + filled(m[1]) + ")"); err != nil || len(rows) == 0 || rows[0].Labels[m[2]] == "" {
			t.Errorf("%s: %v, %v", v, rows, err)
		}
	}
	everyRule(t, p)
	t.Run("with libvirt stopped", func(t *testing.T) {
		w.fleet.Host("host-a").Hang(true)
		defer w.fleet.Host("host-a").Hang(false)
		p.Has(`ALERTS{alertname="BerthLibvirtDown"}`)
		// Others work on the same machine, so that half of the scrapes are to be in time, of
		// seconds in which libvirt did not answer.
		of := func(what, labels string) string {
			return what + `{instance="` + w.metrics["host-a"] + `"` + labels + `}[10s]`
		}
		took := of("scrape_duration_seconds", "")
		p.Has(`quantile_over_time(0.5, ` + took + `) < 0.05 and on (instance) count_over_time(` + took + `) >= 5 and on (instance) max_over_time(` + of("berth_health", `,part="libvirt"`) + `) == 0`)
		for what, expr := range map[string]string{"median": `quantile_over_time(0.5, ` + took + `)`, "slowest": `max_over_time(` + took + `)`} {
			if rows, err := p.Query(expr); err != nil || len(rows) != 1 {
				t.Errorf("%s: %v, %v", expr, rows, err)
			} else {
				t.Logf("with libvirt stopped, as Prometheus sees it, the %s of the scrapes of ten seconds takes %.4f s", what, rows[0].Value)
			}
		}
	})
}

// everyRule looks at the rules as Prometheus has them.
func everyRule(t *testing.T, p *Prometheus) {
	t.Helper()
	var names []string
	if err := p.get("/api/v1/label/__name__/values", nil, &names); err != nil {
		t.Fatal(err)
	}
	p.Await("all rules were evaluated", func() bool {
		return !slices.ContainsFunc(p.Rules(), func(r Rule) bool { return r.Health == "unknown" })
	})
	for _, r := range p.Rules() {
		if r.Type == "recording" {
			names = append(names, r.Name) // an hour's difference is there after an hour
		}
	}
	list, err := os.ReadFile(filepath.Join(runbooks, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	metric, pages := regexp.MustCompile(`(?:\w+:)?berth_\w+(?::\w+)?`), map[string]bool{}
	for _, r := range p.Rules() {
		if r.Health != "ok" {
			t.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
		}
		for _, name := range metric.FindAllString(r.Query, -1) {
			if !slices.Contains(names, name) {
				t.Errorf("rule %s asks for %s, which nobody has", r.Name, name)
			}
		}
		if r.Type != "alerting" {
			continue
		}
		page := strings.TrimPrefix(r.Annotations["runbook_url"], "file:///usr/share/doc/berth/docs/runbooks/")
		if text, err := os.ReadFile(filepath.Join(runbooks, page)); err != nil || !bytes.HasPrefix(text, []byte("# "+strings.TrimSuffix(page, ".md")+"\n")) {
			t.Errorf("alert %s has no page %q: %v", r.Name, page, err)
		}
		pages[page] = true
		if !bytes.Contains(list, []byte("["+r.Name+"]("+page+")")) {
			t.Errorf("alert %s is not in the list of runbooks", r.Name)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("alert %s: labels %v, annotations %v", r.Name, r.Labels, r.Annotations)
		}
	}
	err = fs.WalkDir(os.DirFS(runbooks), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != "README.md" && !pages[path] {
			t.Errorf("page %s is of no alert", path)
		}
		return err
	})
	if err != nil || len(pages) < 15 {
		t.Errorf("%d pages, %v", len(pages), err)
	}
}
