package options_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration/options"
)

var update = flag.Bool("update", false, "write what is generated")

// example is a value of each option that is not its default, as people write it.
var example = map[string]string{
	"bandwidth_bytes": "20MiB/s", "postcopy_bandwidth_bytes": "1GiB/s", "available_switchover_bandwidth_bytes": "1000000B/s",
	"max_downtime": "800ms", "downtime_steps": "10", "downtime_delay": "30s",
	"auto_converge": "on", "auto_converge_initial": "30%", "auto_converge_increment": "20%",
	"parallel_connections": "4", "zero_copy": "on", "compression": "xbzrle,mt", "xbzrle_cache_bytes": "64MiB",
	"compression_mt_level": "5", "compression_mt_threads": "8", "compression_mt_dthreads": "2", "compression_zlib_level": "6", "compression_zstd_level": "19",
	"timeout": "10m0s", "timeout_per_gib": "13m20s", "timeout_action": "force", "stall_timeout": "1m0s",
	"post_copy": "on", "copy_storage": "inc", "copy_storage_synchronous_writes": "on", "migrate_disks_detect_zeroes": "on",
	"schedule": "2:max-downtime=800ms, 4:abort", "observe_schedule": "on",
}

func TestTable_HasEveryField(t *testing.T) {
	fields := reflect.TypeFor[options.Live]()
	rows := options.All()
	if len(rows) != fields.NumField() {
		t.Errorf("%d rows for %d fields", len(rows), fields.NumField())
	}
	for i := range min(len(rows), fields.NumField()) {
		field, row := fields.Field(i), rows[i]
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if row.Name != name {
			t.Errorf("row %d is %s, the field there is %s in JSON", i, row.Name, name)
		}
		var l options.Live
		if err := options.Set(&l, row.Name, example[row.Name]); err != nil {
			t.Errorf("%s: %v", row.Name, err)
			continue
		}
		for j := range fields.NumField() {
			if set := !reflect.ValueOf(l).Field(j).IsZero(); set != (i == j) {
				t.Errorf("setting %s: field %s is set: %v", row.Name, fields.Field(j).Name, set)
			}
		}
		if got := row.Text(l); got != example[row.Name] {
			t.Errorf("%s: %q reads back as %q", row.Name, example[row.Name], got)
		}
	}
}

func TestTable_NamesAreUniqueAndWhole(t *testing.T) {
	seen := map[string]string{}
	for _, o := range options.All() {
		if o.Flag == "" || o.Key == "" || o.Help == "" || o.Kind == "" {
			t.Errorf("%s has no flag, key, kind or help", o.Name)
		}
		if strings.ContainsAny(o.Flag, "_ ") || strings.ContainsAny(o.Key, "- ") || strings.Contains(o.Help, "|") {
			t.Errorf("%s: flag %q, key %q, or its help, is not written as the others", o.Name, o.Flag, o.Key)
		}
		for _, name := range []string{o.Name, o.Flag, o.Key} {
			if other := seen[name]; other != "" && other != o.Name {
				t.Errorf("%s is %s and %s", name, other, o.Name)
			}
			seen[name] = o.Name
			if found, known := options.Find(name); !known || found.Name != o.Name {
				t.Errorf("Find(%q) gives %q", name, found.Name)
			}
		}
		if o.Text(options.Default()) == "" && o.Unsaid == "" {
			t.Errorf("%s has neither a default nor words for none", o.Name)
		}
	}
}

