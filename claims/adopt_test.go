package claims_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/claims/fit"
	"berth/internal/fault"
	"berth/topology"
)

// foundOn is a guest of one cell as it was found.
func foundOn(r topology.Resources, c topology.AssignedCell, devices ...topology.PCIAddress) claims.Found {
	f := claims.Found{Resources: r, Assignment: topology.Assignment{Cells: []topology.AssignedCell{c}}}
	for _, d := range devices {
		f.Assignment.Devices = append(f.Assignment.Devices, topology.AssignedDevice{Address: d})
	}
	return f
}

func TestTracker_CheckFoundSaysWhatIsNotForTheGuestAlone(t *testing.T) {
	pin := func(cpu int) []topology.Pin { return []topology.Pin{{VCPU: 0, CPU: cpu}} }
	one := topology.Resources{PCPUs: 1, MemoryMB: 512}
	for _, tt := range []struct {
		name  string
		found claims.Found
		want  []string
	}{
		{"all to itself", foundOn(one, topology.AssignedCell{MemoryMB: 512, Pins: pin(2)}), nil},
		{"another's CPU", foundOn(one, topology.AssignedCell{MemoryMB: 512, Pins: pin(1)}), []string{"cpus_doubled"}},
		{"a shared CPU", foundOn(one, topology.AssignedCell{MemoryMB: 512, Pins: pin(8)}), []string{"cpu_not_dedicated"}},
		{"the card of another's function", foundOn(one, topology.AssignedCell{MemoryMB: 512, Pins: pin(2)}, pf0), []string{"device_doubled"}},
		{"a cell that is not there", foundOn(one, topology.AssignedCell{HostCell: 7, MemoryMB: 512, Pins: pin(2)}), []string{claims.CellUnknown}},
		{"more shared vCPUs than the cell may have", foundOn(topology.Resources{VCPUs: 5, MemoryMB: 512}, topology.AssignedCell{HostCell: 1, MemoryMB: 512, Shared: 5}),
			[]string{fit.VCPUOverHost, fit.CellVCPURatio}},
		{"more pages than the pool has", foundOn(topology.Resources{PCPUs: 1, MemoryMB: 2050}, topology.AssignedCell{HostCell: 1, MemoryMB: 2050, PageSize: topology.PageSize2M, Pins: pin(5)}),
			[]string{"pages_over"}},
		{"more ordinary memory than the host has", claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 4097}}, []string{claims.OrdinaryMemoryShort}},
		{"everything at once", foundOn(topology.Resources{PCPUs: 20, MemoryMB: 512}, topology.AssignedCell{MemoryMB: 512, Pins: pin(1)}, pf0),
			[]string{fit.PCPUOverHost, "cpus_doubled", "device_doubled"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBenchWith(t, "h", cells)
			must[claims.Claim](t)(b.Adopt(ctx, guest("other"), foundOn(one, topology.AssignedCell{MemoryMB: 512, PageSize: topology.PageSize2M, Pins: pin(1)}, vf0)))
			before := b.Usage()
			var got []string
			for _, r := range fault.ReasonsOf(b.CheckFound("new", tt.found)) {
				got = append(got, r.Code)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("reasons %v, want %v", got, tt.want)
			}
			if after := b.Usage(); after.Free != before.Free || len(b.Audit().Differences) != 0 {
				t.Errorf("%s free, then %s: a question changed something", before.Free, after.Free)
			}
			// Adoption forces exactly what this refuses.
			if c := must[claims.Claim](t)(b.Adopt(ctx, guest("new"), tt.found)); c.Forced != (len(tt.want) > 0) {
				t.Errorf("adopted with force: %v, and refused for %v", c.Forced, tt.want)
			}
		})
	}
}

// TestTracker_CheckFoundCountsThePagesThatTheGuestUses: a guest in huge pages
// needs no ordinary memory, of which there may be none left.
func TestTracker_CheckFoundCountsThePagesThatTheGuestUses(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("floats"), Resources: topology.Resources{VCPUs: 1, MemoryMB: 4096}}))
	wantNil(t, b.CheckFound("huge", foundOn(topology.Resources{VCPUs: 1, MemoryMB: 512}, topology.AssignedCell{MemoryMB: 512, PageSize: topology.PageSize2M, Shared: 1})))
	wantKind(t, b.CheckFound("ordinary", foundOn(topology.Resources{VCPUs: 1, MemoryMB: 512}, topology.AssignedCell{MemoryMB: 512, Shared: 1})), fault.DoesNotFit)
}

// Two guests with one mediated device are named, as with a PCI function, and the
// one that is left has it to itself.
func TestTracker_AMediatedDeviceIsOneGuests(t *testing.T) {
	const shared, own = "c2177883-f1bb-47f0-914d-32a22e3a8804", "9063cba3-ecef-47b6-abcf-3fef4fdcad85"
	b := newBenchWith(t, "h", cells)
	with := func(mdevs ...string) claims.Found {
		return claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Assignment: topology.Assignment{Mdevs: mdevs}}
	}
	first, second := guest("first"), guest("second")
	if c := must[claims.Claim](t)(b.Adopt(ctx, first, with(own, shared))); c.Forced {
		t.Error("alone with its devices, and forced")
	}
	if got := fault.ReasonsOf(b.CheckFound(second.UUID, with(shared))); len(got) != 1 || got[0].Code != "mdev_doubled" || got[0].Have != shared {
		t.Errorf("reasons %+v", got)
	}
	if c := must[claims.Claim](t)(b.Adopt(ctx, second, with(shared))); !c.Forced {
		t.Error("another's mediated device without force")
	}
	want := []claims.Doubled{{Mdev: shared, Instances: slices.Sorted(slices.Values([]string{first.UUID, second.UUID}))}}
	audit := b.Audit()
	if diff := cmp.Diff(want, audit.Doubled); diff != "" || len(audit.Differences) > 0 {
		t.Errorf("differences %v, doubled (-want +got):\n%s", audit.Differences, diff)
	}
	if diff := cmp.Diff(want, b.Usage().Doubled); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	// The claim follows what people do: as it was, detached, attached.
	seen := claims.Seen{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}}
	seen.Devices = "a"
	if c, changed, err := b.Follow(ctx, first.UUID, seen, with(own, shared)); err != nil || changed {
		t.Errorf("nothing new: %+v, %t, %v", c, changed, err)
	}
	seen.Devices = "b"
	if c, changed, err := b.Follow(ctx, first.UUID, seen, with(own)); err != nil || !changed || !slices.Equal(c.Assignment.Mdevs, []string{own}) {
		t.Errorf("detached: %+v, %t, %v", c, changed, err)
	}
	seen.Devices = "c"
	if c, changed, err := b.Follow(ctx, first.UUID, seen, with(own, shared)); err != nil || !changed || !c.Forced {
		t.Errorf("attached again: %+v, %t, %v", c, changed, err)
	}
	// What was detached is nobody's.
	if c := must[claims.Claim](t)(b.Adopt(ctx, second, with())); c.Forced {
		t.Error("forced without a device")
	}
	must[[]string](t)(b.Relax(ctx))
	if a := b.Audit(); !a.Agrees() {
		t.Errorf("audit %+v", a)
	}
}
