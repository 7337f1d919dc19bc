package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/driver/libvirt/rpc"
	"berth/test/guest"
	"berth/test/lab"
)

// library is one of the two bindings, and what was found of the library beneath it, which
// docs/decisions/0004 tells and the code relies on.
type library struct {
	dial libvirt.Dialer
	// watch counts what the library's own subscriptions give.
	watch func(*testing.T, *lab.Host) func() (lifecycle, completed int)
	// completes: the library delivers job-completed events.
	completes bool
	// first looks at a finding of this library alone, on a host and its guest.
	first func(*testing.T, *lab.Host, string)
	// peer is the other binding, whose statistics of a job shall be the same.
	peer libvirt.Dialer
	// notices: the library ends the connection of a daemon that hangs.
	notices bool
}

func TestRPC_DoesWhatTheDriverReliesOn(t *testing.T) {
	reliesOn(t, library{dial: rpc.Dial, watch: watchGoLibvirt})
}

// Flags and parameters of libvirt-domain.h.
const (
	migrateFlags    = 1 | 1<<1 | 1<<3 // live, peer-to-peer, persist at the destination
	migratePostCopy = 1 << 15
	jobUnbounded    = 2
	jobCompleted    = 3
	statsCompleted  = 1
	statsKept       = 1 << 1
)

