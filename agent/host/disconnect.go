package host

import (
	"context"
	"slices"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/networks"
	"berth/agent/host/volumes"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

const (
	memoryDisconnect = "disconnected"
)

// disconnected is the record of Disconnect: what is taken away, before it is.
//
//	record       found by Disconnect       found by Reconnect
//	none         looks, records, takes     nothing
//	not Done     takes what is on record   gives back what is on record
//	Done         nothing                   gives back what is on record
//
// It ends with Reconnect, with the guest's return, or with the confirmation of its move.
type disconnected struct {
	Networks []networks.Taken `json:"networks,omitempty"`
	Volumes  []volumes.Taken  `json:"volumes,omitempty"`
	Done     bool             `json:"done,omitempty"`
}

// disconnect does operation.Disconnect.
func (h *Host) disconnect(ctx context.Context, ref migration.Ref) error {
	if err := h.offForMove(ctx, ref); err != nil {
		return err
	}
	was, _, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return err
	}
	rec, found, err := memory.Recall[disconnected](h.memory, ref, memoryDisconnect)
	if err != nil || found && rec.Done {
		return err
	}
	c, err := h.connectionsOf(ctx, was.Definition)
	if err != nil {
		return err
	}
	if !found {
		if err := h.nobodyWrites(c); err != nil {
			return err
		}
		if rec, err = c.attached(ctx, ref.Instance); err != nil {
			return err
		}
		if err := h.memory.Remember(ctx, ref, memoryDisconnect, rec); err != nil {
			return err
		}
	}
	for _, x := range rec.Networks {
		if kind := c.networkOf(x.Kind); kind != nil {
			if err := kind.Take(ctx, ref.Instance, x); err != nil {
				return err
			}
		}
	}
	for _, x := range rec.Volumes {
		if kind := c.volumeOf(x.Kind); kind != nil {
			if err := kind.Take(ctx, x, func(p driver.Pool) (bool, error) { return h.poolInUse(ctx, p, another(ref.Instance)) }); err != nil {
				return err
			}
		}
	}
	if err := h.phases.Run(ctx, ref, was.phase(h, hooks.PrepSnapshotBasedResizeAtSource)); err != nil {
		return err
	}
	rec.Done = true
	return h.memory.Remember(ctx, ref, memoryDisconnect, rec)
}

// another is every guest but one: also one that is off may be started again at any time.
func another(uuid string) func(driver.Domain) bool {
	return func(d driver.Domain) bool { return d.UUID != uuid }
}

// nobodyWrites refuses a guest whose disks a process has open for writing, though it is
// off: where they go along, or are shared, that would be a second writer. What several
// guests may write is theirs.
func (h *Host) nobodyWrites(c connections) error {
	files := map[string]string{}
	for _, d := range c.disks {
		if (d.Type == "file" || d.Type == "block") && d.Path != "" && !d.ReadOnly && !d.Shareable {
			files[d.Path] = d.Target
		}
	}
	var no refusal
	writers, err := h.witness.Written(files)
	if err != nil {
		return err
	}
	no.add(fault.Forbidden, writers...)
	return no.err("")
}

// attached is what still stands here of a guest that is off.
func (c connections) attached(ctx context.Context, guest string) (disconnected, error) {
	var rec disconnected
	for _, n := range c.nics {
		for _, kind := range c.networks {
			if !kind.Serves(n) {
				continue
			}
			x, err := kind.Bound(ctx, guest, n)
			if err != nil {
				return rec, err
			}
			if x != nil {
				rec.Networks = append(rec.Networks, *x)
			}
		}
	}
	for _, d := range c.disks {
		for _, kind := range c.volumes {
			if !kind.Serves(d) {
				continue
			}
			x, err := kind.Attached(ctx, d)
			if err != nil {
				return rec, err
			}
			if x != nil && !slices.ContainsFunc(rec.Volumes, func(o volumes.Taken) bool { return o.Kind == x.Kind && o.Pool == x.Pool }) {
				rec.Volumes = append(rec.Volumes, *x)
			}
		}
	}
	return rec, nil
}

// reconnect does operation.Reconnect.
func (h *Host) reconnect(ctx context.Context, ref migration.Ref) error {
	hooked, err := h.giveConnectionsBack(ctx, ref)
	if hooked != nil {
		// The guest does not stay off for a hook: PowerOn, which comes after this, starts it
		// and has the hooks run again until they succeed.
		h.log.Error("a hook failed that gives a guest its volumes and networks back; it is run again", "instance", ref.Instance, "migration", ref.Migration, "error", hooked)
	}
	return err
}

