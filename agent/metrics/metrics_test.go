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

// second is the first, and what has ended since.
func second() metrics.Snapshot {
	s := first()
	s.At = s.At.Add(time.Minute)
	s.Migrations = append(s.Migrations[:1],
		move("1", func(m *migration.Migration) {
			busy(m)
			m.Status, m.Outcome = migration.StatusFailed, migration.OutcomeUndone
			m.Error = task.Keep(fault.Refuse(fault.Undone, "live migration", fault.Reason{Code: "timeout", Message: "not finished"}))
		}),
		move("2", func(m *migration.Migration) {
			m.Status, m.Outcome = migration.StatusCompleted, migration.OutcomeCompleted
			m.Progress.Downtime, m.HandoverDowntime = 200*time.Millisecond, 40*time.Millisecond
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

func scrape(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("a scrape: %d %s, %v", w.Code, text, err)
	}
	return string(text)
}

func TestMetrics_AreThoseOnRecord(t *testing.T) {
	m := metrics.New()
	if text := scrape(t, m); strings.Contains(text, "berth_") {
		t.Errorf("shown before anything is known:\n%s", text)
	}
	m.Refresh(first())
	text := "# While they go on.\n" + scrape(t, m)
	m.Refresh(second())
	m.Refresh(second()) // what is counted is counted once
	text += "\n# When they are over.\n" + scrape(t, m)
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
