package agent

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/agent/auditor"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/migration"
)

// The fleet's record of an instance is what its dead host wrote last. A migration that Berth did not
// conduct may have taken the instance elsewhere since. So each living host is asked, before a dead
// host's instance is given to another, whether the instance is there.

// evacuationAsk bounds the question to one host. Arbitrary: it is answered from memory and libvirt's list.
const evacuationAsk = 5 * time.Second

// takeOverAnswer is what a host knows of an instance, and what is open there of the migration that the
// instance was on when its host died; empty for nothing. Of a host that is dead nothing is known, and of
// one that is alive by its lease, and did not answer, why not.
type takeOverAnswer struct {
	auditor.Known
	open, cut string
	dead      bool
}

// takeOverReasons are why an instance of a dead host is not given to another: a host has it, has its
// migration, or does not say. answers are by host, and silent says of each other host why it did not answer.
func takeOverReasons(self string, in fleet.Instance, answers map[string]takeOverAnswer, silent map[string]string) (out []fault.Reason) {
	instance, source, epoch := in.UUID, in.Host, in.Epoch
	for _, host := range slices.Sorted(maps.Keys(answers)) {
		k := answers[host]
		switch {
		case k.Owner && k.Epoch >= epoch:
			out = append(out, fault.Reason{
				Code: "owned_elsewhere", Message: "by its own ledger host " + host + " has instance " + instance + ", and by the fleet's records " + source + " had it", Have: host, Want: source,
				Change: "nothing is to be evacuated: look at it with berth instance show " + instance + " -c " + host,
			})
		case k.Active:
			out = append(out, fault.Reason{
				Code: "runs_elsewhere", Message: "instance " + instance + " is active on host " + host + ", and by the fleet's records " + source + " had it: a migration may have brought it there", Have: host, Want: source,
				Change: "bring " + source + " back: it gives the instance to " + host + "; or end the instance, virsh shutdown " + instance + " on " + host + ", and ask again: it starts from its disks",
			})
		case k.dead:
			out = append(out, fault.Reason{
				Code: "on_a_move", Message: "when host " + source + " was lost, instance " + instance + " was on migration " + in.Moving + ", and host " + host + ", which counts as dead, may have accepted it", Have: in.Moving,
				Change: "bring " + host + " back; or, once its own instances were evacuated, berth host forget " + host,
			})
		case k.open != "":
			out = append(out, fault.Reason{
				Code: "on_a_move", Message: "when host " + source + " was lost, instance " + instance + " was on migration " + in.Moving + ", which may have taken it elsewhere: on " + host + " " + k.open, Have: in.Moving,
				Change: "berth -c " + host + " migration settle " + in.Moving + " --guest-is-at HOST --gone " + source + ` --reason "what you have checked"`,
			})
		case k.cut != "":
			out = append(out, fault.Reason{
				Code: migration.ReasonHostSilent, Message: "host " + host + ", which is alive by its lease, does not say to " + self + " whether instance " + instance + " is there: " + k.cut, Have: host,
				Change: "start its agent (systemctl start berth), see to the network from " + self + " to " + host + ", or ask a host that reaches it: berth -c OTHER evacuate " + instance,
			})
		case k.Unsure != "":
			out = append(out, fault.Reason{
				Code: migration.ReasonLibvirtSilent, Message: "libvirt on host " + host + " does not say whether instance " + instance + " is there: " + k.Unsure, Have: host,
				Change: "systemctl restart libvirtd on " + host + ": its guests run on",
			})
		}
	}
	for _, host := range slices.Sorted(maps.Keys(silent)) {
		out = append(out, fault.Reason{
			Code: migration.ReasonHostSilent, Message: "host " + host + " does not say whether instance " + instance + " is there: " + silent[host], Have: host,
			Change: "start its agent (systemctl start berth); or, where the host is lost, berth host fence " + host + ", or berth host declare-dead " + host + ` --reason "how you know"`,
		})
	}
	return out
}

