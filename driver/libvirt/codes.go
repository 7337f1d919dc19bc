package libvirt

import (
	"errors"
	"strconv"

	"berth/driver"
	"berth/internal/fault"
)

// The numbers of virErrorNumber (libvirt/virterror.h) that decisions depend on.
const (
	errInternal             = 1
	errNoMemory             = 2
	errNoSupport            = 3
	errNoConnect            = 5
	errInvalidConn          = 6
	errInvalidArg           = 8
	errOperationFailed      = 9
	errOSType               = 16
	errXML                  = 27
	errDomExist             = 28
	errOperationDenied      = 29
	errXMLDetail            = 35
	errRPC                  = 39
	errNoDomain             = 42
	errNoNetwork            = 43
	errInvalidMAC           = 44
	errAuthFailed           = 45
	errNoStoragePool        = 49
	errNoStorageVol         = 50
	errNoNodeDevice         = 53
	errOperationInvalid     = 55
	errNoSecret             = 66
	errConfigUnsupported    = 67
	errOperationTimeout     = 68 // "cannot acquire state change lock"
	errArgumentUnsupported  = 74
	errOperationAborted     = 78
	errAuthCancelled        = 79
	errMigrateUnsafe        = 81
	errOverflow             = 82
	errOperationUnsupported = 84
	errAgentUnresponsive    = 86
	errResourceBusy         = 87
	errAccessDenied         = 88
	errCPUIncompatible      = 91
	errXMLInvalidSchema     = 92
	errAuthUnavailable      = 94
	errAgentTimeout         = 112
)

// kindOf turns an error of a binding into a decision. Numbers that are not
// listed are libvirt's or QEMU's own failures: it answered, so the outcome is
// known, and repeating is not forbidden; that is internal.
func kindOf(err error, changes bool) fault.Kind {
	switch {
	case errors.Is(err, ErrNotSent):
		return fault.Unavailable
	case errors.Is(err, ErrLost) && changes:
		return fault.InDoubt
	case errors.Is(err, ErrLost):
		return fault.Unavailable
	}
	switch codeOf(err) {
	case errNoDomain, errNoNetwork, errNoStoragePool, errNoStorageVol, errNoSecret:
		return fault.NotFound
	case errDomExist:
		return fault.Exists
	case errOperationTimeout, errResourceBusy:
		return fault.Busy
	case errOperationAborted:
		return fault.Undone
	case errNoSupport, errInvalidArg, errOSType, errXML, errXMLDetail, errInvalidMAC, errOperationInvalid,
		errConfigUnsupported, errArgumentUnsupported, errOverflow, errOperationUnsupported, errXMLInvalidSchema:
		return fault.Invalid
	case errOperationDenied, errAuthFailed, errAuthCancelled, errAuthUnavailable, errAccessDenied, errMigrateUnsafe:
		return fault.Forbidden
	case errCPUIncompatible, errNoMemory:
		return fault.DoesNotFit
	case errRPC:
		// Some say that the answer could not be read.
		if changes {
			return fault.InDoubt
		}
		return fault.Unavailable
	case errNoConnect, errInvalidConn, errAgentUnresponsive, errAgentTimeout:
		return fault.Unavailable
	}
	return fault.Internal
}

// stateNames are virDomainState's, in order.
var stateNames = []driver.State{
	driver.NoState, driver.Running, driver.Blocked, driver.Paused, driver.ShuttingDown, driver.ShutOff,
	driver.Crashed, driver.PMSuspended,
}

// reasonNames are the reasons of each state, in the order of virDomain*Reason,
// spelled as virsh domstate --reason does.
var reasonNames = [][]driver.Reason{
	1: {"unknown", "booted", "migrated", "restored", "from snapshot", "unpaused", "migration canceled",
		"save canceled", "event wakeup", "crashed", "post-copy", "post-copy failed"},
	3: {"unknown", "user", "migrating", "saving", "dumping", "I/O error", "watchdog", "from snapshot",
		"shutting down", "creating snapshot", "crashed", "starting up", "post-copy", "post-copy failed", "api error"},
	4: {"unknown", "user"},
	5: {"unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "daemon"},
	6: {"unknown", "panicked"},
	7: {"unknown"},
}

func stateName(s int) driver.State {
	if s < 0 || s >= len(stateNames) {
		return driver.NoState
	}
	return stateNames[s]
}

func reasonName(s, reason int) driver.Reason {
	if s < 0 || s >= len(reasonNames) || reason < 0 || reason >= len(reasonNames[s]) {
		return driver.ReasonUnknown
	}
	return reasonNames[s][reason]
}

// lifecycleEvents are the kinds of virDomainEventType, in order, each with the
// names of its details.
var lifecycleEvents = []struct {
	kind    driver.EventKind
	details []string
}{
	{driver.EventDefined, []string{"added", "updated", "renamed", "from snapshot"}},
	{driver.EventUndefined, []string{"removed", "renamed"}},
	{driver.EventStarted, []string{"booted", "migrated", "restored", "from snapshot", "event wakeup", "recreated"}},
	{driver.EventSuspended, []string{"paused", "migrated", "I/O error", "watchdog", "restored", "from snapshot", "api error", "post-copy", "post-copy failed"}},
	{driver.EventResumed, []string{"unpaused", "migrated", "from snapshot", "post-copy", "post-copy failed"}},
	{driver.EventStopped, []string{"shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "recreated"}},
	// Shutdown: the guest has finished, its process has not; stopped follows.
	{driver.EventOther, []string{"finished", "after guest request", "after host request"}},
	{driver.EventSuspended, []string{"memory", "disk"}}, // by the guest's own power management
	{driver.EventCrashed, []string{"panicked", "crashloaded"}},
}

// changes names the events that say that something changed.
var changes = map[EventID]string{
	BlockJobEvent: "block job", DiskChangeEvent: "disk", BalloonChangeEvent: "balloon", DeviceRemovedEvent: "device removed",
	TunableEvent: "tunable", DeviceAddedEvent: "device added", MetadataChangeEvent: "metadata",
	MemoryDeviceSizeChangeEvent: "memory device",
}

func eventOf(of Event) driver.Event {
	e := driver.Event{Kind: driver.EventOther, UUID: of.UUID, Name: of.Name}
	if what, change := changes[of.ID]; change {
		e.Kind, e.Detail = driver.EventChanged, what
	} else if of.ID == MigrationIterationEvent {
		e.Kind, e.Detail = driver.EventIteration, strconv.Itoa(of.Detail)
	} else if of.ID == LifecycleEvent && of.Event >= 0 && of.Event < len(lifecycleEvents) {
		known := lifecycleEvents[of.Event]
		e.Kind = known.kind
		if of.Detail >= 0 && of.Detail < len(known.details) {
			e.Detail = known.details[of.Detail]
		}
	}
	return e
}

// jobKinds are virDomainJobType's, in order.
var jobKinds = []driver.JobKind{
	driver.JobNone, driver.JobBounded, driver.JobUnbounded, driver.JobCompleted, driver.JobFailed, driver.JobCancelled,
}