func TestSet_ReadsWhatPeopleWrite(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       options.Live
	}{
		{"bandwidth", " 20MB/s ", options.Live{Bandwidth: 20e6}},
		{"bandwidth", "unlimited", options.Live{Bandwidth: options.NoRate}},
		{"timeout", "0", options.Live{Timeout: options.NoTime}},
		{"schedule", "none", options.Live{Schedule: "none"}},
		{"auto-converge", "Yes", options.Live{AutoConverge: options.On}},
		{"postcopy", "0", options.Live{PostCopy: options.Off}},
		{"auto-converge-initial", "30 %", options.Live{AutoConvergeInitial: 30}},
		{"comp-methods", "mt, xbzrle", options.Live{Compression: []string{"mt", "xbzrle"}}},
		{"timeout_action", "post_copy", options.Live{TimeoutAction: options.ActionPostCopy}},
	} {
		var got options.Live
		if err := options.Set(&got, tt.name, tt.text); err != nil {
			t.Errorf("%s %q: %v", tt.name, tt.text, err)
		} else if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s %q (-want +got):\n%s", tt.name, tt.text, diff)
		}
	}
}

func TestSet_RefusesWithWhatIsWanted(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"bandwith", "1", "bandwith is no option of a live migration"},
		{"bandwidth", "fast", `bandwidth "fast": want a rate such as 20MiB/s or 1GiB/s, or none`},
		{"bandwidth", "99999999999GiB/s", `bandwidth "99999999999GiB/s": want a rate such as 20MiB/s or 1GiB/s, or none`},
		{"max-downtime", "0s", `max-downtime "0s": want a time from 1ms to 33m20s`},
		{"max-downtime", "none", `max-downtime "none": want a time from 1ms to 33m20s`},
		{"timeout", "-1ns", `timeout "-1ns": want a time from 1ms to 720h0m0s, or none`},
		{"parallel-connections", "256", `parallel-connections "256": want a number from 1 to 255`},
		{"auto-converge-increment", "100", `auto-converge-increment "100": want per cent from 1 to 99`},
		{"comp-xbzrle-cache", "3MiB", `comp-xbzrle-cache "3MiB": want a power of two from 4KiB to 256GiB`},
		{"comp-xbzrle-cache", "4MiB/s", `comp-xbzrle-cache "4MiB/s": want a power of two from 4KiB to 256GiB`},
		{"comp-methods", "xbzrle,xbzrle", `comp-methods "xbzrle,xbzrle": want none, or some of xbzrle, mt, zlib, zstd`},
		{"comp-methods", "none,mt", `comp-methods "none,mt": want none, or some of xbzrle, mt, zlib, zstd`},
		{"copy-storage", "some", `copy-storage "some": want one of all, inc, none`},
		{"schedule", "start:throttle=30, 2:wait, x", `schedule "start:throttle=30, 2:wait, x": want a schedule such as 2:max-downtime=2s, 4:abort, or none: step "2:wait": no action "wait": want throttle, max-downtime, post-copy, suspend or abort; step "x": want STALLS:ACTION or start:throttle`},
		{"zerocopy", "perhaps", `zerocopy "perhaps": want on or off`},
		{"timeout-action", "", `timeout-action "": want one of abort, suspend, post-copy, force`},
	} {
		was := options.Live{Timeout: time.Second, Parallel: 3, Compression: []string{"mt"}}
		got := was
		err := options.Set(&got, tt.name, tt.text)
		if fault.KindOf(err) != fault.Invalid || err.Error() != tt.want {
			t.Errorf("%s %q: %v, want %s", tt.name, tt.text, err, tt.want)
		}
		if diff := cmp.Diff(was, got); diff != "" {
			t.Errorf("%s %q was refused and changed something:\n%s", tt.name, tt.text, diff)
		}
	}
}

