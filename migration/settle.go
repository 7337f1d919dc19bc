package migration

import (
	"slices"
	"strings"

	"berth/internal/fault"
)

// Settlement is an operator's explicit word on where the guest of a migration is.
type Settlement struct {
	// GuestIsAt is the host.
	GuestIsAt string `json:"guest_is_at"`
	// Gone are hosts, and "placement" for Placement, of which the operator has checked
	// that they will never come back as they were. What is left at them is given up.
	Gone []string `json:"gone,omitempty"`
	// Why is what he has checked; By is who he is, and not for him to say.
	Why string `json:"why"`
	By  string `json:"by,omitempty"`
}

// GonePlacement is Placement in Settlement.Gone.
const GonePlacement = "placement"

// Validate refuses a word that says too little.
func (w Settlement) Validate() error {
	var reasons []fault.Reason
	if w.GuestIsAt == "" {
		reasons = append(reasons, fault.Reason{Code: "where", Message: "no host is named that the guest is at", Change: "name the source or the destination"})
	}
	if strings.TrimSpace(w.Why) == "" {
		reasons = append(reasons, fault.Reason{Code: "why", Message: "nothing says what was checked", Change: "add --reason \"what you have checked\": it is kept with the move"})
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "settle", reasons...)
	}
	return nil
}

// Same reports whether the other decision is this one again, or was joined to it.
func (w *Settlement) Same(other Settlement) bool {
	known := func(name string) bool { return slices.Contains(w.Gone, name) }
	return w != nil && w.GuestIsAt == other.GuestIsAt && w.By == other.By && w.Why == other.Why &&
		!slices.ContainsFunc(other.Gone, func(name string) bool { return !known(name) })
}
