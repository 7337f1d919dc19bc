package conductor_test

import (
	"context"
	"strings"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/transfer"
	"berth/topology"
)

// The verbs of guests that are off, over the same ledger and hypervisor.

// wantedSize is what resizes in this suite ask for: more memory and disk, fewer CPUs.
var wantedSize = topology.Resources{VCPUs: 1, MemoryMB: 2048, DiskGB: 3}

// half is the key and the claim of what a migration holds here beside the instance.
func (h *simHost) half(ref migration.Ref) (string, *simClaim) {
	for k, c := range h.claims {
		if strings.HasPrefix(k, ref.Migration+"/") {
			return k, c
		}
	}
	return "", nil
}

func (h *simHost) owns() bool { return h.token != nil && h.token.here }

func (h *simHost) no(ref migration.Ref, format string) error {
	return fault.New(fault.Forbidden, "host %s: %s %s: "+format, h.name, ref.Step, at(ref))
}

func (h *simHost) PlanChange(ctx context.Context, ref migration.Ref, c migration.Change) (migration.Wanted, error) {
	g, err := h.Inspect(ctx, ref)
	w := migration.Wanted{Flavor: g.Flavor, Resources: g.Resources, Image: c.Image}
	if f := c.Flavor; err == nil && f != nil {
		if w.Flavor = *f; f.DiskGB < g.Resources.DiskGB {
			return w, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "disk_shrinks", Message: "a disk would become smaller"})
		}
		w.Resources = topology.Resources{VCPUs: f.VCPUs, MemoryMB: f.MemoryMB, DiskGB: f.DiskGB}
	}
	return w, err
}

func (h *simHost) PowerOff(_ context.Context, ref migration.Ref, p migration.PowerOffRequest) (migration.PoweredOff, error) {
	h.patience = p.Timeout
	if err := h.hypervisor(); err != nil {
		return migration.PoweredOff{}, err
	}
	if err := h.buried(ref, ref.Step); err != nil {
		return migration.PoweredOff{}, err
	}
	running := h.owns() && h.domain != nil && h.domain.state != "shut off"
	switch _, noted := h.offs[at(ref)]; {
	case noted && running:
		return migration.PoweredOff{}, h.no(ref, "late: it was powered on since")
	case noted:
	case !h.owns():
		return migration.PoweredOff{}, h.no(ref, "the token is not here")
	case running:
		h.offs[at(ref)] = h.domain.state
		*h.domain = simDomain{"shut off", "shutdown"}
	default:
		h.offs[at(ref)] = "shut off"
	}
	return migration.PoweredOff{PowerState: migration.PowerState(h.offs[at(ref)]), Pulled: running && p.Timeout == 0}, nil
}

func (h *simHost) PowerOn(_ context.Context, ref migration.Ref) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	h.bury(ref, ref.Step)
	if h.owns() && (h.away || len(h.held) > 0) && h.offs[at(ref)] != "shut off" {
		h.w.violate("the guest is powered on at %s: away %v, disks held %v", h.name, h.away, h.held)
	}
	if h.owns() && h.domain != nil && h.offs[at(ref)] != "" && h.domain.state == "shut off" {
		*h.domain = simDomain{h.offs[at(ref)], "booted"}
	}
	return nil
}

func (h *simHost) HandOver(_ context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	to := r.To
	if c, done := h.commits[at(ref)]; done {
		return h.seal(c), nil
	}
	power, off := h.offs[at(ref)]
	if h.apart() && ref.Step == migration.StepHandOver && (!h.away || !h.held[at(ref)] || !h.w.hosts[to].sealed[at(ref)]) {
		h.w.violate("the guest is handed over: away %v, held %v, sealed %v", h.away, h.held, h.w.hosts[to].sealed)
	}
	if h.reclaimed[at(ref)] || !h.owns() || !off || h.domain != nil && h.domain.state != "shut off" {
		return migration.Commit{}, h.no(ref, "the guest is here")
	}
	c := migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: h.token.epoch + 1,
		From: h.name, To: to, Power: migration.PowerState(power),
	}
	h.token = &simToken{epoch: c.Epoch, migration: ref.Migration, attempt: ref.Attempt}
	h.commits[at(ref)] = c
	h.deaf = h.deaf || h.deafAfterHandOver
	if own := h.claims["instance"]; own != nil {
		own.state = "held"
		h.claims[at(ref)] = own
		delete(h.claims, "instance")
	}
	return h.seal(c), nil
}

