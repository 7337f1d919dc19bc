package drivertest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth/driver"
)

// go test calls a skipped test passed. A property is held, or declared impossible.
func TestRun_FailsWhereAPropertyIsSkipped(t *testing.T) {
	const inner = "BERTH_SKIPPING_HARNESS"
	if os.Getenv(inner) != "" {
		results := Run(t, Harness{
			Only: func(p string) bool { return p == "Node_NamesItself" },
			New:  func(t testing.TB) driver.Driver { t.Skip("no hypervisor"); return nil },
		})
		t.Logf("results: %+v", results)
		return
	}
	// A test that fails cannot be looked at from within.
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inner+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Node_NamesItself was skipped") || !strings.Contains(string(out), "map[Node_NamesItself:{Passed:false Impossible:}]") {
		t.Errorf("a run whose one property is skipped: %v, want a failure that says so:\n%s", err, out)
	}
}
