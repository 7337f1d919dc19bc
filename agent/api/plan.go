package api

import (
	"context"
	"net/http"

	"berth/migration"
	"berth/topology"
)

// Plans say where a guest could go. They change nothing.
type Plans interface {
	// Plan is asked of any host: of a guest that runs elsewhere it passes the request
	// on to the one that runs it.
	Plan(ctx context.Context, r PlanRequest) (migration.Plan, error)
	// Room answers what this host would claim for a guest.
	Room(ctx context.Context, r migration.RoomRequest) (migration.RoomAnswer, error)
}

// PlanRequest asks where a guest could go: one that is there, or a new one of a
// flavor.
type PlanRequest struct {
	Instance    string `json:"instance,omitempty"`     // name or uuid; empty for a new guest
	Destination string `json:"dest_compute,omitempty"` // only this host
	// Kind is live-migration, cold-migration, resize or evacuation; empty for a resize where a flavor
	// is named, for live where the guest runs, else cold. Not said of a new guest.
	Kind migration.PlanKind `json:"kind,omitempty"`
	// Flavor is of a new guest, or what a resize makes of one; FlavorName in its place is
	// one of the host that has the guest, or that is asked.
	Flavor     *topology.Flavor `json:"flavor,omitempty"`
	FlavorName string           `json:"flavor_name,omitempty"`
	// ShareNothing plans a cold migration or a resize that the asked host would conduct
	// between two that share nothing: it is not passed on to the guest's host.
	ShareNothing bool `json:"share_nothing,omitempty"`
	// Image is what an evacuation would make disks from that no host shares; see Migrate.
	Image *migration.Image `json:"image,omitempty"`
	// AcceptLoss plans for one whose disks may lose what was written to them.
	AcceptLoss bool `json:"accept_data_loss,omitempty"`
}

func planRows() []route {
	return []route{
		write(http.MethodPost, "/v1/plan", "plan", "Where could a guest go, or a new one be: candidates, refusals with their reasons, what would be claimed. Changes nothing.", everyone,
			func(s *Server, r *http.Request, in PlanRequest) (migration.Plan, error) {
				if err := tooLong(in.Instance, in.Destination, in.FlavorName, string(in.Kind)); err != nil {
					return migration.Plan{}, err
				}
				return s.svc.Plans.Plan(r.Context(), in)
			}).canRelay(),
		write(http.MethodPost, "/v1/plan/room", "plan-room", "What this host would claim for a guest; changes nothing.", everyone,
			func(s *Server, r *http.Request, in migration.RoomRequest) (migration.RoomAnswer, error) {
				return s.svc.Plans.Room(r.Context(), in)
			}).canRelay(),
	}
}

// Plan asks where a guest could go.
func (c *Client) Plan(ctx context.Context, r PlanRequest) (out migration.Plan, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/plan", r, &out, repeatable)
}

// Room asks the host what it would claim for a guest.
func (c *Client) Room(ctx context.Context, r migration.RoomRequest) (out migration.RoomAnswer, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/plan/room", r, &out, repeatable)
}
