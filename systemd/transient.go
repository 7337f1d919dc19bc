package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Manager is systemd where it has started this very process as a service's ($SYSTEMD_EXEC_PID,
// systemd.exec(5); from systemd 248 on), and nil elsewhere: the process is then in that
// service's sandbox, and the manager can be asked to start what must not be.
func Manager() *Units {
	pid, err := strconv.Atoi(os.Getenv("SYSTEMD_EXEC_PID"))
	if err != nil || pid != os.Getpid() || !Running() {
		return nil
	}
	return &Units{}
}

// Transient is a program to be run as a unit of its own: a child of the manager's, in a
// control group of its own, with nothing of the caller's sandbox. It lives on when the
// caller dies; the manager forgets it when it is over, however it ended.
type Transient struct {
	Unit        string        // its name, with .service; no other unit may ever have it
	Description string        // for systemctl and the journal
	Env         []string      // KEY=value; nothing of the caller's is given on
	Limit       time.Duration // after which the manager kills it, whoever still looks at it; 0 for none
	Command     []string      // absolute path of the program, and its arguments
}

// Transient gives the command (systemd-run(1)) that starts a transient unit and waits for
// it: its standard streams are the program's own, its exit status is the program's, 1 where
// the program was killed or could not be started. When it has ended by itself no process of
// the unit is left, also none that has fled into a session of its own.
//
// Killing the command does not end the unit: End does.
func (u Units) Transient(ctx context.Context, t Transient) *exec.Cmd {
	args := []string{
		"--quiet", "--no-ask-password", "--collect", "--wait", "--pipe", "--service-type=exec", "--unit=" + t.Unit, "--description=" + t.Description,
		// A unit is over with its first process, and all others of it are killed then; so they
		// are when it is told to end.
		"--property=KillMode=control-group", "--property=KillSignal=SIGKILL",
		// A machine on its way down stops the agent in its order, and not what the agent still needs
		// for a move; without this it would also refuse to start another one.
		"--property=DefaultDependencies=no",
	}
	if t.Limit > 0 {
		args = append(args, fmt.Sprintf("--property=RuntimeMaxSec=%dms", t.Limit.Milliseconds()))
	}
	for _, e := range t.Env {
		args = append(args, "--setenv="+e)
	}
	args = append(args, "--")
	for _, a := range t.Command {
		args = append(args, strings.ReplaceAll(a, "$", "$$")) // no variables of the manager's
	}
	cmd := exec.CommandContext(ctx, cmp.Or(u.SystemdRun, "systemd-run"), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	return cmd
}

// End kills every process of a transient unit and waits until they are gone; false where
// there is no such unit, or it is over. Blocks within ctx.
func (u Units) End(ctx context.Context, unit string) (bool, error) {
	was, err := u.lives(ctx, unit)
	if err != nil || !was {
		return false, err
	}
	err = u.run(ctx, "stop", unit)
	if err == nil {
		return true, nil
	}
	// It may have ended by itself meanwhile, and been forgotten.
	if lives, lerr := u.lives(ctx, unit); lerr != nil || lives {
		return false, errors.Join(err, lerr)
	}
	return true, nil
}

// lives says whether a unit has processes, as far as the manager knows.
func (u Units) lives(ctx context.Context, unit string) (bool, error) {
	state, err := u.ask(ctx, "show", "--property=ActiveState", "--value", "--", unit)
	switch {
	case err != nil:
		return false, err
	case state == "inactive", state == "failed":
		return false, nil
	case state == "":
		return false, fmt.Errorf("systemctl show %s: it says no state", unit)
	}
	return true, nil
}
