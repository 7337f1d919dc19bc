// Package fleet is a lab with Berth in it: hosts with an agent each and one
// embedded Placement between them, run from the real binary with real
// certificates. The demonstration and the end-to-end tests stand on it.
//
// It alone writes the agents' configuration and keys inside the lab's hosts, and
// the folder of the binary and of the certificates below the lab's own folder.
package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/internal/config"
	"berth/packaging"
	"berth/test/lab"
)

// Options say what Up makes.
type Options struct {
	Dir      string   // the lab's folder
	Names    []string // hosts; empty means host-a and host-b
	Binary   string   // berth; empty builds it into the lab's folder
	Detached bool     // see lab.Options
	// Older: the binary may not know the configuration of this tree; see Allow.
	Older bool
	// Config is added to every agent's berth.toml as a drop-in; the key is the
	// host's name, "" stands for all.
	Config map[string]string
	// Flavors are added to every agent's flavors: TOML by the flavor's name.
	Flavors map[string]string
	// Apart are hosts that cannot send each other a packet; see lab.Options.
	Apart []string
	// Conductors are hosts whose agents may conduct moves between others.
	Conductors []string
	// Etcd has the records of the fleet kept by an etcd of three members on the switch,
	// instead of beside Placement.
	Etcd bool
	// Cells and HugePages are each host's made-up NUMA cells and pages of 2 MiB;
	// see lab.Options.
	Cells, HugePages int
	// Transport is how guests travel: "stream", which empty means too, or "libvirt-tls".
	Transport string
	// Listen lets the libvirt daemons listen with TLS, for tests that let guests
	// migrate by virsh; with the transport "libvirt-tls" they do anyway.
	Listen bool
	// Guard gives every host's libvirtd the hook as it is shipped.
	Guard bool
	// Log is told what is done, a line each; nil for silence.
	Log func(format string, args ...any)
}

// Fleet is hosts with agents.
type Fleet struct {
	*lab.Lab
	Binary string

	mu      sync.Mutex
	agents  map[string]*Process
	place   *Process
	members []*Process // of etcd
}

// Process is a daemon of ours that runs in a host.
type Process struct {
	Cmd  *exec.Cmd
	Log  string // file with its standard error
	done chan struct{}
	err  error
}

// Kill ends it with SIGKILL and waits.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill() // it may have ended by itself, which is as good
	<-p.done
}

// Stop ends it with SIGTERM and waits; the error is its exit status.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("it did not stop: %w", context.Cause(ctx))
	}
}

// Exited reports whether it has ended, and how.
func (p *Process) Exited() (bool, error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

const placementPort = "8778"

// PlacementURL is where the fleet's Placement listens, on the lab's switch.
func PlacementURL() string { return "https://" + lab.SwitchIP + ":" + placementPort }

// Build compiles the static binary into dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return build(ctx, filepath.Join(dir, "berth"), "CGO_ENABLED=0", "")
}

// BuildNative compiles the berth binary with libvirt's C library into a folder. It
// needs lab.NativePackages.
func BuildNative(ctx context.Context, dir string) (string, error) {
	return build(ctx, filepath.Join(dir, "berth-native"), "CGO_ENABLED=1", "native")
}

func build(ctx context.Context, bin, cgo, tags string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", tags, "-o", bin, "berth/cmd/berth")
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build berth: %w\n%s", err, out)
	}
	return bin, nil
}

