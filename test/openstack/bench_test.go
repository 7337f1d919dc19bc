package openstack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// BenchmarkPlacement sets `berth placement` beside OpenStack's over MariaDB: the
// same requests to both, in one run, and what each took of wall clock and
// processor. Each server is processes of its own (OpenStack's: gunicorn with four
// workers and MariaDB), whose user and system time is read from /proc.
//
// Ours keeps a database on disk and has synced a write to it when it answers; with
// one client each write pays for two syncs of its own, with many they share them.
// MariaDB is spared that here (innodb_flush_log_at_trx_commit=0), so the lines
// "in memory" are the fairer comparison.
func BenchmarkPlacement(b *testing.B) {
	theirs := startTheirs(b)
	binary := buildBerth(b)
	ours := startOurs(b, binary, 1000, true)
	table := []row{{"", "", "ours /s", "theirs /s", "times", "ours CPU ms", "theirs CPU ms", "times"}}
	for _, m := range []struct {
		name, clients string
		n             int
		run           func(*bench, int, int)
		ours, theirs  int // how many
	}{
		{"allocation", "1 client", 1, (*bench).claims, 4000, 60},
		{"allocation", "32 clients", 32, (*bench).claims, 8000, 200},
		{"atomic move", "1 client", 1, (*bench).moves, 2000, 30},
		{"atomic move", "32 clients", 32, (*bench).moves, 4000, 100},
		{"candidates of 1,000", "1 client", 1, (*bench).candidates, 60, 6},
	} {
		o, t := ours.measure(m.run, m.n, m.ours), theirs.measure(m.run, m.n, m.theirs)
		table = append(table, row{m.name, m.clients, figure(o.rate), figure(t.rate), figure(o.rate / t.rate), figure(o.cpu), figure(t.cpu), figure(t.cpu / o.cpu)})
		unit := strings.NewReplacer(" ", "-", ",", "").Replace(m.name + "-" + m.clients)
		b.ReportMetric(o.cpu, unit+"-cpu-ms")
		b.ReportMetric(t.cpu/o.cpu, unit+"-cpu-ratio")
	}
	alone := func(name, clients string, o measured) {
		table = append(table, row{name, clients, figure(o.rate), "-", "-", figure(o.cpu), "-", "-"})
	}
	memory := startOurs(b, binary, 1000, false)
	alone("allocation, in memory", "1 client", memory.measure((*bench).claims, 1, 8000))
	alone("allocation, in memory", "32 clients", memory.measure((*bench).claims, 32, 16000))
	alone("candidates of 10,000", "1 client", startOurs(b, binary, 10000, false).measure((*bench).candidates, 1, 20))
	b.ReportMetric(0, "ns/op") // the whole run is one operation, which says nothing
	fmt.Println(aligned(table))
}

type row [8]string

func aligned(table []row) string {
	var out strings.Builder
	for _, r := range table {
		fmt.Fprintf(&out, "\n%-23s%-12s%10s%11s%8s%13s%15s%8s", r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
	}
	return out.String() + "\n"
}

// figure has three digits that count.
func figure(f float64) string {
	switch {
	case f >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case f >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case f >= 1:
		return strconv.FormatFloat(f, 'f', 2, 64)
	}
	return strconv.FormatFloat(f, 'f', 3, 64)
}

// bench is one of the two servers.
type bench struct {
	b         *testing.B
	url       string
	http      *http.Client
	processes func() []int // those whose time counts
	providers []string
}

type measured struct{ rate, cpu float64 } // a second; milliseconds of processor each

func newBench(b *testing.B, url string) *bench {
	return &bench{b: b, url: url, http: &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// measure runs n operations by so many clients, after a few to warm up.
func (s *bench) measure(run func(*bench, int, int), clients, n int) measured {
	run(s, clients, max(n/20, clients))
	pids := s.processes()
	cpu, begun := processorTime(s.b, pids), time.Now()
	run(s, clients, n)
	took := time.Since(begun)
	return measured{float64(n) / took.Seconds(), float64((processorTime(s.b, pids) - cpu).Microseconds()) / 1000 / float64(n)}
}

// share lets so many clients do n operations together.
func (s *bench) share(clients, n int, do func(client int)) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for left.Add(-1) >= 0 && !s.b.Failed() {
				do(i)
			}
		})
	}
	wg.Wait()
	if s.b.Failed() {
		s.b.FailNow()
	}
}

