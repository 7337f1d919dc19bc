package options

import (
	"fmt"

	"berth/internal/fault"
)

// maxParallel is the most that QEMU's multifd-channels takes.
const maxParallel = 255

// Validate gives what is wrong with options by themselves, whatever guest and hosts; nil
// where nothing is.
func (o Live) Validate() []fault.Reason {
	var reasons []fault.Reason
	bad := func(code, message string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message})
	}
	if o.TimeoutAction != "" && o.TimeoutAction != ActionAbort {
		bad("timeout_action", "timeout action "+string(o.TimeoutAction)+": want abort")
	}
	if o.Timeout < 0 || o.StallTimeout < 0 || o.MaxDowntime < 0 {
		bad("negative_duration", "timeout, stall timeout and maximum downtime cannot be negative")
	}
	if o.Parallel < 0 || o.Parallel > maxParallel {
		bad("parallel_connections", fmt.Sprintf("parallel connections %d: want 0 to %d", o.Parallel, maxParallel))
	}
	return reasons
}
