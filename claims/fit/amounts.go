package fit

import (
	"fmt"
	"math"
	"strconv"

	"berth/topology"
)

// The codes of reasons.
const (
	VCPUShort      = "vcpu_short"       // too few vCPUs are free
	PCPUShort      = "pcpu_short"       // too few dedicated CPUs are free
	MemoryShort    = "memory_short"     // too little memory is free
	DiskShort      = "disk_short"       // too little disk is free
	VCPUOverHost   = "vcpu_over_host"   // more vCPUs than the host has CPUs: an empty host would not do
	PCPUOverHost   = "pcpu_over_host"   // more dedicated CPUs than the host has
	MemoryOverHost = "memory_over_host" // more memory than the host has
	DiskOverHost   = "disk_over_host"   // more disk than the host has
)

// Host is what a host has and what of it is in use.
type Host struct {
	Total    topology.Resources
	Reserved topology.Resources // kept for the host itself
	Used     topology.Resources // Σ claims, those on their way included

	// The ratios by which Total − Reserved is promised to guests, as
	// Placement's allocation_ratio; 0 and less stand for 1.
	CPURatio, RAMRatio, DiskRatio float64
}

// Reason is one cause of a refusal. It has the fields of fault.Reason in their
// order, so that one converts to the other.
type Reason struct {
	Code    string
	Message string // in an operator's words
	Cell    *int   // the host's NUMA cell; nil for the whole host
	Want    string
	Have    string
	Change  string // what would have to change
}

// Limit is how much guests may use together: ⌊(Total − Reserved) × ratio⌋, the
// same arithmetic on the same floats as Placement's (Nova's documentation on
// overcommitting, Placement's objects/inventory.py capacity), never below zero.
// A dedicated CPU is promised once: PCPU has no ratio.
func (h Host) Limit() topology.Resources {
	return topology.Resources{
		VCPUs:    int(limit(int64(h.Total.VCPUs), int64(h.Reserved.VCPUs), h.CPURatio)),
		PCPUs:    int(limit(int64(h.Total.PCPUs), int64(h.Reserved.PCPUs), 1)),
		MemoryMB: limit(h.Total.MemoryMB, h.Reserved.MemoryMB, h.RAMRatio),
		DiskGB:   limit(h.Total.DiskGB, h.Reserved.DiskGB, h.DiskRatio),
	}
}

func limit(total, reserved int64, ratio float64) int64 {
	if ratio <= 0 {
		ratio = 1
	}
	capacity := float64(total-reserved) * ratio
	const enough = 1 << 53 // above it a float counts no single MiB; no host has so much
	switch {
	case !(capacity > 0): // and not a number
		return 0
	case capacity > enough:
		return enough
	}
	return int64(capacity)
}

// Free is Limit − Used, never below zero: adopted guests may be over it.
func (h Host) Free() topology.Resources {
	l := h.Limit()
	return topology.Resources{
		VCPUs:    max(0, l.VCPUs-h.Used.VCPUs),
		PCPUs:    max(0, l.PCPUs-h.Used.PCPUs),
		MemoryMB: max(0, l.MemoryMB-h.Used.MemoryMB),
		DiskGB:   max(0, l.DiskGB-h.Used.DiskGB),
	}
}

// class is one of the four amounts, with the words for it.
type class struct {
	name, unit, ratio     string // "memory", " MiB", "ram_allocation_ratio"; no ratio for what is promised once
	short, over           string // codes
	want, total, reserved int64
	used, limit           int64
}

// Fits gives nil when the request fits beside what is used, or every reason why
// it does not, in the order vCPUs, dedicated CPUs, memory, disk.
func Fits(request topology.Resources, h Host) []Reason {
	l := h.Limit()
	var reasons []Reason
	for _, c := range []class{
		{"vcpus", "", "cpu_allocation_ratio", VCPUShort, VCPUOverHost,
			int64(request.VCPUs), int64(h.Total.VCPUs), int64(h.Reserved.VCPUs), int64(h.Used.VCPUs), int64(l.VCPUs)},
		{"pcpus", "", "", PCPUShort, PCPUOverHost,
			int64(request.PCPUs), int64(h.Total.PCPUs), int64(h.Reserved.PCPUs), int64(h.Used.PCPUs), int64(l.PCPUs)},
		{"memory", " MiB", "ram_allocation_ratio", MemoryShort, MemoryOverHost,
			request.MemoryMB, h.Total.MemoryMB, h.Reserved.MemoryMB, h.Used.MemoryMB, l.MemoryMB},
		{"disk", " GiB", "disk_allocation_ratio", DiskShort, DiskOverHost,
			request.DiskGB, h.Total.DiskGB, h.Reserved.DiskGB, h.Used.DiskGB, l.DiskGB},
	} {
		if r, ok := c.refusal(); ok {
			reasons = append(reasons, r)
		}
	}
	return reasons
}

// refusal is the reason for which this class does not fit, if it does not.
func (c class) refusal() (Reason, bool) {
	if c.want <= 0 {
		return Reason{}, false
	}
	// What no empty host of this size could hold is a reason of its own:
	// Placement's max_unit, which Nova sets to the total, says the same, and
	// freeing something would not help.
	if c.want > c.total {
		return Reason{
			Code:    c.over,
			Message: fmt.Sprintf("%s: want %s, the host has %s", c.name, c.amount(c.want), c.amount(c.total)),
			Want:    c.amount(c.want),
			Have:    c.amount(c.total),
			Change:  fmt.Sprintf("ask for at most %s, or choose a host with at least %s", c.amount(c.total), c.amount(c.want)),
		}, true
	}
	missing := c.used + c.want - c.limit
	if missing <= 0 {
		return Reason{}, false
	}
	free := max(0, c.limit-c.used)
	message := fmt.Sprintf("%s: want %s, %s free", c.name, c.amount(c.want), c.amount(free))
	if c.used > c.limit {
		message += fmt.Sprintf(" (%s more in use than the host may give)", c.amount(c.used-c.limit))
	}
	return Reason{
		Code:    c.short,
		Message: message,
		Want:    c.amount(c.want),
		Have:    c.amount(free),
		Change:  c.change(missing),
	}, true
}

// change says what would make room.
func (c class) change(missing int64) string {
	// Guests alone may not hold as much as is missing; then freeing is no way.
	var ways string
	if c.used >= missing {
		ways = "free " + c.amount(missing)
	} else {
		ways = "lower what is reserved"
	}
	if c.ratio == "" {
		return ways + ", or add CPUs to [host] dedicated_cpus"
	}
	if base := c.total - c.reserved; base > 0 {
		// In hundredths, rounded up so that the ratio named is enough.
		need := c.used + c.want
		hundredths := math.Ceil(float64(need) / float64(base) * 100)
		if limit(c.total, c.reserved, hundredths/100) < need {
			hundredths++
		}
		ways += fmt.Sprintf(", or raise %s to %s", c.ratio, strconv.FormatFloat(hundredths/100, 'f', -1, 64))
	}
	return ways
}

func (c class) amount(n int64) string { return strconv.FormatInt(n, 10) + c.unit }
