package agent

import (
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/host"
	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// planFleet is three agents over fake hypervisors on made-up machines, and an
// embedded Placement in a file. A fourth host is in Placement, and down.
type planFleet struct {
	*testing.T
	clients map[string]*api.Client
	place   *placementclient.Client
	files   []string // databases: Placement's and each ledger
	kernel  string
}

func newPlanFleet(t *testing.T, change func(name string, c *config.Config, m *machineTree)) *planFleet {
	t.Helper()
	f := &planFleet{T: t, clients: map[string]*api.Client{}, kernel: filepath.Join(t.TempDir(), "vmlinuz")}
	f.must(os.WriteFile(f.kernel, []byte("kernel"), 0o644))
	rt := &runtime.System{}
	hypervisors := drivertest.NewFleet(rt)
	t.Cleanup(func() {
		hypervisors.Close()
		rt.Wait()
	})
	database := filepath.Join(t.TempDir(), "placement.db")
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", DB: database})
	f.must(err)
	t.Cleanup(func() { f.must(server.Close()) })
	front := httptest.NewServer(server.Handler())
	t.Cleanup(front.Close)
	f.files = append(f.files, database)
	f.place, err = placementclient.New(placementclient.Config{URL: front.URL, Token: "admin"})
	f.must(err)
	t.Cleanup(f.place.Close)

	keys := t.TempDir()
	authority, err := pki.Init(keys, "test", time.Now(), false)
	f.must(err)
	names := []string{"host-a", "host-b", "host-c"}
	listeners, addresses := map[string]net.Listener{}, map[string]string{"host-down": strings.TrimPrefix(nowhere(t), "http://")}
	for _, name := range names {
		f.must(os.MkdirAll(filepath.Join(keys, name), 0o700))
		_, err := authority.IssueHost(filepath.Join(keys, name), name, []string{"localhost"}, time.Now())
		f.must(err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		f.must(err)
		listeners[name], addresses[name] = l, l.Addr().String()
	}
	for _, name := range names {
		c, m := settings(t, front.URL), newMachineTree(t)
		c.Agent.Name, c.Agent.Listen, c.Peers = name, addresses[name], addresses
		c.PKI = config.PKI{CA: filepath.Join(keys, "ca.crt"), Cert: filepath.Join(keys, name, "host.crt"), Key: filepath.Join(keys, name, "host.key")}
		c.Placement.Interval = config.Duration(time.Hour)
		c.Host.Root, c.Host.ReservedMemoryMB, c.Host.DiskPath = m.root, 0, t.TempDir()
		c.Host.DedicatedCPUs, c.Host.SharedCPUs = topology.NewCPUSet(1, 2, 3), topology.NewCPUSet(0)
		f.must(os.MkdirAll(c.Agent.FlavorsDir, 0o755))
		f.must(os.WriteFile(filepath.Join(c.Agent.FlavorsDir, "pinned.toml"),
			[]byte("name = \"pinned\"\nvcpus = 1\nmemory_mb = 64\n[extra_specs]\n\"hw:cpu_policy\" = \"dedicated\"\n\"hw:mem_page_size\" = \"2MB\"\n"), 0o644))
		f.must(os.WriteFile(filepath.Join(c.Agent.FlavorsDir, "carded.toml"), []byte("name = \"carded\"\nvcpus = 1\nmemory_mb = 64\n[extra_specs]\n"+
			"\"hw:cpu_policy\" = \"dedicated\"\n\"hw:mem_page_size\" = \"2MB\"\n\"pci_passthrough:alias\" = \"card:1\"\n"), 0o644))
		c.PCI.DeviceSpec = []pci.Spec{{VendorID: "8086", ProductID: "1563", Traits: "fast"}}
		c.PCI.Alias = []flavor.Alias{{Name: "card", VendorID: "8086", ProductID: "1563", DeviceType: "type-PF", NUMAPolicy: "required", Traits: "fast"}}
		change(name, &c, m)
		o := agentOptions(t, c)
		o.Listeners = map[string][]net.Listener{"peers": {listeners[name]}}
		o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return hypervisors.Host(name) }
		f.clients[name], _ = start(t, o)
		f.files = append(f.files, filepath.Join(c.Agent.StateDir, "berth.db"))
	}
	const down = "dddddddd-dddd-4ddd-8ddd-dddddddddddd"
	p, err := f.place.CreateProvider(t.Context(), placementclient.NewProvider{Name: "host-down", UUID: down})
	f.must(err)
	_, err = f.place.PutInventories(t.Context(), down, placementclient.Inventories{Generation: p.Generation, Inventories: map[string]placementclient.Inventory{
		"VCPU": {Total: 64}, "PCPU": {Total: 64}, "MEMORY_MB": {Total: 65536}, "DISK_GB": {Total: 500},
	}})
	f.must(err)
	return f
}

func (f *planFleet) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// bytes are all databases as they are once nobody writes them any more.
func (f *planFleet) bytes() []string {
	f.Helper()
	read := func() []string {
		var out []string
		for _, path := range f.files {
			b, err := os.ReadFile(path)
			f.must(err)
			out = append(out, string(b))
		}
		return out
	}
	before := read()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		time.Sleep(300 * time.Millisecond) // what an agent does after its start has an end, which nothing tells
		now := read()
		if cmp.Equal(before, now) {
			return now
		}
		before = now
	}
	f.Fatal("the databases do not come to rest")
	return nil
}

func (f *planFleet) guest(on string, r host.CreateRequest) api.Instance {
	f.Helper()
	r.Kernel, r.Start = f.kernel, true
	in, err := f.clients[on].CreateInstance(f.Context(), api.CreateInstance{CreateRequest: r, FlavorName: "pinned"})
	f.must(err)
	return in
}

