package fleet

import (
	"encoding/json"
	"time"
)

// Host is who a host is, as it wrote it itself.
type Host struct {
	Name         string `json:"name"`
	ProviderUUID string `json:"provider_uuid"`
	HostUUID     string `json:"host_uuid"`
	// Boot is the boot of its kernel (runtime.BootTime.ID) in which it has looked at every
	// guest of its ledger.
	Boot string `json:"boot"`
	// SelfFence: a watchdog resets it before its lease is over, since it is fed by the lease
	// alone. Written after the watchdog was armed, and taken back before it is disarmed.
	SelfFence bool `json:"self_fence,omitempty"`
	// Lease is the length of the lease that feeds it; 0 in a record of before that was told.
	Lease Seconds `json:"lease_seconds,omitempty"`
	// Witnesses are the other hosts whose silence stops this one, in order: while any of them does not
	// say that the store serves nobody, its watchdog is fed by the lease alone. nil in a record of an
	// older agent.
	Witnesses []string `json:"witnesses,omitzero"`
	// Incarnation is that of the store in which the host has written all its records; see Rewrote.
	Incarnation string `json:"incarnation,omitempty"`
	// Ledger counts what the host's ledger has noted for this record. It never goes back, but with
	// the disk of the host.
	Ledger uint64 `json:"ledger,omitempty"`
	// Description is migration.Description, for whoever must check a guest of a dead host.
	Description json.RawMessage `json:"description,omitempty"`
	UpdatedAt   time.Time       `json:"updated_at"`
}

func (h Host) key() string { return hostsPrefix + h.Name }

// Proof is by what a host counts as dead.
type Proof string

// The proofs. An expired lease alone is none.
const (
	ProofFenced    Proof = "fenced"     // the operator's fencing hook said that it is off
	ProofOperator  Proof = "operator"   // a person has said so
	ProofSelfFence Proof = "self_fence" // its lease is over, and it fences itself by it
)

// Death is that a host runs no guest any more. It stands until that host comes back and takes
// it away.
type Death struct {
	Host    string    `json:"host"`
	Proof   Proof     `json:"proof"`
	By      string    `json:"by"`      // who asked for it: "operator:alice", "user:root"
	Because string    `json:"because"` // in words; the hook's for a fenced one
	At      time.Time `json:"at"`
	Boot    string    `json:"boot,omitempty"` // the last that the host had told of
	// Forgotten: what it still held was given up (`berth host forget`).
	Forgotten bool `json:"forgotten,omitempty"`
}

func (d Death) key() string { return DeathsPrefix + d.Host }

// Instance is a guest as the host with its token knows it.
type Instance struct {
	UUID  string `json:"instance_uuid"`
	Name  string `json:"name"`
	Host  string `json:"host"`  // that has the token
	Epoch uint64 `json:"epoch"` // of the token
	// Guest is migration.Guest, as Inspect gives it: all that another host needs to run it.
	// Of a guest that was taken over it is the one that was read, until its new host writes.
	Guest json.RawMessage `json:"guest"`
	// Moving is the unfinished migration of the guest, one that waits to be confirmed too;
	// empty for none. It is not evacuated while another host has that migration open.
	Moving string `json:"moving,omitempty"`
	// Migration and Attempt are those by which it was taken over; empty where it came otherwise.
	Migration string    `json:"migration,omitempty"`
	Attempt   int       `json:"attempt,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`
}

func (in Instance) key() string { return InstancesPrefix + in.UUID }

// Evacuated is a guest that was taken from a dead host. It stands until that host has cleaned
// up what it had of it and the migration's half in Placement is given up.
type Evacuated struct {
	Migration string    `json:"migration"`
	Attempt   int       `json:"attempt"`
	Instance  string    `json:"instance_uuid"`
	Name      string    `json:"name"`
	Source    string    `json:"source_compute"`
	To        string    `json:"dest_compute"`
	Epoch     uint64    `json:"epoch"` // that To has
	At        time.Time `json:"at"`
}

func (e Evacuated) key() string { return evacuatedPrefix + e.Source + "/" + e.Migration }
