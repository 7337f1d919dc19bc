package drivertest_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// mutant is one way to break one method.
type mutant struct {
	method, how string
	twist       func(a act) (any, error)
}

func (m mutant) name() string { return m.method + ": " + m.how }

// everywhere are the ways to break any method.
var everywhere = []mutant{
	{how: "does nothing and says that it did", twist: func(act) (any, error) { return nil, nil }},
	{how: "does it and says that it failed", twist: func(a act) (any, error) {
		v, _ := a.well()
		return v, fault.New(fault.Internal, "broken on purpose")
	}},
	{how: "says internal for every error", twist: func(a act) (any, error) {
		v, err := a.well()
		if err != nil {
			err = fault.New(fault.Internal, "broken on purpose: %v", err)
		}
		return v, err
	}},
	{how: "hides every error", twist: func(a act) (any, error) { v, _ := a.well(); return v, nil }},
	{how: "says not found where it could not ask", twist: func(a act) (any, error) {
		v, err := a.well()
		if errors.Is(err, fault.Unavailable) {
			err = fault.New(fault.NotFound, "broken on purpose: %v", err)
		}
		return v, err
	}},
	{how: "does not heed its context", twist: func(a act) (any, error) { return a.call(withoutCancel(a.ctx)) }},
}

// harmless are methods that a general way does not break, and why.
var harmless = map[string]string{
	"Close: says internal for every error":         "it never fails",
	"Close: hides every error":                     "it never fails",
	"Close: says not found where it could not ask": "it never fails",
	"Close: does not heed its context":             "it has none",
	"Health: does not heed its context":            "it has none",
}

// then changes a method's good answer.
func then[R any](change func(a act, v R) R) func(act) (any, error) {
	return func(a act) (any, error) {
		v, err := a.well()
		if err != nil {
			return v, err
		}
		return change(a, v.(R)), nil
	}
}

// after does more than the method should, when it went well.
func after(more func(a act) error) func(act) (any, error) {
	return func(a act) (any, error) {
		v, err := a.well()
		if err == nil {
			err = more(a)
		}
		return v, err
	}
}

// once is a verb that is not safe to repeat.
func once(a act) (any, error) {
	if a.n > 1 {
		return nil, fault.New(fault.Invalid, "broken on purpose: for the second time")
	}
	return a.well()
}

// instead changes an error that a method should give.
func instead(of, by fault.Kind) func(act) (any, error) {
	return func(a act) (any, error) {
		v, err := a.well()
		if errors.Is(err, of) {
			err = nil
			if by != "" {
				err = fault.New(by, "broken on purpose")
			}
		}
		return v, err
	}
}

// filter passes a stream on without what is dropped; an endless one is never
// closed.
func filter[E any](endless bool, change func(e E) (E, bool)) func(act) (any, error) {
	return then(func(_ act, in <-chan E) <-chan E {
		out := make(chan E, 1024)
		go func() {
			for e := range in {
				if e, keep := change(e); keep {
					select {
					case out <- e:
					default:
					}
				}
			}
			if !endless {
				close(out)
			}
		}()
		return out
	})
}

func each[E any](change func(v *E)) func(act) (any, error) {
	return then(func(_ act, all []E) []E {
		for i := range all {
			change(&all[i])
		}
		return all
	})
}

func twice[E any](_ act, all []E) []E { return slices.Concat(all, all) }

func all[E any](e E) (E, bool) { return e, true }

