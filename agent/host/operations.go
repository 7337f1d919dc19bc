package host

import (
	"context"

	"berth/migration"
	"berth/migration/operation"
)

// handlers are the operations that this host does as values. A new one is a line here.
func (h *Host) handlers() operation.Handlers {
	return operation.Handle(
		operation.PrepEvacuation.By(h.prepEvacuation),
		operation.RollbackPrepEvacuation.By(h.rollbackPrepEvacuation),
		operation.AcceptEvacuated.By(h.acceptCommitted),
		operation.FinishEvacuation.By(h.finishEvacuation),
	)
}

// Ask implements migration.Host: it does for every operation what every operation needs. The
// conductor of the attempt is not silent, and an error names the operation, what it is of and the
// host.
func (h *Host) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	h.hear(ref)
	out, err := h.operations.Ask(ctx, ref, op, in)
	return out, wrap(err, "%s of instance %s (migration %s, attempt %d) on %s", op.Name, ref.Instance, ref.Migration, ref.Attempt, h.o.Name)
}
