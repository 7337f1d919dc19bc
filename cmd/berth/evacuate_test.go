package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/migration"
	"berth/migration/task"
)

// evacuated is a guest that lives again, and has lost a disk.
func evacuated() migration.Migration {
	return migration.Migration{
		UUID: "m-1", InstanceUUID: "i-1", InstanceName: "web-1", SourceCompute: "host-s", DestCompute: "host-d", Conductor: "host-a", MigrationType: migration.TypeEvacuation,
		Status: migration.StatusDone, Outcome: migration.OutcomeCompleted, Attempt: 1, Phase: task.Done, Steps: []migration.StepRecord{},
		Evacuation: &migration.Evacuation{
			Proof:              &migration.DeathProof{Proof: "fenced", By: "operator:alice", Because: "ipmi says off"},
			EvacuatedDisks:     migration.EvacuatedDisks{Shared: []string{"vda"}, Made: []string{"vdb"}, Lost: []string{"vdb"}},
			FinishedEvacuation: migration.FinishedEvacuation{Started: true},
		},
	}
}

// TestEvacuation_SaysWhatWasLost holds what each end is told as, and the record as it is shown.
func TestEvacuation_SaysWhatWasLost(t *testing.T) {
	whole, off, two, undone := evacuated(), evacuated(), evacuated(), evacuated()
	whole.Status, whole.Evacuation = migration.StatusCompleted, &migration.Evacuation{FinishedEvacuation: migration.FinishedEvacuation{Started: true}}
	off.Evacuation = &migration.Evacuation{FinishedEvacuation: migration.FinishedEvacuation{NotStarted: "network ovs-1 is not there"}}
	two.Evacuation = &migration.Evacuation{EvacuatedDisks: migration.EvacuatedDisks{Lost: []string{"vda", "vdb"}}}
	undone.Status, undone.Outcome = migration.StatusFailed, migration.OutcomeUndone
	var b bytes.Buffer
	for _, m := range []migration.Migration{evacuated(), whole, off, two, undone} {
		fmt.Fprintf(&b, "%s\n--\n", outcomeWords(m, time.Now()))
	}
	a := &app{out: &b}
	if err := a.printMigration(evacuated()); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/evacuated.txt", b.String())
}

// TestPlan_OfAnEvacuationSaysWhatBecomesOfDisks holds the table of one.
func TestPlan_OfAnEvacuationSaysWhatBecomesOfDisks(t *testing.T) {
	p := planned()
	p.Kind, p.Source, p.Left = migration.PlanEvacuation, "host-a", nil
	p.Proof = &migration.DeathProof{Proof: "operator", By: "user:root", Because: "pulled both power cords, rack 4"}
	p.Hosts[1].Disks = &migration.EvacuatedDisks{Shared: []string{"vda"}}
	p.Hosts[0].Disks = &migration.EvacuatedDisks{Made: []string{"vda", "vdb"}, Lost: []string{"vda", "vdb"}}
	p.Hosts[2].Disks = &migration.EvacuatedDisks{Made: []string{"sda"}}
	var b bytes.Buffer
	tabbed(t, &b, func(w *tabwriter.Writer) { planTable(w, p, false) })
	golden(t, "testdata/plan-evacuation.txt", b.String())
}

// revived evacuates as it was told: the first time by first, then by then.
type revived struct {
	scripted
	got   []api.Migrate
	first []migration.Migration
}

func (r *revived) Start(ctx context.Context, m api.Migrate) (migration.Migration, error) {
	r.got = append(r.got, m)
	if len(r.got) == 1 && r.first != nil {
		r.now = r.first
		return r.first[0], nil
	}
	return r.scripted.Start(ctx, m)
}

// dead are hosts that die when they are told to.
type dead struct {
	api.Deaths
	said []string
	fail error
}

func (d *dead) Fence(_ context.Context, host, by string) (fleet.Death, error) {
	d.said = append(d.said, "fence "+host)
	return fleet.Death{Host: host, Proof: fleet.ProofFenced, By: by, Because: "ipmi says off", At: time.Now()}, d.fail
}

