package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/agent/api"
	"berth/internal/config"
	"berth/migration"
	"berth/topology"
)

// coldFlags are what may be said of a move or change of a guest that is off meanwhile.
type coldFlags struct {
	shutdown, window time.Duration
	confirm, discard bool
	wait, detach     bool
	flags            *pflag.FlagSet
}

// coldNames are the flags that make no sense of a live migration.
var coldNames = []string{"shutdown-timeout", "discard-saved-state", "confirm", "confirm-window"}

func (x *coldFlags) register(f *pflag.FlagSet, confirms bool) {
	x.flags = f
	f.DurationVar(&x.shutdown, "shutdown-timeout", 0, "how long the guest may take to shut itself down; 0 pulls its plug at once (default: its flavor's, or the host's)")
	f.BoolVar(&x.discard, "discard-saved-state", false, "give up memory that libvirt saved of it (virsh managedsave), which would not fit its disks any more")
	if confirms {
		f.DurationVar(&x.window, "confirm-window", 0, "after how long it confirms itself; 0 for never (default: the host's)")
		f.BoolVar(&x.confirm, "confirm", false, "confirm it as soon as it is there")
	}
}

func (x *coldFlags) registerWait(f *pflag.FlagSet) {
	f.BoolVar(&x.wait, "wait", true, "watch until it is over, or waits for its confirmation")
	f.BoolVar(&x.detach, "detach", false, "return when it is accepted")
}

// waits says whether to watch; it refuses flags that contradict each other.
func (x *coldFlags) waits() (bool, error) {
	switch {
	case x.detach && x.wait && x.flags.Changed("wait"):
		return false, misused("--wait and --detach: say one of them")
	case x.confirm && (x.detach || !x.wait):
		return false, misused("--confirm waits until the guest is there: not with --detach")
	case x.confirm && x.flags.Changed("confirm-window"):
		return false, misused("--confirm and --confirm-window: say one of them")
	}
	return x.wait && !x.detach, nil
}

// into writes what was said into a request.
func (x *coldFlags) into(r *api.Migrate) error {
	if x.shutdown < 0 || x.window < 0 {
		return misused("--shutdown-timeout and --confirm-window cannot be negative")
	}
	r.DiscardSavedState = x.discard
	if x.flags.Changed("shutdown-timeout") {
		r.ShutdownTimeout = &x.shutdown
	}
	if x.flags.Changed("confirm-window") {
		r.ConfirmWindow = &x.window
	}
	return nil
}

// flavorFlags are a flavor: one of the host by name, or one that is spelled out.
type flavorFlags struct {
	name         string
	vcpus        int
	memory, disk int64
	specs        []string
}

func (x *flavorFlags) register(f *pflag.FlagSet) {
	f.StringVar(&x.name, "flavor", "", "a flavor of the host, by `name`")
	f.IntVar(&x.vcpus, "vcpus", 0, "virtual CPUs, in place of --flavor")
	f.Int64Var(&x.memory, "memory", 0, "memory in `MiB`, in place of --flavor")
	f.Int64Var(&x.disk, "disk", 0, "disk in `GiB` that is counted, in place of --flavor")
	f.StringArrayVar(&x.specs, "extra-spec", nil, "extra spec `key=value` of the flavor, beside --vcpus; may be given again")
}

// flavor is the one that is spelled out, called like the guest; nil for one by name.
func (x *flavorFlags) flavor(doing, guest string) (*topology.Flavor, error) {
	if (x.name == "") == (x.vcpus == 0 && x.memory == 0) {
		return nil, misused("%s %s: say --flavor NAME, or --vcpus and --memory", doing, guest)
	}
	if x.name != "" {
		if len(x.specs) > 0 {
			return nil, misused("%s %s: --extra-spec goes with --vcpus and --memory: the flavor %s has extra specs of its own", doing, guest, x.name)
		}
		return nil, nil
	}
	specs, err := pairs("--extra-spec", x.specs)
	if err != nil {
		return nil, err
	}
	return &topology.Flavor{Name: guest, VCPUs: x.vcpus, MemoryMB: x.memory, DiskGB: x.disk, ExtraSpecs: specs}, nil
}

