package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/version"
)

// process is one end of a session.
type process struct {
	o       Order
	digest  string
	paths   Paths
	life    *os.File // locked; see holdLife
	log     *slog.Logger
	boot    func() time.Duration // the boot clock
	begun   time.Time            // for ages; monotonic
	cert    *certificates
	key     []byte // the ticket's
	port    int
	opening time.Duration // how long a connection may take to be let in
	// strangers is how many connections may wait to be let in (see hold), most how
	// many may be open.
	strangers, most int

	wg sync.WaitGroup
	// ctx ends when the process is over.
	ctx    context.Context
	cancel context.CancelFunc
	last   atomic.Int64 // when a byte was last forwarded, since begun

	// mu guards what follows. Nothing blocks under it.
	mu    sync.Mutex
	over  string // why it ends; empty while it does not
	lease time.Duration
	// half: half of the guest is behind this process; see postCopy.
	half     bool
	places   [len(channels)]place
	refused  int
	refusal  string
	quiet    quiet
	waiting  []net.Conn // not let in yet, oldest first
	closers  []func()   // what ends the accept loops
	draining bool
}

// place counts one channel.
type place struct {
	open, total    int
	links          map[*link]struct{}
	sent, received uint64 // of links that have ended
}

// openMax bounds the connections of a channel at a time: libvirt takes up to 255
// parallel ones for memory; a guest has a connection for each disk. Arbitrary
// beyond that.
var openMax = [len(channels)]int{4, 260, 64}

// shares divides the descriptors that a process may have, so that its agent is
// answered whatever the network does: a few are its own, a quarter of the rest is
// for connections that are not let in yet, which take one each. Open ones take
// three: both ends, and the target held while it is looked at.
func shares(files uint64) (strangers, most int) {
	left := int(min(files, 1<<20)) - 24
	strangers = max(1, min(left/4, strangersMax))
	return strangers, max(1, (left-strangers)/3)
}

// RunOptions are what a process has beside its order.
type RunOptions struct {
	Log *slog.Logger
	// Ready is called once when it serves; nil calls nobody.
	Ready func()

	// opening is openTimeout, shorter for tests; 0 is openTimeout.
	opening time.Duration
}

// Run is the process: it takes the order that lies in dir, serves until its end
// (see the package), and removes dir. It returns nil when it was ended, and an
// error when it could not begin, which it also leaves in dir for the manager. It
// never starts a goroutine that outlives it.
//
// The caller must ignore SIGPIPE and SIGHUP; ctx ends it.
func Run(ctx context.Context, dir string, o RunOptions) error {
	dir = filepath.Clean(dir)
	id, err := ParseID(filepath.Base(dir))
	if err != nil {
		return err
	}
	paths := PathsOf(filepath.Dir(dir), id)
	life, err := holdLife(paths)
	if err != nil {
		return fmt.Errorf("stream %s: %w", id, err)
	}
	// Last of all: the lock says that everything else is gone.
	defer life.Close()
	p, listeners, err := begin(id, paths, life, o)
	if err != nil {
		err = fmt.Errorf("stream %s: %w", id, err)
		if lies(life, paths) {
			leaveWord(paths, err)
		}
		return err
	}
	p.log.Info("stream serves", "port", p.port, "guest", p.o.Instance, "peer", p.o.Peer, "lease", p.o.Lease)
	for _, serve := range listeners {
		p.spawn(serve)
	}
	if o.Ready != nil {
		o.Ready()
	}
	p.watch(ctx)
	p.drain()
	st := p.status()
	p.log.Info("stream ends", "why", p.over, "channels", st.Channels, "refused", st.Refused)
	if lies(life, paths) {
		return remove(paths)
	}
	return nil
}

// lies says whether a process's folder is still in its place: the file that it holds
// locked is the one that everybody finds there. Under the same name may lie by now what
// is another process's.
func lies(life *os.File, paths Paths) bool {
	own, err := life.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(paths.process())
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) // who cannot look ends no migration
	}
	return os.SameFile(own, now)
}

// leaveWord tells the manager why the process did not begin, whole or not at all.
// Best effort: without it the manager says less.
func leaveWord(paths Paths, why error) {
	part := paths.failure() + ".part"
	if os.WriteFile(part, []byte(why.Error()+"\n"), 0o600) == nil {
		_ = os.Rename(part, paths.failure())
	}
}

