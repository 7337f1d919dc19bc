package sim

import (
	"context"

	agents "berth/agent"
	"berth/agent/api"
	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/migration"
)

// mayAsk says for the agent of a host what agent/api says, by its own table and the host's ledger,
// before the host is asked: whether who may ask for this. A host of the fleet has the right conduct.
func (a *agent) mayAsk(who string, access migration.Access, ref migration.Ref, names *migration.Named) error {
	if m := a.w.mutant; m != nil && m.NoParty || who == a.m.name {
		return nil
	}
	conduct, err := api.MayAsk(agents.PartiesOf(a.tracker), api.Asked{By: who, Host: a.m.name, Access: access, Migration: ref.Migration, Instance: ref.Instance, Names: names})
	if err == nil && conduct && a.w.machines[who] == nil {
		return fault.New(fault.Forbidden, "host %s has not the right conduct", who)
	}
	return err
}

// mayAskFor is mayAsk of an operation with its input.
func (a *agent) mayAskFor(who string, op *migration.Operation, ref migration.Ref, in any) error {
	if op.Names == nil {
		return a.mayAsk(who, op.Access, ref, nil)
	}
	names := op.Names(in)
	return a.mayAsk(who, op.Access, ref, &names)
}

// mayYield is the same of yield-token.
func (a *agent) mayYield(who string, ref migration.Ref) error {
	if m := a.w.mutant; m != nil && m.NoParty {
		return nil
	}
	return api.MayYield(agents.PartiesOf(a.tracker), who, ref.Migration)
}

// permitted says for the server of the fleet's records, by its own table, whether a host may write
// this. A host of the fleet has the right fence.
func (w *world) permitted(who string, changes []fleet.Change) error {
	if w.mutant != nil && w.mutant.NoPermit || w.story.Etcd {
		return nil
	}
	ctx := context.Background()
	return permit.Check(permit.Writer{Words: "host:" + who, Is: func(host string) bool { return host == who }, Fences: w.machines[who] != nil}, permit.Store{
		Get: func(key string) ([]byte, bool) {
			r, err := w.looker.Get(ctx, key)
			return r.Value, err == nil
		},
		Holders: func(instance string) ([]string, bool) {
			now, err := w.placement.admin.Allocations(ctx, instance)
			var hosts []string
			for _, name := range w.names {
				for _, p := range w.machines[name].tree.Providers {
					if _, counted := now.Allocations[p.UUID]; counted && !contains(hosts, name) {
						hosts = append(hosts, name)
					}
				}
			}
			return hosts, err == nil
		},
	}, changes)
}
