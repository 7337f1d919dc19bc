package migration

import (
	"time"
)

// TypeEvacuation is a move from a host that is dead.
const TypeEvacuation = "evacuation"

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
	NotStarted string `json:"not_started,omitempty"` // why not, where it should be, or why one that is off should not; empty else
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
