package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/inventory"
	"berth/hwdiscovery"
	"berth/internal/fault"
	"berth/topology"
)

// Records of this package in the store.
const (
	bucketAgent = "agent"
	keyTopology = "topology" // the last good reading
	keyDisk     = "disk_gb"  // the last size of the filesystem of guests' disks, GiB
	keyRatios   = "ratios"   // the last ratios that Placement and the configuration came to
)

// hardware keeps the reading of the hardware that is believed, and the capacity
// that follows from it.
type hardware struct {
	a       *Agent
	changed chan struct{} // the kernel told of a change

	// mu guards what follows. Nothing blocks under it.
	mu     sync.Mutex
	now    *topology.Host // as last read; nil when it could not be
	good   *topology.Host // what is believed; nil on a first start without a good reading
	arch   string
	disk   *int64         // GiB, as last read; nil when it never could be
	why    []fault.Reason // why now is not believed, or what it lacks
	ratios inventory.Ratios

	remarks []fault.Reason // on how the configuration goes with the machine
}

func newHardware(a *Agent) *hardware {
	h := &hardware{a: a, arch: machine(), changed: make(chan struct{}, 1)}
	ctx := context.Background()
	// Records that cannot be read are as none: the next good reading replaces them.
	if raw, ok, err := a.db.Get(ctx, bucketAgent, keyTopology); err == nil && ok {
		var good topology.Host
		if json.Unmarshal(raw, &good) == nil {
			h.good = &good
		}
	}
	if raw, ok, err := a.db.Get(ctx, bucketAgent, keyDisk); err == nil && ok {
		var gb int64
		if json.Unmarshal(raw, &gb) == nil {
			h.disk = &gb
		}
	}
	if raw, ok, err := a.db.Get(ctx, bucketAgent, keyRatios); err == nil && ok {
		// What does not decode leaves zeros, which are "unset".
		_ = json.Unmarshal(raw, &h.ratios)
	}
	return h
}

// machine is the kernel's name of the architecture.
func machine() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Machine[:])
}

// read reads the hardware once and decides what of it is believed (law 7: a read
// error never becomes a smaller host).
func (h *hardware) read(ctx context.Context) {
	c := h.a.config()
	got, err := hwdiscovery.Discover(c.Host.Root)
	disk, diskErr := diskGB(c.Host.DiskPath)

	h.mu.Lock()
	var why []fault.Reason
	good := h.good
	if err != nil {
		h.now = nil
		why = append(why, fault.Reason{Code: "hardware_unreadable", Message: err.Error(), Change: "repair what cannot be read; it is read again by itself"})
	} else {
		h.now = &got
		why = append(why, doubts(&got, good)...)
		if len(why) == 0 {
			good = &got
		}
	}
	resized := false
	if diskErr == nil {
		resized = h.disk == nil || *h.disk != disk
		h.disk = &disk
	} else {
		why = append(why, fault.Reason{Code: "disk_unreadable", Message: diskErr.Error(), Change: "set [host] disk_path to the folder of guests' disks"})
	}
	changed := good != h.good
	h.good, h.why = good, why
	h.mu.Unlock()

	if changed {
		h.keep(ctx, keyTopology, good)
	}
	if resized {
		h.keep(ctx, keyDisk, disk)
	}
	h.apply()
}

// doubts says why a reading may not replace the last good one; none for one that
// may.
func doubts(got, good *topology.Host) []fault.Reason {
	var out []fault.Reason
	for _, r := range got.Reasons {
		// A file of one device takes no cell's CPUs or memory away.
		if r.Degrades && r.Device == nil && strings.HasPrefix(r.Code, "file_") {
			out = append(out, fault.Reason{Code: r.Code, Message: r.File + ": " + r.Message, Change: "repair what cannot be read; it is read again by itself"})
		}
	}
	if got.Health == topology.HealthDegraded && good != nil &&
		(got.CPUs().Len() < good.CPUs().Len() || got.MemoryBytes() < good.MemoryBytes()) {
		for _, r := range got.Reasons {
			if r.Degrades {
				out = append(out, fault.Reason{Code: r.Code, Message: r.Message, Change: "repair it, or restart the agent after a change of the machine"})
			}
		}
	}
	return out
}

// keep writes a record; that it could not is no reason to stop, since all it is
// for is the next start.
func (h *hardware) keep(ctx context.Context, key string, v any) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = h.a.db.Put(ctx, bucketAgent, key, raw)
	}
	if err != nil {
		h.a.log.Warn("not kept for the next start", "record", key, "error", err)
	}
}

