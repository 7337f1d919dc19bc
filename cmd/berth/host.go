package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/inventory"
	"berth/driver"
	"berth/hwdiscovery"
	"berth/internal/screen"
	"berth/topology"
)

func (a *app) hostCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "host", Short: "Hardware and inventory of this host, and the other hosts"})
	cmd.AddCommand(a.hostDiscover(), a.hostShow(), a.hostTopology(), a.hostList(), a.hostSet(), a.hostDrain(), a.hostDrainStatus(), a.hostDrainWatch(), a.hostDrainAbort(), a.hostAggregate(), a.hostFence(), a.hostDeclareDead(), a.hostForget(), a.hostEtcdRoles())
	return cmd
}

func (a *app) hostDiscover() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "discover",
		Short: "Read the hardware; needs no agent and changes nothing",
		Long: `Read NUMA cells, CPUs, memory, pages and PCI devices from /sys and /proc, as the
agent does, and print them. "degraded" means that the machine's own tables
contradict each other or that a part could not be read; the reasons say which.`,
		Example: "  berth host discover\n  berth host discover --json | jq '.cells[].memory_bytes'\n  berth host discover --root ./copied-machine",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			h, err := hwdiscovery.Discover(root)
			if err != nil {
				return err
			}
			return a.print(h, func(w io.Writer) { topologyTable(w, &h) })
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "`folder` that holds sys and proc")
	return cmd
}

func topologyTable(w io.Writer, h *topology.Host) {
	fmt.Fprintf(w, "hardware: %s, %s in %s, %s, %s of memory, %s\n", strings.ToUpper(string(h.Health)),
		count(h.CPUs().Len(), "cpu"), count(len(h.Cores), "core"), count(len(h.Cells), "cell"), size(h.MemoryBytes()), count(len(h.PCI), "PCI function"))
	for _, r := range h.Reasons {
		fmt.Fprintf(w, "  - %s\n", r.Message)
	}
	fmt.Fprintln(w)
	screen.Row(w, "CELL", "CPUS", "MEMORY", "FREE", "PAGES", "DISTANCES")
	for _, c := range h.Cells {
		var pages []string
		for _, p := range h.PageSizes {
			if n := c.Pages[p]; n > 0 {
				pages = append(pages, fmt.Sprintf("%d×%s", n, p))
			}
		}
		screen.Row(w, c.ID, c.CPUs, size(c.MemoryBytes), size(c.MemoryFreeBytes), strings.Join(pages, " "), strings.Trim(fmt.Sprint(c.Distances), "[]"))
	}
	if !h.OfflineCPUs.IsEmpty() {
		fmt.Fprintf(w, "offline cpus: %s\n", h.OfflineCPUs)
	}
	if !h.IsolatedCPUs.IsEmpty() {
		fmt.Fprintf(w, "isolated cpus: %s\n", h.IsolatedCPUs)
	}
	if len(h.PCI) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "PCI", "ID", "CLASS", "CELL", "DRIVER", "VIRTUAL FUNCTIONS")
	for _, d := range h.PCI {
		if d.PhysFn != nil {
			continue // counted with its physical function
		}
		cell, vfs := fmt.Sprint(d.NUMANode), ""
		if d.NUMANode == topology.UnknownCell {
			cell = "?"
		}
		if d.TotalVFs > 0 {
			vfs = fmt.Sprintf("%d of %d", len(d.VFs), d.TotalVFs)
		}
		screen.Row(w, d.Address, strings.TrimPrefix(d.Vendor, "0x")+":"+strings.TrimPrefix(d.Product, "0x"), d.Class, cell, d.Driver, vfs)
	}
}

