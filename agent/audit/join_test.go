package audit

import (
	"slices"
	"strings"
	"testing"

	"berth/agent/inventory"
	"berth/placementclient"
	"berth/topology"
)

const root, child, pool, other = "root", "child", "pool", "other"

type by = map[string]placementclient.Resources

func cpu(n int64) placementclient.Resources  { return placementclient.Resources{"VCPU": n} }
func disk(n int64) placementclient.Resources { return placementclient.Resources{"DISK_GB": n} }

// shared is a host whose guests' disks are on a pool that other hosts share.
func shared(consumers map[string]placementclient.Allocations) Input {
	in := Input{
		Tree: &inventory.Tree{Shape: inventory.Flat, Providers: []inventory.Provider{{UUID: root, Name: "host-a"}, {UUID: child, Name: "host-a_pci", Parent: root}}, Disk: pool},
		Ledger: Ledger{
			Instances: []Instance{{UUID: "web", Name: "web", Here: true, ProjectID: "p", UserID: "u"}},
			Claims:    []Claim{{Instance: "web", State: ClaimBound, Held: inventory.Held{Resources: topology.Resources{VCPUs: 2, DiskGB: 5}}}},
		},
		Domains:   Domains{List: []LibvirtDomain{{UUID: "web", Name: "web", Active: true}}},
		Placement: Placement{Providers: map[string]map[string]placementclient.Resources{}, Consumers: map[string]placementclient.Allocations{}},
		Fleet:     map[string]Answer{},
	}
	for id, a := range consumers {
		for rp, r := range a.Allocations {
			if in.Tree.Uses(rp) {
				if in.Placement.Providers[rp] == nil {
					in.Placement.Providers[rp] = map[string]placementclient.Resources{}
				}
				in.Placement.Providers[rp][id] = r
			}
		}
	}
	return in
}

// read answers what a join wants to read whole.
func read(in Input, consumers map[string]placementclient.Allocations) Input {
	for _, id := range Unread(in) {
		a := consumers[id].Clone()
		if len(a.Allocations) > 0 {
			a.ConsumerGeneration = placementclient.Generation(7)
		}
		in.Placement.Consumers[id] = a
	}
	return in
}

func TestJoin_OfASharedPoolOtherHostsGuestsAreNoneOfThisOnes(t *testing.T) {
	all := map[string]placementclient.Allocations{
		"web":    {Allocations: by{root: cpu(2), pool: disk(5)}},
		"theirs": {Allocations: by{other: cpu(1), pool: disk(9)}},
	}
	in := shared(all)
	if got := Unread(in); len(got) > 0 {
		t.Errorf("%v are read whole though all agrees", got)
	}
	rows := Join(in)
	if len(rows) != 1 || rows[0].Subject != "web" || rows[0].Verdict != Agree {
		t.Errorf("%+v", rows)
	}
}

