package agent

import (
	"errors"
	"slices"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// TestGet_ShowsTheLastMoveOfAGuestFromAnyHost: who conducted a move remembers it, and who asks
// stands before the host to which the guest has gone, or before any.
func TestGet_ShowsTheLastMoveOfAGuestFromAnyHost(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Hour, []string{"host-a", "host-b", "host-c"}, func(*Options) {})
	guest := p.guest("host-a", "web")
	first := p.finish("host-a", p.move("web", "host-a", "host-b"))
	last := p.finish("host-b", p.move("web", "host-b", "host-c"))
	if first.Outcome != migration.OutcomeCompleted || last.Outcome != migration.OutcomeCompleted {
		t.Fatalf("%s, %v; %s, %v", first.Outcome, first.Error, last.Outcome, last.Error)
	}
	for _, host := range []string{"host-a", "host-b", "host-c"} {
		for asked, want := range map[string]string{"web": last.UUID, guest: last.UUID, first.UUID: first.UUID, last.UUID: last.UUID} {
			got, err := p.clients[host].Migration(t.Context(), asked)
			if err != nil || got.UUID != want || !got.Done() || len(got.Steps) == 0 || len(got.Unasked) > 0 {
				t.Errorf("%s asked for %s: %s %s, not asked %q, %v; want %s", host, asked, got.UUID, got.Outcome, got.Unasked, err, want)
			}
		}
		if _, err := p.clients[host].Migration(t.Context(), "nobody"); !errors.Is(err, fault.NotFound) {
			t.Errorf("%s asked for a guest that nobody knows: %v", host, err)
		}
	}

	p.must(p.stop["host-b"]())
	got, err := p.clients["host-c"].Migration(t.Context(), "web")
	if err != nil || got.UUID != first.UUID || !slices.Equal(got.Unasked, []string{"host-b"}) {
		t.Errorf("with host-b silent: %s, not asked %q, %v; want what is remembered, and who was not asked", got.UUID, got.Unasked, err)
	}
	if got, err = p.clients["host-c"].Migration(t.Context(), first.UUID); err != nil || len(got.Unasked) > 0 {
		t.Errorf("with host-b silent, by the uuid: not asked %q, %v", got.Unasked, err)
	}
	_, err = p.clients["host-c"].Migration(t.Context(), last.UUID)
	reasons := fault.ReasonsOf(err)
	if !errors.Is(err, fault.Unavailable) || !slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == "host_silent" && r.Want == "host-b" }) {
		t.Errorf("with host-b silent, what it alone remembers: %v, %+v", err, reasons)
	}
}
