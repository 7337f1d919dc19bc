package drivertest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// abilityOf says which ability a method belongs to; methods that every driver has
// are absent.
var abilityOf = map[string]driver.Ability{
	"CheckCPU": driver.AbilityLiveMigration, "Migrate": driver.AbilityLiveMigration, "Job": driver.AbilityLiveMigration,
	"CompletedJob": driver.AbilityLiveMigration, "AbortJob": driver.AbilityLiveMigration,
	"SetMaxDowntime": driver.AbilityLiveMigration, "SetBandwidth": driver.AbilityLiveMigration,
	"DiskCopies":    driver.AbilityStorageCopy,
	"StartPostCopy": driver.AbilityPostCopy,
	"FailPostCopy":  driver.AbilityRecovery, "RecoverPostCopy": driver.AbilityRecovery,
	"PingAgent": driver.AbilityGuestAgent, "FreezeFilesystems": driver.AbilityGuestAgent, "ThawFilesystems": driver.AbilityGuestAgent,
	"Statistics":  driver.AbilityStatistics,
	"HostDevices": driver.AbilityDevices, "DeviceEvents": driver.AbilityDevices,
	"Network": driver.AbilityConnections, "Pool": driver.AbilityConnections, "OpenPool": driver.AbilityConnections,
	"ClosePool": driver.AbilityConnections, "Volume": driver.AbilityConnections, "Secret": driver.AbilityConnections,
}

// refusesLocked is what a hypervisor answers that has not the ability, to callers
// that did not ask Node first.
func (h *machine) refusesLocked(call string) error {
	why, cannot := h.node.Cannot[abilityOf[call]]
	if !cannot {
		return nil
	}
	return fault.New(fault.Forbidden, "%s on %s: %s", call, h.name, why)
}

// agent is the agent inside a guest whose document has a channel for one.
type agent struct {
	silent      bool
	filesystems int // 0 for one
}

// SetAgent says how a guest's agent behaves, on this host: how many filesystems
// it freezes, and whether it hears and does not answer. Until told, a guest with
// the channel org.qemu.guest_agent.0 has an agent that answers, and one
// filesystem.
func (h *machine) SetAgent(uuid string, filesystems int, silent bool) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.agents[uuid] = agent{silent: silent, filesystems: filesystems}
}

// PingAgent implements driver.GuestAgent.
func (h *Fake) PingAgent(ctx context.Context, uuid string) error {
	_, err := h.ask(ctx, "PingAgent", uuid, false, func(*domain) error { return nil })
	return err
}

// FreezeFilesystems implements driver.GuestAgent. Frozen ones are refused, as
// qemu-ga does.
func (h *Fake) FreezeFilesystems(ctx context.Context, uuid string) (int, error) {
	return h.ask(ctx, "FreezeFilesystems", uuid, true, func(d *domain) error {
		if d.frozen {
			return fault.New(fault.Invalid, "freeze filesystems of %s: they are frozen", uuid)
		}
		d.frozen = true
		return nil
	})
}

// ThawFilesystems implements driver.GuestAgent.
func (h *Fake) ThawFilesystems(ctx context.Context, uuid string) (n int, err error) {
	frozen := false
	n, err = h.ask(ctx, "ThawFilesystems", uuid, true, func(d *domain) error {
		frozen, d.frozen = d.frozen, false
		return nil
	})
	if !frozen {
		n = 0
	}
	return n, err
}