// Up brings up hosts, certificates, Placement and agents, and returns when every
// agent says that it is ready.
func Up(ctx context.Context, o Options) (*Fleet, error) {
	if len(o.Names) == 0 {
		o.Names = []string{"host-a", "host-b"}
	}
	say := o.Log
	if say == nil {
		say = func(string, ...any) {}
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	// Made beside the lab's folder, which Up of the lab clears.
	keys := o.Dir + ".pki"
	if err := os.RemoveAll(keys); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return nil, err
	}
	if o.Binary == "" {
		bin, err := Build(ctx, keys)
		if err != nil {
			return nil, err
		}
		o.Binary = bin
	}
	if err := MakeKeys(ctx, o.Binary, keys, o.Names, o.Conductors...); err != nil {
		return nil, err
	}
	begun := time.Now()
	inside := filepath.Join(o.Dir, "pki")
	if filepath.Dir(o.Binary) == keys {
		o.Binary = filepath.Join(inside, filepath.Base(o.Binary)) // where it will be, see below
	}
	hook := ""
	if o.Guard {
		hook = guardHook(o.Binary)
	}
	l, err := lab.Up(ctx, lab.Options{
		Dir: o.Dir, Names: o.Names, Apart: o.Apart, Detached: o.Detached, PKI: keys, Cells: o.Cells, HugePages: o.HugePages, QEMUHook: hook,
		Listen: o.Listen || o.Transport == config.TransportLibvirtTLS,
	})
	if err != nil {
		return nil, err
	}
	say("%d hosts with libvirtd and QEMU up in %.1f s", len(l.Hosts), time.Since(begun).Seconds())
	f := &Fleet{Lab: l, Binary: o.Binary, agents: map[string]*Process{}}
	// Into the lab's folder, so that whoever takes the lab down removes them.
	if err := os.Rename(keys, inside); err != nil {
		return nil, errors.Join(err, l.Down())
	}
	keys = inside
	if err := f.start(ctx, o, keys); err != nil {
		return nil, errors.Join(err, f.Down())
	}
	say("Placement and %d agents ready after %.1f s", len(l.Hosts), time.Since(begun).Seconds())
	return f, nil
}

func (f *Fleet) start(ctx context.Context, o Options, keys string) error {
	if err := f.Switch.InstallPKI(keys); err != nil {
		return err
	}
	if err := f.StartPlacement(ctx); err != nil {
		return err
	}
	if o.Etcd {
		if err := f.startEtcd(ctx); err != nil {
			return err
		}
	}
	for _, h := range f.Hosts {
		if err := f.configure(h, o); err != nil {
			return err
		}
		if err := f.StartAgent(ctx, h.Name); err != nil {
			return err
		}
	}
	for _, h := range f.Hosts {
		if err := f.WaitReady(ctx, h.Name); err != nil {
			return err
		}
	}
	return nil
}

// guardHook is the hook as it is shipped, with the fleet's binary.
func guardHook(binary string) string {
	return strings.Replace(packaging.GuardHook, "\nberth=/usr/bin/berth\n", "\nberth="+binary+"\n", 1)
}

