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
func forward(t testing.TB, a, b *lab.Host, src driver.Driver, id string, m *driver.Migration) *forwarded {
	t.Helper()
	f := &forwarded{}
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
				wg.Go(func() { pass(t, c.(*net.UnixConn), to, name == "memory", f) })
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
	f.counts = func() (int, int, int) { return int(control.Load()), int(memory.Load()), int(disks.Load()) }
	return f
}

// forwarded is what forward has made.
type forwarded struct {
	counts func() (control, memory, disks int)

	mu     sync.Mutex    // guards what follows
	memory []net.Conn    // both ends of each connection that memory went by
	cut    chan struct{} // closed when it is healed; nil while nothing is cut
}

// cutOff has nothing of memory pass any more, and tells neither end.
func (f *forwarded) cutOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = make(chan struct{})
}

// heal lets it pass again.
func (f *forwarded) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut != nil {
		close(f.cut)
		f.cut = nil
	}
}

// held reads what is passed on when nothing is cut.
type held struct {
	net.Conn
	f *forwarded
}

func (h held) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	h.f.mu.Lock()
	cut := h.f.cut
	h.f.mu.Unlock()
	if cut != nil {
		<-cut
	}
	return n, err
}

// breakOff closes the connections by which memory goes, at both ends.
func (f *forwarded) breakOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.memory {
		c.Close()
	}
	f.memory = nil
}

// pass joins a connection with a socket, in both directions until each has ended.
func pass(t testing.TB, from *net.UnixConn, to string, memory bool, f *forwarded) {
	defer from.Close()
	c, err := net.Dial("unix", to)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	there := c.(*net.UnixConn)
	if memory {
		f.mu.Lock()
		f.memory = append(f.memory, from, there)
		f.mu.Unlock()
	}
	// A migration that failed may have left both ends open.
	defer context.AfterFunc(t.Context(), func() { from.Close(); c.Close(); f.heal() })()
	var wg sync.WaitGroup
	for _, way := range [][2]*net.UnixConn{{from, there}, {there, from}} {
		wg.Go(func() {
			in := net.Conn(way[0])
			if memory {
				in = held{in, f}
			}
			_, _ = io.Copy(way[1], in) // a broken one shows in the migration
			_ = way[1].CloseWrite()
		})
	}
	wg.Wait()
}
