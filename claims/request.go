package claims

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// Request asks for a claim.
type Request struct {
	Owner     Owner
	Resources topology.Resources // see topology.Flavor.ResourcesWith

	// Topology is what the guest asks of cells; nil for one that floats over
	// the host. Its vCPUs and memory are those of Resources.
	Topology *topology.GuestTopology
	PCI      []topology.PCIRequest

	// Found is the place that the guest has here already, where it runs though nobody
	// has claimed it: it is held as it is, or refused. Nil has one chosen.
	Found *topology.Assignment

	Step    string            // the verb's step, for tombstones; "" for StepClaim
	Context *MigrationContext // recorded with the claim, its new side filled in, in one commit; nil for kind instance
	Lease   time.Duration     // 0 for the tracker's default

	// MaxInbound is with how many guests on their way to this host a claim of one more is
	// refused; 0 for no bound. See Inbound.
	MaxInbound int
}

func (r Request) ref() migration.Ref {
	return migration.Ref{Migration: r.Owner.Migration, Instance: r.Owner.Instance, Attempt: r.Owner.Attempt, Step: stepOr(r.Step, StepClaim)}
}

func (r Request) validate() error {
	err := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "claim for instance %q: "+format, append([]any{r.Owner.Instance}, args...)...)
	}
	if e := validUUIDs(r.Owner.Instance, r.Owner.Migration); e != nil {
		return err("%w", e)
	}
	switch r.Owner.Kind {
	case KindInstance:
		if r.Owner.Migration != "" || r.Owner.Attempt != 0 {
			return err("a claim of kind instance names no migration")
		}
	case KindLiveMigration, KindResize, KindRebuild, KindEvacuation:
		if r.Owner.Migration == "" || r.Owner.Attempt < 1 {
			return err("a claim of kind %s names its migration and attempt", r.Owner.Kind)
		}
	default:
		return err("kind %q", r.Owner.Kind)
	}
	if c := r.Context; c != nil && (c.Migration != r.Owner.Migration || c.Instance != r.Owner.Instance) {
		return err("its context is of instance %q and migration %q", c.Instance, c.Migration)
	}
	return r.invalidDemand(fmt.Sprintf("claim for instance %q", r.Owner.Instance))
}

// validUUIDs refuses what could not be part of a key: the instance must be
// named, the migration may be empty. Whether it is a uuid is its maker's affair.
func validUUIDs(instance, id string) error {
	if !validName(instance) {
		return fmt.Errorf("instance %q is not a name", instance)
	}
	if id != "" && !validName(id) {
		return fmt.Errorf("migration %q is not a name", id)
	}
	return nil
}

// validName takes what may stand between the slashes of a key.
func validName(s string) bool {
	if s == "" || len(s) > 255 {
		return false
	}
	for _, c := range []byte(s) {
		if c <= ' ' || c == '/' || c == 0x7f {
			return false
		}
	}
	return true
}

// sameTopology compares what is asked; sets that were read back from the ledger
// are the same as those that were written.
func sameTopology(a, b *topology.GuestTopology) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Emulator == b.Emulator && a.Realtime.SameAs(b.Realtime) &&
		slices.EqualFunc(a.Cells, b.Cells, func(a, b topology.GuestCell) bool {
			return a.SharedVCPUs.SameAs(b.SharedVCPUs) && a.DedicatedVCPUs.SameAs(b.DedicatedVCPUs) && a.MemoryMB == b.MemoryMB &&
				a.PageSize == b.PageSize && a.CPUPolicy == b.CPUPolicy && a.ThreadPolicy == b.ThreadPolicy
		})
}

func sameRequest(a, b topology.PCIRequest) bool {
	return a.ID == b.ID && a.Count == b.Count && a.Affinity == b.Affinity &&
		slices.EqualFunc(a.Specs, b.Specs, func(a, b topology.PCISpec) bool {
			return a.Vendor == b.Vendor && a.Product == b.Product && a.Type == b.Type && maps.Equal(a.Tags, b.Tags)
		})
}

func sameAssignment(a, b topology.Assignment) bool {
	return slices.Equal(a.Devices, b.Devices) && slices.Equal(a.Mdevs, b.Mdevs) && slices.EqualFunc(a.Cells, b.Cells, func(a, b topology.AssignedCell) bool {
		return a.HostCell == b.HostCell && a.MemoryMB == b.MemoryMB && a.PageSize == b.PageSize && a.Shared == b.Shared &&
			slices.Equal(a.Pins, b.Pins) && a.Emulator.SameAs(b.Emulator) && a.Idle.SameAs(b.Idle)
	})
}
