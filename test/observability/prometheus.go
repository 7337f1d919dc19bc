package observability

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is for what happens within seconds where nobody else works.
const patience = 60 * time.Second

// Require gives the path of a program of Debian's package prometheus, or skips the test.
func Require(t testing.TB, program string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("Prometheus is not started in short tests")
	}
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is missing; `lab install -prometheus` adds it", program)
	}
	return path
}

// Prometheus is a server of the test's own.
type Prometheus struct {
	t   testing.TB
	url string
}

// listening is what Prometheus logs when it serves.
var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// Start begins a Prometheus that scrapes these addresses every second as the job berth and
// evaluates the rules as often.
func Start(t testing.TB, rules string, targets ...string) *Prometheus {
	t.Helper()
	program, dir := Require(t, "prometheus"), t.TempDir()
	quoted := make([]string, len(targets))
	for i, a := range targets {
		quoted[i] = strconv.Quote(a)
	}
	settings := fmt.Sprintf("global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\nrule_files: [%q]\nscrape_configs:\n  - job_name: berth\n    static_configs:\n      - targets: [%s]\n",
		rules, strings.Join(quoted, ", "))
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, read := make(chan string, 1), make(chan struct{})
	p := &Prometheus{t: t}
	var said strings.Builder
	go func() {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			said.WriteString(lines.Text() + "\n")
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case address <- m[1]:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-read
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("prometheus said:\n%s", said.String())
		}
	})
	select {
	case a := <-address:
		p.url = "http://" + a
	case <-read:
		t.Fatalf("prometheus ended:\n%s", said.String())
	case <-time.After(patience):
		t.Fatal("prometheus does not serve")
	}
	p.Await("it is ready", func() bool {
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
	return p
}

// Await waits until something is so.
func (p *Prometheus) Await(what string, is func() bool) {
	p.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// get asks Prometheus' API.
func (p *Prometheus) get(path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Error string          `json:"error"`
		Data  json.RawMessage `json:"data"`
	}{}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Error != "" {
		return fmt.Errorf("%s: %d %s %v", path, resp.StatusCode, text, err)
	}
	return json.Unmarshal(answer.Data, into)
}

// Series is one row of an answer.
type Series struct {
	Labels map[string]string
	Value  float64
}

// Query gives the rows of an expression now, those that are not a number left out.
func (p *Prometheus) Query(expr string) ([]Series, error) {
	var data struct {
		Type   string `json:"resultType"`
		Result []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	}
	if err := p.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, err
	}
	var out []Series
	for _, row := range data.Result {
		text, _ := row.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s gives %v", expr, row.Value)
		}
		if !math.IsNaN(v) {
			out = append(out, Series{row.Metric, v})
		}
	}
	return out, nil
}

// Has waits until an expression gives rows.
func (p *Prometheus) Has(expr string) {
	p.t.Helper()
	p.Await(expr, func() bool {
		rows, err := p.Query(expr)
		if err != nil {
			p.t.Fatal(err)
		}
		return len(rows) > 0
	})
}

// Rule is one of the rules as Prometheus knows it.
type Rule struct {
	Name        string            `json:"name"`
	Type        string            `json:"type"` // alerting or recording
	Query       string            `json:"query"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Health      string            `json:"health"` // ok, unknown before the first evaluation, err
	LastError   string            `json:"lastError"`
	State       string            `json:"state"` // of an alert: inactive, pending, firing
}

// Rules are all that were loaded.
func (p *Prometheus) Rules() []Rule {
	p.t.Helper()
	var data struct {
		Groups []struct {
			Rules []Rule `json:"rules"`
		} `json:"groups"`
	}
	if err := p.get("/api/v1/rules", nil, &data); err != nil {
		p.t.Fatal(err)
	}
	var out []Rule
	for _, g := range data.Groups {
		out = append(out, g.Rules...)
	}
	return out
}
