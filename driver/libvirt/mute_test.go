package libvirt

import (
	"context"
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
		if _, err := l.Domains(context.Background()); !errors.Is(err, fault.Unavailable) {
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
