package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/claims"
	"berth/claims/pci"
	"berth/hwdiscovery"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/stuck"
	"berth/migration"
	"berth/topology"
)

// Records of this package in the store.
const (
	keyTopology = "topology" // the last good reading
	keyBoot     = "boot"     // the machine's boot (its id) in which that was made
	keyDisk     = "disk_gb"  // the last size of the filesystem of guests' disks, GiB
	keyRatios   = "ratios"   // the last ratios that Placement and the configuration came to
	keyReported = "reported" // what was given to Placement: reporter.Remembered
)

// hardware keeps the reading of the hardware that is believed, and the capacity
// that follows from it.
//
// One path leads from the machine to ledger and inventory: whoever hears of a
// change tells it (hardwarewatch.go), run reads everything again, what is believed
// of that (hardwarebelief.go) is applied, and what it changed is said
// (hardwarechanges.go).
type hardware struct {
	a     *Agent
	news  chan struct{} // something changed; holds one, which serves all
	heard atomic.Uint64 // how often it was told that something changed

	// pools is looked at by runPools alone; nil where the root cannot be opened.
	pools *hwdiscovery.Watch

	// applying is held from the look at what is believed until the ledger has it, so
	// that the newest is applied last. mu and the ledger's lock are taken under it.
	applying sync.Mutex

	// mu guards what follows. Nothing blocks under it.
	mu     sync.Mutex
	now    *topology.Host // as last read; nil when it could not be
	good   *topology.Host // what is believed; nil on a first start without a good reading
	past   bool           // good was read before the machine was booted
	arch   string
	disk   *int64         // GiB, as last read; nil when it never could be
	why    []fault.Reason // why now is not believed, or what it lacks
	ratios inventory.Ratios
	// shape is the tree's in Placement as last reported; empty before. The wanted one
	// may have to wait.
	shape inventory.Shape

	remarks []fault.Reason // on how the configuration goes with the machine

	// lost are the functions of which the kernel said that they do not work, and
	// what it said (see runUevents).
	lost map[topology.PCIAddress]string
}

func newHardware(a *Agent) *hardware {
	h := &hardware{a: a, arch: machine(), news: make(chan struct{}, 1), lost: map[topology.PCIAddress]string{}}
	ctx := context.Background()
	// Before the first reading: what changes after it is noticed.
	var err error
	if h.pools, err = hwdiscovery.NewWatch(a.config().Host.Root); err != nil {
		a.log.Warn("pools of huge pages are not watched", "error", err)
	}
	// Records that cannot be read are as none: the next good reading replaces them.
	if raw, ok, err := a.db.Get(ctx, store.BucketAgent, keyTopology); err == nil && ok {
		var good topology.Host
		if json.Unmarshal(raw, &good) == nil {
			h.good = &good
		}
	}
	var boot string
	if raw, ok, err := a.db.Get(ctx, store.BucketAgent, keyBoot); err == nil && ok {
		// What does not decode is another boot.
		_ = json.Unmarshal(raw, &boot)
	}
	h.past = boot != a.rt.Boot().ID
	if raw, ok, err := a.db.Get(ctx, store.BucketAgent, keyDisk); err == nil && ok {
		var gb int64
		if json.Unmarshal(raw, &gb) == nil {
			h.disk = &gb
		}
	}
	if raw, ok, err := a.db.Get(ctx, store.BucketAgent, keyRatios); err == nil && ok {
		// What does not decode leaves zeros, which are "unset".
		_ = json.Unmarshal(raw, &h.ratios)
	}
	return h
}

// reported reads what the reporter has to remember. Without it things of Berth's that
// are not wanted any more stay in Placement, which harms nobody and is told.
func (a *Agent) reported(ctx context.Context) reporter.Remembered {
	var out reporter.Remembered
	raw, found, err := a.db.Get(ctx, store.BucketAgent, keyReported)
	if err == nil && found {
		if err = json.Unmarshal(raw, &out); err != nil {
			out = reporter.Remembered{}
		}
	}
	if err != nil {
		a.faults.note(partReported, fmt.Errorf("read what was reported to placement: %w", err))
	}
	return out
}

func (a *Agent) keepReported(ctx context.Context, r reporter.Remembered) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return a.db.Put(ctx, store.BucketAgent, keyReported, raw)
}