func (h *simHost) KeepGuest(_ context.Context, ref migration.Ref) error {
	if _, done := h.commits[at(ref)]; done {
		return h.no(ref, "the token has left")
	}
	h.reclaimed[at(ref)] = true
	return nil
}

func (h *simHost) ConfirmSource(_ context.Context, ref migration.Ref) error {
	if _, left := h.commits[at(ref)]; !left || h.owns() {
		return h.no(ref, "the guest did not leave by it")
	}
	if err := h.hypervisor(); err != nil {
		return err
	}
	k, _ := h.half(ref)
	delete(h.claims, k)
	delete(h.contexts, ref.Migration)
	h.forgetApart(ref)
	h.domain, h.size, h.listed = nil, topology.Resources{}, ""
	return nil
}

func (h *simHost) AwaitReturn(_ context.Context, ref migration.Ref) error {
	if err := h.buried(ref, ref.Step); err != nil {
		return err
	}
	if h.owns() {
		return h.no(ref, "late: the guest is here")
	}
	k, c := h.half(ref)
	if c == nil || h.domain == nil || h.w.script.spoilt {
		return h.no(ref, "nothing is left to come back to")
	}
	delete(h.claims, k)
	c.state = "arriving"
	h.claims[at(ref)] = c
	return nil
}

func (h *simHost) CancelReturn(_ context.Context, ref migration.Ref) error {
	if h.owns() {
		return h.no(ref, "the guest is here")
	}
	h.bury(ref, ref.Step)
	delete(h.carried, at(ref))
	if c := h.claims[at(ref)]; c != nil {
		c.state = "held"
	}
	return nil
}

func (h *simHost) FinishRevert(_ context.Context, ref migration.Ref) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if !h.owns() || h.token.migration != ref.Migration || h.token.attempt != ref.Attempt {
		return h.no(ref, "the guest is not back by it")
	}
	if c := h.claims[at(ref)]; c != nil {
		c.state = "bound"
		h.claims["instance"] = c
		delete(h.claims, at(ref))
		h.takeCarried(ref)
		if power := string(h.w.power); power != "shut off" {
			*h.domain = simDomain{power, "booted"}
		}
	}
	delete(h.contexts, ref.Migration)
	return nil
}

func (h *simHost) PrepResize(_ context.Context, ref migration.Ref, _ migration.PrepRequest) (migration.PreparedCold, error) {
	h.expire()
	out := migration.PreparedCold{}
	if err := h.buried(ref, ref.Step); err != nil {
		return out, err
	}
	if h.token != nil && h.token.migration == ref.Migration {
		return out, nil // late
	}
	cl := h.claims[at(ref)]
	if cl == nil {
		return out, h.no(ref, "no claim")
	}
	h.made[at(ref)] = true
	if h.w.script.hookFails {
		return out, fault.New(fault.Internal, "host %s: hook prep_resize/10-x failed", h.name)
	}
	cl.state = "arriving"
	if h.apart() {
		if h.listed != "hidden" {
			h.w.violate("%s is prepared without a hidden copy of the instance", h.name)
		}
		out.Files = []migration.ShipFile{{Target: "vda", Path: apartFile}}
		if h.coming[at(ref)] == nil {
			h.coming[at(ref)] = &transfer.Order{}
		}
	}
	return out, nil
}

