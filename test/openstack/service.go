package openstack

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
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
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within 30 s of %s", p.name, s)
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

// web is a WSGI application of a package in gunicorn, on a port of loopback.
type web struct {
	*process
	url string

	ready sync.Once
	err   error
}

// serve starts one. The listening socket is handed down, so a client may connect
// at once; it is answered when the application is loaded. Each worker answers one
// request at a time: gunicorn's threads were seen to wedge.
func serve(name, dir string, l *net.TCPListener, workers int, application string, env ...string) (*web, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Only the child holds the socket from now on, so that one that died refuses.
	defer l.Close()
	// Its settings stand in a file, because Keystone reads the command line too.
	settings := fmt.Sprintf("wsgi_app = %q\nbind = 'fd://3'\nworkers = %d\nworker_class = 'sync'\ntimeout = 120\nloglevel = 'warning'\nworker_tmp_dir = %q\n",
		application, workers, dir)
	if err := os.WriteFile(filepath.Join(dir, "gunicorn.conf.py"), []byte(settings), 0o600); err != nil {
		return nil, err
	}
	// Debian's interpreter by its path: another one on the PATH has not these packages.
	cmd := exec.Command("/usr/bin/python3", "/usr/bin/gunicorn")
	cmd.Dir, cmd.ExtraFiles = dir, []*os.File{f}
	cmd.Env = environment(env...)
	p, err := start(name, dir, cmd)
	if err != nil {
		return nil, err
	}
	return &web{process: p, url: "http://" + l.Addr().String()}, nil
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
		transport := &http.Transport{DisableKeepAlives: true}
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/", nil)
		if err != nil {
			w.err = err
			return
		}
		resp, err := transport.RoundTrip(q)
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

// listen binds a free port of loopback.
func listen() (*net.TCPListener, error) {
	return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
}

// endWith kills the process at the end of the test, and shows what it said when
// the test failed.
func (p *process) endWith(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of what %s said:\n%s", p.name, p.words())
		}
		if err := p.stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
}
