package host

import "context"

// Alone runs f while no verb works on an instance, for what is written of it from
// outside its verbs. It waits no longer than ctx, and then says fault.Busy.
func (h *Host) Alone(ctx context.Context, instance string, f func(ctx context.Context) error) error {
	return h.memory.Alone(ctx, instance, f)
}
