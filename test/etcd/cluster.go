package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Options say what a cluster is like.
type Options struct {
	Members int // 0 for 3
	// CA, Cert and Key are files: clients speak TLS and show a certificate.
	CA, Cert, Key string
}

// Cluster is members 0 to n-1. Its methods are for one goroutine.
type Cluster struct {
	t         testing.TB
	options   Options
	binary    string
	dir       string
	members   []*member
	Endpoints []string // by member

	// mu guards pids, which proxies read; nothing slow happens under it.
	mu   sync.Mutex
	pids []int // by member; 0 for one that never ran
}

type member struct {
	name   string
	client string // host:port
	peer   string // host:port that it listens on
	args   []string
	log    string
	proxy  *proxy

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Require skips the test where there is no etcd.
func Require(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("members of etcd are not started in short tests")
	}
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("etcd is not installed: `lab install -etcd` adds Debian's etcd-server")
	}
	return path
}

// Start brings a cluster up and waits until it serves. It ends with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.Members == 0 {
		o.Members = 3
	}
	c := &Cluster{t: t, options: o, binary: Require(t)}
	// Members sync each write; in memory that costs nothing.
	dir, err := os.MkdirTemp("/dev/shm", "berth-etcd-")
	if err != nil {
		dir, err = os.MkdirTemp("", "berth-etcd-")
	}
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	t.Cleanup(c.down)
	scheme := "http"
	if o.CA != "" {
		scheme = "https"
	}
	ports := freePorts(t, 2*o.Members)
	c.pids = make([]int, o.Members)
	var all []string
	for i := range o.Members {
		m := &member{name: fmt.Sprint("m", i), client: ports[2*i], peer: ports[2*i+1]}
		m.log = filepath.Join(dir, m.name+".log")
		c.members = append(c.members, m)
		if m.proxy, err = listen(c, i, m.peer); err != nil {
			t.Fatal(err)
		}
		all = append(all, m.name+"=http://"+m.proxy.addr())
		c.Endpoints = append(c.Endpoints, scheme+"://"+m.client)
	}
	for i, m := range c.members {
		m.args = []string{
			"--name", m.name, "--data-dir", filepath.Join(dir, m.name),
			"--listen-client-urls", c.Endpoints[i], "--advertise-client-urls", c.Endpoints[i],
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.proxy.addr(),
			"--initial-cluster", strings.Join(all, ","), "--initial-cluster-state", "new", "--initial-cluster-token", filepath.Base(dir),
			// Elections of half a second: what etcd recommends for a machine as near as this.
			"--heartbeat-interval", "50", "--election-timeout", "500",
			"--logger", "zap", "--log-level", "warn", "--log-outputs", m.log, "--snapshot-count", "10000",
		}
		if o.CA != "" {
			m.args = append(m.args, "--cert-file", o.Cert, "--key-file", o.Key, "--client-cert-auth", "--trusted-ca-file", o.CA)
		}
		c.Run(i)
	}
	for i := range c.members {
		c.ready(i)
	}
	return c
}

// freePorts finds addresses that nobody listens on. Another process may take one before it is
// used; a member that cannot listen then fails the test with its log.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

// Run starts a member that does not run.
func (c *Cluster) Run(i int) {
	c.t.Helper()
	m := c.members[i]
	m.cmd = exec.Command(c.binary, m.args...)
	m.cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=")
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.pids[i] = m.cmd.Process.Pid
	c.mu.Unlock()
	m.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		defer close(done)
		_ = cmd.Wait() // killed, mostly
	}(m.cmd, m.done)
}

// ready waits until a member listens for clients.
func (c *Cluster) ready(i int) {
	c.t.Helper()
	m := c.members[i]
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := net.DialTimeout("tcp", m.client, time.Second)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-m.done:
			c.t.Fatalf("member %s of etcd has ended:\n%s", m.name, c.tail(i))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("member %s of etcd does not listen:\n%s", m.name, c.tail(i))
		}
	}
}

func (c *Cluster) tail(i int) string {
	b, _ := os.ReadFile(c.members[i].log)
	return string(b[max(0, len(b)-3000):])
}

// Kill ends a member at once.
func (c *Cluster) Kill(i int) {
	m := c.members[i]
	_ = m.cmd.Process.Signal(syscall.SIGKILL) // gone is gone
	<-m.done
}

// Stop has a member stand still: its connections stay, and nothing answers.
func (c *Cluster) Stop(i int) { c.signal(i, syscall.SIGSTOP) }

// Continue lets it go on.
func (c *Cluster) Continue(i int) { c.signal(i, syscall.SIGCONT) }

