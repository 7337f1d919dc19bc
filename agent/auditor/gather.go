package auditor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"berth/agent/audit"
	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
)

// look is one audit in progress.
type look struct {
	a      *Auditor
	order  Order
	in     audit.Input
	silent map[string]string
}

// The parts that may be silent beside hosts.
const (
	silentPlacement = "placement"
	silentLibvirt   = "libvirt"
)

// gather reads what the join needs. Placement's lists come first and the ledger
// after them: a guest that was made or deleted in between is then read whole, and
// found to be as the ledger has it.
//
// What was read while the host changed its shape belongs to no tree, and is read again.
func (l *look) gather(ctx context.Context) {
	for range 2 {
		l.gatherOnce(ctx)
		if now, known := l.a.o.Tree(); l.in.Placement.Why != "" || known && sameShape(now, l.in.Tree) {
			return
		}
	}
	l.in.Placement = audit.Placement{Why: "the host changes its shape in Placement: ask again"}
	l.silent[silentPlacement] = l.in.Placement.Why
}

// sameShape reports whether claims are counted on the same providers of both trees.
func sameShape(a, b *inventory.Tree) bool {
	return a.Shape == b.Shape && a.Disk == b.Disk &&
		slices.EqualFunc(a.Providers, b.Providers, func(x, y inventory.Provider) bool { return x.UUID == y.UUID })
}

func (l *look) gatherOnce(ctx context.Context) {
	l.in = audit.Input{Host: l.a.o.Host, Fleet: map[string]audit.Answer{}, Names: map[string]string{}}
	if err := l.lists(ctx); err != nil {
		l.in.Placement.Why = err.Error()
		l.silent[silentPlacement] = err.Error()
	}
	l.domains(ctx)
	l.in.Ledger = l.a.o.Ledger()
	if l.in.Placement.Why != "" {
		return
	}
	for _, consumer := range audit.Unread(l.in) {
		l.whole(ctx, consumer)
	}
	// What was written in between, its verb has recorded by now.
	l.in.Ledger = l.a.o.Ledger()
	for _, consumer := range audit.Unread(l.in) {
		l.whole(ctx, consumer)
	}
	l.ask(ctx, &l.in, audit.Strangers(l.in))
}

// lists reads who holds what of each provider. A provider that is not there means
// that Placement has lost its database or was restored from before the host came:
// then the tree is reported first.
func (l *look) lists(ctx context.Context) error {
	if l.order.Report {
		if err := l.a.o.Report(ctx); err != nil {
			return err
		}
	}
	for reported := l.order.Report; ; reported = true {
		tree, known := l.a.o.Tree()
		if !known {
			return fault.New(fault.Unavailable, "the host has not been compared with Placement yet")
		}
		l.in.Tree = tree
		l.in.Placement = audit.Placement{
			Providers: map[string]map[string]placementclient.Resources{}, Consumers: map[string]placementclient.Allocations{},
		}
		err := l.list(ctx, tree)
		if !errors.Is(err, fault.NotFound) || reported || l.a.o.Report == nil {
			return err
		}
		if err := l.a.o.Report(ctx); err != nil {
			return err
		}
	}
}

func (l *look) list(ctx context.Context, tree *inventory.Tree) error {
	var all []string
	for _, p := range append(slices.Clone(tree.Providers), tree.Retired...) {
		all = append(all, p.UUID)
	}
	if tree.Disk != "" && !tree.Owns(tree.Disk) {
		all = append(all, tree.Disk)
	}
	for _, rp := range all {
		l.a.calls.reads.Add(1)
		got, err := l.a.o.Placement.ProviderAllocations(ctx, rp)
		if err != nil {
			return err
		}
		l.in.Placement.Providers[rp] = got.Allocations
	}
	return nil
}

func (l *look) domains(ctx context.Context) {
	list, err := l.a.o.Domains(ctx)
	l.in.Domains = audit.Domains{List: list}
	if err != nil {
		l.in.Domains = audit.Domains{Why: err.Error()}
		l.silent[silentLibvirt] = err.Error()
	}
}

// whole reads a consumer. One that could not be read is not known.
func (l *look) whole(ctx context.Context, consumer string) {
	l.a.calls.reads.Add(1)
	got, err := l.a.o.Placement.Allocations(ctx, consumer)
	if err != nil {
		delete(l.in.Placement.Consumers, consumer)
		l.silent[silentPlacement] = err.Error()
		return
	}
	l.in.Placement.Consumers[consumer] = got
}

