package libvirt

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/fault"
)

// A daemon whose workers all hang still answers pings.
func TestHealth_SeesADaemonThatAnswersPingsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{answer: map[string]func(*scripted) error{}}
		l := drive(t, d)
		synctest.Wait()
		well := func(want bool, when string) {
			t.Helper()
			if err := l.Health(); (err == nil) != want || err != nil && !errors.Is(err, fault.Unavailable) {
				t.Errorf("Health %s: %v", when, err)
			}
		}
		well(true, "at the start")
		d.set(func() { d.answer["List"] = hang })
		if _, err := l.Domains(withIn(t, 100*time.Millisecond)); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Domains: %v, want unavailable", err)
		}
		well(true, "after an impatient caller")
		if _, err := l.Domains(withIn(t, time.Minute)); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Domains: %v, want unavailable", err)
		}
		well(false, "after a list without an answer")
		time.Sleep(time.Minute)
		well(false, "as long as that lasts")
		d.set(func() { delete(d.answer, "List") })
		time.Sleep(10 * time.Second) // no one asks but the driver itself
		well(true, "once it answers")
	})
}

// Who reads, and would wait for minutes, hears of a daemon that hangs when the
// driver does; who changes something waits for the answer that decides.
func TestCall_ThatReadsEndsWithADaemonThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{answer: map[string]func(*scripted) error{}}
		l := drive(t, d)
		synctest.Wait()
		d.set(func() {
			for _, method := range []string{"State", "Create", "LibVersion", "Subscribe"} {
				d.answer[method] = hang
			}
		})
		began := time.Now()
		changed := make(chan error, 1)
		go func() { changed <- l.Start(withIn(t, time.Minute), guestUUID, false) }()
		if _, err := l.Domain(withIn(t, time.Minute), guestUUID); !errors.Is(err, fault.Unavailable) {
			t.Errorf("Domain: %v, want unavailable", err)
		}
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("Domain took %v, want no more than a ping's interval and deadline", took)
		}
		if err := <-changed; !errors.Is(err, fault.InDoubt) || time.Since(began) != time.Minute {
			t.Errorf("Start: %v after %v, want in doubt at its deadline", err, time.Since(began))
		}
	})
}
