package libvirt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
)

// Flags of libvirt-domain.h.
const (
	listPersistent = 1 << 2
	listAutostart  = 1 << 10

	xmlSecure     = 1 << 0
	xmlInactive   = 1 << 1
	xmlMigratable = 1 << 3

	undefineKeepNVRAM = 1 << 3

	startPaused = 1 << 0
)

// attempts bounds how often a list is read again because domains came or went
// meanwhile. Arbitrary; one repetition is already rare.
const attempts = 5

// domains reads all domains. libvirt has no call that tells everything, so the
// states come from one call for all, and the list is read again when it does not
// name the same domains as the states do. A domain that vanishes in between has
// vanished; one that came is in the next list.
func domains(c Conn) ([]driver.Domain, error) {
	var out []driver.Domain
	var odd error // of the last attempt
	for range attempts {
		odd = nil
		refs, err := c.List(0)
		if err != nil {
			return nil, err
		}
		persistent, err := set(c, listPersistent)
		if err != nil {
			return nil, err
		}
		autostart, err := set(c, listAutostart)
		if err != nil {
			return nil, err
		}
		states, err := states(c)
		if err != nil {
			return nil, err
		}
		out = make([]driver.Domain, 0, len(refs))
		settled := len(states) == len(refs)
		for _, r := range refs {
			s, known := states[r.UUID]
			info, err := c.Info(r.UUID)
			if codeOf(err) == errNoDomain {
				settled = false
				continue
			}
			if err != nil {
				return nil, err
			}
			if !known {
				settled, odd = false, nonsense("it lists domain %s and tells no state of it", r.UUID)
				continue
			}
			if err := sensible(s); err != nil {
				return nil, err
			}
			v := domain(r, s, info, persistent[r.UUID], autostart[r.UUID])
			// Started or stopped between the list and the states.
			settled = settled && v.Active() == (r.ID >= 0)
			out = append(out, v)
		}
		if settled {
			break
		}
	}
	if odd != nil {
		return nil, odd // the list would lack a domain that is there
	}
	slices.SortFunc(out, func(a, b driver.Domain) int { return strings.Compare(a.UUID, b.UUID) })
	return out, nil
}

// states reads state and reason of all domains, by UUID. A domain whose state is
// not told is absent.
func states(c Conn) (map[string]State, error) {
	all, err := c.Stats(statsState, 0)
	if err != nil {
		return nil, err
	}
	out := make(map[string]State, len(all))
	for _, s := range all {
		state, told := s.Values["state.state"].(uint64)
		if !told {
			continue
		}
		reason, _ := s.Values["state.reason"].(uint64)
		out[s.UUID] = State{State: int(state), Reason: int(reason)}
	}
	return out, nil
}

// nonsense is the error of an answer that cannot be true: nothing is known.
func nonsense(format string, args ...any) error {
	return fmt.Errorf("%w: libvirt's answer makes no sense: %w", ErrLost, fmt.Errorf(format, args...))
}

// sensible refuses a state that libvirt has no name for: taken for none, it would
// make of a running guest one that is off.
func sensible(s State) error {
	if s.State < 0 || s.State >= len(stateNames) {
		return nonsense("a domain is in state %d", s.State)
	}
	return nil
}

func set(c Conn, flags uint32) (map[string]bool, error) {
	refs, err := c.List(flags)
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool, len(refs))
	for _, r := range refs {
		out[r.UUID] = true
	}
	return out, nil
}

func domain(r Ref, s State, i Info, persistent, autostart bool) driver.Domain {
	v := driver.Domain{
		UUID: r.UUID, Name: r.Name, ID: r.ID, State: stateName(s.State), Reason: reasonName(s.State, s.Reason),
		Persistent: persistent, Autostart: autostart, VCPUs: i.VCPUs, MemoryMB: int64((i.MaxMemKiB + 1023) / 1024),
	}
	if !v.Active() {
		v.ID = -1
	}
	return v
}

// Domain implements driver.Driver.
func (d *Driver) Domain(ctx context.Context, uuid string) (driver.Domain, error) {
	return do(ctx, d.control, request{verb: "read", uuid: uuid}, func(c Conn) (driver.Domain, error) { return read(c, uuid) })
}

func read(c Conn, uuid string) (v driver.Domain, err error) {
	for range attempts {
		r, err := c.LookupUUID(uuid)
		if err != nil {
			return v, err
		}
		if !sameUUID(r.UUID, uuid) {
			return v, nonsense("asked for domain %s it tells of %s", uuid, r.UUID)
		}
		s, err := c.State(uuid)
		if err == nil {
			err = sensible(s)
		}
		if err != nil {
			return v, err
		}
		i, err := c.Info(uuid)
		if err != nil {
			return v, err
		}
		persistent, err := c.IsPersistent(uuid)
		if err != nil {
			return v, err
		}
		autostart := false
		if persistent {
			if autostart, err = c.Autostart(uuid); err != nil {
				return v, err
			}
		}
		v = domain(r, s, i, persistent, autostart)
		if v.Active() == (r.ID >= 0) {
			break
		}
	}
	return v, nil
}

// sameUUID compares two spellings of a UUID, with and without dashes.
func sameUUID(a, b string) bool {
	plain := func(s string) string { return strings.ReplaceAll(s, "-", "") }
	return strings.EqualFold(plain(a), plain(b))
}

