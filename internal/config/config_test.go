package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/stream"
	"berth/topology"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSample_EqualsTheDefaultsAndNamesEveryKey(t *testing.T) {
	sample := filepath.Join("..", "..", "packaging", "berth.toml")
	got, err := config.Load(sample)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config.Default(), got); diff != "" {
		t.Errorf("the sample says other things than the defaults (-want +got):\n%s", diff)
	}
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]map[string]any
	if err := toml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	root := reflect.TypeFor[config.Config]()
	for i := range root.NumField() {
		section := root.Field(i)
		if section.Type.Kind() != reflect.Struct {
			continue
		}
		for j := range section.Type.NumField() {
			name := section.Type.Field(j).Tag.Get("toml")
			if _, ok := tree[section.Tag.Get("toml")][name]; !ok {
				t.Errorf("the sample does not document [%s] %s", section.Tag.Get("toml"), name)
			}
		}
	}
}

func TestLoad_DropInsLayOverTheFileInNameOrder(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "berth.toml"), "[agent]\nname = \"host-a\"\nmode = \"manage\"\n[peers]\n\"host-b\" = \"192.0.2.2:16515\"\n")
	write(t, path+".d/20-late.toml", "[agent]\nlog_level = \"debug\"\n[peers]\n\"host-c\" = \"192.0.2.3:16515\"\n")
	write(t, path+".d/10-early.toml", "[agent]\nlog_level = \"error\"\n[migration]\nbandwidth = \"20MiB/s\"\n")
	write(t, path+".d/notes.txt", "not read")
	got, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Agent.Name, want.Agent.Mode, want.Agent.LogLevel = "host-a", config.Manage, "debug"
	want.Migration.Bandwidth = 20 << 20
	want.Peers = map[string]string{"host-b": "192.0.2.2:16515", "host-c": "192.0.2.3:16515"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLoad_HostAndDevices(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "berth.toml"), `
[host]
dedicated_cpus = "2-3,8"
shared_cpus = " 0-1 "
reserved_hugepages = [{ node = 0, size = "1GB", count = 4 }, { node = 1, size = 2048, count = 512 }, { node = 1, size = "16384", count = 1 }]
[pci]
device_spec = [{ vendor_id = "8086" }, { vendor_id = "15b3" }]
[[pci.alias]]
name = "nic"
vendor_id = "15b3"
product_id = "101e"
live_migratable = "yes"
`)
	// A drop-in's list stands instead of the file's.
	write(t, path+".d/10-pci.toml", `[[pci.device_spec]]
address = { bus = "3b", function = "[0-3]" }
managed = "no"
`)
	got, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Host.DedicatedCPUs, want.Host.SharedCPUs = topology.NewCPUSet(2, 3, 8), topology.NewCPUSet(0, 1)
	want.Host.ReservedPages = []config.ReservedPages{
		{Node: 0, Size: 1 << 20, Count: 4}, {Node: 1, Size: 2 << 10, Count: 512}, {Node: 1, Size: 16 << 10, Count: 1},
	}
	want.PCI.DeviceSpec = []pci.Spec{{Address: map[string]any{"bus": "3b", "function": "[0-3]"}, Managed: "no"}}
	want.PCI.Alias = []flavor.Alias{{Name: "nic", VendorID: "15b3", ProductID: "101e", LiveMigratable: "yes"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSample_ItsExamplesAreSound takes the examples out of the comments.
func TestSample_ItsExamplesAreSound(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "packaging", "berth.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, key := range []string{"reserved_hugepages", "device_spec", "alias", "mdev_types"} {
		_, example, ok := strings.Cut(string(text), "\n# "+key+" = [\n")
		example, _, closed := strings.Cut(example, "\n# ]\n")
		if !ok || !closed {
			t.Fatalf("no example of %s", key)
		}
		section := map[string]string{"reserved_hugepages": "[host]\n", "device_spec": "[pci]\n", "mdev_types": "[devices]\n"}[key]
		out = append(out, section+key+" = [\n"+strings.ReplaceAll("\n"+example, "\n# ", "\n")+"\n]\n")
	}
	c, err := config.Load(write(t, filepath.Join(t.TempDir(), "berth.toml"), strings.Join(out, "")))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Host.ReservedPages) != 2 || len(c.PCI.DeviceSpec) != 3 || len(c.PCI.Alias) != 1 || len(c.Devices.MdevTypes) != 2 {
		t.Errorf("read %+v, %+v, %+v", c.Host.ReservedPages, c.PCI, c.Devices)
	}
}

