package agent

import (
	"context"
	"reflect"
	"time"

	"berth/agent/host"
	"berth/internal/runtime"
)

const (
	// oldDisksEvery is how often it is asked who uses old disks, while there are any. Arbitrary: it reads all definitions.
	oldDisksEvery = time.Minute
	// oldDisksAsk bounds one such question. Arbitrary: the round that it is part of has other work.
	oldDisksAsk = 5 * time.Second
)

// oldDisks are the files of evacuated instances that an operator may remove here.
type oldDisks struct {
	kept     []host.OldDisks // when it was last asked who uses them
	again    time.Duration   // since boot: when it is asked again
	unused   []host.OldDisks
	remedies map[string]string // by path
}

// look gives them as they are now. None is named while the hypervisor does not say who uses them.
func (o oldDisks) look(ctx context.Context, rt runtime.Runtime, h *host.Host) (oldDisks, error) {
	kept, err := host.KeptOldDisks(ctx, h)
	if err != nil {
		return o, err
	}
	now := rt.Boot().Since
	if now < o.again && reflect.DeepEqual(kept, o.kept) {
		return o, nil
	}
	ctx, cancel := rt.WithTimeout(ctx, oldDisksAsk)
	defer cancel()
	o.kept, o.again = kept, now+oldDisksEvery
	if o.unused, o.remedies, err = host.UnusedOldDisks(ctx, h, kept); err != nil {
		o.unused = nil // the hypervisor's own part of the status tells that it is silent
	}
	return o, nil
}
