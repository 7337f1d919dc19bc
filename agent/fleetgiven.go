package agent

import (
	"context"
	"errors"

	"berth/agent/host"
	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
)

// gave gives the commit of this host's ledger by which it gave an instance away that it does not
// have; false where there is none.
func (k *keeper) gave(id string) (migration.Commit, bool) {
	inst, known := k.a.tracker.Instance(id)
	if !known {
		return k.a.tracker.GaveAway(id)
	}
	return migration.Commit{Instance: id, To: inst.Token.Holder, Epoch: inst.Token.Epoch}, inst.Token.State == claims.TokenSurrendered
}

// handBack hands over the records that name this host, of instances that it gave away by commits of
// its ledger with higher epochs. A store that was restored has such records, and where records have
// owners the new hosts cannot write them. One that fails keeps no other from its turn.
func (k *keeper) handBack(ctx context.Context) error {
	all, err := k.records.Instances(ctx, k.a.name)
	if _, err = fleet.Unreadable(err); err != nil {
		return err
	}
	var failed error
	for _, rec := range all {
		c, gave := k.gave(rec.UUID)
		if !gave || c.Epoch <= rec.Epoch || host.YieldUnproven(k.a.host, rec.UUID) {
			continue
		}
		k.a.log.Warn("the fleet's record of an instance is older than this host's commit, and is handed over", "instance", rec.UUID, "epoch", rec.Epoch, "commit", c.Epoch, "host", c.To)
		err := k.records.HandOver(ctx, rec.UUID, k.a.name, c.To, c.Epoch)
		failed = errors.Join(failed, err)
		if fault.KindOf(err) == fault.Unavailable || ctx.Err() != nil {
			break
		}
	}
	return failed
}
