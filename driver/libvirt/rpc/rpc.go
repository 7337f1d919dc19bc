// Package rpc is the pure-Go binding of driver/libvirt: libvirt's wire protocol
// over a unix socket by github.com/digitalocean/go-libvirt.
//
// That library has no deadlines, no keepalive and no way to give a call up, and
// its own Disconnect asks the daemon first, so a hung daemon would hang it too.
// This package therefore owns the net.Conn: closing it ends every call and
// goroutine of the library. Its own events are not used: it drops those with
// typed parameters (tunable, job-completed) without a word, knows none of the
// host's devices, and its end of a subscription deadlocks with an event that
// arrives meanwhile. They are read off the wire here; see events.go.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"berth/driver/libvirt"
	golibvirt "github.com/digitalocean/go-libvirt"
)

// Dial opens a connection to the daemon at t.Socket and asks it for t.URI.
func Dial(ctx context.Context, t libvirt.Target) (libvirt.Conn, error) {
	var nd net.Dialer
	raw, err := nd.DialContext(ctx, "unix", t.Socket)
	if err != nil {
		return nil, err
	}
	w := newWire(raw)
	c := &conn{l: golibvirt.NewWithDialer(dialer{w}), wire: w}
	// The handshake has no deadline of its own either.
	stop := context.AfterFunc(ctx, func() { _ = w.Close() }) // a second close is harmless
	err = c.l.ConnectToURI(golibvirt.ConnectURI(t.URI))
	close(w.ready)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = w.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if why := w.why(); why != nil {
			err = why
		}
		return nil, fmt.Errorf("open %s at %s: %w", t.URI, t.Socket, explain(err))
	}
	return c, nil
}

// dialer gives the library the connection that this package made.
type dialer struct{ c net.Conn }

func (d dialer) Dial() (net.Conn, error) { return d.c, nil }

// conn is a libvirt.Conn.
type conn struct {
	l    *golibvirt.Libvirt
	wire *wire
}

var _ libvirt.Conn = (*conn)(nil)

// explain turns the library's errors into those of the interface.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[golibvirt.Error](err); ok {
		return &libvirt.Error{Code: int(e.Code), Message: e.Message}
	}
	switch {
	case errors.Is(err, golibvirt.ErrUnsupported):
		return &libvirt.Error{Code: int(golibvirt.ErrNoSupport), Message: err.Error()}
	case errors.Is(err, syscall.EINVAL):
		// The library looks whether it is connected before it writes anything.
		return fmt.Errorf("%w: %w", libvirt.ErrNotSent, err)
	}
	// Interrupted, a broken pipe, an answer that cannot be read.
	return fmt.Errorf("%w: %w", libvirt.ErrLost, err)
}

func (c *conn) Done() <-chan struct{} { return c.wire.done }

func (c *conn) Close() { _ = c.wire.Close() } // what it would say is that it was closed

// domain names a domain for a call. libvirt finds it by UUID; the name is only
// for its messages, and must not be empty.
func domain(id string) (golibvirt.Domain, error) {
	u, err := libvirt.UUID(id)
	return golibvirt.Domain{Name: id, UUID: u, ID: -1}, err
}

func ref(d golibvirt.Domain) libvirt.Ref {
	u := d.UUID
	return libvirt.Ref{UUID: fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), Name: d.Name, ID: int(d.ID)}
}

// with is a call about one domain.
func with[T any](id string, f func(golibvirt.Domain) (T, error)) (v T, err error) {
	d, err := domain(id)
	if err != nil {
		return v, err
	}
	v, err = f(d)
	return v, explain(err)
}

// order is with for calls that answer nothing.
func order(id string, f func(golibvirt.Domain) error) error {
	_, err := with(id, func(d golibvirt.Domain) (struct{}, error) { return struct{}{}, f(d) })
	return err
}

func (c *conn) Type() (string, error)    { s, err := c.l.ConnectGetType(); return s, explain(err) }
func (c *conn) Version() (uint64, error) { v, err := c.l.ConnectGetVersion(); return v, explain(err) }
func (c *conn) LibVersion() (uint64, error) {
	v, err := c.l.ConnectGetLibVersion()
	return v, explain(err)
}
func (c *conn) Hostname() (string, error) { s, err := c.l.ConnectGetHostname(); return s, explain(err) }
func (c *conn) Capabilities() (string, error) {
	s, err := c.l.ConnectGetCapabilities()
	return s, explain(err)
}

func (c *conn) DomainCapabilities(emulator, arch, machine, virtType string, flags uint32) (string, error) {
	s, err := c.l.ConnectGetDomainCapabilities(opt(emulator), opt(arch), opt(machine), opt(virtType), golibvirt.ConnectGetDomainCapabilitiesFlags(flags))
	return s, explain(err)
}

func (c *conn) List(flags uint32) ([]libvirt.Ref, error) {
	ds, _, err := c.l.ConnectListAllDomains(1, golibvirt.ConnectListAllDomainsFlags(flags))
	if err != nil {
		return nil, explain(err)
	}
	out := make([]libvirt.Ref, len(ds))
	for i, d := range ds {
		out[i] = ref(d)
	}
	return out, nil
}