// begin takes the order and opens every socket.
func begin(id ID, paths Paths, life *os.File, ro RunOptions) (_ *process, serve []func(), err error) {
	o, err := takeOrder(paths, life)
	if err != nil {
		return nil, nil, err
	}
	if o.ID != id {
		return nil, nil, fault.New(fault.Invalid, "its order is for %s", o.ID)
	}
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	digest := o.digest() // of what was asked for
	if o.DeadAfter <= 0 {
		o.DeadAfter = DefaultDeadAfter
	}
	// A dump of this process would hold the host's key, and the guest's memory.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return nil, nil, fmt.Errorf("keep memory out of core dumps: %w", err)
	}
	sys := &runtime.System{}
	p := &process{
		o: o, digest: digest, paths: paths, life: life, boot: func() time.Duration { return sys.Boot().Since }, begun: time.Now(),
		key: o.Ticket.key(), opening: cmp.Or(ro.opening, openTimeout),
		log: ro.Log.With("migration", o.Migration, "attempt", o.Attempt, "role", o.Role),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.lease = p.boot() + o.Lease
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, nil, fmt.Errorf("read the limit of open files: %w", err)
	}
	p.strangers, p.most = shares(files.Cur)
	for i := range p.places {
		p.places[i].links = map[*link]struct{}{}
	}
	if p.cert, err = newCertificates(o.PKI); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			p.cancel()
			for _, c := range p.closers {
				c()
			}
		}
	}()
	if o.Role == Destination {
		l, err := p.listenNetwork()
		if err != nil {
			return nil, nil, err
		}
		p.port = l.Addr().(*net.TCPAddr).Port
		serve = append(serve, func() { p.serveNetwork(l) })
	} else {
		for _, s := range []struct {
			channel Channel
			path    string
			owner   *Owner
		}{{Control, paths.Control, nil}, {Memory, paths.Memory, &o.QEMU}, {Disks, paths.Disks, &o.QEMU}} {
			l, err := p.listenLocal(s.path, s.owner)
			if err != nil {
				return nil, nil, err
			}
			serve = append(serve, func() { p.serveLocal(l, s.channel) })
		}
	}
	// The agent's comes last: who answers there serves.
	l, err := p.listenLocal(paths.agent(), nil)
	if err != nil {
		return nil, nil, err
	}
	return p, append(serve, func() { p.serveAgent(l) }), nil
}

// takeOrder reads the order and removes it: the ticket then lies nowhere but in
// this process.
func takeOrder(paths Paths, life *os.File) (Order, error) {
	var o Order
	text, err := os.ReadFile(paths.order())
	if !lies(life, paths) {
		// An agent that died had this one started, and the next one began anew.
		return o, fault.New(fault.NotFound, "its folder has gone, and what lies there is not its own")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return o, fault.New(fault.NotFound, "it has no order; a stream is started by the agent, and once")
	}
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fault.New(fault.Invalid, "read its order: %w", err)
	}
	return o, os.Remove(paths.order())
}

// listenLocal makes a unix socket for root, and for owner where one is named.
func (p *process) listenLocal(path string, owner *Owner) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, func() { l.Close() })
	// Until this is done the umask decides; who is on the other end is asked of the
	// kernel as well (mayConnect).
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if owner != nil && os.Geteuid() == 0 {
		if err := os.Chown(path, owner.UID, owner.GID); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (p *process) spawn(f func()) { p.wg.Go(f) }

// stop has Run return. The first reason stands.
func (p *process) stop(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopLocked(why)
}

func (p *process) stopLocked(why string) {
	if p.over == "" {
		p.over = why
		p.cancel()
	}
}

// look is how often lease and folder are looked at.
const look = time.Second

// watch returns when the process is over.
func (p *process) watch(ctx context.Context) {
	t := time.NewTicker(look)
	defer t.Stop()
	for {
		if !lies(p.life, p.paths) {
			p.stop("its folder is gone")
		}
		p.expire()
		select {
		case <-t.C:
		case <-p.ctx.Done():
			return
		case <-ctx.Done():
			p.stop("told to by a signal")
			return
		}
	}
}

// expire ends the process when its lease is over and nothing is open.
func (p *process) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expiredLocked() {
		p.stopLocked("its lease is over")
	}
}

func (p *process) expiredLocked() bool {
	return p.openLocked() == 0 && p.boot() >= p.lease && !p.half
}

// postCopy notes that the guest's memory is, or is about to be, on both sides: from now on
// no lease ends the process, and a dead connection is given up sooner. Safe to repeat.
func (p *process) postCopy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.postCopyLocked()
}

func (p *process) postCopyLocked() {
	if p.half {
		return
	}
	p.half = true
	for _, l := range p.linksLocked() {
		// What cannot be tended has ended.
		if c, ok := l.batch.Conn.(*net.TCPConn); ok {
			_ = tend(c, min(p.o.DeadAfter, postCopyDeadAfter))
		}
	}
}

// deadAfter is how long a new connection may be silent.
func (p *process) deadAfter() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.half {
		return min(p.o.DeadAfter, postCopyDeadAfter)
	}
	return p.o.DeadAfter
}

