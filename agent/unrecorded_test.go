package agent

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/placementclient"
)

// TestEvacuate_InstanceWithoutARecord_IsNamed: host-a died before it had written one of its two.
func TestEvacuate_InstanceWithoutARecord_IsNamed(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	gone := b.guest("host-a", "gone")
	b.round("host-a")
	b.round("host-b")
	late := b.guest("host-a", "late")
	b.evacuate(gone) // leaves the migration's consumer on host-a
	d, s := drained{b.up["host-b"]}, fleetService{b.up["host-b"]}

	lost, err := d.lost(t.Context(), "host-a")
	b.must(err)
	if len(lost) != 1 || lost[0].Instance != late || len(lost[0].Blocked) != 1 || lost[0].Blocked[0].Code != "no_record" || lost[0].Blocked[0].Change == "" {
		t.Errorf("to be evacuated: %+v", lost)
	}
	list, err := s.Hosts(t.Context())
	b.must(err)
	for _, h := range list.Hosts {
		if want := h.Name == "host-a"; (len(h.WithoutRecord) == 1 && h.WithoutRecord[0].Instance == late) != want || h.WithoutRecordError != "" {
			t.Errorf("host list has %+v of %s, %s", h.WithoutRecord, h.Name, h.WithoutRecordError)
		}
	}
	if _, err := s.Instance(t.Context(), late); !fault.HasReason(err, "record_unknown") || !strings.Contains(fault.ReasonsOf(err)[0].Message, "host-a") {
		t.Errorf("berth evacuate %s: %v", late, err)
	}

	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	defer front.Close()
	b.up["host-b"].placement, err = placementclient.New(placementclient.Config{URL: front.URL, Token: "admin"})
	b.must(err)
	if lost, err = d.lost(t.Context(), "host-a"); err != nil || len(lost) != 1 || lost[0].Blocked[0].Code != "unrecorded_unknown" {
		t.Errorf("while Placement does not say: %+v, %v", lost, err)
	}
}

// TestUnrecordedOn_PlacementHasNoSuchHost_TheLedgersSay, but for what a record names and what has
// gone on since.
func TestUnrecordedOn_PlacementHasNoSuchHost_TheLedgersSay(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-b")
	records := fleet.New(b.store.Client("test"), b.rt)
	recorded := uuid.NewString()
	_, err := records.PutInstance(t.Context(), fleet.Instance{UUID: recorded, Host: "host-c", Epoch: 4})
	b.must(err)
	token := func(epoch uint64, state claims.TokenState, holder string) claims.Token {
		return claims.Token{Epoch: epoch, State: state, Holder: holder}
	}
	went, on, back := uuid.NewString(), uuid.NewString(), uuid.NewString()
	ledgers := func(context.Context) []api.Knowledge {
		return []api.Knowledge{
			{Host: "host-b", Instances: []api.KnownInstance{
				{UUID: recorded, Token: token(3, claims.TokenSurrendered, "host-a")},
				{UUID: went, Token: token(3, claims.TokenSurrendered, "host-a")},
				{UUID: on, Token: token(3, claims.TokenSurrendered, "host-a")},
				{UUID: back, Token: token(3, claims.TokenSurrendered, "host-a")},
			}},
			{Host: "host-d", Instances: []api.KnownInstance{
				{UUID: went, Token: token(2, claims.TokenSurrendered, "host-b")},
				{UUID: on, Token: token(4, claims.TokenSurrendered, "host-b")},
				{UUID: back, Token: token(4, claims.TokenHere, "host-d")},
			}},
		}
	}
	got, err := unrecordedOn(t.Context(), "host-a", b.place, records, nil, nil, ledgers)
	if err != nil || len(got) != 1 || got[0].instance != went || !strings.Contains(got[0].why, "host-b gave it to host-a with epoch 3") {
		t.Errorf("%+v, %v", got, err)
	}
	if got := wentTo("host-b", ledgers(t.Context())); !slices.Equal(slices.Collect(maps.Keys(got)), []string{on}) {
		t.Errorf("to host-b: %v", got)
	}
}
