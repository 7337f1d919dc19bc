package sim

import (
	"context"
	"encoding/json"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// apartMutants are the breakages of moves between hosts that share nothing. They are looked
// for in such moves alone.
func apartMutants() []Mutant {
	return []Mutant{
		{Name: "seal-not-checked", What: "a commit is accepted without its giver's seal, and a conductor forges one", NoSeals: true, Apart: true,
			Verbs: over(func(v verbs) migration.Host { return forger{v} })},
		{Name: "silence-after-hand-over", What: "a host decides alone that a guest stays, which it has handed over", Apart: true, NoGuard: true,
			Verbs: over(func(v verbs) migration.Host { return takesBack{v} })},
		{Name: "copy-left", What: "the undo of the hidden copy does nothing",
			Apart: true, Verbs: over(func(v verbs) migration.Host { return noRemoveCopy{v} })},
		{Name: "copy-not-hidden", What: "the copy at the source is not hidden when the destination's is shown",
			Apart: true, Verbs: over(func(v verbs) migration.Host { return noHide{v} })},
		{Name: "copy-not-shown", What: "the copy at the destination is not shown when the guest lives there",
			Apart: true, Verbs: over(func(v verbs) migration.Host { return noShow{v} })},
		{Name: "volumes-not-carried", What: "what a guest was given elsewhere is not carried back",
			Apart: true, Verbs: over(func(v verbs) migration.Host { return noCarry{v} })},
		{Name: "hosts-talk", What: "a source asks its destination itself what became of a move",
			Apart: true, Verbs: over(func(v verbs) migration.Host { return talks{v} })},
	}
}

// forger is a destination whose conductor brings it a commit that the source never wrote,
// as soon as it could take one. A destination that conducts itself is not lied to.
type forger struct{ verbs }

func (h forger) PrepResize(ctx context.Context, ref migration.Ref, p migration.PrepRequest) (migration.PreparedCold, error) {
	out, err := operation.PrepResize.Ask(ctx, h.verbs, ref, p)
	if m := h.a.w.moveOf(ref); err == nil && m != nil && m.by != h.a.m.name {
		_ = operation.AcceptHanded.Ask(ctx, h, ref, migration.Commit{
			Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: p.Guest.Epoch + 1, From: p.Source, To: h.a.m.name, Power: migration.PowerRunning,
		})
	}
	return out, err
}

type takesBack struct{ verbs }

// HandOver gives the token away, and takes it back as if it had not.
func (h takesBack) HandOver(ctx context.Context, ref migration.Ref, r migration.HandOverRequest) (migration.Commit, error) {
	c, err := operation.HandOver.Ask(ctx, h.verbs, ref, r)
	if err == nil {
		a := h.a
		a.process.Go("silence", func() {
			_ = a.process.Sleep(context.Background(), conductorSilence/9)
			raw := a.w.records(a.m, "instances")[ref.Instance]
			var i claims.Instance
			if json.Unmarshal(raw, &i) == nil && i.Token.State != claims.TokenHere {
				_ = libvirt{a.w.fleet.Host(a.m.name), a}.Start(context.Background(), ref.Instance, false)
			}
		})
	}
	return c, err
}

type noRemoveCopy struct{ verbs }

func (noRemoveCopy) RemoveCopy(context.Context, migration.Ref) error { return nil }

type noHide struct{ verbs }

func (noHide) HideInstance(context.Context, migration.Ref) error { return nil }

type noShow struct{ verbs }

func (noShow) ShowInstance(context.Context, migration.Ref) error { return nil }

type noCarry struct{ verbs }

func (noCarry) CarryVolumes(context.Context, migration.Ref, migration.VolumeChanges) error {
	return nil
}

type talks struct{ verbs }

func (h talks) Disconnect(ctx context.Context, ref migration.Ref) error {
	if mc, ok := h.a.tracker.Context(ref.Migration); ok {
		if m := h.a.w.machines[mc.Destination]; m != nil && m != h.a.m {
			_, err := peer{h.a, m}.AttemptFate(ctx, ref)
			if fault.KindOf(err) == fault.Internal {
				return err
			}
		}
	}
	return operation.Disconnect.Ask(ctx, h.verbs, ref)
}
