package change

import (
	"context"
	"log/slog"

	"berth/agent/host/attempts"
	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/agent/host/remake"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// Guests is what changes ask of the rest of the host. Whoever calls has the instance's
// turn.
type Guests interface {
	// Inspect reads a guest of this host; see migration.SourceVerbs.
	Inspect(ctx context.Context, instance string) (migration.Guest, error)
	// Here is nil when the guest's token is here.
	Here(inst claims.Instance) error
	// Off reads a guest that was powered off; fault.Busy while it has a process, and
	// refused where its definition is gone or it has left.
	Off(ctx context.Context, instance string) (driver.Domain, error)
	// ProvenOff is nil where a domain that libvirt calls off, or has not, has no process either
	// and nobody writes to its disks. Which they are is said by its definition, or by was where
	// libvirt has none.
	ProvenOff(ctx context.Context, d driver.Domain, was string) error
	// Wish is the power state that its user had chosen when this attempt powered it off;
	// false where none is on record.
	Wish(ref migration.Ref) (migration.PowerState, bool, error)
	// Start starts a guest that is off as its user had it; nothing for shut off.
	Start(ctx context.Context, instance string, power migration.PowerState) error
	// TakenBack reports whether a guest that got its claim so was powered off for a later
	// attempt, which reverts it.
	TakenBack(by claims.Owner) bool
	// Definition writes the guest as it is wanted, on this host, from the claim that holds
	// it here.
	Definition(g migration.Guest, w migration.Wanted, c claims.Claim, meta domainxml.Metadata) (string, error)
	// FileUsers finds who uses which file on this host.
	FileUsers(ctx context.Context) (*fileusers.Survey, error)
	// Relax tells that what others may have waited for has become free.
	Relax(ctx context.Context)
}

// Files are the files of guests' disks; disks.Files does, and says what each promises.
type Files interface {
	Image(ctx context.Context, path, format string) (disks.Image, error)
	Exists(path string) (bool, error)
	PlanReplace(migration, part, path string) (disks.Replaced, error)
	CopyNeeds(path string) (int64, error)
	Space(path string) (disks.Space, error)
	Replace(r disks.Replaced) error
	PutBack(r disks.Replaced) error
	fileusers.Dropper
}

// Options are what Changes are made of.
type Options struct {
	Host     string // provider's name
	Tracker  *claims.Tracker
	Attempts *attempts.Ledger
	Memory   *memory.Memory
	Phases   *phases.Phases
	Driver   driver.Driver
	Logger   *slog.Logger
	Guests   Guests
	Files    Files
	Bench    *remake.Bench
	// Aliases are the names by which flavors ask for PCI devices.
	Aliases func() []flavor.Alias
}

// Changes are those of one host. Safe for concurrent use.
type Changes struct{ o Options }

// New makes Changes. It reads and writes nothing.
func New(o Options) *Changes { return &Changes{o: o} }

// StepKeepUnapply is the step of Unapply, for which Finish writes a tombstone; Memory is under what the
// operations of a change keep their record.
const (
	StepKeepUnapply = "unapply_change"
	Memory          = "change"
)

func (c *Changes) record(ref migration.Ref) (Record, bool, error) {
	return memory.Recall[Record](c.o.Memory, ref, Memory)
}

func (c *Changes) remember(ctx context.Context, ref migration.Ref, rec Record) error {
	return c.o.Memory.Remember(ctx, ref, Memory, rec)
}

func (c *Changes) domain(ctx context.Context, ref migration.Ref) (driver.Domain, bool, error) {
	return driver.Find(ctx, c.o.Driver, ref.Instance)
}

// NotPersistent refuses a guest without a definition.
func NotPersistent(name string) fault.Reason {
	return fault.Reason{
		Code: "not_persistent", Message: "guest " + name + " has no definition: powered off, nothing of it would be left",
		Change: "define it (virsh dumpxml " + name + " | virsh define /dev/stdin), or move it live",
	}
}
