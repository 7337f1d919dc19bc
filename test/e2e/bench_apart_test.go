package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// BenchmarkApart resizes a guest with a disk of 2 GiB to a host that shares nothing with
// its own, by way of a third and straight, and copies the same file with scp, straight and
// by way of the third, in turns. Then the way is cut when half of the disk is there.
func BenchmarkApart(b *testing.B) {
	const mib, rounds = 1984, 2
	build(b)
	if err := lab.Install(b.Context(), os.Stderr, append(lab.Packages(), "openssh-server", "openssh-client")...); err != nil {
		b.Skip(err)
	}
	f, err := fleet.Up(b.Context(), fleet.Options{
		Dir: filepath.Join(lab.TempDir(b), "fleet"), Binary: shared.bin, Names: []string{"host-a", "host-b", "host-c"},
		Flavors: map[string]string{
			"two":  "name = \"two\"\nvcpus = 1\nmemory_mb = 128\ndisk_gb = 3\n",
			"more": "name = \"more\"\nvcpus = 2\nmemory_mb = 160\ndisk_gb = 3\n",
		},
		Conductors: []string{"host-c"}, Config: map[string]string{"host-c": "[rights]\nshare_nothing = [\"user:root\"]\n"},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := f.Down(); err != nil {
			b.Error(err)
		}
	})
	w := &world{TB: b, Fleet: f, ctx: b.Context(), a: f.Hosts[0], b: f.Hosts[1]}
	c := f.Hosts[2]
	o := guest.Options{Name: "big", Dirty: 8, Rate: 4, Devices: guest.AgentChannel}
	w.xml(w.a, &o)
	w.fill("big", mib)
	disk := images + "/big.qcow2"
	w.berth(w.a, "instance", "create", "big", "--flavor", "two", "--xml", "/var/lib/libvirt/big.xml", "--start")
	w.Cleanup(func() { w.remove("big") })
	w.wrote(w.a, "big")
	if err := os.MkdirAll(w.b.Path(images), 0o755); err != nil {
		b.Fatal(err)
	}
	ssh := w.sshServers(w.a, w.b)
	took := map[string][]time.Duration{}
	resize := func(way string, apart bool) {
		w.setApart(apart)
		began := time.Now()
		w.berth(c, "resize", "big", w.b.Name, "--flavor", "more", "--share-nothing")
		m := w.waits(c, "big")
		took["resize-"+way] = append(took["resize-"+way], time.Since(began))
		i := slices.IndexFunc(m.Steps, func(s migration.StepRecord) bool { return s.Name == migration.StepShipDisks })
		took["ship-"+way] = append(took["ship-"+way], m.Steps[i].Duration)
		w.require("way", m.Way, way)
		w.berth(c, "resize", "revert", "big")
		w.ended(c, m)
	}
	scp := func(way string, args ...string) {
		began := time.Now()
		if _, err := c.Exec(w.ctx, append([]string{"scp", "-q", "-F", ssh}, args...)...); err != nil {
			b.Fatal(err)
		}
		took["scp-"+way] = append(took["scp-"+way], time.Since(began))
		if err := os.Remove(w.b.Path(images + "/copy")); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for range rounds {
			resize(string(migration.WayRelay), true)
			scp("relay", "-3", "host-a:"+disk, "host-b:"+images+"/copy")
			resize(string(migration.WayStraight), false)
			began := time.Now()
			if _, err := w.a.Exec(w.ctx, "scp", "-q", "-F", ssh, disk, "host-b:"+images+"/copy"); err != nil {
				b.Fatal(err)
			}
			took["scp-straight"] = append(took["scp-straight"], time.Since(began))
			if err := os.Remove(w.b.Path(images + "/copy")); err != nil {
				b.Fatal(err)
			}
		}
	}
	for name, d := range took {
		b.ReportMetric(median(d).Seconds(), name+"-s")
		b.Logf("%s: %v", name, d)
	}
	b.ReportMetric(0, "ns/op")

	// Half of it, and the destination's link is cut for a while.
	w.setApart(true)
	before := w.received(w.b)
	w.berth(c, "resize", "big", w.b.Name, "--flavor", "more", "--share-nothing", "--detach")
	m := w.migration(c, "big", "has half of its disk there", func(m migration.Migration) bool {
		return m.Progress.DiskTotal > 0 && m.Progress.DiskProcessed >= m.Progress.DiskTotal/2
	})
	half := m.Progress.DiskProcessed
	if err := w.b.Cut(w.ctx, lab.Mgmt); err != nil {
		b.Fatal(err)
	}
	time.Sleep(8 * time.Second)
	if err := w.b.Heal(w.ctx, lab.Mgmt); err != nil {
		b.Fatal(err)
	}
	healed := time.Now()
	m = w.waits(c, "big")
	file, err := os.Stat(w.a.Path(disk))
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("cut for 8 s at %d of %d bytes; there %v after the link was back; %s received %d bytes in all for a file of %d",
		half, m.Progress.DiskTotal, time.Since(healed), w.b.Name, w.received(w.b)-before, file.Size())
	w.berth(c, "resize", "confirm", "big")
	w.ended(c, m)
}

// received is how many bytes have come to a host on its management link.
func (w *world) received(h *lab.Host) int64 {
	w.Helper()
	out, err := h.Exec(w.ctx, "cat", "/sys/class/net/mgmt/statistics/rx_bytes")
	if err != nil {
		w.Fatal(err)
	}
	var n int64
	if _, err := fmt.Sscan(out, &n); err != nil {
		w.Fatal(err)
	}
	return n
}

// sshServers runs an sshd on each host, with keys of its own, and gives the file by which
// ssh finds them.
func (w *world) sshServers(hosts ...*lab.Host) string {
	w.Helper()
	dir := lab.TempDir(w)
	must := func(out string, err error) {
		w.Helper()
		if err != nil {
			w.Fatal(out, err)
		}
	}
	key := filepath.Join(dir, "key")
	must(w.a.Exec(w.ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key))
	var b strings.Builder
	for _, h := range hosts {
		config := fmt.Sprintf("Port 2222\nListenAddress %s\nHostKey %s\nAuthorizedKeysFile %s.pub\nStrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n",
			h.MgmtIP(), key, key)
		path := filepath.Join(dir, h.Name)
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			w.Fatal(err)
		}
		must(h.Exec(w.ctx, "mkdir", "-p", "/run/sshd"))
		cmd, err := h.Command(w.ctx, "/usr/sbin/sshd", "-D", "-e", "-f", path)
		if err == nil {
			err = h.Start(cmd)
		}
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		fmt.Fprintf(&b, "Host %s\n  HostName %s\n", h.Name, h.MgmtIP())
	}
	fmt.Fprintf(&b, "Host *\n  Port 2222\n  User root\n  IdentityFile %s\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n", key)
	path := filepath.Join(dir, "config")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		w.Fatal(err)
	}
	time.Sleep(time.Second) // both listen
	return path
}
