package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"berth/driver"
	"berth/driver/libvirt"
	"berth/internal/fault"
	"berth/test/guest"
	"berth/test/lab"
)

// A guest in post-copy whose memory comes over a link that is cut: what each side shows,
// when, and what brings it back. The log is the transcript of it.
func TestPostCopy_OfALinkThatWasCutGoesOn(t *testing.T) {
	// It writes nothing but its beats, and needs no memory that has not come when the link is
	// cut: TCG waits for such with QEMU's lock held, and then QEMU takes no order any more.
	l, src, dst, id, m := pairOf(t, guest.Options{Name: "cut", MemoryMiB: 192, Dirty: 96, Busy: time.Millisecond, Quiet: time.Hour, Beat: 100 * time.Millisecond})
	a, b := l.Hosts[0], l.Hosts[1]
	if _, err := guest.WaitBeat(within(t, 2*time.Minute), a.Console("cut"), 3); err != nil {
		t.Fatal(err)
	}
	f := forward(t, a, b, src, id, &m)
	m.Paused, m.PostCopy = false, true
	m.Bandwidth, m.MaxDowntime, m.PostCopyBandwidth = 1<<20, time.Millisecond, 2<<20

	s := &transcript{T: t, src: src, dst: dst, hosts: l.Hosts, id: id, began: time.Now()}
	first := make(chan error, 1)
	go func() { first <- src.Migrate(context.Background(), id, m) }()
	s.step("begun with 1 MiB/s and 1 ms")
	awaitJob(t, src, id)
	s.step("memory moves")
	if err := src.StartPostCopy(within(t, 2*time.Minute), id); err != nil {
		t.Fatal(err)
	}
	s.until("paused (post-copy), running (post-copy)")

	if _, err := guest.WaitBeat(within(t, 2*time.Minute), b.Console("cut"), 15); err != nil {
		t.Fatal(err)
	}
	s.step("fifteen beats at the destination")
	f.cutOff()
	s.step("the link is cut")
	before, err := src.Job(within(t, 2*time.Minute), id)
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(3 * time.Second) // nobody shall notice: that cannot be waited for otherwise
	s.until("paused (post-copy), running (post-copy)")
	if err := src.RecoverPostCopy(within(t, 2*time.Minute), id, m); !errors.Is(err, fault.Busy) {
		t.Errorf("RecoverPostCopy while it is in flight: %v, want busy", err)
	}
	if err := src.AbortJob(within(t, 2*time.Minute), id); !errors.Is(err, fault.Invalid) {
		t.Errorf("AbortJob in post-copy: %v, want it refused", err)
	}
	if err := src.FailPostCopy(within(t, 2*time.Minute), id); err != nil {
		t.Fatal(err)
	}
	s.until("paused (post-copy failed), running (post-copy)")
	failed, err := src.Job(within(t, 2*time.Minute), id)
	t.Logf("job while it is failed: %+v, %v", failed, err)
	// libvirt asks the other one for the end, which waits for its QEMU.
	if err := src.RecoverPostCopy(within(t, 2*time.Minute), id, m); !errors.Is(err, fault.Busy) {
		t.Errorf("RecoverPostCopy, and the destination has not noticed: %v, want busy", err)
	}
	// So would another agent: after a restart, say.
	err = open(t, options(t, a)).RecoverPostCopy(within(t, 2*time.Minute), id, m)
	if !errors.Is(err, fault.InDoubt) {
		t.Errorf("RecoverPostCopy by another, and the destination has not noticed: %v, want in doubt", err)
	} else {
		s.step("RecoverPostCopy by another: " + err.Error())
	}

	f.breakOff()
	f.heal()
	s.step("both ends are closed")
	s.until("paused (post-copy failed), running (post-copy failed)")
	select {
	case err := <-first:
		if !errors.Is(err, fault.InDoubt) {
			t.Errorf("Migrate: %v, want in doubt", err)
		} else {
			s.step("Migrate: " + err.Error())
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("Migrate does not end")
	}
	again := make(chan error, 1)
	go func() {
		for {
			// At first one of them may not have heard of it from its QEMU; and one that libvirt
			// has given up may go on: see driver.PostCopyRecoverer.
			err := src.RecoverPostCopy(context.Background(), id, m)
			if d, lerr := src.Domain(context.Background(), id); lerr == nil && d.HasLeft() {
				err = nil
			}
			if !errors.Is(err, fault.InDoubt) && !errors.Is(err, fault.Busy) || t.Context().Err() != nil {
				again <- err
				return
			}
			t.Logf("RecoverPostCopy: %v", err)
			f.breakOff()
			<-time.After(20 * time.Millisecond)
		}
	}()
	s.until("paused (post-copy), running (post-copy)")
	j, err := src.Job(within(t, 2*time.Minute), id)
	if err != nil || !j.InFlight() || j.MemoryProcessed < before.MemoryProcessed {
		t.Errorf("job %+v, %v, want it to go on from %d bytes", j, err, before.MemoryProcessed)
	}
	if err := src.SetBandwidth(within(t, 2*time.Minute), id, 0); err != nil {
		t.Error(err)
	}
	s.step("its bandwidth is bound no more")
	select {
	case err := <-again:
		if err != nil {
			t.Fatalf("RecoverPostCopy: %v", err)
		}
	case <-time.After(3 * time.Minute):
		for _, h := range l.Hosts {
			t.Logf("%s: %s", h.Name, virsh(t, h, "qemu-monitor-command", id, `{"execute":"query-migrate"}`))
		}
		t.Fatal("RecoverPostCopy does not end")
	}
	s.until("shut off (migrated), running (migrated)")

	source, err := guest.ReadConsole(a.Console("cut"))
	if err != nil {
		t.Fatal(err)
	}
	destination, err := guest.WaitBeat(within(t, 2*time.Minute), b.Console("cut"), 20)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := guest.Continuity(source, destination)
	if err != nil {
		t.Error(err)
	}
	t.Log(proof)
}

// transcript says what both sides of a migration show, and when.
type transcript struct {
	*testing.T
	src, dst driver.Driver
	hosts    []*lab.Host
	id       string
	began    time.Time
}

func (s *transcript) states() string {
	s.Helper()
	return state(s.T, s.src, s.id) + ", " + state(s.T, s.dst, s.id)
}

func (s *transcript) step(what string) {
	s.Helper()
	s.Logf("%6.2f s  %s; %s", time.Since(s.began).Seconds(), s.states(), what)
}

// until waits for the states of both sides.
func (s *transcript) until(want string) {
	s.Helper()
	limit := time.After(3 * time.Minute)
	for last := ""; ; {
		got := s.states()
		if got != last {
			s.Logf("%6.2f s  %s", time.Since(s.began).Seconds(), got)
		}
		if last = got; got == want || strings.HasPrefix(want, "shut off") && got == "shut off (migrated), running (post-copy)" {
			return
		}
		select {
		case <-limit:
			for _, h := range s.hosts {
				s.Logf("%s: %s", h.Name, virsh(s.T, h, "qemu-monitor-command", s.id, `{"execute":"query-migrate"}`))
			}
			job, err := s.src.(*libvirt.Driver).Job(s.Context(), s.id)
			s.Fatalf("%s, want %s; job %+v, %v", got, want, job, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
