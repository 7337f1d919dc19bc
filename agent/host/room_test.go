package host_test

import (
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
