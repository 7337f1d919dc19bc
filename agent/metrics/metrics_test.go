package metrics_test

import (
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"berth/agent/metrics"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

var update = flag.Bool("update", false, "write golden files anew")

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// move is one that host-a conducts.
func move(uuid string, change func(*migration.Migration)) migration.Migration {
	m := migration.Migration{
		UUID: uuid, InstanceUUID: "i-" + uuid, InstanceName: "web-" + uuid, SourceCompute: "host-a", DestCompute: "host-b",
		MigrationType: migration.TypeLiveMigration, Status: migration.StatusRunning, CreatedAt: begun, UpdatedAt: begun.Add(90 * time.Second),
	}
	change(&m)
	return m
}

// busy is a guest that changes its memory faster than it is sent.
func busy(m *migration.Migration) {
	m.Priority = migration.PriorityDrain
	m.Queue = "d-1"
	m.Progress = migration.Progress{
		Phase: "memory", Elapsed: 90 * time.Second, MemoryTotal: 4 << 30, MemoryProcessed: 9 << 30, MemoryRemaining: 1 << 30, DiskTotal: 1 << 30, DiskProcessed: 1 << 30,
		Rate: 100 << 20, DirtyRate: 130 << 20, Iteration: 7, Never: true, ExpectedDowntime: 10 * time.Second, Stalls: 3, Throttle: 30,
	}
}

func first() metrics.Snapshot {
	return metrics.Snapshot{
		At: begun.Add(time.Minute), Turns: metrics.Turns{Inbound: 1, Outbound: 2, MaxOutbound: 2},
		Agent: metrics.Agent{Name: "host-a", Mode: "manage", Version: "1.2.3", Started: begun.Add(-time.Hour), Ready: true},
		Health: []metrics.Condition{
			{Part: "libvirt", Since: begun}, {Part: "placement", OK: true, Since: begun.Add(-time.Minute)},
		},
		Certificates: []metrics.Certificate{
			{Use: "host", Name: "host-a", NotAfter: begun.AddDate(1, 0, 0)}, {Use: "authority", Name: "berth", NotAfter: begun.AddDate(10, 0, 0)},
		},
		Host: held(),
		Migrations: []migration.Migration{
			move("old", func(m *migration.Migration) {
				m.Status, m.Outcome = migration.StatusCompleted, migration.OutcomeCompleted
			}),
			move("1", busy),
			move("2", func(m *migration.Migration) {
				m.Status = migration.StatusPostCopy
				m.Progress = migration.Progress{Phase: "post-copy", MemoryTotal: 1 << 30, MemoryRemaining: 256 << 20, Rate: 64 << 20, Remaining: 4 * time.Second, PageRequests: 12}
			}),
			move("3", func(m *migration.Migration) {
				m.Status, m.DestCompute, m.InstanceName = migration.StatusQueued, "", "caf\xe9"
				m.Waits = []fault.Reason{{Code: "outbound_limit", Message: "2 guests leave host-a"}, {Code: "link_limit"}}
			}),
		},
	}
}

// held is a host of two cells with a card, of which guests have some.
func held() *metrics.Host {
	return &metrics.Host{
		Resources: []metrics.Resource{
			{Class: "VCPU", Capacity: 8, Reserved: 1, Used: 6, Free: 22, Ratio: 4}, {Class: "MEMORY_MB", Capacity: 65536, Reserved: 512, Used: 8192, Free: 56832, Ratio: 1},
		},
		Cells: []metrics.Cell{
			{
				ID: "0", MemoryBytes: 32 << 30, MemoryUsed: 4 << 30, Dedicated: 6, DedicatedFree: 2, Shared: 2, SharedVCPUs: 3, Instances: 2,
				Pages: []metrics.Pages{{Size: "4KiB", Total: 1 << 20, Used: 1 << 18, Free: 3 << 18}, {Size: "1GiB", Total: 16, Reserved: 2, Used: 4, Free: 10}},
			},
			{ID: "2", MemoryBytes: 32 << 30},
		},
		Devices:   []metrics.Devices{{Cell: "0", Class: "CUSTOM_PCI_8086_1520", Total: 8, Used: 3, Unfit: 1}, {Class: "VGPU", Total: 4, Used: 1}},
		Claims:    map[metrics.ClaimKind]int{{Kind: "instance", State: "bound"}: 5, {Kind: "live-migration", State: "arriving"}: 1},
		Instances: 5, Unclaimed: 1, Forced: 2, Doubled: 1,
	}
}

// asked is what a host with a quiet Placement has asked of it.
func asked() metrics.Placement {
	return metrics.Placement{
		Calls: []metrics.Calls{
			{Method: "GET", Route: "/resource_providers", Status: "200", Count: 20, Took: 2 * time.Second},
			{Method: "PUT", Route: "/allocations/{consumer}", Status: "204", Count: 3, Took: 200 * time.Millisecond},
			{Method: "PUT", Route: "/allocations/{consumer}", Status: "409", Count: 1, Took: 100 * time.Millisecond},
		},
		Conflicts: map[string]int64{"consumer_generation": 1, "server_race": 0}, Requests: 26, Retries: 2, Races: 1, Generation: 7, SyncedAt: begun, Waiting: true,
	}
}

// second is the first, and what has ended since.
func second() metrics.Snapshot {
	s := first()
	s.At, s.Placement, s.Agent.Disabled = s.At.Add(time.Minute), asked(), true
	s.Audit = &metrics.Audit{At: begun.Add(time.Minute), Healed: 2, Silent: 1, Verdicts: map[string]int{"agree": 5, "Placement only": 1}}
	s.Host = nil // its ledger is asked of others
	s.Migrations = append(s.Migrations[:1],
		move("1", func(m *migration.Migration) {
			busy(m)
			m.Status, m.Outcome = migration.StatusFailed, migration.OutcomeUndone
			m.Error = task.Keep(fault.Refuse(fault.Undone, "live migration", fault.Reason{Code: "timeout", Message: "not finished"}))
			m.Refusals = []migration.Refusal{
				{Step: migration.StepClaim, Kind: fault.DoesNotFit, Reasons: []fault.Reason{{Code: "pages_short"}, {Code: "cpus_short"}}},
				{Step: migration.StepCheckDestination, Kind: fault.Unavailable},
			}
			m.Waited = 2 * time.Minute
			m.Steps = []migration.StepRecord{
				{Name: migration.StepClaim, State: task.StepUndone, Duration: 20 * time.Millisecond},
				{Name: migration.StepStream, State: task.StepFailed, Duration: time.Minute, Error: "not finished"},
			}
		}),
		move("2", func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusCompleted, migration.OutcomeCompleted
			m.Progress.Downtime, m.HandoverDowntime = 200*time.Millisecond, 40*time.Millisecond
			m.Steps = []migration.StepRecord{
				{Name: migration.StepClaim, State: task.StepEnded, Duration: 20 * time.Millisecond},
				{Name: migration.StepStream, State: task.StepEnded, Duration: time.Minute, Error: "the first try broke off"},
			}
		}),
		move("3", func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusCancelled, migration.OutcomeUndone
			m.Error = task.Keep(fault.New(fault.Undone, "aborted"))
		}),
		// Begun and over between two snapshots.
		move("4", func(m *migration.Migration) {
			m.MigrationType, m.Status, m.Outcome = migration.TypeResize, migration.StatusConfirmed, migration.OutcomeCompleted
		}),
	)
	return s
}

