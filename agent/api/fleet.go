package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"berth/fleet"
	"berth/internal/fault"
)

// Fleet is what the fleet's records say of hosts, alive or dead. All are fault.Forbidden
// with reason no_fleet_store where no records are kept, and fault.Unavailable while the store
// does not answer.
type Fleet interface {
	// Hosts gives every host of the records, by name, and those that only a death names.
	Hosts(ctx context.Context) (FleetHosts, error)
	// Instance reads the record of a guest, wherever it is; ref is its name or uuid.
	// fault.NotFound; fault.Exists where two have the name, both named.
	Instance(ctx context.Context, ref string) (fleet.Instance, error)
	// Forget gives up what a dead host still holds: the halves of evacuations from it, its
	// allocations, and its provider where nothing is left on it. Refused with fault.Forbidden,
	// each guest named, while some are to be evacuated, unless abandon is said; and without a
	// proof of death. Safe to repeat.
	Forget(ctx context.Context, host string, abandon bool, by string) (Forgotten, error)
	// Store says whether the store has served this host when it asked last. From memory alone.
	Store(ctx context.Context) (StoreSeen, error)
}

// StoreSeen is how the store of the fleet's records has answered the last question of one host,
// its lease's renewal. A host that is refused by it asks others, lest a firewall is what refuses.
type StoreSeen struct {
	Asked  bool          `json:"asked"` // false where the host keeps no lease there, or has not asked yet
	Served bool          `json:"served"`
	Age    time.Duration `json:"age"` // nanoseconds since that question began
}

// LeaseState is how a host's lease is.
type LeaseState string

// The states of a lease. An expired one alone proves no death.
const (
	LeaseHeld    LeaseState = "held"
	LeaseExpired LeaseState = "expired"
	LeaseUnknown LeaseState = "" // the store keeps none, or the host has never had one
)

// FleetHosts are the hosts of the fleet's records.
type FleetHosts struct {
	Store string      `json:"store"` // what keeps the records: "etcd" or "embedded"
	Hosts []FleetHost `json:"hosts"`
	// Unreadable are the keys of records that were passed over, since they cannot be read.
	Unreadable []string `json:"unreadable,omitempty"`
}

// FleetHost is one of them.
type FleetHost struct {
	Name      string    `json:"name"`
	Boot      string    `json:"boot,omitempty"`       // that it has told of last; empty where it has written no record
	UpdatedAt time.Time `json:"updated_at,omitzero"`  // of its record
	SelfFence bool      `json:"self_fence,omitempty"` // an expired lease can be made a proof
	// Witnesses are the hosts by which an expired lease can be made a proof: those that it asks before it
	// runs on without one. None are told by a host that does not fence itself, or whose agent is older.
	Witnesses []string     `json:"witnesses,omitzero"`
	Lease     LeaseState   `json:"lease,omitempty"`
	Death     *fleet.Death `json:"death"`  // null for a host that nobody counts as dead
	Guests    int          `json:"guests"` // whose token it has, by the records
	// ToEvacuate are those of them that a dead host still has; none of a living one.
	ToEvacuate []FleetGuest `json:"to_evacuate"`
	// WithoutRecord are the instances that a dead host has by Placement, or by other hosts' ledgers where
	// Placement does not have the host, and of which there is no record; WithoutRecordError says why
	// they are not known.
	WithoutRecord      []FleetUnrecorded `json:"without_record,omitempty"`
	WithoutRecordError string            `json:"without_record_error,omitempty"`
	// ToCleanUp are the guests that were taken from it, and of which it has not cleaned up
	// what it had, nor was it forgotten.
	ToCleanUp []fleet.Evacuated `json:"to_clean_up"`
}

// FleetUnrecorded names an instance without a record.
type FleetUnrecorded struct {
	Instance string `json:"instance_uuid"`
	Why      string `json:"why"` // it is taken to be there
}

// FleetGuest names a guest of the records.
type FleetGuest struct {
	Instance string `json:"instance_uuid"`
	Name     string `json:"instance_name"`
	Moving   string `json:"migration,omitempty"` // the unfinished move that it is on, which has to be settled first
}