// TestMerge_Golden has a line of each merge: who says what, and what comes out.
func TestMerge_Golden(t *testing.T) {
	read := func(text string) options.Live {
		var l options.Live
		for part := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(part, "=")
			if err := options.Set(&l, name, value); err != nil {
				t.Fatal(err)
			}
		}
		return l
	}
	var b strings.Builder
	for _, tt := range []struct{ request, flavor, config string }{ // schedules without blanks
		{"", "", ""},
		{"", "", "max-downtime=500ms stall-timeout=15s copy-storage=all"},
		{"", "", "bandwidth=100MiB/s max-downtime=300ms"},
		{"", "bandwidth=50MiB/s", "bandwidth=100MiB/s max-downtime=300ms"},
		{"bandwidth=10MiB/s", "bandwidth=50MiB/s", "bandwidth=100MiB/s max-downtime=300ms"},
		{"bandwidth=none timeout=none schedule=none comp-methods=none", "timeout=1m", "bandwidth=100MiB/s timeout=10m schedule=4:abort comp-methods=xbzrle"},
		{"postcopy=off", "postcopy=on timeout-action=force", "timeout=5m timeout-per-gib=1m"},
		{"", "auto-converge=on auto-converge-initial=40", "auto-converge=on auto-converge-increment=15"},
		{"max-downtime=500ms", "", "max-downtime=2s downtime-steps=5"},
		// What the first one says excludes what a later one does.
		{"comp-methods=xbzrle", "", "parallel-connections=4"},
		{"parallel-connections=1", "zerocopy=on", "parallel-connections=4"},
		{"auto-converge=off", "", "auto-converge=on auto-converge-initial=30 schedule=start:throttle,3:abort"},
		{"postcopy=off", "postcopy=on", "schedule=2:max-downtime=2s,3:post-copy,4:abort"},
		{"timeout=none", "", "timeout=5m timeout-action=suspend"},
		{"timeout-action=suspend", "timeout=none", "timeout=5m"},
		{"copy-storage=none", "copy-storage-synchronous-writes=on", "migrate-disks-detect-zeroes=on"},
	} {
		live, from := options.Merge(
			options.Layer{From: options.FromRequest, Live: read(tt.request)},
			options.Layer{From: options.FromFlavor, Live: read(tt.flavor)},
			options.Layer{From: options.FromConfig, Live: read(tt.config)},
		)
		b.WriteString("request: " + tt.request + "\nflavor:  " + tt.flavor + "\nconfig:  " + tt.config + "\n")
		for _, v := range options.Effective(live, from) {
			if v.From != options.FromDefault {
				b.WriteString("  " + v.Flag + " " + v.Value + "  " + string(v.From) + "\n")
			}
		}
		b.WriteString("  defaults:")
		for _, o := range options.All() {
			if from[o.Name] == options.FromDefault {
				b.WriteString(" " + o.Flag + "=" + o.Text(live))
			}
		}
		b.WriteString("\n\n")
		if bad := live.ValidateFrom(from); len(bad) > 0 {
			t.Errorf("%+v: %+v", tt, bad)
		}
	}
	golden(t, filepath.Join("testdata", "merges.txt"), b.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what is generated; go test ./migration/options -update writes it (-want +got):\n%s", path, diff)
	}
}

func TestMerge_LeavesTheLayersAlone(t *testing.T) {
	request := options.Live{Compression: []string{"xbzrle", "mt"}}
	live, _ := options.Merge(options.Layer{From: options.FromRequest, Live: request})
	live.Compression[0] = "zlib"
	if request.Compression[0] != "xbzrle" {
		t.Error("who writes to what was merged writes to the request")
	}
}

func TestDefault_IsSound(t *testing.T) {
	if bad := options.Default().Validate(); len(bad) > 0 {
		t.Errorf("%+v", bad)
	}
	live, from := options.Merge()
	if diff := cmp.Diff(options.Default(), live); diff != "" {
		t.Errorf("of nobody's words comes (-default +merged):\n%s", diff)
	}
	for name, who := range from {
		if who != options.FromDefault {
			t.Errorf("%s is from %s", name, who)
		}
	}
}

