// Package doctor looks at what a host needs to run instances, to move them and to survive: the kernel,
// libvirt, certificates, clock, disks, Placement, other hosts, the fleet's records.
//
// It reads the files of the machine, and asks the parts that its Options name; it writes nothing. A part
// that does not answer is a check that says so: no question takes longer than answerTimeout.
package doctor

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
	"berth/driver"
	"berth/fleet"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

// Doctor looks at what a host needs to run and to move instances, to survive, and to be emptied in
// time. It changes nothing, and what it cannot ask is what it tells.
type Doctor struct {
	o     Options
	host  func(ctx context.Context) []api.Check // the checks of the machine
	looks looks

	// mu guards since; nothing is called under it.
	mu    sync.Mutex
	since map[string]seenAs // by check
}

// DoctorOptions are what a doctor asks.
type Options struct {
	Host      string // this host's name
	Observing bool   // the agent is in mode observe
	Config    func() config.Config
	Runtime   runtime.Runtime

	// Records are the fleet's; fleet.NoStore where none are kept.
	Records func() (Records, error)
	// FenceHooks are the names of the programs that fence other hosts.
	FenceHooks func() ([]string, error)
	// Told is what the lease and the watchdog say of themselves.
	Told func() []api.Condition
	Lock func() Lock
	// Estimate is how long the guests that run here would take to leave, 0 for unknown, and how many
	// they are.
	Estimate func(ctx context.Context) (took time.Duration, guests int, err error)

	// Hardware is what is believed of it, nil while it is not known, and what guests may have of it.
	Hardware   func() (*topology.Host, []api.HostCell, []api.HostDevice)
	Hypervisor Hypervisor
	// Guard says whether libvirt asks before it starts a guest, and what helps where it does not.
	Guard func(hook string) (state, change string)

	Placement Placement
	// Reported is what the agent says of Placement, and why its last report failed.
	Reported func() (api.Condition, error)

	// Identity is what the agent shows to other hosts; nil without certificates, for which
	// NoIdentity is the reason. NoFiles says that none were ever put here.
	Identity   *pki.Identity
	NoIdentity error
	NoFiles    bool
	// Meet asks another host whether the two believe each other.
	Meet func(ctx context.Context, host string) (api.Meeting, error)
}

// Records is the part of fleet.Records that is looked at.
type Records interface {
	Hosts(ctx context.Context) ([]fleet.Host, error)
	HasLeases() bool
	Alive(ctx context.Context) (map[string]string, error)
}

// Lock is logind's, by which a shutdown waits for a drain.
type Lock struct {
	Held  bool
	Delay time.Duration // logind's limit, as last read; 0 before
	Err   error         // why it is not held, where it is wanted
}

// Hypervisor is the part of driver.Driver that is looked at.
type Hypervisor interface {
	Health() error
	Node(ctx context.Context) (driver.Node, error)
}

// Placement is the part of its client that is used.
type Placement interface {
	Version(ctx context.Context) (placementclient.Microversion, error)
	Providers(ctx context.Context, f placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error)
}

type seenAs struct {
	outcome api.CheckOutcome
	at      time.Time
}

// New makes a doctor; it asks nobody.
func New(o Options) *Doctor {
	d := &Doctor{o: o, since: map[string]seenAs{}, looks: looks{rt: o.Runtime, patience: answerTimeout}}
	d.host = d.machine
	return d
}

// answerTimeout is how long one part is given to answer. Arbitrary.
const answerTimeout = 5 * time.Second

