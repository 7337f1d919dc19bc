package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/internal/runtime"
)

func TestBounded_RecordsOfOneHost(t *testing.T) {
	s, err := Open(t.Context(), nil, &runtime.System{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	record := func(host string, size int) []byte {
		return fmt.Appendf(nil, `{"host":%q,"guest":%*d}`, host, size, 1)
	}
	put := func(key, host string, size int) fleet.Change {
		return fleet.Change{Key: key, Value: record(host, size)}
	}
	must := func(changes ...fleet.Change) {
		t.Helper()
		if err := s.Commit(t.Context(), nil, changes...); err != nil {
			t.Fatal(err)
		}
	}
	as := func(w permit.Writer) context.Context { return context.WithValue(t.Context(), writerKey{}, w) }
	host := as(permit.Writer{Words: "host:host-a"})
	refused := func(ctx context.Context, c ...fleet.Change) bool {
		err := s.bounded(ctx, c)
		if err != nil && !errors.Is(err, fault.Forbidden) {
			t.Errorf("refused as %v", err)
		}
		return err != nil
	}
	for i := range maxHeld {
		must(put(fmt.Sprintf("instances/%05d", i), "host-a", 1))
	}
	more := put("instances/more", "host-a", 1)
	for _, c := range []struct {
		what    string
		ctx     context.Context
		changes []fleet.Change
		refused bool
	}{
		{"one more", host, []fleet.Change{more}, true},
		{"one more in exchange", host, []fleet.Change{more, {Key: "instances/00000"}}, false},
		{"one that is there, written again", host, []fleet.Change{put("instances/00000", "host-a", 99)}, false},
		{"one that leaves", host, []fleet.Change{put("instances/00000", "host-b", 1)}, false},
		{"of another host", host, []fleet.Change{put("instances/more", "host-b", 1)}, false},
		{"an operator's", as(permit.Writer{Operator: true}), []fleet.Change{more}, false},
		{"by a token", t.Context(), []fleet.Change{more}, false},
	} {
		if got := refused(c.ctx, c.changes...); got != c.refused {
			t.Errorf("%s: refused %v, want %v", c.what, got, c.refused)
		}
	}
	must(fleet.Change{Key: "instances/00000"}, put("instances/00001", "host-b", 1))
	if refused(host, more) {
		t.Error("refused though two have gone")
	}
	s.held.of["host-a"] = amount{2, maxHeldBytes} // they are not made here
	if !refused(host, more) || refused(host, fleet.Change{Key: "instances/00002"}) {
		t.Error("the bytes are not bounded, or what makes them fewer is refused")
	}
}
