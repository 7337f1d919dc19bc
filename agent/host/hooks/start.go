package hooks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/internal/runtime"
	"berth/systemd"
)

// A hook is started before it is on record, since only then it has a name, and stands
// before a gate until it is. The gate is a shell that becomes the hook when it is told to;
// an agent that dies before it says so closes the pipe, and the hook never begins.

// run is one hook that has been started. Its methods are called in their order; ended may
// be called at any time.
type run interface {
	// stands returns when the hook stands before its gate: what is to be on record of it.
	stands(ctx context.Context) (Process, error)
	// begin opens the gate and gives the hook its input. A hook need not read that, and one
	// that was killed reads nothing: its end says why.
	begin(input []byte)
	// wait gives how the first process ended.
	wait() error
	// end kills all processes of the hook. Of one that has ended by itself it kills what is
	// left: a phase that is over has no processes.
	end() error
}

// launch is what a hook is started with.
type launch struct {
	hook, path     string
	limit          time.Duration
	stdout, stderr io.Writer
}

// environment is all that a hook finds in its environment, but what a manager adds.
func (l launch) environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", environ + l.hook}
}

// environ marks a hook's processes, so that those which outlive the first are known.
const environ = "BERTH_HOOK="

// child is a hook that is the agent's child, for machines without a service manager: it has
// a process session of its own, and ends with its process group.
type child struct {
	hook string
	cmd  *exec.Cmd
	gate *os.File
	in   io.WriteCloser
}

// childGate reads from descriptor 3.
const childGate = `read -r go <&3 || exit 0; exec "$0" 3<&-`

func startChild(ctx context.Context, l launch) (*child, error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", childGate, l.path)
	cmd.Dir = "/"
	cmd.Env = l.environment()
	cmd.Stdout, cmd.Stderr = l.stdout, l.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c := &child{hook: l.hook, cmd: cmd}
	// The group, not the process: a shell's children are what hangs.
	cmd.Cancel = c.end
	// A child that fled into a session of its own may hold the pipes open; the
	// hook is over all the same.
	cmd.WaitDelay = time.Second
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	shut, gate, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = shut.Close() }() // the child has its own
	cmd.ExtraFiles, c.gate = []*os.File{shut}, gate
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, gate.Close())
	}
	return c, nil
}

func (c *child) stands(context.Context) (Process, error) {
	start, err := startTime(c.cmd.Process.Pid)
	return Process{Hook: c.hook, PID: c.cmd.Process.Pid, Start: start}, err
}

func (c *child) begin(input []byte) {
	_, _ = c.gate.Write([]byte("go\n"))
	_, _ = c.in.Write(input)
	_ = c.in.Close()
}

func (c *child) wait() error {
	err := c.cmd.Wait()
	_ = c.gate.Close()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it exited with 0; only a pipe was left open
	}
	return err
}

func (c *child) end() error {
	if err := syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// unit is a hook that is a transient unit of the service manager's: outside of the agent's
// sandbox, in a control group of its own, from which nothing flees.
type unit struct {
	hook, name string
	manager    systemd.Units
	rt         runtime.Runtime
	cmd        *exec.Cmd
	in         io.WriteCloser
	there      *greeting
	over       chan struct{} // closed when the command has ended, and how is known
	err        error
}

// unitGate says that it is there, and reads from the standard input, of which a shell takes
// no byte more than the line.
const unitGate = `echo; read -r go || exit 0; exec "$0"`

// After the hook's deadline the agent kills it; where there is no agent any more, the manager
// does, so much later. Arbitrary.
const managerLater = 15 * time.Second

// managerPatience bounds the end of a unit: processes that are killed, and a loaded manager.
// Arbitrary.
const managerPatience = 20 * time.Second

// startUnit asks the manager for a unit, and does not wait for the answer.
func startUnit(ctx context.Context, rt runtime.Runtime, manager systemd.Units, l launch) (*unit, error) {
	u := &unit{hook: l.hook, name: unitName(l.hook), manager: manager, rt: rt, there: newGreeting(l.stdout), over: make(chan struct{})}
	u.cmd = manager.Transient(ctx, systemd.Transient{
		Unit: u.name, Description: "Berth, hook " + l.hook, Env: l.environment(), Limit: l.limit + managerLater,
		Command: []string{"/bin/sh", "-c", unitGate, l.path},
	})
	u.cmd.Stdout, u.cmd.Stderr = u.there, l.stderr
	// The command ends when its unit has; that is what is ended. Only when that does not help
	// the command itself is killed, and the hook is what the manager makes of it.
	u.cmd.Cancel = u.end
	u.cmd.WaitDelay = managerPatience
	var err error
	if u.in, err = u.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := u.cmd.Start(); err != nil {
		return nil, err
	}
	rt.Go("hook "+l.hook, func() {
		if u.err = u.cmd.Wait(); errors.Is(u.err, exec.ErrWaitDelay) {
			u.err = nil // as of a child
		}
		close(u.over)
		u.there.tell()
	})
	return u, nil
}

// unitName is one that no other hook has or had.
func unitName(hook string) string {
	const longest = 120 // of what a unit's name may have, 255, with room for the rest
	name := strings.ReplaceAll(hook, "/", "-")
	return "berth-hook-" + name[:min(len(name), longest)] + "-" + strings.ToLower(rand.Text()[:12]) + ".service"
}

func (u *unit) stands(ctx context.Context) (Process, error) {
	if err := runtime.Await(ctx, u.rt, u.there.heard); err != nil {
		return Process{}, err
	}
	select {
	case <-u.over:
		return Process{}, cmp.Or(u.err, errors.New("its unit has ended before it began"))
	default:
		return Process{Hook: u.hook, Unit: u.name}, nil
	}
}

func (u *unit) begin(input []byte) {
	_, _ = u.in.Write(append([]byte("go\n"), input...))
	_ = u.in.Close()
}

func (u *unit) wait() error {
	<-u.over
	return u.err
}

func (u *unit) end() error {
	select {
	case <-u.over:
		if u.err == nil {
			return nil // the manager has said that the unit is over
		}
	default:
	}
	ctx, cancel := u.rt.WithTimeout(context.Background(), managerPatience)
	defer cancel()
	_, err := u.manager.End(ctx, u.name)
	// After the kill, since an end of file is what many a hook waits for; a gate that could not
	// be killed goes away of it.
	_ = u.in.Close()
	return err
}

// greeting takes the gate's line from what a hook writes, tells of it, and passes on the rest.
type greeting struct {
	heard chan struct{} // closed with the line, or by tell
	tell  func()
	gone  bool // the line is
	to    io.Writer
}

func newGreeting(to io.Writer) *greeting {
	g := &greeting{heard: make(chan struct{}), to: to}
	g.tell = sync.OnceFunc(func() { close(g.heard) })
	return g
}

// Write fails only where passing on does.
func (g *greeting) Write(p []byte) (int, error) {
	rest := p
	if !g.gone {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			return len(p), nil
		}
		rest, g.gone = p[i+1:], true
		g.tell()
	}
	if _, err := g.to.Write(rest); err != nil {
		return 0, err
	}
	return len(p), nil
}

// start starts a hook, which then stands before its gate.
func (r *Runner) start(ctx context.Context, hook string, set Setting, stdout, stderr io.Writer) (run, error) {
	l := launch{hook: hook, path: filepath.Join(r.Dir, hook), limit: set.Timeout, stdout: stdout, stderr: stderr}
	if r.Manager != nil {
		return startUnit(ctx, r.Runtime, *r.Manager, l)
	}
	return startChild(ctx, l)
}