// ask asks other hosts for consumers that may be theirs. Hosts are asked once each,
// for all that concerns them; the answers are left in the input's Fleet.
func (l *look) ask(ctx context.Context, in *audit.Input, strangers []string) {
	if l.a.o.Peers == nil || len(strangers) == 0 {
		return
	}
	of := map[string][]string{} // hosts to ask, by consumer
	var everyone []string
	if l.order.AskAll {
		hosts, err := l.a.o.Peers.Hosts(ctx)
		if err != nil {
			l.silent[silentPlacement] = err.Error()
			return
		}
		everyone = hosts
	}
	questions := map[string][]string{}
	for _, c := range strangers {
		hosts := slices.Clone(everyone)
		for _, i := range in.Ledger.Instances {
			if i.UUID == c && !i.Here && i.Holder != "" {
				hosts = append(hosts, i.Holder)
			}
		}
		for _, rp := range slices.Sorted(maps.Keys(in.Placement.Consumers[c].Allocations)) {
			if !in.Tree.Uses(rp) {
				hosts = append(hosts, l.hostOf(ctx, rp))
			}
		}
		slices.Sort(hosts)
		of[c] = slices.DeleteFunc(slices.Compact(hosts), func(h string) bool { return h == l.a.o.Host })
		for _, h := range of[c] {
			if !strings.HasPrefix(h, nameless) {
				questions[h] = append(questions[h], c)
			}
		}
	}
	answers := l.question(ctx, questions)
	for _, c := range strangers {
		if len(of[c]) > 0 {
			in.Fleet[c] = fold(c, of[c], answers)
		}
	}
}

// atOnce is how many hosts are asked at a time: one that does not answer costs its
// patience, and must not cost it once for each such host. Arbitrary.
const atOnce = 16

// question asks hosts for consumers, and gives the answers by host and consumer.
func (l *look) question(ctx context.Context, questions map[string][]string) map[string]map[string]Known {
	var mu sync.Mutex // guards next, answers and l.silent; nothing blocks under it
	var asking runtime.Group
	answers, next := map[string]map[string]Known{}, slices.Sorted(maps.Keys(questions))
	ask := func() (host string, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(next) == 0 {
			return "", false
		}
		host, next = next[0], next[1:]
		return host, true
	}
	for range min(atOnce, len(questions)) {
		asking.Go(l.a.o.Runtime, "ask other hosts", func() {
			for host, more := ask(); more; host, more = ask() {
				l.a.calls.peers.Add(1)
				known, err := l.a.o.Peers.Knows(ctx, host, questions[host])
				mu.Lock()
				if err != nil {
					l.silent[host] = err.Error()
				} else {
					answers[host] = map[string]Known{}
					for _, k := range known {
						answers[host][k.Consumer] = k
					}
				}
				mu.Unlock()
			}
		})
	}
	asking.Wait(l.a.o.Runtime)
	return answers
}

// nameless begins what stands for a host that cannot be named, and so does not answer.
const nameless = "the host of provider "

// hostOf names the host of a provider: its root's name.
func (l *look) hostOf(ctx context.Context, rp string) string {
	if name, known := l.in.Names[rp]; known {
		return name
	}
	l.a.calls.reads.Add(1)
	p, err := l.a.o.Placement.Provider(ctx, rp)
	if err == nil && !p.IsRoot() {
		l.a.calls.reads.Add(1)
		p, err = l.a.o.Placement.Provider(ctx, p.RootProviderUUID)
	}
	if err != nil {
		l.silent[silentPlacement] = err.Error()
		return nameless + rp
	}
	l.in.Names[rp] = p.Name
	return p.Name
}

// fold makes one answer of what several hosts said of a consumer. Whoever is about
// to change it counts most, then its owner, then silence.
func fold(consumer string, hosts []string, answers map[string]map[string]Known) audit.Answer {
	var moving, busy, owner, silent []string
	for _, h := range hosts {
		all, answered := answers[h]
		k, said := all[consumer]
		switch {
		case !answered || !said:
			silent = append(silent, h)
		case k.Busy != "" && k.Moving:
			moving = append(moving, h+": "+k.Busy)
		case k.Busy != "":
			busy = append(busy, h+": "+k.Busy)
		case k.Owner:
			owner = append(owner, h)
		case k.Unsure != "":
			silent = append(silent, h+": "+k.Unsure)
		}
	}
	for _, c := range []struct {
		is    audit.Fleet
		words []string
	}{{audit.FleetMoving, moving}, {audit.FleetBusy, busy}, {audit.FleetOwner, owner}, {audit.FleetSilent, silent}} {
		if len(c.words) > 0 {
			return audit.Answer{Fleet: c.is, Words: strings.Join(c.words, ", ")}
		}
	}
	return audit.Answer{Fleet: audit.FleetNobody, Words: strings.Join(hosts, ", ")}
}
