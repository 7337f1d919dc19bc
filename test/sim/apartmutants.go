package sim

import (
	"context"
	"encoding/json"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// apartMutants are the breakages of moves between hosts that share nothing. They are looked
// for in such moves alone.
func apartMutants() []Mutant {
	verbs := func(f func(v apartVerbs) migration.ApartVerbs) func(*agent, migration.ApartVerbs) migration.ApartVerbs {
		return func(a *agent, h migration.ApartVerbs) migration.ApartVerbs { return f(apartVerbs{h, a}) }
	}
	cold := func(f func(v coldVerbs) migration.ColdVerbs) func(*agent, migration.ColdVerbs) migration.ColdVerbs {
		return func(a *agent, h migration.ColdVerbs) migration.ColdVerbs { return f(coldVerbs{h, a}) }
	}
	same := verbs(func(v apartVerbs) migration.ApartVerbs { return v })
	return []Mutant{
		{Name: "seal-not-checked", What: "a commit is accepted without its giver's seal, and a conductor forges one", NoSeals: true, Apart: same,
			Cold: cold(func(v coldVerbs) migration.ColdVerbs { return forger{v} })},
		{Name: "silence-after-hand-over", What: "a host decides alone that a guest stays, which it has handed over", Apart: same, NoGuard: true,
			Cold: cold(func(v coldVerbs) migration.ColdVerbs { return takesBack{v} })},
		{Name: "copy-left", What: "the undo of the hidden copy does nothing",
			Apart: verbs(func(v apartVerbs) migration.ApartVerbs { return noRemoveCopy{v} })},
		{Name: "copy-not-hidden", What: "the copy at the source is not hidden when the destination's is shown",
			Apart: verbs(func(v apartVerbs) migration.ApartVerbs { return noHide{v} })},
		{Name: "copy-not-shown", What: "the copy at the destination is not shown when the guest lives there",
			Apart: verbs(func(v apartVerbs) migration.ApartVerbs { return noShow{v} })},
		{Name: "volumes-not-carried", What: "what a guest was given elsewhere is not carried back",
			Apart: verbs(func(v apartVerbs) migration.ApartVerbs { return noCarry{v} })},
		{Name: "hosts-talk", What: "a source asks its destination itself what became of a move",
			Apart: verbs(func(v apartVerbs) migration.ApartVerbs { return talks{v} })},
	}
}

// apartVerbs are a host's, and whose they are.
type apartVerbs struct {
	migration.ApartVerbs
	a *agent
}

// forger is a destination whose conductor brings it a commit that the source never wrote,
// as soon as it could take one. A destination that conducts itself is not lied to.
type forger struct{ coldVerbs }

func (h forger) PrepResize(ctx context.Context, ref migration.Ref, p migration.PrepRequest) (migration.PreparedCold, error) {
	out, err := h.coldVerbs.PrepResize(ctx, ref, p)
	if m := h.a.w.moveOf(ref); err == nil && m != nil && m.by != h.a.m.name {
		_ = h.AcceptHanded(ctx, ref, migration.Commit{
			Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: p.Guest.Epoch + 1, From: p.Source, To: h.a.m.name, Power: migration.PowerRunning,
		})
	}
	return out, err
}

type takesBack struct{ coldVerbs }

// HandOver gives the token away, and takes it back as if it had not.
func (h takesBack) HandOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.coldVerbs.HandOver(ctx, ref, to)
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

type noRemoveCopy struct{ apartVerbs }

func (noRemoveCopy) RemoveCopy(context.Context, migration.Ref) error { return nil }

type noHide struct{ apartVerbs }

func (noHide) HideInstance(context.Context, migration.Ref) error { return nil }

type noShow struct{ apartVerbs }

func (noShow) ShowInstance(context.Context, migration.Ref) error { return nil }

type noCarry struct{ apartVerbs }

func (noCarry) CarryVolumes(context.Context, migration.Ref, migration.VolumeChanges) error {
	return nil
}

type talks struct{ apartVerbs }

func (h talks) Disconnect(ctx context.Context, ref migration.Ref) error {
	if mc, ok := h.a.tracker.Context(ref.Migration); ok {
		if m := h.a.w.machines[mc.Destination]; m != nil && m != h.a.m {
			_, err := peer{h.a, m}.AttemptFate(ctx, ref)
			if fault.KindOf(err) == fault.Internal {
				return err
			}
		}
	}
	return h.apartVerbs.Disconnect(ctx, ref)
}
