package host

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

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
	// Kept: an operator has said since that the instance is this host's.
	Kept bool
}

// reason is what an operator is told of it.
func (c ClaimedElsewhere) reason(self string) fault.Reason {
	return fault.Reason{
		Code:    "higher_epoch_unproven",
		Message: fmt.Sprintf("instance %s runs on %s, and host %s says that it has it with epoch %d: nothing on %s proves that", c.Name, self, c.Host, c.Epoch, self),
		Have:    self, Want: c.Host,
		Change: fmt.Sprintf(`look which of the two copies is the instance; if it is the one on %s, virsh destroy %s on %s; if it is the one on %s, berth instance start %s --force-owner --reason "how you know"`,
			c.Host, c.Name, self, self, c.Name),
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
// in order of uuid, without those that an operator has kept. From memory.
func (s *sides) claimedElsewhere(h *Host) []ClaimedElsewhere {
	s.mu.Lock()
	var out []ClaimedElsewhere
	for _, c := range s.claimed {
		out = append(out, c)
	}
	s.mu.Unlock()
	out = slices.DeleteFunc(out, func(c ClaimedElsewhere) bool {
		inst, known := h.tracker.Instance(c.Instance)
		return c.Kept || !known || inst.Token.State == claims.TokenSurrendered || inst.Token.Epoch >= c.Epoch
	})
	slices.SortFunc(out, func(a, b ClaimedElsewhere) int { return strings.Compare(a.Instance, b.Instance) })
	return out
}

// claim keeps what another host says of an instance, and reports whether that is new. What an
// operator has said of the same host and epoch, or of a higher one, stays.
func (s *sides) claim(c ClaimedElsewhere) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, before := s.claimed[c.Instance]
	if before && (was.Host == c.Host && was.Epoch == c.Epoch || was.Kept && was.Host == c.Host && was.Epoch > c.Epoch) {
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

// keepClaimed notes an operator's decision that the instance is this host's, until this process
// ends; it reports whether there was one to take.
func (s *sides) keepClaimed(uuid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, found := s.claimed[uuid]
	if found {
		c.Kept = true
		s.claimed[uuid] = c
	}
	return found
}

// ClaimsElsewhere gives, with the reasons for an operator, the instances that run on h and of which
// another host says that it has them. From memory.
func ClaimsElsewhere(h *Host) (names []string, reasons []fault.Reason) {
	for _, c := range h.sides.claimedElsewhere(h) {
		names, reasons = append(names, c.Name), append(reasons, c.reason(h.o.Name))
	}
	return names, reasons
}
