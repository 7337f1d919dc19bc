package audit

import (
	"testing"

	"berth/agent/inventory"
	"berth/placementclient"
	"berth/topology"
)

func mem(vcpus, gib int64) placementclient.Resources {
	return placementclient.Resources{"VCPU": vcpus, "DISK_GB": gib}
}

func claimed(instance, migration string, s ClaimState, vcpus int, gib int64) Claim {
	return Claim{Instance: instance, Migration: migration, State: s, Held: inventory.Held{Resources: topology.Resources{VCPUs: vcpus, DiskGB: gib}}}
}

// A guest that is changed on its host shrinks from 8 vCPUs to 2, and its disk grows from
// 5 to 9 GiB: whatever step the change has reached, nobody is told of a disagreement.
func TestJoin_OfAChangeInPlaceEachStepAgrees(t *testing.T) {
	old, next := claimed("web", "", ClaimBound, 8, 5), claimed("web", "m", ClaimHeld, 2, 9)
	used, kept := claimed("web", "", ClaimBound, 2, 9), claimed("web", "m", ClaimHeld, 8, 5)
	was, is, half := by{root: mem(8, 5)}, by{root: mem(2, 9)}, by{root: {"VCPU": 6}}
	halves := &Halves{Instance: placementclient.Allocations{Allocations: is}, Migration: placementclient.Allocations{Allocations: half}}
	for _, tt := range []struct {
		when          string
		claims        []Claim
		instance, mig by
		kept          *Halves
		waits         bool
		code          string
	}{
		{"claimed", []Claim{old, next}, was, nil, nil, false, CodeMoving},
		{"swapped", []Claim{old, next}, is, half, nil, false, CodeMoving},
		{"exchanged", []Claim{used, kept}, is, half, nil, false, CodeMoving},
		{"waits", []Claim{used, kept}, is, half, halves, true, CodeMoving},
		{"confirmed, its half is not deleted", []Claim{used}, is, half, halves, false, CodeMoving},
		{"exchanged back", []Claim{old, next}, is, half, halves, false, CodeMoving},
		{"given back, and Placement not yet", []Claim{old}, is, half, halves, false, CodeMoving},
		{"back", []Claim{old}, was, nil, nil, false, CodeMoving},
		{"by nobody's doing", []Claim{used, kept}, by{root: mem(3, 9)}, half, halves, true, CodeMovingDiffers},
		{"Placement lost it", []Claim{used, kept}, nil, nil, halves, true, CodeHalvesMissing},
	} {
		all := map[string]placementclient.Allocations{"web": {Allocations: tt.instance}, "m": {Allocations: tt.mig, ConsumerType: placementclient.ConsumerMigration}}
		in := shared(all)
		in.Tree.Disk = root
		in.Ledger.Claims, in.Ledger.Moves = tt.claims, []Move{{UUID: "m", Instance: "web", Kept: tt.kept, Waits: tt.waits}}
		in = read(in, all)
		if row := Judge(in, "web"); row.Code != tt.code {
			t.Errorf("%s: the guest: %s (%+v): %s", tt.when, row.Code, row.Facts, row.Message)
		}
		if len(tt.mig) == 0 {
			continue
		}
		if row := Judge(in, "m"); row.Code != CodeMoving {
			t.Errorf("%s: its migration: %s (%+v): %s", tt.when, row.Code, row.Facts, row.Message)
		}
	}
}

// What the source of a guest that waits to be confirmed says of it.
func TestJoin_OfAHalfThatIsKept(t *testing.T) {
	here := LibvirtDomain{UUID: "web", Name: "web"}
	for _, tt := range []struct {
		name    string
		move    Move
		domain  []LibvirtDomain
		fleet   Answer
		code    string
		verdict Verdict
	}{
		{"it waits", Move{Waits: true}, []LibvirtDomain{here}, Answer{}, CodeMoving, Agree},
		{"it is confirmed or reverted just now", Move{}, nil, Answer{}, CodeMoving, Agree},
		{"its definition was removed", Move{Waits: true}, nil, Answer{}, CodeKeptUndefined, LedgerOnly},
		{"nobody conducts it, and it waits there", Move{Lost: true}, []LibvirtDomain{here}, Answer{Fleet: FleetBusy, Words: "host-b: migration m is not over"}, CodeUnconducted, LedgerOnly},
		{"nobody conducts it, and nobody says more", Move{Lost: true}, []LibvirtDomain{here}, Answer{Fleet: FleetSilent, Words: "host-b"}, CodeUnconducted, LedgerOnly},
		{"nobody conducts it, and it is confirmed there", Move{Lost: true}, []LibvirtDomain{here}, Answer{Fleet: FleetOwner, Words: "host-b"}, CodeHalfLeft, LedgerOnly},
	} {
		all := map[string]placementclient.Allocations{
			"web": {Allocations: by{other: cpu(4), pool: disk(9)}},
			"m":   {Allocations: by{root: cpu(2)}, ConsumerType: placementclient.ConsumerMigration},
		}
		in := shared(all)
		tt.move.UUID, tt.move.Instance = "m", "web"
		in.Ledger = Ledger{
			Instances: []Instance{{UUID: "web", Name: "web", Holder: "host-b", Migration: "m"}},
			Claims:    []Claim{claimed("web", "m", ClaimHeld, 2, 5)}, Moves: []Move{tt.move},
		}
		in.Domains.List = tt.domain
		in = read(in, all)
		asked := Strangers(in)
		if got := len(asked) > 0; got != tt.move.Lost {
			t.Errorf("%s: other hosts are asked for %v", tt.name, asked)
		}
		in.Fleet["web"] = tt.fleet
		if row := Judge(in, "web"); row.Code != tt.code || row.Verdict != tt.verdict || row.Heal != HealNone {
			t.Errorf("%s: %s, %s, heal %q (%+v)", tt.name, row.Code, row.Verdict, row.Heal, row.Facts)
		}
		if row := Judge(in, "m"); row.Code != CodeMoving {
			t.Errorf("%s: its migration: %s (%+v)", tt.name, row.Code, row.Facts)
		}
	}
}

// Where it lives, a guest that waits to be confirmed is told when its domain is gone.
func TestJoin_OfAGuestThatWaitsWhereItLives(t *testing.T) {
	all := map[string]placementclient.Allocations{"web": {Allocations: by{root: cpu(2), pool: disk(5)}}}
	in := shared(all)
	in.Ledger.Moves = []Move{{UUID: "m", Instance: "web", Waits: true}}
	if row := Judge(in, "web"); row.Verdict != Agree {
		t.Errorf("it waits: %+v", row)
	}
	in.Domains.List = nil
	if row := Judge(in, "web"); row.Code != CodeUnconfirmedGone || row.Heal != HealNone {
		t.Errorf("undefined by hand: %+v", row)
	}
	in.Domains.Why = "it is down"
	if row := Judge(in, "web"); row.Verdict != Agree {
		t.Errorf("libvirt is silent: %+v", row)
	}
}
