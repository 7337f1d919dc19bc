package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
)

// StateUnknown is the state of a guest while the hypervisor does not answer.
const StateUnknown = "unknown"

// InstanceView is a guest as people see it: ledger and hypervisor joined.
type InstanceView struct {
	claims.Instance
	// Managed: the ledger knows it. An unmanaged one has only UUID and Name of
	// the ledger's fields.
	Managed bool `json:"managed"`
	// State and Reason are libvirt's, as virsh spells them; StateUnknown when
	// libvirt does not answer, and empty when it has no such domain.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Claim is what it holds here, without the ticket; nil for none.
	Claim *claims.Claim `json:"claim,omitempty"`
	// Migration is the move that it is in; empty for none. Conductor is the third host that
	// conducts it; empty where one of its own two does.
	Migration string `json:"migration,omitempty"`
	Conductor string `json:"conductor,omitempty"`
	// Host is this host's provider name.
	Host string `json:"host"`
	// Status is Nova's word for where the guest stands: ACTIVE, PAUSED, SHUTOFF,
	// VERIFY_RESIZE, RESIZE, REVERT_RESIZE, MIGRATING, REBUILD, UNKNOWN. Empty for one
	// that is not managed, and in answers that are not about it.
	Status string `json:"status,omitempty"`
	// Resize is a move or change that was made and waits for its confirmation; nil for
	// none.
	Resize *ResizeView `json:"resize,omitempty"`
}

// ResizeView is a resize or cold migration that was made and waits to be confirmed or
// given back, as one of its hosts sees it.
type ResizeView struct {
	Migration string `json:"migration"`
	// MigrationType is resize or migration; empty on the destination, which was not told.
	MigrationType string `json:"migration_type,omitempty"`
	Source        string `json:"source_compute"`
	Destination   string `json:"dest_compute"` // the source, where the guest stayed
	// Half is what of the guest this host has.
	Half ResizeHalf `json:"half"`
	// OldFlavor is what a revert gives back.
	OldFlavor string `json:"old_flavor,omitempty"`
	// ConfirmsAt is when it confirms itself; zero for never, and on the destination,
	// which does not know.
	ConfirmsAt time.Time `json:"confirms_at,omitzero"`
	// Next are the commands that end it.
	Next []string `json:"next"`
}

// ResizeHalf is what one host has of a guest that waits for its confirmation.
type ResizeHalf string

// The halves.
const (
	HalfGuest ResizeHalf = "guest" // the guest as it is now: the destination
	HalfKept  ResizeHalf = "kept"  // what it had before, for a revert: the source
	HalfBoth  ResizeHalf = "both"  // it stayed on its host
)

// List gives all guests of this host that are shown, managed or not, by name. While the
// hypervisor does not answer it gives what the ledger knows, beside fault.Unavailable.
func (h *Host) List(ctx context.Context) ([]InstanceView, error) {
	all, err := h.ListHidden(ctx)
	return slices.DeleteFunc(all, func(v InstanceView) bool { return v.Hidden }), err
}

// ListHidden is List with the records that are not shown (Hidden says which): copies of
// guests that are to come, and the halves of a move of which another host's is the one to
// see.
func (h *Host) ListHidden(ctx context.Context) ([]InstanceView, error) {
	domains, err := h.driver.Domains(ctx)
	known := h.tracker.Instances()
	var out []InstanceView
	for _, inst := range known {
		i := slices.IndexFunc(domains, func(d driver.Domain) bool { return d.UUID == inst.UUID })
		switch {
		case err != nil:
			out = append(out, h.look(inst, driver.Domain{State: StateUnknown}))
		case i < 0:
			out = append(out, h.look(inst, driver.Domain{}))
		default:
			out = append(out, h.look(inst, domains[i]))
		}
	}
	for _, c := range h.tracker.Copies() {
		if slices.ContainsFunc(known, func(i claims.Instance) bool { return i.UUID == c.Instance.UUID }) {
			continue
		}
		known = append(known, c.Instance)
		out = append(out, h.copyView(c))
	}
	for _, d := range domains {
		if !slices.ContainsFunc(known, func(i claims.Instance) bool { return i.UUID == d.UUID }) {
			out = append(out, h.foreign(d))
		}
	}
	slices.SortFunc(out, func(a, b InstanceView) int { return strings.Compare(a.Name+"\x00"+a.UUID, b.Name+"\x00"+b.UUID) })
	return out, wrap(err, "list guests of %s", h.o.Name)
}

