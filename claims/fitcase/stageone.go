package fitcase

import (
	"errors"
	"strings"

	"berth/claims/flavor"
	"berth/topology"
)

// stageOne makes the guest's topology of flavor and image; nil for a guest
// without one. The error is all that is wrong with them, each fault with the
// class of the error that Nova raises, where Nova raises one.
func (c *Case) stageOne() (*topology.GuestTopology, error) {
	guest, err := flavor.Topology(c.Flavor, c.Image)
	var faults flavor.Errors
	if !errors.As(err, &faults) {
		return guest, err
	}
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.Error()
		if f.Nova != "" {
			texts[i] += " (" + f.Nova + ")"
		}
	}
	return nil, errors.New(strings.Join(texts, "; "))
}