func (d *dead) Declare(_ context.Context, host, because, by string, force bool) (fleet.Death, error) {
	d.said = append(d.said, fmt.Sprintf("declare %s: %s, %t", host, because, force))
	return fleet.Death{Host: host, Proof: fleet.ProofOperator, By: by, Because: because, At: time.Now()}, d.fail
}

// records are the fleet's.
type records struct {
	api.Fleet
	hosts  []api.FleetHost
	forgot []string
	err    error
}

func (r *records) Hosts(context.Context) (api.FleetHosts, error) {
	return api.FleetHosts{Store: "etcd", Hosts: r.hosts}, r.err
}

func (r *records) Instance(_ context.Context, ref string) (fleet.Instance, error) {
	if ref != "web-1" {
		return fleet.Instance{}, fault.New(fault.NotFound, "no record of %s", ref)
	}
	return fleet.Instance{UUID: "i-1", Name: ref, Host: "host-s"}, nil
}

func (r *records) Forget(_ context.Context, host string, abandon bool, by string) (api.Forgotten, error) {
	r.forgot = append(r.forgot, fmt.Sprintf("%s %t", host, abandon))
	return api.Forgotten{Host: host, Evacuations: []string{"m-1"}, Abandoned: []api.FleetGuest{{Name: "old", Instance: "i-9"}}, ProviderKept: "somebody else's allocations are on it"}, nil
}

// known are hosts that answer or do not.
type known struct {
	api.Agent
	hosts []api.HostEntry
}

func (k known) Hosts(context.Context) ([]api.HostEntry, error) { return k.hosts, nil }

// TestEvacuate_ProvesAsksAndExitsAsItEnds: the proof comes first, the loss of data is said and
// asked for, and each end has its exit code.
func TestEvacuate_ProvesAsksAndExitsAsItEnds(t *testing.T) {
	accepted := evacuated()
	accepted.Status, accepted.Outcome, accepted.Phase, accepted.Step = migration.StatusAccepted, "", task.Doing, migration.StepLost
	lost := accepted
	lost.Status, lost.Outcome = migration.StatusFailed, migration.OutcomeRefused
	lost.Error = task.Keep(fault.Refuse(fault.Forbidden, "evacuate web-1", fault.Reason{Code: migration.ReasonDataLost, Message: "disk vda (/d) would be made anew, and what was written to it be lost"}))
	lives := []migration.Migration{accepted, evacuated()}
	for _, tt := range []struct {
		name, line, in string
		answers        bool
		first          []migration.Migration
		dies           error
		code, asked    int
		said           string
		says           []string
	}{
		{"it lives", "evacuate web-1", "", false, nil, nil, exitOK, 1, "", []string{"reading its record", "web-1 runs on host-d, evacuated from host-s", "DATA WAS LOST: what was written to vdb"}},
		{"fenced first", "evacuate web-1 --fence --yes", "", false, nil, nil, exitOK, 1, "fence host-s", []string{"host-s is dead: fenced, asked for by user:"}},
		{"fencing is asked for", "evacuate web-1 --fence", "no\n", true, nil, nil, exitRefused, 0, "", []string{"ITS AGENT ANSWERS: host host-s is alive", "nothing was done"}},
		{"fencing fails", "evacuate web-1 --fence --yes", "", false, nil, fault.New(fault.Unavailable, "ipmi does not answer"), exitUnavailable, 0, "fence host-s", []string{"ipmi does not answer"}},
		{"said to be dead", "evacuate web-1 --host-is-dead --reason burnt", "", false, nil, nil, exitOK, 1, "declare host-s: burnt, false", []string{"by an operator's word"}},
		{"of an unknown guest", "evacuate web-9 --fence --yes", "", false, nil, nil, exitNotFound, 0, "", []string{"know no guest web-9"}},
		{"data would be lost, and nobody is asked", "evacuate web-1", "yes\n", false, []migration.Migration{accepted, lost}, nil, exitRefused, 1, "", []string{"would be made anew"}},
		{"data would be lost, and may not be", "evacuate web-1", "\n", true, []migration.Migration{accepted, lost}, nil, exitRefused, 1, "", []string{"DATA WOULD BE LOST. disk vda", "This cannot be undone"}},
		{"data would be lost, and may be", "evacuate web-1", "yes\n", true, []migration.Migration{accepted, lost}, nil, exitOK, 2, "", []string{"DATA WOULD BE LOST. disk vda", "web-1 runs on host-d"}},
		{"left alone", "evacuate web-1 --detach", "", false, nil, nil, exitOK, 1, "", []string{"accepted"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.answers {
				t.Setenv("BERTH_ASK", "1")
			}
			moves := &revived{scripted: scripted{then: map[string][]migration.Migration{"start": lives}}, first: tt.first}
			deaths := &dead{fail: tt.dies}
			run := served(t, api.Services{
				Migrations: moves, Deaths: deaths, Fleet: &records{}, Agent: known{hosts: []api.HostEntry{{Name: "host-s", Reachable: true}}},
			})
			code, out, errs := run(tt.line, tt.in)
			if code != tt.code || len(moves.got) != tt.asked || strings.Join(deaths.said, "; ") != tt.said {
				t.Errorf("exit code %d, want %d; asked %d times, want %d; said %q, want %q\n%s%s", code, tt.code, len(moves.got), tt.asked, deaths.said, tt.said, out, errs)
			}
			for _, want := range tt.says {
				if !strings.Contains(out+errs, want) {
					t.Errorf("nothing says %q:\n%s%s", want, out, errs)
				}
			}
			if len(moves.got) == 2 && (!moves.got[1].AcceptLoss || moves.got[0].AcceptLoss || moves.got[0].Migration == moves.got[1].Migration) {
				t.Errorf("asked for %+v", moves.got)
			}
		})
	}
}

