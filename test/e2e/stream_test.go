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

func TestStream_KilledProcessUndoesTheMove(t *testing.T) {
	w := start(t)
	w.boot(w.a, guest.Options{Name: "s1", Dirty: 8, Rate: 4})
	for _, side := range []*lab.Host{w.a, w.b} {
		w.berth(w.a, "migrate", "s1", w.b.Name, "--detach", "--bandwidth", "6MiB/s")
		m := w.migration(w.a, "s1", "sends memory", flowing)
		if _, err := side.Exec(w.ctx, "kill", "-9", strconv.Itoa(w.oneStream(side).PID)); err != nil {
			t.Fatal(err)
		}
		m = w.migration(w.a, "s1", "is over", func(now migration.Migration) bool { return now.UUID == m.UUID && now.Done() })
		w.require("outcome with the stream of "+side.Name+" killed", m.Outcome, migration.OutcomeUndone)
		w.livesOn("s1", w.a, w.b)
		w.noStream()
	}
	w.alive("s1", w.a, w.a)
}

// Both agents end, one killed and one in order, and are started from another
// binary; certificates are replaced; a third host knocks. The guest's memory flows
// on through the same two processes, and the move is finished by the new agents.
func TestStream_OutlivesAgentsAndCertificates(t *testing.T) {
	w := own(t, nil)
	w.boot(w.a, guest.Options{Name: "s2", Dirty: 8, Rate: 2})
	w.berth(w.a, "migrate", "s2", w.b.Name, "--detach", "--bandwidth", "10MiB/s")
	w.migration(w.a, "s2", "sends memory", flowing)
	from, to := w.oneStream(w.a), w.oneStream(w.b)

	keys := filepath.Join(w.Dir, "pki")
	t.Run("a third host of the same authority gets nothing", func(t *testing.T) { w.knocks(t, keys, to.Port) })

	w.Agent("host-b").Kill()
	if err := w.Agent("host-a").Stop(w.ctx); err != nil {
		t.Fatal(err)
	}
	if err := fleet.Reissue(w.ctx, w.Fleet.Binary, keys, []string{"host-a", "host-b"}); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*lab.Host{w.a, w.b} {
		if err := h.InstallPKI(keys); err != nil {
			t.Fatal(err)
		}
	}
	next := filepath.Join(w.Dir, "berth-next")
	if out, err := exec.Command("cp", w.Fleet.Binary, next).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.Fleet.Binary = next
	before := w.oneStream(w.b)
	for _, h := range []*lab.Host{w.a, w.b} {
		if err := w.StartAgent(w.ctx, h.Name); err != nil {
			t.Fatal(err)
		}
		if err := w.WaitReady(w.ctx, h.Name); err != nil {
			t.Fatal(err)
		}
	}
	now := w.oneStream(w.b)
	w.require("process of the source", w.oneStream(w.a).PID, from.PID)
	w.require("process of the destination", now.PID, to.PID)
	if was, is := before.Of(stream.Memory).Received, now.Of(stream.Memory).Received; is <= was {
		t.Errorf("%d bytes of memory had come without an agent, then %d: want more", was, is)
	}
	if now.CertificateError != "" || !now.Certificate.After(to.Certificate) {
		t.Errorf("the stream's certificate is good until %v, it was until %v: want the new one; %s", now.Certificate, to.Certificate, now.CertificateError)
	}
	m := w.migration(w.a, "s2", "is over", migration.Migration.Done)
	w.require("outcome", m.Outcome, migration.OutcomeCompleted)
	w.livesOn("s2", w.b, w.a)
	w.noStream()
	w.alive("s2", w.a, w.b)
}

// knocks dials the destination's stream with a good certificate of another host.
func (w *world) knocks(t *testing.T, keys string, port int) {
	if err := fleet.Reissue(w.ctx, w.Fleet.Binary, keys, []string{"host-c"}); err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(keys, "host-c", "host.crt"), filepath.Join(keys, "host-c", "host.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(keys, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	raw, err := dialIn(w.a, net.JoinHostPort(w.b.MigIP(), strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(20 * time.Second)) // of a socket that is open
	c := tls.Client(raw, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, ServerName: "host-b", MinVersion: tls.VersionTLS13})
	if err := c.HandshakeContext(w.ctx); err == nil {
		// TLS 1.3 has the server judge after the client is done.
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("a third host was sent %d bytes, %v", n, err)
		}
	}
	if st := w.oneStream(w.b); st.Refused == 0 || st.LastRefusal == "" {
		t.Errorf("refused %d, %q: want the third host with the reason", st.Refused, st.LastRefusal)
	}
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
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c, err := d.DialContext(ctx, "tcp", address)
		done <- answer{c, err}
	}()
	a := <-done
	return a.c, a.err
}