// machine is the kernel's name of the architecture.
func machine() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Machine[:])
}

// read reads the hardware once, decides what of it is believed (law 7: a read
// error never becomes a smaller host), and makes the ledger follow. It gives what
// that changed. quick leaves out what takes long and seldom changes.
func (h *hardware) read(ctx context.Context, quick bool) []string {
	c := h.a.config()
	options := []hwdiscovery.Option{hwdiscovery.WithLog(h.a.log)}
	if before, _, _ := h.view(); quick && before != nil {
		options = append(options, hwdiscovery.WithSerialNumbersOf(before))
	}
	got, err := hwdiscovery.Discover(c.Host.Root, options...)
	disk, diskErr := stuck.Read(&h.a.calls, c.Host.DiskPath, func() (int64, error) { return diskGB(c.Host.DiskPath) })

	h.mu.Lock()
	var why []fault.Reason
	was, now, good := h.good, (*topology.Host)(nil), h.good
	if err != nil {
		why = append(why, fault.Reason{Code: "hardware_unreadable", Message: err.Error(), Change: "repair what cannot be read; it is read again by itself"})
	} else {
		now = &got
		h.blameLocked(now)
		measure := good
		if h.past {
			measure = nil
		}
		why = append(why, doubts(now, measure)...)
		if len(why) == 0 {
			good = now
		}
	}
	resized := false
	if diskErr == nil {
		resized = h.disk == nil || *h.disk != disk
		h.disk = &disk
	} else if reasons := fault.ReasonsOf(diskErr); len(reasons) > 0 {
		why = append(why, reasons...) // its file system does not answer
	} else {
		why = append(why, fault.Reason{Code: "disk_unreadable", Message: diskErr.Error(), Change: "set [host] disk_path to the folder of guests' disks"})
	}
	first := good != was && (was == nil || h.past)
	h.now, h.good, h.why, h.past = now, good, why, h.past && good == was
	h.mu.Unlock()

	var changes []string
	if good != was {
		changes = differences(was, good)
	}
	if first || len(changes) > 0 {
		h.keep(ctx, keyTopology, good)
	}
	if first {
		h.keep(ctx, keyBoot, h.a.rt.Boot().ID)
	}
	if resized {
		h.keep(ctx, keyDisk, disk)
		changes = append(changes, fmt.Sprintf("filesystem of guests' disks %d GiB", disk))
	}
	h.apply()
	return changes
}

// keep writes a record; that it could not is no reason to stop, since all it is
// for is the next start.
func (h *hardware) keep(ctx context.Context, key string, v any) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = h.a.db.Put(ctx, store.BucketAgent, key, raw)
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
	h.applying.Lock()
	defer h.applying.Unlock()
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
	h.setCapacityApplying(in, inventory.Compute(h.asStands(in), nil))
	// After the sums: what is put back is counted in them.
	if err := errors.Join(h.a.ledger.state(), h.a.faults.held()); err != nil {
		h.a.tracker.Refuse(err.Error())
		return
	}
	h.a.tracker.Allow()
}

// asStands gives the input of a report in the shape that Placement has.
func (h *hardware) asStands(in inventory.Input) inventory.Input {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shape != "" {
		in.Shape = h.shape
	}
	return in
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
	h.mu.Lock()
	changed := h.ratios != r.Capacity.Ratios
	h.ratios, h.shape = r.Capacity.Ratios, r.Tree.Shape
	h.mu.Unlock()
	h.applying.Lock()
	// The report may be of what was believed before Placement answered: of it only
	// the ratios are taken, which are Placement's.
	if in, known, _ := h.input(); known {
		now := inventory.Compute(h.asStands(in), nil)
		now.Capacity.Ratios = r.Capacity.Ratios
		h.setCapacityApplying(in, now)
	}
	h.applying.Unlock()
	if changed {
		h.keep(context.Background(), keyRatios, r.Capacity.Ratios)
	}
}

