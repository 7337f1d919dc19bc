package openstack

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/agent"
	"berth/agent/api"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/config"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	pc "berth/placementclient"
	"berth/topology"
)

// agents are whole agents in this process, each over a fake hypervisor, that reach
// one another with certificates and one Placement as an operator would have them.
type agents struct {
	*testing.T
	fleet   *drivertest.Fleet
	clients map[string]*api.Client
	place   *pc.Client // an operator's
	kernel  string
}

var small = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}

// startAgents starts one for each name, in mode manage, and waits until all are
// ready and Placement is equal to their hosts. change sets how they reach Placement, and what else is to differ.
func startAgents(t *testing.T, place *pc.Client, change func(*config.Config), names ...string) *agents {
	t.Helper()
	rt := &runtime.System{}
	p := &agents{T: t, fleet: drivertest.NewFleet(rt), clients: map[string]*api.Client{}, place: place}
	dir := folder(t) // short names, for sockets
	t.Cleanup(func() {
		p.fleet.Close()
		rt.Wait()
		for _, v := range p.fleet.Violations() {
			t.Error(v)
		}
	})
	p.fleet.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond})
	p.kernel = filepath.Join(dir, "vmlinuz")
	must(t, os.WriteFile(p.kernel, []byte("kernel"), 0o644))
	authority, err := pki.Init(dir, "hosts", time.Now(), false)
	must(t, err)
	listeners, addresses := map[string]net.Listener{}, map[string]string{}
	for _, name := range names {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		_, err := authority.IssueHost(filepath.Join(dir, name), name, []string{"localhost"}, time.Now())
		must(t, err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		listeners[name], addresses[name] = l, l.Addr().String()
	}
	for _, name := range names {
		own := filepath.Join(dir, name)
		c := config.Default()
		c.Metrics.Listen = ""
		c.Agent.Name, c.Agent.Mode, c.Agent.Listen, c.Peers = name, config.Manage, addresses[name], addresses
		c.Agent.StateDir, c.Agent.RuntimeDir = filepath.Join(own, "state"), filepath.Join(own, "run")
		c.Agent.FlavorsDir, c.Agent.HooksDir = filepath.Join(own, "flavors.d"), filepath.Join(own, "hooks.d")
		c.Host.DiskPath = own
		c.Migration.Transport = config.TransportLibvirtTLS // these hosts are one machine, and have one folder for sockets at most
		c.Migration.AllowedPaths = []string{dir}           // the kernel
		c.PKI = config.PKI{CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(own, pki.HostCertFile), Key: filepath.Join(own, pki.HostKeyFile)}
		c.Placement.Timeout, c.Placement.Interval, c.Placement.AuditInterval = config.Duration(5*time.Second), config.Duration(300*time.Millisecond), config.Duration(time.Hour)
		c.Placement.ProviderConfigDir = filepath.Join(own, "provider_config")
		change(&c)
		must(t, c.Validate())
		p.clients[name] = p.run(agent.Options{
			Config: c, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Runtime: rt, Started: time.Now(),
			Listeners: map[string][]net.Listener{"peers": {listeners[name]}},
			Driver:    func(config.Libvirt, runtime.Runtime) driver.Driver { return p.fleet.Host(name) },
			// No nova-compute of the machine's is meant.
			NovaComputeID: filepath.Join(own, "compute_id"), Proc: own,
		})
	}
	p.inSync()
	return p
}

// run starts one, to the end of the test.
func (p *agents) run(o agent.Options) *api.Client {
	p.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.Context()))
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = agent.Run(ctx, o)
	}()
	p.Cleanup(func() {
		cancel()
		<-ended
		if err != nil {
			p.Errorf("agent %s: %v", o.Config.Agent.Name, err)
		}
	})
	c, clientErr := api.NewClient(api.ClientOptions{Socket: o.Config.Agent.SocketPath()})
	must(p, clientErr)
	p.Cleanup(c.Close)
	p.until(o.Config.Agent.Name+" is ready", func() bool {
		select {
		case <-ended:
			p.Fatalf("agent %s ended: %v", o.Config.Agent.Name, err)
		default:
		}
		s, err := c.Status(p.Context())
		return err == nil && s.Ready
	})
	return c
}

// until waits for what other processes do, which nothing tells.
func (p *agents) until(what string, ok func() bool) {
	p.Helper()
	for end := time.Now().Add(startLimit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("it does not come to this: %s", what)
		}
	}
}

// guest creates and starts one.
func (p *agents) guest(host, name string) string {
	p.Helper()
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start, r.Flavor = name, p.kernel, true, small
	in, err := p.clients[host].CreateInstance(p.Context(), r)
	must(p, err)
	return in.UUID
}

// begin asks for a move.
func (p *agents) begin(instance, from, to string) string {
	p.Helper()
	m, err := p.clients[from].Migrate(p.Context(), api.Migrate{Instance: instance, Destination: to})
	must(p, err)
	return m.UUID
}

// end waits until a move is over.
func (p *agents) end(from, uuid string) (m migration.Migration) {
	p.Helper()
	p.until("the move ends", func() bool {
		var err error
		m, err = p.clients[from].Migration(p.Context(), uuid)
		must(p, err)
		return m.Done()
	})
	return m
}

// held is all that Placement has, by consumer and provider's name.
func (p *agents) held() map[string]map[string]pc.Resources {
	p.Helper()
	out := map[string]map[string]pc.Resources{}
	providers, err := p.place.Providers(p.Context(), pc.ProviderFilter{})
	must(p, err)
	for _, rp := range providers {
		all, err := p.place.ProviderAllocations(p.Context(), rp.UUID)
		must(p, err)
		for consumer, r := range all.Allocations {
			if out[consumer] == nil {
				out[consumer] = map[string]pc.Resources{}
			}
			out[consumer][rp.Name] = r
		}
	}
	return out
}

// standing is a provider with what an agent says of it, without what differs from
// run to run.
type standing struct {
	Parent      string // its name
	Inventories map[string]pc.Inventory
	Traits      []string
}

// trees is every provider, by its name.
func (p *agents) trees() map[string]standing {
	p.Helper()
	providers, err := p.place.Providers(p.Context(), pc.ProviderFilter{})
	must(p, err)
	out, names := map[string]standing{}, map[string]string{}
	for _, rp := range providers {
		names[rp.UUID] = rp.Name
	}
	for _, rp := range providers {
		inv, err := p.place.Inventories(p.Context(), rp.UUID)
		must(p, err)
		traits, err := p.place.Traits(p.Context(), rp.UUID)
		must(p, err)
		out[rp.Name] = standing{Parent: names[rp.ParentProviderUUID], Inventories: maps.Clone(inv.Inventories), Traits: slices.Sorted(slices.Values(traits.Traits))}
	}
	return out
}

// inSync waits until every agent says that Placement is equal to its host.
func (p *agents) inSync() {
	p.Helper()
	for name, c := range p.clients {
		p.until("placement is equal to "+name, func() bool {
			h, err := c.Host(p.Context())
			must(p, err)
			return h.Placement.InSync
		})
	}
}