func TestJoin_TheDiskOfASharedPool(t *testing.T) {
	for _, tt := range []struct {
		name  string
		held  by
		fleet Answer
		heal  Heal
		code  string
		after by
	}{
		{"its disk alone is left", by{pool: disk(5)}, Answer{}, HealPut, CodeAmounts, by{root: cpu(2), pool: disk(5)}},
		{"counted on the root", by{root: {"VCPU": 2, "DISK_GB": 5}}, Answer{}, HealPut, CodeAmounts, by{root: cpu(2), pool: disk(5)}},
		{"doubled, one disk for both", by{root: cpu(2), other: cpu(2), pool: disk(5)}, Answer{Fleet: FleetNobody}, HealTake, CodeDoubled, by{root: cpu(2), pool: disk(5)}},
		{"at another host, with the disk", by{other: cpu(2), pool: disk(5)}, Answer{Fleet: FleetNobody}, HealTake, CodeElsewhere, by{root: cpu(2), pool: disk(5)}},
	} {
		all := map[string]placementclient.Allocations{"web": {Allocations: tt.held}}
		in := shared(all)
		// Whole, as where it was found to hold of another host.
		in.Placement.Consumers["web"] = placementclient.Allocations{Allocations: tt.held, ConsumerGeneration: placementclient.Generation(7)}
		in.Fleet["web"] = tt.fleet
		row := Judge(in, "web")
		if row.Heal != tt.heal || row.Code != tt.code || !same(row.Write["web"].Allocations, tt.after) || *row.Write["web"].ConsumerGeneration != 7 {
			t.Errorf("%s: %s %s writes %v, want %s %s %v", tt.name, row.Code, row.Heal, row.Write, tt.code, tt.heal, tt.after)
		}
	}
	// What is dropped of a guest that lives on another host that shares the pool leaves
	// it its disk, unless that host counts one of its own.
	for _, tt := range []struct {
		held, after by
	}{
		{by{root: cpu(2), other: cpu(2), pool: disk(5)}, by{other: cpu(2), pool: disk(5)}},
		{by{root: cpu(2), other: {"VCPU": 2, "DISK_GB": 5}, pool: disk(5)}, by{other: {"VCPU": 2, "DISK_GB": 5}}},
	} {
		all := map[string]placementclient.Allocations{"gone": {Allocations: tt.held}, "web": {Allocations: by{root: cpu(2), pool: disk(5)}}}
		in := read(shared(all), all)
		in.Fleet["gone"] = Answer{Fleet: FleetOwner, Words: "host-b"}
		if row := Judge(in, "gone"); row.Heal != HealDrop || !same(row.Write["gone"].Allocations, tt.after) {
			t.Errorf("of %v %s writes %v, want %v", tt.held, row.Heal, row.Write, tt.after)
		}
	}
}

func TestJoin_ARetiredProviderIsStillTheHosts(t *testing.T) {
	all := map[string]placementclient.Allocations{"web": {Allocations: by{root: cpu(2), pool: disk(5), "old": {"CUSTOM_X": 1}}}}
	in := shared(all)
	in.Tree.Retired = []inventory.Provider{{UUID: "old", Name: "host-a_old"}}
	in.Placement.Providers["old"] = map[string]placementclient.Resources{"web": {"CUSTOM_X": 1}}
	in = read(in, all)
	row := Judge(in, "web")
	if row.Code != CodeMisplaced || row.Heal != HealPut || len(row.Write["web"].Allocations) != 2 {
		t.Errorf("%+v", row)
	}
	if !strings.Contains(row.Message, "CUSTOM_X on host-a_old: want 0, have 1") {
		t.Errorf("%q does not name class and provider", row.Message)
	}
}

// What Placement did not say of one consumer is no verdict about it, and none of the
// others is held up.
func TestJoin_WhatCouldNotBeReadIsNotEmpty(t *testing.T) {
	all := map[string]placementclient.Allocations{"stranger": {Allocations: by{root: cpu(1)}}}
	in := shared(all)
	for _, row := range Join(in) {
		if row.Verdict != Unknown || row.Heal != HealNone || row.Code != CodePlacementUnknown {
			t.Errorf("not read: %+v", row)
		}
	}
	if got := Unread(in); !slices.Equal(got, []string{"stranger", "web"}) {
		t.Errorf("%v are to be read", got)
	}
	in.Placement.Why = "connection refused"
	for _, row := range Join(in) {
		if row.Verdict != Unknown {
			t.Errorf("Placement is down: %+v", row)
		}
	}
	in.Tree = nil
	if rows := Join(in); len(rows) == 0 || rows[0].Verdict != Unknown {
		t.Errorf("without a tree: %+v", rows)
	}
}