// MakeKeys makes an authority, a certificate for each host, one for the switch
// (Placement) and one for an operator, with the binary's own `berth pki`.
func MakeKeys(ctx context.Context, bin, dir string, names []string, conductors ...string) error {
	run := func(args ...string) error {
		out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("berth %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := run("pki", "init", dir); err != nil {
		return err
	}
	if err := Reissue(ctx, bin, dir, names, conductors...); err != nil {
		return err
	}
	return run("pki", "host", "--dir", dir, "switch", "--san", lab.SwitchIP)
}

// Reissue makes a certificate for each host, in place of those that are there; some of
// them may conduct moves between others.
func Reissue(ctx context.Context, bin, dir string, names []string, conductors ...string) error {
	for i, name := range names {
		cmd := exec.CommandContext(ctx, bin, "pki", "host", "--dir", dir, name, "--san", name+"-mig",
			"--san", fmt.Sprintf("10.77.0.%d", i+1), "--san", fmt.Sprintf("10.78.0.%d", i+1), "--san", "localhost")
		// Every host of the lab fences and evacuates.
		cmd.Args = append(cmd.Args, "--right", "fence")
		if slices.Contains(conductors, name) {
			cmd.Args = append(cmd.Args, "--right", "conduct")
		}
		out, err := cmd.CombinedOutput()
		if err != nil && strings.Contains(string(out), "fence") {
			// A version from before that right: whoever declares a death has it there.
			args := slices.DeleteFunc(slices.Clone(cmd.Args[1:]), func(a string) bool { return a == "fence" })
			args = slices.Delete(args, slices.Index(args, "--right"), slices.Index(args, "--right")+1)
			out, err = exec.CommandContext(ctx, bin, args...).CombinedOutput()
		}
		if err != nil {
			return fmt.Errorf("certificate of %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// Allowed is the configuration by which hosts take in instances that boot from the lab's own
// kernels and have disks in its shared folder, and what more names.
func (f *Fleet) Allowed(more ...string) string {
	var list []string
	for _, path := range append([]string{lab.CacheDir(), f.SharedDir()}, more...) {
		list = append(list, strconv.Quote(path))
	}
	return "[migration]\nallowed_paths = [" + strings.Join(list, ", ") + "]\n"
}

// Allow writes it for a host.
func (f *Fleet) Allow(h *lab.Host) error {
	path := h.Path("/etc/berth/berth.toml.d/30-allowed.toml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Root of one host asks for instances of another: commands of tests and guides do.
	var hosts []string
	for _, p := range f.Hosts {
		hosts = append(hosts, fmt.Sprintf("%q", "host:"+p.Name))
	}
	return os.WriteFile(path, []byte(f.Allowed()+"[rights]\nrelay = ["+strings.Join(hosts, ", ")+"]\n"), 0o644)
}

// configure writes a host's berth.toml and flavors.
func (f *Fleet) configure(h *lab.Host, o Options) error {
	if !o.Older {
		if err := f.Allow(h); err != nil {
			return err
		}
	}
	var peers strings.Builder
	for _, p := range f.Hosts {
		fmt.Fprintf(&peers, "%q = %q\n", p.Name, p.MgmtIP()+":16515")
	}
	toml := fmt.Sprintf(`[agent]
mode = "manage"
name = %q

[host]
reserved_memory_mb = 256

[libvirt]
timeout = "5s"

[placement]
url = %q
interval = "5s"

[migration]
transport = %q
address = %q
stall_timeout = "8s"

[peers]
%s`, h.Name, PlacementURL(), cmp.Or(o.Transport, config.TransportStream), h.MigIP(), &peers)
	files := map[string]string{
		"/etc/berth/berth.toml":                toml,
		"/etc/berth/flavors.d/small.toml":      "name = \"small\"\nvcpus = 1\nmemory_mb = 128\ndisk_gb = 1\n",
		"/etc/berth/flavors.d/large.toml":      "name = \"large\"\nvcpus = 2\nmemory_mb = 4096\ndisk_gb = 1\n",
		"/etc/berth/berth.toml.d/40-etcd.toml": etcdConfig(o.Etcd),
		"/etc/berth/berth.toml.d/50-all.toml":  o.Config[""],
		"/etc/berth/berth.toml.d/60-host.toml": o.Config[h.Name],
	}
	for name, text := range o.Flavors {
		files["/etc/berth/flavors.d/"+name+".toml"] = text
	}
	for path, text := range files {
		if text == "" {
			continue
		}
		out := h.Path(path)
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(out, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// spawn starts the binary in a host as a daemon whose log is kept.
func (f *Fleet) spawn(h *lab.Host, logName string, args ...string) (*Process, error) {
	return f.daemon(h, logName, append([]string{f.Binary}, args...)...)
}

// daemon starts a program in a host and keeps its log.
func (f *Fleet) daemon(h *lab.Host, logName string, argv ...string) (*Process, error) {
	path := filepath.Join(f.Dir, h.Name+"-"+logName+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd, err := h.Command(context.Background(), argv...)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := h.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s %s on %s: %w", filepath.Base(argv[0]), argv[1], h.Name, err)
	}
	p := &Process{Cmd: cmd, Log: path, done: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.done) }()
	return p, nil
}

// StartPlacement starts the embedded Placement on the switch, with its database
// in the switch's /var/lib/berth, and waits until it answers.
func (f *Fleet) StartPlacement(ctx context.Context) error {
	p, err := f.spawn(f.Switch, "placement", "placement", "--listen", lab.SwitchIP+":"+placementPort, "--auth", "mtls",
		"--ca", "/etc/berth/pki/ca.crt", "--cert", "/etc/berth/pki/host.crt", "--key", "/etc/berth/pki/host.key",
		"--db", "/var/lib/berth/placement.db")
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.place = p
	f.mu.Unlock()
	probe := fmt.Sprintf("exec 3<>/dev/tcp/%s/%s", lab.SwitchIP, placementPort)
	return f.until(ctx, p, "Placement listens", func() bool {
		_, err := f.Switch.Exec(ctx, "bash", "-c", probe)
		return err == nil
	})
}

// Placement is the running Placement process.
func (f *Fleet) Placement() *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.place
}

// StartAgent starts a host's agent and returns without waiting for readiness.
func (f *Fleet) StartAgent(_ context.Context, host string) error {
	h, err := f.Host(host)
	if err != nil {
		return err
	}
	p, err := f.spawn(h, "agent", "agent")
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.agents[host] = p
	f.mu.Unlock()
	return nil
}

// Agent is the running agent of a host.
func (f *Fleet) Agent(host string) *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.agents[host]
}

// WaitReady waits until a host's agent answers and is healthy enough to move
// guests.
func (f *Fleet) WaitReady(ctx context.Context, host string) error {
	return f.until(ctx, f.Agent(host), "agent on "+host+" is ready", func() bool {
		var s struct {
			Ready bool `json:"ready"`
		}
		return f.JSON(ctx, host, &s, "status") == nil && s.Ready
	})
}

// until waits for a condition while a process lives.
func (f *Fleet) until(ctx context.Context, p *Process, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // a machine may be busy with much else
	defer cancel()
	for {
		if ok() {
			return nil
		}
		select {
		case <-p.done:
			log, _ := os.ReadFile(p.Log)
			return fmt.Errorf("wait until %s: it ended: %w\n%s", what, p.err, tail(log))
		case <-ctx.Done():
			log, _ := os.ReadFile(p.Log)
			return fmt.Errorf("wait until %s: %w\n%s", what, context.Cause(ctx), tail(log))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tail(log []byte) []byte {
	if len(log) > 4000 {
		return log[len(log)-4000:]
	}
	return log
}

// Result is what a command of the operator printed.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Berth runs an operator's command in a host, as root there would.
func (f *Fleet) Berth(ctx context.Context, host string, args ...string) (Result, error) {
	h, err := f.Host(host)
	if err != nil {
		return Result{}, err
	}
	cmd, err := h.Command(ctx, append([]string{f.Binary}, args...)...)
	if err != nil {
		return Result{}, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = h.Run(cmd)
	r := Result{Stdout: out.String(), Stderr: errs.String()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		r.Code = exit.ExitCode()
		return r, nil
	}
	return r, err
}

// JSON runs an operator's command with --json and reads what it printed. Exit
// code 7 (degraded, disagreements) counts as an answer.
func (f *Fleet) JSON(ctx context.Context, host string, into any, args ...string) error {
	r, err := f.Berth(ctx, host, append(args, "--json")...)
	if err != nil {
		return err
	}
	if r.Code != 0 && r.Code != 7 {
		return fmt.Errorf("berth %s on %s: exit code %d: %s%s", strings.Join(args, " "), host, r.Code, r.Stderr, r.Stdout)
	}
	if err := json.Unmarshal([]byte(r.Stdout), into); err != nil {
		return fmt.Errorf("berth %s on %s: read its answer: %w\n%s", strings.Join(args, " "), host, err, r.Stdout)
	}
	return nil
}

// Down ends everything and removes the fleet's folder.
func (f *Fleet) Down() error {
	f.mu.Lock()
	processes := append([]*Process{f.place}, f.members...)
	for _, p := range f.agents {
		processes = append(processes, p)
	}
	f.mu.Unlock()
	err := f.Lab.Down()
	for _, p := range processes {
		if p != nil {
			<-p.done // the host's end was its end
		}
	}
	return err
}
