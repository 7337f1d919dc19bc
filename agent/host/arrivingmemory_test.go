package host_test

import (
	"strings"
	"testing"

	"berth/driver"
)

// An instance whose balloon holds half of its memory moves by each way: its claim on the other host
// is what QEMU may take there.
func TestMove_ABalloonIsNoReasonToRefuse(t *testing.T) {
	ballooned := func(l *lab, uuid string) {
		stop := l.followed("a")
		waitFor(t, "the first look", func() bool { c := l.hosts["a"].tracker.ByInstance(uuid); return len(c) == 1 && c[0].Seen != nil })
		l.hosts["a"].fake.ChangeGuest(uuid, func(doc string) string {
			return strings.Replace(doc, "</vcpu>", "</vcpu><currentMemory unit='KiB'>65536</currentMemory>", 1)
		})
		l.soon("a", uuid, "1 vcpus, 64 MiB, 1 GiB by hand")
		stop()
	}
	t.Run("live", func(t *testing.T) {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		ballooned(l, v.UUID)
		m := newMove(l, v.UUID)
		m.prepare()
		if m.claim.Resources.MemoryMB != 128 {
			t.Errorf("the claim has %d MiB, want all that the copy may take", m.claim.Resources.MemoryMB)
		}
	})
	for _, memory := range []int64{128, 64} {
		t.Run("cold", func(t *testing.T) {
			l, v := coldLab(t)
			ballooned(l, v.UUID)
			f := small
			if memory == 64 {
				f.Name, f.MemoryMB = "smaller", memory
			}
			c := newCold(t, l, v.UUID, &f)
			if memory == 128 {
				c = newCold(t, l, v.UUID, nil)
			}
			c.run(c.there(), "prep resize")
			claim := c.b.tracker.ByInstance(v.UUID)[0]
			if claim.Resources.MemoryMB != memory {
				t.Errorf("the claim has %d MiB, want the %d that it starts with", claim.Resources.MemoryMB, memory)
			}
		})
	}
	t.Run("evacuation", func(t *testing.T) {
		e := newEvacuation(t, driver.Running)
		e.request.Guest.Resources.MemoryMB = 64
		e.all(e.prepared())
	})
}
