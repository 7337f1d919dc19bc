package openstack

import (
	"testing"

	"berth/agent/auditor/auditortest"
	"berth/placement/placementtest"
	pc "berth/placementclient"
)

// TestAuditor_HealsTheRealService runs each kind of leak against OpenStack's own
// Placement: what is healed, what is named, and that a second audit writes nothing.
func TestAuditor_HealsTheRealService(t *testing.T) {
	t.Parallel()
	server := placementtest.Server{URL: StartPlacement(t, PlacementOptions{}).URL}
	auditortest.Leaks(t, func(t *testing.T) *pc.Client { return server.Client(t, pc.MaxMicroversion) })
}
