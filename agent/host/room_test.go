package host_test

import (
	"encoding/json"
	"strings"
	"testing"

	"berth/agent/host"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

func TestRoom_RefusesWhatIsNoGuest(t *testing.T) {
	h := newLab(t, "a").hosts["a"]
	for name, r := range map[string]migration.RoomRequest{
		"no uuid": {Instance: "../x", Resources: topology.Resources{VCPUs: 1, MemoryMB: 5}},
		"nothing": {Instance: "11111111-1111-4111-8111-111111111111"},
		"less":    {Instance: "11111111-1111-4111-8111-111111111111", Resources: topology.Resources{VCPUs: -5, MemoryMB: -7, DiskGB: -1}},
		"none":    {},
	} {
		if a, err := h.Room(t.Context(), r); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

// What the API decodes is refused by name, and the host answers the next question.
func TestRoom_AmountsPastInt64_AreRefusedByName(t *testing.T) {
	h := newLab(t, "a").hosts["a"]
	const most = "9223372036854775807"
	for body, names := range map[string]string{
		`{"resources":{"vcpus":1,"memory_mb":64},"pci_requests":[{"request":"one","count":` + most + `,"specs":[{}]},{"request":"two","count":` + most + `,"specs":[{}]}]}`:                 `PCI request "two"`,
		`{"resources":{"vcpus":2,"memory_mb":64},"numa_topology":{"cells":[{"shared_vcpus":[0],"memory_mb":` + most + `},{"shared_vcpus":[1],"memory_mb":` + most + `},{"memory_mb":66}]}}`: "guest cell 1",
		`{"resources":{"vcpus":` + most + `,"pcpus":` + most + `,"memory_mb":64}}`:                                                                                                          "vcpus",
	} {
		r := migration.RoomRequest{Instance: "11111111-1111-4111-8111-111111111111"}
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Devices) == 0 && r.Topology == nil && r.Resources.PCPUs == 0 {
			t.Fatalf("nothing was read of %s", body)
		}
		_, err := h.Room(t.Context(), r)
		if reasons := fault.ReasonsOf(err); fault.KindOf(err) != fault.Invalid || len(reasons) == 0 || !strings.Contains(err.Error(), names) {
			t.Errorf("error %v (%v), want it to name %s", err, reasons, names)
		}
	}
	if _, err := h.Room(t.Context(), migration.RoomRequest{Instance: "11111111-1111-4111-8111-111111111111", Resources: topology.Resources{VCPUs: 1, MemoryMB: 5}}); err != nil {
		t.Error(err)
	}
}

func TestRoom_IsNotOnAHostThatObserves(t *testing.T) {
	h := newLab(t, "a").hosts["a"]
	r := migration.RoomRequest{Instance: "11111111-1111-4111-8111-111111111111", Resources: topology.Resources{VCPUs: 1, MemoryMB: 5}}
	if _, err := h.Room(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	h.mode = host.ModeObserve
	if _, err := h.Room(t.Context(), r); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("error %v", err)
	}
}