func (c *conn) Stats(types, flags uint32) ([]libvirt.Stats, error) {
	records, err := c.l.ConnectGetAllDomainStats(nil, types, flags)
	if err != nil {
		return nil, explain(err)
	}
	out := make([]libvirt.Stats, len(records))
	for i, r := range records {
		d := ref(r.Dom)
		out[i] = libvirt.Stats{UUID: d.UUID, Name: d.Name, Values: values(r.Params)}
	}
	return out, nil
}

func (c *conn) LookupName(name string) (libvirt.Ref, error) {
	d, err := c.l.DomainLookupByName(name)
	if err != nil {
		return libvirt.Ref{}, explain(err)
	}
	return ref(d), nil
}

func (c *conn) LookupUUID(id string) (libvirt.Ref, error) {
	return with(id, func(d golibvirt.Domain) (libvirt.Ref, error) {
		d, err := c.l.DomainLookupByUUID(d.UUID)
		if err != nil {
			return libvirt.Ref{}, err
		}
		return ref(d), nil
	})
}

func (c *conn) State(id string) (libvirt.State, error) {
	return with(id, func(d golibvirt.Domain) (libvirt.State, error) {
		s, r, err := c.l.DomainGetState(d, 0)
		return libvirt.State{State: int(s), Reason: int(r)}, err
	})
}

func (c *conn) Info(id string) (libvirt.Info, error) {
	return with(id, func(d golibvirt.Domain) (libvirt.Info, error) {
		_, maxMem, _, vcpus, _, err := c.l.DomainGetInfo(d)
		return libvirt.Info{MaxMemKiB: maxMem, VCPUs: int(vcpus)}, err
	})
}

func (c *conn) IsPersistent(id string) (bool, error) {
	n, err := with(id, c.l.DomainIsPersistent)
	return n != 0, err
}

func (c *conn) Autostart(id string) (bool, error) {
	n, err := with(id, c.l.DomainGetAutostart)
	return n != 0, err
}

func (c *conn) XML(id string, flags uint32) (string, error) {
	return with(id, func(d golibvirt.Domain) (string, error) {
		return c.l.DomainGetXMLDesc(d, golibvirt.DomainXMLFlags(flags))
	})
}

func (c *conn) HasManagedSave(id string) (bool, error) {
	n, err := with(id, func(d golibvirt.Domain) (int32, error) { return c.l.DomainHasManagedSaveImage(d, 0) })
	return n != 0, err
}

func (c *conn) RemoveManagedSave(id string) error {
	return order(id, func(d golibvirt.Domain) error { return c.l.DomainManagedSaveRemove(d, 0) })
}

func (c *conn) Snapshots(id string) ([]string, error) {
	return with(id, func(d golibvirt.Domain) (out []string, err error) {
		all, _, err := c.l.DomainListAllSnapshots(d, 1, 0)
		for _, s := range all {
			out = append(out, s.Name)
		}
		return out, err
	})
}

func (c *conn) Checkpoints(id string) ([]string, error) {
	return with(id, func(d golibvirt.Domain) (out []string, err error) {
		all, _, err := c.l.DomainListAllCheckpoints(d, 1, 0)
		for _, s := range all {
			out = append(out, s.Name)
		}
		return out, err
	})
}

func (c *conn) Define(xml string) error {
	_, err := c.l.DomainDefineXMLFlags(xml, 0)
	return explain(err)
}

func (c *conn) Undefine(id string, flags uint32) error {
	return order(id, func(d golibvirt.Domain) error {
		return c.l.DomainUndefineFlags(d, golibvirt.DomainUndefineFlagsValues(flags))
	})
}

func (c *conn) Create(id string, flags uint32) error {
	return order(id, func(d golibvirt.Domain) error {
		_, err := c.l.DomainCreateWithFlags(d, flags)
		return err
	})
}

func (c *conn) Suspend(id string) error { return order(id, c.l.DomainSuspend) }
func (c *conn) Resume(id string) error  { return order(id, c.l.DomainResume) }

func (c *conn) Shutdown(id string) error { return order(id, c.l.DomainShutdown) }
func (c *conn) Destroy(id string) error  { return order(id, c.l.DomainDestroy) }

func (c *conn) SetAutostart(id string, on bool) error {
	var n int32
	if on {
		n = 1
	}
	return order(id, func(d golibvirt.Domain) error { return c.l.DomainSetAutostart(d, n) })
}

// opt leaves out what is empty.
func opt(s string) golibvirt.OptString {
	if s == "" {
		return nil
	}
	return golibvirt.OptString{s}
}

func (c *conn) CompareCPU(cpu libvirt.CPU, flags uint32) error {
	_, err := c.l.ConnectCompareHypervisorCPU(opt(cpu.Emulator), opt(cpu.Arch), opt(cpu.Machine), opt(cpu.VirtType), cpu.XML, flags)
	return explain(err)
}

func (c *conn) BaselineHypervisorCPU(cpu libvirt.CPU, cpus []string, flags uint32) (string, error) {
	s, err := c.l.ConnectBaselineHypervisorCPU(opt(cpu.Emulator), opt(cpu.Arch), opt(cpu.Machine), opt(cpu.VirtType), cpus, flags)
	return s, explain(err)
}