// giveConnectionsBack restores what Disconnect of this attempt, or of the last one before
// it, took away. hooked is a hook that failed: what it gives back is missing, and all else
// was done; the record stays for the next try. The caller has the instance's turn, and
// the guest is this host's. Safe to repeat.
func (h *Host) giveConnectionsBack(ctx context.Context, ref migration.Ref) (hooked, err error) {
	list := h.memory.Attempts(ref, memoryDisconnect)
	if len(list) == 0 {
		return nil, nil
	}
	ref = list[0]
	rec, _, err := memory.Recall[disconnected](h.memory, ref, memoryDisconnect)
	if err != nil {
		return nil, err
	}
	was, _, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return nil, err
	}
	// The other way round: what they attach may be what a pool stands on.
	hooked = h.phases.Run(ctx, ref, was.phase(h, hooks.RollbackPrepSnapshotBasedResizeAtSource))
	if err := h.restoreConnections(ctx, ref.Instance, rec); err != nil || hooked != nil {
		return hooked, err
	}
	if err := h.phases.Forget(ctx, ref, hooks.PrepSnapshotBasedResizeAtSource, hooks.RollbackPrepSnapshotBasedResizeAtSource); err != nil {
		return nil, err
	}
	return nil, h.tracker.Unremember(ctx, memory.At(ref, memoryDisconnect))
}

func (h *Host) restoreConnections(ctx context.Context, guest string, rec disconnected) error {
	if len(rec.Networks) == 0 && len(rec.Volumes) == 0 {
		return nil
	}
	connector, err := h.connector(ctx)
	if err != nil {
		return err
	}
	c := h.connectedBy(connector)
	for _, x := range slices.Backward(rec.Volumes) {
		if kind := c.volumeOf(x.Kind); kind != nil {
			if err := kind.Restore(ctx, x); err != nil {
				return err
			}
		}
	}
	d, exists, err := h.domain(ctx, guest)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		return nil // its user was first: libvirt has plugged it in, and a second port would be one too many
	}
	for _, x := range slices.Backward(rec.Networks) {
		if kind := c.networkOf(x.Kind); kind != nil {
			if err := kind.Restore(ctx, guest, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// elsewhereConnected reports whether what a guest stood on was taken away from here by
// this migration, by hooks too: then its devices may be missing until it comes back.
func (h *Host) elsewhereConnected(ref migration.Ref) bool {
	return len(h.memory.Attempts(ref, memoryDisconnect)) > 0
}

// startedPools implements volumes.Started: one list in the ledger, of this boot of the
// host. libvirt's own autostart is another boot's matter.
type startedPools struct{ h *Host }

// startedRecord is the list.
type startedRecord struct {
	Boot  string   `json:"boot"`
	Pools []string `json:"pools"`
}

var startedRef = migration.Ref{Migration: "pools", Instance: "host", Attempt: 1, Step: "started"}

func (s startedPools) list() ([]string, error) {
	var rec startedRecord
	if _, err := s.h.tracker.Recall(startedRef, &rec); err != nil {
		return nil, fault.New(fault.KindOf(err), "read which storage pools were started: %w", err)
	}
	if rec.Boot != s.h.rt.Boot().ID {
		return nil, nil
	}
	return rec.Pools, nil
}

func (s startedPools) change(ctx context.Context, f func([]string) []string) error {
	if err := s.h.pooling.Lock(ctx, s.h.rt); err != nil {
		return err
	}
	defer s.h.pooling.Unlock()
	was, err := s.list()
	if err != nil {
		return err
	}
	now := f(slices.Clone(was))
	switch {
	case slices.Equal(was, now):
		return nil
	case len(now) == 0:
		return s.h.tracker.Unremember(ctx, startedRef)
	}
	return wrap(s.h.tracker.Remember(ctx, startedRef, startedRecord{Boot: s.h.rt.Boot().ID, Pools: now}), "record which storage pools were started")
}

func (s startedPools) Note(ctx context.Context, pool string) error {
	return s.change(ctx, func(all []string) []string {
		if slices.Contains(all, pool) {
			return all
		}
		return append(all, pool)
	})
}

func (s startedPools) Drop(ctx context.Context, pool string) error {
	return s.change(ctx, func(all []string) []string {
		return slices.DeleteFunc(all, func(p string) bool { return p == pool })
	})
}

func (s startedPools) Has(pool string) (bool, error) {
	all, err := s.list()
	return slices.Contains(all, pool), err
}
