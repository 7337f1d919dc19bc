package drain

import (
	"context"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// unbegun is a conductor that knows no move, and a store that keeps nothing.
type unbegun struct {
	Host
	begun int
}

func (u *unbegun) Get(context.Context, string) (migration.Migration, error) {
	return migration.Migration{}, fault.New(fault.NotFound, "not known")
}

func (u *unbegun) Begin(context.Context, Move) (migration.Migration, error) {
	u.begun++
	return migration.Migration{}, fault.New(fault.Forbidden, "refused")
}

func (*unbegun) Put(context.Context, string, string, []byte) error { return nil }
func (*unbegun) Delete(context.Context, string, string) error      { return nil }
func (*unbegun) List(context.Context, string) (map[string][]byte, error) {
	return nil, nil
}

// TestMove_NamedAndNotBegun is of a move whose uuid stands in the record while the conductor
// knows none: the agent has died in between, or somebody has asked for an abort.
func TestMove_NamedAndNotBegun(t *testing.T) {
	for _, c := range []struct {
		name  string
		state State
		here  bool
		begun int
		want  GuestState
	}{
		{"it is begun", Running, true, 1, Waiting},
		{"not once the drain is aborted", Aborting, true, 0, Waiting},
		{"not of a guest that has left", Running, false, 0, Gone},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := &unbegun{}
			q := newQueue(New(Config{Runtime: &runtime.System{}, Host: u, Store: u, Limits: func() Limits { return Limits{Outbound: 1, Attempts: 3} }}))
			q.rec.State = c.state
			g := Guest{Instance: "g", State: Moving, Migration: "m"}
			q.guests["g"] = &g
			q.move(t.Context(), g, c.here)
			if got := q.guests["g"].State; u.begun != c.begun || got != c.want {
				t.Errorf("begun %d times, and the guest is %s; want %d and %s", u.begun, got, c.begun, c.want)
			}
		})
	}
}
