package conductor_test

import (
	"context"
	"maps"
	"strings"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/transfer"
)

// The verbs of moves between hosts that share nothing, over the same ledger. What such a
// host has beside the rest is in simApart; it stays empty in other moves, and is checked
// in none.

// apartFile is the one file of the guest's one disk, all zeros.
const apartFile, apartSize = "/vda", 2 * migration.ShipBlock

// simApart is what a host has of such a move.
type simApart struct {
	listed    string          // the instance's record: "", hidden, shown
	held      map[string]bool // files, by migration/attempt
	away      bool            // the guest is taken from its networks and volumes here
	coming    map[string]*transfer.Order
	sealed    map[string]bool // files that came, by migration/attempt
	volumes   string          // the guest's, beside its disk
	carried   map[string]migration.VolumeChanges
	seals     int // how often it has sealed a commit
	sends     int // how often it was asked to ship
	decided   bool
	badSeals  int  // so many of the next are wrong
	noVerbs   bool // its agent is an old one
	breaksOff int  // so many of the next shipments
	crawls    bool // though each of them has brought a byte
}

func newSimApart() simApart {
	return simApart{
		held: map[string]bool{}, coming: map[string]*transfer.Order{}, sealed: map[string]bool{}, carried: map[string]migration.VolumeChanges{},
	}
}

// apart reports whether the world's move is such a one.
func (h *simHost) apart() bool { return h.w.script.request.ShareNothing }

// off reports whether the guest is here and was powered off by the attempt.
func (h *simHost) off(ref migration.Ref) bool {
	return h.owns() && h.offs[at(ref)] != "" && h.domain != nil && h.domain.state == "shut off"
}

// handed reports whether the guest was handed over by the attempt: what comes late then does
// nothing.
func (h *simHost) handed(ref migration.Ref) bool {
	_, done := h.commits[at(ref)]
	return done
}

func (h *simHost) Reaches(_ context.Context, _ migration.Ref, r migration.ReachRequest) error {
	host := r.Host
	if h.w.script.apart {
		return fault.New(fault.Unavailable, "host %s: no route to host %s", h.name, host)
	}
	return nil
}

func (h *simHost) SnapshotDisks(_ context.Context, ref migration.Ref, r migration.SnapshotRequest) (migration.Snapshot, error) {
	targets := r.Targets
	if err := h.buried(ref, ref.Step); err != nil {
		return migration.Snapshot{}, err
	}
	out := migration.Snapshot{Files: []migration.SnapshotFile{{Target: "vda", Path: apartFile, Size: apartSize, Version: "1"}}}
	if len(targets) != 1 {
		return migration.Snapshot{}, h.no(ref, "one disk is to be held")
	}
	if h.handed(ref) {
		return out, nil
	}
	if !h.off(ref) {
		return migration.Snapshot{}, h.no(ref, "the guest is not off")
	}
	h.held[at(ref)] = true
	return out, nil
}

func (h *simHost) DropSnapshot(_ context.Context, ref migration.Ref) error {
	h.bury(ref, ref.Step)
	delete(h.held, at(ref))
	return nil
}

func (h *simHost) Disconnect(_ context.Context, ref migration.Ref) error {
	if err := h.buried(ref, ref.Step); err != nil {
		return err
	}
	if h.handed(ref) {
		return nil
	}
	if !h.off(ref) {
		return h.no(ref, "the guest is not off")
	}
	h.away = true
	return nil
}

func (h *simHost) Reconnect(_ context.Context, ref migration.Ref) error {
	if h.handed(ref) {
		return h.no(ref, "the token has left")
	}
	h.bury(ref, ref.Step)
	h.away = false
	return nil
}

func (h *simHost) SendDisks(_ context.Context, ref migration.Ref, r migration.SendRequest) error {
	h.sends++
	if !h.held[at(ref)] {
		return h.no(ref, "the disks are not held")
	}
	if err := h.Reaches(context.Background(), migration.Ref{}, migration.ReachRequest{Host: r.Destination}); err != nil {
		h.w.violate("%s was asked to ship to %s, which it does not reach", h.name, r.Destination)
		return err
	}
	if h.breaksOff > 0 {
		h.breaksOff--
		if o := h.w.hosts[r.Destination].coming[at(ref)]; o != nil && h.crawls {
			o.Bytes++
		}
		return fault.New(fault.Unavailable, "host %s: nothing moved", h.name)
	}
	return h.w.hosts[r.Destination].receive(ref)
}

// receive is all of the file at once, by whoever brings it.
func (h *simHost) receive(ref migration.Ref) error {
	if err := h.buried(ref, migration.StepPrepResize); err != nil {
		return err
	}
	order := transfer.Order{}
	if err := order.Take(migration.DiskPiece{Path: apartFile, Length: apartSize, Zero: true, Size: apartSize, Version: "1"}); err != nil {
		return err
	}
	h.coming[at(ref)], h.sealed[at(ref)] = &order, true
	return nil
}

func (h *simHost) HideInstance(_ context.Context, ref migration.Ref) error {
	if h.handed(ref) && !h.owns() && h.listed != "" {
		h.listed = "hidden"
	}
	return nil
}

func (h *simHost) CarryVolumes(_ context.Context, ref migration.Ref, v migration.VolumeChanges) error {
	if err := h.buried(ref, migration.StepAwaitReturn); err != nil {
		return err
	}
	if h.owns() {
		return nil // late
	}
	h.carried[at(ref)] = v
	return nil
}

