package driver

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"berth/driver"
	"berth/test/lab"
)

// forward makes unix sockets on the host a that lead to libvirtd on b and to what
// QEMU makes there, and names them in m. Nothing else is between: this process has
// both hosts' folders at hand.
func forward(t testing.TB, a, b *lab.Host, src driver.Driver, id string, m *driver.Migration) (connections func() (control, memory, disks int)) {
	t.Helper()
	n, err := src.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n.GuestUser == nil {
		t.Fatal("libvirt does not say as which user QEMU runs")
	}
	dir := "/run/to-" + id[:8]
	for _, h := range []*lab.Host{a, b} {
		if err := os.Mkdir(h.Path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		// On the destination QEMU makes its sockets there, on the source it opens them.
		if err := os.Chown(h.Path(dir), n.GuestUser.UID, n.GuestUser.GID); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(h.Path(dir)) }) // the host's folder goes with the lab
	}
	open := func(name, to string) *atomic.Int64 {
		path := a.Path(dir + "/" + name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		count := new(atomic.Int64)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // closed
				}
				count.Add(1)
				wg.Go(func() { pass(t, c.(*net.UnixConn), to) })
			}
		})
		t.Cleanup(func() {
			l.Close()
			wg.Wait()
		})
		if err := os.Chown(path, n.GuestUser.UID, n.GuestUser.GID); err != nil {
			t.Fatal(err)
		}
		return count
	}
	control := open("control", b.LibvirtSocket())
	memory, disks := open("memory", b.Path(dir+"/memory")), open("disks", b.Path(dir+"/disks"))
	m.DestinationURI = "qemu+unix:///system?socket=" + dir + "/control"
	m.MigrateURI, m.DisksURI = "unix://"+dir+"/memory", "unix://"+dir+"/disks"
	return func() (int, int, int) { return int(control.Load()), int(memory.Load()), int(disks.Load()) }
}

// pass joins a connection with a socket, in both directions until each has ended.
func pass(t testing.TB, from *net.UnixConn, to string) {
	defer from.Close()
	c, err := net.Dial("unix", to)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	there := c.(*net.UnixConn)
	// A migration that failed may have left both ends open.
	defer context.AfterFunc(t.Context(), func() { from.Close(); c.Close() })()
	var wg sync.WaitGroup
	for _, way := range [][2]*net.UnixConn{{from, there}, {there, from}} {
		wg.Go(func() {
			_, _ = io.Copy(way[1], way[0]) // a broken one shows in the migration
			_ = way[1].CloseWrite()
		})
	}
	wg.Wait()
}
