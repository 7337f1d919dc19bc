package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth/agent/api"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/stuck"
	"berth/topology"
)

// TestMain has four tests run at a time, however few the cores: they wait for agents more
// than they work. The command line's -parallel is above it.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// absent is a hypervisor that never answers.
type absent struct{ driver.Driver }

var errAbsent = fault.New(fault.Unavailable, "no hypervisor in this test")

func (absent) Health() error                                       { return errAbsent }
func (absent) Close() error                                        { return nil }
func (absent) Node(context.Context) (driver.Node, error)           { return driver.Node{}, errAbsent }
func (absent) Domains(context.Context) ([]driver.Domain, error)    { return nil, errAbsent }
func (absent) Events(context.Context) (<-chan driver.Event, error) { return nil, errAbsent }
func (absent) Domain(context.Context, string) (driver.Domain, error) {
	return driver.Domain{}, errAbsent
}

// settings is a configuration in a folder of the test's own.
func settings(t *testing.T, placement string) config.Config {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.Agent.Name, c.Agent.Mode, c.Agent.Listen = "host-t", config.Manage, ""
	c.Agent.StateDir, c.Agent.RuntimeDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	c.Agent.FlavorsDir, c.Agent.HooksDir = filepath.Join(dir, "flavors.d"), filepath.Join(dir, "hooks.d")
	c.PKI = config.PKI{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key")}
	// The agents of one test have no folder for sockets in common.
	c.Migration.Transport = config.TransportLibvirtTLS
	// Kernels and disks lie in folders of the test.
	c.Migration.AllowedPaths = []string{os.TempDir(), "/proc/version"}
	c.Metrics.Listen = "" // one port is not for all agents of a test
	c.Placement.URL, c.Placement.Timeout, c.Placement.Interval = placement, config.Duration(time.Second), config.Duration(time.Second)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

func agentOptions(t *testing.T, c config.Config) Options {
	t.Helper()
	rt := &runtime.System{}
	t.Cleanup(rt.Wait)
	return Options{
		Config: c, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Runtime: rt, Started: time.Now(),
		Driver:        func(config.Libvirt, runtime.Runtime) driver.Driver { return absent{} },
		NovaComputeID: filepath.Join(t.TempDir(), "compute_id"), Proc: proc(t),
	}
}

// proc is a /proc of the given processes' command lines.
func proc(t *testing.T, commands ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, c := range commands {
		pid := filepath.Join(dir, string(rune('1'+i))+"00")
		if err := os.Mkdir(pid, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(pid, "cmdline"), []byte(strings.ReplaceAll(c, " ", "\x00")+"\x00"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start runs an agent until the test ends and waits until it is ready.
func start(t *testing.T, o Options) (*api.Client, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := api.NewClient(api.ClientOptions{Socket: o.Config.Agent.SocketPath()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-ended:
			stopped = true
			t.Fatalf("the agent ended: %v", err)
		default:
		}
		if s, err := c.Status(t.Context()); err == nil && s.Ready {
			return c, stop
		}
	}
	t.Fatal("the agent does not get ready")
	return nil, nil
}

// nowhere is an address where no Placement answers, nor anybody else until the test
// ends: a socket has it that does not listen.
func nowhere(t *testing.T) string {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(socket) })
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", address.(*unix.SockaddrInet4).Port)
}

func TestAgent_StartsWithoutLibvirtAndPlacementAndSaysSo(t *testing.T) {
	t.Parallel()
	o := agentOptions(t, settings(t, nowhere(t)))
	c, stop := start(t, o)
	s, err := c.Status(t.Context())
	if err != nil || s.Health != api.HealthDegraded || s.Name != "host-t" || s.Usage.Total.VCPUs == 0 {
		t.Errorf("status %+v, %v", s, err)
	}
	for _, part := range s.Conditions {
		if part.Name == "libvirt" && (part.Health != api.HealthDegraded || len(part.Reasons) == 0 || part.Reasons[0].Change == "") {
			t.Errorf("libvirt: %+v", part)
		}
	}
	before := s.ProviderUUID
	// A second agent on the same state or socket is refused.
	if err := Run(t.Context(), o); !errors.Is(err, fault.Busy) {
		t.Errorf("a second agent: %v, want %v", err, fault.Busy)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// The identity outlives the process.
	c, _ = start(t, o)
	if s, err := c.Status(t.Context()); err != nil || s.ProviderUUID != before {
		t.Errorf("provider uuid %s after a restart, %v; want %s", s.ProviderUUID, err, before)
	}
}

// answering serves one answer for GET /resource_providers?name=.
func answering(t *testing.T, providers string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/" {
			_, _ = io.WriteString(w, `{"versions":[{"id":"v1.0","min_version":"1.0","max_version":"1.39","status":"CURRENT","links":[]}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"resource_providers":[`+providers+`]}`)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestAgent_ManageIsRefusedNamingEverythingFound(t *testing.T) {
	t.Parallel()
	const other = "11111111-2222-3333-4444-555555555555"
	o := agentOptions(t, settings(t, answering(t, `{"uuid":"`+other+`","name":"host-t","generation":3}`)))
	if err := os.WriteFile(o.NovaComputeID, []byte("99999999-8888-7777-6666-555555555555\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.Proc = proc(t, "/usr/sbin/sshd -D", "/usr/bin/python3 /usr/bin/nova-compute --config-file=/etc/nova/nova.conf", "vim nova-compute")
	err := Run(t.Context(), o)
	if !errors.Is(err, fault.Forbidden) {
		t.Fatalf("error %v, want %v", err, fault.Forbidden)
	}
	reasons := fault.ReasonsOf(err)
	if len(reasons) != 3 {
		t.Errorf("%d reasons, want the file, the process and the provider: %v", len(reasons), err)
	}
	for _, want := range []string{o.NovaComputeID, "99999999-8888", "pid 200", other} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	// Observing harms nobody, and is what such a host is looked at with.
	o.Config.Agent.Mode = config.Observe
	c, _ := start(t, o)
	if s, err := c.Status(t.Context()); err != nil || s.Mode != "observe" {
		t.Errorf("mode observe beside nova-compute: %+v, %v", s, err)
	}
}

func TestIsNovaCompute(t *testing.T) {
	for cmd, want := range map[string]bool{
		"/usr/bin/nova-compute":                                  true,
		"/usr/bin/python3 /usr/bin/nova-compute --config-file x": true,
		"python3.11 -s /opt/nova/bin/nova-compute":               true,
		"/usr/bin/python3 /usr/bin/nova-conductor":               false,
		"vim /usr/bin/nova-compute":                              false,
		"/bin/sh /usr/local/bin/nova-compute":                    true,
		"bash -x ./nova-compute":                                 true,
		"/usr/bin/tail -f nova-compute":                          false,
		"":                                                       false,
	} {
		if got := isNovaCompute(strings.Split(cmd, " ")); got != want {
			t.Errorf("%q: %v, want %v", cmd, got, want)
		}
	}
}

func TestNovaComputes_FindsAScriptByTheNameTheKernelGivesIt(t *testing.T) {
	dir := proc(t, "/usr/bin/env -S perl /opt/x", "/usr/bin/env -S perl /opt/y")
	if err := os.WriteFile(filepath.Join(dir, "100", "comm"), []byte("nova-compute\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := novaComputes(&stuck.Calls{}, dir)
	if err != nil || len(got) != 1 || got[0] != 100 {
		t.Errorf("found %v, %v; want process 100 alone", got, err)
	}
}

func TestAgent_ManageLooksForNovaBelowTheHostsRootToo(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	c.Host.Root = t.TempDir()
	id := filepath.Join(c.Host.Root, novaComputeID)
	for _, dir := range []string{filepath.Dir(id), filepath.Join(c.Host.Root, "proc")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(id, []byte("99999999-8888-7777-6666-555555555555\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), agentOptions(t, c))
	if !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), id) {
		t.Errorf("error %v, want %v that names %s", err, fault.Forbidden, id)
	}
}

func TestAgent_ObservingWithWrongCertificatesIsDegraded(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	c.Agent.Mode = config.Observe
	if err := os.WriteFile(c.PKI.CA, []byte("no certificate"), 0o644); err != nil {
		t.Fatal(err)
	}
	client, _ := start(t, agentOptions(t, c))
	s, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range s.Conditions {
		if part.Name == "peers" && (part.Health == api.HealthOK || !strings.Contains(part.Detail, c.PKI.Key)) {
			t.Errorf("%+v, want degraded, naming %s", part, c.PKI.Key)
		}
	}
}

func TestAgent_ReloadTakesFlavorsAndRatiosAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	path := filepath.Join(t.TempDir(), "berth.toml")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	base := "[migration]\ntransport = \"" + c.Migration.Transport + "\"\n[agent]\nname = \"host-t\"\nmode = \"manage\"\nlisten = \"\"\nstate_dir = \"" + c.Agent.StateDir + "\"\nruntime_dir = \"" + c.Agent.RuntimeDir +
		"\"\nflavors_dir = \"" + c.Agent.FlavorsDir + "\"\nhooks_dir = \"" + c.Agent.HooksDir + "\"\n"
	o := agentOptions(t, c)
	reload := make(chan os.Signal)
	o.Reload, o.ConfigPath, o.Level = reload, path, new(slog.LevelVar)
	client, _ := start(t, o)

	s, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reserved := s.Usage.Reserved.MemoryMB
	ask := func() api.Status {
		t.Helper()
		// Unbuffered: the second is taken when the first has been worked on.
		reload <- syscall.SIGHUP
		reload <- syscall.SIGHUP
		s, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	write(path, base+"log_level = \"debug\"\n[host]\nreserved_memory_mb = 700\nreserved_vcpus = \"none\"\n")
	if s := ask(); s.Usage.Reserved.MemoryMB != reserved {
		t.Errorf("a configuration with a fault changed the reserve to %d", s.Usage.Reserved.MemoryMB)
	} else if said := wrongFiles(s); !strings.Contains(said, "reserved_vcpus") {
		t.Errorf("what is wrong with the files: %q, want the key", said)
	}
	write(path, strings.Replace(base, "host-t", "host-x", 1)+"log_level = \"debug\"\n[host]\nreserved_memory_mb = 700\n")
	write(filepath.Join(c.Agent.FlavorsDir, "small.toml"), "name = \"small\"\nvcpus = 1\nmemory_mb = 64\ndisk_gb = 0\n")
	s = ask()
	if s.Usage.Reserved.MemoryMB != 700 || s.Name != "host-t" || o.Level.Level() != slog.LevelDebug {
		t.Errorf("reserve %d, name %s, level %v; want 700 taken, the name kept, debug", s.Usage.Reserved.MemoryMB, s.Name, o.Level.Level())
	}
	if said := wrongFiles(s); said != "" {
		t.Errorf("files that were corrected are still wrong: %s", said)
	}
	r := api.CreateInstance{FlavorName: "large"}
	r.Name = "web"
	if _, err := client.CreateInstance(t.Context(), r); !errors.Is(err, fault.Invalid) {
		t.Errorf("a flavor that is not there: %v, want %v", err, fault.Invalid)
	}
	r.FlavorName = "small"
	if _, err := client.CreateInstance(t.Context(), r); errors.Is(err, fault.Invalid) {
		t.Errorf("a flavor that was added: %v", err)
	}
}

// wrongFiles is what the status says of files that were not taken.
func wrongFiles(s api.Status) string {
	for _, part := range s.Conditions {
		if part.Name == "configuration" {
			return part.Detail
		}
	}
	return ""
}

func TestReadFlavors_NamesTheFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.toml": "name = \"small\"\nvcpus = 0\nmemory_mb = 64\n", "b.toml": "name = \"big\"\nvcpu = 2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, err := readFlavors(dir)
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "a.toml: vcpus 0") || !strings.Contains(err.Error(), "b.toml:2: vcpu") {
		t.Errorf("error %v, want both files named", err)
	}
}

func TestListenLocal_ReplacesADeadSocketOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "berth.sock")
	l, err := listenLocal(path, "no-such-group")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600 where the group does not exist", st.Mode(), err)
	}
	if _, err := listenLocal(path, "root"); !errors.Is(err, fault.Busy) {
		t.Errorf("a socket that answers: %v, want %v", err, fault.Busy)
	}
	// As a crash leaves it.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	again, err := listenLocal(path, "root")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || (os.Geteuid() == 0 && st.Mode().Perm() != 0o660) {
		t.Errorf("mode %v, %v; want 0660", st.Mode(), err)
	}
	again.Close()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := listenLocal(path, "root"); !errors.Is(err, fault.Exists) {
		t.Errorf("a file in its place: %v, want %v", err, fault.Exists)
	}
}

// present is a hypervisor that answers and has no guests.
type present struct {
	absent
	uuid string
}

func (present) Health() error { return nil }
func (p present) Node(context.Context) (driver.Node, error) {
	return driver.Node{UUID: p.uuid, Hypervisor: "QEMU"}, nil
}
func (present) Domains(context.Context) ([]driver.Domain, error) { return nil, nil }
func (present) Events(ctx context.Context) (<-chan driver.Event, error) {
	events := make(chan driver.Event)
	context.AfterFunc(ctx, func() { close(events) })
	return events, nil
}

func TestAgent_ACopiedMachineGivesNoClaimsAndNamesBothHosts(t *testing.T) {
	t.Parallel()
	const first, second = "aaaaaaaa-0000-0000-0000-000000000001", "aaaaaaaa-0000-0000-0000-000000000002"
	o := agentOptions(t, settings(t, nowhere(t)))
	as := func(uuid string) api.Condition {
		t.Helper()
		o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return present{uuid: uuid} }
		c, stop := start(t, o)
		s, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		for _, part := range s.Conditions {
			if part.Name == "libvirt" {
				return part
			}
		}
		t.Fatal("no condition of libvirt")
		return api.Condition{}
	}
	if got := as(first); got.Health != api.HealthOK {
		t.Errorf("on its own machine: %+v", got)
	}
	got := as(second)
	if got.Health != api.HealthDegraded || !strings.Contains(got.Detail, first) || !strings.Contains(got.Detail, second) {
		t.Errorf("on a copy: %+v, want degraded and both uuids named", got)
	}
	if got := as(first); got.Health != api.HealthOK {
		t.Errorf("back on its own machine: %+v", got)
	}
	// The database alone, put into the place of another host's.
	if err := os.WriteFile(filepath.Join(o.Config.Agent.StateDir, "provider_uuid"), []byte("bbbbbbbb-0000-4000-8000-000000000002\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := as(second); got.Health != api.HealthDegraded || got.Reasons[0].Code != "ledger_of_another_host" || !strings.Contains(got.Detail, first) {
		t.Errorf("with another host's database: %+v, want degraded, both named", got)
	}
	// The same machine with a provider that its operator has given it.
	if got := as(first); got.Health != api.HealthOK {
		t.Errorf("with a new provider on its own machine: %+v", got)
	}
}

func TestAgent_AProviderThatTurnsOutToBeAnothersEndsNewClaims(t *testing.T) {
	t.Parallel()
	o := agentOptions(t, settings(t, nowhere(t)))
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&o.Config)
	if err := a.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}()
	want := topology.Resources{VCPUs: 1, MemoryMB: 1}
	if err := a.tracker.Check(want); err != nil {
		t.Fatalf("before: %v", err)
	}
	a.estrange(fault.New(fault.Forbidden, "provider host-t is another's"))
	if err := a.tracker.Check(want); err == nil || !strings.Contains(err.Error(), "another's") {
		t.Errorf("while it is: %v, want a refusal that says why", err)
	}
	a.estrange(nil)
	if err := a.tracker.Check(want); err != nil {
		t.Errorf("after: %v", err)
	}
}