// A migration's consumer on the source is within what the guest's claim is; once the
// claim has gone it may be anything until its conductor deletes it.
func TestJoin_TheMigrationsHalfIsWithinTheClaim(t *testing.T) {
	for _, tt := range []struct {
		name    string
		held    by
		claimed bool
		want    string
	}{
		{"equal", by{root: cpu(2)}, true, CodeMoving},
		{"less: a same-host move keeps what goes alone", by{root: cpu(1)}, true, CodeMoving},
		{"more", by{root: cpu(3)}, true, CodeMovingDiffers},
		{"the claim has gone", by{root: cpu(3)}, false, CodeMoving},
	} {
		all := map[string]placementclient.Allocations{"mig": {Allocations: tt.held}, "web": {Allocations: by{other: cpu(2), pool: disk(5)}}}
		in := shared(all)
		in.Ledger.Moves = []Move{{UUID: "mig", Instance: "web"}}
		if !tt.claimed {
			in.Ledger.Claims = nil
		}
		in = read(in, all)
		if row := Judge(in, "mig"); row.Code != tt.want || row.Heal != HealNone {
			t.Errorf("%s: %s, want %s", tt.name, row.Code, tt.want)
		}
		if row := Judge(in, "web"); row.Code != CodeMoving {
			t.Errorf("%s: the instance is %s", tt.name, row.Code)
		}
	}
}

// Guests that float over a nested tree and are counted nowhere are put where there is
// room, and those that are counted stay where they are.
func TestJoin_AGuestThatFloatsIsPutOnACellWithRoom(t *testing.T) {
	room := func(vcpu, memory int64) map[string]placementclient.Inventory {
		out := map[string]placementclient.Inventory{}
		for class, n := range map[string]int64{"VCPU": vcpu, "MEMORY_MB": memory} {
			if n > 0 {
				out[class] = placementclient.Inventory{Total: n, AllocationRatio: 1}.WithDefaults()
			}
		}
		return out
	}
	tree := &inventory.Tree{
		Shape: inventory.Nested, Disk: root,
		Providers: []inventory.Provider{
			{UUID: root, Name: "host-a"},
			{UUID: "c0", Name: "host-a_0", Parent: root, Inventories: room(4, 0)}, {UUID: "m0", Name: "host-a_0_4k", Parent: "c0", Inventories: room(0, 4096)},
			{UUID: "c1", Name: "host-a_1", Parent: root, Inventories: room(4, 0)}, {UUID: "m1", Name: "host-a_1_4k", Parent: "c1", Inventories: room(0, 4096)},
		},
		Cells: []inventory.TreeCell{
			{ID: 0, Provider: "c0", Ordinary: 4096, Pages: map[topology.PageSize]string{4096: "m0"}},
			{ID: 1, Provider: "c1", Ordinary: 4096, Pages: map[topology.PageSize]string{4096: "m1"}},
		},
	}
	for full, free := range map[string]string{"0": "1", "1": "0"} {
		in := Input{
			Tree: tree,
			Ledger: Ledger{
				Instances: []Instance{{UUID: "web", Here: true}, {UUID: "db", Here: true}},
				Claims: []Claim{
					{Instance: "web", State: ClaimBound, Held: inventory.Held{Resources: topology.Resources{VCPUs: 2, MemoryMB: 1024}}},
					{Instance: "db", State: ClaimBound, Held: inventory.Held{Resources: topology.Resources{VCPUs: 4, MemoryMB: 4096}}},
				},
			},
			Domains: Domains{List: []LibvirtDomain{{UUID: "web", Active: true}, {UUID: "db", Active: true}}},
			Placement: Placement{
				Providers: map[string]map[string]placementclient.Resources{"c" + full: {"db": {"VCPU": 4}}, "m" + full: {"db": {"MEMORY_MB": 4096}}},
				Consumers: map[string]placementclient.Allocations{},
			},
		}
		in = read(in, nil)
		row := Judge(in, "web")
		want := by{"c" + free: {"VCPU": 2}, "m" + free: {"MEMORY_MB": 1024}}
		if row.Heal != HealPut || !same(row.Write["web"].Allocations, want) {
			t.Errorf("cell %s is full: %s writes %v, want %v", full, row.Code, row.Write["web"].Allocations, want)
		}
		if row := Judge(in, "db"); row.Verdict != Agree {
			t.Errorf("one that stands is moved: %+v", row)
		}
	}
}

