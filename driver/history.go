package driver

import "context"

// Historian is a hypervisor that remembers why a domain ended for longer than its
// daemon lives. It is an ability apart: found by its type.
type Historian interface {
	// LastEnd is why the domain's last run ended, as the hypervisor itself has written
	// it down: ReasonMigrated, ReasonDestroyed, …. fault.NotFound where no end of that
	// run is on record: the domain runs, or the daemon died before it could write.
	// fault.Unavailable where the record cannot be read.
	LastEnd(ctx context.Context, uuid string) (Reason, error)
}
