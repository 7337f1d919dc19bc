package metrics

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

// Metrics are an agent's. Refresh is called by one goroutine; the rest is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	last     atomic.Pointer[sample]

	finished  *prometheus.CounterVec
	failures  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	waits     *prometheus.HistogramVec
	steps     *prometheus.HistogramVec
	downtimes *prometheus.HistogramVec
	claimed   *prometheus.HistogramVec
	lockHeld  prometheus.Histogram

	// over are the moves that are over and known, counted or older than this agent; nil
	// before the first snapshot. reasons are those by which moves have waited, and kinds what
	// was under way. Refresh alone has them.
	over    map[string]bool
	reasons map[string]bool
	kinds   map[underway]bool
}

// sample is a snapshot that nobody changes any more, with what its moves come to.
type sample struct {
	Snapshot
	under   map[underway]int
	inDoubt int
	waits   map[string]int // by what they wait for first
}

// underway is what moves that are not over are counted by.
type underway struct{ kind, status string }

// New makes metrics of which nothing is known yet.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewPedanticRegistry(), reasons: map[string]bool{}, kinds: map[underway]bool{},
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_migrations_finished_total", Help: "Moves that this host conducted and that are over, by what they came to; the reason is that of the error, empty for none.",
		}, []string{"type", "status", "reason"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_migration_failures_total", Help: "Attempts of moves that are over that came to nothing, by the step that failed and the reason; a move that tried several destinations has several.",
		}, []string{"type", "step", "reason"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_migration_duration_seconds", Help: "From the request to the end of moves that are over, their waiting included.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400},
		}, []string{"type", "status"}),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_migration_wait_seconds", Help: "For how long moves that are over have waited for their turns.",
			Buckets: []float64{1, 10, 60, 300, 900, 3600, 14400},
		}, []string{"type"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_migration_step_duration_seconds", Help: "How long the steps of moves that are over took, those that came to their end.",
			Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 7200},
		}, []string{"type", "step"}),
		claimed: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_claim_duration_seconds", Help: "How long an answer to a claim took, its way to the disk included; the result is given, or the kind of the refusal.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"kind", "result"}),
		lockHeld: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "berth_claim_lock_held_seconds", Help: "For how long the claim lock was held at a time.",
			Buckets: []float64{1e-6, 5e-6, 2.5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, .025, .1, 1},
		}),
		downtimes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_migration_downtime_seconds", Help: "For how long the guest of a completed live migration stood still, the hand-over included, where it was measured.",
			Buckets: []float64{.01, .025, .05, .1, .2, .3, .5, .8, 1, 2, 5, 10, 30, 60, 120},
		}, []string{"type"}),
	}
	// A counter that appears with its first event has not risen, for Prometheus.
	for kind, end := range ends {
		m.finished.WithLabelValues(kind, string(end), "")
		m.finished.WithLabelValues(kind, string(migration.StatusFailed), "")
	}
	m.registry.MustRegister(m.finished, m.failures, m.durations, m.waits, m.steps, m.downtimes, m.claimed, m.lockHeld, &collector{m})
	return m
}

// ends are the statuses of moves that came to their end, by type.
var ends = map[string]migration.Status{
	migration.TypeLiveMigration: migration.StatusCompleted, migration.TypeMigration: migration.StatusConfirmed, migration.TypeResize: migration.StatusConfirmed,
	migration.TypeRebuild: migration.StatusDone, migration.TypeEvacuation: migration.StatusDone,
}

// Claimed counts an answer of the claim lock.
func (m *Metrics) Claimed(kind string, took time.Duration, err error) {
	result := "given"
	if err != nil {
		result = string(fault.KindOf(err))
	}
	m.claimed.WithLabelValues(kind, result).Observe(took.Seconds())
}

// LockHeld counts a time for which the claim lock was held.
func (m *Metrics) LockHeld(d time.Duration) { m.lockHeld.Observe(d.Seconds()) }

// Refresh takes a snapshot; what is over since the one before is counted. Moves that are over
// in the first one ended before this agent began, and are not.
func (m *Metrics) Refresh(s Snapshot) {
	first := m.over == nil
	over := map[string]bool{}
	next := &sample{Snapshot: s, under: map[underway]int{}, waits: map[string]int{}}
	for code := range m.reasons {
		next.waits[code] = 0 // a line that ends at 0, not one that breaks off
	}
	for k := range m.kinds {
		next.under[k] = 0
	}
	for _, one := range s.Migrations {
		if one.Done() {
			if over[one.UUID] = true; !first && !m.over[one.UUID] {
				m.count(one)
			}
			continue
		}
		k := underway{typeOf(one), string(one.Status)}
		m.kinds[k] = true
		next.under[k]++
		if one.Outcome == migration.OutcomeInDoubt {
			next.inDoubt++
		}
		if len(one.Waits) > 0 {
			m.reasons[one.Waits[0].Code] = true
			next.waits[one.Waits[0].Code]++
		}
	}
	m.over = over
	m.last.Store(next)
}

// count adds a move that is over.
func (m *Metrics) count(one migration.Migration) {
	kind, status := typeOf(one), string(one.Status)
	m.finished.WithLabelValues(kind, status, reasonOf(one)).Inc()
	if took := one.UpdatedAt.Sub(one.CreatedAt); took >= 0 {
		m.durations.WithLabelValues(kind, status).Observe(took.Seconds())
	}
	m.waits.WithLabelValues(kind).Observe(one.Waited.Seconds())
	for _, r := range one.Refusals {
		reason := string(r.Kind)
		if len(r.Reasons) > 0 {
			reason = cmp.Or(r.Reasons[0].Code, reason)
		}
		m.failures.WithLabelValues(kind, r.Step, reason).Inc()
	}
	for _, s := range slices.Concat(one.MoveSteps, one.Steps) {
		switch {
		case s.State == task.StepEnded && s.Duration >= 0:
			m.steps.WithLabelValues(kind, s.Name).Observe(s.Duration.Seconds())
		case s.State != task.StepEnded && s.Error != "":
			m.failures.WithLabelValues(kind, s.Name, reasonOf(one)).Inc()
		}
	}
	if one.Outcome == migration.OutcomeCompleted && one.Progress.Downtime > 0 && one.HandoverDowntime > 0 {
		m.downtimes.WithLabelValues(kind).Observe((one.Progress.Downtime + one.HandoverDowntime).Seconds())
	}
}

// typeOf is a move's type; records of older agents are of live migrations.
func typeOf(m migration.Migration) string {
	return cmp.Or(m.MigrationType, migration.TypeLiveMigration)
}

// reasonOf is why a move did not come to its end: the code of its first reason, or else the
// kind of its error; empty for one that did.
func reasonOf(m migration.Migration) string {
	switch {
	case m.Error == nil:
		return ""
	case len(m.Error.Reasons) > 0 && m.Error.Reasons[0].Code != "":
		return m.Error.Reasons[0].Code
	}
	return string(m.Error.Kind)
}

// Handler answers scrapes.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	// What the kernel and Go's runtime know of the process.
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{m.registry, process}, promhttp.HandlerOpts{
		ErrorLog: scrapeLog{log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 8, EnableOpenMetrics: true,
	}))
	return mux
}

// scrapeLog is what promhttp tells of a scrape that failed.
type scrapeLog struct{ log *slog.Logger }

// Println implements promhttp.Logger.
func (l scrapeLog) Println(v ...any) {
	l.log.Warn("a scrape of metrics was not answered whole", "error", v)
}

// Describe and Collect make Metrics a prometheus.Collector: all that a scrape shows.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.registry.Describe(ch) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.registry.Collect(ch) }