func TestPlacement_EndpointIsTheCataloguesOnlyWithKeystone(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    config.DefaultPlacement,
		"[placement]\nurl = \"http://p/x\"\n": "http://p/x",
		"[placement]\nauth = \"keystone\"\n":  "",
		"[placement]\nauth = \"keystone\"\ncloud = \"mine\"\nregion = \"one\"\nurl = \"https://p\"\n": "https://p",
	} {
		c, err := config.Load(write(t, filepath.Join(t.TempDir(), "berth.toml"), text))
		if got := c.Placement.Endpoint(); err != nil || got != want {
			t.Errorf("%q: endpoint %q, want %q; %v", text, got, want, err)
		}
	}
}

func TestLoad_RefusesWithFileLineAndKey(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // each in its own reason
	}{
		{"unknown keys, all of them", "[agent]\nmoed = \"manage\"\n[placement]\nurl = \"http://127.0.0.1:1\"\nulr = \"x\"\n", []string{":2: agent.moed: unknown key", ":5: placement.ulr: unknown key"}},
		{"every value of a wrong type, with unknown keys and bad values beside them",
			"[agent]\nmode = 7\nmoed = \"x\"\n[host]\nreserved_memory_mb = [\n  1,\n]\nreserved_vcpus = -1\n[libvirt]\ntimeout = \"soon\"\n[placement]\ninterval = 10\nnuma = \"deep\"\n",
			[]string{":2: agent.mode: want text", ":3: agent.moed: unknown key", ":5: host.reserved_memory_mb: ", ":10: libvirt.timeout: ", "placement.interval = 10: a time without a unit", "host.reserved_vcpus = -1", `placement.numa = "deep"`}},
		{"a list of tables where a section belongs", "[[agent]]\nmode = \"manage\"\n[host]\nreserved_vcpus = \"1\"\n", []string{":1: ", ":4: host.reserved_vcpus"}},
		{"unknown section", "[agnet]\nmode = \"manage\"\n", []string{":1: agnet"}},
		{"wrong type", "[host]\nreserved_memory_mb = \"many\"\n", []string{":2: host.reserved_memory_mb: "}},
		{"not a duration", "[libvirt]\ntimeout = \"soon\"\n", []string{":2: libvirt.timeout: "}},
		{"syntax", "[agent\n", []string{":1: "}},
		{"a class that Placement does not take", "[devices]\nmdev_types = [{ type = \"t\", mdev_class = \"CUSTOM_" + strings.Repeat("A", 249) + "\" }]\n", []string{"mdev_types[0].mdev_class"}},
		{"bad types of mediated devices", "[devices]\nmdev_types = [{ type = \"a/b\", mdev_class = \"PCPU\" }, { type = \"t\", device_addresses = [\"0000:84:00.0\"] }, { type = \"t\", device_addresses = [\"0000:84:00.0\"], max_instances = -1 }]\n",
			[]string{"mdev_types[0].type", "mdev_types[0].mdev_class", "mdev_types[2].type", "mdev_types[2].device_addresses", "mdev_types[2].max_instances"}},
		{"every bad value", "[agent]\nmode = \"both\"\nlog_level = \"loud\"\nstate_dir = \"here\"\n[placement]\ncpu_allocation_ratio = nan\nnuma = \"deep\"\nprovider_config_dir = \"here\"\n[peers]\nb = \"nowhere\"\n",
			[]string{"agent.mode", "agent.state_dir", "agent.log_level", "placement.cpu_allocation_ratio", `placement.numa = "deep"`, "placement.provider_config_dir", `peers."b"`}},
		{"a cloud without keystone", "[placement]\ncloud = \"mine\"\ninterface = \"internal\"\n", []string{"placement.cloud", "placement.interface"}},
		{"every bad value of keystone's", "[placement]\nauth = \"keystone\"\nurl = \"unix:/run/placement\"\nclouds_file = \"clouds.yaml\"\ninterface = \"private\"\n",
			[]string{"placement.clouds_file", "placement.interface", "placement.url"}},
		{"no such way to log in", "[placement]\nauth = \"password\"\n", []string{"placement.auth"}},
		{"a CPU list that is none", "[host]\ndedicated_cpus = \"2-\"\n", []string{":2: host.dedicated_cpus: "}},
		{"a page size that is none", "[host]\nreserved_hugepages = [\n{node = 0, size = \"2 loaves\", count = 1},\n]\n", []string{":3: "}},
		{"a time without a unit, which would be nanoseconds", "[migration]\nshutdown_timeout = 60\nresize_confirm_window = 0\n[Placement]\nInterval = 10\n",
			[]string{"migration.shutdown_timeout = 60: a time without a unit", "placement.interval = 10: a time without a unit"}},
		{"a number where text belongs", "[agent]\nmode = 7\n", []string{":2: agent.mode: want text in quotes, have a whole number"}},
		{"text where a list belongs", "[rights]\nconduct = \"user:root\"\n", []string{":2: rights.conduct: want a list in brackets, have text"}},
		{"text where a number belongs", "[migration]\nmax_inbound = \"2\"\n", []string{":2: migration.max_inbound: want a whole number, have text"}},
		{"a number where a section belongs", "agent = 1\n", []string{":1: agent: want a section of its own, in brackets, have a whole number"}},
		{"an unknown key of a device", "[pci]\ndevice_spec = [{vendor = \"8086\"}]\n", []string{".vendor: unknown key"}},
		{"every bad value of the host's sets and pages", "[host]\ndedicated_cpus = \"2-5\"\nshared_cpus = \"0-1,5\"\nreserved_vcpus = 1\nreserved_hugepages = [{node = -1, count = 0}, {node = 1, size = 2048, count = 1}, {node = 1, size = \"2M\", count = 1}]\n",
			[]string{"CPUs 5 are in both", "host.reserved_vcpus", "host.reserved_hugepages[0].node", "host.reserved_hugepages[0].size", "host.reserved_hugepages[0].count",
				"host.reserved_hugepages[2] = node 1, 2MiB"}},
		{"every bad device and alias", "[pci]\ndevice_spec = [{}, {vendor_id = \"x\", address = {bus = \"[\"}}]\nalias = [{name = \"\", vendor_id = \"8086\", product_id = \"1565\"}, {name = \"a\"}]\n",
			[]string{"pci.device_spec[1].vendor_id", "pci.device_spec[1].address.bus", "pci.alias \"\"", "pci.alias \"a\""}},
		{"no such transport", "[migration]\ntransport = \"pigeon\"\n", []string{`migration.transport = "pigeon": want "stream" or "libvirt-tls"`}},
		{"a range of ports that is none", "[migration]\nports = \"49215-49152\"\n", []string{`migration.ports = "49215-49152"`}},
		{"queues of none and of too many", "[drain]\nattempts = 0\n[migration]\nmax_inbound = 1001\nmax_outbound = -1\n", []string{"drain.attempts", "migration.max_inbound", "migration.max_outbound"}},
		{"negative times of a cold move", "[migration]\nresize_confirm_window = \"-1s\"\nshutdown_timeout = \"-1s\"\n", []string{"migration.resize_confirm_window", "migration.shutdown_timeout"}},
		{"a hook of a phase that there is none", "[hooks.\"pre_migrate/10-x\"]\ntimeout = \"1s\"\n[hooks.\"revert_resize/10-x\"]\ntimeout = \"1s\"\n", []string{`hooks."pre_migrate/10-x" =`}},
		{"hooks that would never run or never end", "[hooks.\"revert_resize/10-.x\"]\ntimeout = \"1s\"\n[hooks.\"revert_resize/10-x\"]\ntimeout = \"10m\"\n",
			[]string{`hooks."revert_resize/10-.x" =`, `hooks."revert_resize/10-x".timeout`}},
		{"rights of whom nobody can be", "[rights]\nshare_nothing = [\"root\", \"operator:\", \"operator:a b\", \"host:b\", \"user:a:b\", \"user:alice\", \"group:7\", \"user:alice\"]\nconduct = [\"operator:alice\", \"host:*\", \"host:c.example\"]\n",
			[]string{`rights.share_nothing[0] = "root": want operator:NAME, user:NAME, group:NAME`, `rights.share_nothing[1] = "operator:": want`, "rights.share_nothing[2] =", `rights.share_nothing[3] = "host:b": want operator:NAME`,
				"rights.share_nothing[4] =", "rights.share_nothing[7] = \"user:alice\": want each once", `rights.conduct[0] = "operator:alice": want host:NAME`, `rights.conduct[1] = "host:*": want "host:*": that is no name of a host`}},
		{"a right that there is not", "[rights]\neverything = [\"user:root\"]\n", []string{":2: rights.everything: unknown key"}},
		{"weights that are none", "[migration]\nnear_weight = nan\n[migration.near_weight_by_aggregate]\nrack = 1\n\"5F2E3C1A-0B5E-4A53-9A51-0D6D1C0F7A11\" = 2.5\n\"5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11\" = -inf\n\"6f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11\" = -3\n",
			[]string{"migration.near_weight = NaN: want a number from", `migration.near_weight_by_aggregate."5F2E3C1A-0B5E-4A53-9A51-0D6D1C0F7A11" = 2.5: want the uuid of an aggregate`,
				`migration.near_weight_by_aggregate."5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11" = -Inf: want a number`, `migration.near_weight_by_aggregate."rack" = 1: want the uuid of an aggregate`}},
		{"a weight in words", "[migration]\nnear_weight = \"much\"\n", []string{":2: migration.near_weight: "}},
		{"a silence that is none", "[migration]\nconductor_silence = \"0s\"\n", []string{`migration.conductor_silence = "0s"`}},
		{"a hook that could not lie there", "[hooks.\"nothing\"]\non_failure = \"ignore\"\n", []string{`hooks."nothing" =`, `hooks."nothing".on_failure`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "berth.toml"), tt.text)
			_, err := config.Load(path)
			if !errors.Is(err, fault.Invalid) {
				t.Fatalf("error %v, want %v", err, fault.Invalid)
			}
			reasons := fault.ReasonsOf(err)
			if len(reasons) != len(tt.want) {
				t.Fatalf("%d reasons, want %d: %v", len(reasons), len(tt.want), err)
			}
			for i, want := range tt.want {
				if !strings.Contains(reasons[i].Message, want) {
					t.Errorf("reason %d is %q, want %q in it", i, reasons[i].Message, want)
				}
				if strings.HasPrefix(want, ":") && !strings.HasPrefix(reasons[i].Message, path+want[:2]) {
					t.Errorf("reason %d is %q, want it to name %s", i, reasons[i].Message, path)
				}
			}
		})
	}
}