// special are the ways to break one method.
func special() []mutant {
	out := []mutant{
		{"Node", "has another uuid each time", then(func(_ act, n driver.Node) driver.Node { n.UUID = uuid.NewString(); return n })},
		{"Node", "does not sort machines", then(func(_ act, n driver.Node) driver.Node { n.Machines = []string{"q35", "pc"}; return n })},
		{"Node", "has no hostname", then(func(_ act, n driver.Node) driver.Node { n.Hostname = ""; return n })},
		{"Node", "denies an ability", then(func(_ act, n driver.Node) driver.Node {
			n.Cannot = map[driver.Ability]string{driver.AbilityDevices: "it is old"}
			return n
		})},
		{"Node", "denies an ability without a reason", then(func(_ act, n driver.Node) driver.Node {
			n.Cannot = map[driver.Ability]string{driver.AbilityDevices: ""}
			return n
		})},
		{"Domains", "misses one", then(func(_ act, v []driver.Domain) []driver.Domain { return v[:max(0, len(v)-1)] })},
		{"Domains", "lists twice", then(twice[driver.Domain])},
		{"Domains", "does not know autostart and reasons", each(func(v *driver.Domain) { v.Reason = "" })},
		{"Domain", "always says running", then(func(_ act, v driver.Domain) driver.Domain { v.State = driver.Running; return v })},
		{"Domain", "gives a stopped one a number", then(func(_ act, v driver.Domain) driver.Domain { v.ID = max(v.ID, 0); return v })},
		{"Domain", "always says persistent", then(func(_ act, v driver.Domain) driver.Domain { v.Persistent = true; return v })},
		{"Domain", "forgets autostart", then(func(_ act, v driver.Domain) driver.Domain { v.Autostart = false; return v })},
		{"Domain", "forgets the reason", then(func(_ act, v driver.Domain) driver.Domain { v.Reason = driver.ReasonUnknown; return v })},
		{"Domain", "rounds small memory to nothing", then(func(_ act, v driver.Domain) driver.Domain { v.MemoryMB >>= 10; return v })},
		{"XML", "cuts the document", then(func(_ act, v string) string { return v[:len(v)/4] })},
		{"XML", "is another each time", then(func(a act, v string) string { return v + strings.Repeat(" ", a.n) })},
		{"Define", "stops what runs", after(func(a act) error { return a.Destroy(a.ctx, a.id) })},
		{"Define", "starts what it defines", after(func(a act) error { return a.Start(a.ctx, a.id, false) })},
		{"Define", "is not safe to repeat", once},
		{"Define", "takes a name that is taken", instead(fault.Exists, "")},
		{"Define", "says internal of garbage", instead(fault.Invalid, fault.Internal)},
		{"Undefine", "stops what runs", func(a act) (any, error) {
			if err := a.Destroy(a.ctx, a.id); err != nil && !errors.Is(err, fault.NotFound) {
				return nil, err
			}
			return a.well()
		}},
		{"Undefine", "is not safe to repeat", once},
		{"Undefine", "takes saved memory with it", func(a act) (any, error) {
			if err := a.DiscardSavedMemory(a.ctx, a.id); err != nil && !errors.Is(err, fault.NotFound) {
				return nil, err
			}
			return a.well()
		}},
		{"Saved", "does not see saved memory", then(func(_ act, v driver.Saved) driver.Saved { v.Memory = false; return v })},
		{"Saved", "counts no snapshots", then(func(_ act, v driver.Saved) driver.Saved { v.Snapshots = nil; return v })},
		{"Saved", "counts no checkpoints", then(func(_ act, v driver.Saved) driver.Saved { v.Checkpoints = nil; return v })},
		{"DiscardSavedMemory", "is not safe to repeat", once},
		{"DiscardSavedMemory", "does nothing", func(act) (any, error) { return nil, nil }},
		{"Start", "does not start paused", func(a act) (any, error) { return nil, a.Start(a.ctx, a.id, false) }},
		{"Start", "resumes what is paused", func(a act) (any, error) {
			v, err := a.well()
			if err == nil && !a.on {
				err = a.Resume(a.ctx, a.id)
			}
			return v, err
		}},
		{"Suspend", "lets a stopped one pass", instead(fault.Invalid, "")},
		{"Resume", "lets a stopped one pass", instead(fault.Invalid, "")},
		{"Destroy", "takes the definition too", after(func(a act) error { return a.Undefine(a.ctx, a.id) })},
		{"Shutdown", "refuses what is stopped", func(a act) (any, error) {
			if v, err := a.Domain(a.ctx, a.id); err == nil && !v.Active() {
				return nil, fault.New(fault.Invalid, "broken on purpose: not running")
			}
			return a.well()
		}},
		{"SetAutostart", "never turns it off", func(a act) (any, error) { return nil, a.SetAutostart(a.ctx, a.id, true) }},
		{"Events", "never end", filter(true, all[driver.Event])},
		{"Events", "have no details", filter(false, func(e driver.Event) (driver.Event, bool) { e.Detail = ""; return e, true })},
		{"Events", "have no time", filter(false, func(e driver.Event) (driver.Event, bool) { e.At = time.Time{}; return e, true })},
		{"Health", "is always good", func(act) (any, error) { return nil, nil }},
		{"Close", "is not safe to repeat", once},
		{"Close", "leaves the driver open", func(act) (any, error) { return nil, nil }},
		{"CheckCPU", "names no feature", func(a act) (any, error) {
			_, err := a.well()
			if errors.Is(err, fault.DoesNotFit) {
				err = fault.New(fault.DoesNotFit, "broken on purpose: it does not fit")
			}
			return nil, err
		}},
		{"Migrate", "runs the guest at the destination", func(a act) (any, error) {
			m := a.m
			m.Paused = false
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "takes the source's definition", after(func(a act) error { return a.Undefine(a.ctx, a.id) })},
		{"Migrate", "says done of what was rolled back", instead(fault.Undone, "")},
		{"Migrate", "says rolled back of what goes on", instead(fault.InDoubt, fault.Undone)},
		{"Migrate", "gives the job up with its caller", func(a act) (any, error) {
			v, err := a.well()
			if errors.Is(err, fault.InDoubt) {
				err = errors.Join(err, a.AbortJob(withoutCancel(a.ctx), a.id))
			}
			return v, err
		}},
		{"Migrate", "sends twice", instead(fault.Busy, "")},
		{"Migrate", "does not say which documents are missing", func(a act) (any, error) {
			_, err := a.well()
			if len(fault.ReasonsOf(err)) > 0 {
				err = fault.New(fault.KindOf(err), "broken on purpose")
			}
			return nil, err
		}},
		{"Migrate", "permits post-copy never", func(a act) (any, error) {
			m := a.m
			m.PostCopy = false
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "copies no disks", func(a act) (any, error) {
			m := a.m
			m.CopyDisks = nil
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "goes by the network and not by sockets", func(a act) (any, error) {
			m := a.m
			m.MigrateURI, m.DisksURI = "", ""
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "does not say where disks go", func(a act) (any, error) {
			m := a.m
			m.DisksURI = ""
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "sends memory by one connection", func(a act) (any, error) {
			m := a.m
			m.ParallelConnections = 0
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "does not bound the rate", func(a act) (any, error) {
			m := a.m
			m.Bandwidth = 0
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "does not bound post-copy", func(a act) (any, error) {
			m := a.m
			m.PostCopyBandwidth = 0
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "slows no guest down", func(a act) (any, error) {
			m := a.m
			m.AutoConverge = false
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "slows guests down by the hypervisor's own steps", func(a act) (any, error) {
			m := a.m
			m.Throttle = driver.Throttle{}
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "asks for no disk's zeroes", func(a act) (any, error) {
			m := a.m
			m.DetectZeroes = nil
			return nil, a.Migrate(a.ctx, a.id, m)
		}},
		{"Migrate", "leaves its bounds behind", func() func(a act) (any, error) {
			var last sync.Map // by guest
			return func(a act) (any, error) {
				m := a.m
				if was, ok := last.Swap(a.id, m); ok && m.Bandwidth == 0 {
					m.Bandwidth = was.(driver.Migration).Bandwidth
				}
				return nil, a.Migrate(a.ctx, a.id, m)
			}
		}()},
		{"Job", "does not say by how much a guest is slowed down", then(func(_ act, j driver.Job) driver.Job { j.Throttle = 0; return j })},
		{"Job", "counts no passes", then(func(_ act, j driver.Job) driver.Job { j.Iteration = 0; return j })},
		{"Suspend", "is its user's, in a migration too", func(a act) (any, error) {
			if j, err := a.Job(a.ctx, a.id); err == nil && j.InFlight() {
				return nil, nil
			}
			return a.well()
		}},
		{"SetBandwidth", "forgets post-copy", func(a act) (any, error) {
			if d, err := a.Domain(a.ctx, a.id); err == nil && d.Reason == driver.ReasonPostCopy {
				return nil, nil
			}
			return a.well()
		}},
		{"FailPostCopy", "needs none", instead(fault.Invalid, "")},
		{"FailPostCopy", "is not safe to repeat", once},
		{"RecoverPostCopy", "needs none that broke", instead(fault.Invalid, "")},
		{"RecoverPostCopy", "does not see that it is in flight", instead(fault.Busy, fault.Invalid)},
		{"RecoverPostCopy", "says rolled back of what broke again", instead(fault.InDoubt, fault.Undone)},
		{"RecoverPostCopy", "returns when it goes on", func(a act) (any, error) {
			go func() { _, _ = a.call(withoutCancel(a.ctx)) }()
			return nil, nil
		}},
		{"Domain", "does not tell a post-copy that broke", then(func(_ act, v driver.Domain) driver.Domain {
			if v.Reason == driver.ReasonPostCopyFailed {
				v.Reason = driver.ReasonPostCopy
			}
			return v
		})},
		{"Job", "is always none", then(func(act, driver.Job) driver.Job { return driver.Job{Kind: driver.JobNone} })},
		{"Job", "has no totals", then(func(_ act, j driver.Job) driver.Job { j.MemoryTotal = 0; return j })},
		{"Job", "never ends", then(func(_ act, j driver.Job) driver.Job { j.Kind = driver.JobUnbounded; return j })},
		{"CompletedJob", "is there before any", instead(fault.NotFound, "")},
		{"AbortJob", "needs a job", func(a act) (any, error) {
			if j, err := a.Job(a.ctx, a.id); err == nil && j.Kind == driver.JobNone {
				return nil, fault.New(fault.Invalid, "broken on purpose: no job")
			}
			return a.well()
		}},
		{"AbortJob", "ends the guest", after(func(a act) error { return a.Destroy(a.ctx, a.id) })},
		{"DiskCopies", "show what is not copied", then(func(act, map[string]driver.DiskCopy) map[string]driver.DiskCopy {
			return map[string]driver.DiskCopy{"vda": {Total: 1, Copied: 1}}
		})},
		{"DiskCopies", "have no total", then(func(_ act, v map[string]driver.DiskCopy) map[string]driver.DiskCopy {
			for disk, c := range v {
				c.Total = 0
				v[disk] = c
			}
			return v
		})},
		{"StartPostCopy", "needs no permission", instead(fault.Invalid, "")},
		{"PingAgent", "blames a guest that is stopped", instead(fault.Invalid, fault.Unavailable)},
		{"FreezeFilesystems", "counts nothing", then(func(act, int) int { return 0 })},
		{"FreezeFilesystems", "needs no agent", instead(fault.Unavailable, "")},
		{"ThawFilesystems", "is not safe to repeat", once},
		{"ThawFilesystems", "counts what was not frozen", then(func(act, int) int { return 1 + 1 })},
		{"Statistics", "misses one", then(func(_ act, v []driver.Usage) []driver.Usage { return nil })},
		{"Statistics", "lists twice", then(twice[driver.Usage])},
		{"Statistics", "does not see that a guest is paused", each(func(u *driver.Usage) { u.State = driver.Running })},
		{"Statistics", "counts no time", each(func(u *driver.Usage) { u.CPUTime = 0 })},
		{"Statistics", "counts memory in KiB", each(func(u *driver.Usage) { u.MemoryMax >>= 10 })},
		{"Statistics", "knows no resident memory", each(func(u *driver.Usage) { u.RSS = 0 })},
		{"HostDevices", "lists twice", then(twice[driver.HostDevice])},
		{"HostDevices", "has no addresses", each(func(d *driver.HostDevice) { d.PCI = "" })},
		{"HostDevices", "has no kinds", each(func(d *driver.HostDevice) { d.Kind = "" })},
		{"HostDevices", "never changes", then(func(_ act, v []driver.HostDevice) []driver.HostDevice { return v[:1] })},
		{"DeviceEvents", "never end", filter(true, all[driver.DeviceEvent])},
		{"Network", "is always active", then(func(_ act, n driver.Network) driver.Network { n.Active = true; return n })},
		{"Network", "has no bridge", then(func(_ act, n driver.Network) driver.Network { n.Bridge = ""; return n })},
		{"Network", "has no port groups", then(func(_ act, n driver.Network) driver.Network { n.PortGroups = nil; return n })},
		{"Network", "forgets autostart", then(func(_ act, n driver.Network) driver.Network { n.Autostart = false; return n })},
		{"Pool", "is always active", then(func(_ act, p driver.Pool) driver.Pool { p.Active = true; return p })},
		{"Pool", "has no path", then(func(_ act, p driver.Pool) driver.Pool { p.Path = ""; return p })},
		{"Pool", "forgets autostart", then(func(_ act, p driver.Pool) driver.Pool { p.Autostart = false; return p })},
		{"OpenPool", "does not read again", func(a act) (any, error) {
			if p, err := a.Pool(a.ctx, a.id); err == nil && p.Active {
				return nil, nil
			}
			return a.well()
		}},
		{"OpenPool", "is not safe to repeat", once},
		{"ClosePool", "is not safe to repeat", once},
		{"Volume", "has no path", then(func(_ act, v driver.Volume) driver.Volume { v.Path = ""; return v })},
		{"Volume", "has no capacity", then(func(_ act, v driver.Volume) driver.Volume { v.Capacity = 0; return v })},
		{"Volume", "is there in a closed pool", instead(fault.Invalid, "")},
		{"Secret", "is always there", instead(fault.NotFound, "")},
	}
	for _, method := range []string{"Start", "Suspend", "Resume", "Destroy", "SetAutostart"} {
		out = append(out, mutant{method, "is not safe to repeat", once})
	}
	for _, kind := range []driver.EventKind{
		driver.EventResync, driver.EventDefined, driver.EventUndefined, driver.EventStarted, driver.EventSuspended,
		driver.EventResumed, driver.EventStopped, driver.EventChanged, driver.EventIteration,
	} {
		out = append(out, mutant{"Events", "lose " + string(kind), filter(false, func(e driver.Event) (driver.Event, bool) { return e, e.Kind != kind })})
	}
	for _, kind := range []driver.DeviceEventKind{driver.DeviceResync, driver.DeviceAdded, driver.DeviceRemoved} {
		out = append(out, mutant{"DeviceEvents", "lose " + string(kind), filter(false, func(e driver.DeviceEvent) (driver.DeviceEvent, bool) { return e, e.Kind != kind })})
	}
	return out
}
