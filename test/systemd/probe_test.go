package systemd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"berth/agent/host/hooks"
	"berth/systemd"
)

// probeEnv names what this program does in the agent's place; else it tests.
const probeEnv = "BERTH_TEST_PROBE"

// What the probe reads, and what it leaves.
const (
	hooksDir  = "/etc/berth/hooks.d"
	probeDir  = "/var/lib/berth/probe"
	processAt = probeDir + "/process.json"
)

func TestMain(m *testing.M) {
	mode := os.Getenv(probeEnv)
	if mode == "" {
		code := m.Run()
		if built.dir != "" {
			_ = os.RemoveAll(built.dir) // in the machine's own folder for such things
		}
		os.Exit(code)
	}
	if err := probe(mode); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// probe does what an agent does, as a service of systemd's and in the agent's sandbox.
//
//	run           has the hooks of three phases run
//	pre_evacuate  has those of this phase run, and dies before the first is on record
//	post_evacuate has those of this phase run
//	end           ends the hook that is on record
//	stream        opens a stream, as the destination of a move
//	found         finds it, and closes it
//	disk          makes a guest's disk and gives it to its user
//	writers       looks who writes to it
func probe(mode string) error {
	manager := systemd.Manager()
	if manager == nil {
		return errors.New("it is not a service of systemd's")
	}
	if err := os.MkdirAll(probeDir, 0o700); err != nil {
		return err
	}
	switch mode {
	case "end":
		return endRecorded()
	case "stream":
		return openStream()
	case "found":
		return closeStream()
	case "disk":
		return makeDisk()
	case "writers":
		return lookForWriters()
	case "run":
		return runHooks(manager, mode, hooks.PreLiveMigration, hooks.PostLiveMigration, hooks.PrepResize)
	}
	return runHooks(manager, mode, mode)
}

// keep leaves what the probe has found for the test.
func keep(name string, found any) error {
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(probeDir, name+".json"), text, 0o600)
}

// kept gives the test what the probe has left.
func kept[T any](m *machine, name string) T {
	m.t.Helper()
	var found T
	if err := json.Unmarshal([]byte(m.read(filepath.Join(probeDir, name+".json"))), &found); err != nil {
		m.t.Fatal(err)
	}
	return found
}

// probe starts the probe, and waits for its end, which must be this.
func (m *machine) probe(mode, result string) {
	m.t.Helper()
	unit := "berth-probe@" + mode + ".service"
	m.run("systemctl", "start", unit)
	m.await("the probe's end", func() error {
		if state := m.property(unit, "ActiveState"); state != "inactive" && state != "failed" {
			return errors.New("it is " + state)
		}
		return nil
	})
	if got := m.property(unit, "Result"); got != result {
		m.t.Fatalf("the probe %s ended with %s:\n%s", mode, got, m.journal(unit))
	}
}
