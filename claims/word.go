package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// Word is an operator's explicit word on where the guest of a migration is, as this
// host took it. It is durable before anything is done by it.
type Word struct {
	Instance  string    `json:"instance"`
	Migration string    `json:"migration"`
	Attempt   int       `json:"attempt"`
	GuestIsAt string    `json:"guest_is_at"` // host
	Gone      []string  `json:"gone,omitempty"`
	By        string    `json:"by"`
	Why       string    `json:"why"`
	At        time.Time `json:"at"`
	// Tell is the other host, which has to hear that the token is here; empty for none.
	Tell string `json:"tell,omitempty"`
	Told bool   `json:"told,omitempty"`
}

func (w Word) clone() Word {
	w.Gone = slices.Clone(w.Gone)
	return w
}

func (w *Word) untold() bool { return w != nil && w.Tell != "" && !w.Told }

func (w Word) ref() migration.Ref {
	return migration.Ref{Migration: w.Migration, Instance: w.Instance, Attempt: w.Attempt}
}

// NoteWord makes an operator's word durable, in place of an earlier one on the same
// migration. It changes nothing else.
func (t *Tracker) NoteWord(ctx context.Context, w Word) error {
	if err := validRef(w.ref(), "note an operator's word", true); err != nil {
		return err
	}
	if w.GuestIsAt == "" || strings.TrimSpace(w.Why) == "" {
		return fault.New(fault.Invalid, "note an operator's word on migration %s: it says neither where nor why", w.Migration)
	}
	return t.change(ctx, subjects(w.Instance, w.Migration), func() (plan, error) {
		h := t.migrations[w.Migration].clone()
		w := w.clone()
		h.Word = &w
		return t.writeHalf(w.Migration, h), nil
	})
}

// WordTold notes that the other host has heard of it. Safe to repeat.
func (t *Tracker) WordTold(ctx context.Context, id string) error {
	return t.change(ctx, []string{ofMigration(id)}, func() (plan, error) {
		h := t.migrations[id].clone()
		if !h.Word.untold() {
			return plan{}, nil
		}
		h.Word.Told = true
		return t.writeHalf(id, h), nil
	})
}

// Word gives the operator's word on a migration that this host took.
func (t *Tracker) Word(id string) (Word, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.migrations[id].Word; w != nil {
		return w.clone(), true
	}
	return Word{}, false
}

// Untold gives the words that the other host has not heard yet, in order of migration.
func (t *Tracker) Untold() []Word {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Word
	for _, h := range t.migrations {
		if h.Word.untold() {
			out = append(out, h.Word.clone())
		}
	}
	slices.SortFunc(out, func(a, b Word) int { return strings.Compare(a.Migration, b.Migration) })
	return out
}

// Epoch is the highest epoch of an instance's token of which this ledger knows, and its
// holder then: from its record, or from the hand-overs that are kept. 0 for none.
func (t *Tracker) Epoch(instance string) (uint64, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.instances[instance].Token
	epoch, holder := k.Epoch, k.Holder
	if k.State == TokenDoubt {
		epoch, holder = 0, "" // what a lost ledger's guest may have had is nobody's proof
	}
	for _, h := range t.migrations {
		for _, c := range []*migration.Commit{h.Commit, h.Came} {
			if c != nil && c.Instance == instance && c.Epoch > epoch {
				epoch, holder = c.Epoch, c.To
			}
		}
	}
	return epoch, holder
}

