package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"berth/driver"
	"berth/topology"
)

// How changes are waited for. Together with what a reading takes (0.15 s on a host
// of 64 cells) they keep ledger and inventory within two seconds of the machine.
const (
	// settleQuiet is how long nothing more may be told before it is read: plugging
	// one card, or making its virtual functions, tells dozens of things.
	settleQuiet = 100 * time.Millisecond
	// settleMost is how long after the first it is read however much is told.
	settleMost = 500 * time.Millisecond
	// poolsEvery is how often the pools of huge pages are looked at.
	poolsEvery = time.Second
	// heldEvery is how often it is looked at which devices guests have.
	heldEvery = time.Second
	// doubtfulFirst is when a reading that was not sound is made again, for the
	// first time; each time after that it is twice as long, up to
	// [host] discover_interval. The kernel may take seconds to bring memory or a
	// card, and tells nobody when all its files agree again.
	doubtfulFirst = 500 * time.Millisecond
	// devicesPause is how long after libvirt could not be asked for its devices'
	// events it is asked again, for the first time, and devicesPauseMost the longest
	// such pause: a hypervisor that knows no such events may be exchanged for one
	// that does. Both are arbitrary.
	devicesPause, devicesPauseMost = 2 * time.Second, time.Minute
)

// tell says that the machine changed, or may have. It does not block.
func (h *hardware) tell() {
	h.heard.Add(1)
	select {
	case h.news <- struct{}{}:
	default: // one is waiting, and what is read then has this in it too
	}
}

// run reads the hardware again after each change that it is told of, and slowly
// behind that, until ctx ends.
func (h *hardware) run(ctx context.Context) error {
	slow := func() time.Duration { return h.a.config().Host.DiscoverEvery.D() }
	doubtful := doubtfulFirst
	for {
		wait := slow()
		if !h.sound() {
			wait, doubtful = min(doubtful, wait), min(2*doubtful, wait)
		} else {
			doubtful = doubtfulFirst
		}
		told, ok := h.pause(ctx, wait)
		if !ok {
			return nil
		}
		if told {
			doubtful = doubtfulFirst
			if !h.settle(ctx) {
				return nil
			}
		}
		h.follow(ctx, told || wait < slow())
	}
}

// follow reads once and lets ledger, audit and Placement follow.
func (h *hardware) follow(ctx context.Context, quick bool) {
	start := h.a.rt.Boot().Since
	before, _, unsure := h.view()
	changes := h.read(ctx, quick)
	after, _, why := h.view()
	for _, r := range why {
		if len(unsure) == 0 {
			h.a.log.Warn("the hardware is not believed to be what was read", "code", r.Code, "reason", r.Message)
		}
	}
	if len(changes) > 0 {
		h.a.log.Info("hardware changed", "changes", strings.Join(changes, "; "), "took", h.a.rt.Boot().Since-start)
	}
	if len(changes) > 0 || before == nil && after != nil {
		h.a.reporter.Kick()
	}
	// What guests hold and the host has no more is named now, not at the next audit.
	if len(changes) > 0 && h.a.health != nil {
		h.a.health.audit()
	}
}

// sound says that the last reading had no fault.
func (h *hardware) sound() bool {
	_, now, why := h.view()
	return now != nil && len(why) == 0 && now.Health == topology.HealthOK
}

// settle waits until the machine is quiet, or has not been for too long; false
// when ctx ended. What is told from here on is read again.
func (h *hardware) settle(ctx context.Context) bool {
	for waited := time.Duration(0); waited < settleMost; waited += settleQuiet {
		heard := h.heard.Load()
		if h.a.rt.Sleep(ctx, settleQuiet) != nil {
			return false
		}
		if h.heard.Load() == heard {
			break
		}
	}
	select {
	case <-h.news:
	default:
	}
	return true
}

// pause waits for the time to be over or for something to be told; ok is false
// when ctx ended.
func (h *hardware) pause(ctx context.Context, d time.Duration) (told, ok bool) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan struct{})
	h.a.rt.Go("hardware pause", func() {
		defer close(over)
		// Its end is all that is wanted; why it ended is asked of ctx below.
		_ = h.a.rt.Sleep(waiting, d)
	})
	select {
	case <-over:
	case <-h.news:
		told = true
		stop()
		<-over
	}
	return told, ctx.Err() == nil
}

// runPools looks at the sizes of the pools of huge pages, of which the kernel
// sends no event, until ctx ends.
func (h *hardware) runPools(ctx context.Context) error {
	if h.pools == nil {
		<-ctx.Done()
		return nil
	}
	for h.a.rt.Sleep(ctx, poolsEvery) == nil {
		if h.pools.Changed() {
			h.tell()
		}
	}
	return nil
}

// runHeld looks at which devices guests have and tells the reporter when that
// changed, until ctx ends: on it depends what is reserved in Placement of a card's
// other side and of the other functions of an IOMMU group, and a stale reserve
// refuses what the claim lock gives.
func (h *hardware) runHeld(ctx context.Context) error {
	held := h.devicesHeld()
	for h.a.rt.Sleep(ctx, heldEvery) == nil {
		if now := h.devicesHeld(); !slices.Equal(now, held) {
			held = now
			h.a.reporter.Kick()
		}
	}
	return nil
}

// devicesHeld are the functions and mediated devices that claims hold, ascending.
func (h *hardware) devicesHeld() []string {
	var out []string
	for _, c := range h.a.tracker.List() {
		for _, d := range c.Assignment.Devices {
			out = append(out, d.Address.String())
		}
		out = append(out, c.Assignment.Mdevs...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (h *hardware) close() error {
	if h.pools == nil {
		return nil
	}
	return h.pools.Close()
}

// runDevices listens to the hypervisor's daemon, which hears of devices from udev
// where the kernel's events do not reach the agent, until ctx ends. What it says
// is a hint: the files decide.
func (h *hardware) runDevices(ctx context.Context) error {
	told, pause := "", devicesPause
	for ; ; pause = min(2*pause, devicesPauseMost) {
		// An absent daemon is said elsewhere, and costs nothing to ask after. At the
		// start it is there within milliseconds.
		for wait := devicesPause / 64; h.a.driver.Health() != nil; wait = min(2*wait, devicesPause) {
			if h.a.rt.Sleep(ctx, wait) != nil {
				return nil
			}
		}
		events, err := h.deviceEvents(ctx)
		if err == nil {
			told, pause = "", devicesPause
			h.tell() // what came before this stream was told to nobody
			for e := range events {
				if ofInterest(e) {
					h.tell()
				}
			}
		} else if err.Error() != told && ctx.Err() == nil {
			told = err.Error()
			h.a.log.Info("no events of devices from the hypervisor: the kernel's and re-reading serve", "error", err)
		}
		if h.a.rt.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

func (h *hardware) deviceEvents(ctx context.Context) (<-chan driver.DeviceEvent, error) {
	asking, cancel := h.a.rt.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	node, err := h.a.driver.Node(asking)
	if err != nil {
		return nil, err
	}
	watcher, err := driver.Devices(h.a.driver, node)
	if err != nil {
		return nil, err
	}
	return watcher.DeviceEvents(ctx)
}

// ofInterest leaves out devices that come and go by the hundred, with containers,
// disks and keyboards, and change nothing of what is reported: a card's virtual
// functions are told as PCI devices too.
func ofInterest(e driver.DeviceEvent) bool {
	for _, kind := range []string{"block_", "net_", "usb_", "drm_", "scsi_generic_"} {
		if strings.HasPrefix(e.Name, kind) {
			return false
		}
	}
	return true
}