// ask sends a request until it is answered as wanted; a race lost inside the
// server is no answer, but its time counts.
func (s *bench) ask(want int, method, path string, body any) []byte {
	var sent []byte
	if body != nil {
		sent, _ = json.Marshal(body) // maps of strings and numbers
	}
	for {
		q, err := http.NewRequest(method, s.url+path, bytes.NewReader(sent))
		if err != nil {
			s.b.Error(err)
			return nil
		}
		q.Header.Set("X-Auth-Token", "admin")
		q.Header.Set("OpenStack-API-Version", "placement 1.39")
		if body != nil {
			q.Header.Set("Content-Type", "application/json")
		}
		resp, err := s.http.Do(q)
		if err != nil {
			s.b.Error(err)
			return nil
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		switch {
		case err == nil && resp.StatusCode == want:
			return got
		case err == nil && resp.StatusCode == http.StatusConflict && bytes.Contains(got, []byte("changed while attempting to allocate")):
			continue
		}
		s.b.Errorf("%s %s: %s %.300s %v", method, path, resp.Status, got, err)
		return nil
	}
}

func (s *bench) place() string { return s.providers[rand.IntN(min(100, len(s.providers)))] }

func claimOf(rp string, kind string, generation any) map[string]any {
	return map[string]any{"allocations": map[string]any{rp: map[string]any{"resources": map[string]int{"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}}},
		"project_id": "bench", "user_id": "bench", "consumer_generation": generation, "consumer_type": kind}
}

// claims are new consumers on a hundred providers.
func (s *bench) claims(clients, n int) {
	s.share(clients, n, func(int) {
		s.ask(http.StatusNoContent, http.MethodPut, "/allocations/"+uuid.NewString(), claimOf(s.place(), "INSTANCE", nil))
	})
}

// moves are, for a guest of each client: one POST that gives the guest its new
// place and a migration the old one, and the DELETE at the end.
func (s *bench) moves(clients, n int) {
	type guest struct {
		id, at     string
		generation int
	}
	guests := make([]guest, clients)
	for i := range guests {
		guests[i] = guest{uuid.NewString(), s.place(), 1}
		s.ask(http.StatusNoContent, http.MethodPut, "/allocations/"+guests[i].id, claimOf(guests[i].at, "INSTANCE", nil))
	}
	s.share(clients, n, func(client int) {
		g, migration, to := &guests[client], uuid.NewString(), s.place()
		s.ask(http.StatusNoContent, http.MethodPost, "/allocations", map[string]any{
			migration: claimOf(g.at, "MIGRATION", nil), g.id: claimOf(to, "INSTANCE", g.generation)})
		s.ask(http.StatusNoContent, http.MethodDelete, "/allocations/"+migration, nil)
		g.at, g.generation = to, g.generation+1
	})
}

func (s *bench) candidates(clients, n int) {
	s.share(clients, n, func(int) {
		var got struct {
			Requests []json.RawMessage `json:"allocation_requests"`
		}
		b := s.ask(http.StatusOK, http.MethodGet, "/allocation_candidates?resources=VCPU:1,MEMORY_MB:64,DISK_GB:1", nil)
		if err := json.Unmarshal(b, &got); err != nil || len(got.Requests) != len(s.providers) {
			s.b.Errorf("%d candidates of %d (%v)", len(got.Requests), len(s.providers), err)
		}
	})
}

// startTheirs starts OpenStack's with 1,000 providers. They are put into its
// database by SQL: over HTTP that would take a minute.
func startTheirs(b *testing.B) *bench {
	p := StartPlacement(b, PlacementOptions{Database: MariaDB, Workers: 4})
	p.Wait(b)
	s := newBench(b, p.URL)
	for range 1000 {
		s.providers = append(s.providers, uuid.NewString())
	}
	must(b, python(b.Context(), nil, append([]string{"-c", `
import sys, pymysql
db = pymysql.connect(unix_socket=sys.argv[1], user="root", db="placement")
c = db.cursor()
c.executemany("INSERT INTO resource_providers (uuid, name, generation) VALUES (%s, %s, 0)", [(u, u) for u in sys.argv[2:]])
c.execute("UPDATE resource_providers SET root_provider_id = id")
c.execute("INSERT INTO inventories (resource_provider_id, resource_class_id, total, reserved, min_unit, max_unit, step_size, allocation_ratio)"
          " SELECT p.id, c.id, 1073741824, 0, 1, 1073741824, 1, 1.0 FROM resource_providers p JOIN resource_classes c"
          " WHERE c.name IN ('VCPU', 'MEMORY_MB', 'DISK_GB')")
db.commit()
`, mariaDBSocket(p)}, s.providers...)...))
	// All that this process has started so far is OpenStack's: gunicorn, its workers,
	// and MariaDB.
	pids := descendants(b, os.Getpid())
	s.processes = func() []int { return pids }
	return s
}

// buildBerth gives the binary.
func buildBerth(b *testing.B) string {
	binary := filepath.Join(folder(b), "berth")
	build := exec.Command("go", "build", "-o", binary, "berth/cmd/berth")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build berth: %v\n%s", err, out)
	}
	return binary
}

// startOurs runs berth placement with n providers, on disk or in memory.
func startOurs(b *testing.B, binary string, n int, onDisk bool) *bench {
	dir := folder(b)
	args := []string{"placement", "--listen", "127.0.0.1:0"}
	if onDisk {
		args = append(args, "--db", filepath.Join(dir, "placement.db"))
	}
	p, err := start("berth-placement", dir, exec.Command(binary, args...))
	must(b, err)
	p.endWith(b)
	s := newBench(b, "http://"+address(b, p))
	s.processes = func() []int { return []int{p.cmd.Process.Pid} }
	for range n {
		s.providers = append(s.providers, uuid.NewString())
	}
	var next atomic.Int64
	s.share(8, n, func(int) {
		id := s.providers[next.Add(1)-1]
		s.ask(http.StatusOK, http.MethodPost, "/resource_providers", map[string]any{"uuid": id, "name": id})
		inventories := map[string]any{}
		for _, class := range []string{"VCPU", "MEMORY_MB", "DISK_GB"} {
			inventories[class] = map[string]any{"total": 1 << 30}
		}
		s.ask(http.StatusOK, http.MethodPut, "/resource_providers/"+id+"/inventories", map[string]any{"resource_provider_generation": 0, "inventories": inventories})
	})
	return s
}

var listens = regexp.MustCompile(`placement is ready.* listen=(\S+)`)

// address waits until the server has said where it listens.
func address(b *testing.B, p *process) string {
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if m := listens.FindStringSubmatch(p.words()); m != nil {
			return m[1]
		}
		must(b, p.ended())
	}
	b.Fatalf("berth placement did not say where it listens:\n%s", p.words())
	return ""
}

// processorTime is the user and system time of processes, their ended children
// included, from /proc/PID/stat, which counts in hundredths of a second.
func processorTime(b *testing.B, pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(b, err)
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, f := range fields[11:15] { // utime, stime, cutime, cstime
			ticks, err := strconv.ParseInt(f, 10, 64)
			must(b, err)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// descendants are the processes below one.
func descendants(b *testing.B, pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must(b, err)
	var out []int
	for _, list := range lists {
		children, err := os.ReadFile(list)
		must(b, err)
		for _, f := range strings.Fields(string(children)) {
			child, err := strconv.Atoi(f)
			must(b, err)
			out = append(append(out, child), descendants(b, child)...)
		}
	}
	return out
}
