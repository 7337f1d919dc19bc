package metrics_test

import (
	"fmt"
	"testing"

	"berth/agent/metrics"
	"berth/migration"
)

// BenchmarkScrape is of a host with eight cells and fifty moves under way.
func BenchmarkScrape(b *testing.B) {
	s := first()
	for id := range 8 {
		c := held().Cells[0]
		c.ID = fmt.Sprint(id + 10)
		s.Host.Cells = append(s.Host.Cells, c)
	}
	for i := range 50 {
		s.Migrations = append(s.Migrations, move(fmt.Sprintf("m-%d", i), func(m *migration.Migration) { busy(m) }))
	}
	m := metrics.New()
	m.Refresh(s)
	b.ReportAllocs()
	for b.Loop() {
		scrape(b, m)
	}
}
