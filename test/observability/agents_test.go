package observability

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"berth/agent"
	"berth/agent/api"
	"berth/claims/pci"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/config"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/placement"
	"berth/topology"
)

// two are two agents with all that there is to measure.
type two struct {
	*testing.T
	fleet   *drivertest.Fleet
	clients map[string]*api.Client
	metrics map[string]string // address, by host
	kernel  string
}

func (w *two) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *two) until(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// machine plants the fixture with two cells, a card with virtual functions, and a GPU that
// makes mediated devices.
func machine(t *testing.T) string {
	t.Helper()
	archive, err := txtar.ParseFile("../../hwdiscovery/testdata/sriov.txtar")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, f := range archive.Files {
		name := filepath.Join(root, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		// A name that ends in @ is a symbolic link.
		if link, is := strings.CutSuffix(name, "@"); is {
			err = os.Symlink(strings.TrimSpace(string(f.Data)), link)
		} else {
			err = os.WriteFile(name, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// settings are an agent's, all its files in a folder of its own.
func settings(t *testing.T, name, root, placementURL string) config.Config {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.Agent.Name, c.Agent.Mode = name, config.Manage
	c.Agent.StateDir, c.Agent.RuntimeDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	c.Agent.FlavorsDir, c.Agent.HooksDir = filepath.Join(dir, "flavors.d"), filepath.Join(dir, "hooks.d")
	c.Host.Root, c.Host.DiskPath = root, t.TempDir()
	c.Host.DedicatedCPUs, c.Host.SharedCPUs = topology.NewCPUSet(1, 5, 3, 7), topology.NewCPUSet(0, 4, 2, 6)
	c.PCI.DeviceSpec = []pci.Spec{{VendorID: "8086", ProductID: "154c"}}
	c.Devices.MdevTypes = []config.MdevType{{Type: "nvidia-222"}}
	c.Metrics.Listen = "127.0.0.1:0"
	c.Migration.Transport = config.TransportLibvirtTLS
	c.Migration.AllowedPaths = []string{os.TempDir()} // the kernel
	c.Migration.MaxOutbound = 1
	c.Placement.URL, c.Placement.Interval, c.Placement.AuditInterval = placementURL, config.Duration(time.Second), config.Duration(2*time.Second)
	return c
}

// newTwo starts them.
func newTwo(t *testing.T) *two {
	t.Helper()
	rt := &runtime.System{}
	w := &two{T: t, fleet: drivertest.NewFleet(rt), clients: map[string]*api.Client{}, metrics: map[string]string{}, kernel: filepath.Join(t.TempDir(), "vmlinuz")}
	t.Cleanup(func() { w.fleet.Close(); rt.Wait() })
	w.fleet.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond})
	w.must(os.WriteFile(w.kernel, []byte("kernel"), 0o644))
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	w.must(err)
	t.Cleanup(func() { w.must(server.Close()) })
	front := httptest.NewServer(server.Handler())
	t.Cleanup(front.Close)
	root, keys := machine(t), t.TempDir()
	authority, err := pki.Init(keys, "test", time.Now(), false)
	w.must(err)
	listeners, addresses := map[string]net.Listener{}, map[string]string{}
	for _, name := range []string{"host-a", "host-b"} {
		w.must(os.MkdirAll(filepath.Join(keys, name), 0o700))
		_, err := authority.IssueHost(filepath.Join(keys, name), name, []string{"localhost"}, time.Now())
		w.must(err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		w.must(err)
		listeners[name], addresses[name] = l, l.Addr().String()
	}
	for name, l := range listeners {
		c := settings(t, name, root, front.URL)
		c.Agent.Listen, c.Peers = addresses[name], maps.Clone(addresses)
		c.PKI = config.PKI{CA: filepath.Join(keys, "ca.crt"), Cert: filepath.Join(keys, name, "host.crt"), Key: filepath.Join(keys, name, "host.key")}
		w.start(c, l)
	}
	return w
}

// start runs an agent until the test ends, and waits until it is ready and its metrics are
// served.
func (w *two) start(c config.Config, peers net.Listener) {
	w.Helper()
	w.must(c.Validate())
	name, proc := c.Agent.Name, w.TempDir()
	w.must(os.Mkdir(filepath.Join(proc, "sys"), 0o755))
	rt := &runtime.System{}
	o := agent.Options{
		Config: c, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Runtime: rt, Started: time.Now(),
		Driver:        func(config.Libvirt, runtime.Runtime) driver.Driver { return w.fleet.Host(name) },
		Listeners:     map[string][]net.Listener{"peers": {peers}},
		NovaComputeID: filepath.Join(w.TempDir(), "compute_id"), Proc: proc,
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx, o) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		rt.Wait()
	})
	client, err := api.NewClient(api.ClientOptions{Socket: c.Agent.SocketPath()})
	w.must(err)
	w.Cleanup(client.Close)
	w.clients[name] = client
	w.until(name+" is ready", func() bool {
		s, err := client.Status(w.Context())
		if err != nil {
			return false
		}
		for _, part := range s.Conditions {
			if at, is := strings.CutPrefix(part.Detail, "served on "); is && part.Name == "metrics" && !strings.HasSuffix(at, ":0") {
				w.metrics[name] = at
			}
		}
		return s.Ready && w.metrics[name] != ""
	})
}

// guest makes one that runs.
func (w *two) guest(host, name string, memoryMB int64) (string, error) {
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start = name, w.kernel, true
	r.Flavor = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: memoryMB, DiskGB: 1}
	in, err := w.clients[host].CreateInstance(w.Context(), r)
	return in.UUID, err
}

// move begins a live migration.
func (w *two) move(instance, from, to string) string {
	w.Helper()
	m, err := w.clients[from].Migrate(w.Context(), api.Migrate{Instance: instance, Destination: to})
	w.must(err)
	return m.UUID
}

// over waits until a move is over, and gives it.
func (w *two) over(host, uuid string) (m migration.Migration) {
	w.Helper()
	w.until("the move ends", func() bool {
		var err error
		m, err = w.clients[host].Migration(w.Context(), uuid)
		w.must(err)
		return m.Done()
	})
	return m
}
