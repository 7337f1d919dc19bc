package claims

import (
	"context"
	"io"
	"log/slog"
	"time"

	"berth/internal/runtime"
	"berth/internal/store"
	"berth/topology"
)

// Store is where the ledger lives: store.DB, or storetest.Memory.
type Store interface {
	// Enqueue orders mutations for one atomic commit and never blocks on a disk.
	Enqueue(mutations ...store.Mutation) *store.Pending
	// List gives a bucket's records by key.
	List(ctx context.Context, bucket string) (map[string][]byte, error)
}

// Options are what a tracker is made of.
type Options struct {
	Store        Store
	Runtime      runtime.Runtime
	Host         string        // this host's provider name: holder of its tokens
	Capacity     Capacity      // may be set later
	DefaultLease time.Duration // of a claim that asks for none; 0 for one minute
	Logger       *slog.Logger  // nil for slog.Default()
	Random       io.Reader     // for claim ids and tickets; nil for crypto/rand
}

// Ref names one verb of one attempt of one migration; it has the fields of
// migration.Ref in their order, so that one converts to the other.
type Ref struct {
	Migration string `json:"migration"`
	Instance  string `json:"instance"`
	Attempt   int    `json:"attempt"`
	Step      string `json:"step"`
}

// Request asks for a claim.
type Request struct {
	Owner     Owner
	Resources topology.Resources
	Step      string            // the verb's step, for tombstones; "" for StepClaim
	Context   *MigrationContext // recorded with the claim, in one commit
	Lease     time.Duration     // 0 for the tracker's default
}

// StepClaim is the step that Claim and Abort take when none is named.
const StepClaim = "claim"

// Tracker is the process-wide claim lock and the ledger behind it.
type Tracker struct{}
