package host_test

import (
	"context"
	"testing"
	"time"

	"berth/agent/host"
	"berth/agent/host/external"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// processes are streams that do nothing but be there.
type processes struct {
	live   map[string]bool
	opened func()
}

func (p processes) Open(_ context.Context, o host.StreamOrder) (host.StreamEnds, error) {
	p.live[o.Migration] = true
	p.opened()
	return host.StreamEnds{Address: ":1"}, nil
}

func (p processes) Renew(context.Context, string, int, time.Duration) error { return nil }

func (p processes) Close(_ context.Context, migration string, _ int) error {
	delete(p.live, migration)
	return nil
}

func (p processes) Dir() string { return "/streams" }

// A source may give its request up, or an undo come, at the moment in which the process
// is there: its claim frees itself by its lease, and then nothing may come.
func TestPreLiveMigration_ThatFailsLeavesNoStream(t *testing.T) {
	l := newLab(t, "a", "b")
	m := newMove(l, l.guest("a", "vm").UUID)
	p := processes{live: map[string]bool{}}
	m.b.Close()
	m.b = l.boot("b", func(o *host.Options) { o.Streams, o.Transport = &p, migration.TransportStream })
	verbs := m.verbs()
	for _, verb := range verbs[1:3] { // claim and renewal
		_, err := verb(t.Context())
		l.must("claim", err)
	}
	p.opened = func() {
		l.must("abort", m.b.tracker.Abort(context.Background(), migration.Ref{Migration: m.ref.Migration, Instance: m.ref.Instance, Attempt: 1, Step: claims.StepClaim}))
	}
	_, err := operation.PreLiveMigration.Ask(t.Context(), m.b, m.ref, migration.PreLiveRequest{Guest: m.guest, Source: "a"})
	l.wantKind("prepare", err, fault.Forbidden)
	if len(p.live) > 0 {
		t.Errorf("a stream lives on without a claim: %v", p.live)
	}
}

// A tool that runs a migration of its own has no process of Berth's at the other end.
func TestHook_AToolsGuestComesByNoStream(t *testing.T) {
	l := newForeignLab(t)
	g := l.guest("a", "web")
	p := processes{live: map[string]bool{}, opened: func() {}}
	l.hosts["b"].Close()
	b := l.boot("b", func(o *host.Options) { o.Streams, o.Transport = &p, migration.TransportStream })
	answer, err := b.External().Hook(t.Context(), "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", external.PhasePreLive,
		external.HookRequest{Instance: g.UUID, Source: "a", DomainXML: l.document("a", g.UUID)})
	l.must("pre-live-migration", err)
	if len(p.live) > 0 || answer.MigrateURI != "tcp://b" {
		t.Errorf("the tool is told to send to %s, streams %v; want the host's own address and no stream", answer.MigrateURI, p.live)
	}
}
