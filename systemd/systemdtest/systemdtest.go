// Package systemdtest has a service manager for tests: its tools are scripts, and its units
// children of whoever starts them.
package systemdtest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"berth/systemd"
)

// runs is systemd-run, as systemd.Transient calls it: it notes how it was asked, and becomes what
// the manager would start.
const runs = `#!/bin/sh
printf '%s\n' "$@" >>"${0%/*}/asked"
while [ "$1" != -- ]; do
	case "$1" in
	--setenv=*) export "${1#--setenv=}" ;;
	--unit=*) echo $$ >"${0%/*}/${1#--unit=}" ;;
	esac
	shift
done
shift
left=$#
while [ $left -gt 0 ]; do
	set -- "$@" "$(printf '%s\n' "$1" | sed 's/[$][$]/$/g')"
	shift
	left=$((left - 1))
done
exec "$@"
`

// asks is systemctl: it kills what runs, and of a unit that is over it says what stands in the file
// beside it.
const asks = `#!/bin/sh
dir=${0%/*} verb=$3
for unit; do :; done
pid=$(cat "$dir/$unit" 2>/dev/null) && kill -0 "$pid" 2>/dev/null || pid=
case "$verb" in
show) if [ "$pid" ]; then echo ActiveState=active; else cat "$dir/state"; fi ;;
stop) [ -z "$pid" ] || { kill -9 "$pid" && rm "$dir/$unit"; } ;;
esac
`

// Manager is one whose units are children of this test.
type Manager struct {
	systemd.Units
	t   *testing.T
	dir string
}

// New gives a manager that says of a unit that has ended that nothing of it is left.
func New(t *testing.T) *Manager {
	t.Helper()
	m := &Manager{t: t, dir: t.TempDir()}
	m.Units = systemd.Units{SystemdRun: m.put("systemd-run", runs, 0o755), Systemctl: m.put("systemctl", asks, 0o755)}
	m.Clings(false)
	return m
}

// Clings has every unit keep processes that nobody can kill, as those are that wait for a
// device; or not any more.
func (m *Manager) Clings(so bool) {
	m.t.Helper()
	state := "ActiveState=inactive\nTasksCurrent=[not set]\n"
	if so {
		state = "ActiveState=failed\nTasksCurrent=1\n"
	}
	m.put("state", state, 0o644)
}

// Refuses has the manager start nothing, and say why.
func (m *Manager) Refuses(why string) {
	m.t.Helper()
	m.put("systemd-run", "#!/bin/sh\necho '"+why+"' >&2\nexit 1\n", 0o755)
}

// Asked are the words of all calls of systemd-run, a line each.
func (m *Manager) Asked() string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "asked"))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

func (m *Manager) put(name, text string, mode os.FileMode) string {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	// A program that is begun meanwhile would hold the script open, and it could not be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
	return path
}
