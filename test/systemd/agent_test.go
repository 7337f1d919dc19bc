package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// service is the agent's.
const service = "berth.service"

// TestBoot is one machine's life: what comes later finds what was before.
func TestBoot(t *testing.T) {
	require(t)
	dir := t.TempDir()
	files := packages(t)
	files["/usr/lib/systemd/system/berth-probe@.service"] = probeUnit(t, dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files["/usr/bin/berth-probe"] = self
	m := boot(t, "berth-test", files)
	began := time.Now()
	for _, story := range []struct {
		name string
		tell func(*testing.T, *machine)
	}{
		{"installed", installs},
		{"the agent starts in its sandbox", starts},
		{"hooks run outside of it", hooksRunOutside},
		{"a hook that an agent left behind is ended", hooksAreFoundAgain},
		{"a stream outlives the agent that opened it", streamsOutlive},
		{"disks are made and looked after in the sandbox", disksInSandbox},
		{"what a guest needs begins", standInsBegin},
		{"a reload", reloads},
		{"a reload with a fault in the file", reloadsFaults},
		{"no request is lost over a restart", restarts},
		{"upgraded", upgrades},
		{"killed", killed},
		{"a panic", panics},
		{"the watchdog", watchdog},
		{"a configuration that is wrong", misconfigured},
		{"the embedded Placement", placement},
		{"stopped", stops},
		{"removed and purged", removes},
		{"what a guest needs has lived on", standInsLive},
	} {
		t.Run(story.name, func(t *testing.T) {
			m := m.in(t)
			start := time.Now()
			story.tell(t, m)
			t.Logf("%.1f s", time.Since(start).Seconds())
			if t.Failed() {
				t.Logf("journal:\n%s", tail([]byte(m.journal(service)), 40))
			}
		})
	}
	t.Logf("%.1f s in all", time.Since(began).Seconds())
}

// probeUnit is the agent's service with the probe in the agent's place: in the same sandbox, by
// the same words.
func probeUnit(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile("../../systemd/berth.service")
	if err != nil {
		t.Fatal(err)
	}
	probe := string(text)
	for was, is := range map[string]string{
		"Type=notify\n":                              "Type=exec\n",
		"ExecStart=/usr/bin/berth agent\n":           "ExecStart=/usr/bin/berth-probe\nEnvironment=" + probeEnv + "=%i\n",
		"Restart=always\n":                           "Restart=no\n",
		"WatchdogSec=60\n":                           "",
		"Wants=network-online.target berth.socket\n": "",
	} {
		if !strings.Contains(probe, was) {
			t.Fatalf("berth.service has no line %q", was)
		}
		probe = strings.Replace(probe, was, is, 1)
	}
	path := filepath.Join(dir, "berth-probe@.service")
	if err := os.WriteFile(path, []byte(probe), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// configure writes the agent's configuration, to which more is added.
func configure(m *machine, more string) {
	m.write("/etc/berth/berth.toml", "[agent]\n"+more, 0o644)
}

func starts(t *testing.T, m *machine) {
	begin := time.Now()
	m.run("systemctl", "start", service)
	t.Logf("ready after %.2f s, %s KiB resident", time.Since(begin).Seconds(), m.status("VmRSS"))
	if got := m.property(service, "ActiveState"); got != "active" {
		t.Errorf("the agent is %s", got)
	}
	if got := m.property("berth.socket", "ActiveState"); got != "active" {
		t.Errorf("its socket is %s", got)
	}
	if got := m.property(service, "StatusText"); !strings.HasPrefix(got, "observe, 0 guests") {
		t.Errorf("it says of itself %q", got)
	}
	fi, err := os.Stat(m.path("/run/berth/berth.sock"))
	if err != nil || fi.Mode().Perm() != 0o660 || fi.Sys().(*syscall.Stat_t).Gid == 0 {
		t.Errorf("the API's socket: %v, %v; want root:berth 0660", fi.Mode(), err)
	}
	if err := m.ask("/v1/claims"); err != nil {
		t.Error(err)
	}
	// chown, dac_override, dac_read_search, fowner, sys_ptrace, lease
	if got, want := m.status("CapBnd"), fmt.Sprintf("%016x", 1<<0|1<<1|1<<2|1<<3|1<<19|1<<28); got != want {
		t.Errorf("of root it has the capabilities %s, want %s", got, want)
	}
	// The container filters those of all its processes.
	if got, all := m.status("Seccomp_filters"), m.statusOf("1", "Seccomp_filters"); got == all {
		t.Errorf("system calls are not filtered: %s filters, as process 1 has", got)
	}
	// Nothing that the agent looks at is held back from it. The exit status tells of the machine,
	// which has no libvirt.
	doctor, _ := m.try("berth", "doctor", "-o", "json")
	if !strings.Contains(doctor, `"clock"`) {
		t.Errorf("berth doctor does not look at the clock: %s", doctor)
	}
	for _, held := range []string{"operation not permitted", "permission denied", "timedated"} {
		if strings.Contains(doctor, held) {
			t.Errorf("the sandbox holds something back: %s", doctor)
		}
	}
}

// status is a field of the agent's /proc/PID/status, the first of its words.
func (m *machine) status(field string) string {
	m.t.Helper()
	return m.statusOf(m.property(service, "MainPID"), field)
}

func (m *machine) statusOf(pid, field string) string {
	m.t.Helper()
	for line := range strings.Lines(m.read("/proc/" + pid + "/status")) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			return strings.Fields(value)[0]
		}
	}
	m.t.Fatalf("/proc/PID/status has no field %s", field)
	return ""
}

// ask gets a page of the agent's, over a connection of its own.
func (m *machine) ask(path string) error {
	client := http.Client{
		Timeout: patience,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", m.path("/run/berth/berth.sock"))
		}},
	}
	answer, err := client.Get("http://berth" + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return err
}

