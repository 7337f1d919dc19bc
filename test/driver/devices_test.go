package driver

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent"
	"berth/agent/api"
	"berth/claims/pci"
	"berth/driver"
	"berth/driver/libvirt"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/placement"
	"berth/placementclient"
	"berth/test/lab"
)

// smallMachine is a /sys and /proc of one CPU and some memory; its PCI devices
// and its memory send no event, so that only libvirt's can make an agent look.
type smallMachine struct {
	t    *testing.T
	root string
}

func newSmallMachine(t *testing.T) smallMachine {
	m := smallMachine{t, t.TempDir()}
	for name, text := range map[string]string{
		"sys/devices/system/cpu/online":                            "0\n",
		"sys/devices/system/cpu/cpu0/topology/core_id":             "0\n",
		"sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
		"sys/devices/system/cpu/cpu0/topology/thread_siblings":     "1\n",
		"sys/devices/system/cpu/cpu0/topology/core_siblings":       "1\n",
		"proc/cpuinfo": "processor\t: 0\n\n",
	} {
		m.put(name, text)
	}
	m.memory("16777216")
	return m
}

func (m smallMachine) put(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m smallMachine) memory(kib string) {
	m.put("proc/meminfo", "MemTotal: "+kib+" kB\nMemFree: 1048576 kB\n")
}

const cardPath = "sys/bus/pci/devices/0000:3b:00.0"

func (m smallMachine) plug() {
	for name, text := range map[string]string{"vendor": "0x8086", "device": "0x1563", "class": "0x020000", "numa_node": "-1"} {
		m.put(cardPath+"/"+name, text+"\n")
	}
}

func (m smallMachine) unplug() {
	if err := os.RemoveAll(filepath.Join(m.root, cardPath)); err != nil {
		m.t.Fatal(err)
	}
}

// TestAgent_FollowsTheDaemonsDevices is the whole path of a device that comes and
// goes: a real libvirtd tells, an agent whose hypervisor is libvirt's test driver
// hears it, and reads its machine anew; ledger and Placement follow, and the agent
// is not restarted. Nobody else tells: the machine is made up, and the slow re-read
// is ten minutes away.
func TestAgent_FollowsTheDaemonsDevices(t *testing.T) {
	host := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	m := newSmallMachine(t)
	quiet := slog.New(slog.DiscardHandler)
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(server)
	t.Cleanup(served.Close)

	dir := t.TempDir()
	c := config.Default()
	c.Metrics.Listen = ""
	c.Agent.Name, c.Agent.Mode, c.Agent.Listen = "host-a", config.Manage, ""
	c.Agent.StateDir, c.Agent.RuntimeDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	c.Migration.Transport = config.TransportLibvirtTLS // the folder is too deep for streams
	c.Agent.FlavorsDir, c.Agent.HooksDir = filepath.Join(dir, "flavors.d"), filepath.Join(dir, "hooks.d")
	c.PKI = config.PKI{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	c.Host.Root, c.PCI.DeviceSpec = m.root, []pci.Spec{{VendorID: "8086"}}
	c.Placement.URL = served.URL
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	o := options(t, host)
	o.URI = "test:///default"
	rt := &runtime.System{}
	t.Cleanup(rt.Wait)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Options{
			Config: c, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Runtime: rt, Started: time.Now(),
			Driver: func(_ config.Libvirt, rt runtime.Runtime) driver.Driver {
				o.Runtime = rt
				return libvirt.New(o)
			},
			NovaComputeID: filepath.Join(dir, "compute_id"), Proc: t.TempDir(),
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	client, err := api.NewClient(api.ClientOptions{Socket: c.Agent.SocketPath()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	stands, err := placementclient.New(placementclient.Config{URL: served.URL, Token: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stands.Close)
	// seen is what the agent's API has of devices, and Placement of memory.
	seen := func() (devices int, mb int64) {
		h, err := client.Host(t.Context())
		if err != nil || h.Topology == nil || h.ProviderUUID == "" {
			return -1, -1
		}
		inv, err := stands.Inventories(t.Context(), h.ProviderUUID)
		if err != nil {
			return -1, -1
		}
		devices = len(h.Loose)
		for _, cell := range h.Cells {
			devices += len(cell.Devices)
		}
		if devices != len(h.Topology.PCI) {
			return -1, -1
		}
		return devices, inv.Inventories[placementclient.ClassMemoryMB].Total
	}
	// follows waits for both, for a fraction of what the slow re-read takes, and says how long it was.
	follows := func(what string, devices int, mb int64) {
		t.Helper()
		start := time.Now()
		for {
			d, n := seen()
			if d == devices && n == mb {
				break
			}
			if time.Since(start) > 2*time.Minute {
				t.Fatalf("%s: not within two minutes: %d devices, %d MiB; want %d and %d", what, d, n, devices, mb)
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("%s: ledger and Placement after %s", what, time.Since(start))
	}
	virsh := func(args ...string) {
		t.Helper()
		if out, err := host.Exec(t.Context(), append([]string{"virsh", "-q", "-c", "test+unix:///default?socket=/run/libvirt/libvirt-sock"}, args...)...); err != nil {
			t.Fatalf("virsh %s: %v %s", strings.Join(args, " "), err, out)
		}
	}
	follows("the start", 0, 16<<10)
	if err := os.WriteFile(host.Path("/run/vport.xml"), []byte(plugged), 0o644); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		m.plug()
		m.memory("33554432")
		virsh("nodedev-create", "/run/vport.xml")
		follows("a device came", 1, 32<<10)

		m.unplug()
		m.memory("16777216")
		virsh("nodedev-destroy", "scsi_host12")
		follows("a device went", 0, 16<<10)
	}
}
