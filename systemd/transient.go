package systemd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	Properties  []string      // what else is set of the unit, as systemd.exec(5) and its like have it; none: it may do what root may
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
	for _, p := range t.Properties {
		args = append(args, "--property="+p)
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

// endPatience bounds the end of a unit: processes that are killed, and a loaded manager.
// Arbitrary.
const endPatience = 20 * time.Second

// Output runs a transient unit to its end, and gives what it wrote to its standard output and, of
// an error, to the other one. A unit whose ctx ends is killed, and it is waited for its end, though
// not for ever: ErrClings.
func (u Units) Output(ctx context.Context, t Transient) (said, complaint []byte, err error) {
	var out, errs bytes.Buffer
	cmd := u.Transient(ctx, t)
	cmd.Stdout, cmd.Stderr = &out, &errs
	var left error
	cmd.Cancel = func() error {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
		defer cancel()
		_, left = u.End(end, t.Unit)
		return left
	}
	cmd.WaitDelay = endPatience
	if err = cmd.Run(); err == nil {
		return out.Bytes(), errs.Bytes(), nil
	}
	if ctx.Err() != nil && left == nil {
		// The manager may have begun it after it was looked for; who asked it to has gone only now.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
		defer cancel()
		_, left = u.End(end, t.Unit)
	}
	err = errors.Join(context.Cause(ctx), err, left)
	return out.Bytes(), errs.Bytes(), err
}

// ErrClings means that a unit was killed and still has processes: they wait in the kernel, for a
// device or a filesystem that does not answer, and die when it does.
var ErrClings = errors.New("its processes were killed and do not end")

// End kills every process of a transient unit and waits until they are gone; false where
// there is no such unit, or it is over. Blocks within ctx. Without an error no process of the
// unit is left.
func (u Units) End(ctx context.Context, unit string) (bool, error) {
	was, err := u.lives(ctx, unit)
	if err != nil || !was {
		return false, err
	}
	err = u.run(ctx, "stop", unit)
	// It may have ended by itself meanwhile, and been forgotten; and a unit that the manager has
	// given up on is stopped at once, with its processes.
	lives, lerr := u.lives(ctx, unit)
	switch {
	case lerr != nil:
		return false, errors.Join(err, lerr)
	case lives && err == nil:
		return false, fmt.Errorf("systemctl stop %s: %w", unit, ErrClings)
	case lives:
		return false, err
	}
	return true, nil
}

// lives says whether a unit has processes, as far as the manager knows. Those that outlive the
// kill are in the control group of a unit which the manager calls failed, once it has waited
// for them (TimeoutStopSec, systemd.service(5)).
func (u Units) lives(ctx context.Context, unit string) (bool, error) {
	said, err := u.ask(ctx, "show", "--property=ActiveState,TasksCurrent", "--", unit)
	if err != nil {
		return false, err
	}
	about := map[string]string{}
	for line := range strings.Lines(said) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		about[key] = value
	}
	switch about["ActiveState"] {
	case "inactive", "failed":
		// Not a number where there is no control group; until systemd 239 the greatest one.
		tasks, err := strconv.ParseUint(about["TasksCurrent"], 10, 64)
		return err == nil && tasks > 0 && tasks < math.MaxUint64, nil
	case "":
		return false, fmt.Errorf("systemctl show %s: it says no state", unit)
	}
	return true, nil
}
