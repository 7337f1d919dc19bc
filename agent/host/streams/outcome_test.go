package streams

import (
	"errors"
	"log/slog"
	"testing"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
)

// TestOutcome_OnlyGrows tells how a stream ended again and again, in every order: what is
// known for certain stays, and nothing is written of a stream that was forgotten.
func TestOutcome_OnlyGrows(t *testing.T) {
	var (
		left   error
		undone = fault.New(fault.Undone, "rolled back")
		lost   = fault.New(fault.InDoubt, "the connection broke")
		again  = fault.New(fault.Unavailable, "the connection broke again")
	)
	for _, tt := range []struct {
		name string
		told []error
		want Result
	}{
		{"nothing", nil, None},
		{"it has left", []error{left}, Left},
		{"it was refused before it began", []error{errors.New("no such host")}, Undone},
		{"nobody knows, and then it was seen to have left", []error{lost, left}, Left},
		{"nobody knows, and then it was rolled back", []error{lost, again, undone}, Undone},
		{"left, and a late answer is lost", []error{left, lost}, Left},
		{"left, and a later look takes it for undone", []error{left, undone}, Left},
		{"undone, and a later look takes it for left", []error{undone, left}, Undone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, rt := t.Context(), new(runtime.System)
			tracker, err := claims.Open(ctx, claims.Options{Store: storetest.NewMemory(), Runtime: rt, Host: "a"})
			if err != nil {
				t.Fatal(err)
			}
			fleet := drivertest.NewFleet(rt)
			defer fleet.Close()
			s := New(Options{Host: "a", Tracker: tracker, Memory: memory.New(tracker, rt), Driver: fleet.Host("a"), Runtime: rt, Logger: slog.New(slog.DiscardHandler)})
			ref := migration.Ref{Migration: "22222222-2222-4222-8222-222222222222", Instance: "11111111-1111-4111-8111-111111111111", Attempt: 1}
			if err := s.o.Memory.Remember(ctx, ref, MemoryAsked, Asked{}); err != nil {
				t.Fatal(err)
			}
			for _, err := range tt.told {
				if err := s.outcome(ctx, ref, first, err, 0); err != nil {
					t.Fatal(err)
				}
			}
			if got, _, err := s.ended(ref, first); err != nil || got.Result != tt.want {
				t.Errorf("result %q, %v; want %q", got.Result, err, tt.want)
			}
			if err := s.Forget(ctx, ref); err != nil {
				t.Fatal(err)
			}
			if err := s.outcome(ctx, ref, first, left, 0); err != nil {
				t.Fatal(err)
			}
			if got, found, err := s.ended(ref, first); found || err != nil {
				t.Errorf("of a forgotten stream %+v is on record, %v", got, err)
			}
		})
	}
}
