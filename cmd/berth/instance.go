package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/host"
	"berth/claims"
	"berth/internal/screen"
)

// workTime bounds a command that makes disks or waits for a guest.
const workTime = 12 * time.Minute

func (a *app) instanceCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "instance",
		Short: "Guests of a host: create, adopt, list, show, start, stop, delete",
	})
	cmd.AddCommand(a.instanceCreate(), a.instanceAdopt(), a.instanceList(), a.instanceShow(),
		a.instanceStart(), a.instanceStop(), a.instanceDelete())
	return cmd
}

func (a *app) instanceCreate() *cobra.Command {
	var r api.CreateInstance
	var flavor flavorFlags
	var disks []string
	var xml string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a guest: claim, disks, definition; and start it",
		Long: `Make a guest under a claim. What it may use comes from a flavor: one of this host
by name (/etc/berth/flavors.d), or --vcpus, --memory and --disk.

Its devices come from the flags, or from a whole domain document with --xml.
--disk-file is the PATH of a file that is there, or key=value pairs by which one is
made, with a size, an image or both: path=,size=GiB,image=FILE,format=qcow2|raw. When
anything fails, nothing is left.

What it may use of the host's cells, CPUs, pages and devices is said by extra specs
of the flavor, in Nova's words; without any the guest floats over the host:

  hw:cpu_policy=dedicated               a CPU for each vCPU, that nobody else has
  hw:cpu_policy=mixed                   for some, with
    hw:cpu_dedicated_mask=1-3           the vCPUs that get one; the others share
  hw:cpu_thread_policy=isolate          no guest on their siblings; require: siblings
                                        only; prefer: siblings where there are some
  hw:emulator_threads_policy=isolate    one more CPU, for the hypervisor's own threads
  hw:cpu_realtime=yes                   dedicated vCPUs in real time, but for vCPU 0 with
    hw:cpu_realtime_mask=^0             (mixed: in the place of hw:cpu_dedicated_mask)
  hw:numa_nodes=2                       that many cells of the guest, each on a cell of
                                        the host; uneven ones with
    hw:numa_cpus.0=0-1                  and hw:numa_mem.0=2048, for each of them
  hw:mem_page_size=large                huge pages of any size; or any, 2MB, 1GB
  pci_passthrough:alias=gpu:1           devices, by an alias of the configuration's [pci]
    hw:pci_numa_affinity_policy=required  only beside a cell of the guest

` + "`berth fit`" + ` says beforehand whether such a guest would fit, and what would make it;
` + "`berth claim explain`" + ` says afterwards what it got.`,
		Example: `  berth instance create web-1 --flavor small --disk-file image=/srv/debian-12.qcow2 --network default --start
  berth instance create probe --vcpus 1 --memory 128 --kernel /boot/vmlinuz --initrd probe.img --cmdline console=ttyS0 --start
  berth instance create old-1 --vcpus 2 --memory 2048 --xml old-1.xml
  berth instance create db-1 --vcpus 4 --memory 4096 --extra-spec hw:cpu_policy=mixed --extra-spec hw:cpu_dedicated_mask=1-3 \
    --extra-spec hw:numa_nodes=2 --extra-spec hw:mem_page_size=2MB --disk-file /srv/db-1.qcow2 --start`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name = args[0]
			if r.UUID == "" && xml == "" {
				// Made here, so that a lost answer can be looked up; a document has its own.
				r.UUID = uuid.NewString()
			}
			made, err := flavor.flavor("create", r.Name)
			if err != nil {
				return err
			}
			if r.FlavorName = flavor.name; made != nil {
				r.Flavor = *made
			}
			for _, d := range disks {
				made, err := parseDisk(d)
				if err != nil {
					return err
				}
				r.Disks = append(r.Disks, made)
			}
			if xml != "" {
				text, err := a.readFile(xml)
				if err != nil {
					return err
				}
				r.XML = text
			}
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				inst, err := c.CreateInstance(ctx, r)
				if err != nil {
					return err
				}
				return a.printInstance(inst)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.UUID, "uuid", "", "the guest's `uuid` (default: a new one)")
	flavor.register(f)
	f.StringVar(&r.ProjectID, "project", "", "project that it counts for (default: the agent's)")
	f.StringVar(&r.UserID, "user", "", "user that it counts for (default: the agent's)")
	f.BoolVar(&r.Autostart, "autostart", false, "start it after reboots of its host")
	f.StringVar(&r.Kernel, "kernel", "", "boot this kernel `file` of the host directly")
	f.StringVar(&r.Initrd, "initrd", "", "initial ram disk `file`, with --kernel")
	f.StringVar(&r.Cmdline, "cmdline", "", "kernel's command line, with --kernel")
	f.StringArrayVar(&disks, "disk-file", nil, "a `disk`: PATH, or path=,size=,image=,format=; may be given again")
	f.StringVar(&r.Network, "network", "", "libvirt `network` of its interface")
	f.StringVar(&r.Bridge, "bridge", "", "`bridge` of its interface, in place of --network")
	f.StringVar(&r.SerialFile, "serial-file", "", "`file` for its console's output (default: a terminal, virsh console)")
	f.StringVar(&r.Machine, "machine", "", "machine type (default: q35)")
	f.StringVar(&r.CPU, "cpu", "", "CPU: a `model`, host-model, or host-passthrough")
	f.StringVar(&r.VirtType, "virt-type", "", "kvm, or qemu without hardware virtualization (default: kvm where the host has it)")
	f.StringVar(&xml, "xml", "", "domain document to take devices from; - for standard input")
	f.BoolVar(&r.Start, "start", false, "start it")
	f.BoolVar(&r.Paused, "paused", false, "start it with its CPUs stopped")
	return cmd
}

