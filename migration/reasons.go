package migration

import (
	"errors"

	"berth/internal/fault"
)

// Reason codes of Inspect that decide about an allocation.
const (
	// ReasonGuestGone says that the source has no domain of the guest: never had one,
	// or its ledger still has the guest and its hypervisor no more.
	ReasonGuestGone = "guest_gone"
	// ReasonTokenElsewhere says that the guest is another host's.
	ReasonTokenElsewhere = "token_elsewhere"
)

// ReasonPeerTooOld is the code of a refusal by which whoever asked an agent says that it does
// not know the verb.
const ReasonPeerTooOld = "peer_too_old"

// ReasonDestinationDead is the code by which the fleet's records refuse a destination that
// counts as dead itself: the next one is tried.
const ReasonDestinationDead = "destination_dead"

// ReasonHostSilent is the code of a refusal of an evacuation because a host does not say whether it has
// the instance. fault.Unavailable where nothing else speaks against it.
const ReasonHostSilent = "host_silent"

// ReasonLibvirtSilent is ReasonHostSilent of a host whose agent answers, and whose libvirt does not.
const ReasonLibvirtSilent = "libvirt_silent"

// SilentElsewhere reports whether err refuses an evacuation only because a host does not say whether it
// has the instance.
func SilentElsewhere(err error) bool {
	return errors.Is(err, fault.Unavailable) && (fault.HasReason(err, ReasonHostSilent) || fault.HasReason(err, ReasonLibvirtSilent))
}

// ReasonSeal is the code of a refusal of a commit for its seal: it is missing, is not its
// writer's, or cannot be verified any more.
const ReasonSeal = "seal"
