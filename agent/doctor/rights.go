package doctor

import (
	"context"
	"fmt"
	"strings"

	"berth/agent/api"
)

// recordRights is what a store of the fleet's records may say of who writes what.
type recordRights interface {
	WritesOthers(ctx context.Context, self string) ([]string, error)
}

// recordsCheck is whether the store keeps this host to its own records; false where the store does
// not say. A host that is let write another's could take its instances.
func recordsCheck(ctx context.Context, records any, self string) (api.Check, bool) {
	r, says := records.(recordRights)
	if !says {
		return api.Check{}, false
	}
	c := api.Check{Name: "fleet rights", Outcome: api.CheckOK, Detail: "this host writes no other's records"}
	switch others, err := r.WritesOthers(ctx, self); {
	case err != nil:
		c.Outcome, c.Detail, c.Remedy = api.CheckUnset, "not known: "+err.Error(), "see the fleet store"
	case len(others) > 0:
		c.Outcome = api.CheckUnset
		c.Detail = fmt.Sprintf("every host may write the records of every other, here of %s", strings.Join(others, ", "))
		c.Remedy = "with [fleet] etcd run what `berth host etcd-roles " + strings.Join(append(others, self), " ") + "` prints; with the embedded Placement start it with --auth mtls"
	}
	return c, true
}
