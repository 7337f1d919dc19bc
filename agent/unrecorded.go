package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/agent/death"
	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/drain"
	"berth/placementclient"
)

// unrecorded is an instance that is on a host by Placement or by another host's ledger, and of which
// the fleet has no record. Nobody knows its definition, so it is named and not evacuated.
type unrecorded struct {
	instance string
	why      string
}

// unrecordedOn gives those of a host, in order of uuid. Placement says which there are. Where it has no
// provider of the host, it may have been emptied: then the ledgers are asked. An instance that was
// deleted on that host is named there too. recorded are instances with a record, and left what was
// evacuated from the host: of those nobody is asked.
func unrecordedOn(ctx context.Context, host string, place *placementclient.Client, records *fleet.Records, recorded []fleet.Instance, left []fleet.Evacuated, ledgers func(context.Context) []api.Knowledge) ([]unrecorded, error) {
	why, err := countedOn(ctx, place, host)
	counted := !errors.Is(err, fault.NotFound)
	if !counted {
		why, err = wentTo(host, ledgers(ctx)), nil
	}
	if err != nil {
		return nil, err
	}
	for _, in := range recorded {
		delete(why, in.UUID)
	}
	for _, e := range left {
		delete(why, e.Migration)
	}
	var out []unrecorded
	for _, id := range slices.Sorted(maps.Keys(why)) {
		_, _, err := records.Instance(ctx, id)
		switch kind := fault.KindOf(err); {
		case err == nil, kind == fault.Internal, kind == fault.Invalid: // one that cannot be read is named by whoever lists them
			continue
		case kind != fault.NotFound || fault.HasReason(err, fleet.NoStore):
			return nil, err
		}
		if counted {
			now, err := place.Allocations(ctx, id)
			if err != nil {
				return nil, err
			}
			if now.ConsumerType == placementclient.ConsumerMigration || len(now.Allocations) == 0 {
				continue
			}
		}
		out = append(out, unrecorded{id, why[id]})
	}
	return out, nil
}

// countedOn gives the consumers of a host's providers, migrations included, with who says so.
// fault.NotFound where Placement has no such host.
func countedOn(ctx context.Context, place *placementclient.Client, host string) (map[string]string, error) {
	root, err := place.ProviderByName(ctx, host)
	if err != nil {
		return nil, err
	}
	tree, err := place.ProvidersInTree(ctx, root.UUID)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, rp := range tree {
		held, err := place.ProviderAllocations(ctx, rp.UUID)
		if err != nil {
			return nil, err
		}
		for id := range held.Allocations {
			out[id] = "Placement counts it there"
		}
	}
	return out, nil
}

// wentTo gives the instances that ledgers say went to a host and that no ledger has elsewhere since,
// with who says so. A higher epoch is later.
func wentTo(host string, ledgers []api.Knowledge) map[string]string {
	last := map[string]claims.Token{}
	by := map[string]string{}
	for _, k := range ledgers {
		for _, i := range k.Instances {
			if was, seen := last[i.UUID]; !seen || i.Token.Epoch > was.Epoch || i.Token.Epoch == was.Epoch && i.Token.State == claims.TokenHere {
				last[i.UUID], by[i.UUID] = i.Token, k.Host
			}
		}
	}
	out := map[string]string{}
	for id, t := range last {
		if t.State == claims.TokenSurrendered && t.Holder == host {
			out[id] = fmt.Sprintf("host %s gave it to %s with epoch %d, and Placement does not have that host", by[id], host, t.Epoch)
		}
	}
	return out
}

// ledgersBut asks this host and all others but one whose instances are, by their ledgers. Those that
// do not answer are logged and left out.
func ledgersBut(a *Agent, but string) func(context.Context) []api.Knowledge {
	return func(ctx context.Context) []api.Knowledge {
		own := api.Knowledge{Host: a.name}
		for _, i := range a.tracker.Instances() {
			own.Instances = append(own.Instances, api.KnownInstance{UUID: i.UUID, Token: i.Token})
		}
		out := []api.Knowledge{own}
		names, err := auditPeers{a}.Hosts(ctx)
		if err != nil {
			a.log.Warn("which hosts could know of a dead host's instances is not known", "host", but, "error", err)
		}
		var mu sync.Mutex // guards out
		var group runtime.Group
		places := make(chan struct{}, 8)
		for _, name := range names {
			if name == but {
				continue
			}
			group.Go(a.rt, "ask "+name+" what went to "+but, func() {
				places <- struct{}{}
				defer func() { <-places }()
				k, err := a.ledger.askHost(ctx, name)
				if err != nil {
					a.log.Warn("a host does not say which instances it gave to a dead one", "asked", name, "host", but, "error", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				out = append(out, k)
			})
		}
		group.Wait(a.rt)
		return out
	}
}

// presentUnrecorded are those of a dead host as an evacuation lists them: they stay, with the reason.
// Where Placement does not answer one entry says so.
func presentUnrecorded(dead string, list []unrecorded, err error) []drain.Present {
	if err != nil {
		return []drain.Present{{Instance: dead, Name: "instances without a record", Power: "unknown", Blocked: []fault.Reason{{
			Code: "unrecorded_unknown", Message: "which instances are on " + dead + " without a record of the fleet is not known: " + err.Error(), Have: dead,
			Change: "berth evacuate --host " + dead + " again, once Placement and the fleet's records answer",
		}}}}
	}
	var out []drain.Present
	for _, u := range list {
		out = append(out, drain.Present{Instance: u.instance, Name: u.instance, Power: "unknown", Blocked: []fault.Reason{{
			Code: "no_record", Message: "the fleet has no record of it, so that nobody knows its definition; " + u.why, Have: dead, Change: death.UnrecordedAdvice,
		}}})
	}
	return out
}

// placedOn names the providers that Placement counts an instance on, by its uuid; empty where there
// are none, where it is no uuid, and where Placement does not answer: it is only told.
func placedOn(ctx context.Context, place *placementclient.Client, ref string) string {
	id, err := uuid.Parse(ref)
	if err != nil {
		return ""
	}
	now, err := place.Allocations(ctx, id.String())
	if err != nil {
		return ""
	}
	var names []string
	for rp := range now.Allocations {
		if p, err := place.Provider(ctx, rp); err == nil {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
