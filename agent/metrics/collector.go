package metrics

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/migration"
)

// collector shows the last sample.
type collector struct{ m *Metrics }

// perMove are the labels of each metric of a move.
// Prometheus calls what it scrapes an instance: the guest's label is another.
var perMove = []string{"migration", "instance_uuid", "instance_name", "source", "destination"}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("berth_"+name, help, labels, nil)
}

func ofMove(name, help string, more ...string) *prometheus.Desc {
	return desc("migration_"+name, help, append(perMove[:len(perMove):len(perMove)], more...)...)
}

var (
	sampleTime = desc("sample_timestamp_seconds", "When what is shown here was last read, Unix time.")
	under      = desc("migrations", "Moves that this host conducts and that are not over, by what they are and how far.", "type", "status")
	inDoubt    = desc("migrations_in_doubt", "Moves that cannot go on without a person.")
	waiting    = desc("migrations_waiting", "Moves that wait for their turn, by what they wait for first.", "reason")
	turnsHeld  = desc("migration_turns_held", "Guests on their way to this host (inbound) and live migrations under way from it (outbound).", "direction")
	turnsLimit = desc("migration_turns_limit", "How many there may be; absent for no bound.", "direction")
	info       = ofMove("info", "Moves that are not over; always 1.", "type", "trigger", "priority")
	phase      = ofMove("phase", "What a move does at present; always 1.", "status", "phase")
)

// gauges are the numbers of a live migration that is not over. value is false for what is
// not known.
var gauges = []struct {
	desc  *prometheus.Desc
	value func(m migration.Migration) (float64, bool)
}{
	{ofMove("elapsed_seconds", "Since the transfer began."), known(func(p migration.Progress) float64 { return p.Elapsed.Seconds() })},
	{ofMove("memory_bytes", "The guest's memory."), known(func(p migration.Progress) float64 { return float64(p.MemoryTotal) })},
	{ofMove("memory_processed_bytes", "Memory that was sent, once more where the guest has changed it."), memory(func(p migration.Progress) float64 { return float64(p.MemoryProcessed) })},
	{ofMove("memory_remaining_bytes", "Memory that is still to be sent."), memory(func(p migration.Progress) float64 { return float64(p.MemoryRemaining) })},
	{ofMove("disk_bytes", "Disks that are copied."), known(func(p migration.Progress) float64 { return float64(p.DiskTotal) })},
	{ofMove("disk_processed_bytes", "What was copied of disks, once more where the guest has changed it."), disk(func(p migration.Progress) float64 { return float64(p.DiskProcessed) })},
	{ofMove("disk_remaining_bytes", "What is still to be copied of disks."), disk(func(p migration.Progress) float64 { return float64(p.DiskRemaining) })},
	{ofMove("rate_bytes_per_second", "How fast memory and disks are sent."), positive(func(p migration.Progress) float64 { return float64(p.Rate) })},
	{ofMove("dirty_rate_bytes_per_second", "How fast the guest changes its memory; absent while it is not known."), positive(func(p migration.Progress) float64 { return float64(p.DirtyRate) })},
	{ofMove("iteration", "The pass over the guest's memory."), memory(func(p migration.Progress) float64 { return float64(p.Iteration) })},
	{ofMove("stalls", "Passes in a row that came no nearer to the end."), memory(func(p migration.Progress) float64 { return float64(p.Stalls) })},
	{ofMove("throttle_ratio", "By how much the guest is slowed down."), memory(func(p migration.Progress) float64 { return float64(p.Throttle) / 100 })},
	{ofMove("expected_downtime_seconds", "For how long the guest would stand still, if the rest were sent now."), positive(func(p migration.Progress) float64 { return p.ExpectedDowntime.Seconds() })},
	{ofMove("remaining_seconds", "How long the transfer will still take; +Inf where it does not end by itself, absent while it is not known."), remaining},
	{ofMove("post_copy_requests", "Pages that the guest has waited for at the destination, in post-copy."), positive(func(p migration.Progress) float64 { return float64(p.PageRequests) })},
}

type value = func(migration.Migration) (float64, bool)

// known is a number of a transfer that has begun.
func known(of func(migration.Progress) float64) value {
	return func(m migration.Migration) (float64, bool) {
		return of(m.Progress), m.Progress.MemoryTotal > 0 || m.Progress.DiskTotal > 0
	}
}