func (a *app) hostShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show a host: who it is, its hardware, what is used, how Placement stands",
		Long: `Show who a host is, its resource provider as Placement has it, what guests have of
each NUMA cell, and the hardware.

Of each cell: the CPUs that guests can have to themselves ([host] dedicated_cpus)
and those of them that are free, the CPUs that vCPUs share and how many of guests
bound to the cell do, memory and huge pages in use, and devices that [pci]
device_spec gives to guests. Guests that float are in no cell.`,
		Example: "  berth host show\n  berth host show -c host-b",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				h, err := c.Host(ctx)
				if err != nil {
					return err
				}
				return a.print(h, func(w io.Writer) { hostTable(w, h) })
			})
		},
	}
}

func hostTable(w io.Writer, h api.HostInfo) {
	fmt.Fprintf(w, "%s: %s, mode %s\n\n", h.Name, strings.ToUpper(string(h.Health)), h.Mode)
	if h.Disabled != nil {
		screen.Row(w, "disabled", disabledWords(h.Disabled))
	}
	screen.Row(w, "hypervisor", h.Hypervisor+" "+libvirtVersion(h.HypervisorVersion)+", libvirt "+libvirtVersion(h.LibvirtVersion)+", "+h.Arch)
	screen.Row(w, "host uuid", h.HostUUID)
	capabilityRows(w, h.Capabilities)
	screen.Row(w, "berth", h.BerthVersion)
	screen.Row(w, "guests arrive at", h.LibvirtURI+" "+h.MigrateURI)
	fmt.Fprintln(w)
	p := h.Placement
	state := "equal to the host"
	switch {
	case p.Error != "":
		state = "NOT EQUAL: " + p.Error
	case len(p.Pending) > 0:
		state = "would be written: " + strings.Join(p.Pending, ", ")
	case !p.InSync:
		state = "not compared yet"
	}
	if p.Shape == inventory.Nested {
		state += ", nested"
	}
	fmt.Fprintf(w, "placement: resource provider %s (%s), generation %d, %s\n", p.ProviderName, p.ProviderUUID, p.Generation, state)
	placementRemarks(w, h)
	fmt.Fprintln(w)
	providerTable(w, h.Providers)
	if h.ProvidersError != "" {
		fmt.Fprintf(w, "Placement could not be read: %s\n", h.ProvidersError)
	}
	if len(p.Traits) > 0 {
		head := "traits: "
		for _, line := range screen.Wrap(p.Traits, planText-len(head)) {
			fmt.Fprintf(w, "%s%s\n", head, line)
			head = strings.Repeat(" ", len(head))
		}
	}
	if len(p.UnknownTraits) > 0 {
		fmt.Fprintf(w, "traits that this Placement does not know: %s\n", strings.Join(p.UnknownTraits, " "))
	}
	fmt.Fprintln(w)
	if len(h.Cells) > 0 {
		cellTable(w, h.Cells, h.Loose)
		fmt.Fprintln(w)
	}
	if h.Topology == nil {
		fmt.Fprintln(w, "the hardware could not be read; see `berth status`")
		return
	}
	topologyTable(w, h.Topology)
}

// placementRemarks say what is not in Placement as it is on the host, or not as it
// is wanted, and why.
func placementRemarks(w io.Writer, h api.HostInfo) {
	p := h.Placement
	if p.Waiting != nil {
		fmt.Fprintf(w, "to be %s, and not yet: %s\n", p.Waiting.Shape, p.Waiting.Reason.Message)
	}
	if p.Disk != "" && p.Disk != p.ProviderUUID {
		fmt.Fprintf(w, "disks are of provider %s, which shares them\n", p.Disk)
	}
	if len(p.Kept) > 0 {
		fmt.Fprintf(w, "kept, because guests have it and the host has it no more: %s\n", strings.Join(p.Kept, ", "))
	}
	if p.Disabled && h.Disabled == nil {
		fmt.Fprintln(w, "COMPUTE_STATUS_DISABLED was set by somebody else: new guests are kept away")
	}
	for _, r := range p.Reasons {
		fmt.Fprintf(w, "not reported: %s\n", r.Message)
	}
}