func (p *process) linksLocked() []*link {
	var out []*link
	for i := range p.places {
		for l := range p.places[i].links {
			out = append(out, l)
		}
	}
	return out
}

// drain closes everything and waits for everybody.
func (p *process) drain() {
	p.mu.Lock()
	p.draining = true
	closers, waiting := p.closers, p.waiting
	p.waiting = nil
	links := p.linksLocked()
	p.mu.Unlock()
	for _, c := range closers {
		c()
	}
	for _, c := range waiting {
		c.Close()
	}
	for _, l := range links {
		l.cut()
	}
	p.wg.Wait()
}

func (p *process) openLocked() int {
	n := 0
	for i := range p.places {
		n += p.places[i].open
	}
	return n
}

// renew gives the lease anew. A process that is over stays so.
func (p *process) renew(lease time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lease = p.boot() + lease
}

func placeOf(c Channel) int {
	for i, known := range channels {
		if known == c {
			return i
		}
	}
	return 0 // cannot be: channels come from the list
}

// admit takes a place for one more connection, and refuses where there is none: the
// process is over, the lease is and nothing keeps it, the channel is full. leave
// gives the place back.
//
// A migration has one connection of control. In post-copy another one is the beginning of
// a recovery: what is open still is dead, whatever TCP has noticed, and ends here, so that
// QEMU lets go of it.
func (p *process) admit(c Channel) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.places[placeOf(c)]
	switch {
	case p.over != "" || p.draining:
		return nil, fault.New(fault.Forbidden, "the stream is over")
	case p.expiredLocked():
		p.stopLocked("its lease is over")
		return nil, fault.New(fault.Forbidden, "the ticket has expired")
	case p.openLocked() >= p.most:
		return nil, fault.New(fault.Busy, "%d connections are open, for more the limit of open files is too low", p.most)
	case at.open >= openMax[placeOf(c)]:
		return nil, fault.New(fault.Busy, "%d connections of %s are open, the most there may be", at.open, c)
	}
	if p.half && c == Control {
		for _, l := range p.linksLocked() {
			l.cut()
		}
	}
	if p.o.PostCopy && p.o.Role == Source && c == Memory {
		p.postCopyLocked()
	}
	at.open++
	at.total++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		at.open--
	}, nil
}

// carry forwards over one link until its end.
func (p *process) carry(l *link) {
	at := &p.places[placeOf(l.channel)]
	p.mu.Lock()
	if p.draining {
		p.mu.Unlock()
		l.cut()
		return
	}
	l.batch.widen()
	at.links[l] = struct{}{}
	p.mu.Unlock()
	log := p.log.With("channel", l.channel)
	log.Info("connection opens")
	err := l.run()
	p.mu.Lock()
	delete(at.links, l)
	at.sent += l.sent.Load()
	at.received += l.received.Load()
	p.mu.Unlock()
	log.Info("connection ends", "sent_bytes", l.sent.Load(), "received_bytes", l.received.Load(), "error", err)
}

// refuse notes that somebody was let nothing.
func (p *process) refuse(from string, err error) {
	p.mu.Lock()
	p.refused++
	p.refusal = err.Error()
	say, kept := p.quiet.may(time.Since(p.begun))
	p.mu.Unlock()
	if say {
		p.log.Warn("connection refused", "from", from, "error", err, "unsaid", kept)
	}
}

// retryAccept says whether to go on accepting after an error: always, but when the
// listener was closed. Too many open files pass.
func (p *process) retryAccept(what string, err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	p.refuse(what, fmt.Errorf("accept: %w", err))
	select {
	case <-p.ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

// status is what the process says of itself.
func (p *process) status() Status {
	notAfter, cerr := p.cert.state()
	p.mu.Lock()
	defer p.mu.Unlock()
	age := time.Since(p.begun)
	st := Status{
		ID: p.o.ID, Instance: p.o.Instance, Role: p.o.Role, Peer: p.o.Peer, Version: version.Get().String(), PID: os.Getpid(), Port: p.port,
		Age: age, Lease: max(0, p.lease-p.boot()), PostCopy: p.half, Open: p.openLocked(), Idle: age - time.Duration(p.last.Load()),
		Refused: p.refused, LastRefusal: p.refusal, Certificate: notAfter, OrderDigest: p.digest,
	}
	for l := range p.places[placeOf(Memory)].links {
		st.Silent = max(st.Silent, l.silent())
	}
	if cerr != nil {
		st.CertificateError = cerr.Error()
	}
	for i, c := range channels {
		at := &p.places[i]
		cs := ChannelStatus{Channel: c, Open: at.open, Total: at.total, Sent: at.sent, Received: at.received}
		for l := range at.links {
			cs.Sent += l.sent.Load()
			cs.Received += l.received.Load()
		}
		st.Channels = append(st.Channels, cs)
	}
	return st
}

func inode(fi os.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
