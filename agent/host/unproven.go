package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// ClaimedElsewhere is an instance that runs here by this host's ledger, and of which another host
// says that it has it with a higher epoch. Nothing here proves that, so nothing is ended.
type ClaimedElsewhere struct {
	Instance, Name string
	Host           string // that says so
	Epoch          uint64
	// Recorded: the fleet's records say so, and their keeper tells an operator of it.
	Recorded bool
}

// reason is what an operator is told of it.
func (c ClaimedElsewhere) reason(self string) fault.Reason {
	return fault.Reason{
		Code:    "higher_epoch_unproven",
		Message: fmt.Sprintf("instance %s runs on %s, and host %s says that it has it with epoch %d: nothing on %s proves that", c.Name, self, c.Host, c.Epoch, self),
		Have:    self, Want: c.Host,
		Change: fmt.Sprintf(`look which of the two copies is the instance; if it is the one on %s, virsh destroy %s on %s; if it is the one on %s, berth instance start %s --force-owner --reason "how you know" there, and then berth instance delete %s --force on %s (its disks stay)`,
			c.Host, c.Name, self, self, c.Name, c.Name, c.Host),
	}
}

// provenElsewhere refuses to end the memory of an instance on another host's word: fault.InDoubt.
// It is nil where this host's own ledger has given the token away, where nothing here has the whole
// memory, or where proven says that a witness of this host's own bears the higher epoch out.
func provenElsewhere(self string, inst claims.Instance, known bool, d driver.Domain, exists, proven bool, epoch uint64, to string) (ClaimedElsewhere, error) {
	half := d.State == driver.Paused && d.Reason == driver.ReasonPostCopy // the whole runs where it went
	runs := exists && d.Active() && !half
	if !known || inst.Token.State == claims.TokenSurrendered || !runs || proven {
		return ClaimedElsewhere{}, nil
	}
	c := ClaimedElsewhere{Instance: inst.UUID, Name: cmp.Or(d.Name, inst.Name), Host: to, Epoch: epoch}
	return c, fault.Refuse(fault.InDoubt, "", c.reason(self))
}

// standsHandedOver reports whether an instance stands still here since the end of its own stream to
// that host: this host began that stream while the instance ran, and has not decided since to keep it.
func standsHandedOver(h *Host, ref migration.Ref, to string, d driver.Domain) (bool, error) {
	mc, recorded := h.tracker.Context(ref.Migration)
	if d.State != driver.Paused || !recorded || mc.Instance != ref.Instance || mc.Source != h.o.Name || mc.Destination != to || h.tracker.CommitRefused(ref.Migration, ref.Attempt) {
		return false, nil
	}
	known, err := h.streams.Known(ref)
	return err == nil && known.Found && known.Asked.PowerState == migration.PowerRunning, err
}

// claimedElsewhere gives the instances of which another host has said so and that still run here,
// in order of uuid, without those that an operator has kept or the records' keeper names. From memory.
func (s *sides) claimedElsewhere(h *Host) []ClaimedElsewhere {
	s.mu.Lock()
	var out []ClaimedElsewhere
	for _, c := range s.claimed {
		out = append(out, c)
	}
	s.mu.Unlock()
	out = slices.DeleteFunc(out, func(c ClaimedElsewhere) bool {
		inst, known := h.tracker.Instance(c.Instance)
		return c.Recorded || keptByOperator(h, c.Instance, c.Host, c.Epoch) || !known || inst.Token.State == claims.TokenSurrendered || inst.Token.Epoch >= c.Epoch
	})
	slices.SortFunc(out, func(a, b ClaimedElsewhere) int { return strings.Compare(a.Instance, b.Instance) })
	return out
}

// claim keeps what another host says of an instance, and reports whether that is new.
func (s *sides) claim(c ClaimedElsewhere) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, before := s.claimed[c.Instance]; before && was.Host == c.Host && was.Epoch == c.Epoch && (c.Recorded || !was.Recorded) {
		return false
	}
	s.claimed[c.Instance] = c
	return true
}

// unclaim forgets it: the instance has left, or is off.
func (s *sides) unclaim(uuid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claimed, uuid)
}

// MovesWith reports whether h has an open move of an instance between itself and that host on record.
// From memory.
func MovesWith(h *Host, uuid, other string) bool {
	return slices.ContainsFunc(h.tracker.Contexts(), func(c claims.MigrationContext) bool {
		return c.Instance == uuid && other != h.o.Name && (c.Source == other || c.Destination == other)
	})
}

// NoteRecorded keeps that the fleet's records name another host for an instance of h, with a higher
// epoch: what an operator decides of the instance from now on is decided against that epoch.
func NoteRecorded(h *Host, inst claims.Instance, host string, epoch uint64) {
	h.sides.claim(ClaimedElsewhere{Instance: inst.UUID, Name: inst.Name, Host: host, Epoch: epoch, Recorded: true})
}

// keptOwner is an operator's decision that an instance is this host's, though another host says that
// it has it. It holds against every epoch of Host up to Epoch, over restarts and reboots, for as long as
// the token is here. It starts nothing that was evacuated since: such an instance is in doubt.
type keptOwner struct {
	Host  string    `json:"host"` // that said so
	Epoch uint64    `json:"epoch"`
	By    string    `json:"by"`
	Why   string    `json:"why"`
	At    time.Time `json:"at"`
}

// keptRef is under which it is remembered, as bootRef.
func keptRef(uuid string) migration.Ref {
	return migration.Ref{Migration: "kept", Instance: uuid, Attempt: 1, Step: uuid}
}

