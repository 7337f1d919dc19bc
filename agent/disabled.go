package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
	"berth/migration/operation"
)

// keyDisabled is the record of who took this host out of the choice of hosts for
// new guests, and why; absent while it takes them.
const keyDisabled = "disabled"

// loadDisabled reads the record. One that cannot be read disables: a host that was
// disabled must not get guests because of it.
func (a *Agent) loadDisabled(ctx context.Context) {
	raw, found, err := a.db.Get(ctx, store.BucketAgent, keyDisabled)
	if err == nil && !found {
		return
	}
	var d api.Disabled
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err != nil {
		err = fmt.Errorf("read whether this host is disabled: %w", err)
		a.faults.note(partDisabled, err)
		d = api.Disabled{Reason: err.Error(), By: "berth", At: a.rt.Now()}
	}
	a.disabled.Store(&d)
}

// SetHost implements api.Agent.
func (s agentService) SetHost(ctx context.Context, r api.SetHost) (api.HostState, error) {
	a := s.a
	doing := "set host " + a.name
	if r.Disabled != nil {
		if a.observing() {
			return api.HostState{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
				Code: "mode_observe", Message: "host " + a.name + " only observes", Have: "observe", Want: "manage",
				Change: `set [agent] mode = "manage" on ` + a.name,
			})
		}
		if err := a.setDisabled(ctx, doing, *r.Disabled, strings.TrimSpace(r.Reason)); err != nil {
			return api.HostState{}, err
		}
	}
	return api.HostState{Name: a.name, Disabled: a.disabled.Load()}, nil
}

func (a *Agent) setDisabled(ctx context.Context, doing string, disabled bool, reason string) error {
	a.settingHost.Lock()
	defer a.settingHost.Unlock()
	now := a.disabled.Load()
	switch {
	case !disabled && now == nil:
		return nil
	case !disabled:
		if err := a.enable(ctx, api.CallerName(ctx)); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	case reason == "":
		return fault.Refuse(fault.Invalid, doing, fault.Reason{
			Code: "reason_missing", Message: "to disable a host a reason must be given", Change: "say why, for other operators",
		})
	case now != nil && now.Reason == reason:
		return nil // said again
	default:
		if err := a.disable(ctx, &api.Disabled{Reason: reason, By: api.CallerName(ctx), At: a.rt.Now()}); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	}
}

// disable keeps new guests away. Called with settingHost held.
func (a *Agent) disable(ctx context.Context, d *api.Disabled) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("write why this host is disabled: %w", err)
	}
	if err := a.db.Put(ctx, store.BucketAgent, keyDisabled, raw); err != nil {
		return err
	}
	a.disabled.Store(d)
	a.log.Info("host disabled: it gets no new guests", "by", d.By, "reason", d.Reason)
	a.reporter.Kick()
	return nil
}

// enable lets new guests come again. Called with settingHost held, on a host that is disabled.
func (a *Agent) enable(ctx context.Context, by string) error {
	was := a.disabled.Load()
	if err := a.db.Delete(ctx, store.BucketAgent, keyDisabled); err != nil {
		return err
	}
	a.disabled.Store(nil)
	a.log.Info("host enabled: it takes new guests", "by", by, "was_disabled_by", was.By, "reason", was.Reason)
	a.reporter.Kick()
	return nil
}

// refuseDisabled refuses a new guest on a host that is disabled.
func (a *Agent) refuseDisabled(doing string) error {
	d := a.disabled.Load()
	if d == nil {
		return nil
	}
	return fault.Refuse(fault.Forbidden, doing, fault.Reason{
		Code: "host_disabled", Message: "host " + a.name + " is disabled for new guests: " + d.Reason, Have: d.By,
		Change: "choose another host, or enable it: berth host set --enable -c " + a.name,
	})
}

func whyDisabled(d *api.Disabled) string {
	if d == nil {
		return ""
	}
	return d.Reason
}

// verbs are the host verbs as other hosts ask them. A host that is disabled refuses
// a move to it at its first question, also where an operator has named the host, as
// Nova does since microversion 2.68; a move that has its claim goes on.
type verbs struct {
	migration.Host
	a *Agent
}

// Ask implements migration.Host. A host that only observes gives no instance away, whoever
// conducts; what began before goes on.
func (v verbs) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	switch op.Name {
	case operation.CheckDestination.Name:
		if len(v.a.tracker.ByMigration(ref.Migration)) == 0 {
			if err := v.a.refuseDisabled("check that instance " + ref.Instance + " can come to " + v.a.name); err != nil {
				return nil, err
			}
		}
	case operation.RecordContext.Name:
		if _, begun := v.a.tracker.Context(ref.Migration); !begun && v.a.observing() {
			return nil, fault.Refuse(fault.Forbidden, "let instance "+ref.Instance+" leave "+v.a.name, observes(v.a.name))
		}
	}
	return v.Host.Ask(ctx, ref, op, in)
}
