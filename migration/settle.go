package migration

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