// TestHostList_SaysWhoIsDeadAndWhatIsLeft holds the table, and the words of a host's end.
func TestHostList_SaysWhoIsDeadAndWhatIsLeft(t *testing.T) {
	hosts := api.HostList{Hosts: []api.HostEntry{
		{Name: "host-a", Address: "10.0.0.1:16515", Local: true, Reachable: true, Mode: "manage", Version: "0.9.0"},
		{Name: "host-b", Address: "10.0.0.2:16515", Error: "it did not answer in time"},
		{Name: "host-c", Address: "10.0.0.3:16515", Error: "there is no route to it"},
		{Name: "host-d", Address: "10.0.0.4:16515", Reachable: true, Mode: "manage", Version: "0.8.0", Disabled: "fans"},
	}}
	at := time.Now().Add(-3 * time.Hour) // told by the minute
	all := listedHosts{HostList: hosts, Fleet: &api.FleetHosts{Store: "etcd", Hosts: []api.FleetHost{
		{Name: "host-a", Lease: api.LeaseHeld, Guests: 4},
		{Name: "host-b", Lease: api.LeaseExpired, Guests: 3, Death: &fleet.Death{Host: "host-b", Proof: fleet.ProofFenced, By: "operator:alice", Because: "ipmi says off", At: at},
			ToEvacuate: []api.FleetGuest{{Name: "web-1"}, {Name: "db-1", Moving: "m-7"}}, ToCleanUp: []fleet.Evacuated{{Name: "app-1", To: "host-a"}},
			WithoutRecord: []api.FleetUnrecorded{{Instance: "22222222-2222-4222-8222-222222222222", Why: "Placement counts it there"}}},
		{Name: "host-c", Lease: api.LeaseExpired, Guests: 2},
		{Name: "host-e", SelfFence: true, Lease: api.LeaseExpired, Guests: 1},
		{Name: "host-f", Lease: api.LeaseHeld, ToCleanUp: []fleet.Evacuated{{Name: "old-1", To: "host-a"}}},
		{Name: "host-g", Death: &fleet.Death{Host: "host-g", Proof: fleet.ProofOperator, By: "user:root", Because: "scrapped", At: at, Forgotten: true}},
	}}}
	var b bytes.Buffer
	for _, l := range []listedHosts{all, {HostList: hosts, Skew: skewOf(hosts.Hosts)}, {HostList: hosts, FleetError: "etcd does not answer"}} {
		tabbed(t, &b, func(w *tabwriter.Writer) { hostListTable(w, l, 80) })
		b.WriteString("--\n")
	}
	tabbed(t, &b, func(w *tabwriter.Writer) {
		forgottenTable(w, api.Forgotten{Host: "host-b", Evacuations: []string{"m-1", "m-2"}, Abandoned: []api.FleetGuest{{Name: "web-1", Instance: "i-1"}}, ProviderRemoved: true})
	})
	b.WriteString("--\n")
	tabbed(t, &b, func(w *tabwriter.Writer) {
		doctorTable(w, api.Diagnosis{Host: "host-a", Health: api.HealthDegraded, Checks: []api.Check{
			{Name: "fleet store", Outcome: api.CheckOK, Detail: "etcd answers"},
			{Name: "fence hook", Outcome: api.CheckWrong, Detail: "there is none", Remedy: "put one into /etc/berth/hooks.d/fence"},
			{Name: "watchdog", Outcome: api.CheckUnset, Detail: "[fleet] self_fence is empty"},
		}}, screen.Style{Width: 100})
	})
	golden(t, "testdata/host-list.txt", b.String())
}