// Retake takes a token back that this host gave away by the attempt of ref, with an
// epoch above the one that it gave: by an operator's word only, which NoteWord has kept,
// since nobody else knows that the receiver is no more. From then on the attempt is one
// whose commit is refused, and what was held for it (ReleaseHeldOwnership) is the instance's
// own claim again, in the same commit. Safe to repeat. fault.Forbidden where that attempt has not
// taken the token away, the guest has gone on, or no such word is kept.
func (t *Tracker) Retake(ctx context.Context, ref migration.Ref) error {
	if err := validRef(ref, "retake token", true); err != nil {
		return err
	}
	return t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		doing := fmt.Sprintf("retake token of instance %s (migration %s, attempt %d)", ref.Instance, ref.Migration, ref.Attempt)
		h := t.migrations[ref.Migration].clone()
		i, known := t.instances[ref.Instance]
		if w := h.Word; w == nil || w.GuestIsAt != t.host || w.Instance != ref.Instance || w.Attempt != ref.Attempt {
			return plan{}, fault.New(fault.Forbidden, "%s: no operator has said that the guest is at %s", doing, t.host)
		}
		switch c := h.gone(); {
		case known && i.Token.State == TokenHere && i.Token.Migration == ref.Migration && h.Refused >= ref.Attempt:
			return plan{}, nil
		case c == nil || c.Attempt != ref.Attempt || c.Instance != ref.Instance:
			return plan{}, fault.New(fault.Forbidden, "%s: that attempt has not taken it away", doing)
		case !known || i.Token.State != TokenSurrendered || i.Token.Migration != ref.Migration:
			return plan{}, fault.New(fault.Forbidden, "%s: the guest has gone on since", doing)
		}
		next := i.clone()
		next.Token, next.Hidden = Token{Epoch: i.Token.Epoch + 1, State: TokenHere, Holder: t.host, Migration: ref.Migration}, false
		h.Commit, h.Refused = nil, max(h.Refused, ref.Attempt)
		return t.writeHalf(ref.Migration, h).and(t.writeInstance(next)).and(t.regainLocked(ref)), nil
	})
}

// regainLocked plans what a migration holds of a guest that had left by it as the
// instance's own claim again; nothing where there is none.
func (t *Tracker) regainLocked(ref migration.Ref) plan {
	if t.ownLockedOf(ref.Instance) != nil {
		return plan{}
	}
	for _, e := range t.entriesLocked(ref.Instance) {
		if e.claim.Owner.Migration == ref.Migration {
			next := e.claim.clone()
			next.Owner, next.State, next.Lease = Owner{Instance: ref.Instance, Kind: KindInstance}, Bound, nil
			return t.rewriteLocked(e, next)
		}
	}
	return plan{}
}

// Yield gives way to a higher epoch: another host is the owner of an instance, by the
// attempt of ref, and says so. The token that is here is surrendered to it, and the
// attempt is one that has committed. It reports whether this host had to give way, now
// or by the same word before. A host with the same or a higher epoch keeps what it has,
// and one that does not know the guest has nothing to give. Safe to repeat.
func (t *Tracker) Yield(ctx context.Context, ref migration.Ref, epoch uint64, to string) (bool, error) {
	if err := validRef(ref, "give way", true); err != nil {
		return false, err
	}
	if to == "" || to == t.host {
		return false, fault.New(fault.Invalid, "give way for instance %s: to %q", ref.Instance, to)
	}
	yields := false
	err := t.change(ctx, subjects(ref.Instance, ref.Migration), func() (plan, error) {
		i, known := t.instances[ref.Instance]
		if !known {
			return plan{}, nil
		}
		same := Token{Epoch: epoch, State: TokenSurrendered, Holder: to, Migration: ref.Migration}
		h := t.migrations[ref.Migration].clone()
		switch {
		case i.Token == same && h.gone() != nil:
			yields = true
			return plan{}, nil
		case i.Token == same: // of a ledger that was rebuilt, which has no commit
		case i.Token.Epoch >= epoch && i.Token.State != TokenDoubt:
			return plan{}, nil
		}
		yields = true
		h.Commit = &migration.Commit{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: epoch, From: t.host, To: to}
		// An attempt is never both committed and refused: the higher epoch is right.
		h.Refused = min(h.Refused, ref.Attempt-1)
		next := i.clone()
		next.Token = same
		return t.writeHalf(ref.Migration, h).and(t.writeInstance(next)), nil
	})
	return yields && err == nil, err
}
