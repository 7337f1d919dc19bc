package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/auditor"
	"berth/agent/death"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime/runtimetest"
	"berth/migration"
)

// TestTakeOver_WhatLivingHostsSay_Table: the record of host-a has epoch 3.
func TestTakeOver_WhatLivingHostsSay_Table(t *testing.T) {
	for name, tt := range map[string]struct {
		answers map[string]auditor.Known
		silent  map[string]string
		want    []string
		kind    fault.Kind
	}{
		"nobody has it": {map[string]auditor.Known{"host-b": {}, "host-c": {}}, nil, nil, ""},
		"it came by virsh migrate, and its ownership has not followed": {map[string]auditor.Known{"host-b": {Active: true, Busy: "it has a claim"}, "host-c": {}}, nil, []string{"runs_elsewhere host-b"}, fault.Forbidden},
		"its definition was left behind":                               {map[string]auditor.Known{"host-b": {Busy: "libvirt has its domain"}}, nil, nil, ""},
		"this evacuation's own claim":                                  {map[string]auditor.Known{"host-b": {Busy: "migration m is not over", Moving: true}}, nil, nil, ""},
		"a ledger has it, and its record was not written yet":          {map[string]auditor.Known{"host-b": {Owner: true, Epoch: 4}}, nil, []string{"owned_elsewhere host-b"}, fault.Forbidden},
		"a ledger that is older has it":                                {map[string]auditor.Known{"host-b": {Owner: true, Epoch: 2}}, nil, nil, ""},
		"a ledger that is older has it, and it runs":                   {map[string]auditor.Known{"host-b": {Owner: true, Epoch: 2, Active: true}}, nil, []string{"runs_elsewhere host-b"}, fault.Forbidden},
		"a host is silent":                                             {map[string]auditor.Known{"host-b": {}}, map[string]string{"host-c": "no route"}, []string{"host_silent host-c"}, fault.Unavailable},
		"a host's libvirt is silent":                                   {map[string]auditor.Known{"host-b": {Unsure: "libvirt is down"}}, map[string]string{}, []string{"host_silent host-b"}, fault.Unavailable},
		"a host is silent, and another has it":                         {map[string]auditor.Known{"host-b": {Active: true}}, map[string]string{"host-c": "no route"}, []string{"runs_elsewhere host-b", "host_silent host-c"}, fault.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			reasons := takeOverReasons("u", "host-a", 3, tt.answers, tt.silent)
			for _, r := range reasons {
				got = append(got, r.Code+" "+r.Have)
				if r.Change == "" {
					t.Errorf("no remedy: %+v", r)
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
			ask := func() error { return a.notElsewhere(t.Context(), records, "u", "host-a", 1) }
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
