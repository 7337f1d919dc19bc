package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ctx1 is the deadline of one test.
func ctx1(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// traces are the marks of labs on the machine, outside every host: mounts that
// name dir, links with a lab's names, folders that a host has of its own.
// Whatever else runs on the machine meanwhile leaves none of these.
func traces(t *testing.T, dir string) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	links, err := exec.Command("ip", "-br", "link").Output()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) || strings.Contains(line, "/run/hugepages") {
			out = append(out, "mount "+line)
		}
	}
	for line := range strings.Lines(string(links)) {
		if name := strings.Fields(line)[0]; strings.HasPrefix(name, "mgmt") || strings.HasPrefix(name, "mig") || strings.HasPrefix(name, "br-m") || strings.HasPrefix(name, "p1-") {
			out = append(out, "link "+name)
		}
	}
	for _, d := range []string{"/run/berth-mark", "/run/hugepages", "/etc/mark", "/etc/berth/mark", "/var/lib/mark", "/var/lib/berth/mark"} {
		if exists(d) {
			out = append(out, d)
		}
	}
	return out
}

// inLab are the processes whose command names the lab's folder, zombies aside.
func inLab(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range all {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), dir) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

func TestLab_TwoHostsReachEachOtherAndLeaveNothing(t *testing.T) {
	Require(t)
	ctx := ctx1(t)
	dir := filepath.Join(TempDir(t), "lab")
	l, err := Up(ctx, Options{Dir: dir, Listen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	a, b := l.Hosts[0], l.Hosts[1]
	if got, err := a.Virsh(ctx, "-c", "qemu+tls://"+b.Name+"/system", "hostname"); err != nil || got != b.Name {
		t.Errorf("over TLS the other host calls itself %q, %v; want %s", got, err, b.Name)
	}
	capabilities, err := a.Virsh(ctx, "capabilities")
	if err != nil || !strings.Contains(capabilities, "<uuid>"+a.UUID()+"</uuid>") {
		t.Errorf("libvirt does not report host uuid %s: %v", a.UUID(), err)
	}
	for _, h := range []*Host{a, b, l.Switch} {
		if got, err := h.Exec(ctx, "hostname"); err != nil || got != h.Name {
			t.Errorf("hostname in %s = %q, %v", h.Name, got, err)
		}
		if err := os.WriteFile(h.Path("/run/berth-mark"), []byte(h.Name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range []*Host{a, b, l.Switch} {
		if got, err := h.Exec(ctx, "cat", "/run/berth-mark"); err != nil || got != h.Name {
			t.Errorf("/run of %s holds %q, %v; want its own", h.Name, got, err)
		}
		if _, err := h.Exec(ctx, "touch", "/etc/mark", "/etc/berth/mark", "/var/lib/berth/mark", "/var/lib/mark"); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(l.SharedDir(), "x"), []byte("one"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Exec(ctx, "cat", filepath.Join(l.SharedDir(), "x")); err != nil || got != "one" {
		t.Errorf("the shared folder holds %q, %v", got, err)
	}
	if _, err := Up(ctx, Options{Dir: dir}); err == nil {
		t.Error("a second lab came up in the folder of a living one")
	}
	if left := traces(t, dir); len(left) > 0 {
		t.Errorf("seen on the machine while the lab is up: %q", left)
	}
	attached, err := Attach(dir)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := attached.Host("host-b"); err != nil || h.InitPID() != b.InitPID() || h.UUID() != b.UUID() {
		t.Errorf("attached host-b = %+v, %v", h, err)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	if exists(dir) {
		t.Error("the lab's folder is left")
	}
	if left := inLab(t, dir); len(left) > 0 {
		t.Errorf("processes left: %q", left)
	}
	if left := traces(t, dir); len(left) > 0 {
		t.Errorf("left on the machine: %q", left)
	}
	if err := Down(dir); err != nil {
		t.Errorf("down once more: %v", err)
	}
}

func TestLab_NoLibvirtdListensAndQEMUIsAUserOfItsOwn(t *testing.T) {
	l := Start(t, Options{Names: []string{"host-a"}})
	h, ctx := l.Hosts[0], ctx1(t)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := h.Exec(ctx, "cat", table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" { // TCP_LISTEN
				t.Errorf("something listens in the host: %s", line)
			}
		}
	}
	if why := l.QEMUAsRoot(); why != "" {
		t.Fatalf("QEMU runs as root: %s", why)
	}
	domain := `<domain type='qemu'><name>g</name><memory unit='MiB'>16</memory><os><type>hvm</type></os><features><acpi/></features></domain>`
	if err := os.WriteFile(h.Path("/var/lib/libvirt/g.xml"), []byte(domain), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Virsh(ctx, "create", "--paused", "/var/lib/libvirt/g.xml"); err != nil {
		t.Fatal(err)
	}
	pid, err := h.QEMUPID("g")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if want := fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", qemuUID); err != nil || !strings.Contains(string(status), want) {
		t.Errorf("QEMU's status has no %q, %v", want, err)
	}
}

func TestLab_EndsWithItsOwner(t *testing.T) {
	Require(t)
	ctx := ctx1(t)
	owner := exec.Command("sleep", "1000")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "lab")
	l, err := Up(ctx, Options{Dir: dir, Owner: owner.Process.Pid})
	if err != nil {
		_ = owner.Process.Kill()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	libvirtd, err := l.Hosts[0].LibvirtdPID()
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := seen(libvirtd)
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed, and says so
	for _, h := range append(l.Hosts, l.Switch) {
		if err := h.started.Wait(); err != nil {
			t.Errorf("first process of %s: %v", h.Name, err)
		}
		h.started = nil
	}
	if daemon.alive() {
		t.Error("libvirtd outlived its host")
	}
	if _, err := Attach(dir); err == nil {
		t.Error("attached to a lab that has ended")
	}
	again, err := Up(ctx, Options{Dir: dir, NoLibvirtd: true})
	if err != nil {
		t.Fatalf("up after a crash: %v", err)
	}
	if err := again.Down(); err != nil {
		t.Error(err)
	}
}

func TestHost_ProcessesAreKilledByTheirOwnPID(t *testing.T) {
	l := Start(t, Options{Names: []string{"solo"}, NoLibvirtd: true})
	ctx := ctx1(t)
	h := l.Hosts[0]
	cmd, err := h.Command(ctx, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	comm, err := os.ReadFile("/proc/" + itoa(cmd.Process.Pid) + "/comm")
	if err != nil || strings.TrimSpace(string(comm)) != "sleep" {
		t.Errorf("process %d is %q, %v", cmd.Process.Pid, comm, err)
	}
	inner, err := h.Exec(ctx, "sh", "-c", "cat /proc/[0-9]*/comm")
	if err != nil || !strings.Contains(inner, "sleep") {
		t.Errorf("the host's processes are %q, %v", inner, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("wait: %v", err)
	}
	_, err = h.Exec(ctx, "sh", "-c", "echo no >&2; exit 7")
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.Contains(err.Error(), "no") {
		t.Errorf("a failing command gave %v", err)
	}
	if _, err := h.Exec(ctx, "no-such-command"); err == nil {
		t.Error("a command that does not exist ran")
	}
}

func TestHost_LibvirtdStopsHangsDiesAndReturns(t *testing.T) {
	l := Start(t, Options{Names: []string{"solo"}})
	ctx := ctx1(t)
	h := l.Hosts[0]
	answersWithin := func(most time.Duration) error {
		short, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		_, err := h.Virsh(short, "uri")
		return err
	}
	answers := func() error { return answersWithin(time.Minute) }
	if err := h.PauseLibvirtd(); err != nil {
		t.Fatal(err)
	}
	if answersWithin(2*time.Second) == nil { // a busy machine may take as long for one that is well
		t.Error("a paused libvirtd answered")
	}
	if err := h.ResumeLibvirtd(); err != nil {
		t.Fatal(err)
	}
	if err := answers(); err != nil {
		t.Errorf("resumed: %v", err)
	}
	for name, end := range map[string]func(context.Context) error{"stop": h.StopLibvirtd, "kill": h.KillLibvirtd} {
		if err := end(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if answers() == nil {
			t.Errorf("%s: libvirtd still answers", name)
		}
		if err := h.StartLibvirtd(ctx); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
	}
	if _, err := h.Exec(ctx, "touch", "/run/volatile", "/var/lib/berth/durable"); err != nil {
		t.Fatal(err)
	}
	uuid := h.UUID()
	if err := h.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Exec(ctx, "true"); err == nil || !strings.Contains(err.Error(), "is off") {
		t.Errorf("a command in a host that is off: %v", err)
	}
	// By another process, which the one that made the lab does not see.
	other, err := Attach(l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Hosts[0].PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	h = other.Hosts[0]
	if err := answers(); err != nil {
		t.Errorf("after power on: %v", err)
	}
	if got, err := h.Exec(ctx, "sh", "-c", "ls /run/volatile /var/lib/berth/durable 2>/dev/null || true"); err != nil || got != "/var/lib/berth/durable" {
		t.Errorf("after power on there is %q, %v; want what was durable only", got, err)
	}
	if h.UUID() != uuid {
		t.Error("the host came back with another uuid")
	}
	if err := l.Down(); err != nil {
		t.Error(err)
	}
	if h.init.alive() {
		t.Error("a host outlived the lab")
	}
}

// reaches says whether packets pass from a host to an address. Bash is not wanted
// here and ping is often absent: a TCP connection to a closed port is refused at
// once where they do. It has a minute for that, on a machine that is busy with much else.
func reaches(ctx context.Context, h *Host, ip string) bool {
	return reachesWithin(ctx, h, ip, time.Minute)
}

// reachesSoon is for what shall not be reached: nobody answers, and nobody waits for long.
func reachesSoon(ctx context.Context, h *Host, ip string) bool {
	return reachesWithin(ctx, h, ip, 2*time.Second)
}

func reachesWithin(ctx context.Context, h *Host, ip string, most time.Duration) bool {
	short, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	_, err := h.Exec(short, "virsh", "-c", "qemu+tcp://"+ip+":1/system?no_verify=1", "uri")
	return err != nil && strings.Contains(err.Error(), "refused")
}

func TestHost_PowerCutLeavesTheOthersTheirWayToTheSwitch(t *testing.T) {
	l := Start(t, Options{NoLibvirtd: true})
	ctx := ctx1(t)
	for _, h := range l.Hosts {
		other := l.Hosts[len(l.Hosts)-h.Index]
		// A bridge left to itself takes its lowest port's address for its own, and
		// loses it with that port.
		if err := ip(ctx, l.Switch.init.PID, "link set "+h.port(Mgmt)+" address 02:00:00:00:00:01"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Exec(ctx, "ip", "neigh", "flush", "dev", string(Mgmt)); err != nil {
			t.Fatal(err)
		}
		if !reaches(ctx, other, SwitchIP) {
			t.Fatalf("%s does not reach the switch before anything happens", other.Name)
		}
		if err := h.PowerOff(); err != nil {
			t.Fatal(err)
		}
		if err := h.PowerOn(ctx); err != nil {
			t.Fatal(err)
		}
		if !reaches(ctx, other, SwitchIP) {
			t.Errorf("%s does not reach the switch after %s was off", other.Name, h.Name)
		}
		if !reaches(ctx, h, SwitchIP) {
			t.Errorf("%s does not reach the switch after it was off", h.Name)
		}
	}
}

func TestHost_CutLinkLosesPacketsUntilHealed(t *testing.T) {
	l := Start(t, Options{NoLibvirtd: true})
	ctx := ctx1(t)
	a, b := l.Hosts[0], l.Hosts[1]
	reaches := func(ip string) bool { return reaches(ctx, a, ip) }
	if !reaches(b.MigIP()) || !reaches(b.MgmtIP()) || !reaches(SwitchIP) {
		t.Fatal("the hosts do not reach each other")
	}
	if err := b.Cut(ctx, Mig); err != nil {
		t.Fatal(err)
	}
	if reachesSoon(ctx, a, b.MigIP()) {
		t.Error("the migration link carries packets though it is cut")
	}
	if !reaches(b.MgmtIP()) {
		t.Error("the other link was cut too")
	}
	if err := b.Heal(ctx, Mig); err != nil {
		t.Fatal(err)
	}
	for !reachesSoon(ctx, a, b.MigIP()) {
		if ctx.Err() != nil {
			t.Fatal("the migration link was not healed")
		}
	}
	if err := a.Limit(ctx, Mig, 10); err != nil {
		t.Error(err)
	}
	if err := a.Limit(ctx, Mig, 0); err != nil {
		t.Error(err)
	}
	if err := a.Cut(ctx, "power"); err == nil {
		t.Error("a link that does not exist was cut")
	}
}

func TestUp_HostsThatAreApartReachAThirdAndNotEachOther(t *testing.T) {
	l := Start(t, Options{NoLibvirtd: true, Names: []string{"one", "two", "third"}, Apart: []string{"one", "two"}})
	ctx := ctx1(t)
	one, two, third := l.Hosts[0], l.Hosts[1], l.Hosts[2]
	// A host that was off comes back as far away as it was.
	if err := one.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if err := one.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*Host{one, two} {
		for _, ip := range []string{third.MgmtIP(), third.MigIP(), SwitchIP} {
			if !reaches(ctx, h, ip) {
				t.Errorf("%s does not reach %s", h.Name, ip)
			}
		}
	}
	for _, ip := range []string{two.MgmtIP(), two.MigIP()} {
		if reachesSoon(ctx, one, ip) {
			t.Errorf("%s reaches %s, from which it is apart", one.Name, ip)
		}
	}
	if reachesSoon(ctx, two, one.MgmtIP()) {
		t.Errorf("%s reaches %s, from which it is apart", two.Name, one.Name)
	}
	if err := one.SetApart(ctx, false); err != nil {
		t.Fatal(err)
	}
	if !reaches(ctx, one, two.MgmtIP()) || !reaches(ctx, two, one.MigIP()) {
		t.Error("one that is no longer apart does not reach the other")
	}
	if _, err := Up(ctx, Options{Dir: TempDir(t), Apart: []string{"nobody"}}); err == nil {
		t.Error("a host that is not there was set apart")
	}
}

func TestUp_RefusesFoldersThatAreNotALab(t *testing.T) {
	Require(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(ctx1(t), Options{Dir: dir}); err == nil {
		t.Error("a lab came up in a folder that holds something else")
	}
	if err := Down(dir); err == nil || !exists(filepath.Join(dir, "precious")) {
		t.Errorf("down of a folder that is no lab: %v", err)
	}
	if _, err := Up(ctx1(t), Options{Dir: filepath.Join(t.TempDir(), "a:b")}); err == nil {
		t.Error("a lab came up in a folder that overlay mounts cannot name")
	}
	for _, names := range [][]string{{"A"}, {"x", "x"}, {"switch"}, {"a/b"}} {
		if _, err := Up(ctx1(t), Options{Dir: filepath.Join(t.TempDir(), "lab"), Names: names}); err == nil {
			t.Errorf("a lab came up with hosts %q", names)
		}
	}
}

func TestHypervisor_NamesEveryThingFound(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"run/libvirt", "etc/libvirt/qemu/networks", "proc/self/ns", "proc/10/ns", "proc/11/ns", "proc/12/ns"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link("pid:[1]", "proc/self/ns/pid")
	link("pid:[1]", "proc/10/ns/pid")
	link("pid:[2]", "proc/11/ns/pid") // another lab's
	link("pid:[1]", "proc/12/ns/pid")
	write("proc/10/comm", "virtqemud\n")
	write("proc/11/comm", "libvirtd\n")
	write("proc/12/comm", "sshd\n")
	if found := hypervisor(root); !slices.Equal(found, []string{"virtqemud runs as process 10"}) {
		t.Errorf("found %q", found)
	}
	write("etc/libvirt/qemu/web.xml", "<domain/>")
	write("etc/libvirt/qemu/networks/default.xml", "<network/>")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(root, "run/libvirt/libvirt-sock")}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	if found := hypervisor(root); len(found) != 3 || !strings.Contains(found[0], "libvirt-sock") || !strings.Contains(found[1], "web") {
		t.Errorf("found %q", found)
	}
	if err := Refuse(true); err != nil {
		t.Errorf("forced: %v", err)
	}
}
