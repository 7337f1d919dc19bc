package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/host/hooks"
	"berth/fleet"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// seen is a store of records as a doctor sees it.
type seen struct {
	err    error
	hosts  []fleet.Host
	leases bool
	alive  map[string]string
}

func (s seen) Hosts(context.Context) ([]fleet.Host, error)      { return s.hosts, s.err }
func (s seen) HasLeases() bool                                  { return s.leases }
func (s seen) Alive(context.Context) (map[string]string, error) { return s.alive, s.err }

// optionsOf are those of a host without a store of records, where nothing is said of the rest.
func optionsOf(c config.Config) Options {
	return Options{
		Host: "host-a", Runtime: new(runtime.System), Config: func() config.Config { return c },
		Records: func() (Records, error) {
			return nil, fault.Refuse(fault.Forbidden, "ask", fault.Reason{Code: fleet.NoStore})
		},
		Told: func() []api.Condition { return nil }, Lock: func() Lock { return Lock{} },
	}
}

func TestDoctor_SaysOfEachPartWhatToDo(t *testing.T) {
	t.Parallel()
	device := filepath.Join(t.TempDir(), "watchdog")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	me := fleet.Host{Name: "host-a", SelfFence: true}
	mute := fleet.Host{Name: "host-a"}
	for _, c := range []struct {
		name    string
		store   seen
		none    bool // no store is configured
		set     func(c *config.Config, o *Options)
		told    []api.Condition
		hook    os.FileMode // 0 for none
		want    map[string]api.CheckOutcome
		remedy  map[string]string // what it has in it
		healthy bool
	}{
		{
			name: "nothing is set", none: true, healthy: true,
			want:   map[string]api.CheckOutcome{"fleet store": api.CheckUnset, "lease": api.CheckUnset, "watchdog": api.CheckUnset, "fence hook": api.CheckUnset, "inhibitor": api.CheckUnset},
			remedy: map[string]string{"fleet store": "[fleet] etcd", "watchdog": "self_fence", "fence hook": "NN-name", "inhibitor": "on_shutdown"},
		},
		{
			name: "all is well", store: seen{hosts: []fleet.Host{me}, leases: true, alive: map[string]string{"host-a": "BOOT"}}, hook: 0o755, healthy: true,
			set: func(c *config.Config, o *Options) {
				c.Fleet.SelfFence, c.Drain.OnShutdown = device, true
				o.Lock = func() Lock { return Lock{Held: true, Delay: 10 * time.Minute} }
			},
			want: map[string]api.CheckOutcome{"fleet store": api.CheckOK, "lease": api.CheckOK, "watchdog": api.CheckOK, "fence hook": api.CheckOK, "inhibitor": api.CheckOK},
		},
		{
			name: "nothing is", store: seen{err: errors.New("no route"), leases: true}, hook: 0o644,
			set: func(c *config.Config, o *Options) {
				c.Fleet.SelfFence, c.Drain.OnShutdown = device+"0", true
				o.Lock = func() Lock { return Lock{Err: errors.New("no bus")} }
			},
			want:   map[string]api.CheckOutcome{"fleet store": api.CheckWrong, "lease": api.CheckWrong, "watchdog": api.CheckWrong, "fence hook": api.CheckWrong, "inhibitor": api.CheckWrong},
			remedy: map[string]string{"fleet store": "members", "watchdog": "softdog", "fence hook": "chmod +x", "inhibitor": "berth host drain host-a"},
		},
		{
			name: "this host is not among them, its device is not armed, and the limit is Debian's", store: seen{hosts: []fleet.Host{mute}, leases: true, alive: map[string]string{"host-a": "before"}},
			set: func(c *config.Config, o *Options) {
				c.Fleet.SelfFence, c.Drain.OnShutdown = device, true
				o.Lock = func() Lock { return Lock{Held: true, Delay: 5 * time.Second} }
			},
			want:   map[string]api.CheckOutcome{"fleet store": api.CheckOK, "lease": api.CheckWrong, "watchdog": api.CheckWrong, "fence hook": api.CheckUnset, "inhibitor": api.CheckWrong},
			remedy: map[string]string{"lease": "another machine", "watchdog": "berth status", "inhibitor": "InhibitDelayMaxSec=4min"},
		},
		{
			name: "no lease, and more guests than any delay", store: seen{hosts: []fleet.Host{}, leases: true},
			set: func(c *config.Config, o *Options) {
				c.Drain.OnShutdown = true
				o.Lock = func() Lock { return Lock{Held: true, Delay: 5 * time.Second} }
				o.Estimate = func(context.Context) (time.Duration, int, error) { return time.Hour, 100, nil }
			},
			want:   map[string]api.CheckOutcome{"fleet store": api.CheckWrong, "lease": api.CheckWrong, "watchdog": api.CheckUnset, "fence hook": api.CheckUnset, "inhibitor": api.CheckWrong},
			remedy: map[string]string{"lease": "[fleet] etcd", "inhibitor": "before it goes down"},
		},
		{
			name: "the lease stands, and cannot be renewed", store: seen{hosts: []fleet.Host{mute}, leases: true, alive: map[string]string{"host-a": "BOOT"}},
			told: []api.Condition{{
				Name: "lease", Health: api.HealthDegraded, Detail: "not renewed since noon", Reasons: []fault.Reason{{Code: "lease_lost", Change: "bring etcd back"}},
			}},
			want:   map[string]api.CheckOutcome{"fleet store": api.CheckOK, "lease": api.CheckWrong, "watchdog": api.CheckUnset, "fence hook": api.CheckUnset, "inhibitor": api.CheckUnset},
			remedy: map[string]string{"lease": "bring etcd back"},
		},
		{
			name: "a store without leases", store: seen{hosts: []fleet.Host{mute}}, healthy: true,
			want: map[string]api.CheckOutcome{"fleet store": api.CheckOK, "lease": api.CheckUnset, "watchdog": api.CheckUnset, "fence hook": api.CheckUnset, "inhibitor": api.CheckUnset},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config.Default()
			conf.Agent.HooksDir = t.TempDir()
			if c.hook != 0 {
				at := filepath.Join(conf.Agent.HooksDir, "fence")
				if err := errors.Join(os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(at, "10-ipmi"), nil, c.hook)); err != nil {
					t.Fatal(err)
				}
			}
			o := optionsOf(conf)
			o.Estimate = func(context.Context) (time.Duration, int, error) { return 2 * time.Minute, 3, nil }
			o.FenceHooks = func() ([]string, error) { return (&hooks.Runner{Dir: conf.Agent.HooksDir}).Names(hooks.Fence) }
			o.Told = func() []api.Condition { return c.told }
			for k, v := range c.store.alive {
				c.store.alive[k] = strings.ReplaceAll(v, "BOOT", o.Runtime.Boot().ID)
			}
			if !c.none {
				o.Records = func() (Records, error) { return c.store, nil }
			}
			if c.set != nil {
				c.set(&conf, &o)
			}
			o.Config = func() config.Config { return conf }
			d := New(o)
			d.host = func(context.Context) []api.Check { return nil }
			first, err := d.Examine(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range first.Checks {
				if k.Outcome != c.want[k.Name] || k.Detail == "" || (k.Outcome == api.CheckOK) != (k.Remedy == "") || k.Since.IsZero() {
					t.Errorf("%+v, want %q with a remedy unless it is well", k, c.want[k.Name])
				}
				if !strings.Contains(k.Remedy, c.remedy[k.Name]) {
					t.Errorf("%s: remedy %q lacks %q", k.Name, k.Remedy, c.remedy[k.Name])
				}
			}
			if len(first.Checks) != len(c.want) || (first.Health == api.HealthOK) != c.healthy {
				t.Errorf("health %s of %d checks", first.Health, len(first.Checks))
			}
			again, err := d.Examine(t.Context())
			if err != nil || !again.Checks[0].Since.Equal(first.Checks[0].Since) {
				t.Errorf("looked at again, it is so since %s, not %s; %v", again.Checks[0].Since, first.Checks[0].Since, err)
			}
		})
	}
}
