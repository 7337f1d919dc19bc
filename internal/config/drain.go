package config

import (
	"fmt"

	"berth/internal/fault"
)

// Drain says how this host is emptied.
type Drain struct {
	Attempts   int  `toml:"attempts"`    // at each guest, before it counts as failed
	OnShutdown bool `toml:"on_shutdown"` // drain when logind says that the machine shuts down
}

// mostMoves keeps a host from an arbitrary number of streams and journals at once, and
// mostAttempts a drain from one that never ends. Both arbitrary.
const (
	mostMoves    = 1000
	mostAttempts = 100
)

// drainFaults are those of [drain], and of the bounds of moves that are at once.
func (c *Config) drainFaults() []fault.Reason {
	var out []fault.Reason
	for _, k := range []struct {
		key       string
		val, most int
	}{
		{"drain.attempts", c.Drain.Attempts, mostAttempts},
		{"migration.max_inbound", c.Migration.MaxInbound, mostMoves}, {"migration.max_outbound", c.Migration.MaxOutbound, mostMoves},
	} {
		if want := fmt.Sprintf("a number from 1 to %d", k.most); k.val < 1 || k.val > k.most {
			out = append(out, fault.Reason{
				Code: "config_value", Message: fmt.Sprintf("%s = %d: want %s", k.key, k.val, want), Want: want, Have: fmt.Sprint(k.val), Change: "correct " + k.key,
			})
		}
	}
	return out
}
