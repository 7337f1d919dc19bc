package topology

import (
	"errors"
	"fmt"
	"regexp"
)

// Flavor is what a guest asks for, in Nova's words.
type Flavor struct {
	Name       string            `toml:"name" json:"name"`
	VCPUs      int               `toml:"vcpus" json:"vcpus"`
	MemoryMB   int64             `toml:"memory_mb" json:"memory_mb"` // MiB, as Nova counts it
	DiskGB     int64             `toml:"disk_gb" json:"disk_gb"`     // GiB, as Nova counts it; 0 for a guest with no disk of its own
	ExtraSpecs map[string]string `toml:"extra_specs" json:"extra_specs,omitempty"`
}

var flavorName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// Validate gives every fault of the flavor at once, or nil.
func (f Flavor) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !flavorName.MatchString(f.Name) {
		fault("name %q: want letters, digits, dots, dashes or underscores", f.Name)
	}
	if f.VCPUs < 1 || f.VCPUs > MaxVCPUs {
		fault("vcpus %d: want 1 to %d", f.VCPUs, MaxVCPUs)
	}
	if f.MemoryMB < 1 || f.MemoryMB > MaxMemoryMB {
		fault("memory_mb %d: want 1 to %d", f.MemoryMB, MaxMemoryMB)
	}
	if f.DiskGB < 0 || f.DiskGB > MaxDiskGB {
		fault("disk_gb %d: want 0 to %d", f.DiskGB, MaxDiskGB)
	}
	return errors.Join(errs...)
}

// Resources is what a guest of this flavor uses on a host when no vCPU of it is
// pinned; see ResourcesWith.
func (f Flavor) Resources() Resources {
	return Resources{VCPUs: f.VCPUs, MemoryMB: f.MemoryMB, DiskGB: f.DiskGB}
}

// ResourcesWith is what a guest of this flavor and NUMA topology uses on a host:
// each dedicated vCPU is a PCPU, and so is the CPU of isolated emulator threads
// (Nova's resource classes VCPU and PCPU). Nil is a guest without topology.
func (f Flavor) ResourcesWith(t *GuestTopology) Resources {
	r := f.Resources()
	if t != nil {
		r.VCPUs, r.PCPUs = t.CPUs()
	}
	return r
}

// Resources are amounts on one host. Which cells, CPUs, pages and devices they
// are stands in an Assignment.
type Resources struct {
	VCPUs    int   `json:"vcpus"`           // Placement's VCPU: vCPUs that share CPUs
	PCPUs    int   `json:"pcpus,omitempty"` // Placement's PCPU: CPUs that a guest has to itself
	MemoryMB int64 `json:"memory_mb"`       // Placement's MEMORY_MB, MiB
	DiskGB   int64 `json:"disk_gb"`         // Placement's DISK_GB, GiB
}

// Add gives r + o.
func (r Resources) Add(o Resources) Resources {
	return Resources{VCPUs: r.VCPUs + o.VCPUs, PCPUs: r.PCPUs + o.PCPUs, MemoryMB: r.MemoryMB + o.MemoryMB, DiskGB: r.DiskGB + o.DiskGB}
}

// Sub gives r − o, which may be negative: a host with adopted guests can be
// over its capacity.
func (r Resources) Sub(o Resources) Resources {
	return Resources{VCPUs: r.VCPUs - o.VCPUs, PCPUs: r.PCPUs - o.PCPUs, MemoryMB: r.MemoryMB - o.MemoryMB, DiskGB: r.DiskGB - o.DiskGB}
}

// Max gives the larger of each amount: what is held while a guest may go either
// way.
func (r Resources) Max(o Resources) Resources {
	return Resources{
		VCPUs: max(r.VCPUs, o.VCPUs), PCPUs: max(r.PCPUs, o.PCPUs),
		MemoryMB: max(r.MemoryMB, o.MemoryMB), DiskGB: max(r.DiskGB, o.DiskGB),
	}
}

// IsZero reports whether nothing is held.
func (r Resources) IsZero() bool { return r == Resources{} }

// String gives "2 vcpus, 1024 MiB, 10 GiB", and "2 vcpus, 4 pcpus, 1024 MiB,
// 10 GiB" where CPUs are dedicated.
func (r Resources) String() string {
	if r.PCPUs != 0 {
		return fmt.Sprintf("%d vcpus, %d pcpus, %d MiB, %d GiB", r.VCPUs, r.PCPUs, r.MemoryMB, r.DiskGB)
	}
	return fmt.Sprintf("%d vcpus, %d MiB, %d GiB", r.VCPUs, r.MemoryMB, r.DiskGB)
}
