package hwdiscovery

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"berth/internal/fault"
	"berth/topology"
)

// Option changes how Discover reads.
type Option func(*options)

type options struct {
	basePageSize topology.PageSize
	skipGHW      bool
	known        *topology.Host
	log          *slog.Logger
}

// WithLog gives a place for what ghw does not tell and warns of, at debug level.
// Without it that is told nowhere.
func WithLog(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithSerialNumbersOf takes the serial numbers of cards from an earlier reading
// where address, vendor and product are the same, because reading one may take a
// card a second. A card that was changed for its like at the same address keeps
// the old one's until a reading without this option. nil for no earlier reading.
func WithSerialNumbersOf(known *topology.Host) Option {
	return func(o *options) { o.known = known }
}

// WithBasePageSize tells the size of an ordinary page. Without it that is the
// kernel's own for the live machine (root "/"), and 4096 for a copied tree,
// which has no file that tells.
func WithBasePageSize(size topology.PageSize) Option {
	return func(o *options) { o.basePageSize = size }
}

// withoutGHW leaves ghw out, for tests of what sysfs alone says.
func withoutGHW() Option { return func(o *options) { o.skipGHW = true } }

// Discover reads the hardware of the host whose /sys and /proc are below root;
// "" and "/" are the live machine. It may block as long as the kernel takes to
// answer (vital product data of a PCI card: up to a second), holds no state, and
// is safe to call from several goroutines.
//
// An error means that there is no Host (kinds: not found, invalid). A Host that
// contradicts itself or misses a mandatory file has HealthDegraded and names
// each fault in Reasons; see the package comment.
func Discover(root string, opts ...Option) (topology.Host, error) {
	if root == "" {
		root = "/"
	}
	o := options{basePageSize: 4096, log: slog.New(slog.DiscardHandler)}
	live := filepath.Clean(root) == "/"
	if live {
		o.basePageSize = topology.PageSize(os.Getpagesize())
	}
	for _, opt := range opts {
		opt(&o)
	}
	if o.basePageSize <= 0 {
		return topology.Host{}, fault.New(fault.Invalid, "discover %s: base page size %d", root, o.basePageSize)
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return topology.Host{}, fault.New(fault.NotFound, "discover %s: open root: %w", root, plain(err))
	}
	defer r.Close()

	host, err := discover(r, root, o)
	if err == nil && live && slices.ContainsFunc(host.Reasons, func(r topology.Reason) bool { return r.Degrades || r.Code == codeGHWDiffers }) {
		// Pools, CPUs and drivers of a running host change between two files. What is
		// still wrong a second time is wrong.
		host, err = discover(r, root, o)
	}
	return host, err
}

// discover reads the tree once.
func discover(r *os.Root, root string, o options) (topology.Host, error) {
	t := &tree{root: r, serials: map[serialKey]string{}}
	if o.known != nil {
		for _, d := range o.known.PCI {
			t.serials[serialKey{d.Address, d.Vendor, d.Product}] = d.SerialNumber
		}
	}
	defer t.close()
	if !o.skipGHW {
		t.readGHW(root, o.log)
	}
	host := topology.Host{BasePageSize: o.basePageSize}
	cpus, err := t.readCPUs()
	if err != nil {
		return topology.Host{}, fault.New(fault.Invalid, "discover %s: %w", root, err)
	}
	host.Cores, host.Packages, host.Dies = cpus.cores, cpus.packages, cpus.dies
	host.OfflineCPUs, host.IsolatedCPUs = cpus.offline, cpus.isolated
	t.readCells(&host, cpus)
	t.readPCI(&host)
	t.readMdevs(&host)
	host.LastLevelCaches = t.readCaches(cpus.online)

	host.Health = topology.HealthOK
	host.Reasons = t.sortedReasons()
	for _, r := range host.Reasons {
		if r.Degrades {
			host.Health = topology.HealthDegraded
		}
	}
	fillEmpty(&host)
	return host, nil
}

// fillEmpty makes the lists of a Host empty where they are nil, so that JSON
// shows [] and two equal hosts are equal.
func fillEmpty(h *topology.Host) {
	if h.Reasons == nil {
		h.Reasons = []topology.Reason{}
	}
	if h.Cores == nil {
		h.Cores = []topology.CPUSet{}
	}
	if h.Packages == nil {
		h.Packages = []topology.Package{}
	}
	if h.Dies == nil {
		h.Dies = []topology.Die{}
	}
	if h.PCI == nil {
		h.PCI = []topology.PCIDevice{}
	}
	if h.PageSizes == nil {
		h.PageSizes = []topology.PageSize{h.BasePageSize}
	}
	slices.Sort(h.PageSizes)
	h.PageSizes = slices.Compact(h.PageSizes)
}

// list prints CPUs for a reason, "none" for the empty set.
func list(s topology.CPUSet) string {
	if s.IsEmpty() {
		return "none"
	}
	return s.String()
}

// cellOf is about one cell.
func cellOf(id int) about {
	c := topology.CellID(id)
	return about{cell: &c}
}

// counted prints a number of things: "1 page", "2 pages".
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