// pairs reads key=value, given again and again; nil for none.
func pairs(flag string, all []string) (map[string]string, error) {
	var out map[string]string
	for _, s := range all {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, misused("%s %q: want key=value", flag, s)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out, nil
}

func (a *app) resizeCommand() *cobra.Command {
	var flavor flavorFlags
	var cold coldFlags
	var far apartFlags
	var offline bool
	var bandwidth string
	cmd := &cobra.Command{
		Use:   "resize INSTANCE [HOST]",
		Short: "Give a guest another flavor, on its host or on another; confirm or revert it afterwards",
		Long: `Give a guest another flavor. It is shut down, changed, and started again as it was:
on its own host where that has the room, else on another that Placement offers; with
HOST only there, and with the name of its own host only in its place.

What the guest had before is kept until the resize is confirmed: claim, disks,
definition. ` + "`berth resize confirm INSTANCE`" + ` gives it up, ` + "`berth resize revert INSTANCE`" + `
gives it back. Without either it confirms itself after [migration]
resize_confirm_window, or after --confirm-window; 0 is never.

The first disk grows where the new flavor has more disk than the old one. No disk ever
shrinks: a flavor with less is refused.

When anything fails, the guest is again what and where it was, running if it ran, and
the command exits with 8.

` + apartHelp,
		Example: `  berth resize web-1 --flavor large
  berth resize web-1 host-b --flavor large --shutdown-timeout 5m
  berth resize web-1 host-b --alternate host-c --flavor large --share-nothing -c host-m
  berth resize web-1 --vcpus 4 --memory 8192 --extra-spec hw:cpu_policy=dedicated --confirm
  berth resize confirm web-1
  berth resize revert web-1`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			wait, err := cold.waits()
			if err != nil {
				return err
			}
			r := api.Migrate{Instance: args[0], Migration: uuid.NewString(), MigrationType: migration.TypeResize, FlavorName: flavor.name, Offline: offline}
			if len(args) == 2 {
				r.Destination = args[1]
			}
			if r.Flavor, err = flavor.flavor("resize", r.Instance); err != nil {
				return err
			}
			if err := cold.into(&r); err != nil {
				return err
			}
			if err := far.into(&r, false); err != nil {
				return err
			}
			rate, err := config.ParseRate(bandwidth)
			if err != nil {
				return misused("--bandwidth: %w", err)
			}
			r.Options.Bandwidth = uint64(rate)
			return a.move(cmd.Context(), r, wait, cold.confirm)
		},
	}
	f := cmd.Flags()
	flavor.register(f)
	cold.register(f, true)
	cold.registerWait(f)
	far.register(f)
	f.StringVar(&bandwidth, "bandwidth", "0", "bound of the shipping of disks, such as 20MiB/s (default: the host's)")
	f.BoolVar(&offline, "offline", false, "refuse a guest that runs, in place of shutting it down")
	cmd.AddCommand(a.confirmCommand(), a.revertCommand())
	return cmd
}

func (a *app) confirmCommand() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "confirm INSTANCE|MIGRATION", Short: "Confirm a resize or cold migration: what was kept to go back is given up", Args: cobra.ExactArgs(1),
		Long: `Confirm a resize or cold migration. What the guest had before is given up: claim,
disks, definition on the host that it left. There is no way back from it.

Ask any host: the instance is looked for, and the request passed on to the host that
conducts the move. That host takes it from the source of the move, from a host with the
right relay ([rights] relay), or with an operator's certificate: --cert FILE.`,
		Example: "  berth resize confirm web-1\n  berth resize confirm 6f1c0d6e-…",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd.Context(), args[0], "", (*api.Client).ConfirmMigration, !detach)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return when it is accepted")
	return cmd
}

