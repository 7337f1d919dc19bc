package metrics

import (
	"cmp"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/migration"
)

// Snapshot is an agent at one moment.
type Snapshot struct {
	At time.Time
	// Migrations are all that the host conducts or conducted, as the conductor lists them.
	Migrations []migration.Migration
	Turns      Turns
}

// Turns are how many guests are on their way to and from the host, and how many may be; 0
// for no bound.
type Turns struct {
	Inbound, MaxInbound   int
	Outbound, MaxOutbound int
}

// Metrics are an agent's. Refresh is called by one goroutine; the rest is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	last     atomic.Pointer[sample]

	finished  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	downtimes *prometheus.HistogramVec

	// over are the moves that are over and known, counted or older than this agent; nil
	// before the first snapshot. reasons are those by which moves have waited. Refresh alone
	// has both.
	over    map[string]bool
	reasons map[string]bool
}

// sample is a snapshot that nobody changes any more, with what its moves wait for.
type sample struct {
	Snapshot
	waits map[string]int
}

// New makes metrics of which nothing is known yet.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewPedanticRegistry(), reasons: map[string]bool{},
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_migrations_finished_total", Help: "Moves that this host conducted and that are over, by what they came to; the reason is that of the error, empty for none.",
		}, []string{"type", "status", "reason"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_migration_duration_seconds", Help: "From the request to the end of moves that are over, their waiting included.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400},
		}, []string{"type", "status"}),
		downtimes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_migration_downtime_seconds", Help: "For how long the guest of a completed live migration stood still, the hand-over included, where it was measured.",
			Buckets: []float64{.01, .025, .05, .1, .2, .3, .5, .8, 1, 2, 5, 10, 30, 60, 120},
		}, []string{"type"}),
	}
	m.registry.MustRegister(m.finished, m.durations, m.downtimes, &collector{m})
	return m
}

// Refresh takes a snapshot; what is over since the one before is counted. Moves that are over
// in the first one ended before this agent began, and are not.
func (m *Metrics) Refresh(s Snapshot) {
	first := m.over == nil
	over, waits := map[string]bool{}, map[string]int{}
	for code := range m.reasons {
		waits[code] = 0 // a line that ends at 0, not one that breaks off
	}
	for _, one := range s.Migrations {
		if one.Done() {
			if over[one.UUID] = true; !first && !m.over[one.UUID] {
				m.count(one)
			}
			continue
		}
		if len(one.Waits) > 0 {
			m.reasons[one.Waits[0].Code] = true
			waits[one.Waits[0].Code]++
		}
	}
	m.over = over
	m.last.Store(&sample{Snapshot: s, waits: waits})
}

func (m *Metrics) count(one migration.Migration) {
	kind, status := typeOf(one), string(one.Status)
	m.finished.WithLabelValues(kind, status, reasonOf(one)).Inc()
	if took := one.UpdatedAt.Sub(one.CreatedAt); took >= 0 {
		m.durations.WithLabelValues(kind, status).Observe(took.Seconds())
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
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
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
