package stream

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"berth/systemd"
)

// Units starts each process as a unit of the service manager, an instance of the
// template berth-stream@.service: out of the agent's control group, hardened, its
// words in the journal. The template's folder is fixed, so Units serves the
// packaged folder alone.
type Units struct{ Systemd systemd.Units }

// PackagedDir is the folder of streams that the unit's template names.
const PackagedDir = "/run/berth/streams"

// Start implements Starter.
func (u Units) Start(ctx context.Context, id ID, dir string) (*Started, error) {
	if filepath.Dir(dir) != PackagedDir {
		return nil, fmt.Errorf("start a unit for %s: units serve %s alone", dir, PackagedDir)
	}
	return &Started{}, u.Systemd.Start(ctx, "berth-stream@"+id.String()+".service")
}

// Children starts each process as a child in a session of its own, for machines
// without a service manager. It is no more the agent's than a unit is: it has none
// of its descriptors, no terminal, another process group, and is adopted by
// process 1 when the agent dies. Its words go to the session's log.
type Children struct {
	// Command is the program with its first arguments; the session's folder is
	// added. Nil is this very program: `berth stream run`.
	Command []string
}

// Start implements Starter.
func (c Children) Start(_ context.Context, id ID, dir string) (*Started, error) {
	command := c.Command
	if command == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		command = []string{self, "stream", "run"}
	}
	log, err := os.OpenFile(PathsOf(filepath.Dir(dir), id).log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], append(slices.Clone(command[1:]), dir)...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	// What the agent was given is none of its business: NOTIFY_SOCKET, LISTEN_FDS,
	// credentials of clouds.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process: %w", err)
	}
	ended := make(chan struct{})
	// Nobody waits for this goroutine: the child may live for hours, and the agent
	// stops when it is told to. While the agent runs, a child that ends is no zombie.
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended, its folder says
	}()
	return &Started{Ended: ended}, nil
}
