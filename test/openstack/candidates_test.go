package openstack

import (
	"testing"

	"berth/migration/candidates/candidatestest"
	"berth/placement/placementtest"
	"berth/placementclient"
)

// TestCandidates_AreFoundLikeInOurs asks OpenStack's Placement for every kind of
// guest in a fleet of every kind of host; what it answers each question is compared
// with what the embedded one answers.
func TestCandidates_AreFoundLikeInOurs(t *testing.T) {
	t.Parallel()
	theirs := placementtest.Server{URL: StartPlacement(t, PlacementOptions{}).URL}
	both := placementtest.Beside(t, embedded(t), theirs)
	candidatestest.Suite(t, func(v placementclient.Microversion) *placementclient.Client { return both.Client(t, v) })
}