// readFile reads a file, or standard input for "-".
func (a *app) readFile(path string) (string, error) {
	if path == "-" {
		return a.readInput("standard input")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", misused("read %s: %w", path, err)
	}
	return string(data), nil
}

// readInput reads standard input, of which a request takes no more than api.MaxBody.
func (a *app) readInput(what string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(a.in, api.MaxBody+1))
	switch {
	case err != nil:
		return "", misused("read %s: %w", what, err)
	case len(data) > api.MaxBody:
		return "", misused("read %s: it is larger than %d MiB", what, api.MaxBody>>20)
	}
	return string(data), nil
}

// parseDisk reads --disk-file.
func parseDisk(text string) (host.CreateDisk, error) {
	if !strings.Contains(text, "=") {
		return host.CreateDisk{Path: text}, nil
	}
	var d host.CreateDisk
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "path":
			d.Path = value
		case "size":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 1 {
				return d, misused("--disk-file %q: size %q: want GiB", text, value)
			}
			d.SizeGB = n
		case "image":
			d.Image = value
		case "image-format":
			d.ImageFormat = value
		case "format":
			d.Format = value
		default:
			return d, misused("--disk-file %q: unknown key %q: want path, size, image, image-format or format", text, key)
		}
	}
	return d, nil
}

func (a *app) instanceAdopt() *cobra.Command {
	var r api.AdoptInstances
	cmd := &cobra.Command{
		Use:   "adopt [INSTANCE...]",
		Short: "Take domains that are there already under claims",
		Long: `Take domains that libvirt has, and Berth does not know, under claims. No guest is
changed or stopped. It never refuses for room: what does not fit is adopted as
"forced", named in the status, and nothing new is placed on top of it.`,
		Example: "  berth instance adopt --all\n  berth instance adopt web-1 web-2",
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Instances = args
			if r.All == (len(args) > 0) {
				return misused("adopt: name instances, or say --all")
			}
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				list, err := c.AdoptInstances(ctx, r)
				if err != nil {
					return err
				}
				if err := a.print(list, func(w io.Writer) { adoptTable(w, list) }); err != nil {
					return err
				}
				for _, i := range list.Instances {
					if i.Error != "" {
						return errDegraded
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&r.All, "all", false, "every domain of the host")
	return cmd
}

func adoptTable(w io.Writer, list api.AdoptedList) {
	screen.Row(w, "INSTANCE", "UUID", "STATE", "VCPUS", "PCPUS", "MEMORY_MB", "DISK_GB", "RESULT")
	for _, i := range list.Instances {
		result := "adopted"
		switch {
		case i.Error != "":
			result = "not adopted: " + i.Error
		case !i.New:
			result = "managed already"
		case i.Claim != nil && i.Claim.Forced:
			result = "adopted, though it does not fit"
		}
		r := i.Flavor.Resources()
		if i.Claim != nil {
			r = i.Claim.Resources
		}
		screen.Row(w, i.Name, i.UUID, i.State, r.VCPUs, r.PCPUs, r.MemoryMB, r.DiskGB, result)
		for _, warning := range i.Warnings {
			screen.Row(w, "", "", "", "", "", "", "", "- "+warning.Message)
		}
	}
}

func (a *app) instanceList() *cobra.Command {
	var hidden bool
	cmd := &cobra.Command{
		Use: "list", Short: "List guests, managed or not", Args: cobra.NoArgs,
		Long: `List guests, managed or not. While a guest moves between hosts that share nothing, and
until that is confirmed, both hosts have a record of it, and one of them is hidden:
--hidden lists those too.`,
		Example: "  berth instance list\n  berth instance list -c host-b --hidden",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				look := c.Instances
				if hidden {
					look = c.AllInstances
				}
				list, err := look(ctx)
				if err != nil {
					return err
				}
				if list.Error != "" && !a.json {
					fmt.Fprintf(a.err, "berth: libvirt could not be asked, so guests that are not managed are missing: %s\n", list.Error)
				}
				return a.print(list, func(w io.Writer) {
					l := screen.Table{
						Columns: []string{"INSTANCE", "UUID", "STATE", "STATUS", "MANAGED", "VCPUS", "PCPUS", "MEMORY_MB", "DISK_GB", "TOKEN", "REMARK"},
						Spare:   []string{"UUID", "TOKEN", "DISK_GB", "STATUS", "PCPUS", "MEMORY_MB", "VCPUS", "MANAGED"}, Full: "berth instance list -o json has all",
					}
					for _, i := range list.Instances {
						r := i.Flavor.Resources()
						if i.Claim != nil {
							r = i.Claim.Resources
						}
						var vcpus, pcpus, memory, disk any = r.VCPUs, r.PCPUs, r.MemoryMB, r.DiskGB
						if r.IsZero() { // unmanaged: nothing is held for it
							vcpus, pcpus, memory, disk = "", "", "", ""
						}
						l.Rows = append(l.Rows, []any{i.Name, i.UUID, i.State, i.Status, yes(i.Managed), vcpus, pcpus, memory, disk, token(i), remarks(i)})
					}
					l.Write(w, screen.ListWidth(a.out))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&hidden, "hidden", false, "list the records too that are not shown, since another host's is")
	return cmd
}

// token says where the guest's ownership token is.
func token(i api.Instance) string {
	if !i.Managed {
		return ""
	}
	if i.Token.State != claims.TokenSurrendered {
		return string(i.Token.State)
	}
	return string(i.Token.State) + " to " + i.Token.Holder
}

func remarks(i api.Instance) string {
	var out []string
	switch {
	case i.Resize != nil && i.Resize.Half == host.HalfKept:
		out = append(out, "moved to "+i.Resize.Destination+", its old half is kept ("+short(i.Resize.Migration)+")")
	case i.Resize != nil && i.Resize.Half == host.HalfGuest:
		out = append(out, "moved here, confirm or revert it ("+short(i.Resize.Migration)+")")
	case i.Resize != nil:
		out = append(out, "resized, confirm or revert it ("+short(i.Resize.Migration)+")")
	case i.Migration != "":
		out = append(out, "moving ("+short(i.Migration)+")")
	}
	if i.Conductor != "" {
		out = append(out, "conducted by "+i.Conductor)
	}
	if i.Hidden {
		out = append(out, "hidden")
	}
	if i.Claim != nil && i.Claim.Forced {
		out = append(out, "does not fit")
	}
	if i.Claim != nil && i.Claim.ByHand {
		out = append(out, "changed by hand")
	}
	if !i.Managed && i.Migration == "" {
		out = append(out, "adopt it: berth instance adopt "+i.Name)
	}
	return strings.Join(out, ", ")
}

func (a *app) printInstance(i api.Instance) error {
	return a.print(i, func(w io.Writer) { instanceTable(w, i) })
}

func instanceTable(w io.Writer, i api.Instance) {
	screen.Row(w, "instance", i.Name)
	screen.Row(w, "uuid", i.UUID)
	screen.Row(w, "host", i.Host)
	screen.Row(w, "state", strings.TrimSpace(i.State+" "+parenthesis(i.Reason)))
	if i.Status != "" {
		screen.Row(w, "status", i.Status)
	}
	screen.Row(w, "managed", yes(i.Managed))
	if i.Managed {
		screen.Row(w, "flavor", i.Flavor.Name+": "+resources(i.Flavor.Resources()))
		screen.Row(w, "token", fmt.Sprintf("%s, epoch %d", token(i), i.Token.Epoch))
		screen.Row(w, "autostart", yes(i.Autostart))
		screen.Row(w, "adopted", yes(i.Adopted))
	}
	if i.Claim != nil {
		screen.Row(w, "claim", fmt.Sprintf("%s %s: %s", i.Claim.ID, i.Claim.State, resources(i.Claim.Resources)))
		screen.Row(w, "place", place(i.Claim.Assignment, onePlace))
	}
	if r := remarks(i); r != "" {
		screen.Row(w, "remark", r)
	}
	if i.Migration != "" || i.Resize != nil {
		screen.Row(w, "migration", migrationOf(i))
	}
	if r := i.Resize; r != nil {
		screen.Row(w, "next", resizeWords(*r, time.Now()))
	}
}

// migrationOf is the uuid of the move that a guest is on.
func migrationOf(i api.Instance) string {
	if i.Resize != nil {
		return i.Resize.Migration
	}
	return i.Migration
}

// resizeWords say what ends a resize, and until when it waits, as far as the host that
// was asked knows.
func resizeWords(r host.ResizeView, now time.Time) string {
	words := strings.Join(r.Next, ", or ")
	if r.OldFlavor != "" {
		words += ", which gives back flavor " + r.OldFlavor
		if r.Source != r.Destination {
			words += " on " + r.Source
		}
	}
	if r.Half == host.HalfGuest {
		return words + "; " + r.Source + " conducts it"
	}
	return words + "; " + confirmsItself(r.ConfirmsAt, now)
}

func parenthesis(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func (a *app) instanceShow() *cobra.Command {
	return &cobra.Command{
		Use: "show INSTANCE", Short: "Show one guest, with its claim and ownership token", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				i, err := c.Instance(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(i, func(w io.Writer) {
					instanceTable(w, i.Instance)
					for _, r := range i.Remarks {
						screen.Row(w, "remark", r.Message)
					}
					fmt.Fprintln(w)
					allocationTable(w, i.Allocations)
					if i.AllocationsError != "" {
						fmt.Fprintf(w, "what Placement holds could not be read: %s\n", i.AllocationsError)
					}
				})
			})
		},
	}
}

// allocationTable prints who holds what on which provider, as Placement says.
func allocationTable(w io.Writer, rows []api.Allocation) {
	screen.Row(w, "CONSUMER", "UUID", "PROVIDER", "HOLDS")
	for _, al := range rows {
		screen.Row(w, al.ConsumerType, al.Consumer, al.Provider, amounts(al.Resources))
	}
}

func (a *app) instanceStart() *cobra.Command {
	var confirm bool
	var because string
	cmd := &cobra.Command{
		Use: "start INSTANCE", Short: "Start a guest whose ownership token is here", Args: cobra.ExactArgs(1),
		Long: `Start a guest whose ownership token is here.

After a boot a host asks first which of its instances are still its own: the fleet's
records, Placement where it is another database, and the host that an instance came
from by a move. What no witness confirms is not started. When none will, and you know
that the instance runs nowhere else, say so with --force-owner; it is kept with your
name. If it runs elsewhere after all, and both share its disks, they are destroyed.`,
		Example: "  berth instance start web-1\n  berth instance start web-1 --force-owner --reason \"etcd is lost, nothing was evacuated\"",
		RunE: func(cmd *cobra.Command, args []string) error {
			if confirm != (strings.TrimSpace(because) != "") {
				return misused("--force-owner and --reason TEXT are said together")
			}
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				start := c.StartInstance
				if confirm {
					start = func(ctx context.Context, ref string) (api.Instance, error) {
						return c.StartConfirmed(ctx, ref, because)
					}
				}
				i, err := start(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printInstance(i)
			})
		},
	}
	cmd.Flags().BoolVar(&confirm, "force-owner", false, "it is this host's, though no witness has said so since the boot")
	cmd.Flags().StringVar(&because, "reason", "", "why you know, in your `words`")
	return cmd
}

func (a *app) instanceStop() *cobra.Command {
	var o api.StopInstance
	cmd := &cobra.Command{
		Use: "stop INSTANCE", Short: "Power a guest off; its claim stays", Args: cobra.ExactArgs(1),
		Long: "Ask the guest to power off, and wait until it is off. With --force it is ended when it\nhas not obeyed within --timeout, or at once where none is given.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				i, err := c.StopInstance(ctx, args[0], o)
				if err != nil {
					return err
				}
				return a.printInstance(i)
			})
		},
	}
	cmd.Flags().BoolVar(&o.Force, "force", false, "end it when it does not obey")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 0, "how long it may take (default: a minute; with --force none)")
	return cmd
}

