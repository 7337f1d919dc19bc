package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/topology"
)

// use is what this process saw of a managed guest the last time.
type use struct {
	domain    driver.Domain
	text      string // digest of its document
	claim     string // the claim that it was held against
	at        time.Duration
	allocated topology.Resources // what Placement is known to hold for it
}

// disksEvery is how often the sizes of disks are read again though the document is
// the same (virsh blockresize changes no document).
const disksEvery = 5 * time.Minute

// documentsEach bounds how many documents a look around has read for changes that
// nothing else tells of (numatune, a device for which no event came): one after the
// other, so that a host of few guests reads all of them each time.
const documentsEach = 64

// allocationPatience bounds how long a guest's turn waits for Placement.
const allocationPatience = 5 * time.Second

// followUse makes record, claim and allocation follow what a guest that lives here
// and stands still uses now.
func (h *Host) followUse(ctx context.Context, uuid string) error {
	if !h.follows(uuid) {
		return nil
	}
	unlock, err := h.tryLock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	if !h.follows(uuid) {
		return nil
	}
	d, exists, err := h.domain(ctx, uuid)
	if err != nil || !exists || halfway(d) || hasLeft(d) || h.LeftByHand(uuid) {
		return err
	}
	text, err := h.driver.XML(ctx, uuid, driver.Live)
	if err != nil {
		return err
	}
	claim, _ := h.claimOf(uuid)
	was, now := h.lastUse(uuid), h.rt.Boot().Since
	seen := use{domain: d, text: digest(text), claim: claim.ID, at: now, allocated: was.allocated}
	if was.text == seen.text && was.claim == claim.ID && was.domain == d && claim.Seen != nil && now-was.at < disksEvery {
		seen.at = was.at
		h.setUse(uuid, seen)
		return h.followAllocation(ctx, uuid, claim)
	}
	if err := h.followName(ctx, uuid, d); err != nil {
		return err
	}
	if claim, err = h.followDocument(ctx, d, text, claim); err != nil {
		return err
	}
	h.setUse(uuid, seen)
	return h.followAllocation(ctx, uuid, claim)
}

// follows reports whether a guest is this host's to follow: not on a move, nor one
// that is still being made, or that came by foreign hands and is not settled.
func (h *Host) follows(uuid string) bool {
	inst, known := h.tracker.Instance(uuid)
	claim, bound := h.claimOf(uuid)
	if !known || inst.Token.State != claims.TokenHere || !bound || claim.Owner.Kind != claims.KindInstance {
		return false
	}
	if claim.BoundFrom != nil && h.Foreign(*claim.BoundFrom) {
		return false
	}
	_, moving := h.moving(uuid)
	return !moving
}

// tryLock takes an instance's turn if it is free, else says fault.Busy: who follows
// has others to look at.
func (h *Host) tryLock(ctx context.Context, uuid string) (func(), error) {
	ctx, cancel := h.rt.WithTimeout(ctx, h.o.Agree/4)
	defer cancel()
	return h.lock(ctx, uuid)
}