// TestLoad_WeightsAreNumbersOfEitherKind: a drop-in adds aggregates to those there are.
func TestLoad_WeightsAreNumbersOfEitherKind(t *testing.T) {
	const one, two = "5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11", "6f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11"
	path := write(t, filepath.Join(t.TempDir(), "berth.toml"), "[migration]\nnear_weight = -2\n[migration.near_weight_by_aggregate]\n\""+one+"\" = 0.5\n")
	if err := os.Mkdir(path+".d", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(path+".d", "rack.toml"), "[migration.near_weight_by_aggregate]\n\""+two+"\" = -3\n")
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{one: 0.5, two: -3}, c.Migration.NearWeightByAggregate); diff != "" || c.Migration.NearWeight != -2 {
		t.Errorf("near_weight %g; by aggregate (-want +got):\n%s", c.Migration.NearWeight, diff)
	}
}

func TestLoad_MissingFile(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "absent.toml"))
	if !errors.Is(err, os.ErrNotExist) || !errors.Is(err, fault.Invalid) {
		t.Errorf("a file that was named and is absent: %v, want %v that is %v", err, fault.Invalid, os.ErrNotExist)
	}
}

func TestReload_TakesWhatItSays(t *testing.T) {
	old, read := config.Default(), config.Default()
	// Each field of the configuration is changed in turn: a key that Diff calls
	// reloadable must be the one that Reload takes, and no other.
	root := reflect.ValueOf(&read).Elem()
	for i := range root.NumField() {
		section := root.Field(i)
		fields := []reflect.Value{section}
		if section.Kind() == reflect.Struct {
			fields = nil
			for j := range section.NumField() {
				fields = append(fields, section.Field(j))
			}
		}
		for _, f := range fields {
			before := reflect.New(f.Type()).Elem()
			before.Set(f)
			alter(f)
			changes := config.Diff(old, read)
			if len(changes) != 1 {
				t.Fatalf("one change gives %v", changes)
			}
			taken := len(config.Diff(old, config.Reload(old, read))) == 1
			if taken != changes[0].Reloadable {
				t.Errorf("%s: called reloadable %v, taken %v", changes[0].Key, changes[0].Reloadable, taken)
			}
			f.Set(before)
		}
	}
}