func (a *app) instanceDelete() *cobra.Command {
	var o api.DeleteInstance
	cmd := &cobra.Command{
		Use: "delete INSTANCE", Short: "Delete a guest: definition, allocation, claim", Args: cobra.ExactArgs(1),
		Long: "Delete a stopped guest: its definition, its allocation in Placement, its claim. Disks\nstay unless --disks is said, and then too where anybody else uses or may use a file:\nthe answer names each file that stays, and why.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				left, err := c.DeleteInstance(ctx, args[0], o)
				if err != nil {
					return err
				}
				answer := map[string]any{"deleted": args[0]}
				if len(left.Kept) > 0 {
					answer["kept"] = left.Kept
				}
				return a.print(answer, func(w io.Writer) {
					fmt.Fprintf(w, "%s is deleted\n", args[0])
					for _, k := range left.Kept {
						fmt.Fprintf(w, "kept: disk %s, %s: %s\n  to remove it: %s\n", k.Disk, k.Path, k.Reason, k.Change)
					}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&o.Force, "force", false, "end it when it runs")
	cmd.Flags().BoolVar(&o.DiscardSavedState, "discard-saved-state", false, "give up memory that libvirt saved of it (virsh managedsave)")
	cmd.Flags().BoolVar(&o.Disks, "disks", false, "remove the files of its writable disks too")
	return cmd
}
