package inventory

import (
	"maps"
	"slices"

	"berth/topology"
)

// Applied is what Berth gave to providers, or knew of devices, that no later look
// at the host or at Placement would tell. It is kept as JSON. What is remembered
// of a provider stays remembered for as long as it stands, so a crash between the
// write of Applied and that of Placement loses nothing.
type Applied struct {
	// Providers is by uuid.
	Providers map[string]Given `json:"providers,omitempty"`
	// Devices says where each function was counted; so one that vanished with its
	// guest running is counted there still.
	Devices map[topology.PCIAddress]DeviceHome `json:"devices,omitempty"`
	// Mdevs does so for mediated devices, by uuid.
	Mdevs map[string]DeviceHome `json:"mdevs,omitempty"`
}

// Given is what provider config files and device_spec gave to one provider.
type Given struct {
	Classes []string `json:"classes,omitempty"` // sorted
	Traits  []string `json:"traits,omitempty"`  // sorted
	// Spec are those of Traits that device_spec gave last: they stay on a card of
	// which device_spec means nothing any more while guests have functions of it.
	Spec []string `json:"spec,omitempty"` // sorted
}

// DeviceHome is the function whose provider counts a device, and as what.
type DeviceHome struct {
	Function topology.PCIAddress `json:"function"`
	Class    string              `json:"class"`
}

// Equal reports whether both say the same, so that nothing need be kept anew.
func (a Applied) Equal(b Applied) bool {
	return maps.EqualFunc(a.Providers, b.Providers, func(x, y Given) bool {
		return slices.Equal(x.Classes, y.Classes) && slices.Equal(x.Traits, y.Traits) && slices.Equal(x.Spec, y.Spec)
	}) && maps.Equal(a.Devices, b.Devices) && maps.Equal(a.Mdevs, b.Mdevs)
}

func (a *Applied) normalise() {
	for rp, g := range a.Providers {
		g.Classes, g.Traits, g.Spec = sortedSet(g.Classes), sortedSet(g.Traits), sortedSet(g.Spec)
		if len(g.Classes) == 0 && len(g.Traits) == 0 {
			delete(a.Providers, rp)
			continue
		}
		a.Providers[rp] = g
	}
}

// gave notes what a provider was given.
func (b *builder) gave(rp string, classes, traits []string) {
	a := &b.report.Applied
	if a.Providers == nil {
		a.Providers = map[string]Given{}
	}
	g := a.Providers[rp]
	g.Classes, g.Traits = append(g.Classes, classes...), append(g.Traits, traits...)
	a.Providers[rp] = g
}

// gaveOfSpec notes the traits that device_spec gives a provider.
func (b *builder) gaveOfSpec(rp string, traits []string) {
	b.gave(rp, nil, traits)
	g := b.report.Applied.Providers[rp]
	g.Spec = traits
	b.report.Applied.Providers[rp] = g
}

// remember keeps what was given before for as long as it stands.
func (b *builder) remember() {
	for rp, g := range b.in.Applied.Providers {
		s := b.standing[rp]
		var classes, traits []string
		for _, c := range g.Classes {
			if _, stands := s.Inventories[c]; stands {
				classes = append(classes, c)
			}
		}
		for _, t := range g.Traits {
			if slices.Contains(s.Traits, t) {
				traits = append(traits, t)
			}
		}
		b.gave(rp, classes, traits)
	}
}
