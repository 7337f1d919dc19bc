package claims

import (
	"fmt"

	"berth/topology"
)

// RoomBeside is Room for a guest that is here and would be changed on its host: what it
// holds counts as free for itself, as it does in a claim of kind resize or rebuild.
func (t *Tracker) RoomBeside(instance string, r topology.Resources, guest *topology.GuestTopology, devices []topology.PCIRequest) (topology.Assignment, error) {
	ask := Request{Owner: Owner{Instance: instance, Kind: KindResize}, Resources: r, Topology: guest, PCI: devices}
	doing := fmt.Sprintf("claim %s on %s", r, t.host)
	if err := ask.invalidDemand(doing); err != nil {
		return topology.Assignment{}, err
	}
	return t.ask(doing, ask)
}