// followName keeps the record's name: people rename with virsh.
func (h *Host) followName(ctx context.Context, uuid string, d driver.Domain) error {
	inst, known := h.tracker.Instance(uuid)
	if !known || inst.Name == d.Name || d.Name == "" {
		return nil
	}
	was := inst.Name
	inst.Name = d.Name
	_, err := h.tracker.PutInstance(ctx, inst)
	if errors.Is(err, fault.Exists) {
		// Two have changed names: the other's record follows, and then this one's.
		h.log.Warn("a guest has another's name", "instance", uuid, "name", d.Name, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	h.log.Info("a guest was renamed", "instance", uuid, "name", d.Name, "was", was)
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	return nil
}

// followDocument makes the claim follow the document.
func (h *Host) followDocument(ctx context.Context, d driver.Domain, text string, before claims.Claim) (claims.Claim, error) {
	if h.o.Hardware != nil && h.hardware() == nil {
		return before, fault.New(fault.Unavailable, "follow guest %s: the host's cells are not known", d.Name)
	}
	doc, err := parseDocument(text)
	if err != nil {
		return before, err
	}
	edit, err := domainxml.Parse(text)
	if err != nil {
		return before, fault.New(fault.Invalid, "read the document of %s: %w", d.Name, err)
	}
	uses, remarks := h.usesNow(ctx, d, doc, edit)
	inst, _ := h.tracker.Instance(d.UUID)
	if !adoptedFlavor(inst.Flavor) {
		uses.DiskGB = max(uses.DiskGB, inst.Flavor.DiskGB)
	}
	if slices.ContainsFunc(remarks, func(r fault.Reason) bool { return r.Code == diskUnreadable }) {
		// A disk that cannot be read is no smaller for it.
		uses.DiskGB = max(uses.DiskGB, before.Resources.DiskGB)
	}
	found, doubts := h.foundIn(edit, uses)
	seen, err := sighting(edit, uses)
	if err != nil {
		return before, err
	}
	claim, changed, err := h.tracker.Follow(ctx, d.UUID, seen, found)
	if err != nil {
		return before, err
	}
	if !changed {
		return claim, nil
	}
	log := h.log.With("instance", d.UUID, "name", d.Name, "was", before.Resources.String(), "uses", claim.Resources.String())
	for _, r := range append(remarks, doubts...) {
		log = log.With("remark", r.Message)
	}
	if claim.Forced {
		log.Warn("a guest was changed by hand and does not fit: its claim follows, forced")
	} else {
		log.Info("a guest was changed by hand: its claim follows")
	}
	h.relax(ctx) // others may have waited for what it had
	return claim, nil
}

// usesNow is what a domain uses: while it runs, of its memory what its balloon
// leaves it; else what its next start takes.
func (h *Host) usesNow(ctx context.Context, d driver.Domain, doc document, edit *domainxml.Doc) (topology.Resources, []fault.Reason) {
	uses := topology.Resources{VCPUs: max(d.VCPUs, 1), MemoryMB: max(d.MemoryMB, 1)}
	if d.Active() && edit != nil {
		uses.MemoryMB = max(1, min(uses.MemoryMB, edit.CurrentMemoryMB()))
	}
	var remarks []fault.Reason
	uses.DiskGB, remarks = h.diskGB(ctx, doc)
	return uses, remarks
}

// sighting is what a document shows, without the host's own view of it: a change
// of what is known of the hardware is none of the guest.
func sighting(doc *domainxml.Doc, uses topology.Resources) (claims.Seen, error) {
	p, err := doc.Pinning()
	if err != nil {
		// What makes no sense counts for nothing, as in the claim; the rest was read.
		p.MaxVCPUs = 0
	}
	names := p.Mdevs
	for _, d := range p.Devices {
		names = append(names, d.Address.String())
	}
	p.Devices, p.Mdevs, p.IOThreads, p.MaxVCPUs = nil, nil, nil, 0
	placement, err := json.Marshal(p)
	if err != nil {
		return claims.Seen{}, fault.New(fault.Internal, "write down what document %s shows: %w", doc.UUID(), err)
	}
	s := claims.Seen{Resources: uses, Placement: digest(string(placement))}
	if len(names) > 0 {
		s.Devices = digest(strings.Join(names, " ") + " ")
	}
	return s, nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// followAllocation makes Placement follow the claim: one look the first time, then
// one write for each change.
func (h *Host) followAllocation(ctx context.Context, uuid string, claim claims.Claim) error {
	last := h.lastUse(uuid)
	if h.o.Placement == nil || last.allocated == claim.Resources {
		return nil
	}
	inst, _ := h.tracker.Instance(uuid)
	asking, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	err := h.o.Placement.PutAllocation(asking, Allocation{
		Consumer: uuid, Provider: h.o.ProviderUUID, Resources: claim.Resources, ProjectID: inst.ProjectID, UserID: inst.UserID,
	})
	if err != nil {
		return wrap(err, "make the allocation of guest %s follow its claim", inst.Name)
	}
	last.allocated = claim.Resources
	h.setUse(uuid, last)
	return nil
}

func (h *Host) lastUse(uuid string) use {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uses[uuid]
}

func (h *Host) setUse(uuid string, u use) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uses[uuid] = u
}