func scrape(t testing.TB, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("a scrape: %d %s, %v", w.Code, text, err)
	}
	return string(text)
}

// known is a scrape without what the kernel and Go's runtime tell of the process.
func known(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(scrape(t, m)) {
		if name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "); strings.HasPrefix(name, "berth_") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestMetrics_AreThoseOnRecord(t *testing.T) {
	m := metrics.New()
	text := "# Before anything is known.\n" + known(t, m)
	m.Refresh(first())
	m.Claimed("instance", 3*time.Millisecond, nil)
	m.Claimed("live-migration", time.Millisecond, fault.New(fault.DoesNotFit, "claim"))
	m.LockHeld(20 * time.Microsecond)
	text += "\n# While moves go on.\n" + known(t, m)
	m.Refresh(second())
	m.Refresh(second()) // what is counted is counted once
	text += "\n# When they are over.\n" + known(t, m)
	const path = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("(-want +got; -update writes it):\n%s", diff)
	}
}

func TestMetrics_AreNamedAsPrometheusWantsThem(t *testing.T) {
	m := metrics.New()
	for _, s := range []metrics.Snapshot{first(), second(), first()} {
		m.Refresh(s)
		problems, err := testutil.CollectAndLint(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestMetrics_AreScrapedWhileTheyAreRefreshed has the race detector look.
func TestMetrics_AreScrapedWhileTheyAreRefreshed(t *testing.T) {
	m := metrics.New()
	var scrapers sync.WaitGroup
	for range 4 {
		scrapers.Go(func() {
			for range 20 {
				scrape(t, m)
				m.Claimed("instance", time.Millisecond, nil)
				m.LockHeld(time.Microsecond)
			}
		})
	}
	for range 50 {
		m.Refresh(first())
		m.Refresh(second())
	}
	scrapers.Wait()
}

func TestHandler_KnowsNothingElse(t *testing.T) {
	for _, ask := range []*http.Request{httptest.NewRequest(http.MethodPost, "/metrics", nil), httptest.NewRequest(http.MethodGet, "/v1/status", nil)} {
		w := httptest.NewRecorder()
		metrics.New().Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, ask)
		if w.Code < 400 {
			t.Errorf("%s %s is answered with %d", ask.Method, ask.URL, w.Code)
		}
	}
}

func TestHandler_TellsOfTheProcess(t *testing.T) {
	text := scrape(t, metrics.New())
	for _, want := range []string{"process_resident_memory_bytes ", "process_open_fds ", "go_goroutines "} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("%s is not told", want)
		}
	}
}
