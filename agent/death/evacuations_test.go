package death

import (
	"context"
	"slices"
	"testing"

	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// TestEvacuations_AGuestThatItsHostWasJustGivenIsLostWithThatHost: while an evacuation is not
// finished its destination says that the guest is on it, and has the token all the same.
func TestEvacuations_AGuestThatItsHostWasJustGivenIsLostWithThatHost(t *testing.T) {
	for _, tt := range []struct {
		moving string
		codes  []string
	}{{"", nil}, {"the evacuation", nil}, {"another move", []string{"on_a_move"}}} {
		ctx := t.Context()
		rt := &runtime.System{}
		records := fleet.New(fleettest.NewMemory(rt).Client("b"), rt)
		in := fleet.Instance{UUID: "vm", Name: "vm", Host: "b", Epoch: 2, Guest: []byte(`{}`), Migration: "the evacuation", Attempt: 1, Moving: tt.moving}
		if _, err := records.PutInstance(ctx, in); err != nil {
			t.Fatal(err)
		}
		if err := records.PutHost(ctx, fleet.Host{Name: "b", ProviderUUID: "rp-b"}); err != nil {
			t.Fatal(err)
		}
		e := Evacuations{
			Records: func() (*fleet.Records, error) { return records, nil },
			Prove: func(context.Context, string, string) (fleet.Death, uint64, error) {
				return fleet.Death{Host: "b", Proof: fleet.ProofFenced}, 1, nil
			},
		}
		g, err := e.Lost(ctx, "vm")
		var codes []string
		for _, r := range fault.ReasonsOf(err) {
			codes = append(codes, r.Code)
		}
		// Where the other hosts are asked, they say whether it still is on one.
		e.Elsewhere = func(_ context.Context, _ *fleet.Records, in fleet.Instance) error {
			if in.Moving != tt.moving || in.Host != "b" || in.Epoch != 2 {
				t.Errorf("asked about %+v", in)
			}
			return nil
		}
		if _, err := e.Lost(ctx, "vm"); err != nil {
			t.Errorf("moving %q, and no host has it: %v", tt.moving, err)
		}
		if !slices.Equal(codes, tt.codes) || err == nil && (g.Guest.Epoch != 2 || g.Source.Name != "b" || g.Source.ProviderUUID != "rp-b") {
			t.Errorf("moving %q: %+v, %v", tt.moving, g, err)
		}
	}
}

// TestEvacuations_OfAHostWithoutARecord: the store lost it, or it was forgotten; Placement says which
// provider is its own.
func TestEvacuations_OfAHostWithoutARecord(t *testing.T) {
	for provider, code := range map[string]string{"rp-b": "", "": "host_unknown"} {
		ctx, rt := t.Context(), &runtime.System{}
		records := fleet.New(fleettest.NewMemory(rt).Client("b"), rt)
		if _, err := records.PutInstance(ctx, fleet.Instance{UUID: "vm", Name: "vm", Host: "b", Epoch: 2, Guest: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
		e := Evacuations{
			Records: func() (*fleet.Records, error) { return records, nil },
			Prove: func(context.Context, string, string) (fleet.Death, uint64, error) {
				return fleet.Death{Host: "b", Proof: fleet.ProofOperator}, 1, nil
			},
			Provider: func(context.Context, string) (string, error) { return provider, nil },
		}
		g, err := e.Lost(ctx, "vm")
		if code == "" && (err != nil || g.Source.Name != "b" || g.Source.ProviderUUID != "rp-b") || code != "" && !fault.HasReason(err, code) {
			t.Errorf("provider %q: %+v, %v", provider, g.Source, err)
		}
	}
}
