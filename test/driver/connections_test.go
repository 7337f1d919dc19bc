package driver

import (
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/test/lab"
)

// The secret and the pool that a lab host is given. Its libvirtd has no driver of
// networks.
const (
	confSecret = `<secret ephemeral='no' private='yes'><uuid>457eb676-33da-42ec-9a8c-9293d545c337</uuid><usage type='ceph'><name>client.conf secret</name></usage></secret>`
	confPool   = `<pool type='dir'><name>conf-pool</name><target><path>%s</path></target></pool>`
)

// wired is what onQEMU's host is given, once.
func wired(h *lab.Host) func(t testing.TB) drivertest.Wiring {
	const dir = "/var/lib/libvirt/conf-pool" // each host's own
	w := drivertest.Wiring{
		Pool:   driver.Pool{Name: "conf-pool", Persistent: true, Autostart: true, Type: "dir", Path: dir},
		Volume: driver.Volume{Name: "vol", Path: dir + "/vol", Capacity: 1 << 20},
		Secret: driver.SecretRef{UUID: "457eb676-33da-42ec-9a8c-9293d545c337", Type: "ceph", Usage: "client.conf secret"},
	}
	put := func(t testing.TB, name string, size int) {
		if err := os.WriteFile(h.Path(path.Join(dir, name)), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.Put = func(t testing.TB, name string) { put(t, name, 512) }
	var once sync.Once
	return func(t testing.TB) drivertest.Wiring {
		once.Do(func() {
			if err := os.MkdirAll(h.Path(dir), 0o755); err != nil {
				t.Fatal(err)
			}
			put(t, w.Volume.Name, int(w.Volume.Capacity))
			var all []string
			for command, text := range map[string]string{"pool-define": fmt.Sprintf(confPool, dir), "secret-define": confSecret} {
				inside := "/run/" + command + ".xml"
				if err := os.WriteFile(h.Path(inside), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				all = append(all, command+" "+inside)
			}
			virsh(t, h, "-c", "qemu:///system", strings.Join(append(all, "pool-autostart conf-pool"), "; "))
		})
		return w
	}
}

// wiredInMemory is the same of libvirt's test driver, whose default machine has a
// network and a pool without volumes. It knows no secrets.
func wiredInMemory() drivertest.Wiring {
	return drivertest.Wiring{
		Network: driver.Network{Name: "default", Active: true, Bridge: "virbr0"},
		Pool:    driver.Pool{Name: "default-pool", Active: true, Persistent: true, Type: "dir", Path: "/default-pool"},
		Volume:  driver.Volume{Name: "vol", Path: "/default-pool/vol", Capacity: 1 << 20},
	}
}