// memory is one of a transfer that has come to the guest's memory.
func memory(of func(migration.Progress) float64) value {
	return func(m migration.Migration) (float64, bool) { return of(m.Progress), m.Progress.MemoryTotal > 0 }
}

// disk is one of a transfer that copies disks.
func disk(of func(migration.Progress) float64) value {
	return func(m migration.Migration) (float64, bool) { return of(m.Progress), m.Progress.DiskTotal > 0 }
}

// positive is one that stands at 0 while it is not known.
func positive(of func(migration.Progress) float64) value {
	return func(m migration.Migration) (float64, bool) {
		v := of(m.Progress)
		return v, v > 0
	}
}

func remaining(m migration.Migration) (float64, bool) {
	if m.Progress.Never {
		return math.Inf(1), true
	}
	return m.Progress.Remaining.Seconds(), m.Progress.Remaining > 0
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range slices.Concat([]*prometheus.Desc{sampleTime, under, inDoubt, waiting, turnsHeld, turnsLimit, info, phase}, ofHost) {
		ch <- d
	}
	for _, g := range gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	last := c.m.last.Load()
	if last == nil {
		return
	}
	s := shown{ch}
	s.time(sampleTime, last.At)
	s.agent(last.Agent, last.Health, last.Certificates)
	s.host(last.Host)
	s.placement(last.Placement)
	s.audit(last.Audit)
	s.moves(last)
}

// moves shows those that are not over.
func (s shown) moves(last *sample) {
	for k, n := range last.under {
		s.number(under, int64(n), k.kind, k.status)
	}
	s.number(inDoubt, int64(last.inDoubt))
	for code, n := range last.waits {
		s.number(waiting, int64(n), code)
	}
	turns := func(direction string, held, limit int) {
		s.number(turnsHeld, int64(held), direction)
		if limit > 0 {
			s.number(turnsLimit, int64(limit), direction)
		}
	}
	turns("inbound", last.Turns.Inbound, last.Turns.MaxInbound)
	turns("outbound", last.Turns.Outbound, last.Turns.MaxOutbound)
	for _, m := range last.Migrations {
		if m.Done() {
			continue
		}
		labels := []string{m.UUID, m.InstanceUUID, m.InstanceName, m.SourceCompute, m.DestCompute}
		with := func(more ...string) []string { return append(labels[:len(labels):len(labels)], more...) }
		s.gauge(info, 1, with(typeOf(m), trigger(m), priority(m.Priority))...)
		s.gauge(phase, 1, with(string(m.Status), m.Progress.Phase)...)
		for _, g := range gauges {
			if v, is := g.value(m); is {
				s.gauge(g.desc, v, labels...)
			}
		}
	}
}

// shown is where a scrape's numbers go.
type shown struct{ ch chan<- prometheus.Metric }

func (s shown) send(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []string) {
	for i := range labels {
		labels[i] = strings.ToValidUTF8(labels[i], "?") // a name from elsewhere; client_golang panics
	}
	s.ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
}

func (s shown) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.send(d, prometheus.GaugeValue, v, labels)
}

func (s shown) number(d *prometheus.Desc, n int64, labels ...string) {
	s.gauge(d, float64(n), labels...)
}

func (s shown) count(d *prometheus.Desc, n int64, labels ...string) {
	s.send(d, prometheus.CounterValue, float64(n), labels)
}

func (s shown) is(d *prometheus.Desc, yes bool, labels ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	s.gauge(d, v, labels...)
}

// time shows an instant; the zero one is not known, and absent.
func (s shown) time(d *prometheus.Desc, at time.Time, labels ...string) {
	if !at.IsZero() {
		s.gauge(d, float64(at.UnixMilli())/1000, labels...)
	}
}

// trigger is who began a move: a queue (of a drain, or of the evacuation of a host), or
// somebody for this guest alone.
func trigger(m migration.Migration) string {
	if m.Queue != "" {
		return "queue"
	}
	return "request"
}

// priority is in words of a closed set: a move's own number would be one more label value
// for each that somebody thinks of.
func priority(p int) string {
	switch {
	case p >= migration.PriorityUrgent:
		return "urgent"
	case p >= migration.PriorityDrain:
		return "drain"
	case p >= migration.PriorityUser || p == 0:
		return "user"
	}
	return "maintenance"
}