// keptByOperator reports whether an operator has decided that an instance is this host's against what
// another host said, with that epoch or a higher one. A decision that cannot be read counts: nothing is
// given up for it. From memory.
func keptByOperator(h *Host, uuid, host string, epoch uint64) bool {
	var k keptOwner
	found, err := h.tracker.Recall(keptRef(uuid), &k)
	return found && (err != nil || k.Host == host && k.Epoch >= epoch)
}

// Kept reports whether the token of an instance is on h, and an operator has decided that it stays
// there though host claims it with that epoch. From memory.
func Kept(h *Host, uuid, host string, epoch uint64) bool {
	inst, known := h.tracker.Instance(uuid)
	return known && inst.Token.State == claims.TokenHere && keptByOperator(h, uuid, host, epoch)
}

// staysHere refuses to give an instance up against an operator's decision: fault.InDoubt.
func staysHere(h *Host, uuid string, epoch uint64, to string) error {
	if !Kept(h, uuid, to, epoch) {
		return nil
	}
	inst, _ := h.tracker.Instance(uuid)
	name := cmp.Or(inst.Name, uuid)
	return fault.Refuse(fault.InDoubt, "", fault.Reason{
		Code:    "kept_by_operator",
		Message: fmt.Sprintf("an operator has decided that instance %s is the one on %s, although host %s says that it has it with epoch %d", name, h.o.Name, to, epoch),
		Have:    h.o.Name, Want: to,
		Change: fmt.Sprintf("end the copy on %s: berth instance delete %s --force there (its disks stay); if that one is the instance after all, virsh destroy %s where it runs on %s, and then berth instance delete %s there (its disks stay)", to, name, name, h.o.Name, name),
	})
}

// KeepOwner makes durable that an operator has decided that an instance whose token is on h is the
// one there, against the epoch that another host was last heard to claim. Nothing is written where
// none was heard of. It waits for who works on the instance.
func KeepOwner(ctx context.Context, h *Host, uuid, because, by string) error {
	h.sides.mu.Lock()
	c, claimed := h.sides.claimed[uuid]
	h.sides.mu.Unlock()
	if !claimed {
		return nil
	}
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	inst, _ := h.tracker.Instance(uuid)
	if err := h.tokenIsHere(inst); err != nil {
		return err
	}
	if keptByOperator(h, uuid, c.Host, c.Epoch) {
		return nil
	}
	h.log.Warn("an operator says that an instance that another host claims is this host's", "instance", uuid, "name", inst.Name, "host", c.Host, "epoch", c.Epoch, "by", by, "because", because)
	k := keptOwner{Host: c.Host, Epoch: c.Epoch, By: by, Why: because, At: h.rt.Now().UTC()}
	return wrap(h.tracker.Remember(ctx, keptRef(uuid), k), "note that instance %s stays on %s", uuid, h.o.Name)
}

// noteRefused keeps that the other host answers an operator's decision with a copy that it does not give
// up, and reports whether err says so; any other outcome but silence takes it away.
func noteRefused(h *Host, w claims.Word, err error) bool {
	refused := slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool {
		return r.Code == "higher_epoch_unproven" || r.Code == "kept_by_operator"
	})
	inst, _ := h.tracker.Instance(w.Instance)
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	switch _, before := h.sides.refused[w.Migration]; {
	case refused:
		if !before {
			h.log.Error("a host keeps a copy of an instance that is here by an operator's decision", "instance", w.Instance, "migration", w.Migration, "host", w.Tell)
		}
		h.sides.refused[w.Migration] = ClaimedElsewhere{Instance: w.Instance, Name: cmp.Or(inst.Name, w.Instance), Host: w.Tell, Epoch: inst.Token.Epoch}
	case err == nil:
		delete(h.sides.refused, w.Migration)
	}
	return refused
}

// refusedWords gives them, in order of migration, of instances whose token is here.
func refusedWords(h *Host) (out []ClaimedElsewhere) {
	for _, w := range h.tracker.Untold() {
		h.sides.mu.Lock()
		c, refused := h.sides.refused[w.Migration]
		h.sides.mu.Unlock()
		if inst, known := h.tracker.Instance(w.Instance); refused && known && inst.Token.State == claims.TokenHere {
			out = append(out, c)
		}
	}
	return out
}

// ClaimsElsewhere gives, with the reasons for an operator, the instances that run on h and of which
// another host says that it has them, and those that another host keeps though an operator has decided
// that they are here. From memory.
func ClaimsElsewhere(h *Host) (names []string, reasons []fault.Reason) {
	for _, c := range h.sides.claimedElsewhere(h) {
		names, reasons = append(names, c.Name), append(reasons, c.reason(h.o.Name))
	}
	waiting, _ := allYielded(h)
	for _, y := range waiting {
		names, reasons = append(names, y.Name), append(reasons, y.reason(h.o.Name))
	}
	for _, c := range refusedWords(h) {
		names = append(names, c.Name)
		reasons = append(reasons, fault.Reason{
			Code:    "decision_refused",
			Message: fmt.Sprintf("instance %s is on %s by an operator's decision, with epoch %d, and host %s keeps a copy of it: both may run", c.Name, h.o.Name, c.Epoch, c.Host),
			Have:    h.o.Name, Want: c.Host,
			Change: fmt.Sprintf("look which of the two copies is the instance; if it is the one on %s, virsh destroy %s on %s, and then berth instance delete %s there if an operator has kept it (its disks stay); if it is the one on %s, berth instance delete %s --force on %s (its disks stay)",
				h.o.Name, c.Name, c.Host, c.Name, c.Host, c.Name, h.o.Name),
		})
	}
	return names, reasons
}