// Both halves of a move come back in one write, or the instance alone where the
// migration had nothing to keep: an empty consumer would be left as an orphan.
func TestJoin_TheHalvesOfAMoveThatPlacementHasLost(t *testing.T) {
	for _, kept := range []by{{root: cpu(2)}, nil} {
		in := shared(nil)
		in.Ledger.Moves = []Move{{UUID: "mig", Instance: "web", Kept: &Halves{
			Instance:  placementclient.Allocations{Allocations: by{other: cpu(2), pool: disk(5)}, ProjectID: "p", ConsumerGeneration: placementclient.Generation(4)},
			Migration: placementclient.Allocations{Allocations: kept, ProjectID: "p"},
		}}}
		if got := Unread(in); !slices.Equal(got, []string{"web", "mig"}) {
			t.Errorf("%v are read, want both halves", got)
		}
		row := Judge(read(in, nil), "web")
		want := 1
		if len(kept) > 0 {
			want = 2
		}
		if row.Code != CodeHalvesMissing || row.Heal != HealHalves || len(row.Write) != want || row.Write["web"].ConsumerGeneration != nil {
			t.Errorf("kept %v: %s %s writes %v", kept, row.Code, row.Heal, row.Write)
		}
	}
}

// A device that a guest holds and the host's tree does not know is counted on nobody
// knows which provider: nothing of what the guest holds is taken for too much.
func TestJoin_WhatADeviceHoldsThatTheTreeDoesNotKnowIsNotFreed(t *testing.T) {
	for _, tt := range []struct {
		name string
		held by
		code string
		heal Heal
	}{
		{"its device is counted", by{root: cpu(2), pool: disk(5), child: {"VGPU": 1}}, CodePlacementUnknown, HealNone},
		{"and on another host", by{root: cpu(2), pool: disk(5), child: {"VGPU": 1}, other: {"VCPU": 2, "DISK_GB": 5}}, CodePlacementUnknown, HealNone},
		{"only what is missing is put", by{root: cpu(1)}, CodeAmounts, HealPut},
		{"nothing is counted", nil, CodeMissing, HealPut},
	} {
		all := map[string]placementclient.Allocations{"web": {Allocations: tt.held}}
		in := shared(all)
		in.Ledger.Claims[0].Held.Assignment.Mdevs = []string{"gone-mdev"}
		in = read(in, all)
		in.Fleet["web"] = Answer{Fleet: FleetNobody}
		row := Judge(in, "web")
		if row.Code != tt.code || row.Heal != tt.heal {
			t.Errorf("%s: %s heals by %q, want %s %q", tt.name, row.Code, row.Heal, tt.code, tt.heal)
		}
		if row.Code == CodePlacementUnknown && !strings.Contains(row.Message, "gone-mdev") {
			t.Errorf("%s: %q does not name the device", tt.name, row.Message)
		}
	}
}

