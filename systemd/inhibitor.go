package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"berth/internal/fault"
)

// What logind is called on the bus (org.freedesktop.login1(5)).
const (
	logindName    = "org.freedesktop.login1"
	logindPath    = dbus.ObjectPath("/org/freedesktop/login1")
	logindManager = "org.freedesktop.login1.Manager"
)

// Going is that the machine is about to go down or to sleep, or has come back.
type Going struct {
	// Sleep: it sleeps; else it shuts down.
	Sleep bool
	// Down: it waits for those that have asked for a delay. Not Down: it has woken up, or the
	// shutdown was called off.
	Down bool
}

// Logind is a connection to systemd-logind, over the system's bus. Make one with DialLogind, and
// close it.
type Logind struct {
	conn    *dbus.Conn
	patient time.Duration // with each answer
	signals chan *dbus.Signal
	going   chan Going
	done    sync.WaitGroup
}

// patience is how long the bus and logind are given for one answer. A bus itself ends no call
// that nobody answers. Arbitrary.
const patience = 10 * time.Second

// DialLogind connects to logind at a bus's address; empty for the system's. It is
// fault.Unavailable where there is no bus, no logind on it, or one that does not answer. The
// connection ends with ctx.
func DialLogind(ctx context.Context, address string) (*Logind, error) {
	return dialLogind(ctx, address, patience)
}

// OnBus is nil where the service manager answers on a bus, by its address; empty for the
// system's. Blocks within ctx.
func OnBus(ctx context.Context, address string) error {
	conn, err := dialer(address)(dbus.WithContext(ctx))
	if err != nil {
		return fault.New(fault.Unavailable, "connect to the system's bus: %w", cmp.Or(context.Cause(ctx), err))
	}
	defer func() { _ = conn.Close() }()
	if err := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", 0).Err; err != nil {
		return fault.New(fault.Unavailable, "ask systemd by the system's bus: %w", err)
	}
	return nil
}

// dialer connects to a bus; empty for the system's.
func dialer(address string) func(...dbus.ConnOption) (*dbus.Conn, error) {
	if address == "" {
		return dbus.ConnectSystemBus
	}
	return func(o ...dbus.ConnOption) (*dbus.Conn, error) { return dbus.Connect(address, o...) }
}

func dialLogind(ctx context.Context, address string, patient time.Duration) (*Logind, error) {
	// The context ends the connection, too, not only the dialling: that has no other limit.
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(patient, func() { cancel(context.DeadlineExceeded) })
	conn, err := dialer(address)(dbus.WithContext(ctx))
	if !late.Stop() {
		if err == nil {
			_ = conn.Close() // it has ended, or is about to
		}
		err = cmp.Or(context.Cause(ctx), err)
	}
	if err != nil {
		cancel(nil)
		return nil, fault.New(fault.Unavailable, "connect to the system's bus: %w", err)
	}
	l := &Logind{conn: conn, patient: patient, signals: make(chan *dbus.Signal, 16), going: make(chan Going, 16)}
	l.done.Go(func() { <-conn.Context().Done(); cancel(nil) })
	conn.Signal(l.signals)
	l.done.Go(l.forward)
	asking, answered := context.WithTimeout(ctx, patient)
	defer answered()
	for _, member := range []string{"PrepareForShutdown", "PrepareForSleep"} {
		err = errors.Join(err, conn.AddMatchSignalContext(asking, dbus.WithMatchObjectPath(logindPath), dbus.WithMatchInterface(logindManager), dbus.WithMatchMember(member)))
	}
	if err == nil {
		_, err = l.Delay(ctx)
	}
	if err != nil {
		l.Close()
		return nil, fault.New(fault.Unavailable, "speak with logind: %w", err)
	}
	return l, nil
}

// Close ends the connection; locks that were taken stay until they are released.
func (l *Logind) Close() {
	_ = l.conn.Close() // the other side sees it whatever this one says
	l.done.Wait()
}

// forward reads signals until the connection ends, and tells what they say.
func (l *Logind) forward() {
	defer close(l.going)
	for s := range l.signals {
		if len(s.Body) != 1 || s.Path != logindPath {
			continue
		}
		down, ok := s.Body[0].(bool)
		name := s.Name
		if !ok || name != logindManager+".PrepareForShutdown" && name != logindManager+".PrepareForSleep" {
			continue
		}
		select {
		case l.going <- Going{Sleep: name == logindManager+".PrepareForSleep", Down: down}:
		default: // nobody reads; a machine goes down once
		}
	}
}

// Going is told each time that the machine is about to go down, or has come back. It is closed
// when the connection ends. What comes before a lock is taken is told as well.
func (l *Logind) Going() <-chan Going { return l.going }

func (l *Logind) property(ctx context.Context, name string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, l.patient)
	defer cancel()
	var v dbus.Variant
	err := l.conn.Object(logindName, logindPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, logindManager, name).Store(&v)
	if err == nil {
		err = v.Store(into)
	}
	if err != nil {
		return fault.New(fault.Unavailable, "read logind's %s: %w", name, err)
	}
	return nil
}

// Delay is the longest that logind waits for those that have asked it to: InhibitDelayMaxSec of
// logind.conf(5), 5 s unless somebody has set it.
func (l *Logind) Delay(ctx context.Context) (time.Duration, error) {
	var usec uint64
	if err := l.property(ctx, "InhibitDelayMaxUSec", &usec); err != nil {
		return 0, err
	}
	const most = uint64(1<<63-1) / uint64(time.Microsecond) // "infinity" is written as all ones
	return time.Duration(min(usec, most)) * time.Microsecond, nil
}

// Down reports whether the machine is about to shut down.
func (l *Logind) Down(ctx context.Context) (down bool, err error) {
	return down, l.property(ctx, "PreparingForShutdown", &down)
}

// Lock has shutdown and sleep wait, for as long as Delay says, until it is released.
type Lock struct{ file *os.File }

// Inhibit takes a delay lock. who and why are what `systemd-inhibit --list` shows. It waits for
// logind's answer alone; after an error close the connection, or a late answer holds the machine
// up. logind refuses once the machine is going down.
func (l *Logind) Inhibit(ctx context.Context, who, why string) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, l.patient)
	defer cancel()
	var fd dbus.UnixFD
	err := l.conn.Object(logindName, logindPath).CallWithContext(ctx, logindManager+".Inhibit", 0, "shutdown:sleep", who, why, "delay").Store(&fd)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "have logind wait: %w", err)
	}
	return &Lock{file: os.NewFile(uintptr(fd), "logind's delay")}, nil
}

// Release lets the machine go on. Safe to repeat, and on nil.
func (l *Lock) Release() error {
	if l == nil || l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	if err != nil {
		return fmt.Errorf("release logind's delay: %w", err)
	}
	return nil
}