// XML implements driver.Driver. The persistent and migratable forms carry
// secrets such as graphics passwords, since they are made to be defined again.
func (d *Driver) XML(ctx context.Context, uuid string, what driver.Document) (string, error) {
	flags := map[driver.Document]uint32{
		driver.Live: 0, driver.Persistent: xmlInactive | xmlSecure, driver.Migratable: xmlMigratable | xmlSecure,
	}[what]
	return do(ctx, d.control, request{verb: "read document of", uuid: uuid}, func(c Conn) (string, error) {
		return c.XML(uuid, flags)
	})
}

// Define implements driver.Driver.
func (d *Driver) Define(ctx context.Context, xml string) error {
	doc, err := domainxml.Parse(xml)
	if err != nil {
		return fault.New(fault.Invalid, "define domain: %w", err)
	}
	r := request{verb: "define", uuid: doc.UUID(), changes: true}
	return run(ctx, d.control, r, func(c Conn) error {
		err := c.Define(xml)
		if codeOf(err) == errOperationFailed {
			// libvirt's answer to a name that another domain has, among others.
			if taken, lerr := c.LookupName(doc.Name()); lerr == nil && taken.UUID != doc.UUID() {
				return fault.New(fault.Exists, "%s: name %s belongs to domain %s: %w", r, doc.Name(), taken.UUID, err)
			}
		}
		return err
	})
}

// Undefine implements driver.Driver. libvirt itself is not told to take anything else along, and
// refuses saved memory, snapshots and QEMU's checkpoints that came since the look.
func (d *Driver) Undefine(ctx context.Context, uuid string) error {
	return run(ctx, d.control, request{verb: "undefine", uuid: uuid, changes: true}, func(c Conn) error {
		persistent, err := c.IsPersistent(uuid)
		if err != nil || !persistent {
			return unless(err, errNoDomain)
		}
		if err := keeps(c, uuid); err != nil {
			return unless(err, errNoDomain)
		}
		err = c.Undefine(uuid, undefineKeepNVRAM)
		if code := codeOf(err); code == errInvalidArg || code == errNoSupport || code == errOperationUnsupported {
			// Not every hypervisor knows firmware variables.
			err = c.Undefine(uuid, 0)
		}
		if codeOf(err) == errOperationInvalid {
			return cmp.Or(keeps(c, uuid), err) // saved since the look
		}
		return unless(err, errNoDomain)
	})
}

// unless forgives one of libvirt's errors.
func unless(err error, code int) error {
	if codeOf(err) == code {
		return nil
	}
	return err
}

// change is a verb that is done when the domain's state says so: libvirt refuses
// to start what runs or to pause what is paused, differently in each driver, so
// a refusal counts only when the domain is not yet as it should be.
func (d *Driver) change(ctx context.Context, verb, uuid string, do func(Conn) error, as func(driver.Domain) bool) error {
	r := request{verb: verb, uuid: uuid, changes: true}
	return run(ctx, d.control, r, func(c Conn) error {
		err := do(c)
		if code := codeOf(err); code == 0 || code == errNoDomain {
			return err // done, or libvirt has not answered, or said everything
		}
		v, lerr := read(c, uuid)
		switch {
		case lerr != nil:
			return err
		case as(v):
			return nil
		case !v.Active() && (verb == "suspend" || verb == "resume"):
			// Each driver has its own number for this.
			return fault.New(fault.Invalid, "%s: it is %s: %w", r, v.State, err)
		}
		return err
	})
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, uuid string, paused bool) error {
	var flags uint32
	if paused {
		flags = startPaused
	}
	return d.change(ctx, "start", uuid, func(c Conn) error { return c.Create(uuid, flags) }, driver.Domain.Active)
}

// Suspend implements driver.Driver.
func (d *Driver) Suspend(ctx context.Context, uuid string) error {
	return d.change(ctx, "suspend", uuid, func(c Conn) error { return c.Suspend(uuid) },
		func(v driver.Domain) bool { return v.State == driver.Paused })
}

// Resume implements driver.Driver.
func (d *Driver) Resume(ctx context.Context, uuid string) error {
	return d.change(ctx, "resume", uuid, func(c Conn) error { return c.Resume(uuid) },
		func(v driver.Domain) bool { return v.State == driver.Running || v.State == driver.Blocked })
}

// Shutdown implements driver.Driver.
func (d *Driver) Shutdown(ctx context.Context, uuid string) error {
	return d.change(ctx, "shut down", uuid, func(c Conn) error { return c.Shutdown(uuid) }, inactive)
}

// Destroy implements driver.Driver.
func (d *Driver) Destroy(ctx context.Context, uuid string) error {
	return d.change(ctx, "destroy", uuid, func(c Conn) error { return c.Destroy(uuid) }, inactive)
}

func inactive(v driver.Domain) bool { return !v.Active() }

// SetAutostart implements driver.Driver.
func (d *Driver) SetAutostart(ctx context.Context, uuid string, on bool) error {
	return run(ctx, d.control, request{verb: "set autostart of", uuid: uuid, changes: true}, func(c Conn) error {
		return c.SetAutostart(uuid, on)
	})
}