// ask is one order to a guest's agent; it answers the number of the guest's
// filesystems. A silent agent costs the caller's deadline.
func (h *Fake) ask(ctx context.Context, call, uuid string, changes bool, order func(*domain) error) (n int, err error) {
	ctx, cancel := h.deadline(ctx)
	defer cancel()
	silent := false
	err = h.call(ctx, call, uuid, changes, func() error {
		d, err := h.activeLocked(uuid, "ask the agent of")
		if err != nil {
			return err
		}
		a := h.agents[uuid]
		n, silent = max(a.filesystems, 1), a.silent
		switch {
		case !d.live.agent:
			return fault.New(fault.Unavailable, "ask the agent of %s: guest agent is not configured", uuid)
		case d.state != driver.Running:
			return fault.New(fault.Unavailable, "ask the agent of %s: the guest is %s", uuid, d.state)
		case silent:
			return nil
		}
		return order(d)
	})
	if err != nil {
		return 0, err
	}
	for silent {
		if err := h.fleet.rt.Sleep(ctx, 50*time.Millisecond); err != nil {
			return 0, lost(changes, call, h.name, err)
		}
		// It may be told to answer meanwhile, and does not obey an old order.
		h.fleet.mu.Lock()
		silent = h.agents[uuid].silent
		h.fleet.mu.Unlock()
		if !silent {
			return 0, lost(changes, call, h.name, context.DeadlineExceeded)
		}
	}
	return n, nil
}

// SetUsage scripts what Statistics tells of a domain's counters, memory and
// balloon; identity, state, processors and processor time stay the fake's own
// unless u has a processor time.
func (h *machine) SetUsage(uuid string, u driver.Usage) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.usage[uuid] = u
}

// Statistics implements driver.Statistician. A guest's processors are busy all
// the time that it runs.
func (h *Fake) Statistics(ctx context.Context) (out []driver.Usage, err error) {
	err = h.call(ctx, "Statistics", "", false, func() error {
		for _, d := range h.sortedLocked() {
			if d.live == nil {
				continue
			}
			bytes := uint64(d.live.memoryMB) << 20
			u, scripted := h.usage[d.uuid]
			if !scripted {
				u.Memory, u.RSS = bytes, bytes
			}
			u.UUID, u.Name, u.State = d.uuid, d.name, d.state
			u.VCPUs, u.VCPUsMax, u.MemoryMax = d.live.vcpus, d.live.maximum, bytes
			if u.CPUTime == 0 {
				u.CPUTime = d.cpuTime
				if !d.since.IsZero() {
					u.CPUTime += h.fleet.rt.Now().Sub(d.since)
				}
				u.CPUTime *= time.Duration(u.VCPUs)
			}
			out = append(out, u)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// PlugDevice makes a device of the host appear, or change where it is there.
func (h *machine) PlugDevice(d driver.HostDevice) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	kind := driver.DeviceAdded
	if _, there := h.devices[d.Name]; there {
		kind = driver.DeviceChanged
	}
	h.devices[d.Name] = d
	h.deviceLocked(kind, d.Name)
}

// UnplugDevice takes a device of the host away, if it is there.
func (h *machine) UnplugDevice(name string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if _, there := h.devices[name]; there {
		delete(h.devices, name)
		h.deviceLocked(driver.DeviceRemoved, name)
	}
}

func (h *machine) deviceLocked(kind driver.DeviceEventKind, name string) {
	h.fleet.recordLocked(h.name, "", "device "+name+" "+string(kind))
	h.deviceEvents.publish(h, driver.DeviceEvent{Kind: kind, Name: name, At: h.fleet.rt.Now()})
}

// HostDevices implements driver.DeviceWatcher.
func (h *Fake) HostDevices(ctx context.Context) (out []driver.HostDevice, err error) {
	err = h.call(ctx, "HostDevices", "", false, func() error {
		for _, d := range h.devices {
			out = append(out, d)
		}
		slices.SortFunc(out, func(a, b driver.HostDevice) int { return cmp.Compare(a.Name, b.Name) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ChangeGuest changes a domain beside Berth, as virsh does with a pin or a device:
// edit gets each of its documents, running and persistent, and what it makes of
// them is there. One that cannot be read leaves that document as it is.
func (h *machine) ChangeGuest(uuid string, edit func(doc string) string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	d := h.domains[uuid]
	if d == nil {
		return
	}
	for _, form := range []**definition{&d.live, &d.persistent} {
		if *form == nil {
			continue
		}
		if def, err := parse(edit((*form).xml)); err == nil && def.uuid == uuid {
			*form = def
		}
	}
	h.fleet.recordLocked(h.name, uuid, "changed")
	h.publishLocked(driver.Event{Kind: driver.EventChanged, UUID: uuid, Name: d.name})
}
