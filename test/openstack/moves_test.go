package openstack

import (
	"testing"

	"berth/migration/halves/halvestest"
	"berth/placement/placementtest"
)

// TestMoves_HoldTheSameInBoth moves guests in every way in our Placement and in
// OpenStack's at once, and compares what each answers.
func TestMoves_HoldTheSameInBoth(t *testing.T) {
	t.Parallel()
	theirs := placementtest.Server{URL: StartPlacement(t, PlacementOptions{}).URL}
	both := placementtest.Beside(t, embedded(t), theirs)
	halvestest.Suite(t, both.URL, both.Transport)
}
