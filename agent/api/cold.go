package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// HandOverRequest are the arguments of the verb hand-over.
type HandOverRequest struct {
	To string `json:"to"` // host that gets the guest
}

// coldRows are the verbs of migration.ColdVerbs but those that ship disks.
//
// They are asked by the host that conducts the move, which is its source or a third one:
// of the destination on the way there, and once more when the move is reverted.
func coldRows() []route {
	type host = migration.Host
	type ref = migration.Ref
	return []route{
		verb("plan-change", "What a change would make of a guest; changes nothing.", migration.AccessLook, quick, nil,
			func(ctx context.Context, h host, r ref, c migration.Change) (migration.Wanted, error) {
				return h.PlanChange(ctx, r.Instance, c)
			}),
		verb("power-off", "End the guest's domain: it is asked to shut down, then its plug is pulled.", migration.AccessConductor, slow+migration.LongestShutdown, nil,
			func(ctx context.Context, h host, r ref, p migration.PowerOffRequest) (migration.PoweredOff, error) {
				return h.PowerOff(ctx, r, p)
			}),
		plain("power-on", "Undo power-off.", migration.AccessConductor, slow, host.PowerOn),
		verb("hand-over", "The commit of a cold move, or of its return: the token leaves this host.", migration.AccessConductor, quick, nil,
			func(ctx context.Context, h host, r ref, a HandOverRequest) (migration.Commit, error) {
				return h.HandOver(ctx, r, a.To)
			}),
		plain("keep-guest", "Refuse any later hand-over of this attempt.", migration.AccessConductor, quick, host.KeepGuest),

		// Asked of the source.
		plain("confirm-source", "End the guest's half here, after the move was confirmed.", migration.AccessConductor, slow, host.ConfirmSource),
		plain("await-return", "Make the half that is held here ready to take the guest back.", migration.AccessConductor, quick, host.AwaitReturn),
		plain("cancel-return", "Undo await-return.", migration.AccessConductor, quick, host.CancelReturn),
		plain("finish-revert", "Give the guest back as it was before the move.", migration.AccessConductor, slow, host.FinishRevert),

		// Asked of the destination.
		verb("prep-resize", "Get ready for a guest that comes while it is off.", migration.AccessDestination, slow,
			func(p migration.PrepRequest) migration.Named { return migration.Named{Source: p.Source} },
			func(ctx context.Context, h host, r ref, p migration.PrepRequest) (migration.PreparedCold, error) {
				return h.PrepResize(ctx, r, p)
			}),
		plain("rollback-prep-resize", "Undo prep-resize.", migration.AccessDestination, slow, host.RollbackPrepResize),
		act("accept-handed", "Accept the token of a cold move, or of its return; nothing is started.", migration.AccessDestination, quick,
			namesOfCommit,
			func(ctx context.Context, h host, r ref, c migration.Commit) error { return h.AcceptHanded(ctx, r, c) }),
		plain("finish-resize", "Make the guest live here: disks, definition, power state, claim bound.", migration.AccessDestination, slow, host.FinishResize),
		plain("confirm-destination", "End the move here; the guest stays.", migration.AccessDestination, quick, host.ConfirmDestination),
		plain("clean-up-reverted", "Remove what a guest that was handed back left here.", migration.AccessDestination, slow, host.CleanUpReverted),

		// Asked of the host whose guest is changed in its place.
		act("prep-change", "Make ready what a change in place needs, while the guest runs.", migration.AccessConductor, slow, nil,
			func(ctx context.Context, h host, r ref, p migration.PrepRequest) error {
				return h.PrepChange(ctx, r, p)
			}),
		plain("rollback-prep-change", "Undo prep-change.", migration.AccessConductor, slow, host.RollbackPrepChange),
		plain("apply-change", "Put the new in the place of the old, which is kept.", migration.AccessConductor, slow, host.ApplyChange),
		plain("unapply-change", "Undo apply-change: the old is in its place again.", migration.AccessConductor, slow, host.UnapplyChange),
		plain("start-changed", "Give the changed guest its power state.", migration.AccessConductor, slow, host.StartChanged),
		plain("finish-change", "Give up what the guest held before; no way back.", migration.AccessConductor, slow, host.FinishChange),
	}
}

// cold asks a verb of migration.ColdVerbs. A host whose agent is older than these verbs
// is refused by its version.
func (c *Client) cold(ctx context.Context, name string, most time.Duration, in, out any) error {
	return c.orTooOld(ctx, c.verb(ctx, name, most, in, out), routeUnknown)
}

// routeUnknown says whether an agent has answered that it has no such route. A guest
// that is not there is another answer of the same kind.
func routeUnknown(err error) bool {
	e, ok := errors.AsType[*fault.Error](err)
	return ok && e.Kind == fault.NotFound && len(e.Reasons) == 0 && strings.HasPrefix(e.Message, noRoute)
}

// coldTo says of the answer to a verb that older agents know without the move's kind
// whether it is theirs.
func coldTo(kind string) func(error) bool {
	return func(err error) bool { return kind != "" && unknownField(err) }
}

// unknownField says whether an agent has answered that it knows not all of a request.
func unknownField(err error) bool {
	return errors.Is(err, fault.Invalid) && slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == "unknown_field" })
}

// orTooOld puts the answer of an agent that knows no cold moves into words; any other
// stays as it is.
func (c *Client) orTooOld(ctx context.Context, err error, old func(error) bool) error {
	return c.knowsNo(ctx, err, old, "cold moves")
}

