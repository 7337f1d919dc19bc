package drain

import (
	"encoding/json"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Kind is what a host is emptied of.
type Kind string

// The kinds.
const (
	KindDrain    Kind = "drain"    // the guests of this host, which lives
	KindEvacuate Kind = "evacuate" // those of a host that is dead
)

// State is where a drain is.
type State string

// The states. The last three are the end.
const (
	Running    State = "running"
	Aborting   State = "aborting"
	Done       State = "done"       // nothing is left
	Incomplete State = "incomplete" // something was left behind
	Aborted    State = "aborted"
)

// Over reports whether nothing more happens by itself.
func (s State) Over() bool { return s == Done || s == Incomplete || s == Aborted }

// Request asks for a host to be emptied.
type Request struct {
	UUID string `json:"uuid"` // empty makes one; with it the request is safe to repeat
	Host string `json:"host"` // provider's name of the one that is emptied
	Kind Kind   `json:"kind"`
	By   string `json:"by"` // who asked
	// To are the only hosts that guests go to, in order; empty for wherever Placement offers.
	To []string `json:"dest_computes,omitempty"`
	// Cold moves those guests cold that run and cannot go live; without it they stay.
	Cold bool `json:"cold,omitempty"`
	// Priorities are of guests by uuid or name: a higher one goes earlier. 0 where none is given.
	Priorities map[string]int `json:"priorities,omitempty"`
	// Shutdown: the machine goes down. Only guests with memory to lose are moved, and the drain
	// is of this boot: in the next one it is over, and the host takes guests as it did before.
	Shutdown bool `json:"shutdown,omitempty"`

	// Of evacuations; see migration.EvacuationRequest.
	Stopped    bool             `json:"stopped,omitempty"`
	AcceptLoss bool             `json:"accept_data_loss,omitempty"`
	Image      *migration.Image `json:"image,omitempty"`
}

// Drain is a drain and all its guests.
type Drain struct {
	Request
	State   State     `json:"state"`
	BegunAt time.Time `json:"begun_at"`
	EndedAt time.Time `json:"ended_at,omitzero"`
	Boot    string    `json:"boot"` // in which it was begun
	// Was is what the host was before it was closed to new guests, as Host.Open takes it;
	// Closed says that it has been, and Reopened that it was given back.
	Was      json.RawMessage `json:"was,omitempty"`
	Closed   bool            `json:"closed,omitempty"`
	Reopened bool            `json:"reopened,omitempty"`
	// Guests are in the order in which they go, or went.
	Guests []Guest `json:"-"`
	// Left is how long it still takes; 0 for unknown, and when it is over.
	Left time.Duration `json:"-"`
}

// How is how a guest leaves.
type How string

// The ways.
const (
	HowUnknown  How = "" // not asked yet
	HowLive     How = "live"
	HowCold     How = "cold" // it is off, or is shut off for it
	HowEvacuate How = "evacuate"
	HowStays    How = "stays" // not at all; the reasons say why
)

// GuestState is where a guest is; the table in the package comment has the ways.
type GuestState string

// The states of a guest.
const (
	Waiting GuestState = "waiting"
	Moving  GuestState = "moving"
	Moved   GuestState = "moved"
	Failed  GuestState = "failed"
	Stays   GuestState = "stays"
	Gone    GuestState = "gone"
)

// Guest is one guest of a drain.
type Guest struct {
	Instance string     `json:"instance_uuid"`
	Name     string     `json:"instance_name"`
	Power    string     `json:"power"` // as Present has it
	SizeMB   int64      `json:"size_mb"`
	Priority int        `json:"priority,omitempty"`
	How      How        `json:"how"`
	State    GuestState `json:"state"`
	To       string     `json:"dest_compute,omitempty"` // of the newest move; before it where it would go
	Lost     []string   `json:"lost_disks,omitempty"`   // see Way
	// Migration is the newest move, Attempts how many have failed, and Busy how often in a row
	// its destinations had it wait.
	Migration string `json:"migration,omitempty"`
	Attempts  int    `json:"attempts,omitempty"`
	Busy      int    `json:"busy,omitempty"`
	// Turn orders those that failed: a later failure goes behind. 0 for none.
	Turn int `json:"turn,omitempty"`
	// After is when it may be tried again, on the boot clock; in another boot at once.
	After   runtime.BootTime `json:"after,omitzero"`
	BegunAt time.Time        `json:"begun_at,omitzero"`
	EndedAt time.Time        `json:"ended_at,omitzero"`
	Begun   runtime.BootTime `json:"begun,omitzero"`
	// Took is how long the move took that moved it; 0 over a reboot.
	Took    time.Duration  `json:"took,omitempty"`
	Reasons []fault.Reason `json:"reasons,omitempty"` // why it waits, failed or stays

	// Of the process: what the last look said that it waits for, and of a move that is under way
	// what was last seen of it.
	waits    []fault.Reason
	asks     time.Duration // how it can leave is not asked before that, on the boot clock
	doubt    bool
	doubted  time.Duration // since when, on the boot clock
	queued   bool          // its move waits for its turn, and sends nothing
	waited   time.Duration // for how long it did, in all
	progress migration.Progress
	ended    int // the count of ends at its own; 0 where that was in another process
}

// Present is a guest that is on the host now.
type Present struct {
	Instance, Name string
	// Power is its state in the hypervisor's words; Off that it has no memory to lose.
	Power  string
	Off    bool
	SizeMB int64 // memory that a move sends; of a guest that is off its disks
	// Waits are what it waits for that ends by itself: a move that somebody has begun.
	Waits []fault.Reason
	// Blocked are what keeps it that a person has to change.
	Blocked []fault.Reason
}

// Way is how a guest would leave now.
type Way struct {
	How How
	To  string // where it would go now; empty where nobody would take it at present
	// Reasons are why it stays, why it goes cold, or why nobody takes it at present.
	Reasons []fault.Reason
	Lost    []string // targets of disks whose data an evacuation loses
}
