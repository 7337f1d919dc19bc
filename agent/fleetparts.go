package agent

import (
	"context"
	"errors"
	"log/slog"

	"berth/agent/answers"
	"berth/agent/counted"
	"berth/agent/death"
	"berth/agent/host"
	"berth/agent/inventory"
	"berth/claims"
	"berth/driver"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/conductor"
	"berth/placementclient"
)

// keptHost is the host whose records a keeper keeps: what the keeper needs of its agent.
type keptHost struct {
	name, uuid string // the uuid is the provider's
	rt         runtime.Runtime
	log        *slog.Logger
	tracker    *claims.Tracker
	db         hostNotes
	driver     driver.Driver
	host       *host.Host

	allocations func() allocations
	hook        func(guests []string) error // tells libvirt's hook which instances are managed
	observing   func() bool
	estranged   func() error
	lost        func() bool // the ledger is not whole
	settled     func() bool // ledger and hypervisor are joined
	recognised  <-chan struct{}
	asked       *answers.Table
}

// hostNotes are the durable notes of one host.
type hostNotes interface {
	List(ctx context.Context, bucket string) (map[string][]byte, error)
	Get(ctx context.Context, bucket, key string) ([]byte, bool, error)
	Put(ctx context.Context, bucket, key string, value []byte) error
	Delete(ctx context.Context, bucket, key string) error
}

// KeeperParts are those of a host in a simulation.
type KeeperParts struct {
	Name      string
	Provider  string // the uuid of its root in Placement
	Runtime   runtime.Runtime
	Logger    *slog.Logger
	Tracker   *claims.Tracker
	Notes     hostNotes
	Driver    driver.Driver
	Placement *placementclient.Client
	Tree      func() (*inventory.Tree, bool)
	Store     fleet.Store
	Embedded  bool // the store is that of the embedded Placement; else it is etcd
	Settled   func() bool
}

// Keeper keeps the fleet's records of a host in a simulation as an agent does, and has its instances
// wait for them.
type Keeper struct{ k *keeper }

// NewKeeper makes a keeper; it asks nobody.
func NewKeeper(p KeeperParts) Keeper {
	kind, known := kindEtcd, make(chan struct{})
	if p.Embedded {
		kind = kindEmbedded
	}
	close(known)
	return Keeper{keeperOf(&keptHost{
		name: p.Name, uuid: p.Provider, rt: p.Runtime, log: p.Logger, tracker: p.Tracker, db: p.Notes, driver: p.Driver,
		allocations: func() allocations {
			return allocations{counted.Allocations{Client: p.Placement, Tree: p.Tree}, p.Placement}
		},
		hook: func([]string) error { return nil }, observing: func() bool { return false }, estranged: func() error { return nil },
		lost: func() bool { return false }, settled: p.Settled, recognised: known, asked: &answers.Table{},
	}, p.Store, kind)}
}

// Open has the instances of a boot before wait for the store. It is called once, before anything of
// the host can be started.
func (k Keeper) Open(ctx context.Context, h *host.Host) error {
	k.k.a.host = h
	return k.k.open(ctx)
}

// Run works until ctx ends.
func (k Keeper) Run(ctx context.Context) error { return k.k.run(ctx) }

// Records are the fleet's records.
func (k Keeper) Records() *fleet.Records { return k.k.records }

// Unproven reports whether the store lost records, and not all hosts have written again.
func (k Keeper) Unproven() bool {
	k.k.mu.Lock()
	defer k.k.mu.Unlock()
	return k.k.unproven
}

// Evacuations are the records as a conductor asks them. A death that is not written is none.
func (k Keeper) Evacuations() conductor.Fleet {
	return death.Evacuations{
		Records: func() (*fleet.Records, error) { return k.k.records, nil },
		Prove: func(ctx context.Context, host, _ string) (fleet.Death, uint64, error) {
			d, revision, err := k.k.records.Dead(ctx, host)
			if errors.Is(err, fault.NotFound) {
				err = fault.Refuse(fault.Forbidden, "", fleet.NotDead(host))
			}
			return d, revision, err
		},
		Ready: k.k.ready, Provider: k.k.a.allocations().client.HostProvider, Self: k.k.a.name,
	}
}
