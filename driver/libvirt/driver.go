// Package libvirt drives KVM, or any hypervisor of libvirt's, through a local
// daemon. It implements driver.Driver and all optional abilities over one narrow
// interface, Conn, for which there are two bindings: rpc (pure Go, the default)
// and native (libvirt's own C library, build tag native).
//
// It reads and writes nothing but the daemon's socket. What it keeps itself are
// connections: one for control, one for statistics, so that a slow order does
// not delay the look at a job, one for events, on which the daemon is also
// pinged, and one for each migration, so that an order given up elsewhere never
// costs a migration its answer. None of the bindings has deadlines or can cancel
// a call; see link for how a call that outlives its deadline ends. go-libvirt
// has no keepalive either, so the ping on the events' connection, with a
// deadline of its own, is what notices a daemon that hangs.
//
// Invariants: no call outlives its deadline; a lost answer of a changing call is
// fault.InDoubt and of a reading one fault.Unavailable; only libvirt's own "no
// domain" is fault.NotFound; Close leaves no goroutine behind.
package libvirt

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// The sockets that are tried when none is named: virtqemud's, of the modular
// daemons, and libvirtd's.
var defaultSockets = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}

// Options are how to reach a daemon. Zero values mean the defaults named.
type Options struct {
	Dial   Dialer // the binding; required
	Socket string // unix socket; found by itself when empty: virtqemud's, else libvirtd's
	URI    string // qemu:///system

	LogDir string // where libvirt logs each domain's runs; /var/log/libvirt/qemu
	// DefinitionDir is where libvirt keeps persistent definitions; empty for what URI says,
	// /etc/libvirt/qemu for qemu:///system.
	DefinitionDir string

	CallTimeout  time.Duration // deadline of a call whose caller gave none; 10 s
	PingInterval time.Duration // how often the daemon is asked whether it lives; 5 s
	PingTimeout  time.Duration // how long it may take to answer; CallTimeout
	ReconnectMin time.Duration // the wait before the first attempt to reconnect; 100 ms
	ReconnectMax time.Duration // the longest, to which it doubles; 5 s

	Runtime runtime.Runtime // the machine's own
	Logger  *slog.Logger    // slog.Default
}

// Driver is a driver.Driver with every ability, over libvirt; which of them the
// daemon's hypervisor has is in Node.Cannot.
type Driver struct {
	o   Options
	rt  runtime.Runtime
	log *slog.Logger

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine

	control, stats *link
	events         *stream[driver.Event]
	deviceEvents   *stream[driver.DeviceEvent]

	// mu guards what follows. Nothing blocks under it; links' locks are not taken
	// under it.
	mu     sync.Mutex
	closed bool
	health error
	since  time.Time // of health, when not nil
	// mute is what the last list of domains came to, where that was silence; see
	// heard. muteSince is its beginning.
	mute      error
	muteSince time.Time
	answered  answered        // to Node
	moving    map[string]bool // domains that Migrate sends now
	links     map[*link]bool  // all that are open: control, statistics, one for each migration
}

var (
	_ driver.Driver        = (*Driver)(nil)
	_ driver.LiveMigrator  = (*Driver)(nil)
	_ driver.StorageCopier = (*Driver)(nil)
	_ driver.PostCopier    = (*Driver)(nil)
	_ driver.GuestAgent    = (*Driver)(nil)
	_ driver.Statistician  = (*Driver)(nil)
	_ driver.DeviceWatcher = (*Driver)(nil)
	_ driver.Connector     = (*Driver)(nil)

	_ driver.PostCopyRecoverer = (*Driver)(nil)
)

var errClosed = errors.New("the driver is closed")