func (h *Host) look(inst claims.Instance, d driver.Domain) InstanceView {
	v := InstanceView{Instance: inst, Managed: true, State: string(d.State), Reason: string(d.Reason), Host: h.o.Name}
	if d.Name != "" {
		v.Name = d.Name // people rename with virsh; the uuid is who it is
	}
	v.Migration, _ = h.attempts.Moving(inst.UUID)
	v.Conductor = h.tracker.Conductor(v.Migration)
	for _, c := range h.tracker.ByInstance(inst.UUID) {
		c = c.Redacted()
		v.Claim = &c
		if c.Owner.Kind == claims.KindInstance {
			break
		}
	}
	return v
}

func (h *Host) foreign(d driver.Domain) InstanceView {
	v := InstanceView{Instance: claims.Instance{UUID: d.UUID, Name: d.Name}, State: string(d.State), Reason: string(d.Reason), Host: h.o.Name}
	v.Migration, _ = h.attempts.Moving(d.UUID)
	return v
}

// Show gives one guest by name or uuid.
func (h *Host) Show(ctx context.Context, id string) (InstanceView, error) {
	uuid, err := h.Resolve(ctx, id)
	if err != nil {
		return InstanceView{}, err
	}
	d, exists, err := h.domain(ctx, uuid)
	inst, managed := h.tracker.Instance(uuid)
	switch {
	case managed && err != nil:
		return h.look(inst, driver.Domain{State: StateUnknown}), nil
	case managed:
		return h.look(inst, d), nil
	case err != nil:
		return InstanceView{}, err
	case !exists:
		return InstanceView{}, noSuch(id, h.o.Name)
	}
	return h.foreign(d), nil
}

func noSuch(id, host string) error {
	return fault.Refuse(fault.NotFound, "", fault.Reason{Code: "instance_unknown", Message: "host " + host + " has no instance " + id, Want: id})
}

// Resolve gives the uuid of the guest that id names: a uuid, a name libvirt has
// now, or the name in the ledger. fault.NotFound for none, fault.Invalid when
// the name means two guests. While libvirt does not answer, the ledger alone
// decides, and fault.Unavailable comes instead of fault.NotFound.
func (h *Host) Resolve(ctx context.Context, id string) (string, error) {
	if id == "" {
		return "", fault.New(fault.Invalid, "no instance is named")
	}
	domains, err := h.driver.Domains(ctx)
	found := map[string]string{} // uuid → how it is called that
	if u, parseErr := uuid.Parse(id); parseErr == nil {
		want := u.String()
		if _, ok := h.tracker.Instance(want); ok || slices.ContainsFunc(domains, func(d driver.Domain) bool { return d.UUID == want }) {
			return want, nil
		}
	}
	for _, d := range domains {
		if d.Name == id {
			found[d.UUID] = "in libvirt"
		}
	}
	for _, inst := range h.tracker.Instances() {
		if inst.Name == id && found[inst.UUID] == "" {
			found[inst.UUID] = "in the ledger"
		}
	}
	switch {
	case len(found) == 1:
		for u := range found {
			return u, nil
		}
	case len(found) > 1:
		var reasons []fault.Reason
		for u, how := range found {
			reasons = append(reasons, fault.Reason{Code: "name_ambiguous", Message: fmt.Sprintf("%s is %s, %s", id, u, how), Have: u, Change: "name the uuid"})
		}
		slices.SortFunc(reasons, func(a, b fault.Reason) int { return strings.Compare(a.Have, b.Have) })
		return "", fault.Refuse(fault.Invalid, "look up "+id, reasons...)
	case err != nil:
		return "", wrap(err, "look up %s", id)
	}
	return "", noSuch(id, h.o.Name)
}

// still refuses what must not happen to a guest that moves.
func (h *Host) still(uuid string) error {
	m, moving := h.attempts.Moving(uuid)
	if !moving {
		return nil
	}
	if u, waits := h.waitsFor(uuid); waits {
		return h.toConfirm(uuid, u)
	}
	return fault.Refuse(fault.Busy, "", fault.Reason{
		Code: "moving", Message: "the instance is moving: migration " + m, Have: m, Change: "wait for it, or berth migration abort " + m,
	})
}

// Moving names the migration that an instance is in, as source or destination.
func (h *Host) Moving(instance string) (string, bool) { return h.attempts.Moving(instance) }
