package drivertest

import "berth/driver"

// Processes are those of instances on one fake machine, as its kernel knows them: libvirtd
// is not asked, and may have lost one (Forget).
type Processes struct{ m *machine }

// process is one that libvirtd has lost.
type process struct {
	pid     int
	running bool // its CPUs
}

// Processes are the machine's own.
func (h *machine) Processes() Processes { return Processes{h} }

// Of returns the pids of an instance's processes.
func (p Processes) Of(uuid string) ([]int, error) {
	f := p.m.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := p.m.domains[uuid]; d != nil && d.live != nil {
		return []int{1000 + d.id}, nil
	}
	if lost, ok := p.m.forgotten[uuid]; ok {
		return []int{lost.pid}, nil
	}
	return nil, nil
}

// Forget has libvirtd lose the process of an instance, as one does that cannot read the
// domain's status file when it starts: the domain is shut off for it, and its CPUs go on as
// they were.
// EndForgotten ends the process, as the machine's end does.
func (h *machine) Forget(uuid string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	d := h.domains[uuid]
	if d == nil || d.live == nil {
		return
	}
	if h.forgotten == nil {
		h.forgotten = map[string]process{}
	}
	h.forgotten[uuid] = process{1000 + d.id, d.state == driver.Running}
	h.setLocked(d, driver.ShutOff, driver.ReasonUnknown, driver.EventStopped, "")
	h.fleet.checkLocked(uuid)
}

// EndForgotten ends a process that libvirtd has lost.
func (h *machine) EndForgotten(uuid string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	delete(h.forgotten, uuid)
	h.fleet.checkLocked(uuid)
}