func (c *Cluster) signal(i int, s syscall.Signal) {
	c.t.Helper()
	if err := c.members[i].cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// Cut takes a member from the others; clients reach it all the same. Heal gives it back.
func (c *Cluster) Cut(i int) {
	for _, m := range c.members {
		m.proxy.cut(i, true)
	}
}

// Heal undoes Cut.
func (c *Cluster) Heal(i int) {
	for _, m := range c.members {
		m.proxy.cut(i, false)
	}
}

// down ends what is left.
func (c *Cluster) down() {
	for i, m := range c.members {
		if m.cmd != nil {
			c.Kill(i)
		}
	}
	for _, m := range c.members {
		if m.proxy != nil {
			m.proxy.close()
		}
	}
	if c.t.Failed() {
		for i, m := range c.members {
			c.t.Logf("the end of %s's log:\n%s", m.name, c.tail(i))
		}
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.t.Error(err)
	}
}

// ownerOf finds which member has the other end of a connection: a proxy knows by it who calls.
// -1 for none of them.
func (c *Cluster) ownerOf(conn net.Conn) int {
	inode := inodeOf(conn.RemoteAddr().(*net.TCPAddr).Port, conn.LocalAddr().(*net.TCPAddr).Port)
	if inode == "" {
		return -1
	}
	c.mu.Lock()
	pids := slices.Clone(c.pids)
	c.mu.Unlock()
	for i, pid := range pids {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == "socket:["+inode+"]" {
				return i
			}
		}
	}
	return -1
}

// inodeOf is the socket with these ports, by /proc/net/tcp.
func inodeOf(local, remote int) string {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	want := [2]string{fmt.Sprintf("0100007F:%04X", local), fmt.Sprintf("0100007F:%04X", remote)}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 9 && f[1] == want[0] && f[2] == want[1] {
			return f[9]
		}
	}
	return ""
}

// proxy stands before a member's peer port.
type proxy struct {
	cluster *Cluster
	to      int
	peer    string // host:port of to
	l       net.Listener
	wg      sync.WaitGroup

	mu    sync.Mutex // guards the rest; nothing slow happens under it
	gone  map[int]bool
	pipes map[net.Conn]pipe // by the caller's end
}

type pipe struct {
	from int
	back net.Conn
}

func listen(c *Cluster, to int, peer string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{cluster: c, to: to, peer: peer, l: l, gone: map[int]bool{}, pipes: map[net.Conn]pipe{}}
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn) })
		}
	})
	return p, nil
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) cutsLocked(from int) bool { return p.gone[p.to] || p.gone[from] }

// cut ends what there is between two members, and what comes, while one is gone.
func (p *proxy) cut(i int, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone[i] = gone
	for conn, pipe := range p.pipes {
		if p.cutsLocked(pipe.from) {
			_ = conn.Close()
			_ = pipe.back.Close()
		}
	}
}

func (p *proxy) serve(conn net.Conn) {
	defer conn.Close()
	from := p.cluster.ownerOf(conn)
	back, err := net.DialTimeout("tcp", p.peer, time.Second)
	if err != nil {
		return
	}
	defer back.Close()
	p.mu.Lock()
	if p.cutsLocked(from) {
		p.mu.Unlock()
		return
	}
	p.pipes[conn] = pipe{from, back}
	p.mu.Unlock()
	ends := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{conn, back}, {back, conn}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			ends <- struct{}{}
		}()
	}
	<-ends
	_ = conn.Close()
	_ = back.Close()
	<-ends
	p.mu.Lock()
	delete(p.pipes, conn)
	p.mu.Unlock()
}

func (p *proxy) close() {
	_ = p.l.Close()
	p.mu.Lock()
	for conn, pipe := range p.pipes {
		_ = conn.Close()
		_ = pipe.back.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// Leader is which member says that it leads; the test fails where none does within a minute.
func (c *Cluster) Leader() int {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for i := range c.members {
			if itself, leader := c.status(i); leader != "" && leader == itself {
				return i
			}
		}
	}
	c.t.Fatal("no member of etcd leads")
	return 0
}

// Agree waits until all members name one leader. A member that comes back may call an election,
// and a commit is in doubt while one is held.
func (c *Cluster) Agree() {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		leaders := map[string]bool{}
		for i := range c.members {
			_, leader := c.status(i)
			leaders[leader] = true
		}
		if len(leaders) == 1 && !leaders[""] {
			return
		}
	}
	c.t.Fatal("the members of etcd name no common leader")
}

// status is who a member is and whom it follows; empty where it does not say, or follows nobody.
// It speaks plain HTTP.
func (c *Cluster) status(i int) (itself, leader string) {
	resp, err := (&http.Client{Timeout: time.Second}).Post(c.Endpoints[i]+"/v3/maintenance/status", "application/json", strings.NewReader("{}"))
	if err != nil {
		return "", ""
	}
	defer resp.Body.Close()
	var said struct {
		Header struct {
			Member string `json:"member_id"`
		} `json:"header"`
		Leader string `json:"leader"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil || said.Leader == "0" {
		return "", ""
	}
	return said.Header.Member, said.Leader
}

// Gateway asks a member's JSON gateway, for what tests set up: users and roles.
func (c *Cluster) Gateway(ctx context.Context, client *http.Client, path, body string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Endpoints[0]+"/v3/"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s: %s", path, resp.Status, text)
	}
	return nil
}
