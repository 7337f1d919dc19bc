package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/migration"
	"berth/stream"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// streams asks the stream processes of a host, by a command that needs no agent.
func (w *world) streams(h *lab.Host) []stream.Status {
	w.Helper()
	return ask[struct {
		Streams []stream.Status `json:"streams"`
	}](w, h, "stream", "list").Streams
}

// oneStream is the only stream of a host.
func (w *world) oneStream(h *lab.Host) stream.Status {
	w.Helper()
	list := w.streams(h)
	if len(list) != 1 {
		w.Fatalf("%s has %d streams, want one: %+v", h.Name, len(list), list)
	}
	return list[0]
}

// noStream requires that no process and no file of a stream is left.
func (w *world) noStream() {
	w.Helper()
	for _, h := range []*lab.Host{w.a, w.b} {
		if left, err := filepath.Glob(h.Path("/run/berth/streams") + "/*"); err != nil || len(left) > 0 {
			w.Errorf("left of streams on %s: %v %v", h.Name, left, err)
		}
	}
}

// One guest goes through all of it, and what one breakage leaves the next meets.
func TestStream_WhoeverDies(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "s1", Dirty: 8, Rate: 4})
	for _, side := range []*lab.Host{w.a, w.b} {
		if !t.Run("process of "+side.Name, func(t *testing.T) { w.in(t).processDies("s1", side) }) {
			return
		}
	}
	t.Run("agents", func(t *testing.T) { w.in(t).agentsDie("s1") })
}

// in is the world for a part of its test.
func (w *world) in(t *testing.T) *world {
	sub := *w
	sub.TB = t
	return &sub
}

// processDies kills one of the two processes of a move: nothing has happened then.
func (w *world) processDies(name string, side *lab.Host) {
	w.berth(w.a, "migrate", name, w.b.Name, "--detach", "--bandwidth", "3MiB/s")
	m := w.migration(w.a, name, "sends memory", flowing)
	if _, err := side.Exec(w.ctx, "kill", "-9", strconv.Itoa(w.oneStream(side).PID)); err != nil {
		w.Fatal(err)
	}
	m = w.migration(w.a, name, "is over", func(now migration.Migration) bool { return now.UUID == m.UUID && now.Done() })
	w.require("outcome", m.Outcome, migration.OutcomeUndone)
	w.livesOn(name, w.a, w.b)
	w.noStream()
}

// agentsDie ends both agents, one by a signal and one in order, and starts them from
// another binary; certificates are replaced; a third host knocks. The guest's disk and
// its memory, by parallel connections, flow on through the same two processes, and the
// move is finished by the new agents.
func (w *world) agentsDie(name string) {
	w.berth(w.a, "migrate", name, w.b.Name, "--detach", "--bandwidth", "2MiB/s", "--parallel", "4")
	m := w.migration(w.a, name, "sends memory", flowing)
	from, to := w.oneStream(w.a), w.oneStream(w.b)

	keys := filepath.Join(w.Dir, "pki")
	if err := fleet.Reissue(w.ctx, w.Fleet.Binary, keys, []string{"host-a", "host-b", "host-c"}); err != nil {
		w.Fatal(err)
	}
	w.knocks(filepath.Join(keys, "host-c"), filepath.Join(keys, "ca.crt"), to.Port)

	w.Agent("host-b").Kill()
	if err := w.Agent("host-a").Stop(w.ctx); err != nil {
		w.Fatal(err)
	}
	for _, h := range []*lab.Host{w.a, w.b} {
		if err := h.InstallPKI(keys); err != nil {
			w.Fatal(err)
		}
	}
	next := filepath.Join(w.Dir, "berth-next")
	if out, err := exec.Command("cp", w.Fleet.Binary, next).CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	before := w.oneStream(w.b)
	was := w.Fleet.Binary
	w.Cleanup(func() { w.Fleet.Binary = was })
	w.Fleet.Binary = next
	for _, h := range []*lab.Host{w.a, w.b} {
		if err := w.StartAgent(w.ctx, h.Name); err != nil {
			w.Fatal(err)
		}
	}
	for _, h := range []*lab.Host{w.a, w.b} {
		if err := w.WaitReady(w.ctx, h.Name); err != nil {
			w.Fatal(err)
		}
	}
	now := w.oneStream(w.b)
	w.require("process of the source", w.oneStream(w.a).PID, from.PID)
	w.require("process of the destination", now.PID, to.PID)
	if was, is := before.Of(stream.Memory).Received, now.Of(stream.Memory).Received; is <= was {
		w.Errorf("%d bytes of memory had come without an agent, then %d: want more", was, is)
	}
	if memory, disks := now.Of(stream.Memory), now.Of(stream.Disks); memory.Total < 4 || disks.Received == 0 {
		w.Errorf("memory by %d connections, %d bytes of disks: want 4 at least, and the disk's", memory.Total, disks.Received)
	}
	if now.CertificateError != "" || !now.Certificate.After(to.Certificate) {
		w.Errorf("the stream's certificate is good until %v, it was until %v: want the new one; %s", now.Certificate, to.Certificate, now.CertificateError)
	}
	w.virsh(w.a, "migrate-setspeed", name, "1000")
	m = w.migration(w.a, name, "is over", func(now migration.Migration) bool { return now.UUID == m.UUID && now.Done() })
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.livesOn(name, w.b, w.a)
	w.noStream()
	w.alive(name, w.a, w.b)
}

// knocks dials the destination's stream with a good certificate of another host, which
// is let nothing.
func (w *world) knocks(host, authority string, port int) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(host, "host.crt"), filepath.Join(host, "host.key"))
	if err != nil {
		w.Fatal(err)
	}
	ca, err := os.ReadFile(authority)
	if err != nil {
		w.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	raw, err := dialIn(w.a, net.JoinHostPort(w.b.MigIP(), strconv.Itoa(port)))
	if err != nil {
		w.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(patience)) // of a socket that is open
	c := tls.Client(raw, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, ServerName: "host-b", MinVersion: tls.VersionTLS13})
	if err := c.HandshakeContext(w.ctx); err == nil {
		// TLS 1.3 has the server judge after the client is done.
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			w.Errorf("a third host was sent %d bytes, %v", n, err)
		}
	}
	w.eventually("the third host is refused, with the reason", func() string {
		if st := w.oneStream(w.b); st.Refused == 0 || st.LastRefusal == "" {
			return fmt.Sprintf("%d refused, %q", st.Refused, st.LastRefusal)
		}
		return ""
	})
}

// dialIn connects from a host's network.
func dialIn(h *lab.Host, address string) (net.Conn, error) {
	type answer struct {
		c   net.Conn
		err error
	}
	done := make(chan answer)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that nobody else runs
		// in that network.
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", h.InitPID()))
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- answer{nil, err}
			return
		}
		// By address: a name would be looked up by another thread.
		var d net.Dialer
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, err := d.DialContext(ctx, "tcp", address)
		done <- answer{c, err}
	}()
	a := <-done
	return a.c, a.err
}