// Examine implements api.Doctor.
func (d *Doctor) Examine(ctx context.Context) (api.Diagnosis, error) {
	out := api.Diagnosis{Host: d.o.Host, Health: api.HealthOK}
	var hosts []fleet.Host
	records, err := d.o.Records()
	store := api.Check{Name: "fleet store"}
	if err == nil {
		err = d.ask(ctx, func(ctx context.Context) (err error) {
			hosts, err = records.Hosts(ctx)
			return err
		})
	}
	var self *fleet.Host
	for i := range hosts {
		if hosts[i].Name == d.o.Host {
			self = &hosts[i]
		}
	}
	store = d.store(store, err, len(hosts), self)
	look, conf := d.bounded(ctx), d.o.Config()
	out.Checks = append(d.host(ctx),
		store, d.heard(d.lease(ctx, records, store)),
		d.heard(look("watchdog", conf.Fleet.SelfFence, func() api.Check { return d.watchdog(self, store) })),
		look("fence hook", conf.Agent.HooksDir, d.fenceHook), d.inhibitor(ctx),
	)
	if store.Outcome == api.CheckOK {
		_ = d.ask(ctx, func(ctx context.Context) error {
			if c, says := recordsCheck(ctx, records, d.o.Host); says {
				out.Checks = append(out.Checks, c)
			}
			return nil
		})
	}
	now := d.o.Runtime.Now()
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

func (d *Doctor) ask(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := d.o.Runtime.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return f(ctx)
}

// store is whether the fleet's records answer, and whether this host is among them.
func (d *Doctor) store(c api.Check, err error, hosts int, self *fleet.Host) api.Check {
	switch {
	case fault.HasReason(err, fleet.NoStore):
		c.Outcome, c.Detail = api.CheckUnset, "no records are kept: guests of this host cannot be evacuated when it dies"
		c.Remedy = "set [fleet] etcd on all hosts, or use the embedded Placement, which keeps them"
	case err != nil:
		c.Outcome, c.Detail = api.CheckWrong, "the store does not answer: "+err.Error()
		c.Remedy = "see to the members of [fleet] etcd, or to the embedded Placement; guests run on meanwhile, and none can be evacuated"
	case self == nil && !d.o.Observing:
		c.Outcome, c.Detail = api.CheckWrong, fmt.Sprintf("it answers, and has no record of this host among %d", hosts)
		c.Remedy = "see berth status: the record is written when every guest here was looked at"
	default:
		c.Outcome, c.Detail = api.CheckOK, fmt.Sprintf("answers, and knows %d hosts", hosts)
	}
	return c
}

// heard adds what the part says of itself, where that is not well: it knows why.
func (d *Doctor) heard(c api.Check) api.Check {
	for _, said := range d.o.Told() {
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
func (d *Doctor) lease(ctx context.Context, records Records, store api.Check) api.Check {
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
	boot, held := alive[d.o.Host]
	switch now := d.o.Runtime.Boot().ID; {
	case err != nil:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "not known: "+err.Error(), "see the fleet store"
	case !held:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "this host has none: others take it for silent", "see berth status, and the way from here to [fleet] etcd"
	case boot != now:
		c.Outcome, c.Detail, c.Remedy = api.CheckWrong, "the one that stands is of another boot, "+boot, "wait for [fleet] lease, "+d.o.Config().Fleet.Lease.String()+"; if it stays, another machine has this host's name"
	default:
		c.Outcome, c.Detail = api.CheckOK, "held, for "+d.o.Config().Fleet.Lease.String()
	}
	return c
}

// watchdog is whether the end of the lease proves that this host is dead.
func (d *Doctor) watchdog(self *fleet.Host, store api.Check) api.Check {
	c, f := api.Check{Name: "watchdog"}, d.o.Config().Fleet
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
func (d *Doctor) fenceHook() api.Check {
	c, at := api.Check{Name: "fence hook"}, d.o.Config().Agent.HooksDir+"/"+hooks.Fence
	names, err := d.o.FenceHooks()
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
func (d *Doctor) inhibitor(ctx context.Context) api.Check {
	c := api.Check{Name: "inhibitor"}
	if !d.o.Config().Drain.OnShutdown {
		c.Outcome, c.Detail = api.CheckUnset, "a shutdown of the machine takes its guests with it"
		c.Remedy = "set [drain] on_shutdown = true, or drain the host before it goes down: berth host drain " + d.o.Host
		return c
	}
	lock := d.o.Lock()
	delay, err := lock.Delay, lock.Err
	if !lock.Held {
		c.Outcome, c.Detail = api.CheckWrong, "no lock of logind's is held"
		if err != nil {
			c.Detail += ": " + err.Error()
		}
		c.Remedy = "see to systemd-logind and the system's bus; drain the host before it goes down: berth host drain " + d.o.Host
		return c
	}
	var took time.Duration
	var guests int
	err = d.ask(ctx, func(ctx context.Context) (err error) {
		took, guests, err = d.o.Estimate(ctx)
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
			c.Remedy = "drain the host before it goes down (berth host drain " + d.o.Host + "): logind cannot be made to wait that long with good reason"
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