func (a *app) revertCommand() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "revert INSTANCE|MIGRATION", Short: "Revert a resize or cold migration: the guest is what and where it was", Args: cobra.ExactArgs(1),
		Long: `Revert a resize or cold migration that waits for its confirmation: the guest is shut
down and gets back its host, flavor, place, devices, and its disks as they were before.
What was written to a disk that was shipped or made larger since is lost. It runs again
if it ran before the move.

Ask any host: the instance is looked for, and the request passed on to the host that
conducts the move. That host takes it from the destination of the move, from a host with
the right relay ([rights] relay), or with an operator's certificate: --cert FILE.`,
		Example: "  berth resize revert web-1\n  berth resize revert 6f1c0d6e-…",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.decide(cmd.Context(), args[0], "", (*api.Client).RevertMigration, !detach)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return when it is accepted")
	return cmd
}

// decide confirms or reverts a move, which the host that is named conducts, or empty for
// the one that is asked, and watches.
func (a *app) decide(ctx context.Context, ref, at string, how func(*api.Client, context.Context, string) (migration.Migration, error), wait bool) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if at != "" {
		c = c.Via(at)
	}
	asking, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	m, err := how(c, asking, ref)
	if err != nil {
		return err
	}
	if !wait || m.Done() {
		return a.printMigration(m)
	}
	return a.watch(ctx, c, m.UUID, m.ConductedBy(), m.DestCompute, false)
}

func (a *app) rebuildCommand() *cobra.Command {
	var image migration.Image
	var properties []string
	var cold coldFlags
	cmd := &cobra.Command{
		Use:   "rebuild INSTANCE --image FILE",
		Short: "Give a guest a new first disk from an image, on its host",
		Long: `Give a guest a new first disk, made from an image; its other disks, flavor and
addresses stay. FILE is the image on the guest's host. The guest is shut down, changed,
and started again as it was. What was on its first disk is lost.

--property are the image's properties in Nova's words. Those that ask for a topology
(hw_numa_nodes, hw_cpu_policy, hw_mem_page_size, …) are held against the flavor, and
what they ask for is claimed before anything of the guest is given up.

When anything fails before the guest runs with its new disk, it is again what it was,
and the command exits with 8.`,
		Example: `  berth rebuild web-1 --image /srv/images/debian-13.qcow2
  berth rebuild web-1 --image /srv/images/rt.raw --property hw_numa_nodes=2 --property hw_cpu_policy=dedicated`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			wait, err := cold.waits()
			if err != nil {
				return err
			}
			if image.Path == "" {
				return misused("rebuild %s: say --image FILE", args[0])
			}
			if err := checkImage(image); err != nil {
				return err
			}
			if image.Properties, err = pairs("--property", properties); err != nil {
				return err
			}
			r := api.Migrate{Instance: args[0], Migration: uuid.NewString(), MigrationType: migration.TypeRebuild, Image: &image}
			if err := cold.into(&r); err != nil {
				return err
			}
			return a.move(cmd.Context(), r, wait, false)
		},
	}
	f := cmd.Flags()
	f.StringVar(&image.Path, "image", "", "the image's `file`, on the guest's host")
	f.StringVar(&image.Format, "image-format", "", "raw or qcow2 (default: by the file's ending)")
	f.StringArrayVar(&properties, "property", nil, "property `key=value` of the image; may be given again")
	cold.register(f, false)
	cold.registerWait(f)
	return cmd
}

// nextWords say what to type about a move that waits for its confirmation, and until
// when.
func nextWords(m migration.Migration, now time.Time) string {
	return fmt.Sprintf("confirm with `berth resize confirm %s`, or give back with `berth resize revert %s`; %s", m.InstanceName, m.InstanceName, confirmsItself(m.ConfirmBy, now))
}

// confirmsItself says when a move confirms itself; zero is never.
func confirmsItself(at, now time.Time) string {
	switch left := at.Sub(now); {
	case at.IsZero():
		return "it does not confirm itself"
	case left <= 0:
		return "it confirms itself now"
	default:
		return "it confirms itself in " + rough(left)
	}
}
