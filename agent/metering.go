package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"berth/agent/api"
	"berth/agent/metrics"
	"berth/internal/fault"
	"berth/internal/version"
)

// metering keeps the agent's metrics fresh, and serves them. Nothing of the agent depends on
// it: where its port is taken, that is told, and tried again.
type metering struct {
	a      *Agent
	shown  *metrics.Metrics
	closed atomic.Pointer[error]  // why nobody is served; nil pointer where somebody is, or nobody is to be
	at     atomic.Pointer[string] // the address that is served; nil before
}

func newMetering(a *Agent) *metering { return &metering{a: a, shown: metrics.New()} }

// refreshEvery is how often what a scrape shows is read; below what anybody scrapes.
const refreshEvery = time.Second

// run reads what is shown, once the conductor knows its moves: those that have ended before
// are not counted.
func (m *metering) run(ctx context.Context) error {
	for ctx.Err() == nil && !m.a.conductor.Running() {
		_ = m.a.rt.Sleep(ctx, 10*time.Millisecond) // its end is looked at in the loop
	}
	for ctx.Err() == nil {
		m.refresh(ctx)
		m.a.loops.round("metrics")
		_ = m.a.rt.Sleep(ctx, refreshEvery)
	}
	return nil
}

// refresh reads records and counters that are in memory.
func (m *metering) refresh(ctx context.Context) {
	a := m.a
	list, err := a.conductor.List(ctx)
	if err != nil {
		return // the samples stay as they are, with their time
	}
	c := a.config()
	s := metrics.Snapshot{
		At: a.rt.Now(), Migrations: list,
		Agent: metrics.Agent{
			Name: a.name, Mode: string(c.Agent.Mode), Version: version.Get().String(), Started: a.opt.Started,
			Ready: a.probes.ready() == nil, Disabled: a.disabled.Load() != nil,
		},
		Turns: metrics.Turns{
			Inbound: a.tracker.Inbound(), MaxInbound: c.Migration.MaxInbound, Outbound: a.conductor.Outbound(), MaxOutbound: c.Migration.MaxOutbound,
		},
		Placement: m.placement(), Audit: m.audit(), Certificates: m.certificates(),
	}
	for _, part := range a.health.conditions() {
		s.Health = append(s.Health, metrics.Condition{Part: part.Name, OK: part.Health == api.HealthOK, Since: part.Since})
	}
	if a.ledger.state() == nil {
		s.Host = m.host()
	}
	m.shown.Refresh(s)
}

// serve answers scrapes until ctx ends.
func (m *metering) serve(ctx context.Context) error {
	address := m.a.opt.Config.Metrics.Listen
	if address == "" {
		return nil
	}
	l, err := net.Listen("tcp", address)
	for ; err != nil; l, err = net.Listen("tcp", address) {
		why := fault.New(fault.Busy, "listen for scrapes of metrics: %w", err)
		if m.closed.Swap(&why) == nil {
			m.a.log.Warn("metrics are not served; it is tried again", "address", address, "error", err)
		}
		if m.a.rt.Sleep(ctx, listenEvery) != nil {
			return nil
		}
	}
	m.closed.Store(nil)
	at := l.Addr().String()
	m.at.Store(&at)
	server := &http.Server{
		Handler:           m.handler(),
		ReadHeaderTimeout: scrapeTime, ReadTimeout: scrapeTime, WriteTimeout: scrapeTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(m.a.log.Handler(), slog.LevelDebug),
	}
	unhook := context.AfterFunc(ctx, func() { _ = server.Close() }) // a scrape is asked again
	defer unhook()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		// Guests and moves do not depend on it.
		m.closed.Store(&err)
		m.a.log.Error("metrics are served no more", "error", err)
	}
	return nil
}

// handler answers scrapes, and whoever asks how the agent is.
func (m *metering) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", m.shown.Handler(m.a.log))
	mux.Handle("GET "+api.HealthzPath, m.a.probes)
	mux.Handle("GET "+api.ReadyzPath, m.a.probes)
	return mux
}

// scrapeTime bounds one scrape: what it shows is in memory. Arbitrary.
const scrapeTime = 10 * time.Second

// condition is how the serving goes; false where nobody is to be served.
func (m *metering) condition() (api.Condition, bool) {
	address := m.a.opt.Config.Metrics.Listen
	if address == "" {
		return api.Condition{}, false
	}
	if why := m.closed.Load(); why != nil {
		return api.Degraded("metrics", "not served: "+(*why).Error(), fault.Reason{
			Code: "metrics_port", Message: (*why).Error(), Change: `free the address, or set [metrics] listen ("" for none) and restart the agent; it is tried again by itself`,
		}), true
	}
	if at := m.at.Load(); at != nil {
		address = *at
	}
	return api.OK("metrics", "served on "+address), true
}