func (h *simHost) RollbackPrepResize(_ context.Context, ref migration.Ref) error {
	if h.owns() {
		return h.no(ref, "the token is here")
	}
	h.bury(ref, ref.Step)
	delete(h.made, at(ref))
	delete(h.coming, at(ref))
	delete(h.sealed, at(ref))
	return nil
}

func (h *simHost) ShippedSoFar(_ context.Context, ref migration.Ref) (migration.Shipped, error) {
	o := h.coming[at(ref)]
	if o == nil {
		return migration.Shipped{}, h.no(ref, "nothing is to come")
	}
	f := migration.ShippedFile{Path: apartFile, Bytes: o.Bytes, Sum: o.Sum.String(), Sealed: h.sealed[at(ref)]}
	if o.Bytes > 0 {
		f.Version = "1"
	}
	return migration.Shipped{Files: []migration.ShippedFile{f}}, nil
}

func (h *simHost) WriteDisk(_ context.Context, ref migration.Ref, p migration.DiskPiece) error {
	o := h.coming[at(ref)]
	if o == nil {
		return h.no(ref, "nothing is to come")
	}
	return o.Take(p)
}

func (h *simHost) SealDisks(_ context.Context, ref migration.Ref, want migration.Shipped) error {
	o := h.coming[at(ref)]
	if o == nil || len(want.Files) != 1 || want.Files[0].Bytes != o.Bytes || want.Files[0].Sum != o.Sum.String() {
		return h.no(ref, "it is not whole")
	}
	h.sealed[at(ref)] = true
	return nil
}

func (h *simHost) ReadDisk(_ context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	if !h.held[at(ref)] {
		return migration.DiskPiece{}, h.no(ref, "the disks are not held")
	}
	p := migration.DiskPiece{Path: apartFile, Offset: r.Offset, Size: apartSize, Version: "1"}
	if r.Length > 0 {
		p.Zero, p.Length = true, apartSize-r.Offset
	}
	return p, nil
}

func (h *simHost) AcceptHanded(_ context.Context, ref migration.Ref, c migration.Commit) error {
	if h.token != nil && h.token.epoch >= c.Epoch {
		if h.token.epoch == c.Epoch && h.token.here {
			return nil
		}
		return h.no(ref, "a higher epoch is known")
	}
	if cl := h.claims[at(ref)]; cl == nil || cl.state != "arriving" || c.Migration != ref.Migration || c.Attempt != ref.Attempt {
		return h.no(ref, "no claim names it")
	}
	if err := h.verify(ref, c); err != nil {
		return err
	}
	h.token = &simToken{epoch: c.Epoch, here: true, migration: ref.Migration, attempt: ref.Attempt, power: c.Power}
	return nil
}

func (h *simHost) FinishResize(_ context.Context, ref migration.Ref) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if !h.owns() || h.token.migration != ref.Migration || h.token.attempt != ref.Attempt {
		return h.no(ref, "the token is not here by it")
	}
	cl := h.claims[at(ref)]
	if cl == nil {
		return nil // again
	}
	if h.w.script.unfit {
		return fault.New(fault.DoesNotFit, "host %s: QEMU does not start", h.name)
	}
	if h.apart() && !h.w.hosts["a"].away {
		h.w.violate("the guest is connected at %s and at its source", h.name)
	}
	cl.state = "bound"
	h.claims["instance"] = cl
	delete(h.claims, at(ref))
	h.contexts[ref.Migration] = true
	delete(h.made, at(ref))
	h.domain, h.size = &simDomain{string(h.token.power), "booted"}, cl.resources
	return nil
}

func (h *simHost) ConfirmDestination(_ context.Context, ref migration.Ref) error {
	delete(h.contexts, ref.Migration)
	h.forgetApart(ref)
	return nil
}