// knowsNo puts the answer of an agent that is older than something into words.
func (c *Client) knowsNo(ctx context.Context, err error, old func(error) bool, what string) error {
	if err == nil || !old(err) {
		return err
	}
	name, runs := cmp.Or(c.host, c.opt.Name, "at "+c.where()), "an older berth"
	// Best effort: the refusal stands without it.
	if d, err := c.Describe(ctx); err == nil {
		name, runs = d.Name, "berth "+d.BerthVersion
	}
	return fault.Refuse(fault.Forbidden, "ask host "+name, fault.Reason{
		Code: "peer_too_old", Message: "host " + name + " runs " + runs + ", which knows no " + what, Have: runs,
		Change: "upgrade berth on " + name + " (its guests run on meanwhile)",
	})
}

// PlanChange implements migration.ColdVerbs.
func (c *Client) PlanChange(ctx context.Context, instance string, ch migration.Change) (out migration.Wanted, err error) {
	return out, c.cold(ctx, "plan-change", quickVerb, with(migration.Ref{Instance: instance}, ch), &out)
}

// PowerOff implements migration.ColdVerbs.
func (c *Client) PowerOff(ctx context.Context, ref migration.Ref, p migration.PowerOffRequest) (out migration.PoweredOff, err error) {
	return out, c.cold(ctx, "power-off", slowVerb+p.Timeout, with(ref, p), &out)
}

// PowerOn implements migration.ColdVerbs.
func (c *Client) PowerOn(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "power-on", slowVerb, alone(ref), nil)
}

// HandOver implements migration.SourceColdVerbs.
func (c *Client) HandOver(ctx context.Context, ref migration.Ref, to string) (out migration.Commit, err error) {
	return out, c.cold(ctx, "hand-over", quickVerb, with(ref, HandOverRequest{To: to}), &out)
}

// KeepGuest implements migration.SourceColdVerbs.
func (c *Client) KeepGuest(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "keep-guest", quickVerb, alone(ref), nil)
}

// ConfirmSource implements migration.SourceColdVerbs.
func (c *Client) ConfirmSource(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "confirm-source", slowVerb, alone(ref), nil)
}

// AwaitReturn implements migration.SourceColdVerbs.
func (c *Client) AwaitReturn(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "await-return", quickVerb, alone(ref), nil)
}

// CancelReturn implements migration.SourceColdVerbs.
func (c *Client) CancelReturn(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "cancel-return", quickVerb, alone(ref), nil)
}

// FinishRevert implements migration.SourceColdVerbs.
func (c *Client) FinishRevert(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "finish-revert", slowVerb, alone(ref), nil)
}

// PrepResize implements migration.DestinationColdVerbs.
func (c *Client) PrepResize(ctx context.Context, ref migration.Ref, p migration.PrepRequest) (out migration.PreparedCold, err error) {
	return out, orPlainer(func() error { return c.cold(ctx, "prep-resize", slowVerb, with(ref, p), &out) }, func() (changed bool) {
		p.Guest, changed = plainGuest(p.Guest)
		return changed
	})
}

// RollbackPrepResize implements migration.DestinationColdVerbs.
func (c *Client) RollbackPrepResize(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "rollback-prep-resize", slowVerb, alone(ref), nil)
}

// AcceptHanded implements migration.DestinationColdVerbs.
func (c *Client) AcceptHanded(ctx context.Context, ref migration.Ref, m migration.Commit) error {
	return c.cold(ctx, "accept-handed", quickVerb, with(ref, m), nil)
}

// FinishResize implements migration.DestinationColdVerbs.
func (c *Client) FinishResize(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "finish-resize", slowVerb, alone(ref), nil)
}

// ConfirmDestination implements migration.DestinationColdVerbs.
func (c *Client) ConfirmDestination(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "confirm-destination", quickVerb, alone(ref), nil)
}

// CleanUpReverted implements migration.DestinationColdVerbs.
func (c *Client) CleanUpReverted(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "clean-up-reverted", slowVerb, alone(ref), nil)
}

// PrepChange implements migration.InPlaceVerbs.
func (c *Client) PrepChange(ctx context.Context, ref migration.Ref, p migration.PrepRequest) error {
	return orPlainer(func() error { return c.cold(ctx, "prep-change", slowVerb, with(ref, p), nil) }, func() (changed bool) {
		p.Guest, changed = plainGuest(p.Guest)
		return changed
	})
}

// RollbackPrepChange implements migration.InPlaceVerbs.
func (c *Client) RollbackPrepChange(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "rollback-prep-change", slowVerb, alone(ref), nil)
}

// ApplyChange implements migration.InPlaceVerbs.
func (c *Client) ApplyChange(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "apply-change", slowVerb, alone(ref), nil)
}

// UnapplyChange implements migration.InPlaceVerbs.
func (c *Client) UnapplyChange(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "unapply-change", slowVerb, alone(ref), nil)
}

// StartChanged implements migration.InPlaceVerbs.
func (c *Client) StartChanged(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "start-changed", slowVerb, alone(ref), nil)
}

// FinishChange implements migration.InPlaceVerbs.
func (c *Client) FinishChange(ctx context.Context, ref migration.Ref) error {
	return c.cold(ctx, "finish-change", slowVerb, alone(ref), nil)
}
