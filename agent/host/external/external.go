// Package external follows migrations that Berth does not conduct, on either host: those by virsh
// migrate, which libvirt's hook tells of, and those of tools that ask by `berth external`.
//
// A destination holds a claim for what comes and binds it once the ownership token has come; a source
// gives the token to the host where the instance runs now. It reads libvirt and the ledger, keeps its
// records by package memory, and ends no instance. Invariants:
//
//   - an instance that has come is this host's only when its giver has given the token, or every host
//     has said that none holds it;
//   - a token leaves only for an instance that is off or gone here by this host's own look.
package external

import (
	"context"
	"log/slog"
	"time"

	"berth/agent/host/allocation"
	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/topology"
)

// Arrivals is how instances come to this host by whatever migration.
type Arrivals interface {
	// Disks are the gigabytes of a domain XML's disks as far as they can be read here, and why a
	// device of it cannot be moved.
	Disks(ctx context.Context, text string) (diskGB int64, immovable []fault.Reason, err error)
	// Admit refuses a domain XML that libvirt is about to take in, and writes into it what its images
	// stand on. It does not ask libvirt, which waits.
	Admit(ctx context.Context, doc *domainxml.Doc, uses topology.Resources) error
	// CheckConnections refuses, with every reason, networks and volumes that are not here.
	CheckConnections(ctx context.Context, text string) error
	// Claim holds what is asked for, in the place that is found where the instance runs already; nil
	// for one that is chosen. The caller has the instance's lock.
	Claim(ctx context.Context, ref migration.Ref, r migration.ClaimRequest, found *topology.Assignment) (migration.ClaimAnswer, error)
	// Documents are the domain XMLs of an instance as a claim places it.
	Documents(ref migration.Ref, g migration.Guest, c claims.Claim) (migration.Prepared, error)
	// ColdDefinition is what was prepared for an instance that comes while it is off; false for
	// nothing. SetColdDefinition replaces it.
	ColdDefinition(ref migration.Ref) (string, bool, error)
	SetColdDefinition(ctx context.Context, ref migration.Ref, text string) error
	// RunArrivedHooks runs the hooks of an instance that has come, if its arrival was prepared; Undo
	// takes back what was prepared. The caller has the instance's lock.
	RunArrivedHooks(ctx context.Context, ref migration.Ref) error
	Undo(ctx context.Context, ref migration.Ref) error
}

// Instances are those of this host.
type Instances interface {
	// Here is nil when this host may start, move and delete the instance; Still while it does not
	// move.
	Here(inst claims.Instance) error
	Still(instance string) error
	// Arrived reports whether the token is here and an attempt has, or may have, to do with it.
	Arrived(ref migration.Ref) bool
	// ProvenOff refuses an instance of which a process lives, or writes its files; ProcessGone looks
	// for the process alone. Absent refuses one whose definition or process is still here.
	ProvenOff(ctx context.Context, d driver.Domain) error
	ProcessGone(d driver.Domain) error
	Absent(ctx context.Context, inst claims.Instance) error
	// LetGo ends what an instance whose token has left holds here beside its allocation.
	LetGo(ctx context.Context, ref migration.Ref) error
	// LeftByHand reports whether the instance was seen to leave; DropLeft forgets that.
	LeftByHand(instance string) bool
	DropLeft(ctx context.Context, instance string) error
}

// Owners keeps the guard's owner files (agent/guard).
type Owners interface {
	// Withdraw makes a guest's file say that it moves until done is called; an error
	// means that it may still say that the guest may start here.
	Withdraw(instance string) (done func(), err error)
	// Kick makes the files follow the ledger soon.
	Kick()
}

// Fleet is what a guest that came by foreign hands needs of the other hosts.
type Fleet interface {
	// TakeToken asks every host that may hold the instance's token to give it to
	// this one; source is the host that it is said to come from, empty where nobody
	// said. false when all have answered that it is not theirs. A host that is
	// silent is an error, and so is one that keeps it.
	TakeToken(ctx context.Context, ref migration.Ref, source string) (migration.Commit, bool, error)
	// HeldElsewhere reports whether Placement has an allocation for the instance of
	// another host: it is that host's guest, as far as anybody knows.
	HeldElsewhere(ctx context.Context, instance string) (bool, error)
	// TakeAllocation makes the consumer's allocation exactly this one, whatever it
	// held before: its token is here.
	TakeAllocation(ctx context.Context, a allocation.Allocation) error
}

// Options are what Migrations are made of.
type Options struct {
	Host      string // provider's name
	ProjectID string // of instances for which nobody names any, with UserID
	UserID    string
	Tracker   *claims.Tracker
	Attempts  *attempts.Ledger
	Memory    *memory.Memory
	Phases    *phases.Phases
	Driver    driver.Driver
	Runtime   runtime.Runtime
	Logger    *slog.Logger
	Arrivals  Arrivals
	Instances Instances
	Self      migration.Host           // this host, which is asked for operations
	Owners    Owners                   // nil for none
	Fleet     Fleet                    // nil for none
	Aliases   func() []flavor.Alias    // for PCI devices of flavors; nil for none
	NewUUID   func() string            // of migrations that nobody named
	Managing  func(doing string) error // nil unless the host only observes
	Agree     time.Duration            // four times the pause between two looks that must agree
	Round     func(loop string)        // told each time that the loop "arrivals" has come round
}

// Migrations are the migrations of one host that Berth does not conduct. Safe for concurrent use.
type Migrations struct {
	o        Options
	given    givenAway
	progress *progress
}

// New makes Migrations. It reads and writes nothing.
func New(o Options) *Migrations {
	return &Migrations{o: o, given: givenAway{o.Host, o.Tracker, o.Memory}, progress: newProgress(o.Logger)}
}

// Unsettled gives why instances that came are not settled. Those that are still on their way are not
// among them.
func (x *Migrations) Unsettled() map[string]error { return x.progress.all() }

func (x *Migrations) aliases() []flavor.Alias {
	if x.o.Aliases == nil {
		return nil
	}
	return x.o.Aliases()
}

// cleanupTimeout bounds what is still written after a caller has gone. Arbitrary.
const cleanupTimeout = 10 * time.Second
