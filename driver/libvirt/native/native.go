//go:build native

package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

// Keepalive, seconds and missed answers: a hung daemon is given up within about
// 6 s. It runs in the library's event loop.
const (
	keepaliveInterval = 2
	keepaliveCount    = 2
)

// loop starts libvirt's event loop, once for the process: connections must be
// opened after it, and it has no end.
var loop = sync.OnceValue(func() error {
	if err := lv.EventRegisterDefaultImpl(); err != nil {
		return err
	}
	go func() {
		for {
			// An error here is one of poll(2); the next turn meets it again or not.
			_ = lv.EventRunDefaultImpl()
		}
	}()
	return nil
})

// Dial opens t.URI: through t.Socket, or inside the process for the test driver.
// The library connects through a relay of this package; see relay.
func Dial(ctx context.Context, t libvirt.Target) (libvirt.Conn, error) {
	uri, err := address(t)
	if err != nil {
		return nil, err
	}
	if err := loop(); err != nil {
		return nil, fmt.Errorf("libvirt's event loop: %w", err)
	}
	c, err := dial(ctx, uri)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	return c, nil
}

// address puts the socket into the URI, where the driver has one.
func address(t libvirt.Target) (string, error) {
	u, err := url.Parse(t.URI)
	if err != nil {
		return "", fmt.Errorf("libvirt uri: %w", err)
	}
	if t.Socket == "" || u.Scheme == "test" || strings.Contains(u.Scheme, "+") {
		return t.URI, nil
	}
	u.Scheme += "+unix"
	q := u.Query()
	q.Set("socket", t.Socket)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// open lets the library open uri; cut ends what it connects by.
func open(uri string, cut func()) (*conn, error) {
	l, err := lv.NewConnect(uri)
	if err != nil {
		return nil, translate(err)
	}
	c := &conn{l: l, cut: cut, done: make(chan struct{})}
	if strings.HasPrefix(uri, "test:") {
		// The driver is inside the process: there is nothing to be lost, and libvirt
		// takes a close callback without ever freeing it.
		return c, nil
	}
	if err := l.RegisterCloseCallback(func(*lv.Connect, lv.ConnectCloseReason) { c.lose() }); err == nil {
		c.watched = true
	} else if !unsupported(err) {
		c.Close()
		return nil, translate(err)
	}
	if err := l.SetKeepAlive(keepaliveInterval, keepaliveCount); err != nil && !unsupported(err) {
		c.Close()
		return nil, translate(err)
	}
	return c, nil
}

func unsupported(err error) bool {
	e, ok := errors.AsType[lv.Error](err)
	return ok && e.Code == lv.ERR_NO_SUPPORT
}

// conn is a libvirt.Conn. The C library must not be asked to close a connection
// that a call is in, so the last one out closes.
type conn struct {
	l       *lv.Connect
	cut     func() // ends the connection under the library
	watched bool
	once    sync.Once
	done    chan struct{}

	mu          sync.Mutex // guards what follows; nothing blocks under it
	calls       int
	closed      bool
	unsubscribe []func(*lv.Connect) error // the callbacks' ends

	// left is how many references to the library's connection remained when it was
	// released: each is an object of it, a domain or a callback, that was not freed;
	// for a moment also a callback that still runs.
	left int
}

var _ libvirt.Conn = (*conn)(nil)

func (c *conn) lose() { c.once.Do(func() { close(c.done) }) }

func (c *conn) Done() <-chan struct{} { return c.done }

// Close cuts the connection, which ends the calls in it, and gives it back when
// the last of them has returned.
func (c *conn) Close() {
	c.lose()
	c.cut()
	c.mu.Lock()
	was := c.closed
	c.closed = true
	idle := c.calls == 0
	c.mu.Unlock()
	if !was && idle {
		c.release()
	}
}

// release gives everything back; errors mean that the daemon has gone, and it
// keeps nothing of a client that went away.
func (c *conn) release() {
	for _, end := range c.unsubscribe {
		_ = end(c.l)
	}
	if c.watched {
		_ = c.l.UnregisterCloseCallback()
	}
	c.left, _ = c.l.Close()
}

// use runs one call of the library.
func (c *conn) use(f func(*lv.Connect) error) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return libvirt.ErrNotSent
	}
	c.calls++
	c.mu.Unlock()
	err := f(c.l)
	if e, ok := errors.AsType[lv.Error](err); ok && e.Domain == lv.FROM_RPC {
		// The library's own errors about the connection look like the daemon's. What
		// it read and could make nothing of (virnetclientprogram.c: "Unexpected message
		// status", "… proc") leaves it alive, and what was asked unknown; nothing that
		// comes behind can be trusted.
		alive, aerr := c.l.IsAlive()
		if strings.Contains(e.Message, "nexpected message") {
			c.lose()
			alive = false
		}
		if aerr != nil || !alive {
			err = fmt.Errorf("%w: %s", libvirt.ErrLost, e.Message)
		}
	}
	c.mu.Lock()
	c.calls--
	last := c.closed && c.calls == 0
	c.mu.Unlock()
	if last {
		c.release()
	}
	return translate(err)
}

