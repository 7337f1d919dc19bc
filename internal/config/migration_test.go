package config_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration/options"
)

func load(t *testing.T, text string) (config.Config, error) {
	t.Helper()
	return config.Load(write(t, filepath.Join(t.TempDir(), "berth.toml"), text))
}

// TestMigration_EveryOptionHasItsKey writes each option into a file of its own.
func TestMigration_EveryOptionHasItsKey(t *testing.T) {
	// The others must be there for some to make sense.
	with := map[string]string{
		"auto_converge_initial": "auto_converge = true", "auto_converge_increment": "auto_converge = true",
		"zero_copy": "parallel_connections = 2", "xbzrle_cache": `compression = ["xbzrle"]`,
		"compression_mt_level": `compression = ["mt"]`, "compression_mt_threads": `compression = ["mt"]`, "compression_mt_dthreads": `compression = ["mt"]`,
		"compression_zlib_level": "parallel_connections = 2\ncompression = [\"zlib\"]", "compression_zstd_level": "parallel_connections = 2\ncompression = [\"zstd\"]",
		"timeout_action": `timeout = "5m"`,
	}
	for _, o := range options.All() {
		value, want := "", options.Live{}
		switch o.Kind {
		case options.KindNumber, options.KindPercent:
			value = "3"
		case options.KindSwitch:
			value = "true"
		case options.KindRate:
			value = `"20MiB/s"`
		case options.KindSize:
			value = `"64MiB"`
		case options.KindDuration:
			value = `"7s"`
		case options.KindWord:
			value = `"` + o.Words[1] + `"`
		case options.KindWords:
			value = `["` + o.Words[1] + `"]`
		case options.KindText:
			value = `"4:abort"`
		}
		c, err := load(t, "[migration]\n"+o.Key+" = "+value+"\n"+with[o.Key])
		if err != nil {
			t.Errorf("%s: %v", o.Key, err)
			continue
		}
		if err := options.Set(&want, o.Key, strings.Trim(value, `"[]`)); err != nil {
			t.Fatal(err)
		}
		if got := o.Text(c.Migration.Live()); got != o.Text(want) {
			t.Errorf("%s = %s is %q to a move, want %q", o.Key, value, got, o.Text(want))
		}
	}
}

func TestMigration_DefaultsAreNobodysWord(t *testing.T) {
	live, from := options.Merge(options.Layer{From: options.FromConfig, Live: config.Default().Migration.Live()})
	if diff := cmp.Diff(options.Default(), live); diff != "" {
		t.Errorf("(-default +merged):\n%s", diff)
	}
	for name, who := range from {
		if who != options.FromDefault {
			t.Errorf("%s is from %s", name, who)
		}
	}
}

func TestMigration_RefusesOptionsThatCannotBe(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"parallel_connections = 300\nauto_converge_initial = -1\nmax_downtime = \"1h\"", []string{
			`migration.max_downtime = "1h0m0s": want a time from 1ms to 33m20s`, "migration.auto_converge_initial = -1%: want per cent from 1 to 99", "migration.parallel_connections = 300: want a number from 1 to 255",
		}},
		{`stall_timeout = "0s"`, []string{`migration.stall_timeout = "0s": want at least 1s`}},
		{`stall_timeout = "-1s"`, []string{`migration.stall_timeout = "-1s": want a time from 1ms to 24h0m0s`}},
		{"timeout = \"-1ns\"\nbandwidth = \"0\"", []string{"migration.timeout = \"none\": want a time from 1ms to 720h0m0s, or none"}},
		{"max_per_link = -1", []string{"migration.max_per_link = -1: want a number from 1 to 1000, or 0 for no bound"}},
		{`compression = ["lzma"]`, []string{`migration.compression = "lzma": want none, or some of xbzrle, mt, zlib, zstd`}},
		{`schedule = "start:abort"`, []string{`migration.schedule = "start:abort": want a schedule such as 2:max-downtime=2s, 4:abort, or none: step "start:abort": at the start there is throttle alone`}},
		{"parallel_connections = 2\ncompression = [\"xbzrle\"]", []string{"[migration]: compression xbzrle is of one connection, and 2 are asked for"}},
		{`schedule = "2:post-copy"`, []string{"[migration]: the schedule has post-copy, which is not permitted"}},
		{`timeout_action = "force"`, []string{"[migration]: timeout action force is of a timeout, and there is none"}},
	} {
		_, err := load(t, "[migration]\n"+tt.text)
		var got []string
		for _, r := range fault.ReasonsOf(err) {
			got = append(got, r.Message)
			if r.Code != "config_value" || r.Change == "" {
				t.Errorf("%q: reason %+v", tt.text, r)
			}
		}
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", tt.text, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.text, diff)
		}
	}
}

// TestMigration_KeysOfBeforeMeanTheSame is a file of an agent that knew four options.
func TestMigration_KeysOfBeforeMeanTheSame(t *testing.T) {
	c, err := load(t, "[migration]\nbandwidth = \"20MiB/s\"\nmax_downtime = \"0s\"\ntimeout = \"10m\"\nstall_timeout = \"30s\"\n")
	if err != nil {
		t.Fatal(err)
	}
	live, from := options.Merge(options.Layer{From: options.FromConfig, Live: c.Migration.Live()})
	want := options.Default()
	want.Bandwidth, want.Timeout, want.StallTimeout = 20<<20, 10*time.Minute, 30*time.Second
	if diff := cmp.Diff(want, live); diff != "" || from["max_downtime"] != options.FromDefault || from["timeout"] != options.FromConfig {
		t.Errorf("from %v (-want +got):\n%s", from, diff)
	}
}

func TestMetrics_ListenIsAnAddressOrNone(t *testing.T) {
	for text, sound := range map[string]bool{`""`: true, `"[::]:9178"`: true, `":9178"`: true, `"9178"`: false, `"127.0.0.1:many"`: false} {
		_, err := load(t, "[metrics]\nlisten = "+text)
		if (err == nil) != sound {
			t.Errorf("listen = %s: %v", text, err)
		}
	}
}