func (h *simHost) CopyInstance(_ context.Context, ref migration.Ref, i migration.InstanceCopy) error {
	if err := h.buried(ref, ref.Step); err != nil {
		return err
	}
	if h.token != nil && h.token.migration == ref.Migration {
		return nil // late
	}
	if h.claims[at(ref)] == nil {
		return h.no(ref, "no claim")
	}
	if h.listed == "shown" || i.Name != "vm1" || i.Epoch == 0 {
		return fault.New(fault.Exists, "host %s: a guest is called so", h.name)
	}
	h.listed = "hidden"
	return nil
}

func (h *simHost) RemoveCopy(_ context.Context, ref migration.Ref) error {
	if h.owns() {
		return h.no(ref, "the token is here")
	}
	h.bury(ref, ref.Step)
	h.listed = ""
	return nil
}

func (h *simHost) ShowInstance(_ context.Context, ref migration.Ref) error {
	if h.owns() && h.token.migration == ref.Migration && h.listed != "" {
		h.listed = "shown"
	}
	return nil
}

func (h *simHost) ReadVolumes(_ context.Context, ref migration.Ref) (migration.VolumeChanges, error) {
	if h.w.script.stays {
		return migration.VolumeChanges{}, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "disk_stays", Message: "vdz is a file of " + h.name})
	}
	if !h.apart() {
		return migration.VolumeChanges{}, nil
	}
	return migration.VolumeChanges{Attached: []string{"<disk/>"}, Detached: []string{"vdb"}}, nil
}

// takeCarried gives the guest, which is back, what it was given elsewhere.
func (h *simHost) takeCarried(ref migration.Ref) {
	if v, ok := h.carried[at(ref)]; ok && len(v.Attached) > 0 {
		h.volumes = v.Attached[0] + " without " + v.Detached[0]
	}
	h.forgetApart(ref)
	if h.listed != "" {
		h.listed = "shown"
	}
}

// forgetApart drops what a migration has here beside the record.
func (h *simHost) forgetApart(ref migration.Ref) {
	mine := func(k string) bool { return strings.HasPrefix(k, ref.Migration+"/") }
	maps.DeleteFunc(h.held, func(k string, _ bool) bool { return mine(k) })
	maps.DeleteFunc(h.coming, func(k string, _ *transfer.Order) bool { return mine(k) })
	maps.DeleteFunc(h.sealed, func(k string, _ bool) bool { return mine(k) })
	maps.DeleteFunc(h.carried, func(k string, _ migration.VolumeChanges) bool { return mine(k) })
	h.away = false
}

// seal signs a commit, which only the conductor carries.
func (h *simHost) seal(c migration.Commit) migration.Commit {
	if h.apart() {
		h.seals++
		c.Seal = &migration.Seal{Signature: []byte("by " + h.name)}
		if h.badSeals > 0 {
			h.badSeals--
			c.Seal = &migration.Seal{Signature: []byte("by nobody")}
		}
	}
	return c
}

// verify refuses a commit that was not sealed by its writer.
func (h *simHost) verify(ref migration.Ref, c migration.Commit) error {
	if h.apart() && (c.Seal == nil || string(c.Seal.Signature) != "by "+c.From) {
		return fault.Refuse(fault.Forbidden, "host "+h.name+" "+ref.Step, fault.Reason{Code: migration.ReasonSeal, Message: "it is not sealed by " + c.From})
	}
	return nil
}

// AttemptFate is what the ledger says; see migration.Side.
func (h *simHost) AttemptFate(_ context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	f := migration.AttemptFate{Fate: migration.FateUnknown}
	if h.token != nil {
		if f.Epoch = h.token.epoch; h.token.here {
			f.Holder = h.name
		}
	}
	switch c, done := h.commits[at(ref)]; {
	case done:
		f.Fate, f.Commit = migration.FateCommitted, &c
	case h.reclaimed[at(ref)]:
		f.Fate = migration.FateKept
	}
	return f, nil
}

// YieldToken is not asked of hosts here.
func (h *simHost) YieldToken(context.Context, migration.Ref, uint64, string) error { return nil }

// decideAlone is a source that heard nothing of its conductor for too long.
func (h *simHost) decideAlone() {
	for k := range h.offs {
		ref := migration.Ref{Migration: moveUUID, Attempt: int(k[len(k)-1] - '0')}
		if !h.contexts[moveUUID] || h.handed(ref) || !h.owns() || h.reclaimed[at(ref)] {
			continue
		}
		h.reclaimed[at(ref)], h.decided = true, true
		for _, step := range []string{migration.StepPowerOff, migration.StepSnapshotDisks, migration.StepDisconnectSource} {
			h.bury(ref, step)
		}
		delete(h.held, at(ref))
		h.away = false
		if h.domain.state == "shut off" {
			*h.domain = simDomain{h.offs[at(ref)], "booted"}
		}
	}
}

func (x hostWire) AttemptFate(ctx context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	return read(x, func() (migration.AttemptFate, error) { return x.h.AttemptFate(ctx, ref) })
}

func (x hostWire) YieldToken(ctx context.Context, ref migration.Ref, epoch uint64, to string) error {
	return x.h.YieldToken(ctx, ref, epoch, to)
}