func TestLive_ValidateRefusesWhatCannotBeTogether(t *testing.T) {
	ladder := options.Live{DowntimeSteps: 5}
	for _, tt := range []struct {
		name string
		live options.Live
		want []string
	}{
		{"nothing", options.Live{}, nil},
		{"parallel and xbzrle", options.Live{Parallel: 2, Compression: []string{"xbzrle"}}, []string{"compression_parallel"}},
		{"parallel and both of one connection", options.Live{Parallel: 2, Compression: []string{"xbzrle", "mt"}}, []string{"compression_parallel", "compression_parallel"}},
		{"xbzrle and mt", options.Live{Parallel: 1, Compression: []string{"xbzrle", "mt"}}, nil},
		{"zstd by one connection", options.Live{Compression: []string{"zstd"}}, []string{"compression_single"}},
		{"zlib and zstd", options.Live{Parallel: 2, Compression: []string{"zlib", "zstd"}}, []string{"compression_two"}},
		{"zstd", options.Live{Parallel: 2, Compression: []string{"zstd"}, ZstdLevel: 3}, nil},
		{"a level of another method", options.Live{Parallel: 2, Compression: []string{"zstd"}, ZlibLevel: 3}, []string{"compression_unused"}},
		{"a cache without xbzrle", options.Live{XBZRLECache: 64 << 20}, []string{"compression_unused"}},
		{"zero copy by one connection", options.Live{ZeroCopy: options.On, Parallel: 1}, []string{"zero_copy_single"}},
		{"zero copy and compression", options.Live{ZeroCopy: options.On, Parallel: 2, Compression: []string{"zlib"}}, []string{"zero_copy_compression"}},
		{"zero copy", options.Live{ZeroCopy: options.On, Parallel: 2}, nil},
		{"zero copy and post-copy, which is a job of its own", options.Live{ZeroCopy: options.On, Parallel: 2, PostCopy: options.On}, nil},
		{"increment alone", options.Live{AutoConvergeIncrement: 10}, []string{"auto_converge_off"}},
		{"both, and off", options.Live{AutoConverge: options.Off, AutoConvergeInitial: 10, AutoConvergeIncrement: 10}, []string{"auto_converge_off", "auto_converge_off"}},
		{"auto-converge", options.Live{AutoConverge: options.On, AutoConvergeInitial: 99}, nil},
		{"a ladder to nowhere", ladder, []string{"downtime_ladder"}},
		{"an action without a timeout", options.Live{TimeoutAction: options.ActionSuspend}, []string{"timeout_action_idle"}},
		{"force", options.Live{TimeoutAction: options.ActionForce, Timeout: time.Minute}, nil},
		{"post-copy at the deadline", options.Live{TimeoutAction: options.ActionPostCopy, TimeoutPerGiB: time.Minute}, []string{"post_copy_not_permitted"}},
		{"post-copy at the deadline, permitted", options.Live{TimeoutAction: options.ActionPostCopy, TimeoutPerGiB: time.Minute, PostCopy: options.On}, nil},
		{"synchronous writes of nothing", options.Live{CopyStorage: "none", SynchronousWrites: options.On, DetectZeroes: options.Off}, []string{"no_storage_copy"}},
		{"bounds", options.Live{Parallel: 256, Timeout: -1, MTLevel: -3, PostCopy: "maybe", TimeoutAction: "wait", Compression: []string{"lzma"}, XBZRLECache: 5000, Bandwidth: options.NoRate},
			[]string{"option_value", "option_value", "option_value", "option_value", "option_value", "option_value", "option_value", "option_value"}},
		{"no schedule", options.Live{Schedule: "2:wait"}, []string{"option_value"}},
		{"post-copy by schedule", options.Live{Schedule: "2:post-copy"}, []string{"post_copy_not_permitted"}},
		{"post-copy by schedule, permitted", options.Live{Schedule: "2:post-copy", PostCopy: options.On}, nil},
		{"a throttle that is off", options.Live{Schedule: "start:throttle=30", AutoConverge: options.Off}, []string{"throttle_off"}},
		{"a throttle", options.Live{Schedule: "start:throttle=30, 4:abort"}, nil},
	} {
		var got []string
		for _, r := range tt.live.Validate() {
			got = append(got, r.Code)
			if r.Message == "" || r.Change == "" {
				t.Errorf("%s: reason %+v says not what to change", tt.name, r)
			}
		}
		slices.Sort(got)
		slices.Sort(tt.want)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%+v", tt.name, diff, tt.live.Validate())
		}
	}
}

