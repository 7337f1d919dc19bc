package e2e

import (
	"strings"
	"testing"
	"time"

	"berth/migration"
	"berth/test/lab"
)

var undone, completed = []migration.Outcome{migration.OutcomeUndone}, []migration.Outcome{migration.OutcomeCompleted}

// slow is a stream that lasts for longer than a busy machine takes to break it.
const slow = "4MiB/s"

// What ends a guest, or a whole host. All that a guest must outlive is broken in
// test/soak. One guest goes through all of it: what one breakage leaves behind, the
// next meets.
func TestFaults_GuestRunsOnceAndNothingIsLeft(t *testing.T) {
	w := faults(t, "f1", nil)
	for _, group := range []struct {
		name string
		run  func(*world, string)
	}{
		{"QEMU killed", sourceQEMUKilled},
		{"power cut", powerCuts},
	} {
		if !t.Run(group.name, func(t *testing.T) {
			sub := *w
			sub.TB = t
			group.run(&sub, "f1")
		}) {
			return // the fleet is not as the next one wants it
		}
	}
}

// Both agents die, the guest leaves, the source's libvirtd forgets why its domain is
// off, and the log that it keeps of the guest's runs is lost too: whether the copy is the guest or one that was left behind by a
// lost reply is known to nobody. Berth says so, starts neither, and goes on
// when a person has ended one.
func TestFaults_WhatNobodySawIsInDoubt(t *testing.T) {
	w := faults(t, "f12", nil)
	m := w.suffer("f12", breakage{what: "kill -9 both agents mid-stream, source's libvirtd after it", bytes: true, bandwidth: slow,
		broken: func(r *round) {
			killAgent(source)(r)
			killAgent(destination)(r)
			_, err := r.from.Virsh(r.ctx, "migrate-setspeed", r.guest, "500")
			r.must("let it come to its end", err)
			for r.domain(r.from, r.guest) != "shut off (migrated)" {
				pause(r.world, 50*time.Millisecond)
			}
		},
		healed: func(r *round) {
			killLibvirtd(source)(r)
			_, err := r.from.Exec(r.ctx, "truncate", "-s", "0", "/var/log/libvirt/qemu/f12.log")
			r.must("lose the log", err)
			startLibvirtd(source)(r)
			startAgent(source)(r)
			startAgent(destination)(r)
		}, want: []migration.Outcome{migration.OutcomeInDoubt}})
	if m.Error == nil || !strings.Contains(m.Error.Message, "a whole copy is at the destination") {
		t.Errorf("the reason given is %v", m.Error.Err())
	}
	if r := w.run(w.a, "status"); r.Code != 7 || !strings.Contains(r.Stdout, m.UUID) {
		t.Errorf("status names no doubt: exit code %d\n%s", r.Code, r.Stdout)
	}
	if r := w.run(w.a, "instance", "start", "f12"); r.Code != 5 {
		t.Errorf("a guest in doubt was started: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	w.personEndsTheCopy(m.UUID, "f12", w.a, w.b)
	w.livesOn("f12", w.a, w.b)
	w.healthy(w.a)
}

// personEndsTheCopy is what somebody does about a guest in doubt who has looked
// at both sides. Berth sees it at once, takes the copy's definition away, and
// the guest may be started where it was.
func (w *world) personEndsTheCopy(uuid, name string, from, to *lab.Host) {
	w.Helper()
	w.require("domain on the source", w.domain(from, name), "shut off (unknown)")
	w.require("domain on the destination", w.domain(to, name), "paused (user)")
	if _, err := to.Virsh(w.ctx, "destroy", name); err != nil {
		w.Fatal(err)
	}
	m := w.migration(from, name, "is over", func(m migration.Migration) bool { return m.UUID == uuid && m.Done() })
	w.require("outcome", m.Outcome, migration.OutcomeUndone)
	w.require("domain on the destination", w.domain(to, name), "")
	w.berth(from, "instance", "start", name)
}
