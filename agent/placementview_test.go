package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/placementclient"
)

// served answers requests by a server, without a network.
type served struct{ http.Handler }

func (s served) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Body == nil {
		q.Body = http.NoBody // as a server's request always has one
	}
	r := httptest.NewRecorder()
	s.ServeHTTP(r, q)
	return r.Result(), nil
}

func TestProviders_StandInTheOrderOfTheTree(t *testing.T) {
	tree := []placementclient.ResourceProvider{
		{UUID: "5", Name: "aaa_pool"}, {UUID: "4", Name: "h_cell1", ParentProviderUUID: "1"}, {UUID: "3", Name: "h_cell0_4KiB", ParentProviderUUID: "2"},
		{UUID: "2", Name: "h_cell0", ParentProviderUUID: "1"}, {UUID: "1", Name: "h"},
	}
	sortTree(tree, "1")
	var got []string
	for _, p := range tree {
		got = append(got, p.Name)
	}
	if diff := cmp.Diff([]string{"h", "h_cell0", "h_cell0_4KiB", "h_cell1", "aaa_pool"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestElsewhere_ASharedDiskIsNobodys: who holds of the sharing provider alone may be this host's.
func TestElsewhere_ASharedDiskIsNobodys(t *testing.T) {
	tree := &inventory.Tree{Shape: inventory.Flat, Providers: []inventory.Provider{{UUID: "here"}, {UUID: "gpu", Parent: "here"}}, Disk: "pool"}
	cpu, disk := placementclient.Resources{"VCPU": 1}, placementclient.Resources{"DISK_GB": 5}
	for _, tt := range []struct {
		has  map[string]placementclient.Resources
		want bool
	}{
		{map[string]placementclient.Resources{"here": cpu, "gpu": {"VGPU": 1}, "pool": disk}, false},
		{map[string]placementclient.Resources{"there": cpu, "pool": disk}, true},
		{map[string]placementclient.Resources{"here": cpu, "there": cpu}, true},
		{map[string]placementclient.Resources{"pool": disk}, false},
	} {
		if got := elsewhere(tree, nil, placementclient.Allocations{Allocations: tt.has}); got != tt.want {
			t.Errorf("%v is held elsewhere: %t, want %t", tt.has, got, tt.want)
		}
	}
}
