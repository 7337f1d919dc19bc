package agent

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/host/hooks"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration/drain"
)

// doctor looks at what a host needs to run and to move guests, to survive, and to be emptied in
// time. It changes nothing, and what it cannot ask is what it tells.
type doctor struct {
	a *Agent
	// records are the fleet's; estimate is how long the guests that run here would take to
	// leave, 0 for unknown.
	records  func() (doctorRecords, error)
	hooks    func() ([]string, error) // that fence others
	told     func() []api.Condition   // what the lease and the watchdog say of themselves
	host     func(ctx context.Context) []api.Check
	estimate func(ctx context.Context) (took time.Duration, guests int, err error)
	looks    looks

	// mu guards since; nothing is called under it.
	mu    sync.Mutex
	since map[string]seenAs // by check
}

type seenAs struct {
	outcome api.CheckOutcome
	at      time.Time
}

// doctorRecords is the part of fleet.Records that is looked at.
type doctorRecords interface {
	Hosts(ctx context.Context) ([]fleet.Host, error)
	HasLeases() bool
	Alive(ctx context.Context) (map[string]string, error)
}

func newDoctor(a *Agent) *doctor {
	d := &doctor{
		a: a, since: map[string]seenAs{},
		hooks: func() ([]string, error) { return a.deaths.fenceHooks() },
		told:  func() []api.Condition { return a.vigil.conditions() },
		looks: looks{rt: a.rt, patience: doctorPatience},
	}
	d.host = d.machine
	d.records = func() (doctorRecords, error) {
		r, err := a.fleetRecords()
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	d.estimate = func(ctx context.Context) (time.Duration, int, error) {
		list, err := drained{a}.Guests(ctx, drain.Request{Kind: drain.KindDrain, Host: a.name})
		if err != nil {
			return 0, 0, err
		}
		var guests []drain.Guest
		for _, p := range list {
			if !p.Off {
				guests = append(guests, drain.Guest{State: drain.Waiting, How: drain.HowLive, SizeMB: p.SizeMB})
			}
		}
		return drain.Estimate(a.movesTook(), guests, 0, a.drainLimits().Outbound), len(guests), nil
	}
	return d
}

// doctorPatience is how long one part is given to answer. Arbitrary.
const doctorPatience = 5 * time.Second

// Examine implements api.Doctor.
func (d *doctor) Examine(ctx context.Context) (api.Diagnosis, error) {
	out := api.Diagnosis{Host: d.a.name, Health: api.HealthOK}
	var hosts []fleet.Host
	records, err := d.records()
	store := api.Check{Name: "fleet store"}
	if err == nil {
		err = d.ask(ctx, func(ctx context.Context) (err error) {
			hosts, err = records.Hosts(ctx)
			return err
		})
	}
	var self *fleet.Host
	for i := range hosts {
		if hosts[i].Name == d.a.name {
			self = &hosts[i]
		}
	}
	store = d.store(store, err, len(hosts), self)
	look, conf := d.bounded(ctx), d.a.config()
	out.Checks = append(d.host(ctx),
		store, d.heard(d.lease(ctx, records, store)),
		d.heard(look("watchdog", conf.Fleet.SelfFence, func() api.Check { return d.watchdog(self, store) })),
		look("fence hook", conf.Agent.HooksDir, d.fenceHook), d.inhibitor(ctx),
	)
	if store.Outcome == api.CheckOK {
		_ = d.ask(ctx, func(ctx context.Context) error {
			if c, says := recordsCheck(ctx, records, d.a.name); says {
				out.Checks = append(out.Checks, c)
			}
			return nil
		})
	}
	now := d.a.rt.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range out.Checks {
		c := &out.Checks[i]
		if was, seen := d.since[c.Name]; !seen || was.outcome != c.Outcome {
			d.since[c.Name] = seenAs{c.Outcome, now}
		}
		c.Since = d.since[c.Name].at
		if c.Outcome == api.CheckWrong {
			out.Health = api.HealthDegraded
		}
	}
	return out, ctx.Err()
}

func (d *doctor) ask(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := d.a.rt.WithTimeout(ctx, doctorPatience)
	defer cancel()
	return f(ctx)
}

// store is whether the fleet's records answer, and whether this host is among them.
func (d *doctor) store(c api.Check, err error, hosts int, self *fleet.Host) api.Check {
	switch {
	case fault.HasReason(err, fleet.NoStore):
		c.Outcome, c.Detail = api.CheckUnset, "no records are kept: guests of this host cannot be evacuated when it dies"
		c.Remedy = "set [fleet] etcd on all hosts, or use the embedded Placement, which keeps them"
	case err != nil:
		c.Outcome, c.Detail = api.CheckWrong, "the store does not answer: "+err.Error()
		c.Remedy = "see to the members of [fleet] etcd, or to the embedded Placement; guests run on meanwhile, and none can be evacuated"
	case self == nil && !d.a.observing():
		c.Outcome, c.Detail = api.CheckWrong, fmt.Sprintf("it answers, and has no record of this host among %d", hosts)
		c.Remedy = "see berth status: the record is written when every guest here was looked at"
	default:
		c.Outcome, c.Detail = api.CheckOK, fmt.Sprintf("answers, and knows %d hosts", hosts)
	}
	return c
}

// heard adds what the part says of itself, where that is not well: it knows why.
func (d *doctor) heard(c api.Check) api.Check {
	for _, said := range d.told() {
		if said.Name != c.Name || said.Health == api.HealthOK || c.Outcome == api.CheckUnset {
			continue
		}
		c.Outcome = api.CheckWrong
		if c.Detail != "" {
			c.Detail += "; "
		}
		c.Detail += said.Detail
		for _, r := range said.Reasons {
			if r.Change != "" && !strings.Contains(c.Remedy, r.Change) {
				c.Remedy = strings.TrimPrefix(c.Remedy+"; "+r.Change, "; ")
			}
		}
	}
	return c
}

// lease is whether others see that this host lives.
func (d *doctor) lease(ctx context.Context, records doctorRecords, store api.Check) api.Check {
	c := api.Check{Name: "lease"}
	if store.Outcome == api.CheckUnset || records == nil {
		c.Outcome, c.Detail, c.Remedy = api.CheckUnset, "no records are kept", store.Remedy
		return c
	}
	if !records.HasLeases() {
		c.Outcome, c.Detail = api.CheckUnset, "this store keeps no leases: that the host is dead is known by a fencing hook, or by an operator's word"
		c.Remedy = "set [fleet] etcd, for leases"
		return c
	}
	var alive map[string]string
	err := d.ask(ctx, func(ctx context.Context) (err error) {
		alive, err = records.Alive(ctx)
		return err
	})
	boot, held := alive[d.a.name]
	switch now := d.a.rt.Boot().ID; {
	case err != nil:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "not known: "+err.Error(), "see the fleet store"
	case !held:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "this host has none: others take it for silent", "see berth status, and the way from here to [fleet] etcd"
	case boot != now:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "the one that stands is of another boot, "+boot, "wait for [fleet] lease, "+d.a.config().Fleet.Lease.String()+"; if it stays, another machine has this host's name"
	default:
		c.Outcome, c.Detail = api.CheckOK, "held, for "+d.a.config().Fleet.Lease.String()
	}
	return c
}

// watchdog is whether the end of the lease proves that this host is dead.
func (d *doctor) watchdog(self *fleet.Host, store api.Check) api.Check {
	c, f := api.Check{Name: "watchdog"}, d.a.config().Fleet
	if f.SelfFence == "" {
		c.Outcome, c.Detail = api.CheckUnset, "not armed: that the lease is over proves nothing"
		c.Remedy = `set [fleet] self_fence = "/dev/watchdog", for a host that may be reset when it loses the store alone; else fence it, or declare it dead`
		return c
	}
	info, err := os.Stat(f.SelfFence)
	switch {
	case err != nil:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, err.Error(), "load the driver of this machine's watchdog, or softdog; or correct [fleet] self_fence"
	case info.IsDir():
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, f.SelfFence+" is a folder", "correct [fleet] self_fence"
	case store.Outcome != api.CheckOK:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "whether it is armed is not known: "+store.Detail, store.Remedy
	case self == nil || !self.SelfFence:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, f.SelfFence+" is there, and other hosts are not told that this one fences itself", "see berth status for why it is not armed; another program may have it open"
	default:
		c.Outcome, c.Detail = api.CheckOK, f.SelfFence+" is armed, and resets the host "+f.SelfFenceTimeout.String()+" after it was fed last"
	}
	return c
}

// fenceHook is whether this host can fence others.
func (d *doctor) fenceHook() api.Check {
	c, at := api.Check{Name: "fence hook"}, d.a.config().Agent.HooksDir+"/"+hooks.Fence
	names, err := d.hooks()
	switch {
	case err != nil:
		var why, change []string
		for _, r := range fault.ReasonsOf(err) {
			why = append(why, r.Message)
			if r.Change != "" {
				change = append(change, r.Change)
			}
		}
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, strings.Join(why, "; "), strings.Join(change, "; ")
		if len(why) == 0 {
			c.Detail = err.Error()
		}
	case len(names) == 0:
		c.Outcome, c.Detail = api.CheckUnset, "none in "+at+": this host cannot fence another"
		c.Remedy = "put an executable there, NN-name, that switches a host off and exits 0 when it is (docs/hooks.md)"
	default:
		c.Outcome, c.Detail = api.CheckOK, at+" has "+strings.Join(names, ", ")
	}
	return c
}

// mostDelay is the longest that Debian's and Fedora's units are patient with at all; beyond it a
// longer delay of logind's is no remedy. Arbitrary.
const mostDelay = 30 * time.Minute

// inhibitor is whether the host can be drained in the time that logind gives.
func (d *doctor) inhibitor(ctx context.Context) api.Check {
	c := api.Check{Name: "inhibitor"}
	if !d.a.config().Drain.OnShutdown {
		c.Outcome, c.Detail = api.CheckUnset, "a shutdown of the machine takes its guests with it"
		c.Remedy = "set [drain] on_shutdown = true, or drain the host before it goes down: berth host drain " + d.a.name
		return c
	}
	s := d.a.shutdowns
	s.mu.Lock()
	holds, delay, err := s.holds, s.delay, s.err
	s.mu.Unlock()
	if !holds {
		c.Outcome, c.Detail = api.CheckWrong, "no lock of logind's is held"
		if err != nil {
			c.Detail += ": " + err.Error()
		}
		c.Remedy = "see to systemd-logind and the system's bus; drain the host before it goes down: berth host drain " + d.a.name
		return c
	}
	var took time.Duration
	var guests int
	err = d.ask(ctx, func(ctx context.Context) (err error) {
		took, guests, err = d.estimate(ctx)
		return err
	})
	switch {
	case err != nil:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "what a drain would take is not known: "+err.Error(), "see berth status"
	case guests == 0:
		c.Outcome, c.Detail = api.CheckOK, "shutdown waits "+delay.String()+", and no guest runs here"
	case took == 0 && delay < time.Minute:
		// Debian's own is 5 s, in which no guest of any size has left.
		c.Outcome, c.Detail = api.CheckWrong, fmt.Sprintf("shutdown waits %s at most, and %d guests run here; no move has been measured yet", delay, guests)
		c.Remedy = limitRemedy(10 * time.Minute)
	case took == 0:
		c.Outcome, c.Detail = api.CheckOK, fmt.Sprintf("shutdown waits %s at most; %d guests run here, and no move has been measured yet", delay, guests)
	case took > delay:
		c.Outcome, c.Detail = api.CheckWrong, fmt.Sprintf("shutdown waits %s at most, and %d guests take some %s to leave", delay, guests, took.Round(time.Second))
		c.Remedy = limitRemedy(2 * took)
		if 2*took > mostDelay {
			c.Remedy = "drain the host before it goes down (berth host drain " + d.a.name + "): logind cannot be made to wait that long with good reason"
		}
	default:
		c.Outcome, c.Detail = api.CheckOK, fmt.Sprintf("shutdown waits %s at most, and %d guests take some %s to leave", delay, guests, took.Round(time.Second))
	}
	return c
}

// limitRemedy sets logind's limit, in whole minutes. unattended-upgrades sets it to 30 s by a
// drop-in of its own, which a later name overrides.
func limitRemedy(want time.Duration) string {
	minutes := int(math.Ceil(want.Minutes()))
	return fmt.Sprintf("write [Login] InhibitDelayMaxSec=%dmin to /etc/systemd/logind.conf.d/zz-berth.conf, and restart systemd-logind", max(1, minutes))
}