// kill sends a signal to the agent, and gives its pid in the machine.
func (m *machine) kill(signal string) string {
	m.t.Helper()
	pid := m.property(service, "MainPID")
	m.run("kill", "-"+signal, pid)
	return pid
}

// awaitAnother waits until an agent runs, and answers, that is not the one with this pid.
func (m *machine) awaitAnother(pid string) {
	m.t.Helper()
	m.await("another agent", func() error {
		if now := m.property(service, "MainPID"); now == "0" || now == pid {
			return errors.New("the agent's process is " + now)
		}
		if state := m.property(service, "ActiveState"); state != "active" {
			return errors.New("the agent is " + state)
		}
		return m.ask("/v1/claims")
	})
}

func reloads(t *testing.T, m *machine) {
	pid := m.property(service, "MainPID")
	configure(m, "log_level = \"debug\"\n")
	m.run("systemctl", "reload", service)
	m.await("reload", func() error {
		if log := m.journal(service); !strings.Contains(log, "configuration read again") {
			return errors.New("it has not read its configuration again")
		}
		if state := m.property(service, "ActiveState"); state != "active" {
			return errors.New("the agent is " + state)
		}
		return nil
	})
	if now := m.property(service, "MainPID"); now != pid {
		t.Errorf("the agent was %s and is %s", pid, now)
	}
	if log := m.journal(service); !strings.Contains(log, "key=agent.log_level") {
		t.Error("what has changed is not told")
	}
}

func reloadsFaults(t *testing.T, m *machine) {
	pid := m.property(service, "MainPID")
	configure(m, "no_such_key = 1\n")
	m.run("systemctl", "reload", service)
	m.await("fault", func() error {
		if log := m.journal(service); !strings.Contains(log, "configuration not taken") {
			return errors.New("it has not said what is wrong")
		}
		if says := m.property(service, "StatusText"); !strings.Contains(says, "configuration:") || !strings.Contains(says, "no_such_key") {
			return errors.New("it says of itself " + says)
		}
		if state := m.property(service, "ActiveState"); state != "active" {
			return errors.New("the agent is " + state)
		}
		return m.ask("/v1/claims")
	})
	if now := m.property(service, "MainPID"); now != pid {
		t.Errorf("the agent was %s and is %s", pid, now)
	}
	configure(m, "")
}

// restarts: the socket is systemd's, and who asks meanwhile waits.
func restarts(t *testing.T, m *machine) {
	pid := m.property(service, "MainPID")
	begin := time.Now()
	var took time.Duration
	answered := m.whileAsking(func() {
		m.run("systemctl", "restart", service)
		took = time.Since(begin)
		m.awaitAnother(pid)
	})
	t.Logf("%d requests answered meanwhile; restarted in %.2f s", answered, took.Seconds())
}

// whileAsking asks the agent all the while, and fails where a request is lost. It gives how many
// were answered.
func (m *machine) whileAsking(do func()) int {
	m.t.Helper()
	stop := make(chan struct{})
	var asking sync.WaitGroup
	var mu sync.Mutex // guards what follows
	answered, lost := 0, []error{}
	for range 4 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := m.ask("/v1/claims")
				mu.Lock()
				if answered++; err != nil {
					lost = append(lost, err)
				}
				mu.Unlock()
			}
		})
	}
	func() {
		defer asking.Wait()
		defer close(stop)
		do()
	}()
	if len(lost) > 0 {
		m.t.Errorf("%d of %d requests were lost, the first: %v", len(lost), answered, lost[0])
	}
	return answered
}

func killed(t *testing.T, m *machine) {
	before := m.number(service, "NRestarts")
	m.awaitAnother(m.kill("KILL"))
	if now := m.number(service, "NRestarts"); now != before+1 {
		t.Errorf("restarted %d times, and %d before", now, before)
	}
}

// panics: Go ends a program that panics, and one that is sent SIGABRT, with status 2, which is
// also that of a configuration that is wrong, after which nothing is tried again.
func panics(t *testing.T, m *machine) {
	m.awaitAnother(m.kill("ABRT"))
	if log := m.journal(service); !strings.Contains(log, "\ngoroutine 1 ") {
		t.Error("it does not say where it stood")
	}
}

