package migration

// The steps of a live migration, in order. The names are in journals and in the
// tombstones of hosts.
const (
	StepInspectSource     = "inspect_source"
	StepChooseDestination = "choose_destination"
	StepCheckDestination  = "check_destination"
	StepClaim             = "claim"
	StepSwapAllocations   = "swap_allocations"
	StepCheckSource       = "check_source"
	StepRecordContext     = "record_context"
	StepPreLiveMigration  = "pre_live_migration"
	StepStream            = "stream"
	StepPostCopy          = "post_copy" // the second job begins, where the first was given up for it
	StepCommit            = "commit"
	StepAcceptToken       = "accept_token"
	StepFollowPostCopy    = "follow_post_copy" // until all memory is there
	StepFinishDestination = "finish_destination"
	StepCleanUpSource     = "clean_up_source"
	StepDeleteAllocation  = "delete_migration_allocation"
)

// The steps of a cold move that a live migration has not. The names are in journals and
// in the tombstones of hosts.
const (
	StepPrepResize   = "prep_resize"
	StepPowerOff     = "power_off"
	StepShipDisks    = "ship_disks"
	StepHandOver     = "hand_over"
	StepAcceptHanded = "accept_handed"
	StepFinishResize = "finish_resize"
)

// The steps of a change in place.
const (
	StepPrepChange   = "prep_change"
	StepApplyChange  = "apply_change"
	StepStartChanged = "start_changed"
	StepFinishChange = "finish_change"
)

// The steps of a confirmation.
const (
	StepConfirmSource      = "confirm_source"
	StepConfirmDestination = "confirm_destination"
)

// The steps of a revert.
const (
	StepAwaitReturn       = "await_return"
	StepRevertPowerOff    = "revert_power_off"
	StepHandBack          = "hand_back"
	StepFinishRevert      = "finish_revert"
	StepCleanUpReverted   = "clean_up_reverted"
	StepUnapplyChange     = "unapply_change"
	StepPowerOn           = "power_on"
	StepReleaseClaim      = "release_claim"
	StepRevertAllocations = "revert_allocations"
)

// The steps that only a move between hosts that share nothing has. The names are in
// journals and in the tombstones of hosts.
const (
	StepCopyInstance     = "copy_instance"
	StepSnapshotDisks    = "snapshot_disks"
	StepDisconnectSource = "disconnect_source"
	StepShowInstance     = "show_instance"
	StepHideInstance     = "hide_instance"

	// Of every revert to another host that somebody asked for.
	StepCarryVolumes = "carry_volumes"
)

// The steps of an evacuation that other moves have not. The names are in journals and in the
// tombstones of hosts.
const (
	StepLost             = "lost"
	StepPrepEvacuation   = "prep_evacuation"
	StepTakeOver         = "take_over"
	StepAcceptEvacuated  = "accept_evacuated"
	StepFinishEvacuation = "finish_evacuation"
)

// Story is one list of steps, as it runs.
type Story struct {
	Name  string `json:"story"`
	Type  string `json:"migration_type"` // of one that several types share: resize
	Stage Stage  `json:"stage"`
	// InPlace: source and destination are one host. ShareNothing: they are two that need
	// not reach each other, and any host's agent may conduct.
	InPlace      bool        `json:"in_place"`
	ShareNothing bool        `json:"share_nothing,omitempty"`
	Steps        []StoryStep `json:"steps"`
}

// StoryStep is one step of a story.
type StoryStep struct {
	Name   string `json:"step"`
	Asks   string `json:"asks"` // source, destination, placement, fleet
	Status Status `json:"status"`
	Undo   string `json:"undo"` // empty where there is nothing to undo
	// MayLag: while its undo fails, those of earlier steps go on.
	MayLag bool `json:"undo_may_lag"`
	// UndoneOnRestart: a conductor that finds it half done undoes the attempt; else it
	// does it again.
	UndoneOnRestart bool `json:"undone_on_restart"`
	// Final: from here on nobody can give it up, though it may fail and be undone.
	// Forward: it is retried until it is done, and never undone.
	Final   bool `json:"final"`
	Forward bool `json:"forward"`
}