// apply makes the claim tracker follow what is believed.
func (h *hardware) apply() {
	if h.a.stopping.Load() {
		return // claims are refused, and stay so
	}
	in, known, why := h.input()
	if !known {
		h.a.tracker.Refuse("this host is not known: " + why)
		return
	}
	if err := h.a.foreign.Load(); err != nil {
		h.a.tracker.Refuse((*err).Error())
		return
	}
	in.Initial = firstSet(h.lastRatios(), in.Initial)
	h.setCapacity(inventory.Compute(in, nil, nil).Capacity)
	h.a.tracker.Allow()
}

func (h *hardware) lastRatios() inventory.Ratios {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ratios
}

func firstSet(a, b inventory.Ratios) inventory.Ratios {
	pick := func(x, y float64) float64 {
		if x > 0 {
			return x
		}
		return y
	}
	return inventory.Ratios{CPU: pick(a.CPU, b.CPU), RAM: pick(a.RAM, b.RAM), Disk: pick(a.Disk, b.Disk)}
}

// found is told each report that the reporter computes: claims are fitted in
// the same amounts that Placement gives away.
func (h *hardware) found(r inventory.Report) {
	h.setCapacity(r.Capacity)
	h.mu.Lock()
	changed := h.ratios != r.Capacity.Ratios
	h.ratios = r.Capacity.Ratios
	h.mu.Unlock()
	if changed {
		h.keep(context.Background(), keyRatios, r.Capacity.Ratios)
	}
}

func (h *hardware) setCapacity(c inventory.Capacity) {
	believed, now, _ := h.view()
	machine, remarks := machineOf(h.a.config(), believed, now)
	machine.Total, machine.Reserved = c.Total, c.Reserved
	machine.CPURatio, machine.RAMRatio, machine.DiskRatio = c.Ratios.CPU, c.Ratios.RAM, c.Ratios.Disk
	h.a.tracker.SetCapacity(machine)
	h.mu.Lock()
	h.remarks = remarks
	h.mu.Unlock()
}

// notes are remarks on how the configuration goes with the machine.
func (h *hardware) notes() []fault.Reason {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remarks
}

// input is what the host is now, for the reporter.
func (h *hardware) input() (inventory.Input, bool, string) {
	if err := h.a.estranged(); err != nil {
		return inventory.Input{}, false, err.Error()
	}
	c := h.a.config()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.good == nil || h.disk == nil {
		words := "it has not been read yet"
		if len(h.why) > 0 {
			words = h.why[0].Message
		}
		return inventory.Input{}, false, words
	}
	return inventory.Input{
		Host: h.good, Arch: h.arch, DiskGB: *h.disk, Cells: cellOptions(c),
		Reserved: topology.Resources{VCPUs: c.Host.ReservedVCPUs, MemoryMB: c.Host.ReservedMemoryMB, DiskGB: c.Host.ReservedDiskGB},
		Fixed:    inventory.Ratios{CPU: c.Placement.CPURatio, RAM: c.Placement.RAMRatio, Disk: c.Placement.DiskRatio},
		Initial:  inventory.Ratios{CPU: c.Placement.InitialCPURatio, RAM: c.Placement.InitialRAMRatio, Disk: c.Placement.InitialDiskRatio},
		Holding:  h.holding(),
	}, true, ""
}

// holding says that a move has a half on this host.
func (h *hardware) holding() bool {
	if len(h.a.tracker.Contexts()) > 0 {
		return true
	}
	for _, c := range h.a.tracker.List() {
		if c.Owner.Migration != "" {
			return true
		}
	}
	return false
}

// view gives what is believed, what was read, and why they differ.
func (h *hardware) view() (good, now *topology.Host, why []fault.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.good, h.now, h.why
}

// run reads the hardware again after each change that the kernel tells of, and
// slowly behind that, until ctx ends.
func (h *hardware) run(ctx context.Context) error {
	for h.pause(ctx, h.a.config().Host.DiscoverEvery.D()) {
		before, _, _ := h.view()
		h.read(ctx)
		if after, _, _ := h.view(); after != before {
			h.a.reporter.Kick()
		}
	}
	return nil
}

// pause waits for the time to be over or a change to have settled; false when
// ctx ended.
func (h *hardware) pause(ctx context.Context, d time.Duration) bool {
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
	case <-h.changed:
		stop()
		<-over
		if h.a.rt.Sleep(ctx, settleTime) != nil {
			return false
		}
		select {
		case <-h.changed: // what came while it settled is read with it
		default:
		}
	}
	return ctx.Err() == nil
}

// diskGB is the size of the filesystem that a folder is on, GiB rounded down. A
// folder that is not there yet will be made on its nearest parent's.
func diskGB(path string) (int64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		switch {
		case err == nil:
			bytes := st.Blocks * uint64(st.Bsize)
			return int64(min(bytes, math.MaxInt64) >> 30), nil
		case !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path):
			return 0, fmt.Errorf("read the size of the filesystem of %s: %w", path, err)
		}
		path = filepath.Dir(path)
	}
}