// reliesOn is one guest's way through everything: an aborted migration, one in
// post-copy, then a daemon that hangs and one that dies.
func reliesOn(t *testing.T, b library) {
	l := lab.Start(t, lab.Options{Listen: true})
	src, dst := l.Hosts[0], l.Hosts[1]
	g, err := guest.Build(within(t, 2*time.Minute), "")
	if err != nil {
		t.Fatal(err)
	}
	here, there := open(t, options(t, src)), open(t, options(t, dst))
	o := guest.Options{Name: "binding", Guest: g, MemoryMiB: 96, Dirty: 24, Rate: 60, Beat: 50 * time.Millisecond}
	id := defined(t, here, o)
	t.Cleanup(func() { removeDomain(t, there, id) })
	if err := here.Start(within(t, 2*time.Minute), id, false); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.WaitBeat(within(t, 2*time.Minute), src.Console(o.Name), 3); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, b.dial, src)
	events, arrivals := follow(t, conn, id), follow(t, connect(t, b.dial, dst), id)
	counts := b.watch(t, src)
	params := parameters(t, here, id)
	if b.first != nil {
		b.first(t, src, id)
	}

	t.Run("abort", func(t *testing.T) {
		done := migrate(t, src, conn, id, dst, params, migrateFlags)
		// Of the job in flight, with the migration's call pending on the same connection.
		if err := conn.SetMaxDowntime(id, 700); err != nil {
			t.Error(err)
		}
		if ms, err := conn.MaxDowntime(id); err != nil || ms != 700 {
			t.Errorf("maximum downtime %d, %v, want 700", ms, err)
		}
		if err := conn.SetMaxSpeed(id, 8, 0); err != nil {
			t.Error(err)
		}
		if err := conn.StartPostCopy(id); refusalCode(err) != int(golibvirt.ErrOperationInvalid) {
			t.Errorf("StartPostCopy of a migration that does not permit it: %v", err)
		}
		if err := conn.AbortJob(id, 0); err != nil {
			t.Error(err)
		}
		// QEMU 10.0.2 may call a job that is cancelled in its first moments failed, by
		// the channel that the cancelling itself has shut: then libvirt says 9. Or the
		// destination's QEMU has ended by that channel before libvirt looks: then it says
		// 1 and gives that QEMU's last words. The driver goes by the domains instead.
		err := <-done
		switch refusalCode(err) {
		case int(golibvirt.ErrOperationAborted), int(golibvirt.ErrOperationFailed), int(golibvirt.ErrInternalError):
		default:
			t.Errorf("Migrate: %v, want libvirt's 78, aborted, 9, failed, or 1, internal", err)
		}
		t.Logf("Migrate: %v", err)
		if got := state(t, here, id); got != "running (migration canceled)" && got != "running (booted)" {
			t.Errorf("the source is %s", got)
		}
		if _, completed := counts(); completed != 0 {
			t.Errorf("%d job-completed events came of an abort", completed)
		}
	})
	t.Run("post-copy", func(t *testing.T) {
		done := migrate(t, src, conn, id, dst, params, migrateFlags|migratePostCopy)
		if err := conn.StartPostCopy(id); err != nil {
			t.Fatal(err)
		}
		limit(t, src, 0) // what is missing shall come
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if a, b := state(t, here, id), state(t, there, id); a != "shut off (migrated)" || b != "running (migrated)" && b != "running (post-copy)" {
			t.Errorf("the source is %s, the destination %s", a, b)
		}
		left := events(t, func(e libvirt.Event) bool { return e.Event == 5 }) // stopped
		came := arrivals(t, func(e libvirt.Event) bool { return e.Event == 4 && e.Detail == 3 })
		t.Logf("source %v, destination %v", left, came)
		if !slices.Contains(left, "suspended 7") {
			t.Errorf("the source's events are %v, want it suspended by post-copy", left)
		}
		if b.peer != nil {
			sameJob(t, conn, connect(t, b.peer, src), id)
		}
		kind, stats, err := conn.JobStats(id, statsCompleted) // after which libvirt has forgotten it
		processed, _ := stats["memory_processed"].(uint64)
		if err != nil || kind != jobCompleted || processed == 0 {
			t.Errorf("completed job %d, %v, %v", kind, stats, err)
		}
		before, err := guest.ReadConsole(src.Console(o.Name))
		if err != nil {
			t.Fatal(err)
		}
		after, err := guest.WaitBeat(within(t, 2*time.Minute), dst.Console(o.Name), 5)
		if err != nil {
			t.Fatal(err)
		}
		if proof, err := guest.Continuity(before, after); err != nil {
			t.Errorf("%v, %v", proof, err)
		}
		want := 0
		if b.completes {
			want = 1
		}
		// The library has a connection of its own. Suspended twice and stopped, as
		// above: libvirt sends nothing more of this guest.
		ctx := within(t, 2*time.Minute)
		for {
			lifecycle, completed := counts()
			if lifecycle >= 3 && completed >= want || ctx.Err() != nil {
				if lifecycle < 3 || completed != want {
					t.Errorf("the library gave %d lifecycle and %d job-completed events, want 3 and %d", lifecycle, completed, want)
				}
				break
			}
			<-time.After(10 * time.Millisecond)
		}
	})
	t.Run("a daemon that hangs", func(t *testing.T) {
		c := connect(t, b.dial, src)
		if err := src.PauseLibvirtd(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		began := time.Now()
		go func() { _, err := c.LibVersion(); done <- err }()
		patience := 2 * time.Second
		if b.notices {
			patience = time.Minute
		}
		select {
		case <-c.Done():
			t.Logf("the connection ended after %v", time.Since(began).Round(100*time.Millisecond))
			if !b.notices {
				t.Error("the library ended the connection of a daemon that hangs: it has a keepalive now")
			}
		case <-time.After(patience):
			if b.notices {
				t.Error("the library did not notice within a minute")
			}
		}
		// With the library's keepalive it is over; else closing ends it.
		c.Close()
		select {
		case err := <-done:
			if !errors.Is(err, libvirt.ErrLost) {
				t.Errorf("the call in flight: %v, want lost", err)
			}
		case <-time.After(2 * time.Minute):
			t.Error("the call in flight did not end with its connection")
		}
		if err := src.ResumeLibvirtd(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a daemon that dies", func(t *testing.T) {
		c := connect(t, b.dial, src)
		seen := follow(t, c, id)
		restart(t, src)
		select {
		case <-c.Done():
		case <-time.After(2 * time.Minute):
			t.Fatal("the connection outlives its daemon")
		}
		if _, err := c.State(id); !errors.Is(err, libvirt.ErrNotSent) && !errors.Is(err, libvirt.ErrLost) {
			t.Errorf("State on the dead connection: %v, want not sent or lost", err)
		}
		again := connect(t, b.dial, src)
		fresh := follow(t, again, id)
		if _, err := again.State(id); err != nil {
			t.Errorf("State on a new connection, of a domain known from the old: %v", err)
		}
		if err := again.Undefine(id, 0); err != nil {
			t.Fatal(err)
		}
		undefined := func(e libvirt.Event) bool { return e.Event == 1 }
		if got := fresh(t, undefined); len(got) == 0 {
			t.Error("a new subscription gives nothing")
		}
		if got := seen(t, nil); len(got) > 0 {
			t.Errorf("the old subscription gave %v", got)
		}
	})
}

// sameJob compares a completed job's typed parameters, of which native gives those
// that the driver reads.
func sameJob(t *testing.T, c, peer libvirt.Conn, id string) {
	t.Helper()
	kind, got, err := c.JobStats(id, statsCompleted|statsKept)
	if err != nil {
		t.Fatal(err)
	}
	other, want, err := peer.JobStats(id, statsCompleted|statsKept)
	if err != nil {
		t.Fatal(err)
	}
	for name := range want {
		if _, known := got[name]; !known {
			delete(want, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || kind != other || len(got) < 8 {
		t.Errorf("job %d, the other binding's %d (-other +this):\n%s", kind, other, diff)
	}
	t.Logf("job %v", got)
}

func connect(t *testing.T, dial libvirt.Dialer, h *lab.Host) libvirt.Conn {
	t.Helper()
	to := libvirt.Target{Socket: h.LibvirtSocket(), URI: "qemu:///system"}
	c, err := dial(within(t, 2*time.Minute), to)
	if err != nil && crashed(h) {
		// libvirtd 9.0.0 segfaults now and then when many clients have gone away while it hung
		// (after "unexpected incomplete domain callback"); its unit would start it again.
		t.Logf("libvirtd has ended by itself, and is started again: %v", err)
		if err := h.StartLibvirtd(within(t, 2*time.Minute)); err != nil {
			t.Fatal(err)
		}
		c, err = dial(within(t, 2*time.Minute), to)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// crashed reports whether a host's libvirtd has ended, or does so within a second.
func crashed(h *lab.Host) bool {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		if _, err := h.LibvirtdPID(); err != nil {
			return true
		}
	}
	return false
}

func refusalCode(err error) int {
	if e, ok := errors.AsType[*libvirt.Error](err); ok {
		return e.Code
	}
	return 0
}

func limit(t *testing.T, h *lab.Host, mibps int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := h.Limit(ctx, lab.Mig, mibps); err != nil {
		t.Fatal(err)
	}
}

// parameters are the migration's typed parameters, of each type one.
func parameters(t *testing.T, d *libvirt.Driver, id string) []libvirt.Param {
	t.Helper()
	live, err := d.XML(within(t, 2*time.Minute), id, driver.Migratable)
	if err != nil {
		t.Fatal(err)
	}
	persistent, err := d.XML(within(t, 2*time.Minute), id, driver.Persistent)
	if err != nil {
		t.Fatal(err)
	}
	return []libvirt.Param{
		{Name: "destination_xml", Value: live}, {Name: "persistent_xml", Value: persistent}, {Name: "bandwidth", Value: uint64(512)},
	}
}

// migrate sends a guest over a link that is too slow for it, and returns once
// memory is on its way.
func migrate(t *testing.T, h *lab.Host, c libvirt.Conn, id string, to *lab.Host, params []libvirt.Param, flags uint32) <-chan error {
	t.Helper()
	limit(t, h, 4)
	t.Cleanup(func() { limit(t, h, 0) })
	done := make(chan error, 1)
	go func() { done <- c.Migrate(id, "qemu+tls://"+to.Name+"/system", params, flags) }()
	ctx := within(t, 2*time.Minute)
	for {
		kind, stats, err := c.JobStats(id, 0)
		if n, _ := stats["memory_processed"].(uint64); err == nil && kind == jobUnbounded && n > 0 {
			return done
		}
		select {
		case err := <-done:
			t.Fatalf("Migrate ended before it had begun: %v", err)
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("no job: %d, %v, %v", kind, stats, err)
		}
	}
}

// follow subscribes. What it gives waits for a lifecycle event, or for none, and
// names those that came: "suspended 7".
func follow(t *testing.T, c libvirt.Conn, id string) func(*testing.T, func(libvirt.Event) bool) []string {
	t.Helper()
	var mu sync.Mutex // guards seen
	var seen []libvirt.Event
	news := make(chan struct{}, 1)
	if err := c.Subscribe(func(e libvirt.Event) {
		if e.UUID != id || e.ID != libvirt.LifecycleEvent {
			return
		}
		mu.Lock()
		seen = append(seen, e)
		mu.Unlock()
		select {
		case news <- struct{}{}:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, last func(libvirt.Event) bool) (out []string) {
		t.Helper()
		ctx := within(t, 2*time.Minute)
		for {
			mu.Lock()
			over := last == nil || slices.ContainsFunc(seen, last)
			out = out[:0]
			for _, e := range seen {
				out = append(out, fmt.Sprintf("%s %d", []string{"defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed"}[e.Event], e.Detail))
			}
			mu.Unlock()
			if over {
				return out
			}
			select {
			case <-news:
			case <-ctx.Done():
				t.Fatalf("events %v, and no more", out)
			}
		}
	}
}

// watchGoLibvirt subscribes by go-libvirt alone.
func watchGoLibvirt(t *testing.T, h *lab.Host) func() (lifecycle, completed int) {
	t.Helper()
	l := golibvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(h.LibvirtSocket())))
	if err := l.ConnectToURI("qemu:///system"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var counts [2]atomic.Int64
	var readers sync.WaitGroup
	for i, id := range []golibvirt.DomainEventID{golibvirt.DomainEventIDLifecycle, golibvirt.DomainEventIDJobCompleted} {
		ch, err := l.SubscribeEvents(ctx, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			for range ch {
				counts[i].Add(1)
			}
		})
	}
	t.Cleanup(func() {
		// The daemon has died meanwhile: what this says is that it has.
		_ = l.Disconnect()
		cancel()
		readers.Wait()
	})
	return func() (int, int) { return int(counts[0].Load()), int(counts[1].Load()) }
}