func translate(err error) error {
	if e, ok := errors.AsType[lv.Error](err); ok {
		return &libvirt.Error{Code: int(e.Code), Message: e.Message}
	}
	return err
}

// get is use for calls that answer something.
func get[T any](c *conn, f func(*lv.Connect) (T, error)) (v T, err error) {
	err = c.use(func(l *lv.Connect) (err error) {
		v, err = f(l)
		return err
	})
	return v, err
}

// with is get for calls about one domain, whose handle it frees.
func with[T any](c *conn, uuid string, f func(*lv.Domain) (T, error)) (T, error) {
	return get(c, func(l *lv.Connect) (v T, err error) {
		id, err := libvirt.UUID(uuid)
		if err != nil {
			return v, err
		}
		d, err := l.LookupDomainByUUID(id[:])
		if err != nil {
			return v, err
		}
		defer free(d)
		// The handle goes by what the answer said; what is asked through it must be
		// of the domain that is meant.
		if got, err := d.GetUUID(); err != nil || !bytes.Equal(got, id[:]) {
			return v, fmt.Errorf("%w: asked for domain %s libvirt tells of %x (%v)", libvirt.ErrLost, uuid, got, err)
		}
		return f(d)
	})
}

// order is with for calls that answer nothing.
func (c *conn) order(uuid string, f func(*lv.Domain) error) error {
	_, err := with(c, uuid, func(d *lv.Domain) (struct{}, error) { return struct{}{}, f(d) })
	return err
}

// free gives a handle back; it fails only for what is no handle.
func free(d *lv.Domain) { _ = d.Free() }

func ref(d *lv.Domain) (r libvirt.Ref, err error) {
	if r.UUID, err = d.GetUUIDString(); err != nil {
		return r, err
	}
	if r.Name, err = d.GetName(); err != nil {
		return r, err
	}
	r.ID = -1
	// A domain that is not active has no id, which the binding calls an error.
	if id, err := d.GetID(); err == nil && int32(id) >= 0 {
		r.ID = int(id)
	}
	return r, nil
}

func (c *conn) Type() (string, error) { return get(c, (*lv.Connect).GetType) }

func (c *conn) Version() (uint64, error) {
	v, err := get(c, (*lv.Connect).GetVersion)
	return uint64(v), err
}

func (c *conn) LibVersion() (uint64, error) {
	v, err := get(c, (*lv.Connect).GetLibVersion)
	return uint64(v), err
}

func (c *conn) Hostname() (string, error)     { return get(c, (*lv.Connect).GetHostname) }
func (c *conn) Capabilities() (string, error) { return get(c, (*lv.Connect).GetCapabilities) }

func (c *conn) DomainCapabilities(emulator, arch, machine, virtType string, flags uint32) (string, error) {
	return get(c, func(l *lv.Connect) (string, error) {
		return l.GetDomainCapabilities(emulator, arch, machine, virtType, lv.ConnectGetDomainCapabilitiesFlags(flags))
	})
}

