package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// What can break in the world, each mended after d.

func (m *machine) killLibvirt(d time.Duration) {
	if m.off || m.away > 0 {
		return
	}
	m.away++
	m.w.fault(m.name, "libvirtd killed")
	m.fake.KillDaemon()
	m.w.look()
	m.w.later(d, "start libvirtd of "+m.name, m.startLibvirt)
}

// stopLibvirt is a restart in order: it is told to end, and may take its time over what
// it sends.
func (m *machine) stopLibvirt(d time.Duration) {
	if m.off || m.away > 0 || m.hung {
		return
	}
	m.away++
	m.w.fault(m.name, "libvirtd told to stop")
	m.fake.StopDaemon()
	m.w.look()
	m.w.later(d, "start libvirtd of "+m.name, m.startLibvirt)
}

// startLibvirt starts it, again and again while its predecessor lingers, as systemd does.
func (m *machine) startLibvirt() {
	for errors.Is(m.fake.StartDaemon(), fault.Busy) {
		_ = m.w.outside.Sleep(context.Background(), time.Second)
	}
	m.away--
	m.w.look()
}

// failReads has libvirtd answer no question.
func (m *machine) failReads(d time.Duration) {
	if m.off || m.blind {
		return
	}
	m.blind = true
	m.w.fault(m.name, "libvirtd cannot read")
	m.fake.FailReads(true)
	m.w.later(d, "libvirtd of "+m.name+" reads again", func() { m.blind = false; m.fake.FailReads(false) })
}

func (m *machine) hangLibvirt(d time.Duration) {
	if m.off || m.hung {
		return
	}
	m.hung = true
	m.w.fault(m.name, "libvirtd hangs")
	m.fake.Hang(true)
	m.w.later(d, "wake libvirtd of "+m.name, func() { m.hung = false; m.fake.Hang(false) })
}

func (w *world) cutNetwork(a, b *machine, d time.Duration) {
	p := pair(a.name, b.name)
	if a == b || w.cuts[p] {
		return
	}
	w.cuts[p] = true
	w.fault(a.name+"-"+b.name, "network cut")
	w.fleet.CutData(a.name, b.name)
	w.fleet.CutManagement(a.name, b.name)
	w.later(d, "heal network", func() {
		delete(w.cuts, p)
		w.fleet.HealData(a.name, b.name)
		w.fleet.HealManagement(a.name, b.name)
	})
}

func (w *world) cutData(a, b *machine, d time.Duration) {
	if a == b || w.cuts[pair(a.name, b.name)] {
		return
	}
	w.fault(a.name+"-"+b.name, "data link cut")
	w.fleet.CutData(a.name, b.name)
	w.later(d, "heal data link", func() { w.fleet.HealData(a.name, b.name) })
}

func (w *world) placementAway(d time.Duration) {
	if w.placement.away {
		return
	}
	w.placement.away = true
	w.fault("placement", "away")
	w.later(d, "reach placement", func() { w.placement.away = false })
}

// diskFull leaves the store its reserve.
func (m *machine) diskFull(d time.Duration) {
	if m.full {
		return
	}
	m.full = true
	m.mem.SetFull(true)
	m.w.fault(m.name, "disk full")
	m.w.later(d, "room on the disk of "+m.name, func() { m.full = false; m.mem.SetFull(false) })
}

// diskBroken has every commit fail.
func (m *machine) diskBroken(d time.Duration) {
	if m.broken {
		return
	}
	m.broken = true
	m.w.fault(m.name, "disk broken")
	m.w.later(d, "mend the disk of "+m.name, func() { m.broken = false })
}

func (m *machine) stepClock(d time.Duration) {
	m.w.fault(m.name, "clock steps "+d.String())
	m.agent.process.StepClock(d)
}

// reboot pulls the machine's plug: agent, hypervisor and guests are gone at once, and
// what was not on its disk.
func (m *machine) reboot(d time.Duration) {
	if m.off || m.away > 0 || m.hung {
		return
	}
	w := m.w
	m.off = true
	w.look()
	m.end("the machine loses its power")
	m.fake.Crash()
	for _, g := range w.guests {
		if g.lost == m {
			g.lost = nil // its process has ended with the machine
		}
	}
	for _, f := range m.forwarders {
		f.ended = true
	}
	w.look()
	w.later(d, "boot "+m.name, func() {
		m.off = false
		m.boots++
		m.fake.Boot()
		m.boot()
	})
}

// killIncoming kills the QEMU of a guest that arrives here, or that has come and is not
// the guest yet.
func (m *machine) killIncoming() {
	for _, g := range m.w.guests {
		if g.copies[m.name] == noCopy || g.copies[m.name] == whole && m.holds(g) {
			continue
		}
		m.w.fault(m.name, "QEMU of "+g.name+" killed")
		m.fake.CrashGuest(g.uuid)
		m.w.look()
		return
	}
}

// holds says whether the guest's token is here.
func (m *machine) holds(g *guest) bool {
	h := m.w.holders(g.uuid)
	return len(h) == 1 && h[0] == m.name
}

// at is the machine that has the guest's token, and the guest's memory; nil for none.
func (g *guest) at(w *world) *machine {
	for _, name := range w.names {
		if m := w.machines[name]; m.holds(g) && g.copies[name] == whole && !m.off {
			return m
		}
	}
	return nil
}

