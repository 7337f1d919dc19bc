package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// needs runs native-needs where only these programs are, shell scripts by name.
func needs(t *testing.T, programs map[string]string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sed", "cat"} {
		real, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "native-needs")
	cmd.Env = []string{"PATH=" + dir, "DIR=" + dir}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestNativeNeeds(t *testing.T) {
	const works, fails, root, user = "exit 0", "exit 1", "echo 0", "echo 1000"
	const install = `[ "$1" = -qq ] && [ "$2" = update ] || { echo "installed: $*"; echo "exit 0" >"$DIR/pkg-config"; }`
	goes := func(pkg, id string, more ...string) map[string]string {
		programs := map[string]string{"go": "echo gcc", "gcc": works, "pkg-config": pkg, "id": id}
		for i := 0; i < len(more); i += 2 {
			programs[more[i]] = more[i+1]
		}
		return programs
	}
	without := func(programs map[string]string, name string) map[string]string {
		delete(programs, name)
		return programs
	}
	both := []string{"apt-get install gcc libc6-dev pkg-config libvirt-dev", "dnf install gcc glibc-devel pkgconf-pkg-config libvirt-devel"}
	for _, tt := range []struct {
		name     string
		programs map[string]string
		refused  bool
		says     []string
	}{
		{"all is here", goes(works, user), false, nil},
		{"no headers, not root", goes(fails, user, "apt-get", install), true, append(both, "libvirt's headers")},
		{"no headers, root", goes(fails, root, "apt-get", install), false, []string{"installed: ", "libvirt-dev"}},
		{"no headers, root, nothing to install from", goes(fails, root, "apt-get", fails), true, append(both, "libvirt's headers")},
		{"no headers, root, no apt", goes(fails, root), true, both},
		{"no compiler", without(goes(works, user), "gcc"), true, append(both, "a C compiler", "(gcc)")},
		{"a compiler without headers", goes(works, user, "gcc", fails), true, []string{"a C compiler with the C library's headers"}},
		{"no pkg-config", without(goes(works, user), "pkg-config"), true, append(both, "  pkg-config\n")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := needs(t, tt.programs)
			if (err != nil) != tt.refused {
				t.Errorf("error %v, want one: %v\n%s", err, tt.refused, out)
			}
			if tt.says == nil && out != "" {
				t.Errorf("it says %q, want nothing", out)
			}
			for _, want := range tt.says {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
		})
	}
}
