package config_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
)

// TestDump_IsAFileThatMeansTheSame holds what is dumped against what is read from it.
func TestDump_IsAFileThatMeansTheSame(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "berth.toml"), `[agent]
name = "host-a"
[host]
dedicated_cpus = "2-3,6"
reserved_hugepages = [{ node = 1, size = "2MiB", count = 4 }]
[pci]
device_spec = [{ vendor_id = "8086", address = { bus = "3b" }, traits = "CUSTOM_A, CUSTOM_B" }]
alias = [{ name = "nic", vendor_id = "8086", product_id = "154c" }]
[devices]
mdev_types = [{ type = "nvidia-35", device_addresses = ["0000:3b:00.0"], max_instances = 2 }]
[Placement]
Token = "hush-hush"
[migration]
bandwidth = "20MiB/s"
near_weight_by_aggregate = { "11111111-1111-4111-8111-111111111111" = 2.5 }
[peers]
"host-b.example.org" = "192.0.2.2:16515"
[hooks."fence/10-ipmi"]
timeout = "30s"
`)
	late := write(t, path+".d/20-late.toml", "[agent]\nlog_level = \"debug\"\n")
	want, list, err := config.Dump(path)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := config.WriteSettings(&b, list); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hush") {
		t.Errorf("the token is shown:\n%s", &b)
	}
	again, err := config.Load(write(t, filepath.Join(t.TempDir(), "dumped.toml"), b.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, &b)
	}
	if got, err := want.Secrets(); err != nil || !slices.Equal(got, []string{"hush-hush"}) {
		t.Errorf("secrets %q, %v", got, err)
	}
	want.Placement.Token = config.Default().Placement.Token
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("the dump means something else (-want +got):\n%s\n%s", diff, &b)
	}
	from := map[string]string{}
	for _, s := range list {
		from[s.Key] = s.From
	}
	for key, file := range map[string]string{
		"agent.name": path, "agent.log_level": late, "agent.mode": "", "peers.host-b.example.org": path, "hooks.fence/10-ipmi": path, "placement.token": path,
	} {
		if got, ok := from[key]; got != file || !ok {
			t.Errorf("%s comes from %q, want %q", key, got, file)
		}
	}
}

// TestSecrets_AreThoseOfTheFilesToo: what a key's file has is no less secret than a key's value.
func TestSecrets_AreThoseOfTheFilesToo(t *testing.T) {
	c := config.Default()
	if got, err := c.Secrets(); err != nil || len(got) != 0 {
		t.Errorf("of the defaults: %q, %v", got, err)
	}
	c.Placement.Token, c.Fleet.EtcdUser = "hush-hush", "berth"
	c.Fleet.EtcdPasswordFile = write(t, filepath.Join(t.TempDir(), "etcd"), "  s3cret of etcd\n")
	if got, err := c.Secrets(); err != nil || !slices.Equal(got, []string{"hush-hush", "s3cret of etcd"}) {
		t.Errorf("%q, %v", got, err)
	}
	c.Fleet.EtcdPasswordFile += "-gone"
	if got, err := c.Secrets(); !errors.Is(err, fs.ErrNotExist) || !slices.Equal(got, []string{"hush-hush"}) {
		t.Errorf("of a file that is gone: %q, %v", got, err)
	}
}

// TestDump_KnowsItsSecrets fails when a key is made whose name says that its value is one.
func TestDump_KnowsItsSecrets(t *testing.T) {
	_, list, err := config.Dump(write(t, filepath.Join(t.TempDir(), "berth.toml"), ""))
	if err != nil {
		t.Fatal(err)
	}
	if want := reflect.TypeFor[config.Config]().NumField(); len(list) < want {
		t.Fatalf("only %d keys for %d sections", len(list), want)
	}
	for _, s := range list {
		named := strings.Contains(s.Key, "token") || strings.Contains(s.Key, "password") || strings.Contains(s.Key, "secret")
		if named && !strings.HasSuffix(s.Key, "_file") && !s.Secret {
			t.Errorf("%s would be shown", s.Key)
		}
	}
}
