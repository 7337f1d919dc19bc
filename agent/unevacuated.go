package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/answers"
	"berth/agent/api"
	"berth/agent/death"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// unevacuated looks for hosts that have instances by the fleet's records and need an operator: dead ones
// that nobody has evacuated, and silent ones that nobody has declared dead. It asks for the deaths once in
// a while, and for instances only of a dead or silent host.
type unevacuated struct {
	a      *Agent
	memory death.Notes

	// The fields up to the blank line are the task's own.
	names []string             // of the other hosts on record
	read  time.Time            // when they were; zero for never
	last  map[string]time.Time // when each was asked last
	ever  map[string]bool      // those that have answered this host at any time; nil before it was read

	// mu guards what follows; nothing is called under it.
	mu     sync.Mutex
	hosts  []deadHost   // by the last look that was answered
	silent []silentHost // likewise
}

// silentHost is a host that does not answer, does not count as dead, and has instances.
type silentHost struct {
	name      string
	since     time.Time
	instances int
	// never: it has not answered this host at any time, and no lease says that it lived. The two may
	// have no way to each other.
	never bool
}

// keyAnswered is the durable list of the hosts that have answered this one at any time.
const keyAnswered = "answered"

// How the other hosts are looked at; arbitrary.
const (
	namesEvery = 10 * time.Minute // who they are is read
	mostAsked  = 16               // hosts are asked in one look where no leases tell who is alive
	silentLate = deadEvery / 2    // two looks in a row were not answered: one lost packet is no silence
	askAgain   = 10 * time.Second // those that are told as silent are asked, so that status is true soon after they are back
)

// deadHost is a host that counts as dead and has instances.
type deadHost struct {
	death fleet.Death
	names []string
}

// deadEvery is how often the deaths are read. It is a list of what is hardly ever there.
const deadEvery = time.Minute

// deadRecords are the fleet's records as a look asks them.
type deadRecords interface {
	Deaths(ctx context.Context) ([]fleet.Death, error)
	Instances(ctx context.Context, host string) ([]fleet.Instance, error)
}

// run looks until ctx ends. Without records there is nothing to look at.
func (u *unevacuated) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if records, err := u.a.fleetRecords(); err == nil && !u.a.observing() {
			u.look(ctx, records)
			u.lookAtSilent(ctx, records)
		}
		u.a.asked.Round(loopHosts, u.a.rt.Now())
		for waited := time.Duration(0); waited < deadEvery && ctx.Err() == nil; waited += askAgain {
			_ = u.a.rt.Sleep(ctx, askAgain) // its end is looked at in the loop
			u.ask(ctx, u.told())
		}
	}
	return nil
}

