package operation

import (
	"berth/migration"
)

// The operations of live migrations, and those of every migration. The source alone decides about the
// instance until Commit; it never goes by what another host says.
var (
	// Inspect reads the guest that is to leave: ledger, definition, disks, state.
	// fault.NotFound with the reason ReasonGuestGone when there is none; fault.Forbidden
	// when the token is not here (ReasonTokenElsewhere) or it is not managed;
	// fault.Unavailable while it is not known on which providers it is counted.
	Inspect = Query[migration.Guest]{before(migration.Before{Lock: true}, define[None, migration.Guest]("inspect",
		"Read the guest that is to leave.", migration.AccessLook, Quick, nil))}

	// CheckSource holds the destination's answer against the guest: which disks
	// must be copied, which are shared, whether the move is possible at all.
	CheckSource = define[migration.CheckAnswer, migration.SourceAnswer]("check-source",
		"Hold the destination's answer against the guest.", migration.AccessLook, Quick, nil)

	// RecordContext makes the MigrationContext durable on the source.
	RecordContext = Order[migration.Context]{before(migration.Before{Lock: true, Step: StepContext, Manage: true}, define[migration.Context, None]("record-context",
		"Make the MigrationContext durable on the source.", migration.AccessBegin, Quick, namesOfContext))}

	// DropContext is its undo.
	DropContext = Step{define[None, None]("drop-context",
		"Undo record-context.", migration.AccessForget, Quick, nil)}

	// StartStream starts the hypervisor's migration job, or adopts the one in
	// flight: there is never a second. It returns when the job is known to have
	// started (or to be over).
	StartStream = Order[migration.Stream]{before(migration.Before{Lock: true}, define[migration.Stream, None]("start-stream",
		"Start the hypervisor's job, or adopt the one in flight.", migration.AccessConductor, slow, nil))}

	// StreamStatus is the job and the domain at one moment; cheap, polled.
	StreamStatus = Query[migration.StreamStatus]{define[None, migration.StreamStatus]("stream-status",
		"The job and the domain at one moment.", migration.AccessLook, Quick, nil)}

	// TuneStream changes bounds of the job in flight.
	TuneStream = Order[migration.Tuning]{define[migration.Tuning, None]("tune-stream",
		"Change bounds of the job in flight.", migration.AccessConductor, Quick, nil)}

	// Commit is the point of no return: with its own domain seen stopped as
	// `shut off (migrated)`, or gone where it was transient, the source durably
	// surrenders the token. fault.Forbidden after Reclaim, or while the domain
	// still has its memory.
	Commit = Query[migration.Commit]{before(migration.Before{Lock: true}, define[None, migration.Commit]("commit",
		"The point of no return: the token leaves the source.", migration.AccessConductor, Quick, nil))}

	// Reclaim is the other decision, and the undo of StartStream: it aborts the
	// job, waits for its end, sees that the source's domain still has its
	// memory, durably refuses any later Commit of this attempt, and resumes the
	// guest unless its user had paused it. fault.Forbidden when the domain is
	// `shut off (migrated)`, gone, or the token has left: then the only
	// decision left is Commit. fault.Unavailable when the hypervisor does not
	// answer: nothing is decided, ask again. Where no stream was ever started
	// for the attempt, or the guest was shut off otherwise (shutdown, destroyed,
	// crashed), it refuses later commits and succeeds: the guest stays here.
	Reclaim = Step{define[None, None]("reclaim",
		"Abort the job and keep the guest.", migration.AccessConductor, slow, nil)}

	// CleanUpSource removes what the guest left behind after the destination
	// answered bound: definition, disks that moved, context, claim; it runs the
	// hooks of post_live_migration. Each removal happens only after Commit.
	CleanUpSource = Step{before(migration.Before{Lock: true}, define[None, None]("clean-up-source",
		"Remove what the guest left behind.", migration.AccessConductor, slow, nil))}

	// CheckDestination says whether the guest could come, with every reason why
	// not in one answer (fault.DoesNotFit, fault.Forbidden, fault.Exists). It
	// takes no claim and changes nothing.
	CheckDestination = readOnly(define[migration.CheckRequest, migration.CheckAnswer]("check-destination",
		"Could the guest come; changes nothing.", migration.AccessDestination, Quick, func(c migration.CheckRequest) migration.Named {
			return migration.Named{Source: c.Source.Name, Evacuates: c.Kind == migration.TypeEvacuation}
		}))

	// Claim holds the guest's resources under the claim lock, with its
	// MigrationContext, durably, and issues the stream's ticket. The claim is
	// pending: RenewClaim keeps it.
	Claim = before(migration.Before{Lock: true, Step: StepClaim, Manage: true}, define[migration.ClaimRequest, migration.ClaimAnswer]("claim",
		"Hold the guest's resources, durably.", migration.AccessDestination, Quick, func(c migration.ClaimRequest) migration.Named {
			n := namesOfContext(c.Context)
			n.Evacuates = c.Kind == migration.TypeEvacuation
			return n
		}))

	RenewClaim = Step{define[None, None]("renew-claim",
		"Keep a pending claim.", migration.AccessDestination, Quick, nil)}

	// AbortClaim is the undo: revokes the ticket and removes the claim once
	// nothing can arrive for it.
	AbortClaim = Step{define[None, None]("abort-claim",
		"Undo claim.", migration.AccessDestination, slow, nil)}

	// PreLiveMigration prepares the host for the guest: directories, disks made
	// exclusively and marked as this migration's, networks, operator hooks
	// (pre_live_migration); then makes the claim arriving. It answers with the
	// documents for the destination, written from the destination's own claim.
	PreLiveMigration = before(migration.Before{Lock: true, Step: StepPreLiveMigration, Stops: true, Manage: true}, define[migration.PreLiveRequest, migration.Prepared]("pre-live-migration",
		"Prepare the host for the guest.", migration.AccessDestination, slow, func(p migration.PreLiveRequest) migration.Named { return migration.Named{Source: p.Source} }))

	// RollbackPreLiveMigration is the undo, after a half-done one too: ends a
	// copy that arrived and is not the owner, removes exactly what was made,
	// runs rollback_live_migration_at_destination. Refused (fault.Forbidden)
	// when the token is here.
	RollbackPreLiveMigration = Step{before(migration.Before{Undoes: StepPreLiveMigration}, define[None, None]("rollback-pre-live-migration",
		"Undo pre-live-migration.", migration.AccessDestination, slow, nil))}

	// AcceptToken durably accepts the token named by the commit and then
	// resumes the guest (unless its user had paused it). Refused unless the
	// commit names the migration and attempt that this host's claim names.
	AcceptToken = Order[migration.Commit]{before(migration.Before{Lock: true}, define[migration.Commit, None]("accept-token",
		"Accept the token, then resume the guest.", migration.AccessDestination, slow, namesOfCommit))}

	// DestinationStatus is what this host has of the migration at one moment:
	// domain, claim and token. It changes nothing. Asked only where the source's
	// own state does not settle what became of the guest (law 11's table).
	DestinationStatus = Query[migration.DestinationStatus]{readOnly(define[None, migration.DestinationStatus]("destination-status",
		"What the destination has of the migration at one moment.", migration.AccessDestination, Quick, nil))}

	// FinishDestination binds the claim, makes the definition persistent,
	// announces the guest, runs post_live_migration_at_destination. Its success
	// is the durable answer *bound*.
	FinishDestination = Step{before(migration.Before{Lock: true}, define[None, None]("finish-destination",
		"Bind the claim, define, announce.", migration.AccessDestination, slow, nil))}
)
