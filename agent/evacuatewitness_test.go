package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/auditor"
	"berth/agent/death"
	"berth/claims"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/runtime/runtimetest"
	"berth/migration"
	"berth/topology"
)

// TestTakeOver_WhatLivingHostsSay_Table: the record of host-a has epoch 3.
func TestTakeOver_WhatLivingHostsSay_Table(t *testing.T) {
	for name, tt := range map[string]struct {
		answers map[string]takeOverAnswer
		silent  map[string]string
		want    []string
		kind    fault.Kind
	}{
		"nobody has it": {map[string]takeOverAnswer{"host-b": {}, "host-c": {}}, nil, nil, ""},
		"it came by virsh migrate, and its ownership has not followed": {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Active: true, Busy: "it has a claim"}}, "host-c": {}}, nil, []string{"runs_elsewhere host-b"}, fault.Forbidden},
		"its definition was left behind":                               {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Busy: "libvirt has its domain"}}}, nil, nil, ""},
		"this evacuation's own claim":                                  {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Busy: "migration m is not over", Moving: true}}}, nil, nil, ""},
		"a ledger has it, and its record was not written yet":          {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Owner: true, Epoch: 4}}}, nil, []string{"owned_elsewhere host-b"}, fault.Forbidden},
		"a ledger that is older has it":                                {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Owner: true, Epoch: 2}}}, nil, nil, ""},
		"a ledger that is older has it, and it runs":                   {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Owner: true, Epoch: 2, Active: true}}}, nil, []string{"runs_elsewhere host-b"}, fault.Forbidden},
		"a host is silent":                                             {map[string]takeOverAnswer{"host-b": {}}, map[string]string{"host-c": "no route"}, []string{"host_silent host-c"}, fault.Unavailable},
		"a host's libvirt is silent":                                   {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Unsure: "libvirt is down"}}}, map[string]string{}, []string{"libvirt_silent host-b"}, fault.Unavailable},
		"a host is silent, and another has it":                         {map[string]takeOverAnswer{"host-b": {Known: auditor.Known{Active: true}}}, map[string]string{"host-c": "no route"}, []string{"runs_elsewhere host-b", "host_silent host-c"}, fault.Forbidden},
		"a host that lives has no way here":                            {map[string]takeOverAnswer{"host-b": {cut: "no route"}}, nil, []string{"host_silent host-b"}, fault.Unavailable},
		"its migration is open there":                                  {map[string]takeOverAnswer{"host-b": {open: "migration m is not over"}, "host-c": {}}, nil, []string{"on_a_move m"}, fault.Forbidden},
		"its migration's other host may be dead":                       {map[string]takeOverAnswer{"host-b": {dead: true}}, nil, []string{"on_a_move m"}, fault.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			reasons := takeOverReasons("host-z", fleet.Instance{UUID: "u", Host: "host-a", Epoch: 3, Moving: "m"}, tt.answers, tt.silent)
			for _, r := range reasons {
				got = append(got, r.Code+" "+r.Have)
				fences := strings.Contains(r.Change, "fence") || strings.Contains(r.Change, "declare-dead")
				if _, silent := tt.silent[r.Have]; r.Change == "" || fences != silent {
					t.Errorf("no remedy, or one for a dead host: %+v", r)
				}
			}
			if err := takeOverRefused(reasons); tt.kind != fault.KindOf(err) {
				t.Errorf("%v, want %s", err, tt.kind)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotElsewhere_HostsThatFailTogether: nobody has asked for the death of the second one before.
func TestNotElsewhere_HostsThatFailTogether(t *testing.T) {
	for name, tt := range map[string]struct {
		selfFence bool
		want      []string
	}{
		"its lease proves it":            {true, nil},
		"it may be cut off, and runs on": {false, []string{migration.ReasonHostSilent}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFleetBench(t, "host-b")
			a, later := b.up["host-b"], time.Duration(0)
			records := fleet.New(b.store.Client("host-b"), &runtimetest.Later{Since: &later})
			o := provenDead(a)
			o.Records = func() (*fleet.Records, error) { return records, nil }
			a.deaths = death.New(o)
			b.must(records.PutHost(t.Context(), fleet.Host{Name: "host-c", ProviderUUID: "p-c", HostUUID: "h-c", Boot: "boot-1", SelfFence: tt.selfFence, Lease: 30}))
			ask := func() error {
				return a.notElsewhere(t.Context(), records, fleet.Instance{UUID: "u", Host: "host-a", Epoch: 1})
			}
			if err := ask(); !errors.Is(err, fault.Unavailable) || !fault.HasReason(err, migration.ReasonHostSilent) || len(fault.ReasonsOf(err)) != 1 {
				t.Errorf("before its lease is over for long: %v", err)
			}
			for later < 30*time.Second {
				later += 10 * time.Second
				b.must(records.WatchLapsed(t.Context()))
			}
			var got []string
			for _, r := range fault.ReasonsOf(ask()) {
				got = append(got, r.Code)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotElsewhere_AnInstanceThatWasOnAMigration: a record says so until its holder writes it again, which
// is dead. Whether it still is on one the other hosts say.
func TestNotElsewhere_AnInstanceThatWasOnAMigration(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(b *fleetBench, a *Agent, records *fleet.Records)
		want    []string
	}{
		"no other host": {func(*fleetBench, *Agent, *fleet.Records) {}, nil},
		"its claim is there": {func(b *fleetBench, a *Agent, _ *fleet.Records) {
			_, err := a.tracker.Claim(b.Context(), claims.Request{
				Owner: claims.Owner{Instance: "u", Migration: "m", Attempt: 1, Kind: claims.KindLiveMigration}, Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Lease: time.Hour,
			})
			b.must(err)
		}, []string{"on_a_move"}},
		"a host that never answered": {func(b *fleetBench, _ *Agent, records *fleet.Records) {
			b.must(records.PutHost(b.Context(), fleet.Host{Name: "host-c", ProviderUUID: "p-c", HostUUID: "h-c", Boot: "boot-1"}))
		}, []string{migration.ReasonHostSilent}},
		"a host that died too": {func(b *fleetBench, _ *Agent, records *fleet.Records) {
			b.must(records.PutHost(b.Context(), fleet.Host{Name: "host-c", ProviderUUID: "p-c", HostUUID: "h-c", Boot: "boot-1"}))
			_, err := fleet.New(b.store.Client(""), b.rt).DeclareDead(b.Context(), fleet.Death{Host: "host-c", Proof: fleet.ProofOperator, By: "operator:o", Because: "it burned"})
			b.must(err)
		}, []string{"on_a_move"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFleetBench(t, "host-b")
			a := b.up["host-b"]
			records, err := a.fleetRecords()
			b.must(err)
			tt.prepare(b, a, records)
			var got []string
			for _, r := range fault.ReasonsOf(a.notElsewhere(t.Context(), records, fleet.Instance{UUID: "u", Host: "host-a", Epoch: 1, Moving: "m"})) {
				got = append(got, r.Code)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestNotElsewhere_AHostWithoutARecord: it only observes, or has no store; virsh migrate has brought the
// instance there.
func TestNotElsewhere_AHostWithoutARecord(t *testing.T) {
	t.Parallel()
	store := fleettest.NewMemory(&runtime.System{})
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		if o.Config.Agent.Name == "host-b" {
			o.Config.Agent.Mode = config.Observe
			return
		}
		o.FleetStore = func(config.Config) (fleet.Store, error) { return store.Client("host-a"), nil }
	})
	const uuid = "44444444-4444-4444-8444-444444444444"
	other := p.fleet.Host("host-b")
	p.must(other.Define(t.Context(), `<domain type='kvm'><name>web</name><uuid>`+uuid+`</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os></domain>`))
	p.must(other.Start(t.Context(), uuid, false))
	records := fleet.New(store.Client("host-x"), &runtime.System{})
	p.must(records.PutHost(t.Context(), fleet.Host{Name: "host-x", ProviderUUID: "p-x", HostUUID: "h-x", Boot: "boot-1"}))
	_, err := records.PutInstance(t.Context(), fleet.Instance{UUID: uuid, Name: "web", Host: "host-x", Epoch: 1, Guest: []byte(`{"instance_uuid":"` + uuid + `"}`)})
	p.must(err)
	_, err = p.clients["host-a"].DeclareDead(t.Context(), "host-x", api.DeclareDead{Because: "burnt", Force: true})
	p.must(err)
	ask := func() (out []string) {
		plan, err := p.clients["host-a"].Plan(t.Context(), api.PlanRequest{Instance: uuid, Kind: migration.PlanEvacuation})
		p.must(err)
		for _, r := range plan.Blockers {
			out = append(out, r.Code)
		}
		return out
	}
	if diff := cmp.Diff([]string{"runs_elsewhere"}, ask()); diff != "" {
		t.Error(diff)
	}
	p.must(p.stop["host-b"]())
	if got := ask(); slices.Contains(got, "runs_elsewhere") || slices.Contains(got, migration.ReasonHostSilent) {
		t.Errorf("it is silent: %s", got)
	}
}
