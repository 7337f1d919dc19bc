package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/migration"
	"berth/test/lab"
)

var undone, completed = []migration.Outcome{migration.OutcomeUndone}, []migration.Outcome{migration.OutcomeCompleted}

// slow is a stream that lasts some seconds.
const slow = "12MiB/s"

// One guest goes through all of it: what one breakage leaves behind, the next
// meets.
func TestFaults_GuestRunsOnceAndNothingIsLeft(t *testing.T) {
	w := faults(t, "f1", nil)
	for _, group := range []struct {
		name string
		run  func(*world, string)
	}{
		{"source agent killed at every step", sourceAgentKilled},
		{"destination agent killed", destinationAgentKilled},
		{"Placement killed", placementKilled},
		{"agents hang or stop", agentsHangOrStop},
		{"libvirtd killed or hangs", libvirtdKilledOrHangs},
		{"management link cut", managementLinkCut},
		{"QEMU killed", sourceQEMUKilled},
		{"power cut", powerCuts},
		{"kills at random moments", killsAtRandomMoments},
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

// atEveryStep is one breakage at each step; rarely are the steps that wait for
// BERTH_FAULTS=all.
func atEveryStep(b breakage, rarely ...string) (list []breakage) {
	for _, step := range allSteps {
		one := b
		one.what, one.step, one.rare = b.what+" at "+step, step, slices.Contains(rarely, step)
		list = append(list, one)
	}
	return list
}

func sourceAgentKilled(w *world, name string) {
	w.sufferAll(name, atEveryStep(breakage{what: "kill -9 source agent", broken: killAgent(source), healed: startAgent(source)},
		migration.StepInspectSource, migration.StepChooseDestination, migration.StepCheckDestination, migration.StepCheckSource, migration.StepRecordContext))
}

func destinationAgentKilled(w *world, name string) {
	w.sufferAll(name, atEveryStep(breakage{what: "kill -9 destination agent", broken: killAgent(destination), healed: startAgent(destination), down: 500 * time.Millisecond},
		migration.StepInspectSource, migration.StepChooseDestination, migration.StepCheckDestination, migration.StepSwapAllocations,
		migration.StepCheckSource, migration.StepRecordContext, migration.StepCommit, migration.StepCleanUpSource, migration.StepDeleteAllocation))
}

func placementKilled(w *world, name string) {
	w.sufferAll(name, atEveryStep(breakage{what: "kill -9 Placement", broken: killPlacement, healed: startPlacement, down: 2 * time.Second},
		slices.DeleteFunc(slices.Clone(allSteps), func(s string) bool {
			return s == migration.StepSwapAllocations || s == migration.StepDeleteAllocation
		})...))
}

func agentsHangOrStop(w *world, name string) {
	signal := func(of func(*round) *lab.Host, sig syscall.Signal) func(*round) {
		return func(r *round) { r.must("signal the agent", r.Agent(of(r).Name).Cmd.Process.Signal(sig)) }
	}
	stop := func(r *round) { r.must("stop the agent", r.Agent(r.from.Name).Stop(r.ctx)) }
	w.sufferAll(name, []breakage{
		{what: "SIGTERM source agent mid-stream", bytes: true, bandwidth: "40MiB/s", want: completed, broken: stop, healed: startAgent(source)},
		{what: "SIGTERM source agent mid-stream, started after the stream", bytes: true, bandwidth: "60MiB/s", want: completed, down: 4 * time.Second,
			broken: stop, healed: startAgent(source), rare: true},
		{what: "SIGSTOP destination agent mid-stream, until the commit stands", bytes: true, bandwidth: "40MiB/s", want: completed, down: 5 * time.Second,
			broken: signal(destination, syscall.SIGSTOP), healed: signal(destination, syscall.SIGCONT), rare: true},
		{what: "SIGSTOP source agent mid-stream, 5 s", bytes: true, bandwidth: "40MiB/s", want: completed, down: 5 * time.Second,
			broken: signal(source, syscall.SIGSTOP), healed: signal(source, syscall.SIGCONT), rare: true},
		{what: "kill -9 both agents and Placement mid-stream, until after it", bytes: true, bandwidth: "60MiB/s", down: 4 * time.Second, want: completed,
			broken: func(r *round) { killAgent(source)(r); killAgent(destination)(r); killPlacement(r) },
			healed: func(r *round) { startPlacement(r); startAgent(source)(r); startAgent(destination)(r) }},
	})
}

// Both agents die, the guest leaves, and the source's libvirtd forgets why its
// domain is off: whether the copy is the guest or one that was left behind by a
// lost reply is known to nobody. Berth says so, starts neither, and goes on
// when a person has ended one.
func TestFaults_WhatNobodySawIsInDoubt(t *testing.T) {
	w := faults(t, "f12", nil)
	m := w.suffer("f12", breakage{what: "kill -9 both agents mid-stream, source's libvirtd after it", bytes: true, bandwidth: "60MiB/s",
		broken: func(r *round) {
			killAgent(source)(r)
			killAgent(destination)(r)
			for r.domain(r.from, r.guest) != "shut off (migrated)" {
				pause(r.world, 50*time.Millisecond)
			}
		},
		healed: func(r *round) {
			killLibvirtd(source)(r)
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

// Two of the daemons die together at moments that seeds choose. A
// source's libvirtd that dies while it ends the QEMU of a guest that has left
// (some 400 ms under TCG) forgets that the guest left.
func killsAtRandomMoments(w *world, name string) {
	rounds := uint64(2)
	if all() {
		rounds = 24
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(seed, 11))
		after := time.Duration(rng.IntN(3500)) * time.Millisecond
		victims := []struct {
			name    string
			do, fix func(*round)
		}{
			{"source agent", killAgent(source), startAgent(source)}, {"destination agent", killAgent(destination), startAgent(destination)},
			{"source libvirtd", killLibvirtd(source), startLibvirtd(source)}, {"destination libvirtd", killLibvirtd(destination), startLibvirtd(destination)},
			{"Placement", killPlacement, startPlacement},
		}
		rng.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		one, two := victims[0], victims[1]
		want := []migration.Outcome{completed[0], undone[0]}
		if one.name == "source libvirtd" || two.name == "source libvirtd" {
			want = append(want, migration.OutcomeInDoubt)
		}
		here, there := w.where(name)
		m := w.suffer(name, breakage{what: fmt.Sprintf("seed %d: kill -9 %s and %s after %s", seed, one.name, two.name, after), bandwidth: "60MiB/s",
			after: after, down: time.Duration(rng.IntN(1500)) * time.Millisecond,
			broken: func(r *round) { one.do(r); two.do(r) }, healed: func(r *round) { two.fix(r); one.fix(r) }, want: want})
		if m.Outcome == migration.OutcomeInDoubt {
			w.personEndsTheCopy(m.UUID, name, here, there)
			w.livesOn(name, here, there)
		}
	}
}
