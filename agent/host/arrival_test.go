package host_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/host/external"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

const toolsMigration = "33333333-3333-4333-8333-333333333333"

// until waits for f.
func (l *lab) until(what string, f func() bool) {
	l.t.Helper()
	ctx, cancel := l.rt.WithTimeout(l.t.Context(), patience)
	defer cancel()
	for !f() {
		if l.rt.Sleep(ctx, time.Millisecond) != nil {
			l.t.Fatalf("%s: never", what)
		}
	}
}

func TestForeign_StreamThatBreaksEndsItsClaimAtOnce(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	a, b := l.hosts["a"], l.hosts["b"]
	before := l.picture()
	document, err := b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	definition := l.definition("a", g.UUID)
	l.fleet.Manual() // nothing is sent
	ended := make(chan error, 1)
	go func() {
		ended <- a.fake.Migrate(ctx, g.UUID, driver.Migration{DestinationURI: "qemu+tls://b/system", DestinationXML: document, PersistentXML: definition})
	}()
	l.until("it arrives", func() bool {
		d, err := b.fake.Domain(ctx, g.UUID)
		return err == nil && d.State == driver.Paused && d.Reason == driver.ReasonMigrating
	})
	l.must("look while it arrives", b.External().FollowArrival(ctx, ref))
	if _, known := b.tracker.Instance(g.UUID); known {
		t.Error("b owns a guest that is half here")
	}
	l.arrival("b", g.UUID)
	l.until("the job is there", func() bool { return a.fake.AbortJob(ctx, g.UUID) == nil })
	l.until("the stream ends", func() bool {
		l.fleet.Advance(10 * time.Millisecond)
		select {
		case err := <-ended:
			if err == nil {
				t.Error("it was sent though it was aborted")
			}
			return true
		default:
			return false
		}
	})
	// Its thirty seconds are not over; it was seen, and is gone.
	l.must("look when it is gone", b.External().FollowArrival(ctx, ref))
	l.same("after the stream broke", before)
}

func TestForeign_DefinitionAndAmountsAreTheClaims(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	b := l.hosts["b"]
	// People have given it more since it was made.
	grown := strings.Replace(l.document("a", g.UUID), "131072</memory>", "262144</memory>", 1)
	if grown == l.document("a", g.UUID) {
		grown = strings.Replace(grown, ">128</memory>", ">256</memory>", 1)
	}
	document, err := b.External().ClaimArrival(ctx, grown)
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	if c := b.tracker.ByInstance(g.UUID); c[0].Resources.MemoryMB != 256 {
		t.Errorf("claim of %s, want the 256 MiB that it has", c[0].Resources)
	}
	l.migrate("a", "b", g.UUID, document)
	l.must("follow", b.External().FollowArrival(ctx, ref))
	inst, _ := b.tracker.Instance(g.UUID)
	if text := l.definition("b", g.UUID); inst.Token.Epoch != 2 || !strings.Contains(text, "epoch='2'") && !strings.Contains(text, `epoch="2"`) {
		t.Errorf("epoch %d, and its definition is\n%s", inst.Token.Epoch, text)
	}
}

func TestForeign_MoveThatFollowsWritesTheAllocation(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	b := l.hosts["b"]
	document, err := b.External().ClaimArrival(ctx, l.document("a", g.UUID))
	l.must("claim on arrival", err)
	ref := l.arrival("b", g.UUID)
	l.migrate("a", "b", g.UUID, document)
	l.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
	l.wantKind("follow without Placement", b.External().FollowArrival(ctx, ref), fault.Unavailable)
	l.placement.breakWith(nil)
	move := migration.Ref{Migration: toolsMigration, Instance: g.UUID, Attempt: 1}
	l.must("begin a move", operation.RecordContext.Ask(ctx, b, move, migration.Context{Source: "b", Destination: "a"}))
	was := l.placement.all()[g.UUID].Allocations
	l.must("look while it moves on", b.External().FollowArrival(ctx, ref))
	if got := l.placement.all()[g.UUID].Allocations; len(got) != len(was) || got["rp-b"] != nil {
		t.Errorf("allocations %v, in the midst of a move that had %v", got, was)
	}
}

func TestForeign_WhatNoClaimCanHoldIsRefused(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	b := l.hosts["b"]
	text := l.document("a", g.UUID)
	device := strings.Replace(text, "</devices>",
		"<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='1' slot='0' function='0'/></source></hostdev></devices>", 1)
	_, err := b.External().ClaimArrival(ctx, device)
	if !slices.Equal(codes(err), []string{"device_not_migratable"}) {
		t.Errorf("a guest with a host's device: %v", err)
	}
	_, err = b.External().Hook(ctx, toolsMigration, external.PhasePreLive, external.HookRequest{Instance: g.UUID, Source: "b", DomainXML: text})
	l.wantKind("from this very host", err, fault.Invalid)

	_, err = b.External().Hook(ctx, toolsMigration, external.PhasePreLive, external.HookRequest{Instance: g.UUID, Source: "a", DomainXML: text})
	l.must("claim ahead", err)
	before := l.picture()
	larger := strings.NewReplacer("131072</memory>", "262144</memory>", ">128</memory>", ">256</memory>").Replace(text)
	_, err = b.External().ClaimArrival(ctx, larger)
	if !slices.Equal(codes(err), []string{"claim_differs"}) {
		t.Errorf("a guest that is larger than its claim: %v", err)
	}
	l.same("after the refusals", before)
}

func TestForeign_NoSurrenderInTheMidstOfAMove(t *testing.T) {
	l := newForeignLab(t)
	ctx := t.Context()
	g := l.guest("a", "web")
	a := l.hosts["a"]
	l.byHand(g.UUID)
	move := migration.Ref{Migration: toolsMigration, Instance: g.UUID, Attempt: 1}
	l.must("begin a move", operation.RecordContext.Ask(ctx, a, move, migration.Context{Source: "a", Destination: "b"}))
	_, err := a.External().ReleaseOwnership(ctx, migration.Ref{Migration: "44444444-4444-4444-8444-444444444444", Instance: g.UUID, Attempt: 1}, "b")
	if !errors.Is(err, fault.Busy) {
		t.Errorf("surrender: %v, want busy", err)
	}
	if inst, _ := a.tracker.Instance(g.UUID); inst.Token.State != claims.TokenHere {
		t.Errorf("a has %+v", inst)
	}
}