// killed ends the guest's QEMU where the guest is.
func (g *guest) killed(w *world) {
	m := g.at(w)
	if m == nil {
		return
	}
	w.fault(m.name, "QEMU of "+g.name+" killed, the guest's own")
	m.fake.CrashGuest(g.uuid)
	w.look()
}

// uses is how many things a user does to a guest behind the agent's back.
const uses = 4

// used is a user with virsh on the host that has the guest.
func (g *guest) used(w *world, how int) {
	m := g.at(w)
	if m == nil || m.away > 0 || m.hung || m.blind {
		return
	}
	ctx := context.Background()
	d, err := m.fake.Domain(ctx, g.uuid)
	if err != nil || !d.Active() {
		return
	}
	w.uses(g)
	if w.moving(g) && !w.verifying(g) {
		g.anyPower = true // who was first, the move or he, nobody can say
	}
	switch {
	case how == 0:
		w.fault(m.name, "a user shuts "+g.name+" down")
		err = m.fake.Shutdown(ctx, g.uuid)
	case how == 1:
		w.fault(m.name, "a user destroys "+g.name)
		err = m.fake.Destroy(ctx, g.uuid)
	case d.State == driver.Running:
		w.fault(m.name, "a user pauses "+g.name)
		if err = m.fake.Suspend(ctx, g.uuid); err == nil {
			g.paused = true
		}
	case d.State == driver.Paused && d.Reason == driver.ReasonUser:
		w.fault(m.name, "a user lets "+g.name+" run")
		if err = m.fake.Resume(ctx, g.uuid); err == nil {
			g.paused = false
		}
	}
	if err != nil {
		w.note("user", "virsh:", err.Error())
	}
	asked := maps.Clone(g.mayBeStopped) // that he was quicker takes nothing back
	w.look()
	g.mayBeStopped = asked
}

// started is a user who starts his guest, which is off, where it is.
func (g *guest) started(w *world) {
	for _, name := range w.names {
		m := w.machines[name]
		if !m.holds(g) || m.off || m.away > 0 || m.hung || m.blind || !w.verifying(g) {
			continue
		}
		if d, err := m.fake.Domain(context.Background(), g.uuid); err != nil || d.Active() {
			return
		}
		w.uses(g)
		w.fault(m.name, "a user starts "+g.name)
		err := m.fake.Start(context.Background(), g.uuid, false)
		if err != nil {
			w.note("user", "virsh:", err.Error())
		} else {
			g.off, g.paused = false, false
		}
		w.look()
		return
	}
}

// verifying says whether a move of the guest waits for its user's word just now.
func (w *world) verifying(g *guest) bool {
	for _, m := range w.moves {
		if m.guest != g || !m.accepted {
			continue
		}
		a := w.conductor(m).agent
		if a == nil || a.dead() || !a.ready {
			return false
		}
		if rec, err := a.conductor.Get(context.Background(), m.uuid); err == nil && rec.Status == migration.StatusFinished {
			return true
		}
	}
	return false
}

// moving says whether a move of the guest is wanted and not over.
func (w *world) moving(g *guest) bool {
	for _, m := range w.moves {
		if m.guest == g && m.asked > 0 && m.asked < givenUp && !m.last.Done() {
			return true
		}
	}
	return false
}

// writes is how many things another writer of Placement does.
const writes = 4

// otherWriter is somebody else who writes to Placement, by its own API: what follows is
// its own conflicts.
func (w *world) otherWriter(m *machine, how int, d time.Duration) {
	c, ctx, g := w.placement.others, context.Background(), w.guests[w.rng.IntN(len(w.guests))]
	told := func(what string, err error) {
		if err != nil {
			w.note("another writer", what, err.Error())
		}
	}
	w.later(0, "another writer", func() {
		switch how {
		case 0: // takes room that a guest may want, for a while
			other := id("77777777", w.points)
			err := c.PutAllocations(ctx, other, placementclient.Allocations{
				Allocations: map[string]placementclient.Resources{m.provider: {"VCPU": int64(max(1, m.capacity.VCPUs/2)), "MEMORY_MB": 1}},
				ProjectID:   "other", UserID: "other", ConsumerType: placementclient.ConsumerInstance,
			})
			w.fault("placement", fmt.Sprintf("another consumer takes room of %s (%v)", m.name, err))
			w.later(d, "give the room back", func() {
				for told("deletes", c.DeleteAllocations(ctx, other)); ; {
					now, err := c.Allocations(ctx, other)
					if err == nil && !now.Exists() {
						return
					}
					_ = w.outside.Sleep(ctx, time.Second)
					told("deletes", c.DeleteAllocations(ctx, other))
				}
			})
		case 1: // changes the provider, and nothing of what it offers
			w.fault("placement", "another writer changes the provider of "+m.name)
			inv, err := c.Inventories(ctx, m.provider)
			if err == nil {
				_, err = c.PutInventories(ctx, m.provider, inv)
			}
			told("inventories", err)
		default: // writes a guest's, or its move's, allocations as they are
			consumer := g.uuid
			if how == 3 {
				for _, o := range w.moves {
					if o.guest == g {
						consumer = o.uuid
					}
				}
			}
			now, err := c.Allocations(ctx, consumer)
			if err == nil && now.Exists() {
				w.fault("placement", "another writer writes the allocations of "+consumer)
				err = c.PutAllocations(ctx, consumer, now)
			}
			told("allocations", err)
		}
	})
}