func (c *conn) List(flags uint32) ([]libvirt.Ref, error) {
	return get(c, func(l *lv.Connect) ([]libvirt.Ref, error) {
		ds, err := l.ListAllDomains(lv.ConnectListAllDomainsFlags(flags))
		if err != nil {
			return nil, err
		}
		var out []libvirt.Ref
		for i := range ds {
			defer free(&ds[i])
			r, rerr := ref(&ds[i])
			if rerr != nil {
				err = rerr
			}
			out = append(out, r)
		}
		return out, err
	})
}

func (c *conn) LookupName(name string) (libvirt.Ref, error) {
	return get(c, func(l *lv.Connect) (libvirt.Ref, error) {
		d, err := l.LookupDomainByName(name)
		if err != nil {
			return libvirt.Ref{}, err
		}
		defer free(d)
		return ref(d)
	})
}

func (c *conn) LookupUUID(uuid string) (libvirt.Ref, error) { return with(c, uuid, ref) }

func (c *conn) State(uuid string) (libvirt.State, error) {
	return with(c, uuid, func(d *lv.Domain) (libvirt.State, error) {
		s, reason, err := d.GetState()
		return libvirt.State{State: int(s), Reason: reason}, err
	})
}

func (c *conn) Info(uuid string) (libvirt.Info, error) {
	return with(c, uuid, func(d *lv.Domain) (libvirt.Info, error) {
		i, err := d.GetInfo()
		if err != nil {
			return libvirt.Info{}, err
		}
		return libvirt.Info{MaxMemKiB: i.MaxMem, VCPUs: int(i.NrVirtCpu)}, nil
	})
}

func (c *conn) IsPersistent(uuid string) (bool, error) {
	return with(c, uuid, (*lv.Domain).IsPersistent)
}

func (c *conn) Autostart(uuid string) (bool, error) { return with(c, uuid, (*lv.Domain).GetAutostart) }

func (c *conn) XML(uuid string, flags uint32) (string, error) {
	return with(c, uuid, func(d *lv.Domain) (string, error) { return d.GetXMLDesc(lv.DomainXMLFlags(flags)) })
}

func (c *conn) HasManagedSave(uuid string) (bool, error) {
	return with(c, uuid, func(d *lv.Domain) (bool, error) { return d.HasManagedSaveImage(0) })
}

func (c *conn) RemoveManagedSave(uuid string) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.ManagedSaveRemove(0) })
}

func (c *conn) Snapshots(uuid string) ([]string, error) {
	return with(c, uuid, func(d *lv.Domain) (out []string, err error) {
		all, err := d.ListAllSnapshots(0)
		for i := range all {
			name, lerr := all[i].GetName()
			out, err = append(out, name), errors.Join(err, lerr)
			_ = all[i].Free()
		}
		return out, err
	})
}

func (c *conn) Checkpoints(uuid string) ([]string, error) {
	return with(c, uuid, func(d *lv.Domain) (out []string, err error) {
		all, err := d.ListAllCheckpoints(0)
		for i := range all {
			name, lerr := all[i].GetName()
			out, err = append(out, name), errors.Join(err, lerr)
			_ = all[i].Free()
		}
		return out, err
	})
}

func (c *conn) Define(xml string) error {
	return c.use(func(l *lv.Connect) error {
		d, err := l.DomainDefineXMLFlags(xml, 0)
		if err == nil {
			free(d)
		}
		return err
	})
}

func (c *conn) Undefine(uuid string, flags uint32) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.UndefineFlags(lv.DomainUndefineFlagsValues(flags)) })
}

func (c *conn) Create(uuid string, flags uint32) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.CreateWithFlags(lv.DomainCreateFlags(flags)) })
}

func (c *conn) Suspend(uuid string) error  { return c.order(uuid, (*lv.Domain).Suspend) }
func (c *conn) Resume(uuid string) error   { return c.order(uuid, (*lv.Domain).Resume) }
func (c *conn) Shutdown(uuid string) error { return c.order(uuid, (*lv.Domain).Shutdown) }
func (c *conn) Destroy(uuid string) error  { return c.order(uuid, (*lv.Domain).Destroy) }