// New makes a driver; it connects by itself. Close it.
func New(o Options) *Driver {
	if o.URI == "" {
		o.URI = "qemu:///system"
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 10 * time.Second
	}
	if o.PingInterval == 0 {
		o.PingInterval = 5 * time.Second
	}
	if o.PingTimeout == 0 {
		o.PingTimeout = o.CallTimeout
	}
	if o.ReconnectMin == 0 {
		o.ReconnectMin = 100 * time.Millisecond // arbitrary: a restarted libvirtd listens within this
	}
	if o.ReconnectMax == 0 {
		o.ReconnectMax = 5 * time.Second
	}
	if o.Runtime == nil {
		o.Runtime = &runtime.System{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	d := &Driver{
		o: o, rt: o.Runtime, log: o.Logger,
		moving: map[string]bool{}, links: map[*link]bool{},
		health: errors.New("not connected yet"), since: o.Runtime.Now(),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.events = newStream(d, "events", func(at time.Time) driver.Event { return driver.Event{Kind: driver.EventResync, At: at} })
	d.deviceEvents = newStream(d, "device events", func(at time.Time) driver.DeviceEvent {
		return driver.DeviceEvent{Kind: driver.DeviceResync, At: at}
	})
	d.control, d.stats = d.newLink("control"), d.newLink("statistics")
	d.spawn("events", d.supervise)
	return d
}

// newLink makes a link; of a closed driver it is closed too.
func (d *Driver) newLink(name string) *link {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &link{d: d, name: "libvirt " + name, sessions: map[*session]bool{}, closed: d.closed}
	d.links[l] = true
	return l
}

// endLink closes a link for good.
func (d *Driver) endLink(l *link) {
	d.mu.Lock()
	delete(d.links, l)
	d.mu.Unlock()
	l.close()
}

// spawn runs f in a goroutine that Close waits for; false when closed.
func (d *Driver) spawn(name string, f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.wg.Add(1)
	d.rt.Go(name, func() {
		defer d.wg.Done()
		f()
	})
	return true
}

// socket is the daemon's; looked for at every connection, since an operator may
// go from libvirtd to virtqemud while Berth runs.
func (d *Driver) socket() string {
	if d.o.Socket != "" {
		return d.o.Socket
	}
	return firstSocket(defaultSockets)
}

// firstSocket is the first that exists, else the last: whose absence is then the
// error that an operator reads.
func firstSocket(paths []string) string {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return paths[len(paths)-1]
}

// where names the daemon in messages.
func (d *Driver) where() string { return d.o.URI + " at " + d.socket() }

// dial opens one connection, within the driver's deadline.
func (d *Driver) dial(ctx context.Context) (Conn, error) {
	ctx, cancel := d.rt.WithTimeout(ctx, d.o.CallTimeout)
	defer cancel()
	conn, err := d.o.Dial(ctx, Target{Socket: d.socket(), URI: d.o.URI})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// supervise keeps the events' connection: it connects, subscribes, tells
// readers to read again, and asks the daemon whether it lives until it does not.
func (d *Driver) supervise() {
	wait := d.o.ReconnectMin
	for d.ctx.Err() == nil {
		up, err := d.attend()
		if d.ctx.Err() != nil {
			return
		}
		if up {
			wait = d.o.ReconnectMin
		}
		d.setHealth(err)
		// A half-open connection looks alive to the calls that use it.
		d.control.retire()
		d.stats.retire()
		_ = d.rt.Sleep(d.ctx, wait) // the loop's condition sees why it ended
		wait = min(2*wait, d.o.ReconnectMax)
	}
}

// attend is one life of the events' connection; up reports whether it came to
// life, err why it ended.
func (d *Driver) attend() (up bool, err error) {
	conn, err := d.dial(d.ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(d.ctx)
	defer cancel(nil)
	if !d.spawn("libvirt events watch", func() {
		select {
		case <-conn.Done():
			cancel(ErrLost)
		case <-ctx.Done():
		}
	}) {
		return false, errClosed
	}
	if err := d.registered(ctx, func() error { return conn.Subscribe(d.publish) }); err != nil {
		return false, err
	}
	if err := d.registered(ctx, func() error { return conn.SubscribeDevices(d.publishDevice) }); codeOf(err) != 0 {
		// Domains are driven without: the daemon may have no driver of devices, or
		// one, virtnodedevd, that is not up.
		d.log.Info("libvirt tells nothing of devices", "uri", d.o.URI, "error", err)
	} else if err != nil {
		return false, err
	}
	d.setHealth(nil)
	d.events.restart()
	d.deviceEvents.restart()
	for {
		if d.isMute() {
			// Nobody else may ask for the list, whose answer ends that.
			_, _ = d.Domains(ctx)
		}
		if err := d.rt.Sleep(ctx, d.o.PingInterval); err != nil {
			return true, err
		}
		if err := d.bounded(ctx, func() error { _, err := conn.LibVersion(); return err }); err != nil {
			return true, err
		}
	}
}

// bounded runs f with the ping's deadline. When that passes, the caller must
// close the connection, which ends f.
func (d *Driver) bounded(ctx context.Context, f func() error) error {
	ctx, cancel := d.rt.WithTimeout(ctx, d.o.PingTimeout)
	defer cancel()
	done := make(chan error, 1)
	if !d.spawn("libvirt ping", func() { done <- f() }) {
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// registerPatience is how long the driver's end waits for the daemon to have registered
// what it was asked for: libvirtd 9.0.0 can crash (remoteClientFreePrivateCallbacks) when its
// client goes away in the midst of it. Arbitrary, far above the few milliseconds that it takes.
const registerPatience = time.Second

// registered is bounded for the registration of events, which the driver's own end does
// not cut.
func (d *Driver) registered(ctx context.Context, f func() error) error {
	done := make(chan struct{})
	err := d.bounded(ctx, func() error { defer close(done); return f() })
	if d.ctx.Err() == nil || errors.Is(err, errClosed) {
		return err
	}
	patience, cancel := d.rt.WithTimeout(context.WithoutCancel(ctx), registerPatience)
	defer cancel()
	select {
	case <-done:
	case <-patience.Done():
	}
	return err
}

func (d *Driver) setHealth(err error) {
	d.mu.Lock()
	was := d.health
	if (was == nil) != (err == nil) {
		d.since = d.rt.Now()
	}
	d.health = err
	d.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		d.log.Warn("libvirt does not answer", "uri", d.o.URI, "socket", d.socket(), "error", err)
	case err == nil && was != nil:
		d.log.Info("libvirt answers", "uri", d.o.URI, "socket", d.socket())
	}
}

// Health implements driver.Driver.
func (d *Driver) Health() error {
	where := d.where() // looks at files, which nobody shall wait for
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fault.New(fault.Unavailable, "libvirt %s: %w", where, errClosed)
	}
	if d.health == nil && d.mute != nil {
		return fault.New(fault.Unavailable, "libvirt %s: it answers pings and nothing else since %s: %w", where, d.muteSince.Format(time.RFC3339), d.mute)
	}
	if d.health == nil {
		return nil
	}
	return fault.New(fault.Unavailable, "libvirt %s: no answer since %s: %w", where, d.since.Format(time.RFC3339), d.health)
}

// Close implements driver.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	links := slices.Collect(maps.Keys(d.links))
	d.mu.Unlock()
	d.cancel()
	for _, l := range links {
		l.close()
	}
	d.wg.Wait()
	return nil
}