// setCapacityApplying gives the ledger what is believed. Its caller has held
// applying since it asked for in.
func (h *hardware) setCapacityApplying(in inventory.Input, r inventory.Report) {
	_, now, _ := h.view()
	believed, c := in.Host, r.Capacity
	machine, remarks := machineOf(h.a.config(), r.Cells, believed, now)
	machine.Unusable = append(machine.Unusable, missing(believed, now)...)
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
	c, holding, config := h.a.config(), h.holding(), h.a.providerConfig.Load()
	var held []inventory.Held
	for _, claim := range h.a.tracker.List() {
		held = append(held, heldOf(claim))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.good == nil || h.disk == nil {
		words := "it has not been read yet"
		if len(h.why) > 0 {
			words = h.why[0].Message
		}
		return inventory.Input{}, false, words
	}
	devices, _ := pci.Devices(h.good, c.PCI.DeviceSpec)
	in := inventory.Input{
		UUID: h.a.uuid, Name: h.a.name,
		Host: h.good, Arch: h.arch, DiskGB: *h.disk, Cells: cellOptions(c),
		Reserved: topology.Resources{VCPUs: c.Host.ReservedVCPUs, MemoryMB: c.Host.ReservedMemoryMB, DiskGB: c.Host.ReservedDiskGB},
		Fixed:    inventory.Ratios{CPU: c.Placement.CPURatio, RAM: c.Placement.RAMRatio, Disk: c.Placement.DiskRatio},
		Initial:  inventory.Ratios{CPU: c.Placement.InitialCPURatio, RAM: c.Placement.InitialRAMRatio, Disk: c.Placement.InitialDiskRatio},
		Holding:  holding, Hypervisor: h.a.hypervisor.view(),
		Shape: inventory.Shape(c.Placement.NUMA), Disabled: h.a.disabled.Load() != nil,
		Devices: devices, Held: held,
	}
	for _, m := range c.Devices.MdevTypes {
		in.Mdev = append(in.Mdev, inventory.EnabledMdev{Type: m.Type, Parents: m.Addresses, Class: m.Class, Max: m.Max})
	}
	if h.now != nil {
		in.Unusable = append(in.Unusable, inventory.UnusableOf(h.now)...)
		for _, u := range missing(h.good, h.now) {
			in.Unusable = append(in.Unusable, inventory.Unusable(u))
		}
	}
	if config != nil {
		in.Config = config.providers
	}
	return in, true, ""
}

// heldOf is what a claim holds, for the tree of providers.
func heldOf(c claims.Claim) inventory.Held {
	held := inventory.Held{Resources: c.Resources, Assignment: c.Assignment, Consumer: c.Owner.Instance}
	return held
}

// heldBy gives what the guest of a consumer holds by its claim.
func (h *hardware) heldBy(consumer string) (inventory.Held, bool) {
	for _, c := range h.a.tracker.ByInstance(consumer) {
		if c.Owner.Migration == "" {
			return heldOf(c), true
		}
	}
	return inventory.Held{}, false
}

// holding says that a move has a half on this host, or will have: one that this
// agent conducts from the moment on that it is journaled.
func (h *hardware) holding() bool {
	if len(h.a.tracker.Contexts()) > 0 || h.conducting() {
		return true
	}
	for _, c := range h.a.tracker.List() {
		if c.Owner.Migration != "" {
			return true
		}
	}
	return false
}

// conducting says that one of the conductor's moves is not over.
func (h *hardware) conducting() bool {
	if h.a.conductor == nil {
		return false // while the parts are being made
	}
	list, err := h.a.conductor.List(context.Background())
	// What cannot be told may be one.
	return err != nil || slices.ContainsFunc(list, func(m migration.Migration) bool { return !m.Done() })
}

// moving says that a consumer is a migration's whose story is not over.
func (h *hardware) moving(consumer string) bool {
	if len(h.a.tracker.ByMigration(consumer)) > 0 {
		return true
	}
	if h.a.conductor == nil {
		return false // while the parts are being made
	}
	m, err := h.a.conductor.Get(context.Background(), consumer)
	// What cannot be told may be one.
	return err == nil && !m.Done() || err != nil && !errors.Is(err, fault.NotFound)
}

// isMigration says that a consumer is a migration's, over or not.
func (h *hardware) isMigration(consumer string) bool {
	if _, known := h.a.tracker.Context(consumer); known || h.a.conductor == nil {
		return known
	}
	_, err := h.a.conductor.Get(context.Background(), consumer)
	return err == nil
}

// view gives what is believed, what was read, and why they differ.
func (h *hardware) view() (good, now *topology.Host, why []fault.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.good, h.now, h.why
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
