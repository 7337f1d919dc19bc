package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
	"berth/topology"
)

// mover is the options' part of an agent with that configuration.
func mover(t *testing.T, m config.Migration) migrationService {
	t.Helper()
	c := config.Default()
	c.Migration = m
	a := &Agent{log: slog.New(slog.DiscardHandler)}
	a.conf.Store(&c)
	return migrationService{a}
}

func TestMoves_OptionsAreTheRequestsThenTheFlavorsThenTheConfigurations(t *testing.T) {
	m := config.Default().Migration
	m.Bandwidth, m.Timeout, m.AutoConverge = 100<<20, config.Duration(time.Minute), true
	s := mover(t, m)
	f := topology.Flavor{Name: "busy", ExtraSpecs: map[string]string{
		"berth:live_migration_bandwidth": "50MiB/s", "berth:live_migration_timeout": "10m", "berth:live_migration_of_tomorrow": "yes", "hw:cpu_policy": "shared",
	}}
	live, from, err := s.options("migrate web", migration.TypeLiveMigration, f, migration.Options{Bandwidth: 10 << 20})
	if err != nil {
		t.Fatal(err)
	}
	want := options.Default()
	want.Bandwidth, want.Timeout, want.AutoConverge = 10<<20, 10*time.Minute, options.On
	if diff := cmp.Diff(want, live); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, who := range map[string]options.From{
		"bandwidth_bytes": options.FromRequest, "timeout": options.FromFlavor, "auto_converge": options.FromConfig, "max_downtime": options.FromDefault,
	} {
		if from[name] != who {
			t.Errorf("%s is from %q, want %s", name, from[name], who)
		}
	}

	live, from, err = s.options("migrate web", migration.TypeMigration, f, migration.Options{})
	if err != nil || !cmp.Equal(live, migration.Options{Bandwidth: 50 << 20}) || !cmp.Equal(from, map[string]options.From{"bandwidth_bytes": options.FromFlavor}) {
		t.Errorf("of a guest that is off: %+v from %v, %v", live, from, err)
	}
}

func TestMoves_OptionsThatCannotBeTogetherNameWhoSaidThem(t *testing.T) {
	s := mover(t, config.Default().Migration)
	f := topology.Flavor{Name: "odd", ExtraSpecs: map[string]string{"berth:live_migration_schedule": "3:post-copy"}}
	_, _, err := s.options("migrate web", migration.TypeLiveMigration, f, migration.Options{})
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the schedule has post-copy, which is not permitted (schedule: flavor)") {
		t.Errorf("error %v", err)
	}
	if _, _, err := s.options("migrate web", migration.TypeMigration, f, migration.Options{}); err != nil {
		t.Errorf("a guest that is off is no matter of schedules: %v", err)
	}
	if _, _, err := s.options("migrate web", migration.TypeLiveMigration, f, migration.Options{PostCopy: options.On}); err != nil {
		t.Errorf("a request that permits it: %v", err)
	}
}

func TestReadFlavors_RefusesOptionsThatThereAreNot(t *testing.T) {
	dir := t.TempDir()
	for name, specs := range map[string]string{
		"good": `"berth:live_migration_post_copy" = "on"`, "bad": `"berth:live_migration_postcopy" = "on"`, "worse": `"berth:live_migration_timeout" = "soon"`,
	} {
		text := "name = \"" + name + "\"\nvcpus = 1\nmemory_mb = 64\n[extra_specs]\n" + specs + "\n"
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read, err := readFlavors(dir)
	var got []string
	for _, r := range fault.ReasonsOf(err) {
		got = append(got, strings.TrimPrefix(r.Message, dir+"/"))
	}
	want := []string{
		"bad.toml: extra_specs: berth:live_migration_postcopy: no such extra spec",
		`worse.toml: extra_specs: berth:live_migration_timeout: "soon": want a time from 1ms to 720h0m0s, or none`,
	}
	if diff := cmp.Diff(want, got); diff != "" || len(read) != 1 {
		t.Errorf("read %v (-want +got):\n%s", read, diff)
	}
}

// TestMoves_RecordWhatTheyGoBy has a guest moved between two hosts, and asks the migration.
func TestMoves_RecordWhatTheyGoBy(t *testing.T) {
	t.Parallel()
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		o.Config.Migration.Bandwidth = 100 << 20
	})
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start = "web", p.kernel, true
	r.Flavor = topology.Flavor{
		Name: "busy", VCPUs: 1, MemoryMB: 128, DiskGB: 1,
		ExtraSpecs: map[string]string{"berth:live_migration_max_downtime": "700ms", "berth:live_migration_bandwidth": "90MiB/s"},
	}
	in, err := p.clients["host-a"].CreateInstance(t.Context(), r)
	p.must(err)
	plan, err := p.clients["host-a"].Plan(t.Context(), api.PlanRequest{Instance: in.UUID})
	p.must(err)
	if plan.Options.MaxDowntime != 700*time.Millisecond || plan.OptionsFrom["bandwidth_bytes"] != options.FromFlavor {
		t.Errorf("the plan goes by %+v, from %v", plan.Options, plan.OptionsFrom)
	}
	p.fleet.Manual()
	m, err := p.clients["host-a"].Migrate(t.Context(), api.Migrate{Instance: in.UUID, Destination: "host-b", Options: migration.Options{Bandwidth: 80 << 20}})
	p.must(err)
	want := options.Default()
	want.Bandwidth, want.MaxDowntime = 80<<20, 700*time.Millisecond
	if diff := cmp.Diff(want, m.Options); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m.OptionsFrom["bandwidth_bytes"] != options.FromRequest || m.OptionsFrom["max_downtime"] != options.FromFlavor || m.OptionsFrom["stall_timeout"] != options.FromDefault {
		t.Errorf("from %v", m.OptionsFrom)
	}
	if m := p.finish("host-a", m.UUID); m.Outcome != migration.OutcomeCompleted || !cmp.Equal(m.Options, want) {
		t.Errorf("in the end it is %s, by %+v", m.Outcome, m.Options)
	}
}
