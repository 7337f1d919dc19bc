package migration

import (
	"cmp"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration/converge"
	"berth/migration/options"
	"berth/migration/task"
)

// Outcome says what a migration came to. It is empty while nothing is settled.
type Outcome string

// The outcomes. In doubt is no end: the conductor keeps asking, and goes on
// when whoever did not answer comes back.
const (
	OutcomeNone      Outcome = ""
	OutcomeCompleted Outcome = "completed" // the guest is at the destination
	OutcomeRefused   Outcome = "refused"   // no destination would take it; no guest, disk or allocation was touched
	OutcomeUndone    Outcome = "undone"    // everything was put back
	OutcomeReverted  Outcome = "reverted"  // on demand, after it had finished: the guest is what and where it was
	OutcomeInDoubt   Outcome = "in doubt"  // cannot be decided at present; Error says why
)

// The types of migrations, Nova's migration_type. Nova keeps no migration of a rebuild
// on the same host; its claim calls it so.
const (
	TypeLiveMigration = "live-migration"
	TypeMigration     = "migration" // cold, to another host
	TypeResize        = "resize"
	TypeRebuild       = "rebuild" // TypeEvacuation stands in evacuation.go
)

// Migration is the record of one move. Field names are Nova's where Nova has
// the same thing. Durations are nanoseconds in JSON.
type Migration struct {
	UUID          string `json:"uuid"` // also the migration consumer in Placement
	InstanceUUID  string `json:"instance_uuid"`
	InstanceName  string `json:"instance_name"`
	SourceCompute string `json:"source_compute"`
	// DestCompute is the destination of the current attempt; empty before one
	// is chosen.
	DestCompute   string  `json:"dest_compute"`
	MigrationType string  `json:"migration_type"`
	Status        Status  `json:"status"`
	Outcome       Outcome `json:"outcome"`
	// Attempt counts from 1: one for each destination tried, and one for each
	// confirmation and each revert that was begun.
	Attempt   int       `json:"attempt"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Options   Options   `json:"options"`
	// OptionsFrom says of each option, by its name in JSON, who said it. Nil in records of
	// agents that did not keep it.
	OptionsFrom map[string]options.From `json:"options_from,omitempty"`
	// Priority orders those that wait; see PriorityUser.
	Priority int `json:"priority,omitempty"`
	// Waits is why it does not go on at present though nothing is wrong: what it waits for,
	// and how many are before it. Nil while it goes on.
	Waits []fault.Reason `json:"waits,omitempty"`
	// Waited is for how long it has waited for its turns in all.
	Waited time.Duration `json:"waited,omitempty"`
	// Control is what was done about a transfer that did not converge, or was asked for while
	// it ran, oldest first; the last MostControls of them.
	Control []Control `json:"control,omitempty"`

	// Stage is which part of the migration the attempt is; StageMove in records of
	// agents that knew live migrations only.
	Stage Stage `json:"stage,omitempty"`
	// InPlace: the current attempt changes the guest on the host that it is on.
	InPlace bool `json:"in_place,omitempty"`
	// Conductor is the host whose agent conducts; empty for the source, and in records of
	// agents that knew no other.
	Conductor string `json:"conductor,omitempty"`
	// ShareNothing: the two hosts of the move need not reach each other.
	ShareNothing bool `json:"share_nothing,omitempty"`
	// Way is how the disks of the current attempt go, once that is decided, and WayReason
	// why not straight; of a move that shares nothing only.
	Way       Way    `json:"way,omitempty"`
	WayReason string `json:"way_reason,omitempty"`
	// Queue is the uuid of the drain, or of the evacuation of a host, that began it; empty for
	// a move that was asked for by itself.
	Queue string `json:"queue,omitempty"`
	// By is who asked for it, of a drain's who asked for that; empty in records of agents that
	// kept nobody.
	By string `json:"by,omitempty"`
	// Moved is the attempt that brought the guest or changed it, and MoveSteps are its
	// steps, once it is finished; 0 and none before.
	Moved     int          `json:"moved_by_attempt,omitempty"`
	MoveSteps []StepRecord `json:"move_steps,omitempty"`
	// OldFlavor and NewFlavor are names, of every move that is no live migration; equal
	// where the flavor stays. NewImage is what a rebuild boots from.
	OldFlavor string `json:"old_instance_type,omitempty"`
	NewFlavor string `json:"new_instance_type,omitempty"`
	NewImage  string `json:"new_image,omitempty"`
	// Pulled: the guest did not shut itself down in time at some point of it, and its plug
	// was pulled: its filesystems are as after a power failure.
	Pulled bool `json:"plug_pulled,omitempty"`
	// ConfirmBy is when a finished migration is confirmed by itself, on the wall clock;
	// zero for never. The wait itself goes by the boot clock, anew after a reboot.
	ConfirmBy time.Time `json:"confirm_by,omitzero"`
	// Unfit is why the guest could not be made live at its destination, so that it is
	// taken back without anybody's word; nil where it could.
	Unfit *task.Error `json:"finish_error,omitempty"`

	// Phase is the direction: doing, undoing, done, undone. Step is the step
	// that is being done or undone; empty when the migration is over.
	Phase task.Phase `json:"phase"`
	Step  string     `json:"step"`
	// Steps of the current or last attempt, in order.
	Steps []StepRecord `json:"steps"`
	// Refusals are the attempts before this one, and who refused them why.
	Refusals []Refusal `json:"refusals,omitempty"`

	// Progress is the last seen of the stream; zero before it.
	Progress Progress `json:"progress"`
	// HandoverDowntime is what commit and resume add to the guest's pause: from
	// the source's domain seen stopped until the destination had durably accepted
	// the token and resumed. 0 until measured; not measured over a host's reboot.
	HandoverDowntime time.Duration `json:"handover_downtime"`

	// Evacuation is what an evacuation adds; nil of other types.
	Evacuation *Evacuation `json:"evacuation,omitempty"`

	// Deadline is when the current attempt is given up, where it still can be, on the
	// wall clock; the attempt itself goes by the boot clock. Zero in records of agents
	// that knew none.
	Deadline time.Time `json:"deadline,omitzero"`
	// Settled is an operator's word by which the move was decided; nil for none.
	Settled *Settlement `json:"settled,omitempty"`

	// Unasked are the hosts that did not answer when the last move of a guest was looked for,
	// and may remember a later one; none in what is kept.
	Unasked []string `json:"unasked_hosts,omitempty"`

	// AbortRequested: somebody asked for an abort in time.
	AbortRequested bool `json:"abort_requested,omitempty"`
	// Error is why the migration was undone, or cannot go on; of a finished one why its
	// last revert was given up. Nil for none of them.
	Error *task.Error `json:"error,omitempty"`
}

// Control is one thing that was done to a transfer on its way.
type Control struct {
	At        time.Time       `json:"at"`
	Action    converge.Action `json:"action"`
	By        string          `json:"by,omitempty"`              // who asked for it; empty for the schedule
	Done      bool            `json:"done"`                      // false where it was only observed, or failed
	Error     string          `json:"error,omitempty"`           // why it failed
	Bandwidth uint64          `json:"bandwidth_bytes,omitempty"` // of a bound that somebody set
}

// MostControls bounds Migration.Control.
const MostControls = 64

// The priorities of moves that wait for their turn: the higher goes first, and of two equal
// ones the older.
const (
	PriorityMaintenance = 20
	PriorityUser        = 50 // where nobody says
	PriorityDrain       = 100
	PriorityUrgent      = 1000
)

// StepRecord is one step as people see it.
type StepRecord struct {
	Name  string         `json:"name"`
	State task.StepPhase `json:"state"`
	Begun time.Time      `json:"begun,omitzero"`
	Ended time.Time      `json:"ended,omitzero"`
	// Duration is Ended − Begun on the wall clock; 0 while it lasts.
	Duration time.Duration `json:"duration"`
	Tries    int           `json:"tries,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// Refusal is one destination that was tried and did not take the guest.
type Refusal struct {
	Attempt     int            `json:"attempt"`
	DestCompute string         `json:"dest_compute"`
	Kind        fault.Kind     `json:"kind"`
	Message     string         `json:"message"`
	Reasons     []fault.Reason `json:"reasons,omitempty"`
	// Step is the one that failed; empty from agents that did not keep it yet.
	Step string `json:"step,omitempty"`
	// Left: the host did not answer, and what was made there is still to be undone. The next
	// destination does not wait for it.
	Left bool `json:"left,omitempty"`
	// GivenUp is an operator's word that the host will never come back: what was left there
	// is not undone. Nil for none.
	GivenUp *Settlement `json:"given_up,omitempty"`
}

// ConductedBy is the host whose agent conducts the migration.
func (m Migration) ConductedBy() string { return cmp.Or(m.Conductor, m.SourceCompute) }

// Concerns reports whether a host is one of the two of the migration, or a destination
// before the present one: of its attempt there something may be left.
func (m Migration) Concerns(host string) bool {
	return host == m.SourceCompute || host == m.DestCompute ||
		slices.ContainsFunc(m.Refusals, func(r Refusal) bool { return r.DestCompute == host })
}

// Done says whether the migration is over: nothing of it is left to do or undo.
func (m Migration) Done() bool {
	switch m.Outcome {
	case OutcomeCompleted, OutcomeRefused, OutcomeUndone, OutcomeReverted:
		return true
	}
	return false
}

// Err is how the migration ended, as an error for whoever waited for it: nil
// when it completed, was confirmed or reverted, and while it is finished and waits for
// one of the two; fault.Undone when it failed and was put back; the kind of
// the refusal when no destination would take the guest; fault.InDoubt when it
// cannot go on at present, or its undo cannot; nil too while it simply goes on.
func (m Migration) Err() error {
	cause := m.Error.Err()
	switch m.Outcome {
	case OutcomeRefused:
		return cause
	case OutcomeUndone:
		return fault.New(fault.Undone, "migration %s of %s was undone: %w", m.UUID, m.InstanceUUID, cause)
	}
	switch {
	case m.Phase == task.Undoing && m.Status == StatusError:
		return fault.New(fault.InDoubt, "migration %s of %s is still being undone: %w", m.UUID, m.InstanceUUID, cause)
	case m.Outcome == OutcomeInDoubt:
		return fault.New(fault.InDoubt, "migration %s of %s cannot go on: %w", m.UUID, m.InstanceUUID, cause)
	}
	return nil
}
