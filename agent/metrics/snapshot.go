package metrics

import (
	"time"

	"berth/migration"
)

// Snapshot is an agent at one moment. What is not known is nil, or empty.
type Snapshot struct {
	At    time.Time
	Agent Agent
	// Migrations are all that the host conducts or conducted, as the conductor lists them.
	Migrations   []migration.Migration
	Turns        Turns
	Health       []Condition
	Host         *Host // nil while the ledger is not known
	Placement    Placement
	Audit        *Audit // nil before the first
	Certificates []Certificate
}

// Agent is the process.
type Agent struct {
	Name, Mode, Version string
	Started             time.Time
	Ready               bool // as /readyz says it
	Disabled            bool // an operator lets no new guests come
}

// Turns are how many guests are on their way to and from the host, and how many may be; 0
// for no bound.
type Turns struct {
	Inbound, MaxInbound   int
	Outbound, MaxOutbound int
}

// Condition is one thing that the agent depends on.
type Condition struct {
	Part  string
	OK    bool
	Since time.Time // that it is so
}

// Host is what there is, and what of it is claimed.
type Host struct {
	Resources []Resource
	Cells     []Cell
	Devices   []Devices
	Claims    map[ClaimKind]int
	Instances int // that the ledger has
	Unclaimed int // guests that run without a claim
	Forced    int // guests whose claim does not fit
	Doubled   int // CPUs, devices and pools that are promised more often than they are there
}

// Resource is an amount by Placement's class, in its unit.
type Resource struct {
	Class                          string
	Capacity, Reserved, Used, Free int64
	Ratio                          float64
}

// Cell is a NUMA cell of the host.
type Cell struct {
	ID                       string
	MemoryBytes, MemoryUsed  int64 // of guests that are bound to the cell
	Dedicated, DedicatedFree int   // CPUs
	Shared, SharedVCPUs      int   // CPUs, and the vCPUs that float over them
	Instances                int
	Pages                    []Pages
}

// Pages are a cell's of one size.
type Pages struct {
	Size                        string
	Total, Reserved, Used, Free int64
}

// Devices are those of a class, as Placement counts them, that guests may have or have.
type Devices struct {
	Cell               string // empty where the host does not say, and for mediated devices
	Class              string
	Total, Used, Unfit int64 // unfit ones are in the total
}

// ClaimKind is a claim's kind and state, as the ledger spells them.
type ClaimKind struct{ Kind, State string }

// Placement is what this agent has asked of Placement since it began, and how equal it is
// to the host.
type Placement struct {
	Calls      []Calls
	Conflicts  map[string]int64 // answers of 409, by what they mean
	Requests   int64            // repeats included
	Retries    int64
	Races      int64
	InDoubt    int64 // writes whose outcome stayed unknown
	Generation int   // of the host's provider
	SyncedAt   time.Time
	Waiting    bool // its shape is not the wanted one yet
}

// Calls are those of one method, route and status.
type Calls struct {
	Method, Route, Status string // "000" where there was no answer
	Count                 int64
	Took                  time.Duration // all together
}

// Audit is the last comparison of ledger, libvirt and Placement.
type Audit struct {
	At       time.Time
	Healed   int
	Verdicts map[string]int // rows by verdict
	Silent   int            // parties that did not answer
}

// Certificate is one that this host shows, or that signed it.
type Certificate struct {
	Use      string // "host", "authority"
	Name     string
	NotAfter time.Time
}
