package death

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/agent/host/hooks"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/store"
)

// Fence implements api.Deaths. The hooks of phase fence run here, one host's once at a time. When
// each of them has said that the host is off, and its agent does not answer, the death is
// written; before that nothing is, so that a hook which fails or is cut off proves nothing. Only
// success counts: on_failure = "warn" is no proof, and no hooks are none. A hook that was killed
// and may live on stays on record, and the host is not fenced anew before it has ended.
func (d *Proofs) Fence(ctx context.Context, host, by string) (fleet.Death, error) {
	doing := "fence host " + host
	records, h, err := d.dying(ctx, doing, host, false)
	if err != nil {
		return fleet.Death{}, err
	}
	if was, _, found, err := standingDeath(ctx, records, host); found || err != nil {
		return was, fault.Wrap(err, "%s", doing)
	}
	if err := d.begin(doing, host, by); err != nil {
		return fleet.Death{}, err
	}
	defer d.end(host)
	d.o.Logger.Warn("fencing a host", "host", host, "by", by, "boot", h.Boot)
	because, err := d.switchOff(ctx, doing, h, standingOf(ctx, records, host), by)
	if err != nil {
		return fleet.Death{}, err
	}
	death, err := d.write(ctx, declareSeen(records, h), fleet.Death{Host: host, Proof: fleet.ProofFenced, By: by, Because: because, Boot: h.Boot})
	if err != nil {
		return fleet.Death{}, fault.Wrap(err, "%s: its hooks succeeded, and the death is not known to be on record; ask again", doing)
	}
	d.o.Logger.Warn("a host was fenced: its guests can be evacuated", "host", host, "by", by, "boot", death.Boot)
	return death, nil
}

// begin has one fencing of a host at a time.
func (d *Proofs) begin(doing, host, by string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if who, going := d.fencing[host]; going {
		return fault.Refuse(fault.Busy, doing, fault.Reason{
			Code: "fencing", Message: "its fencing hooks are running, asked for by " + who, Have: who, Change: "wait for them",
		})
	}
	if d.fencing == nil {
		d.fencing = map[string]string{}
	}
	d.fencing[host] = by
	return nil
}

func (d *Proofs) end(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.fencing, host)
}

// switchOff runs the hooks, and gives what they said in words.
func (d *Proofs) switchOff(ctx context.Context, doing string, h fleet.Host, lease, by string) (string, error) {
	if err := d.endLeft(ctx, h.Name); err != nil {
		return "", fault.Wrap(err, "%s", doing)
	}
	// Whatever the setting: a hook that failed has not switched it off.
	runner, set := *d.o.Hooks, d.o.Hooks.Setting
	runner.Setting = func(hook string) hooks.Setting {
		var s hooks.Setting
		if set != nil {
			s = set(hook)
		}
		s.OnFailure = hooks.Fail
		return s
	}
	var ran []string
	data, err := runner.Run(ctx, hooks.Request{
		Phase: hooks.Fence, Source: h.Name,
		Context: hooks.Context{Host: &hooks.Host{
			Name: h.Name, ProviderUUID: h.ProviderUUID, HostUUID: h.HostUUID, Boot: h.Boot, UpdatedAt: h.UpdatedAt, Lease: lease,
		}},
	}, func(ctx context.Context, p hooks.Process, _ map[string]json.RawMessage) error {
		ran = append(ran, p.Hook)
		raw, err := json.Marshal(running{Process: p, By: by, At: d.o.Runtime.Now()})
		if err != nil {
			return err
		}
		return d.o.Notes.Put(ctx, store.BucketAgent, keyFencing(h.Name), raw)
	})
	if len(ran) > 0 && !errors.Is(err, hooks.ErrNotEnded) {
		last, cancel := d.o.Runtime.WithTimeout(context.WithoutCancel(ctx), AnswerTimeout)
		defer cancel()
		if err := d.o.Notes.Delete(last, store.BucketAgent, keyFencing(h.Name)); err != nil {
			// Its process is over: whoever reads the record later finds nobody to end.
			d.o.Logger.Warn("the record of a fencing hook that is over could not be removed", "host", h.Name, "error", err)
		}
	}
	if err != nil {
		return "", fault.Wrap(err, "%s", doing)
	}
	if len(ran) == 0 {
		return "", fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "no_fence_hook", Message: "host " + d.o.Host + " has no fencing hook",
			Change: "put one that switches the host named on its standard input off into " + filepath.Join(d.o.Hooks.Dir, hooks.Fence) +
				", ask a host that has one (-c HOST), or give your word: berth host declare-dead " + h.Name + " --reason \"how you know\"",
		})
	}
	if d.o.Answers(ctx, h.Name) == nil {
		return "", fault.Refuse(fault.Forbidden, doing, hostAnswers(h.Name, "its hooks ("+strings.Join(ran, ", ")+") have said that it is off, which is not so: mend them, or wait until it has gone down"))
	}
	return said(ran, data), nil
}

// said is what a fencing leaves in words: which hooks succeeded, and what they answered.
func said(ran []string, data map[string]json.RawMessage) string {
	out := strings.Join(ran, ", ") + " said that it is off"
	for _, name := range slices.Sorted(maps.Keys(data)) {
		out += "; " + name + ": " + string(data[name])
	}
	if len(out) > longestBecause {
		out = strings.ToValidUTF8(out[:longestBecause], "") + "…"
	}
	return out
}

// longestBecause bounds what a hook can put into the records of all hosts. Arbitrary.
const longestBecause = 4096

// write puts a death on record whose proof was had a moment ago, and asks again for a while where
// the store does not answer, also when whoever asked has gone.
func (d *Proofs) write(ctx context.Context, declare func(context.Context, fleet.Death) (fleet.Death, error), death fleet.Death) (fleet.Death, error) {
	ctx, cancel := d.o.Runtime.WithTimeout(context.WithoutCancel(ctx), lastRecord)
	defer cancel()
	for {
		out, err := declare(ctx, death)
		if err == nil || !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.InDoubt) && !errors.Is(err, fault.Busy) {
			return out, err
		}
		if d.o.Runtime.Sleep(ctx, time.Second) != nil {
			return fleet.Death{}, err
		}
	}
}

// FenceHooks names the hooks that this host would fence others with.
func (d *Proofs) FenceHooks() ([]string, error) { return d.o.Hooks.Names(hooks.Fence) }