func TestLive_ValidateNamesWhoSaidWhat(t *testing.T) {
	live, from := options.Merge(options.Layer{From: options.FromRequest, Live: options.Live{Compression: []string{"xbzrle"}, Parallel: 4}})
	bad := live.ValidateFrom(from)
	if want := "compression xbzrle is of one connection, and 4 are asked for (comp-methods: request, parallel-connections: request)"; len(bad) != 1 || bad[0].Message != want {
		t.Errorf("%+v, want %s", bad, want)
	}
}

func TestFromSpecs_KnowsItsOwnAndNoOthers(t *testing.T) {
	live, bad := options.FromSpecs(map[string]string{
		"berth:live_migration_bandwidth": "20MiB/s", "berth:live_migration_post_copy": "true", "berth:live_migration_schedule": "4:abort",
		"hw:cpu_policy": "dedicated", "quota:vif_outbound_average": "1000", "berthing": "x",
	})
	if want := (options.Live{Bandwidth: 20 << 20, PostCopy: options.On, Schedule: "4:abort"}); len(bad) > 0 || !reflect.DeepEqual(live, want) {
		t.Errorf("read %+v, %+v; want %+v", live, bad, want)
	}
	live, bad = options.FromSpecs(map[string]string{
		"berth:live_migration_bandwith": "1", "berth:other": "1", "berth:live_migration_parallel_connections": "many", "berth:live_migration_timeout": "1m",
	})
	var codes []string
	for _, r := range bad {
		codes = append(codes, r.Code+" "+r.Have+": "+r.Message)
	}
	want := []string{
		"extra_spec_unknown berth:live_migration_bandwith: no such extra spec",
		"extra_spec_value berth:live_migration_parallel_connections: \"many\": want a number from 1 to 255",
		"extra_spec_unknown berth:other: no such extra spec",
	}
	if diff := cmp.Diff(want, codes); diff != "" || live.Timeout != time.Minute {
		t.Errorf("read %+v (-want +got):\n%s", live, diff)
	}
}

func TestFromSpecs_EveryOption(t *testing.T) {
	specs := map[string]string{}
	var want options.Live
	for _, o := range options.All() {
		specs[options.SpecPrefix+o.Key] = example[o.Name]
		if err := options.Set(&want, o.Name, example[o.Name]); err != nil {
			t.Fatal(err)
		}
	}
	got, bad := options.FromSpecs(specs)
	if diff := cmp.Diff(want, got); diff != "" || len(bad) > 0 {
		t.Errorf("%+v (-want +got):\n%s", bad, diff)
	}
}

func TestOffline_KeepsTheBandwidth(t *testing.T) {
	request := options.Live{Bandwidth: 5, Timeout: time.Minute, PostCopy: options.On}
	live, from := options.Offline(options.Merge(options.Layer{From: options.FromRequest, Live: request}))
	if diff := cmp.Diff(options.Live{Bandwidth: 5}, live); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]options.From{"bandwidth_bytes": options.FromRequest}, from); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"timeout", "postcopy"}, options.OfGuestsThatRun(request)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestLive_JSONOfOlderAgents reads what agents wrote that knew six options.
func TestLive_JSONOfOlderAgents(t *testing.T) {
	var got options.Live
	text := `{"bandwidth_bytes":1048576,"max_downtime":500000000,"timeout":60000000000,"timeout_action":"abort","stall_timeout":15000000000,"parallel_connections":2}`
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := options.Live{Bandwidth: 1 << 20, MaxDowntime: 500 * time.Millisecond, Timeout: time.Minute, TimeoutAction: options.ActionAbort, StallTimeout: 15 * time.Second, Parallel: 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if bad := got.Validate(); len(bad) > 0 {
		t.Errorf("%+v", bad)
	}
}

func TestDocs_HaveTheTable(t *testing.T) {
	golden(t, filepath.Join("..", "..", "docs", "live-migration-options.md"), options.Markdown())
}