func (c *conn) SetAutostart(uuid string, on bool) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.SetAutostart(on) })
}

func (c *conn) CompareCPU(cpu libvirt.CPU, flags uint32) error {
	return c.use(func(l *lv.Connect) error {
		_, err := l.CompareHypervisorCPU(cpu.Emulator, cpu.Arch, cpu.Machine, cpu.VirtType, cpu.XML, lv.ConnectCompareCPUFlags(flags))
		return err
	})
}

func (c *conn) BaselineHypervisorCPU(cpu libvirt.CPU, cpus []string, flags uint32) (string, error) {
	return get(c, func(l *lv.Connect) (string, error) {
		return l.BaselineHypervisorCPU(cpu.Emulator, cpu.Arch, cpu.Machine, cpu.VirtType, cpus, lv.ConnectBaselineCPUFlags(flags))
	})
}

func (c *conn) AbortJob(uuid string, flags uint32) error {
	return c.order(uuid, func(d *lv.Domain) error {
		if flags == 0 {
			return d.AbortJob() // the older procedure, which every daemon has
		}
		return d.AbortJobFlags(lv.DomainAbortJobFlags(flags))
	})
}

func (c *conn) StartPostCopy(uuid string) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.MigrateStartPostCopy(0) })
}

func (c *conn) BlockJob(uuid, target string) (libvirt.BlockJob, bool, error) {
	j, err := with(c, uuid, func(d *lv.Domain) (*lv.DomainBlockJobInfo, error) { return d.GetBlockJobInfo(target, 0) })
	// The binding answers a disk without a job by zeros, and no job has type 0.
	if err != nil || j.Type == 0 {
		return libvirt.BlockJob{}, false, err
	}
	return libvirt.BlockJob{Type: int(j.Type), Done: j.Cur, Total: j.End}, true, nil
}

func (c *conn) Agent(uuid, command string, seconds int) (string, error) {
	return with(c, uuid, func(d *lv.Domain) (string, error) {
		return d.QemuAgentCommand(command, lv.DomainQemuAgentCommandTimeout(seconds), 0)
	})
}

func (c *conn) Monitor(uuid, command string) (string, error) {
	return with(c, uuid, func(d *lv.Domain) (string, error) {
		return d.QemuMonitorCommand(command, lv.DOMAIN_QEMU_MONITOR_COMMAND_DEFAULT)
	})
}

func (c *conn) MaxDowntime(uuid string) (uint64, error) {
	return with(c, uuid, func(d *lv.Domain) (uint64, error) { return d.MigrateGetMaxDowntime(0) })
}

func (c *conn) SetMaxDowntime(uuid string, ms uint64) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.MigrateSetMaxDowntime(ms, 0) })
}

func (c *conn) Devices() ([]string, error) {
	return get(c, func(l *lv.Connect) ([]string, error) {
		ds, err := l.ListAllNodeDevices(0)
		if err != nil {
			return nil, err
		}
		var out []string
		for i := range ds {
			defer freeDevice(&ds[i])
			name, nerr := ds[i].GetName()
			if nerr != nil {
				err = nerr
			}
			out = append(out, name)
		}
		return out, err
	})
}

func (c *conn) DeviceXML(name string) (string, error) {
	return get(c, func(l *lv.Connect) (string, error) {
		d, err := l.LookupDeviceByName(name)
		if err != nil {
			return "", err
		}
		defer freeDevice(d)
		return d.GetXMLDesc(0)
	})
}

func freeDevice(d *lv.NodeDevice) { _ = d.Free() }

func (c *conn) MaxSpeed(uuid string) (uint64, error) {
	return with(c, uuid, func(d *lv.Domain) (uint64, error) { return d.MigrateGetMaxSpeed(0) })
}

func (c *conn) SetMaxSpeed(uuid string, mib uint64, flags uint32) error {
	return c.order(uuid, func(d *lv.Domain) error { return d.MigrateSetMaxSpeed(mib, lv.DomainMigrateMaxSpeedFlags(flags)) })
}