func TestHosts_AreFencedDeclaredForgottenAndListed(t *testing.T) {
	deaths, fleets := &dead{}, &records{hosts: []api.FleetHost{{Name: "host-s"}}}
	services := api.Services{Deaths: deaths, Fleet: fleets, Agent: known{hosts: []api.HostEntry{{Name: "host-a"}}}}
	run := served(t, services)
	for _, tt := range []struct {
		line string
		code int
		says string
	}{
		{"host fence host-s", exitUsage, "say --yes"},
		{"host fence host-s -y", exitOK, "host-s is dead: fenced"},
		{"host declare-dead host-s --reason burnt --force", exitOK, "by an operator's word"},
		{"host declare-dead host-s", exitUsage, "what you have checked"},
		{"host forget host-s --abandon-guests", exitOK, "old is given up"},
		{"host forget host-a", exitUsage, "it is the one that is asked"},
		{"host list", exitOK, "known by its record alone"},
		{"host list --json", exitOK, `"store": "etcd"`},
		{"doctor", exitRefused, "has no doctor"},
	} {
		code, out, errs := run(tt.line, "")
		if code != tt.code || !strings.Contains(out+errs, tt.says) {
			t.Errorf("%s: exit code %d, want %d, and %q:\n%s%s", tt.line, code, tt.code, tt.says, out, errs)
		}
	}
	if diff := cmp.Diff([]string{"fence host-s", "declare host-s: burnt, true"}, deaths.said); diff != "" || !cmp.Equal(fleets.forgot, []string{"host-s true"}) {
		t.Errorf("said (-want +got):\n%s; forgot %q", diff, fleets.forgot)
	}
	// Without records the list is what it was.
	fleets.err = fault.Refuse(fault.Forbidden, "read the records", fault.Reason{Code: "no_fleet_store", Message: "none are kept"})
	if code, out, errs := run("host list", ""); code != exitOK || strings.Contains(out, "RECORDS") || strings.Contains(out, "none are kept") {
		t.Errorf("without records: exit code %d\n%s%s", code, out, errs)
	}
	fleets.err = fault.New(fault.Unavailable, "etcd does not answer")
	if code, out, _ := run("host list", ""); code != exitOK || !strings.Contains(out, "nothing can be evacuated meanwhile: etcd does not answer") {
		t.Errorf("with records that do not answer: exit code %d\n%s", code, out)
	}
}
