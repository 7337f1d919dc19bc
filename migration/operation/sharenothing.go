package operation

import (
	"berth/migration"
)

// The operations of two hosts that share nothing: neither opens a connection to the other, and a third
// host's agent may conduct.
var (
	// Disconnect takes the guest, which is off, from its networks and volumes here, so that
	// they can be connected where it goes: what its definition needs stands on record.
	// Repeated it does nothing more.
	Disconnect = Step{before(migration.Before{Lock: true, Step: StepDisconnect, Stops: true}, define[None, None]("disconnect",
		"Take a guest that is off from its networks and volumes.", migration.AccessConductor, slow, nil))}

	// Reconnect is the undo: the guest may be started here as before.
	Reconnect = Step{before(migration.Before{Undoes: StepDisconnect}, define[None, None]("reconnect",
		"Undo disconnect.", migration.AccessConductor, slow, nil))}

	// CopyInstance sets up the instance's record here, hidden: it is not listed, its token is
	// elsewhere, and nothing can be asked of it but by its migration. fault.Exists when another
	// guest here has its name, or this one lives here.
	CopyInstance = Order[migration.InstanceCopy]{before(migration.Before{Lock: true, Step: StepCopy, Manage: true}, define[migration.InstanceCopy, None]("copy-instance",
		"Set up the instance's record here, hidden.", migration.AccessConductor, Quick, nil))}

	// RemoveCopy is the undo. fault.Forbidden when the token is here.
	RemoveCopy = Step{before(migration.Before{Undoes: StepCopy}, define[None, None]("remove-copy",
		"Undo copy-instance.", migration.AccessDestination, Quick, nil))}

	// ShowInstance makes the copy here the one that is shown.
	ShowInstance = Step{define[None, None]("show-instance",
		"The copy here is the one that is shown.", migration.AccessConductor, Quick, nil)}

	// HideInstance makes the copy here the one that is not shown, after the destination's
	// is. Safe to repeat; nothing follows from it but what people see.
	HideInstance = Step{define[None, None]("hide-instance",
		"The copy here is the one that is not shown.", migration.AccessConductor, Quick, nil)}

	// ReadVolumes says what the guest, which is off, was given and lost here since it came:
	// disks by network or on storage that the other host names alike. fault.Forbidden, with
	// every reason, for a disk that cannot be taken back with it: a file of this host alone.
	ReadVolumes = Query[migration.VolumeChanges]{readOnly(before(migration.Before{Lock: true}, define[None, migration.VolumeChanges]("read-volumes",
		"What a guest was given and lost here since it came.", migration.AccessConductor, Quick, nil)))}

	// CarryVolumes makes durable, before a guest is handed back, what it was given and lost
	// where it was meanwhile; FinishRevert writes its definition by it. It ends with
	// CancelReturn.
	CarryVolumes = Order[migration.VolumeChanges]{before(migration.Before{Lock: true, Step: StepReturn}, define[migration.VolumeChanges, None]("carry-volumes",
		"Keep what a guest was given and lost where it was, for its return.", migration.AccessConductor, slow, nil))}
)