// look reads the deaths, and the instances of each dead host.
func (u *unevacuated) look(ctx context.Context, records deadRecords) {
	ctx, cancel := u.a.rt.WithTimeout(ctx, roundLimit)
	defer cancel()
	hosts, err := lostHosts(ctx, records, u.a.name)
	if err != nil && !errors.Is(err, fault.NotFound) { // a Placement that keeps no records has no deaths
		return // what was known stands; that the records are silent is the condition of the fleet
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hosts = hosts
}

// lostHosts gives the dead hosts that still have instances, but for this one.
func lostHosts(ctx context.Context, records deadRecords, self string) ([]deadHost, error) {
	deaths, err := records.Deaths(ctx)
	if err != nil {
		return nil, err
	}
	var out []deadHost
	for _, d := range deaths {
		if d.Host == self || d.Forgotten {
			continue
		}
		list, err := records.Instances(ctx, d.Host)
		if _, err = fleet.Unreadable(err); err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		h := deadHost{death: d}
		for _, in := range list {
			h.names = append(h.names, in.Name)
		}
		out = append(out, h)
	}
	return out, nil
}

// lookAtSilent asks the hosts that may be silent, and counts the instances of those that are. By a store
// with leases those without one are asked, else some of all hosts in turn.
func (u *unevacuated) lookAtSilent(ctx context.Context, records *fleet.Records) {
	if u.a.identity == nil {
		return // then it can ask nobody; that is the condition of the peers
	}
	ctx, cancel := u.a.rt.WithTimeout(ctx, roundLimit)
	defer cancel()
	var alive map[string]string
	var err error
	if records.HasLeases() {
		if alive, err = records.Alive(ctx); err != nil {
			return // what was known stands, as in look
		}
	}
	dead, err := deadNames(ctx, records)
	if err != nil {
		return
	}
	if now := u.a.rt.Now(); u.read.IsZero() || now.Sub(u.read) >= namesEvery {
		hosts, err := records.Hosts(ctx)
		unreadable, err := fleet.Unreadable(err)
		if err != nil {
			return
		}
		u.names, u.read = nil, now
		for _, h := range hosts {
			u.names = append(u.names, h.Name)
		}
		for _, key := range unreadable {
			u.names = append(u.names, fleet.NameOf(key))
		}
	}
	candidates := slices.DeleteFunc(slices.Clone(u.names), func(name string) bool {
		_, lives := alive[name]
		return name == u.a.name || dead[name] || lives
	})
	missed := func(name string) bool { return !u.a.peers.answered(name).Asked.IsZero() }
	ask, last := nextAsked(candidates, missed, u.last), map[string]time.Time{}
	for _, name := range candidates {
		last[name] = u.last[name]
	}
	for _, name := range ask {
		last[name] = u.a.rt.Now()
	}
	u.last = last
	u.ask(ctx, ask)
	u.remember(ctx, candidates)
	if silent, err := silentHosts(ctx, records, candidates, u.a.peers.answered, u.a.rt.Now()); err == nil {
		for i := range silent {
			silent[i].never = !records.HasLeases() && !u.ever[silent[i].name]
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.silent = silent
	}
}

// remember makes durable which hosts have answered at any time. What cannot be read or written is so for
// this process alone.
func (u *unevacuated) remember(ctx context.Context, hosts []string) {
	if u.ever == nil {
		u.ever = map[string]bool{}
		raw, found, err := u.memory.Get(ctx, store.BucketAgent, keyAnswered)
		if err == nil && found {
			err = json.Unmarshal(raw, &u.ever)
		}
		if err != nil {
			u.a.log.Warn("which hosts have answered before is not known", "error", err)
			u.ever = map[string]bool{}
		}
	}
	more := false
	for _, name := range hosts {
		if !u.ever[name] && !u.a.peers.answered(name).Answered.IsZero() {
			u.ever[name], more = true, true
		}
	}
	if !more {
		return
	}
	raw, err := json.Marshal(u.ever)
	if err == nil {
		err = u.memory.Put(ctx, store.BucketAgent, keyAnswered, raw)
	}
	if err != nil {
		u.a.log.Warn("which hosts have answered could not be noted", "error", err)
	}
}

// ask asks hosts whether they are there. What they answer is noted by their clients.
func (u *unevacuated) ask(ctx context.Context, hosts []string) {
	var asking runtime.Group
	for _, name := range hosts {
		asking.Go(u.a.rt, "is a host silent", func() { _ = u.a.heard(ctx, name) })
	}
	asking.Wait(u.a.rt)
}

// told gives the hosts that status calls silent, as many as are asked at once.
func (u *unevacuated) told() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for _, h := range u.stillSilent() {
		out = append(out, h.name)
	}
	return out[:min(len(out), mostAsked)]
}

// stillSilent leaves out hosts that have answered since the last look. u.mu is held.
func (u *unevacuated) stillSilent() []silentHost {
	return slices.DeleteFunc(slices.Clone(u.silent), func(h silentHost) bool { return u.a.peers.answered(h.name).Asked.IsZero() })
}

// nextAsked gives the hosts to ask in a look: those that were asked longest ago. As many as half of them
// are such that did not answer.
func nextAsked(hosts []string, missed func(string) bool, last map[string]time.Time) []string {
	hosts = slices.Clone(hosts)
	slices.SortStableFunc(hosts, func(a, b string) int { return last[a].Compare(last[b]) })
	var silent, others []string
	for _, name := range hosts {
		if missed(name) {
			silent = append(silent, name)
		} else {
			others = append(others, name)
		}
	}
	ask := silent[:min(len(silent), max(mostAsked/2, mostAsked-len(others)))]
	return append(ask, others[:min(len(others), mostAsked-len(ask))]...)
}

func deadNames(ctx context.Context, records deadRecords) (map[string]bool, error) {
	deaths, err := records.Deaths(ctx)
	if _, err = fleet.Unreadable(err); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, d := range deaths {
		out[d.Host] = true
	}
	return out, nil
}

// silentHosts gives those of the hosts that left two looks in a row without an answer and have instances.
func silentHosts(ctx context.Context, records deadRecords, hosts []string, of func(string) answers.Times, now time.Time) ([]silentHost, error) {
	var out []silentHost
	for _, name := range hosts {
		since, late := of(name).Late(now, silentLate)
		if !late {
			continue
		}
		list, err := records.Instances(ctx, name)
		if _, err = fleet.Unreadable(err); err != nil {
			return nil, err
		}
		if len(list) > 0 {
			out = append(out, silentHost{name: name, since: since, instances: len(list)})
		}
	}
	return out, nil
}

// condition names the dead and silent hosts with instances; false for none.
func (u *unevacuated) condition() (api.Condition, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return lostCondition(u.hosts, u.stillSilent())
}

// mostNames are told of one dead host.
const mostNames = 5

func lostCondition(hosts []deadHost, silent []silentHost) (api.Condition, bool) {
	if len(hosts)+len(silent) == 0 {
		return api.Condition{}, false
	}
	var reasons []fault.Reason
	for _, h := range hosts {
		names := strings.Join(h.names[:min(len(h.names), mostNames)], ", ")
		if more := len(h.names) - mostNames; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		reasons = append(reasons, fault.Reason{
			Code: "not_evacuated", Have: names, Want: h.death.Host,
			Message: fmt.Sprintf("host %s counts as dead since %s, and nobody has evacuated its instances: %s", h.death.Host, h.death.At.UTC().Format(time.RFC3339), names),
			Change:  "berth evacuate --host " + h.death.Host + ", on any host; or bring " + h.death.Host + " back",
		})
	}
	grave := len(hosts) > 0
	for _, h := range silent {
		if h.never {
			reasons = append(reasons, fault.Reason{
				Code: "host_never_answered", Want: h.name,
				Message: fmt.Sprintf("host %s has never answered this host, and does not count as dead; instances on record there: %d", h.name, h.instances),
				Change:  "ask another host (berth status -c HOST) whether it answers there; see to the way from here to it (port 16515, [peers]), or leave it where the two are to have none",
			})
			continue
		}
		grave = true
		at := h.since.UTC().Format(time.RFC3339)
		reasons = append(reasons, fault.Reason{
			Code: "host_silent", Have: at, Want: h.name,
			Message: fmt.Sprintf("host %s has not answered since %s, and does not count as dead; instances on record there: %d", h.name, at, h.instances),
			Change: "start its agent (systemctl start berth); or, where the host is lost, berth host fence " + h.name + ", or berth host declare-dead " + h.name +
				` --reason "how you know", then berth evacuate --host ` + h.name,
		})
	}
	if !grave {
		return api.Condition{Name: "evacuation", Health: api.HealthOK, Detail: reasons[0].Message, Reasons: reasons}, true
	}
	return api.Degraded("evacuation", reasons[0].Message, reasons...), true
}
