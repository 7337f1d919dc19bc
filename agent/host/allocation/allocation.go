// Package allocation is what Placement is told of an instance that stands still. It is pure.
package allocation

import (
	"berth/claims"
	"berth/topology"
)

// Allocation is what an instance holds of this host, as its claim says.
type Allocation struct {
	Consumer   string // instance uuid
	Resources  topology.Resources
	Assignment topology.Assignment
	ProjectID  string
	UserID     string
}

// Of is what a claim holds for its instance.
func Of(inst claims.Instance, claim claims.Claim) Allocation {
	return Allocation{
		Consumer: inst.UUID, Resources: claim.Resources, Assignment: claim.Assignment, ProjectID: inst.ProjectID, UserID: inst.UserID,
	}
}
