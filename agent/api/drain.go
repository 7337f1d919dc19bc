package api

import (
	"context"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// Drains empty hosts: this one, or one that is dead, by the records of the fleet. One is
// active for a host at a time. host is the name of the one that is emptied, and empty for
// this one.
type Drains interface {
	// Plan says of each guest where it would go, how, or every blocker. It changes nothing.
	Plan(ctx context.Context, r DrainRequest) (DrainPlan, error)
	// Begin is durable when it returns. The host is disabled before the first move. A repeat
	// with the same uuid gives the one that has begun; fault.Exists while another goes on.
	Begin(ctx context.Context, r DrainRequest, by string) (Drain, error)
	// Get gives the newest drain of a host; fault.NotFound for none.
	Get(ctx context.Context, host string) (Drain, error)
	// Abort begins no further move and gives up those that can be; those that have passed
	// their point of no return are finished. The host gets back whether it was disabled.
	Abort(ctx context.Context, host, by string) (Drain, error)
	// List gives the drains that this host does or did, newest first.
	List(ctx context.Context) ([]Drain, error)
	// Watch gives the newest drain of a host now and at each change, and closes the channel
	// when it is over or ctx ends.
	Watch(ctx context.Context, host string) (<-chan Drain, error)
}

// DrainRequest asks for a host to be emptied.
type DrainRequest struct {
	UUID string `json:"uuid,omitempty"` // makes it safe to repeat; not said of a plan
	Host string `json:"host,omitempty"` // to be emptied; empty for the one that is asked
	// Evacuate: Host is dead, and its guests are evacuated. Else Host is the one that is asked.
	Evacuate bool     `json:"evacuate,omitempty"`
	To       []string `json:"dest_computes,omitempty"` // only there; empty for wherever Placement offers
	// Cold moves those cold that cannot go live; without it they stay. Not of an evacuation.
	Cold bool `json:"cold,omitempty"`
	// Priorities are of guests by name or uuid: a higher one goes earlier. 0 where none is given.
	Priorities map[string]int `json:"priorities,omitempty"`

	// The others are of evacuations; see Migrate.
	Stopped    bool             `json:"stopped,omitempty"`
	AcceptLoss bool             `json:"accept_data_loss,omitempty"`
	Image      *migration.Image `json:"image,omitempty"`
}

// DrainHow is how a guest leaves.
type DrainHow string

// The ways.
const (
	DrainLive     DrainHow = "live"
	DrainCold     DrainHow = "cold"
	DrainEvacuate DrainHow = "evacuate"
	DrainStays    DrainHow = "stays" // not at all; the reasons say why
)

// DrainPlan is what a drain would do. It holds nothing: by the time of a move another guest
// may have the room.
type DrainPlan struct {
	Host     string         `json:"host"`
	Evacuate bool           `json:"evacuate,omitempty"`
	Guests   []PlannedGuest `json:"guests"` // in the order in which they would go; those that stay last
	// MaxOutbound is how many go at once, MaxInbound how many come to one host at once, where
	// that host is set as this one.
	MaxOutbound int       `json:"max_outbound"`
	MaxInbound  int       `json:"max_inbound"`
	Disabled    *Disabled `json:"disabled"` // null for a host that takes guests until the drain begins
	// Estimate is how long it would take, by what moves from here took; 0 for unknown.
	Estimate time.Duration `json:"estimate,omitempty"` // nanoseconds
}

// PlannedGuest is one guest of a plan.
type PlannedGuest struct {
	Instance string   `json:"instance_uuid"`
	Name     string   `json:"instance_name"`
	State    string   `json:"state"` // of its domain, "running"; of a dead host's guest that of the record
	How      DrainHow `json:"how"`
	To       string   `json:"dest_compute,omitempty"` // where it would go now; the move itself decides
	Priority int      `json:"priority,omitempty"`
	// Blockers are why it stays, or cannot go live where it goes cold.
	Blockers []fault.Reason `json:"blockers"`
	// Lost are the disks whose data an evacuation loses, by target.
	Lost []string `json:"lost_disks,omitempty"`
}

// DrainState is where a drain is.
type DrainState string

// The states. The last three are the end.
const (
	DrainRunning    DrainState = "running"
	DrainAborting   DrainState = "aborting"
	DrainDone       DrainState = "done"       // nothing is left
	DrainIncomplete DrainState = "incomplete" // something was left behind
	DrainAborted    DrainState = "aborted"
)

// Over reports whether nothing more happens by itself.
func (s DrainState) Over() bool {
	return s == DrainDone || s == DrainIncomplete || s == DrainAborted
}

// Drain is the record of a drain.
type Drain struct {
	UUID     string         `json:"uuid"`
	Host     string         `json:"host"` // that is emptied
	Evacuate bool           `json:"evacuate,omitempty"`
	State    DrainState     `json:"state"`
	By       string         `json:"by"` // who asked for it; "shutdown" for the machine's
	BegunAt  time.Time      `json:"begun_at"`
	EndedAt  time.Time      `json:"ended_at,omitzero"`
	Guests   []DrainedGuest `json:"guests"` // in the order in which they go, or went
	// Left is how long it still takes, by what its moves took so far; 0 for unknown.
	Left time.Duration `json:"left,omitempty"` // nanoseconds
}

// DrainedState is where one guest of a drain is.
type DrainedState string

// The states of a guest.
const (
	DrainedWaiting DrainedState = "waiting"
	DrainedMoving  DrainedState = "moving"
	DrainedMoved   DrainedState = "moved"
	DrainedFailed  DrainedState = "failed" // all attempts are used up
	DrainedStays   DrainedState = "stays"  // it cannot be moved, and was not tried
	DrainedGone    DrainedState = "gone"   // it left, or was deleted, without the drain
)

// DrainedGuest is one guest of a drain.
type DrainedGuest struct {
	Instance  string         `json:"instance_uuid"`
	Name      string         `json:"instance_name"`
	How       DrainHow       `json:"how"`
	State     DrainedState   `json:"state"`
	To        string         `json:"dest_compute,omitempty"`
	Migration string         `json:"migration,omitempty"` // the newest
	Attempts  int            `json:"attempts"`            // that have failed
	BegunAt   time.Time      `json:"begun_at,omitzero"`   // of the newest attempt
	EndedAt   time.Time      `json:"ended_at,omitzero"`
	Reasons   []fault.Reason `json:"reasons"` // why it waits, failed or stays
}