// capabilityRows print what guests can have here, in a few lines; JSON has all.
func capabilityRows(w io.Writer, c *topology.Capabilities) {
	if c == nil {
		screen.Row(w, "guests can have", "not known yet")
		return
	}
	cpu := cmp.Or(c.CPU.Model, "no named model")
	if c.CPU.Vendor != "" {
		cpu += " (" + c.CPU.Vendor + ")"
	}
	features := "features not known"
	if n := len(c.CPU.Features); n > 0 {
		features = fmt.Sprintf("%d features", n)
	}
	screen.Row(w, "cpu of guests", fmt.Sprintf("%s, %s, by %s", cpu, features, c.VirtType))
	screen.Row(w, "machine types", fmt.Sprintf("%d, up to %d vCPUs", len(c.Machines), c.MaxVCPUs))
	none := func(list []string) string { return cmp.Or(strings.Join(list, ", "), "none") }
	firmware := none(c.Firmware)
	if c.SecureBoot {
		firmware += ", secure boot"
	}
	screen.Row(w, "firmware", firmware)
	tpm := "none for each guest"
	if c.TPM.Emulated() {
		tpm = strings.TrimSpace(none(c.TPM.Models) + " " + strings.Join(c.TPM.Versions, ", "))
	}
	screen.Row(w, "tpm", tpm)
	screen.Row(w, "memory encryption", none(c.LaunchSecurity))
	screen.Row(w, "host devices", none(c.HostDevices))
}

// branch is a provider with its depth in the tree.
type branch struct {
	api.ProviderView
	depth int
}

// asTree puts each provider below its parent, by name.
func asTree(list []api.ProviderView) []branch {
	var out []branch
	var below func(parent string, depth int)
	below = func(parent string, depth int) {
		for _, p := range list {
			if p.Parent == parent && depth <= len(list) {
				out = append(out, branch{p, depth})
				below(p.Name, depth+1)
			}
		}
	}
	below("", 0)
	return out
}

// providerTable prints a provider tree with what each part has and how much of
// it is allocated, as Placement says.
func providerTable(w io.Writer, tree []api.ProviderView) {
	screen.Row(w, "PROVIDER", "RESOURCE CLASS", "TOTAL", "RESERVED", "RATIO", "ALLOCATED")
	for _, p := range asTree(tree) {
		name := p.Name
		if p.depth > 0 {
			name = strings.Repeat("  ", p.depth-1) + "└ " + p.Name
		}
		if len(p.Inventories) == 0 {
			screen.Row(w, name, "none")
		}
		for _, class := range slices.Sorted(maps.Keys(p.Inventories)) {
			inv := p.Inventories[class]
			screen.Row(w, name, class, inv.Total, inv.Reserved, inv.AllocationRatio, p.Usages[class])
		}
	}
}

// libvirtVersion writes libvirt's number, major*1e6 + minor*1e3 + micro.
func libvirtVersion(v uint64) string {
	if v == 0 {
		return "?"
	}
	return driver.Version(v).String()
}

func (a *app) hostList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the hosts that Placement and [peers] know, ask each, and what the fleet's records say of it",
		Long: `List the hosts that Placement and [peers] know, and ask each. Where the fleet's
records are kept ([fleet], or the Placement that comes with berth), they say of each:

  RECORDS  alive       its lease is held; so etcd says, and no other store
           kept        it has a record; that store does not know who is alive
           LEASE OVER  it may be dead, or cut off: that alone proves nothing
           DEAD        it was proven; what is to be evacuated stands below
           none        it keeps no record, and nothing of it can be evacuated
  GUESTS   how many guests it has by them

Where hosts run different versions of Berth, as in the middle of an upgrade, it says
which, and which are to be upgraded.`,
		Example: "  berth host list\n  berth host list --json | jq '.fleet.hosts[] | select(.death)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				hosts, err := c.Hosts(ctx)
				if err != nil {
					return err
				}
				list := listedHosts{HostList: api.HostList{Hosts: hosts}}
				list.records(ctx, c)
				return a.print(list, func(w io.Writer) { hostListTable(w, list, screen.ListWidth(a.out)) })
			})
		},
	}
}
