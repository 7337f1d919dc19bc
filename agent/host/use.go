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

	"berth/agent/host/allocation"
	"berth/agent/host/external"
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
	allocated string // digest of what Placement is known to hold for it
	behind    error  // why it does not hold what is claimed
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
// and stands still uses now. Its disks are read before its turn is taken: one that
// does not answer keeps nobody from the guest.
func (h *Host) followUse(ctx context.Context, uuid string) error {
	d, text, err := h.inUse(ctx, uuid)
	if err != nil || text == "" {
		return err
	}
	claim, _ := h.attempts.ClaimOf(uuid)
	was, now := h.lastUse(uuid), h.rt.Boot().Since
	same := h.hasName(uuid, d.Name) && was.text == digest(text) && was.claim == claim.ID && was.domain == d && claim.Seen != nil && now-was.at < disksEvery
	if same && (h.o.Placement == nil || was.allocated == counted(claim)) {
		return nil
	}
	var shows shown
	if !same {
		if shows, err = h.show(ctx, d, text); err != nil {
			return err
		}
	}
	unlock, err := h.tryLock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	switch again, now, err := h.inUse(ctx, uuid); {
	case err != nil:
		return err
	case now != text || again != d:
		return fault.New(fault.Busy, "guest %s changes", d.Name)
	}
	if claim, _ = h.attempts.ClaimOf(uuid); !same {
		if claim, err = h.followDocument(ctx, d, shows, claim); err != nil {
			return err
		}
		h.setUse(uuid, use{domain: d, text: digest(text), claim: claim.ID, at: now, allocated: was.allocated, behind: was.behind})
	}
	return errors.Join(h.followName(ctx, uuid, d), h.followAllocation(ctx, uuid, claim))
}

// inUse reads a guest that is this host's to follow; no text for others, and for
// what a migration by other hands has left, or brings.
func (h *Host) inUse(ctx context.Context, uuid string) (d driver.Domain, text string, err error) {
	if !h.follows(uuid) {
		return d, "", nil
	}
	d, exists, err := h.domain(ctx, uuid)
	if err != nil || !exists || d.Halfway() || d.HasLeft() || h.LeftByHand(uuid) {
		return d, "", err
	}
	text, err = h.driver.XML(ctx, uuid, driver.Live)
	return d, text, err
}

// follows reports whether a guest is this host's to follow: not on a move, nor one
// that is still being made, or that came by foreign hands and is not settled.
func (h *Host) follows(uuid string) bool {
	inst, known := h.tracker.Instance(uuid)
	claim, bound := h.attempts.ClaimOf(uuid)
	if !known || inst.Token.State != claims.TokenHere || !bound || claim.Owner.Kind != claims.KindInstance {
		return false
	}
	if claim.BoundFrom != nil && h.external.Foreign(*claim.BoundFrom) {
		return false
	}
	_, moving := h.attempts.Moving(uuid)
	return !moving
}

// tryLock takes an instance's turn if it is free, else says fault.Busy: who follows
// has others to look at.
func (h *Host) tryLock(ctx context.Context, uuid string) (func(), error) {
	ctx, cancel := h.rt.WithTimeout(ctx, h.o.Agree/4)
	defer cancel()
	return h.memory.Lock(ctx, uuid)
}

// hasName reports whether a guest's record has the name; a domain always has one.
func (h *Host) hasName(uuid, name string) bool {
	inst, known := h.tracker.Instance(uuid)
	return known && (inst.Name == name || name == "")
}