func (c *conn) Migrate(id, uri string, params []libvirt.Param, flags uint32) error {
	typed := make([]golibvirt.TypedParam, 0, len(params))
	for _, p := range params {
		var v *golibvirt.TypedParamValue
		switch x := p.Value.(type) {
		case int:
			v = golibvirt.NewTypedParamValueInt(int32(x))
		case uint64:
			v = golibvirt.NewTypedParamValueUllong(x)
		case string:
			v = golibvirt.NewTypedParamValueString(x)
		default:
			return &libvirt.Error{Code: int(golibvirt.ErrInvalidArg), Message: fmt.Sprintf("parameter %s is a %T", p.Name, p.Value)}
		}
		typed = append(typed, golibvirt.TypedParam{Field: p.Name, Value: *v})
	}
	// With the peer-to-peer flag Perform alone is the whole migration, as in
	// virDomainMigrateToURI3.
	return order(id, func(d golibvirt.Domain) error {
		_, err := c.l.DomainMigratePerform3Params(d, golibvirt.OptString{uri}, typed, nil, golibvirt.DomainMigrateFlags(flags))
		return err
	})
}

func (c *conn) JobStats(id string, flags uint32) (int, map[string]any, error) {
	type answer struct {
		kind   int32
		params []golibvirt.TypedParam
	}
	a, err := with(id, func(d golibvirt.Domain) (answer, error) {
		kind, params, err := c.l.DomainGetJobStats(d, golibvirt.DomainGetJobStatsFlags(flags))
		return answer{kind, params}, err
	})
	if err != nil {
		return 0, nil, err
	}
	return int(a.kind), values(a.params), nil
}

// AbortJob without flags is the older procedure, which every daemon has.
func (c *conn) AbortJob(id string, flags uint32) error {
	return order(id, func(d golibvirt.Domain) error {
		if flags == 0 {
			return c.l.DomainAbortJob(d)
		}
		return c.l.DomainAbortJobFlags(d, flags)
	})
}

func (c *conn) StartPostCopy(id string) error {
	return order(id, func(d golibvirt.Domain) error { return c.l.DomainMigrateStartPostCopy(d, 0) })
}

func (c *conn) BlockJob(id, target string) (libvirt.BlockJob, bool, error) {
	found := false
	j, err := with(id, func(d golibvirt.Domain) (libvirt.BlockJob, error) {
		n, kind, _, done, total, err := c.l.DomainGetBlockJobInfo(d, target, 0)
		found = n != 0
		return libvirt.BlockJob{Type: int(kind), Done: done, Total: total}, err
	})
	return j, found && err == nil, err
}

func (c *conn) Agent(id, command string, seconds int) (string, error) {
	return with(id, func(d golibvirt.Domain) (string, error) {
		answer, err := c.l.QEMUDomainAgentCommand(d, command, int32(seconds), 0)
		return strings.Join(answer, ""), err
	})
}

func (c *conn) Monitor(id, command string) (string, error) {
	return with(id, func(d golibvirt.Domain) (string, error) { return c.l.QEMUDomainMonitorCommand(d, command, 0) })
}

func (c *conn) MaxDowntime(id string) (uint64, error) {
	return with(id, func(d golibvirt.Domain) (uint64, error) { return c.l.DomainMigrateGetMaxDowntime(d, 0) })
}

func (c *conn) SetMaxDowntime(id string, ms uint64) error {
	return order(id, func(d golibvirt.Domain) error { return c.l.DomainMigrateSetMaxDowntime(d, ms, 0) })
}

func (c *conn) MaxSpeed(id string) (uint64, error) {
	return with(id, func(d golibvirt.Domain) (uint64, error) { return c.l.DomainMigrateGetMaxSpeed(d, 0) })
}

func (c *conn) SetMaxSpeed(id string, mib uint64, flags uint32) error {
	return order(id, func(d golibvirt.Domain) error { return c.l.DomainMigrateSetMaxSpeed(d, mib, flags) })
}

func (c *conn) Devices() ([]string, error) {
	ds, _, err := c.l.ConnectListAllNodeDevices(1, 0)
	if err != nil {
		return nil, explain(err)
	}
	out := make([]string, len(ds))
	for i, d := range ds {
		out[i] = d.Name
	}
	return out, nil
}

func (c *conn) DeviceXML(name string) (string, error) {
	s, err := c.l.NodeDeviceGetXMLDesc(name, 0)
	return s, explain(err)
}

// values flattens typed parameters: integers become uint64, since none that is
// read here can be negative.
func values(params []golibvirt.TypedParam) map[string]any {
	out := make(map[string]any, len(params))
	for _, p := range params {
		switch v := p.Value.I.(type) {
		case int32:
			out[p.Field] = uint64(max(v, 0))
		case uint32:
			out[p.Field] = uint64(v)
		case int64:
			out[p.Field] = uint64(max(v, 0))
		default:
			out[p.Field] = v
		}
	}
	return out
}