// What a join makes of a ledger's records, one fact at a time.
func TestJoin_FactsOfTheLedger(t *testing.T) {
	held := inventory.Held{Resources: topology.Resources{VCPUs: 2, DiskGB: 5}}
	for _, tt := range []struct {
		name   string
		ledger Ledger
		want   Facts
	}{
		{"the farthest of two claims", Ledger{
			Instances: []Instance{{UUID: "web", Here: true}},
			Claims:    []Claim{{Instance: "web", State: ClaimBound, Held: held}, {Instance: "web", Migration: "m", State: ClaimPending}},
		}, Facts{Token: TokenHere, Claim: ClaimBound, Story: StoryNone, Type: TypeInstance}},
		{"given away by a move that is not over", Ledger{
			Instances: []Instance{{UUID: "web", Holder: "host-b", Migration: "m"}}, Moves: []Move{{UUID: "m", Instance: "web"}},
		}, Facts{Token: TokenTransit, Claim: ClaimNone, Story: StoryRuns, Type: TypeInstance}},
		{"and by one that is over", Ledger{
			Instances: []Instance{{UUID: "web", Holder: "host-b", Migration: "m"}}, Moves: []Move{{UUID: "m", Instance: "web", Over: true}},
		}, Facts{Token: TokenElsewhere, Claim: ClaimNone, Story: StoryOver, Type: TypeInstance}},
		{"and by one that this host has not conducted", Ledger{
			Instances: []Instance{{UUID: "web", Holder: "host-b", Migration: "m"}},
		}, Facts{Token: TokenElsewhere, Claim: ClaimNone, Story: StoryNone, Type: TypeInstance}},
		{"nobody's", Ledger{}, Facts{Token: TokenNone, Claim: ClaimNone, Story: StoryNone, Type: TypeUnknown}},
	} {
		in := shared(nil)
		in.Ledger = tt.ledger
		f := Judge(in, "web").Facts
		tt.want.Domain, tt.want.Allocation, tt.want.Fleet = f.Domain, f.Allocation, f.Fleet
		if f != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, f, tt.want)
		}
	}
}

// No host is asked for what moves: its conductor writes it.
func TestStrangers_AreNoneThatMove(t *testing.T) {
	all := map[string]placementclient.Allocations{"web": {Allocations: by{root: cpu(2), other: cpu(2), pool: disk(5)}}, "mig": {Allocations: by{root: cpu(1)}}}
	in := shared(all)
	in.Placement.Consumers["web"] = all["web"]
	if got := Strangers(read(in, all)); !slices.Equal(got, []string{"mig", "web"}) {
		t.Errorf("%v are asked for, want both", got)
	}
	in.Ledger.Moves = []Move{{UUID: "mig", Instance: "web"}}
	if got := Strangers(read(in, all)); len(got) > 0 {
		t.Errorf("%v are asked for, and move", got)
	}
}

func TestJoin_AllocatedOfAClassThatTheProviderHasNoMore(t *testing.T) {
	all := map[string]placementclient.Allocations{"web": {Allocations: by{root: {"VCPU": 2, "CUSTOM_X": 1}, pool: disk(5)}}}
	in := shared(all)
	in.Tree.Providers[0].Inventories = map[string]placementclient.Inventory{"VCPU": {Total: 8, AllocationRatio: 1}}
	rows := slices.DeleteFunc(Join(read(in, all)), func(r Row) bool { return r.Kind != KindProvider })
	if len(rows) != 1 || rows[0].Code != CodeNoInventory || len(rows[0].Differences) != 1 || rows[0].Differences[0].Have != 1 {
		t.Errorf("%+v", rows)
	}
}

// What is left behind here is said to be too much, and what the guest holds of its own
// host is none of this one's.
func TestJoin_WhatIsLeftBehindDiffersByWhatItHoldsHere(t *testing.T) {
	all := map[string]placementclient.Allocations{"web": {Allocations: by{root: cpu(2), other: {"VCPU": 2, "DISK_GB": 5}}}}
	in := shared(all)
	in.Ledger = Ledger{
		Instances: []Instance{{UUID: "web", Holder: "host-b"}},
		Claims:    []Claim{{Instance: "web", State: ClaimHeld, Held: inventory.Held{Resources: topology.Resources{VCPUs: 2}}}},
	}
	in.Domains = Domains{}
	in.Placement.Consumers["web"] = all["web"]
	row := Judge(in, "web")
	if len(row.Differences) != 1 || row.Differences[0] != (Difference{Provider: "host-a", Class: "VCPU", Want: 0, Have: 2}) {
		t.Errorf("%+v", row.Differences)
	}
}
