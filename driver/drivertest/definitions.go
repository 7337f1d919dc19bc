package drivertest

import (
	"cmp"
	"context"
	"slices"

	"berth/driver"
)

// DamageDefinition makes the file of a domain's persistent definition unreadable, or whole
// again. The next daemon does not load a damaged one, and tells nobody.
func (h *machine) DamageDefinition(uuid string, on bool) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.damaged[uuid] = on
	h.fleet.recordLocked(h.name, uuid, map[bool]string{true: "its definition is damaged", false: "its definition is whole again"}[on])
}

// UnmountDefinitions puts an empty folder in the place of that of the persistent definitions,
// or takes it away. With the empty one the next daemon loads no definition, and tells nobody.
func (h *machine) UnmountDefinitions(on bool) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.away = on
	h.fleet.recordLocked(h.name, "", map[bool]string{true: "the definitions are not mounted", false: "the definitions are mounted"}[on])
}

// loadLocked is what a new daemon makes of the persistent definitions.
func (h *machine) loadLocked() {
	for uuid, def := range h.unloaded {
		if h.away || h.damaged[uuid] {
			continue
		}
		delete(h.unloaded, uuid)
		if d := h.domains[uuid]; d != nil {
			d.persistent = def
			continue
		}
		h.domains[uuid] = &domain{uuid: uuid, name: def.name, id: -1, state: driver.ShutOff, reason: driver.ReasonUnknown, persistent: def}
	}
	for _, d := range h.sortedLocked() {
		if d.persistent == nil || !h.away && !h.damaged[d.uuid] {
			continue
		}
		h.unloaded[d.uuid], d.persistent, d.autostart = d.persistent, nil, false
		if d.live == nil {
			delete(h.domains, d.uuid)
		}
	}
}

// Definitions implements driver.DefinitionReader.
func (h *Fake) Definitions(context.Context) (driver.Definitions, error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	out := driver.Definitions{Folder: "/etc/libvirt/qemu", Identity: h.name}
	if h.away {
		out.Identity = "not mounted"
		return out, nil
	}
	add := func(uuid, name string) {
		if h.damaged[uuid] {
			uuid = ""
		}
		out.Files = append(out.Files, driver.DefinitionFile{Name: name, UUID: uuid})
	}
	for uuid, d := range h.domains {
		if d.persistent != nil {
			add(uuid, d.persistent.name)
		}
	}
	for uuid, def := range h.unloaded {
		add(uuid, def.name)
	}
	slices.SortFunc(out.Files, func(a, b driver.DefinitionFile) int { return cmp.Compare(a.Name+a.UUID, b.Name+b.UUID) })
	return out, nil
}
