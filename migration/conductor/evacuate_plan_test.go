package conductor_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation/operationtest"
	"berth/placementclient"
)

// planRecords are the fleet's records as a plan reads them; every other question panics.
type planRecords struct {
	conductor.Fleet
	guest migration.LostGuest
	err   error
}

func (r planRecords) Lost(context.Context, string) (migration.LostGuest, error) {
	return r.guest, r.err
}

// diskHost has the guest's disk or does not.
type diskHost struct {
	planHost
	has bool
}

func (h diskHost) CheckDestination(ctx context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	a, err := h.planHost.CheckDestination(ctx, ref, c)
	a.Disks = []migration.DiskView{{Target: "vda", Shared: h.has}}
	if c.Kind != migration.TypeEvacuation || (c.Wanted == nil) != (c.Guest.Disks[0].Image != nil) {
		return a, fault.New(fault.Internal, "asked for a %s of what is wanted %v", c.Kind, c.Wanted)
	}
	return a, err
}

func TestPlanner_TellsWhereALostGuestCouldGo(t *testing.T) {
	noProof := fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "not_dead", Message: "host flat-a is not known to be dead"})
	image := &migration.Image{Path: "/images/a.qcow2"}
	for _, tt := range []struct {
		name      string
		known     *migration.Image // that the disk was made from
		ask       conductor.EvacuationPlan
		lost      error
		uncounted bool
		want      string
		disks     map[string]migration.EvacuatedDisks
	}{
		{"each host by its disks", image, conductor.EvacuationPlan{}, nil, false,
			"1 flat-b refuses data_would_be_lost\n2 nested takes it\n3 shared-d refuses data_would_be_lost\n- flat-full refuses placement_short data_would_be_lost\n" +
				"- flat-off refuses host_disabled data_would_be_lost\n- known refuses placement_not_offered data_would_be_lost\nchosen nested",
			map[string]migration.EvacuatedDisks{"nested": {Shared: []string{"vda"}}, "flat-b": {Made: []string{"vda"}, Lost: []string{"vda"}}}},
		{"the loss is accepted", image, conductor.EvacuationPlan{Named: "flat-b", AcceptLoss: true}, nil, false, "1 flat-b takes it\nchosen flat-b",
			map[string]migration.EvacuatedDisks{"flat-b": {Made: []string{"vda"}, Lost: []string{"vda"}}}},
		{"by an image that is named", nil, conductor.EvacuationPlan{Named: "flat-b", AcceptLoss: true, Image: image}, nil, false, "1 flat-b takes it\nchosen flat-b",
			map[string]migration.EvacuatedDisks{"flat-b": {Made: []string{"vda"}, Lost: []string{"vda"}}}},
		{"no proof", image, conductor.EvacuationPlan{}, noProof, false, "blocked not_dead\nchosen ", nil},
		{"a host does not say whether it has it", image, conductor.EvacuationPlan{}, fault.Refuse(fault.Unavailable, "", fault.Reason{Code: migration.ReasonHostSilent}), false, "blocked host_silent\nchosen ", nil},
		{"a guest that Placement does not have", image, conductor.EvacuationPlan{Named: "nested"}, nil, true, "1 nested takes it\nblocked allocation_missing\nchosen ",
			map[string]migration.EvacuatedDisks{"nested": {Shared: []string{"vda"}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, client := newPlanner(t, nil)
			p.Hosts = func(_ context.Context, name string) (migration.Host, error) {
				if name == "flat-a" {
					t.Error("the dead host is asked")
				}
				return operationtest.Over(diskHost{planHost{name: name}, name == "nested"}), nil
			}
			all, err := client.Providers(t.Context(), placementclient.ProviderFilter{Name: "flat-a"})
			if err != nil || len(all) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			g := planGuest
			g.Disks = []migration.Disk{{Target: "vda", Path: "/vda", Image: tt.known}}
			if !tt.uncounted {
				held := placementclient.Allocations{
					Allocations: map[string]placementclient.Resources{all[0].UUID: {"VCPU": 2, "MEMORY_MB": 512}}, ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerInstance,
				}
				if err := client.PutAllocations(t.Context(), guestUUID, held); err != nil {
					t.Fatal(err)
				}
			}
			records := planRecords{guest: migration.LostGuest{
				Guest: g, Source: migration.Description{Name: "flat-a", ProviderUUID: all[0].UUID}, Proof: migration.DeathProof{Proof: "fenced"},
			}, err: tt.lost}
			tt.ask.Instance = guestUUID
			plan, err := p.Evacuation(t.Context(), records, tt.ask)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, told(plan)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.lost == nil && (plan.Proof == nil || plan.Proof.Proof != "fenced" || plan.Kind != migration.PlanEvacuation) {
				t.Errorf("a %s by proof %+v", plan.Kind, plan.Proof)
			}
			for name, want := range tt.disks {
				i := slices.IndexFunc(plan.Hosts, func(h migration.PlanHost) bool { return h.Name == name })
				if diff := cmp.Diff(&want, plan.Hosts[i].Disks); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

// TestEvacuateDisks_SortsEachByWhatBecomesOfIt: the reasons speak of the same disks.
func TestEvacuateDisks_SortsEachByWhatBecomesOfIt(t *testing.T) {
	image := &migration.Image{Path: "/images/a.qcow2"}
	empty := &migration.Image{}
	guest := migration.Guest{Variables: "xfs/1/2", Disks: []migration.Disk{
		{Target: "sda", Path: "/iso/x.iso", ReadOnly: true, Image: image},
		{Target: "sdb", ReadOnly: true},
		{Target: "vda", Path: "/vda"},
		{Target: "vdb", Path: "/vdb", Image: empty},
		{Target: "vdc", Path: "/vdc"},
		{Target: "vdd", Network: true},
	}}
	shared := func(targets ...string) []migration.DiskView {
		var out []migration.DiskView
		for _, d := range guest.Disks {
			out = append(out, migration.DiskView{Target: d.Target, Shared: slices.Contains(targets, d.Target)})
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		views  []migration.DiskView
		image  *migration.Image
		accept bool
		want   migration.EvacuatedDisks
		codes  []string // and disks
	}{
		{"all shared", shared("sda", "vda", "vdb", "vdc"), nil, false, migration.EvacuatedDisks{Shared: []string{"sda", "vda", "vdb", "vdc"}}, nil},
		{"none, and no word", nil, nil, false, migration.EvacuatedDisks{Made: []string{"sda", "vdb"}, Lost: []string{"vdb"}},
			[]string{"disk_unreachable vda", "data_would_be_lost vdb", "disk_unreachable vdc"}},
		{"the image is the first disk's alone", shared("vdb"), image, true, migration.EvacuatedDisks{Shared: []string{"vdb"}, Made: []string{"sda", "vda"}, Lost: []string{"vda"}},
			[]string{"disk_unreachable vdc"}},
		{"a loss that is accepted", shared("vda", "vdc"), nil, true, migration.EvacuatedDisks{Shared: []string{"vda", "vdc"}, Made: []string{"sda", "vdb"}, Lost: []string{"vdb"}}, nil},
		{"its firmware's variables are made anew, which is told", append(shared("sda", "vda", "vdb", "vdc"), migration.DiskView{Target: migration.FirmwareVariables}), nil, false,
			migration.EvacuatedDisks{Shared: []string{"sda", "vda", "vdb", "vdc"}, Made: []string{"nvram"}}, nil},
		{"they are there", append(shared("sda", "vda", "vdb", "vdc"), migration.DiskView{Target: migration.FirmwareVariables, Shared: true}), nil, false,
			migration.EvacuatedDisks{Shared: []string{"sda", "vda", "vdb", "vdc"}}, nil},
	} {
		got, reasons := migration.EvacuateDisks(guest, tt.views, tt.image, tt.accept)
		var codes []string
		for _, r := range reasons {
			codes = append(codes, r.Code+" "+r.Have)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || !slices.Equal(codes, tt.codes) {
			t.Errorf("%s: reasons %v, want %v (-want +got):\n%s", tt.name, codes, tt.codes, diff)
		}
	}
}
