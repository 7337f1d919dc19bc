package migration

import (
	"context"
	"time"
)

// TypeEvacuation is a move from a host that is dead.
const TypeEvacuation = "evacuation"

// EvacuationVerbs are asked of the host that a guest of a dead one goes to. Its source is not
// asked anything: what it had is known from the fleet's records, and it gives way when it comes
// back. CheckDestination, Claim, RenewClaim and AbortClaim are asked as of every move, with the
// kind TypeEvacuation; the guest's disks are then those of the record. In the answer to the check
// DiskView.Shared says that this host has the very file.
type EvacuationVerbs interface {
	// PrepEvacuation makes all ready but the start: networks and volumes, the definition from
	// this host's claim, the disks that are not shared, made from the image under private names;
	// hooks of pre_evacuate. Then the claim is arriving. Refused, with every reason, where a
	// disk is neither shared nor made from an image, or would lose its data and AcceptLoss is
	// not said. Nothing is written to a disk that is shared.
	PrepEvacuation(ctx context.Context, ref Ref, r EvacuationRequest) (PreparedEvacuation, error)
	// RollbackPrepEvacuation is the undo, after a half-done one too. fault.Forbidden once the
	// token is here, or the fleet's records say that it was given to this host by this attempt.
	RollbackPrepEvacuation(ctx context.Context, ref Ref) error

	// AcceptEvacuated durably accepts the token that Fleet.TakeOver gave to this host. It goes
	// by the fleet's records, which it reads itself, never by the conductor's word.
	AcceptEvacuated(ctx context.Context, ref Ref, c Commit) error
	// FinishEvacuation makes the guest live here: disks in their places, defined, claim bound,
	// started unless it is to stay off; hooks of post_evacuate. An error of kind Unavailable,
	// InDoubt or Busy is worth another try. A guest that cannot be started is here all the
	// same, off, and FinishedEvacuation.NotStarted says why.
	FinishEvacuation(ctx context.Context, ref Ref) (FinishedEvacuation, error)
}

// EvacuationRequest asks a host to get ready for a guest of a dead one.
type EvacuationRequest struct {
	Guest  Guest  `json:"guest"`
	Source string `json:"source_compute"`
	// Image is what disks that are not shared are made from, where the record of the guest
	// names none; nil for that of the record alone.
	Image *Image `json:"image,omitempty"`
	// AcceptLoss: what was written to a disk that is not shared is lost, and may be.
	AcceptLoss bool `json:"accept_data_loss,omitempty"`
	// Stopped: the guest stays off, whatever it was.
	Stopped bool `json:"stopped,omitempty"`
}

// PreparedEvacuation is a host that waits for the token.
type PreparedEvacuation struct {
	Shared []string `json:"shared_disks,omitempty"` // targets of the very disks
	Made   []string `json:"made_disks,omitempty"`   // targets of disks made from an image: what was written is lost
}

// FinishedEvacuation is a guest that lives again.
type FinishedEvacuation struct {
	Started    bool   `json:"started"`
	NotStarted string `json:"not_started,omitempty"` // why not, where it should be; empty else
}

// LostGuest is a guest of a dead host.
type LostGuest struct {
	Guest  Guest       `json:"guest"`
	Source Description `json:"source"` // as it described itself last
	Proof  DeathProof  `json:"proof"`
	// Record and Death are the revisions with which both were read: TakeOver holds only for
	// them.
	Record uint64 `json:"record_revision"`
	Death  uint64 `json:"death_revision"`
}

// DeathProof is by what the source counts as dead; see package fleet.
type DeathProof struct {
	Proof   string    `json:"proof"`
	By      string    `json:"by"`
	Because string    `json:"because"`
	At      time.Time `json:"at"`
}

// Evacuation is what the record of an evacuation says beside that of every move.
type Evacuation struct {
	// Proof is by what the source counts as dead; nil until it was read.
	Proof *DeathProof `json:"proof,omitempty"`
	// Stopped, AcceptLoss and Image are as asked for.
	Stopped    bool   `json:"stopped,omitempty"`
	AcceptLoss bool   `json:"accept_data_loss,omitempty"`
	Image      string `json:"image,omitempty"`
	// EvacuatedDisks are those of the destination of the current attempt.
	EvacuatedDisks
	// FinishedEvacuation is how the guest lives at its destination.
	FinishedEvacuation
}

// EvacuatedDisks is what a destination would do about a lost guest's disks. A disk that every
// host reaches through the network is in none of them.
type EvacuatedDisks struct {
	Shared []string `json:"shared_disks,omitempty"` // targets of files that it has
	Made   []string `json:"made_disks,omitempty"`   // targets of disks that are made anew
	Lost   []string `json:"lost_disks,omitempty"`   // those of them of which what was written is lost
}
