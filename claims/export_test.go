package claims

import "context"

// Prune is one look of Run's at tombstones past their use.
func (t *Tracker) Prune(ctx context.Context) error { return t.prune(ctx) }
