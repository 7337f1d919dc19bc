package migration

// Status is a migration's status as Nova spells it; statuses has what each means, and
// transitions which may follow which.
type Status string

// The statuses.
const (
	StatusAccepted      Status = "accepted"
	StatusQueued        Status = "queued"
	StatusPreparing     Status = "preparing"
	StatusRunning       Status = "running"
	StatusPostCopy      Status = "running (post-copy)" // Nova's spelling
	StatusPreMigrating  Status = "pre-migrating"
	StatusMigrating     Status = "migrating"
	StatusPostMigrating Status = "post-migrating"
	StatusFinished      Status = "finished"
	StatusConfirming    Status = "confirming"
	StatusReverting     Status = "reverting"
	StatusCompleted     Status = "completed"
	StatusConfirmed     Status = "confirmed"
	StatusReverted      Status = "reverted"
	StatusDone          Status = "done"
	StatusCancelled     Status = "cancelled"
	StatusFailed        Status = "failed"
	StatusError         Status = "error"
)

// Stage is a part of a migration. Each but StageFinished is a task of its own, with a
// journal of its own under the migration's next attempt.
//
//	stage     begins                                   ends in
//	move      with the request; again for each         done or undone, and over; finished;
//	          destination that refuses                 revert, where the guest cannot live there
//	finished  with the last step of a cold move or a   confirm, revert: by somebody's word, or
//	          resize; no task, nothing is done         confirm by itself when its time is over
//	confirm   by that word; only forward               over
//	revert    by that word, or by itself               over; finished, where it was undone
type Stage string

// The stages.
const (
	StageMove     Stage = ""
	StageFinished Stage = "finished"
	StageConfirm  Stage = "confirm"
	StageRevert   Stage = "revert"
)