// followName keeps the record's name: people rename with virsh. A record whose new
// name is another's is called by its uuid until that is free: two guests may have
// changed names.
func (h *Host) followName(ctx context.Context, uuid string, d driver.Domain) error {
	if h.hasName(uuid, d.Name) {
		return nil
	}
	inst, _ := h.tracker.Instance(uuid)
	was := inst.Name
	inst.Name = d.Name
	_, err := h.tracker.PutInstance(ctx, inst)
	if taken := err; errors.Is(taken, fault.Exists) {
		if inst.Name = uuid; was != uuid {
			_, err = h.tracker.PutInstance(ctx, inst)
		}
		return errors.Join(wrap(taken, "guest %s was renamed", d.Name), err)
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

// shown is what a guest's document shows, and what that comes to on this host.
type shown struct {
	seen    claims.Seen
	found   claims.Found
	remarks []fault.Reason
	unread  bool // a disk could not be read: it is no smaller for that
}

func (h *Host) show(ctx context.Context, d driver.Domain, text string) (shown, error) {
	if h.o.Hardware != nil && h.hardware() == nil {
		return shown{}, fault.New(fault.Unavailable, "follow guest %s: the host's cells are not known", d.Name)
	}
	doc, err := parseDocument(text)
	if err != nil {
		return shown{}, err
	}
	edit, err := domainxml.Parse(text)
	if err != nil {
		return shown{}, fault.New(fault.Invalid, "read the document of %s: %w", d.Name, err)
	}
	uses, remarks := h.usesNow(ctx, d, doc, edit)
	s := shown{remarks: remarks}
	s.unread = slices.ContainsFunc(remarks, func(r fault.Reason) bool { return r.Code == diskUnreadable })
	var doubts []fault.Reason
	s.found, doubts = h.foundIn(edit, uses)
	s.remarks = append(s.remarks, doubts...)
	s.seen, err = sighting(edit, uses)
	return s, err
}

// followDocument makes the claim follow the document. Of disks a flavor's share
// stays, whatever is plugged in.
func (h *Host) followDocument(ctx context.Context, d driver.Domain, s shown, before claims.Claim) (claims.Claim, error) {
	disk := s.found.Resources.DiskGB
	if inst, _ := h.tracker.Instance(d.UUID); !external.AdoptedFlavor(inst.Flavor) {
		disk = max(disk, inst.Flavor.DiskGB)
	}
	if s.unread {
		disk = max(disk, before.Resources.DiskGB)
	}
	s.found.Resources.DiskGB, s.seen.Resources.DiskGB = disk, disk
	claim, changed, err := h.tracker.Follow(ctx, d.UUID, s.seen, s.found)
	if err != nil || !changed {
		return claim, err
	}
	log := h.log.With("instance", d.UUID, "name", d.Name, "was", before.Resources.String(), "uses", claim.Resources.String())
	for _, r := range s.remarks {
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
	p, _ := doc.Pinning() // what makes no sense counts for nothing, as in the claim; the rest was read
	names := slices.Clone(p.Mdevs)
	for _, d := range p.Devices {
		names = append(names, d.Address.String())
	}
	slices.Sort(names) // the same devices in another order are the same use
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

// counted is a digest of what Placement counts of a claim: the amounts, and the
// cells and devices that say on which providers.
func counted(c claims.Claim) string {
	// Nothing in these cannot be written as JSON.
	raw, _ := json.Marshal(allocation.Allocation{Resources: c.Resources, Assignment: c.Assignment})
	return digest(string(raw))
}

// followAllocation makes Placement follow the claim: one look the first time, then
// one write for each change. One that does not answer is asked again by a later
// round, and meanwhile for nobody else.
func (h *Host) followAllocation(ctx context.Context, uuid string, claim claims.Claim) error {
	last := h.lastUse(uuid)
	if h.o.Placement == nil {
		return nil
	}
	counts := counted(claim)
	if last.allocated == counts {
		last.behind = nil
		h.setUse(uuid, last)
		return nil
	}
	if h.rt.Boot().Since < h.placementSilentUntil() {
		return nil // the next round asks: nobody's turn is spent on waiting for it now
	}
	inst, _ := h.tracker.Instance(uuid)
	asking, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	err := h.o.Placement.PutAllocation(asking, allocation.Of(inst, claim))
	if err = wrap(err, "make the allocation of guest %s follow its claim", inst.Name); err == nil {
		last.allocated = counts
	}
	if last.behind = err; errors.Is(err, fault.Unavailable) {
		last.behind = nil // nobody has said anything
		h.placementWasSilent()
	}
	h.setUse(uuid, last)
	return err
}

// placementWasSilent has allocations wait for a look around: a Placement that does not
// answer must not cost each guest's turn its patience.
func (h *Host) placementWasSilent() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = h.rt.Boot().Since + h.o.Look
}

func (h *Host) placementSilentUntil() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silent
}

// Behind gives why allocations are not what is claimed, by instance, where Placement
// refuses it: a guest may use more than there is for it there.
func (h *Host) Behind() map[string]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]error{}
	for uuid, u := range h.uses {
		if u.behind != nil {
			out[uuid] = u.behind
		}
	}
	return out
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
