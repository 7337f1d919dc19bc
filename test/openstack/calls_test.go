package openstack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"berth/internal/config"
	"berth/placement"
	pc "berth/placementclient"
)

// counter counts requests by route.
type counter struct {
	next http.Handler

	mu    sync.Mutex // guards calls
	calls map[string]int
}

var anUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	route := r.Method + " " + anUUID.ReplaceAllString(r.URL.Path, "{uuid}")
	if q := r.URL.RawQuery; q != "" {
		name, _, _ := strings.Cut(q, "=")
		route += "?" + name
	}
	c.mu.Lock()
	c.calls[route]++
	c.mu.Unlock()
	c.next.ServeHTTP(w, r)
}

// take gives what was counted since the last time.
func (c *counter) take() (calls map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls, c.calls = c.calls, map[string]int{}
	return calls
}

// of gives how often a route was called since the last take.
func (c *counter) of(route string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[route]
}

// machine plants one of hwdiscovery's machines for an agent to find.
func machine(t *testing.T, called string) string {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("..", "..", "hwdiscovery", "testdata", called+".txtar"))
	must(t, err)
	dir := t.TempDir()
	for _, f := range archive.Files {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		if link, is := strings.CutSuffix(name, "@"); is {
			must(t, os.Symlink(strings.TrimSpace(string(f.Data)), link))
		} else {
			must(t, os.WriteFile(name, f.Data, 0o644))
		}
	}
	return dir
}

// routes is one line for each, those called most first.
func routes(calls map[string]int) string {
	var lines []string
	for route, n := range calls {
		lines = append(lines, fmt.Sprintf("%6d  %s", n, route))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// TestAgents_AskPlacementLittle counts what an idle agent with four
// providers and 50 guests asks in an hour, and what a move costs. Nova's compute
// node asks about 3,450 times an hour: each minute the allocations of every provider
// and of every guest.
func TestAgents_AskPlacementLittle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		machine string
		shape   config.NUMA
		// An hour has one read each minute, and each ten an audit that reads each provider.
		mostInAnHour, mostInAMove int
	}{
		{"no-nodes-old-pools", config.NUMANested, 60 + 6*(4+4), 13},
		{"two-sockets", config.NUMAFlat, 60 + 6*(1+4), 5},
	} {
		t.Run(string(c.shape), func(t *testing.T) {
			t.Parallel()
			countCalls(t, c.machine, c.shape, c.mostInAnHour, c.mostInAMove)
		})
	}
}

func countCalls(t *testing.T, of string, shape config.NUMA, mostInAnHour, mostInAMove int) {
	const guests = 50
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	count := &counter{next: s.Handler(), calls: map[string]int{}}
	front := httptest.NewServer(count)
	defer front.Close()
	admin := httptest.NewServer(s.Handler()) // what the test asks is not counted
	defer admin.Close()
	place, err := pc.New(pc.Config{URL: admin.URL, Token: "admin"})
	must(t, err)
	defer place.Close()

	// The two clocks that lead to questions run three hundred times as fast, in the
	// relation that they have by default.
	def := config.Default().Placement
	const minute = 200 * time.Millisecond
	faster := time.Minute / minute
	root := machine(t, of)
	p := startAgents(t, place, func(c *config.Config) {
		c.Placement.URL, c.Placement.NUMA, c.Host.Root = front.URL, shape, root
		c.Placement.CPURatio, c.Placement.RAMRatio, c.Placement.DiskRatio = 64, 16, 16 // room for all on a small machine
		c.Placement.Interval = def.Interval / config.Duration(faster)
		c.Placement.AuditInterval = def.AuditInterval / config.Duration(faster)
		if c.Agent.Name == "host-b" { // a destination, which asks by itself nothing that would be counted
			c.Placement.Interval, c.Placement.AuditInterval = config.Duration(time.Hour), config.Duration(time.Hour)
		}
	}, "host-a", "host-b")
	var first string
	for i := range guests {
		if uuid := p.guest("host-a", fmt.Sprintf("guest-%d", i)); i == 0 {
			first = uuid
		}
	}
	own := 0
	for name := range p.trees() {
		if strings.HasPrefix(name, "host-a") {
			own++
		}
	}
	if h := p.held(); len(h) != guests {
		t.Fatalf("%d consumers, want %d", len(h), guests)
	}
	// An audit reads the allocations of each provider, and nothing else does.
	const audit = "GET /resource_providers/{uuid}/allocations"
	next := func() {
		last := count.of(audit)
		p.until("the next audit", func() bool { return count.of(audit) >= last+own })
	}
	next() // what the guests were new to
	next()
	count.take()
	begun := time.Now()
	next()
	next()
	calls := count.take()
	played := time.Since(begun)
	// On a busy machine either clock is late: audits are counted by themselves, the rest
	// by the time that went by.
	hour := map[string]int{}
	total := 0
	for route, n := range calls {
		if route == audit {
			hour[route] = n * int(time.Hour/(2*def.AuditInterval.D()))
		} else {
			hour[route] = int(time.Duration(n) * 60 * minute / played)
		}
		total += hour[route]
	}
	t.Logf("idle, %d providers, %d guests: %d calls an hour (played in %v)\n%s", own, guests, total, played, routes(hour))
	if total == 0 || total > mostInAnHour {
		t.Errorf("%d calls an hour, want 1 to %d", total, mostInAnHour)
	}
	for route := range calls {
		if !strings.HasPrefix(route, "GET ") {
			t.Errorf("an idle agent writes: %s", route)
		}
	}

	count.take()
	id := p.begin(first, "host-a", "host-b")
	m := p.end("host-a", id)
	calls = count.take()
	must(t, m.Err())
	// What the reporter looked at meanwhile is none of the move's: its minute is short here.
	sum, idle := 0, 0
	for route, n := range calls {
		if strings.HasPrefix(route, "GET /resource_providers") && !strings.HasSuffix(route, "/usages") {
			idle += n
			delete(calls, route)
			continue
		}
		sum += n
	}
	t.Logf("a move: %d calls, and %d of an idle agent's\n%s", sum, idle, routes(calls))
	if sum > mostInAMove {
		t.Errorf("%d calls a move, want at most %d", sum, mostInAMove)
	}
}
