package openstack

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helper is set in the process that a test starts to kill it.
const helper = "BERTH_OPENSTACK_HELPER"

func TestMain(m *testing.M) {
	for _, v := range os.Environ() { // the machine's own would lead to another cloud
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OS_") {
			_ = os.Unsetenv(name) // fails only for a name that is none
		}
	}
	if dir := os.Getenv(helper); dir != "" {
		p, err := start("child", dir, exec.Command("/bin/sh", "-c", "sleep 600 & echo $!; wait"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.cmd.Process.Pid)
		<-p.done
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestStart_NothingOutlivesAKilledTest(t *testing.T) {
	Require(t)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helper+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line := make([]byte, 32)
	n, err := out.Read(line)
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	must(t, err)
	// Its namespace has a second process, the sleep; both must go.
	namespace := fmt.Sprintf("/proc/%d/ns/pid_for_children", pid)
	if _, err := os.Stat(namespace); err != nil {
		t.Fatalf("the child does not run: %v", err)
	}
	must(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait() // which tells that it was killed
	for deadline := time.Now().Add(startLimit); ; time.Sleep(5 * time.Millisecond) {
		if err := syscall.Kill(pid, 0); err == syscall.ESRCH {
			return // the first of a namespace ends after all the others
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the child outlived the process that started it")
		}
	}
}

func TestPlacement_BelievesTheTokensItShould(t *testing.T) {
	begun := time.Now()
	k := StartKeystone(t, KeystoneOptions{})
	open := StartPlacement(t, PlacementOptions{})
	guarded := StartPlacement(t, PlacementOptions{Keystone: k})
	t.Logf("started after %v", time.Since(begun))
	open.Wait(t)
	guarded.Wait(t)
	k.Wait(t)
	t.Logf("all answer after %v", time.Since(begun))
	for _, c := range []struct {
		p     *Placement
		token string
		want  int
	}{
		{open, "admin", 200}, {open, "", 401}, {open, "user:project", 403},
		{guarded, k.Token(t, User("agent", "service")), 200}, {guarded, "admin", 401}, {guarded, k.Token(t, User("reader", "service")), 403},
	} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.p.URL+"/resource_providers", nil)
		must(t, err)
		if c.token != "" {
			q.Header.Set("X-Auth-Token", c.token)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s with token %.8q answered %s, want %d", c.p.web.name, c.token, resp.Status, c.want)
		}
	}
}
