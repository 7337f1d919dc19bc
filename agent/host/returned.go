package host

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// While a host is dead its guests may be given to others, and it does not hear of it. So in
// each boot it first asks the fleet's records, and until they have answered nothing that was
// here before is started: not by autostart, not by a user, not through the guard, and no token
// is given on. What was made or has come in this boot is nobody else's, and does not wait. Once
// a boot is confirmed nothing waits in it any more but the guests that are held by name: of
// those the records, or Placement, say something else than the ledger.

// bootWord is what is durable of it, of one boot.
type bootWord struct {
	Boot      string `json:"boot"` // runtime.BootTime.ID
	Confirmed bool   `json:"confirmed,omitempty"`
	// Strict: the ledger was lost when the boot was begun. What is put back of it counts as
	// of this boot by its claim, and is not.
	Strict bool `json:"strict,omitempty"`
	// Held are guests that are not started though the boot is confirmed, with the reason.
	Held map[string]string `json:"held,omitempty"`
	// Freed are guests that an operator has said to be this host's, with his words.
	Freed map[string]string `json:"freed,omitempty"`
}

func (w bootWord) clone() bootWord {
	w.Held, w.Freed = maps.Clone(w.Held), maps.Clone(w.Freed)
	return w
}

// bootWait is a host's view of it.
type bootWait struct {
	// writing makes changes come one after another; durable writes happen under it. Taken
	// before mu.
	writing sync.Mutex
	// mu guards the fields below; nothing happens under it.
	mu    sync.Mutex
	waits bool // there are records to ask
	word  bootWord
}

// bootRef is under which it is remembered, as autostartRef.
func bootRef() migration.Ref {
	return migration.Ref{Migration: "fleet", Instance: "host", Attempt: 1, Step: "boot"}
}

// AwaitRecords has the guests of a boot before wait for ConfirmBoot, unless this boot was
// confirmed by an earlier process. strict says that the ledger is not whole: then nothing that
// it has by then counts as of this boot. It is called before anything can be started, on a host that has
// records to ask; without it nothing waits.
func (h *Host) AwaitRecords(ctx context.Context, strict bool) error {
	b := &h.boot
	b.writing.Lock()
	defer b.writing.Unlock()
	var word bootWord
	if _, err := h.tracker.Recall(bootRef(), &word); err != nil {
		return wrap(err, "read whether this boot is confirmed")
	}
	now := h.rt.Boot().ID
	if word.Boot != now || strict && !word.Strict && !word.Confirmed {
		if word.Boot != now {
			word = bootWord{Boot: now}
		}
		word.Strict = strict
		// In memory first: a host whose disk is full waits all the same.
		b.set(true, word)
		return wrap(h.tracker.Remember(ctx, bootRef(), word), "note that this boot is not confirmed")
	}
	b.set(true, word)
	return nil
}

func (b *bootWait) set(waits bool, word bootWord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits, b.word = waits, word
}

func (b *bootWait) get() (waits bool, word bootWord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits, b.word
}

// Waits reports whether guests wait for records at all, and BootConfirmed whether those were
// asked in this boot.
func (h *Host) Waits() bool {
	waits, _ := h.boot.get()
	return waits
}

// BootConfirmed reports whether nothing but the guests held by name waits in this boot.
func (h *Host) BootConfirmed() bool {
	waits, word := h.boot.get()
	return !waits || word.Confirmed
}

// Held gives the guests that are not started though the boot is confirmed, with the reason.
func (h *Host) Held() map[string]string {
	_, word := h.boot.get()
	return maps.Clone(word.Held)
}

// FreedByHand reports whether an operator has said in this boot that a guest is this host's.
func (h *Host) FreedByHand(uuid string) bool {
	_, word := h.boot.get()
	_, freed := word.Freed[uuid]
	return freed
}

// notAsked is why a guest waits in a boot that is not confirmed.
const notAsked = "the fleet's records have not said in this boot that it was not given to another host meanwhile"

// Unconfirmed says why a guest may not be started yet, and its token not be given on; false for
// one that may. From memory.
func (h *Host) Unconfirmed(uuid string) (why string, waits bool) {
	waits, word := h.boot.get()
	if !waits {
		return originWaits(h, uuid)
	}
	if _, freed := word.Freed[uuid]; freed {
		return "", false
	}
	if why, held := word.Held[uuid]; held {
		return why, true
	}
	if word.Confirmed {
		return "", false
	}
	if claim, ok := h.attempts.ClaimOf(uuid); ok && !word.Strict && claim.Boot == word.Boot {
		return "", false // it was made here, or came, in this boot
	}
	return notAsked, true
}

// confirmed refuses what may not happen to a guest whose host does not know yet that it is its own.
func (h *Host) confirmed(uuid, name string) error {
	why, waits := h.Unconfirmed(uuid)
	if !waits {
		return nil
	}
	kind := fault.Unavailable
	if h.BootConfirmed() {
		kind = fault.InDoubt
	}
	return fault.Refuse(kind, "", notConfirmed(name, why))
}