func watchdog(t *testing.T, m *machine) {
	m.shortenWatchdog()
	// It is fed: an agent that works outlives the period.
	pid := m.property(service, "MainPID")
	first := m.number(service, "WatchdogTimestampMonotonic")
	m.await("a sign of life", func() error {
		if m.number(service, "WatchdogTimestampMonotonic") == first {
			return errors.New("the watchdog was not fed since the start")
		}
		return nil
	})
	if now := m.property(service, "MainPID"); now != pid {
		t.Errorf("the agent was %s and is %s", pid, now)
	}
	watchdogBites(t, m)
}

func (m *machine) shortenWatchdog() {
	m.t.Helper()
	m.write("/run/systemd/system/berth.service.d/watchdog.conf", "[Service]\nWatchdogSec=8\n", 0o644)
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", service)
}

// bitten is watchdog for a machine that has much else to do.
func bitten(t *testing.T, m *machine) {
	m.shortenWatchdog()
	watchdogBites(t, m)
}

// watchdogBites: an agent that stands still is ended, and followed by another.
func watchdogBites(t *testing.T, m *machine) {
	m.awaitAnother(m.kill("STOP"))
	if log := m.journal(service); !strings.Contains(log, "Watchdog timeout") || !strings.Contains(log, "Failed with result 'watchdog'") {
		t.Error("it was not the watchdog that ended it")
	}
	if err := os.Remove(m.path("/run/systemd/system/berth.service.d/watchdog.conf")); err != nil {
		t.Error(err)
	}
	m.run("systemctl", "daemon-reload")
}

// misconfigured: an agent that runs is not replaced by one that could not start, which is not tried
// again and again; one that can is found at the same socket.
func misconfigured(t *testing.T, m *machine) {
	configure(m, "no_such_key = 1\n")
	runs := m.property(service, "MainPID")
	m.dpkg("--install", newerDeb)
	if now := m.property(service, "MainPID"); now != runs {
		t.Errorf("an upgrade with a fault in the configuration has replaced agent %s by %s", runs, now)
	}
	if out, err := m.try("systemctl", "restart", service); err == nil {
		t.Errorf("it starts with a fault in its configuration: %s", out)
	}
	if state, status := m.property(service, "ActiveState"), m.number(service, "ExecMainStatus"); state != "failed" || status != 2 {
		t.Errorf("it is %s with status %d, want failed with 2", state, status)
	}
	// Who asks starts it again; it fails again, as often as the socket allows.
	asks, err := net.DialTimeout("unix", m.path("/run/berth/berth.sock"), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	m.await("end of the trials", func() error {
		if state := m.property("berth.socket", "ActiveState"); state != "failed" {
			return errors.New("the socket is " + state)
		}
		return nil
	})
	configure(m, "")
	m.run("systemctl", "start", service)
	m.await("answer", func() error { return m.ask("/v1/claims") })
	if state := m.property("berth.socket", "ActiveState"); state != "active" {
		t.Errorf("its socket is %s", state)
	}
}

func placement(t *testing.T, m *machine) {
	m.run("systemctl", "start", "berth-placement.service")
	if got := m.property("berth-placement.service", "StatusText"); !strings.HasPrefix(got, "serving on 127.0.0.1:8778") {
		t.Errorf("it says of itself %q", got)
	}
	fi, err := os.Stat(m.path("/var/lib/berth-placement/placement.db"))
	if err != nil || fi.Sys().(*syscall.Stat_t).Uid == 0 || fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("its file: %v, %v; want it not root's, and for nobody else", fi, err)
	}
	configure(m, "[placement]\nurl = \"http://127.0.0.1:8778\"\n")
	m.run("systemctl", "restart", service)
	m.await("the agent finds it", func() error {
		if log := m.journal("berth-placement.service"); strings.Contains(log, "panic") {
			t.Fatal(log)
		}
		if got := m.property(service, "StatusText"); strings.Contains(got, "placement:") {
			return errors.New(got)
		}
		return nil
	})
	m.run("systemctl", "restart", "berth-placement.service")
	m.run("systemctl", "stop", "berth-placement.service")
	if got := m.property("berth-placement.service", "Result"); got != "success" {
		t.Errorf("it ends with %s", got)
	}
	configure(m, "")
}

func stops(t *testing.T, m *machine) {
	m.run("systemctl", "stop", "berth.socket", service)
	if state := m.property(service, "Result"); state != "success" {
		t.Errorf("it ends with %s", state)
	}
	if _, err := os.Stat(m.path("/run/berth")); err != nil {
		t.Errorf("what hooks of libvirt read while the agent is down is gone: %v", err)
	}
	if mode := func() string {
		fi, _ := os.Stat(m.path("/var/lib/berth"))
		return strconv.FormatUint(uint64(fi.Mode().Perm()), 8)
	}(); mode != "700" {
		t.Errorf("the ledger's folder has mode %s", mode)
	}
}