// notElsewhere refuses to give an instance of a dead host to another while a living one has it, or does not
// say. Hosts that count as dead are not asked, and one that is silent may be proven dead by its lease, as
// where several fail together. Nor are those asked that have never answered this host, where no
// leases tell who is alive: the two may have no way to each other. Of an instance that was on a migration
// each host has to answer, one that counts as dead too: it may have accepted the instance, and have died
// before a record said so. Hosts without a record are asked too, and their silence is excused.
func (a *Agent) notElsewhere(ctx context.Context, records *fleet.Records, in fleet.Instance) error {
	consumers, moving := []string{in.UUID}, in.Moving != "" && in.Moving != in.Migration
	if moving {
		consumers = append(consumers, in.Moving)
	}
	hosts, err := records.Hosts(ctx)
	unreadable, err := fleet.Unreadable(err)
	if err != nil {
		return err
	}
	dead, err := deadNames(ctx, records)
	if err != nil {
		return err
	}
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	for _, key := range unreadable {
		names = append(names, fleet.NameOf(key))
	}
	unrecorded, err := unrecordedHosts(ctx, a, names)
	if err != nil {
		a.log.Warn("which hosts without a record could have an instance of a dead host is not known", "instance", in.UUID, "error", err)
	}
	answers, silent := map[string]takeOverAnswer{}, map[string]string{}
	answers[a.name] = answerOf(a.facts().Knows(ctx, consumers))
	var mu sync.Mutex // guards answers and silent
	var group runtime.Group
	places := make(chan struct{}, mostAsked)
	for _, host := range names {
		if host == a.name || host == in.Host {
			continue
		}
		if dead[host] {
			if moving {
				mu.Lock()
				answers[host] = takeOverAnswer{dead: true}
				mu.Unlock()
			}
			continue
		}
		group.Go(a.rt, "ask "+host+" for an instance of a dead host", func() {
			places <- struct{}{}
			defer func() { <-places }()
			k, err := knowsInstance(ctx, a, host, consumers)
			var alive error
			if err != nil && records.HasLeases() {
				_, _, alive = a.deaths.Prove(ctx, host, "host:"+a.name)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && records.HasLeases() && alive == nil:
				if moving {
					answers[host] = takeOverAnswer{dead: true}
				}
				return
			case fault.HasReason(alive, fleet.ReasonLeaseStands):
				answers[host] = takeOverAnswer{cut: err.Error()}
				return
			case err != nil:
				silent[host] = err.Error()
				return
			}
			answers[host] = k
		})
	}
	for _, host := range unrecorded {
		if host == in.Host || dead[host] {
			continue
		}
		// All at once: most of them may have no agent, and each is waited for.
		group.Go(a.rt, "ask "+host+", which has no record, for an instance of a dead host", func() {
			k, err := knowsInstance(ctx, a, host, consumers)
			if err != nil {
				return // Berth may not run there
			}
			mu.Lock()
			defer mu.Unlock()
			answers[host] = k
		})
	}
	group.Wait(a.rt)
	if !records.HasLeases() && !moving {
		maps.DeleteFunc(silent, func(host, why string) bool {
			never := neverAnswered(ctx, a, host)
			if never {
				a.log.Warn("a host that has never answered is not asked for an instance of a dead host", "asked", host, "instance", in.UUID, "error", why)
			}
			return never
		})
	}
	return takeOverRefused(takeOverReasons(a.name, in, answers, silent))
}

// unrecordedHosts gives the other hosts that Placement or [peers] has and that keep no record, as one that only
// observes. Those are left out that an operator has said to be without Berth.
func unrecordedHosts(ctx context.Context, a *Agent, recorded []string) ([]string, error) {
	ctx, cancel := a.rt.WithTimeout(ctx, evacuationAsk)
	defer cancel()
	names, err := auditPeers{a}.Hosts(ctx)
	return slices.DeleteFunc(names, func(name string) bool {
		return slices.Contains(recorded, name) || slices.Contains(a.config().Host.HostsWithoutBerth, name)
	}), err
}

// takeOverRefused is fault.Unavailable where hosts are only silent, as one is whose agent restarts: it is
// asked again. Where a host has the instance it is fault.Forbidden.
func takeOverRefused(reasons []fault.Reason) error {
	kind := fault.Unavailable
	if slices.ContainsFunc(reasons, func(r fault.Reason) bool {
		return r.Code != migration.ReasonHostSilent && r.Code != migration.ReasonLibvirtSilent
	}) {
		kind = fault.Forbidden
	}
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(kind, "", reasons...)
}

// answerOf reads an answer about an instance, and about its migration where that was asked for.
func answerOf(known []auditor.Known) takeOverAnswer {
	out := takeOverAnswer{Known: known[0]}
	if len(known) > 1 {
		out.open = known[1].Busy
	}
	return out
}

func knowsInstance(ctx context.Context, a *Agent, host string, consumers []string) (takeOverAnswer, error) {
	c, err := a.peers.client(host)
	if err != nil {
		return takeOverAnswer{}, err
	}
	ctx, cancel := a.rt.WithTimeout(ctx, evacuationAsk)
	defer cancel()
	known, err := c.Knows(ctx, consumers)
	if err == nil && !slices.EqualFunc(known, consumers, func(k auditor.Known, id string) bool { return k.Consumer == id }) {
		err = fault.New(fault.Internal, "host %s answered about something else", host)
	}
	if err != nil {
		return takeOverAnswer{}, err
	}
	return answerOf(known), nil
}

// neverAnswered reports whether a host has not answered this one at any time.
func neverAnswered(ctx context.Context, a *Agent, host string) bool {
	if !a.peers.answered(host).Answered.IsZero() {
		return false
	}
	ever := map[string]bool{}
	raw, found, err := a.db.Get(ctx, store.BucketAgent, keyAnswered)
	if err == nil && found {
		err = json.Unmarshal(raw, &ever)
	}
	return err == nil && !ever[host]
}