// codesOf are the codes of reasons, with their cells.
func codesOf(reasons []fault.Reason) string {
	var out []string
	for _, r := range reasons {
		out = append(out, r.Code)
	}
	return strings.Join(out, " ")
}

func TestPlan_SaysOfEveryHostWhetherItTakesTheGuestAndChangesNothing(t *testing.T) {
	t.Parallel()
	f := newPlanFleet(t, func(name string, c *config.Config, m *machineTree) {
		switch name {
		case "host-b":
			c.Placement.NUMA = config.NUMANested
		case "host-c":
			m.pool(16, 16) // 32 MiB of pages in each cell, and 64 are wanted
		}
	})
	in := f.guest("host-a", host.CreateRequest{Name: "web"})
	before := f.bytes()

	p, err := f.clients["host-a"].Plan(t.Context(), api.PlanRequest{Instance: "web"})
	f.must(err)
	if p.Kind != migration.PlanLive || p.Instance != in.UUID || p.Source != "host-a" || p.Chosen != "host-b" || len(p.Blockers) != 0 {
		t.Errorf("plan %+v", p)
	}
	got := map[string]string{}
	for _, h := range p.Hosts {
		got[h.Name] = strings.TrimSpace(string(h.Verdict) + ": " + codesOf(h.Reasons))
	}
	if diff := cmp.Diff(map[string]string{"host-b": "takes it:", "host-c": "refuses: pages_short pages_short", "host-down": "no answer: unreachable"}, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	for _, h := range p.Hosts {
		if h.Name != "host-b" {
			continue
		}
		if h.Claim == nil || len(h.Claim.Assignment.Cells) != 1 || len(h.Claim.Assignment.Cells[0].Pins) != 1 || h.Claim.Assignment.Cells[0].PageSize != topology.PageSize2M {
			t.Fatalf("host-b would claim %+v", h.Claim)
		}
		named := map[string]placementclient.Resources{}
		for rp, r := range h.Claim.Allocations {
			named[p.Providers[rp]] = r
		}
		cell := fmt.Sprintf("host-b_NUMA%d", h.Claim.Assignment.Cells[0].HostCell)
		if diff := cmp.Diff(map[string]placementclient.Resources{cell: {"PCPU": 1}, cell + "_2MiB": {"MEMORY_MB": 64}}, named); diff != "" {
			t.Errorf("counted on (-want +got):\n%s", diff)
		}
	}

	// Asked of another host it is passed on, and a named host is asked alone.
	p, err = f.clients["host-b"].Plan(t.Context(), api.PlanRequest{Instance: in.UUID, Destination: "host-c"})
	if f.must(err); p.Chosen != "" || len(p.Hosts) != 1 || p.Hosts[0].Name != "host-c" {
		t.Errorf("plan for host-c: %+v", p)
	}
	if _, err := f.clients["host-a"].Plan(t.Context(), api.PlanRequest{Instance: "web", Destination: "host-a"}); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("plan for its own host: %v", err)
	}
	// A new guest of the flavor may be on its host too.
	p, err = f.clients["host-c"].Plan(t.Context(), api.PlanRequest{FlavorName: "pinned"})
	if f.must(err); p.Kind != migration.PlanNew || p.Chosen != "host-b" && p.Chosen != "host-a" || len(p.Hosts) != 4 {
		t.Errorf("plan of a flavor: %+v", p)
	}
	// A card is found where the agents report it, below the root and below a cell.
	p, err = f.clients["host-a"].Plan(t.Context(), api.PlanRequest{FlavorName: "carded", Destination: "host-b"})
	if f.must(err); p.Chosen != "host-b" || !p.Hosts[0].Candidate || p.Hosts[0].Claim.Assignment.Cells[0].HostCell != 1 || len(p.Hosts[0].Proposed) != 3 {
		t.Errorf("plan of a flavor with a device, nested: %+v", p)
	}
	p, err = f.clients["host-b"].Plan(t.Context(), api.PlanRequest{FlavorName: "carded", Destination: "host-a"})
	if f.must(err); p.Chosen != "host-a" || !p.Hosts[0].Candidate || len(p.Hosts[0].Proposed) != 2 {
		t.Errorf("plan of a flavor with a device, flat: %+v", p)
	}
	for _, r := range []api.PlanRequest{{}, {Instance: "web", FlavorName: "pinned", Kind: migration.PlanLive}, {Instance: "web", Kind: migration.PlanNew}, {FlavorName: "pinned", Kind: migration.PlanCold}} {
		if _, err := f.clients["host-a"].Plan(t.Context(), r); fault.KindOf(err) != fault.Invalid {
			t.Errorf("plan of %+v: %v", r, err)
		}
	}
	p, err = f.clients["host-a"].Plan(t.Context(), api.PlanRequest{FlavorName: "pinned", Destination: "made-up"})
	if f.must(err); p.Chosen != "" || len(p.Hosts) != 1 || p.Hosts[0].Verdict != migration.VerdictRefuses || !slices.ContainsFunc(p.Hosts[0].Reasons, func(r fault.Reason) bool { return r.Code == "host_unknown" }) {
		t.Errorf("plan for a host that nobody knows: %+v", p.Hosts)
	}
	p, err = f.clients["host-a"].Plan(t.Context(), api.PlanRequest{Instance: "web", Kind: migration.PlanCold, Destination: "host-b"})
	if f.must(err); p.Kind != migration.PlanCold || p.Chosen != "host-b" {
		t.Errorf("plan of a cold move: %+v", p)
	}
	for i, file := range f.bytes() {
		if file != before[i] {
			t.Errorf("%s was changed by a plan", f.files[i])
		}
	}
}
