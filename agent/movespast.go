package agent

import (
	"context"
	"errors"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

// pastPatience bounds the look for a move on the other hosts, within what a person waits for
// an answer.
const pastPatience = 10 * time.Second

// past gives a move that nothing here says who conducts, by its uuid or by its guest's name or
// uuid: the newest that this host or one that answers remembers, one that is not over before
// any that is. No is why nothing here is known of it, and the error where nobody knows more.
func (s migrationService) past(ctx context.Context, ref string, no error) (migration.Migration, error) {
	var best migration.Migration
	take := func(m migration.Migration) {
		if best.UUID == "" || best.Done() && !m.Done() || best.Done() == m.Done() && best.CreatedAt.Before(m.CreatedAt) {
			best = m
		}
	}
	id := ref
	if known, err := s.a.host.Resolve(ctx, ref); err == nil {
		id = known
	}
	list, err := s.a.conductor.List(ctx)
	if err != nil {
		return best, err
	}
	for _, m := range list {
		if m.InstanceUUID == id || id == ref && m.InstanceName == ref { // not of an earlier guest of that name
			take(m)
		}
	}
	var silent []fault.Reason
	if _, passed := api.PassedOn(ctx); !passed {
		silent = s.remembered(ctx, id, take)
	}
	switch {
	case best.UUID != "":
		if best.UUID != ref { // its uuid names it, whoever else is silent
			for _, r := range silent {
				best.Unasked = append(best.Unasked, r.Want)
			}
		}
		return best, nil
	case len(silent) > 0:
		return best, fault.Refuse(fault.Unavailable, "show migration "+ref, append(fault.ReasonsOf(no), silent...)...)
	}
	return best, no
}

// remembered asks the other hosts for a move, and gives those that did not say.
func (s migrationService) remembered(ctx context.Context, ref string, take func(migration.Migration)) (silent []fault.Reason) {
	ctx, cancel := s.a.rt.WithTimeout(ctx, pastPatience)
	defer cancel()
	hosts, err := agentService(s).Hosts(ctx)
	if err != nil {
		return []fault.Reason{{Code: "host_silent", Message: "the other hosts are not known: " + err.Error(), Want: "the other hosts"}}
	}
	for _, h := range hosts {
		if h.Local || h.Address == "" {
			continue
		}
		why := h.Error
		if h.Reachable {
			peer, err := s.a.peers.client(h.Name)
			if err == nil {
				var m migration.Migration
				if m, err = peer.Migration(ctx, ref); err == nil {
					take(m)
				}
			}
			if err == nil || errors.Is(err, fault.NotFound) {
				continue
			}
			why = err.Error()
		}
		silent = append(silent, fault.Reason{
			Code: "host_silent", Message: "host " + h.Name + " could not be asked, and may remember it: " + why, Want: h.Name, Change: "ask it when it answers: berth migration show " + ref + " -c " + h.Name,
		})
	}
	return silent
}
