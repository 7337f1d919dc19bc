package hooks

import "slices"

// The phases of a live migration, in Nova's names.
const (
	PreLiveMigration                   = "pre_live_migration"
	RollbackLiveMigrationAtDestination = "rollback_live_migration_at_destination"
	PostLiveMigration                  = "post_live_migration"
	PostLiveMigrationAtDestination     = "post_live_migration_at_destination"
)

// The phases of a resize and of a cold migration, in the names of Nova's compute
// manager; where Nova has no name for an undo it begins with rollback.
const (
	PrepResize             = "prep_resize"
	RollbackPrepResize     = "rollback_prep_resize"
	ResizeInstance         = "resize_instance"
	RollbackResizeInstance = "rollback_resize_instance"
	FinishResize           = "finish_resize"
	ConfirmResize          = "confirm_resize"
	RevertResize           = "revert_resize"
	FinishRevertResize     = "finish_revert_resize"
)

// The phases of a move between hosts that share nothing besides those of a resize, in
// Nova's name of the task.
const (
	PrepSnapshotBasedResizeAtSource         = "prep_snapshot_based_resize_at_source"
	RollbackPrepSnapshotBasedResizeAtSource = "rollback_prep_snapshot_based_resize_at_source"
)

// The phases of a rebuild.
const (
	PreRebuildInstance      = "pre_rebuild_instance"
	RollbackRebuildInstance = "rollback_rebuild_instance"
	PostRebuildInstance     = "post_rebuild_instance"
)

// The phases of an evacuation. Fence is run before any, on the host that is asked to fence the
// dead one: a hook that succeeds is the proof that it is off.
const (
	Fence            = "fence"
	PreEvacuate      = "pre_evacuate"
	RollbackEvacuate = "rollback_evacuate"
	PostEvacuate     = "post_evacuate"
)

// Failing is what it means that a hook of a phase fails.
type Failing string

const (
	// Undoes: the step has failed, and the story is undone.
	Undoes Failing = "the story is undone"
	// Repeats: an undo is asked for until it succeeds.
	Repeats Failing = "the undo is tried again"
	// Alive: there is no story yet. A fencing hook that fails proves nothing.
	Alive Failing = "the host is not taken for dead"
	// Told: the story is past its point of no return and goes on. Exit status 75 alone
	// is answered by another try.
	Told Failing = "told in the log; exit status 75 is tried again"
)

// Phase is one point of a story at which hooks run.
type Phase struct {
	Name string
	Host string // on which host they run
	When string
	// Failing says what comes of a hook that fails, where its setting is on_failure = "fail".
	Failing Failing
	// After is the phase whose answers these hooks are given; empty for none. Of an undo
	// it is what it undoes.
	After string
}

// Forward: nothing is undone for a hook of this phase.
func (p Phase) Forward() bool { return p.Failing == Told }

const (
	atSource      = "source"
	atDestination = "destination"
	atOwn         = "the guest's"
	atAsked       = "the one that was asked"
)

// phases are all of them, in the order of their stories.
var phases = []Phase{
	{PreLiveMigration, atDestination, "disks are made, before anything is sent", Undoes, ""},
	{RollbackLiveMigrationAtDestination, atDestination, "the copy has ended and its disks are removed", Repeats, PreLiveMigration},
	{PostLiveMigrationAtDestination, atDestination, "the guest runs there and its claim is bound", Told, PreLiveMigration},
	{PostLiveMigration, atSource, "definition and copied disks are removed", Told, ""},

	{PrepResize, atDestination, "the claim is held, before the guest is powered off", Undoes, ""},
	{RollbackPrepResize, atDestination, "what was prepared is removed", Repeats, PrepResize},
	{ResizeInstance, atSource, "before the guest is powered off", Undoes, ""},
	{RollbackResizeInstance, atSource, "before the guest is powered on again", Repeats, ResizeInstance},
	{PrepSnapshotBasedResizeAtSource, atSource, "the guest is off, and leaves a host with which its destination shares nothing", Undoes, ResizeInstance},
	{RollbackPrepSnapshotBasedResizeAtSource, atSource, "before the guest is powered on again, or has come back and is started", Repeats, PrepSnapshotBasedResizeAtSource},
	{FinishResize, atDestination, "the guest is there, in the power state that its user had chosen", Told, PrepResize},
	{ConfirmResize, atSource, "the resize is confirmed, and the old half is removed", Told, ResizeInstance},
	{RevertResize, atDestination, "the guest was handed back, and is taken away", Told, PrepResize},
	{FinishRevertResize, atSource, "the guest is there again", Told, ResizeInstance},

	{PreRebuildInstance, atOwn, "the claim is held, before the guest is powered off", Undoes, ""},
	{RollbackRebuildInstance, atOwn, "what was prepared is removed", Repeats, PreRebuildInstance},
	{PostRebuildInstance, atOwn, "the guest is there with its new image", Told, PreRebuildInstance},

	{Fence, atAsked, "a host is to be switched off, before its guests are evacuated", Alive, ""},
	{PreEvacuate, atDestination, "the claim is held and disks are made, before the guest is taken from its dead host", Undoes, ""},
	{RollbackEvacuate, atDestination, "what was prepared is removed", Repeats, PreEvacuate},
	{PostEvacuate, atDestination, "the guest is there, in the power state that its user had chosen", Told, PreEvacuate},
}

// Phases lists all phases, in the order of their stories.
func Phases() []Phase { return slices.Clone(phases) }

// PhaseOf finds a phase by its name.
func PhaseOf(name string) (Phase, bool) {
	i := slices.IndexFunc(phases, func(p Phase) bool { return p.Name == name })
	if i < 0 {
		return Phase{}, false
	}
	return phases[i], true
}

// Undo is the phase that undoes this one; empty for none.
func (p Phase) Undo() string {
	for _, u := range phases {
		if u.After == p.Name && u.Failing == Repeats {
			return u.Name
		}
	}
	return ""
}