func notConfirmed(name, why string) fault.Reason {
	return fault.Reason{
		Code: "not_confirmed", Message: "whether guest " + name + " is this host's is not confirmed: " + why,
		Change: `bring the witness back (berth status names it), or, where it surely runs nowhere else, berth instance start ` + name + ` --force-owner --reason "how you know"`,
	}
}

// ConfirmBoot makes durable that the records were asked in this boot, and which guests wait on.
// Nothing is written where that is so already. It reports whether anything changed: guests may be
// started then that could not before.
func (h *Host) ConfirmBoot(ctx context.Context, held map[string]string) (changed bool, err error) {
	return h.changeBoot(ctx, func(w *bootWord) bool {
		for uuid := range w.Freed {
			delete(held, uuid)
		}
		if w.Confirmed && maps.Equal(w.Held, held) {
			return false
		}
		w.Confirmed, w.Held = true, held
		return true
	})
}

func (h *Host) changeBoot(ctx context.Context, change func(*bootWord) bool) (bool, error) {
	b := &h.boot
	b.writing.Lock()
	defer b.writing.Unlock()
	waits, word := b.get()
	word = word.clone()
	if !waits || !change(&word) {
		return false, nil
	}
	if err := h.tracker.Remember(ctx, bootRef(), word); err != nil {
		return false, wrap(err, "note what is confirmed of this boot")
	}
	b.set(true, word)
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	return true, nil
}

// ConfirmByHand takes an operator's word that a guest of this host, of which the records have not
// said so, is its own: it may be started in this boot. Durable and logged. It changes nothing
// where nothing waits, and for a guest that has gone it is refused as Start is.
func (h *Host) ConfirmByHand(ctx context.Context, id, because, by string) error {
	return wrap(h.confirmByHand(ctx, id, because, by), "confirm by hand that instance %s is on %s", id, h.o.Name)
}

func (h *Host) confirmByHand(ctx context.Context, id, because, by string) error {
	if strings.TrimSpace(because) == "" {
		return fault.New(fault.Invalid, "it is not said how that is known")
	}
	if err := h.managing(""); err != nil {
		return err
	}
	uuid, err := h.Resolve(ctx, id)
	if err != nil {
		return err
	}
	if err := takeYieldedBack(ctx, h, uuid, because, by); err != nil {
		return err
	}
	inst, known := h.tracker.Instance(uuid)
	if !known {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "not_managed", Message: "guest " + id + " is not managed", Change: "berth instance adopt " + id})
	}
	if err := h.tokenIsHere(inst); err != nil {
		return err
	}
	if err := KeepOwner(ctx, h, uuid, because, by); err != nil {
		return err
	}
	why, waits := h.Unconfirmed(uuid)
	if !waits {
		return nil
	}
	h.log.Warn("an operator says that a guest is this host's", "instance", uuid, "name", inst.Name, "by", by, "because", because, "not_confirmed", why)
	if !h.Waits() {
		return h.origins.confirm(ctx, h, uuid)
	}
	_, err = h.changeBoot(ctx, func(w *bootWord) bool {
		if w.Freed == nil {
			w.Freed = map[string]string{}
		}
		w.Freed[uuid] = fmt.Sprintf("%s: %s", by, because)
		delete(w.Held, uuid)
		return true
	})
	return err
}

// StartConfirmed starts the guests whose wish is autostart and that had to wait, once.
func (h *Host) StartConfirmed(ctx context.Context) error { return h.autostart(ctx) }

// Record gives a guest as it is kept for the fleet: what Inspect gives, but of a guest at rest.
// fault.Busy while somebody else works on it; the others are those of Inspect.
func (h *Host) Record(ctx context.Context, uuid string) (migration.Guest, error) {
	unlock, err := h.tryLock(ctx, uuid)
	if err != nil {
		return migration.Guest{}, wrap(err, "describe instance %s", uuid)
	}
	defer unlock()
	g, err := h.inspect(ctx, uuid)
	return g, wrap(err, "describe instance %s", uuid)
}

// RecordMark is another whenever what Record would give may be another, as far as this process has
// seen: by ledger and last look, from memory.
func (h *Host) RecordMark(uuid string) string {
	inst, _ := h.tracker.Instance(uuid)
	claim, _ := h.attempts.ClaimOf(uuid)
	u := h.lastUse(uuid)
	return digest(fmt.Sprintf("%+v %s %+v %s %+v", inst, claim.ID, claim.Resources, u.text, u.domain))
}

// Owned gives the guests whose token is here, in order of uuid.
func (h *Host) Owned() []claims.Instance {
	all := slices.DeleteFunc(h.tracker.Instances(), func(i claims.Instance) bool { return i.Token.State != claims.TokenHere })
	slices.SortFunc(all, func(a, b claims.Instance) int { return strings.Compare(a.UUID, b.UUID) })
	return all
}

// OnMove names the migration that a guest is on, one that waits to be confirmed too.
func (h *Host) OnMove(uuid string) string {
	m, _ := h.attempts.Moving(uuid)
	return m
}