func alter(f reflect.Value) {
	switch f.Kind() {
	case reflect.String:
		f.SetString(f.String() + "x")
	case reflect.Int, reflect.Int64:
		f.SetInt(f.Int() + 1)
	case reflect.Uint64:
		f.SetUint(f.Uint() + 1)
	case reflect.Float64:
		f.SetFloat(f.Float() + 1)
	case reflect.Bool:
		f.SetBool(!f.Bool())
	case reflect.Slice:
		f.Set(reflect.MakeSlice(f.Type(), 1, 1))
	case reflect.Map:
		m := reflect.MakeMap(f.Type())
		m.SetMapIndex(reflect.ValueOf("x"), reflect.Zero(f.Type().Elem()))
		f.Set(m)
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]config.Rate{
		"0": 0, "20MiB/s": 20 << 20, "1GiB/s": 1 << 30, "5 KiB/s": 5 << 10, "8MB/s": 8e6, "1024B/s": 1024, "20MiB": 20 << 20,
	} {
		got, err := config.ParseRate(text)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		again, err := config.ParseRate(got.String())
		if err != nil || again != got {
			t.Errorf("%q written %q reads %d, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "fast", "-1", "1024", "20 Mbit/s", "99999999TiB/s", "1.5GiB/s"} {
		if got, err := config.ParseRate(text); err == nil {
			t.Errorf("%q: %d, want an error", text, got)
		}
	}
	if d := config.Duration(90 * time.Second); d.String() != "1m30s" {
		t.Errorf("duration %s", d)
	}
}

// The sockets of streams lie below it, and libvirt has no way around their length.
func TestValidate_RuntimeDirLeavesRoomForSocketsOfStreams(t *testing.T) {
	for _, tt := range []struct {
		bytes     int
		transport string
		good      bool
	}{
		{41, config.TransportStream, true}, {42, config.TransportStream, false}, {42, config.TransportLibvirtTLS, true},
	} {
		c := config.Default()
		c.Agent.RuntimeDir, c.Migration.Transport = "/"+strings.Repeat("r", tt.bytes-1), tt.transport
		// The package's manager says so too, but when the first guest comes.
		_, err := stream.NewManager(c.Agent.RuntimeDir+"/streams", nil, nil)
		if fits := tt.bytes <= 41; (err == nil) != fits {
			t.Errorf("streams below a folder of %d bytes: %v, want them to fit: %v", tt.bytes, err, fits)
		}
		if err := c.Validate(); (err == nil) != tt.good {
			t.Errorf("%d bytes with %s: %v, want accepted: %v", tt.bytes, tt.transport, err, tt.good)
		} else if !tt.good && !strings.Contains(err.Error(), "agent.runtime_dir") {
			t.Errorf("%v: want the key named", err)
		}
	}
}

// A peer's libvirt is reached through a host, or through a socket that somebody
// forwards; a local one without either is a mistake.
func TestValidate_PeerURINamesAHostOrASocket(t *testing.T) {
	for uri, good := range map[string]bool{
		"qemu+tls://{name}/system":                             true,
		"qemu+tcp://192.0.2.7:16509/system":                    true,
		"qemu+unix:///system?socket=/run/berth/libvirt-{name}": true,
		"qemu:///system":                                       false,
		"host-b":                                               false,
	} {
		c := config.Default()
		c.Libvirt.PeerURI = uri
		if err := c.Validate(); (err == nil) != good {
			t.Errorf("%s: %v, want accepted: %v", uri, err, good)
		}
	}
}
