package contention

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
	"berth/topology"
)

// size is what each guest has.
var size = topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 1}

func allocation(provider string) map[string]placementclient.Resources {
	return map[string]placementclient.Resources{provider: {
		placementclient.ClassVCPU: int64(size.VCPUs), placementclient.ClassMemoryMB: size.MemoryMB, placementclient.ClassDiskGB: size.DiskGB,
	}}
}

// fleet is where every guest is, as its hosts know it.
type fleet struct {
	mu     sync.Mutex // guards what follows; nothing waits under it
	rand   *rand.Rand
	guests map[string]*guest // by uuid
	moves  map[string]*move  // by migration/attempt
}

type guest struct {
	at    string // name of the host with its token
	epoch uint64
}

// move is one attempt, in the ledgers of both hosts.
type move struct {
	started, reclaimed bool
	left               bool // the stream went through
	commit             *migration.Commit
}

// host is one end of a move. An operation that it has no method for panics: it is never asked.
type host struct {
	migration.Host
	fleet          *fleet
	name, provider string
}

func key(ref migration.Ref) string { return fmt.Sprintf("%s/%d", ref.Migration, ref.Attempt) }

func (f *fleet) moveLocked(ref migration.Ref) *move {
	m := f.moves[key(ref)]
	if m == nil {
		m = &move{}
		f.moves[key(ref)] = m
	}
	return m
}

// fails is true for one in n.
func (f *fleet) fails(n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rand.IntN(n) == 0
}

func (h *host) Describe(context.Context) (migration.Description, error) {
	return migration.Description{Name: h.name, ProviderUUID: h.provider, HostUUID: h.provider, Mode: "manage", Providers: []string{h.provider}}, nil
}

func (h *host) Inspect(_ context.Context, ref migration.Ref) (migration.Guest, error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	instance := ref.Instance
	g := h.fleet.guests[instance]
	if g == nil || g.at != h.name {
		return migration.Guest{}, fault.New(fault.NotFound, "instance %s is not on host %s", instance, h.name)
	}
	return migration.Guest{
		UUID: instance, Name: instance, Resources: size, Allocations: allocation(h.provider), ProjectID: "contention", UserID: "contention",
		Epoch: g.epoch, PowerState: migration.PowerRunning, Persistent: true,
	}, nil
}

func (h *host) CheckDestination(ctx context.Context, _ migration.Ref, _ migration.CheckRequest) (migration.CheckAnswer, error) {
	d, err := h.Describe(ctx)
	return migration.CheckAnswer{Destination: d}, err
}

func (h *host) Claim(_ context.Context, ref migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	return migration.ClaimAnswer{Claim: key(ref), Resources: size, Allocations: allocation(h.provider), Ticket: key(ref), Lease: c.Lease}, nil
}

func (h *host) RenewClaim(context.Context, migration.Ref) error { return nil }

func (h *host) AbortClaim(context.Context, migration.Ref) error { return nil }

// The steps after the swap fail now and then, each in its own way.

func (h *host) CheckSource(context.Context, migration.Ref, migration.CheckAnswer) (migration.SourceAnswer, error) {
	if h.fleet.fails(12) {
		return migration.SourceAnswer{}, fault.New(fault.Forbidden, "host %s: the guest cannot leave", h.name)
	}
	return migration.SourceAnswer{}, nil
}

func (h *host) RecordContext(context.Context, migration.Ref, migration.Context) error { return nil }

func (h *host) DropContext(context.Context, migration.Ref) error { return nil }

func (h *host) PreLiveMigration(context.Context, migration.Ref, migration.PreLiveRequest) (migration.Prepared, error) {
	if h.fleet.fails(12) {
		return migration.Prepared{}, fault.New(fault.Internal, "host %s: hook pre_live_migration/10-x failed", h.name)
	}
	return migration.Prepared{LibvirtURI: h.name}, nil
}

func (h *host) RollbackPreLiveMigration(context.Context, migration.Ref) error { return nil }

// StartStream moves the guest at once, or breaks off.
func (h *host) StartStream(_ context.Context, ref migration.Ref, _ migration.Stream) error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	m := h.fleet.moveLocked(ref)
	if m.reclaimed {
		return fault.New(fault.Forbidden, "host %s: the stream of %s was undone", h.name, key(ref))
	}
	if !m.started {
		m.started, m.left = true, h.fleet.rand.IntN(12) != 0
	}
	return nil
}

func (h *host) StreamStatus(_ context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	m := h.fleet.moveLocked(ref)
	st := migration.StreamStatus{Domain: migration.DomainView{Exists: true, State: "running"}, Ledger: migration.LedgerHere}
	switch {
	case m.commit != nil:
		st.Ledger = migration.LedgerSurrendered
	case m.reclaimed:
		st.Ledger = migration.LedgerReclaimed
	}
	if m.left {
		st.Domain = migration.DomainView{Exists: true, State: "shut off", Reason: "migrated"}
	}
	return st, nil
}

func (h *host) Commit(_ context.Context, ref migration.Ref) (migration.Commit, error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	m, g := h.fleet.moveLocked(ref), h.fleet.guests[ref.Instance]
	if m.commit != nil {
		return *m.commit, nil
	}
	if m.reclaimed || !m.left || g.at != h.name {
		return migration.Commit{}, fault.New(fault.Forbidden, "host %s: commit %s: the guest is here", h.name, key(ref))
	}
	m.commit = &migration.Commit{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: g.epoch + 1,
		From: h.name, Power: migration.PowerRunning}
	g.at = "" // in transit
	return *m.commit, nil
}

func (h *host) Reclaim(_ context.Context, ref migration.Ref) error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	m := h.fleet.moveLocked(ref)
	if m.commit != nil || m.left {
		return fault.New(fault.Forbidden, "host %s: reclaim %s: the guest has left", h.name, key(ref))
	}
	m.reclaimed = true
	return nil
}

func (h *host) AcceptToken(_ context.Context, _ migration.Ref, c migration.Commit) error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	g := h.fleet.guests[c.Instance]
	if g.epoch < c.Epoch {
		g.at, g.epoch = h.name, c.Epoch
	}
	return nil
}

func (h *host) FinishDestination(context.Context, migration.Ref) error { return nil }

func (h *host) CleanUpSource(context.Context, migration.Ref) error { return nil }
