package openstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// startLimit is how long a service may take to its first answer. It takes one to
// five seconds here; a machine with much else to do takes several times as long.
const startLimit = 90 * time.Second

// process is a child that ends with this one.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // the file with all it said

	done chan struct{} // closed when it has ended
	err  error         // set before done is closed
}

// start begins a child in a process namespace of its own, in which it is the
// first: when it is killed all that it started is killed too. The kernel kills it
// when the thread that started it ends; Go ends a thread only with a goroutine
// that locked it, which no caller does, so that means this process.
func start(name, dir string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop sends the signal and waits; one that does not obey is killed.
func (p *process) stop(s syscall.Signal) error {
	_ = p.cmd.Process.Signal(s) // it may have ended already, which done tells
	select {
	case <-p.done:
		return nil
	case <-time.After(startLimit):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %v of %s", p.name, startLimit, s)
	}
}

// words is the end of what it said.
func (p *process) words() string {
	b, _ := os.ReadFile(p.log)
	if len(b) > 6000 {
		b = b[len(b)-6000:]
	}
	return string(b)
}

// ended is nil while it runs, else why it does not.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v):\n%s", p.name, p.err, p.words())
	default:
		return nil
	}
}

// application is a WSGI application of a package, and how it is run.
type application struct {
	name, dir string
	callable  string // module:callable
	env       []string
	workers   int
	authority *Authority // signs the certificate of a TLS server; nil for plain HTTP
	// resets is uWSGI as --http-socket runs it: each connection is closed after one
	// answer that does not say so, and a client that sends on it is answered by a reset.
	resets bool
}

// web is an application that runs on a port of loopback.
type web struct {
	*process
	app  application
	url  string
	port int
	held *os.File // the bound socket while the application is stopped

	ready sync.Once
	err   error
}

// serve starts one. The listening socket is handed down, so a client may connect
// at once; it is answered when the application is loaded.
func serve(a application) (*web, error) {
	f, port, err := bound(0)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if a.authority != nil {
		scheme = "https"
	}
	w := &web{app: a, port: port, url: fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)}
	return w, w.run(f)
}

// run starts the process on the bound socket, which it alone holds from then on,
// so that one that died refuses.
func (w *web) run(socket *os.File) (err error) {
	defer func() { err = errors.Join(err, socket.Close()) }()
	if err := unix.Listen(int(socket.Fd()), 128); err != nil {
		return fmt.Errorf("start %s: listen: %w", w.app.name, err)
	}
	cmd := w.gunicorn
	if w.app.resets {
		cmd = w.uwsgi
	}
	c, err := cmd()
	if err != nil {
		return err
	}
	c.Dir, c.ExtraFiles, c.Env = w.app.dir, []*os.File{socket}, environment(w.app.env...)
	w.process, err = start(w.app.name, w.app.dir, c)
	return err
}

// gunicorn answers one request at a time in each worker: its threads were seen to
// wedge. Its settings stand in a file, because Keystone reads the command line too.
func (w *web) gunicorn() (*exec.Cmd, error) {
	settings := fmt.Sprintf("wsgi_app = %q\nbind = 'fd://3'\nworkers = %d\nworker_class = 'sync'\ntimeout = 120\nloglevel = 'warning'\nworker_tmp_dir = %q\n",
		w.app.callable, w.app.workers, w.app.dir)
	if w.app.authority != nil {
		settings += fmt.Sprintf("certfile = %q\nkeyfile = %q\n", w.app.authority.cert, w.app.authority.key)
	}
	// Debian's interpreter by its path: another one on the PATH has not these packages.
	return exec.Command("/usr/bin/python3", "/usr/bin/gunicorn"), os.WriteFile(filepath.Join(w.app.dir, "gunicorn.conf.py"), []byte(settings), 0o600)
}

func (w *web) uwsgi() (*exec.Cmd, error) {
	return exec.Command("/usr/bin/uwsgi_python3", "--http-socket", "fd://3", "--module", w.app.callable, "--need-app", "--master", "--lazy-apps", "--enable-threads",
		"--processes", strconv.Itoa(w.app.workers), "--buffer-size", "65535", "--die-on-term", "--disable-logging"), nil
}

// transport reaches it, with a connection for each request.
func (w *web) transport() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, TLSClientConfig: w.app.authority.trust()}
}

// halt kills it and keeps its port, on which nobody listens: clients are refused.
func (w *web) halt() error {
	if err := w.stop(syscall.SIGKILL); err != nil {
		return err
	}
	var err error
	w.held, _, err = bound(w.port)
	return err
}

// again starts it on the port it had.
func (w *web) again() error {
	socket := w.held
	w.held, w.ready, w.err = nil, sync.Once{}, nil
	return w.run(socket)
}

// endWith kills the process of that time at the end of the test.
func (w *web) endWith(t testing.TB) {
	t.Cleanup(func() {
		if w.held != nil {
			_ = w.held.Close() // nobody listens on it
		}
		w.finish(t)
	})
}

// bound is a socket on a port of loopback, or on a free one for 0, on which nobody
// listens yet.
func bound(port int) (*os.File, int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("make a socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // over connections that were just closed
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	var at unix.Sockaddr
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("bind port %d of loopback: %w", port, err), f.Close())
	}
	return f, at.(*unix.SockaddrInet4).Port, nil
}

// environment is the machine's without what would lead OpenStack's programs to
// another cloud or configuration.
func environment(more ...string) []string {
	var out []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "OS_") && !strings.HasPrefix(e, "PYTHON") && !strings.HasSuffix(strings.ToLower(strings.SplitN(e, "=", 2)[0]), "_proxy") {
			out = append(out, e)
		}
	}
	return append(out, more...)
}

// wait blocks until the first answer, of whatever status.
func (w *web) wait(ctx context.Context) error {
	w.ready.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		defer cancel()
		go func() { // a dead service must not be waited for
			select {
			case <-w.done:
				cancel()
			case <-ctx.Done():
			}
		}()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/", nil)
		if err != nil {
			w.err = err
			return
		}
		resp, err := w.transport().RoundTrip(q)
		if err != nil {
			if e := w.ended(); e != nil {
				err = e
			}
			w.err = fmt.Errorf("wait for %s: %w\n%s", w.name, err, w.words())
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	})
	return w.err
}

// endWith kills the process at the end of the test, and shows what it said when
// the test failed.
func (p *process) endWith(t testing.TB) { t.Cleanup(func() { p.finish(t) }) }

func (p *process) finish(t testing.TB) {
	if t.Failed() {
		t.Logf("the end of what %s said:\n%s", p.name, p.words())
	}
	if err := p.stop(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}