// Forgotten is what was given up of a host that never returns.
type Forgotten struct {
	Host        string       `json:"host"`
	Evacuations []string     `json:"evacuations"` // migrations whose halves were given up
	Abandoned   []FleetGuest `json:"abandoned"`   // guests that nobody runs any more
	// ProviderRemoved: its provider is no more in Placement; else ProviderKept says why.
	ProviderRemoved bool   `json:"provider_removed"`
	ProviderKept    string `json:"provider_kept,omitempty"`
}

// ForgetHost says what becomes of guests that nobody has evacuated.
type ForgetHost struct {
	Abandon bool `json:"abandon_guests,omitempty"` // they are given up
}

// noFleet refuses what wants the fleet's records, in an agent that keeps none.
func noFleet(doing string) error {
	return fault.Refuse(fault.Forbidden, doing, fault.Reason{
		Code: "no_fleet_store", Message: "this agent keeps no records of the fleet",
		Change: "say [fleet] etcd in berth.toml, or use the Placement that comes with berth (berth placement), which keeps them",
	})
}

func (s *Server) theFleet() (Fleet, error) {
	if s.svc.Fleet == nil {
		return nil, noFleet("read the fleet's records")
	}
	return s.svc.Fleet, nil
}

// fleetRows are asked of any host: all see the same records.
func fleetRows() []route {
	return []route{
		read(http.MethodGet, "/v1/fleet/hosts", "fleet-host-list", "What the fleet's records say of each host: alive or dead and by which proof, what is to be evacuated from it and what it has to clean up.", everyone,
			func(s *Server, r *http.Request) (FleetHosts, error) {
				f, err := s.theFleet()
				if err != nil {
					return FleetHosts{}, err
				}
				return f.Hosts(r.Context())
			}).canRelay(),
		read(http.MethodGet, "/v1/fleet/instances/{instance}", "fleet-instance-show", "The record of a guest, by its name or uuid: which host has its token.", everyone,
			func(s *Server, r *http.Request) (fleet.Instance, error) {
				f, err := s.theFleet()
				if err != nil {
					return fleet.Instance{}, err
				}
				return f.Instance(r.Context(), r.PathValue("instance"))
			}).canRelay(),
		read(http.MethodGet, "/v1/fleet/store", "fleet-store-show", "Whether the store of the fleet's records has served this host when it asked last, and how long ago that was.", everyone,
			func(s *Server, r *http.Request) (StoreSeen, error) {
				f, err := s.theFleet()
				if err != nil {
					return StoreSeen{}, err
				}
				return f.Store(r.Context())
			}),
		write(http.MethodPost, "/v1/fleet/hosts/{host}/forget", "host-forget", "Give up what a dead host that never returns still holds; refused while guests of it are to be evacuated.", operators,
			func(s *Server, r *http.Request, in ForgetHost) (Forgotten, error) {
				f, err := s.theFleet()
				if err == nil {
					err = s.another(r, "forget host")
				}
				if err != nil {
					return Forgotten{}, err
				}
				return f.Forget(r.Context(), r.PathValue("host"), in.Abandon, CallerWords(r.Context()))
			}),
	}
}

// FleetHosts asks what the fleet's records say of hosts.
func (c *Client) FleetHosts(ctx context.Context) (out FleetHosts, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/fleet/hosts", nil, &out, repeatable)
}

// FleetStore asks whether the store of the fleet's records serves the host.
func (c *Client) FleetStore(ctx context.Context) (out StoreSeen, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/fleet/store", nil, &out, once)
}

// FleetInstance reads the record of a guest, by its name or uuid.
func (c *Client) FleetInstance(ctx context.Context, ref string) (out fleet.Instance, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/fleet/instances/"+url.PathEscape(ref), nil, &out, repeatable)
}

// ForgetHost gives up what a dead host still holds; safe to repeat.
func (c *Client) ForgetHost(ctx context.Context, host string, r ForgetHost) (out Forgotten, err error) {
	return out, c.do(ctx, http.MethodPost, hostPath(host, "forget"), r, &out, repeatable)
}