func (h *simHost) CleanUpReverted(_ context.Context, ref migration.Ref) error {
	if _, left := h.commits[at(ref)]; !left || h.owns() {
		return h.no(ref, "the guest did not leave by it")
	}
	if err := h.hypervisor(); err != nil {
		return err
	}
	for k, _ := h.half(ref); k != ""; k, _ = h.half(ref) {
		delete(h.claims, k)
	}
	for k := range h.made {
		if strings.HasPrefix(k, ref.Migration+"/") {
			delete(h.made, k)
		}
	}
	delete(h.contexts, ref.Migration)
	h.forgetApart(ref)
	h.domain, h.size, h.listed = nil, topology.Resources{}, ""
	return nil
}

func (h *simHost) PrepChange(_ context.Context, ref migration.Ref, _ migration.PrepRequest) error {
	h.expire()
	if err := h.buried(ref, ref.Step); err != nil {
		return err
	}
	if h.claims[at(ref)] == nil {
		return h.no(ref, "no claim")
	}
	if h.aside[at(ref)] {
		return nil // late
	}
	h.made[at(ref)] = true
	if h.w.script.hookFails {
		return fault.New(fault.Internal, "host %s: hook prep_resize/10-x failed", h.name)
	}
	return nil
}

func (h *simHost) RollbackPrepChange(_ context.Context, ref migration.Ref) error {
	if h.aside[at(ref)] {
		return h.no(ref, "the change is applied")
	}
	h.bury(ref, ref.Step)
	delete(h.made, at(ref))
	return nil
}

// exchange has the instance hold what the migration held, and the other way.
func (h *simHost) exchange(ref migration.Ref, state string) {
	own, other := h.claims["instance"], h.claims[at(ref)]
	own.resources, other.resources = other.resources, own.resources
	other.state, other.until = state, h.w.sim.Elapsed()+leaseTime
	h.size = own.resources
}

func (h *simHost) ApplyChange(_ context.Context, ref migration.Ref) error {
	h.expire()
	if err := h.hypervisor(); err != nil {
		return err
	}
	if err := h.buried(ref, ref.Step); err != nil {
		return err
	}
	if h.aside[at(ref)] || h.tombs[at(ref)+"/finished"] {
		return nil
	}
	if h.claims[at(ref)] == nil || h.domain.state != "shut off" || h.offs[at(ref)] == "" {
		return h.no(ref, "it is not ready")
	}
	h.exchange(ref, "held")
	h.aside[at(ref)], h.contexts[ref.Migration] = true, true
	delete(h.made, at(ref))
	return nil
}

func (h *simHost) UnapplyChange(_ context.Context, ref migration.Ref) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if h.tombs[at(ref)+"/finished"] {
		return h.no(ref, "the old is given up")
	}
	h.bury(ref, ref.Step)
	h.bury(ref, migration.StepStartChanged)
	h.bury(ref, migration.StepPrepChange)
	if h.aside[at(ref)] {
		*h.domain = simDomain{"shut off", "destroyed"}
		h.exchange(ref, "pending")
		delete(h.aside, at(ref))
	}
	return nil
}

func (h *simHost) StartChanged(_ context.Context, ref migration.Ref) error {
	if err := h.hypervisor(); err != nil {
		return err
	}
	if err := h.buried(ref, ref.Step); err != nil {
		return err
	}
	if h.tombs[at(ref)+"/finished"] {
		return nil
	}
	if h.w.script.unfit {
		return fault.New(fault.DoesNotFit, "host %s: QEMU does not start", h.name)
	}
	if power := h.offs[at(ref)]; h.aside[at(ref)] && power != "shut off" {
		*h.domain = simDomain{power, "booted"}
	}
	return nil
}

func (h *simHost) FinishChange(_ context.Context, ref migration.Ref) error {
	h.tombs[at(ref)+"/finished"] = true
	delete(h.aside, at(ref))
	delete(h.claims, at(ref))
	delete(h.contexts, ref.Migration)
	return nil
}
