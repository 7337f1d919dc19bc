package agent

import (
	"berth/agent/counted"
	"berth/agent/inventory"
	"berth/placementclient"
)

// allocations are what this host's instances hold in Placement. It adds to them what the fleet's
// records want of dead hosts.
type allocations struct {
	counted.Allocations
	client *placementclient.Client
}

func (a *Agent) allocations() allocations {
	return allocations{counted.Allocations{Client: a.placement, Tree: a.tree}, a.placement}
}

// tree is the host's provider tree as it stands in Placement, false while that is
// not known.
func (a *Agent) tree() (*inventory.Tree, bool) { return a.reporter.Tree() }

// allocationAttempts bounds how often a lost race for a consumer's generation is
// read again: the instance stands still, so nobody else should write it.
const allocationAttempts = 4
