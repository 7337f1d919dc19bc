package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/migration"
)

// errNowhere ends a plan that was made, and in which no host would take the guest.
// Nothing more is printed.
var errNowhere = errors.New("no host would take it")

func (a *app) planCommand() *cobra.Command {
	var live, cold, apart, evacuate bool
	var flavor, on string
	var image migration.Image
	var loss bool
	cmd := &cobra.Command{
		Use:   "plan INSTANCE [HOST] [--flavor FLAVOR] | --flavor FLAVOR [--on HOST]",
		Short: "Where could a guest go, or a new one be, and if not, why; changes nothing",
		Long: `Ask Placement for candidates and every host what it would claim for a guest, and
show them in the order in which a move without HOST would try them. Nothing is
held and nothing changes: by the time of a move another guest may have the room.

Hosts that Placement does not offer are asked all the same, so that each says by
itself what is in the way. With HOST only that one is asked.

  #            the order in which a move would try it; a dash where Placement does
               not offer it, which a move that names the host may still take
  NEAR         near, where the host shares an aggregate of Placement's with the guest's
               own, else far; what that weighs goes before all else, and stands below
               ([migration] near_weight, berth host aggregate)
  MEMORY       how much of the host's is used, by Placement: the emptiest is tried first
  DISK         same, where the host shares the storage with the guest's disks: of hosts
               that weigh the same such ones are tried before others
  WOULD CLAIM  the cells, CPUs and devices that the guest would get now

--flavor beside INSTANCE plans a resize: the guest's own host is tried first, and
can be named as HOST too. --flavor alone plans for a new guest.

A live migration's options stand last, as a move without options of its own would have
them, with who said each; and of each host what the guest would go there without.

--cold plans for the guest shut off, which is what is planned for one that is. Networks,
disks and firmware are looked at; CPU features and versions count for less than live.

--share-nothing plans a move that the asked host would conduct, wherever the guest is,
and says of each host which way its disks would go:

  WAY          none: both have the same storage; straight: from the guest's host to it;
               relay: by the host that conducts, since the two do not reach each other

--evacuate plans for a guest of a dead host, by the fleet's records, and says of each host
what becomes of its disks (berth evacuate):

  DISKS        kept: the host shares them; LOSES: they would be made anew from the image,
               and what was written to them be lost

Exits with 0 when some host would take the guest, and with 3 when none would.`,
		Example: `  berth plan web-1
  berth plan web-1 host-b
  berth plan web-1 --flavor large              # a resize
  berth plan --flavor large                    # a new guest
  berth plan web-1 --share-nothing -c host-m   # host-m would conduct
  berth plan web-1 --json | jq '.hosts[] | {name, verdict, reasons}'`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := api.PlanRequest{FlavorName: flavor, Destination: on, ShareNothing: apart}
			if len(args) > 0 {
				r.Instance = args[0]
			}
			if len(args) > 1 {
				r.Destination = args[1]
			}
			switch {
			case flavor == "" && r.Instance == "":
				return misused("plan: name an instance, or a flavor with --flavor")
			case on != "" && r.Instance != "":
				return misused("--on is of a new guest: name the host after the instance")
			case live && cold:
				return misused("--live and --cold: say one of them")
			case apart && r.Instance == "":
				return misused("--share-nothing is of a guest that is there: name it")
			case apart && live:
				return misused("--share-nothing and --live: memory goes straight from host to host")
			case flavor != "" && (live || cold):
				return misused("--live and --cold are of a guest that stays as it is, not of a flavor")
			case evacuate && (r.Instance == "" || live || cold || apart || flavor != ""):
				return misused("--evacuate is of a guest that is there, and of no other move")
			case !evacuate && (image.Path != "" || loss):
				return misused("--image and --accept-data-loss are of --evacuate")
			case evacuate:
				r.Kind, r.AcceptLoss = migration.PlanEvacuation, loss
				if image.Path != "" {
					if err := checkImage(image); err != nil {
						return err
					}
					r.Image = &image
				}
			case live:
				r.Kind = migration.PlanLive
			case cold:
				r.Kind = migration.PlanCold
			}
			return a.plan(cmd, r)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&live, "live", false, "plan a live migration (default for a guest that runs)")
	f.BoolVar(&cold, "cold", false, "plan a cold migration (default for a guest that is shut off)")
	f.BoolVar(&apart, "share-nothing", false, "plan a move between hosts that need not reach each other, which the asked host would conduct")
	f.BoolVar(&evacuate, "evacuate", false, "plan the evacuation of a guest whose host is dead")
	f.StringVar(&image.Path, "image", "", "with --evacuate: `file`, on the host that it goes to, from which its first disk would be made")
	f.BoolVar(&loss, "accept-data-loss", false, "with --evacuate: its disks may lose what was written to them")
	f.StringVar(&flavor, "flavor", "", "plan a resize to this `flavor` of the host, or without INSTANCE a new guest of it")
	f.StringVar(&on, "on", "", "plan a new guest for this `host` alone")
	return cmd
}

// plan asks for a plan and shows it.
func (a *app) plan(cmd *cobra.Command, r api.PlanRequest) error {
	return a.ask(cmd, planTime, func(ctx context.Context, c *api.Client) error {
		p, err := c.Plan(ctx, r)
		if err != nil {
			return err
		}
		if err := a.print(p, func(w io.Writer) { planTable(w, p, r.ShareNothing) }); err != nil {
			return err
		}
		if p.Chosen == "" {
			return errNowhere
		}
		return nil
	})
}

// planTime is for a fleet of which some hosts do not answer.
const planTime = 2 * time.Minute

// planPlace is how wide a place may be in the table, planText how wide a reason:
// both look well in 80 columns.
const (
	planPlace = 36
	planText  = 78
)

func planTable(w io.Writer, p migration.Plan, apart bool) {
	for _, line := range screen.Fold(planSummary(p), planText) {
		fmt.Fprintln(w, line)
	}
	if p.Proof != nil {
		words := fmt.Sprintf("%s is dead (%s, by %s): %s", p.Source, p.Proof.Proof, p.Proof.By, p.Proof.Because)
		for _, line := range screen.Fold(words, planText) {
			fmt.Fprintln(w, line)
		}
	}
	if len(p.Blockers) > 0 {
		fmt.Fprintln(w, "\nIt can go nowhere, since")
		reasonLines(w, p.Blockers)
	}
	disks := "DISK"
	shared := slices.ContainsFunc(p.Hosts, func(h migration.PlanHost) bool { return h.SameDisk })
	if p.Kind == migration.PlanEvacuation {
		disks, shared = "DISKS", slices.ContainsFunc(p.Hosts, func(h migration.PlanHost) bool { return h.Disks != nil })
	}
	weighed := slices.ContainsFunc(p.Hosts, func(h migration.PlanHost) bool { return h.Near != nil })
	columns := func(all ...any) []any {
		if !apart {
			all = slices.Delete(all, 6, 7)
		}
		if !shared || apart {
			all = slices.Delete(all, 5, 6) // whose disks are shared is a column only where some are
		}
		if !weighed {
			all = slices.Delete(all, 3, 4)
		}
		return all
	}
	if len(p.Hosts) > 0 {
		fmt.Fprintln(w)
		screen.Row(w, columns("#", "HOST", "ANSWER", "NEAR", "MEMORY", disks, "WAY", "WOULD CLAIM")...)
	}
	for i, h := range p.Hosts {
		order, near, used, disk, claim := "-", "-", "-", "-", "-"
		switch {
		case h.OwnHost:
			order = fmt.Sprint(i + 1)
		case h.Candidate:
			order, used = fmt.Sprint(i+1), fmt.Sprintf("%.0f %%", 100*h.MemoryUsed)
		}
		if h.Claim != nil {
			claim = place(h.Claim.Assignment, planPlace)
		}
		if h.SameDisk {
			disk = "same"
		}
		if p.Kind == migration.PlanEvacuation {
			disk = disksWords(h.Disks)
		}
		if h.Near != nil {
			near = map[bool]string{true: "near", false: "far"}[*h.Near]
		}
		way := "-"
		if h.Verdict == migration.VerdictTakes {
			way = cmp.Or(string(h.Way), "none")
		}
		screen.Row(w, columns(order, h.Name, h.Verdict, near, used, disk, way, claim)...)
	}
	if weighed {
		weightLines(w, p.Hosts)
	}
	if apart && slices.ContainsFunc(p.Hosts, func(h migration.PlanHost) bool { return h.WayReason != "" }) {
		fmt.Fprintln(w, "\nThe way of its disks")
	}
	for _, h := range p.Hosts {
		if !apart || h.WayReason == "" {
			continue
		}
		for i, line := range screen.Fold("to "+h.Name+": "+h.WayReason, planText-4) {
			fmt.Fprintf(w, "%s%s\n", []string{"  - ", "    "}[min(i, 1)], line)
		}
	}
	for _, h := range p.Hosts {
		if h.Name == p.Chosen && h.Claim != nil && len(h.Claim.Allocations) > 0 {
			fmt.Fprintf(w, "\nPlacement would count on %s\n", h.Name)
			for _, rp := range slices.SortedFunc(maps.Keys(h.Claim.Allocations), func(x, y string) int { return strings.Compare(p.Providers[x], p.Providers[y]) }) {
				name := p.Providers[rp]
				if name == "" {
					name = rp
				}
				fmt.Fprintf(w, "  %s: %s\n", name, amounts(h.Claim.Allocations[rp]))
			}
		}
	}
	for _, h := range p.Hosts {
		if len(h.Reasons) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s %s\n", h.Name, map[migration.PlanVerdict]string{
			migration.VerdictTakes: "would take it, but is not tried by itself", migration.VerdictRefuses: "would not take it",
			migration.VerdictSilent: "does not answer", migration.VerdictUnasked: "was not asked",
		}[h.Verdict])
		reasonLines(w, h.Reasons)
	}
	for _, h := range p.Hosts {
		if len(h.Dropped) > 0 {
			fmt.Fprintf(w, "\nTo %s it would go without\n", h.Name)
			reasonLines(w, h.Dropped)
		}
	}
	if len(p.Left) > 0 {
		fmt.Fprintln(w, "\nPlacement was not asked for all of it; the hosts look at this by themselves:")
	}
	for _, text := range p.Left {
		for i, line := range screen.Fold(text, planText-4) {
			fmt.Fprintf(w, "%s%s\n", []string{"  - ", "    "}[min(i, 1)], line)
		}
	}
	if p.Truncated {
		fmt.Fprintln(w, "\nThe fleet has more hosts than Placement was asked to name: others may do too.")
	}
	optionTable(w, p.Options, p.OptionsFrom)
}

// disksWords say what an evacuation would do about disks.
func disksWords(d *migration.EvacuatedDisks) string {
	switch {
	case d == nil:
		return "-"
	case len(d.Lost) > 0:
		return "LOSES " + strings.Join(d.Lost, ",")
	case len(d.Made) > 0:
		return "made " + strings.Join(d.Made, ",") // read only: nothing is lost
	}
	return "kept"
}

// weightLines say what near and far weigh, the greatest first.
func weightLines(w io.Writer, hosts []migration.PlanHost) {
	names := map[float64][]string{}
	for _, h := range hosts {
		if h.Near != nil {
			names[h.Weight] = append(names[h.Weight], h.Name)
		}
	}
	fmt.Fprintln(w, "\nWeights, of which the greatest is tried first")
	for _, x := range slices.Backward(slices.Sorted(maps.Keys(names))) {
		head := strconv.FormatFloat(x, 'f', -1, 64) + ":"
		for i, line := range screen.Fold(head+" "+strings.Join(names[x], ", "), planText-4) {
			fmt.Fprintf(w, "%s%s\n", []string{"  ", "    "}[min(i, 1)], line)
		}
	}
}

// planSummary is what it comes to.
func planSummary(p migration.Plan) string {
	who := "A new guest of flavor " + p.Flavor
	does := "would be best on "
	switch p.Kind {
	case migration.PlanLive:
		who, does = p.InstanceName+" on "+p.Source, "would move live to "
	case migration.PlanCold:
		who, does = p.InstanceName+" on "+p.Source, "would move cold to "
	case migration.PlanEvacuation:
		who, does = cmp.Or(p.InstanceName, p.Instance)+" of "+cmp.Or(p.Source, "its host"), "would be evacuated to "
	case migration.PlanResize:
		who, does = p.InstanceName+" on "+p.Source+" as "+p.Flavor, "would move cold to "
		if p.Chosen == p.Source {
			return who + " (" + resources(p.Wants) + ") would stay where it is."
		}
	}
	who += " (" + resources(p.Wants) + ") "
	switch {
	case p.Chosen != "":
		return who + does + p.Chosen + "."
	case len(p.Hosts) == 0:
		return who + "has no other host to go to."
	}
	return who + "can go to no host."
}

// reasonLines prints reasons as errors have them, folded.
func reasonLines(w io.Writer, reasons []fault.Reason) {
	item := func(head, text string) {
		for i, line := range screen.Fold(text, planText-len(head)) {
			if i > 0 {
				head = strings.Repeat(" ", len(head))
			}
			fmt.Fprintf(w, "%s%s\n", head, line)
		}
	}
	for _, r := range reasons {
		text := r.Message
		if r.Cell != nil && !strings.Contains(text, fmt.Sprintf("cell %d", *r.Cell)) {
			text = fmt.Sprintf("cell %d: %s", *r.Cell, text)
		}
		item("  - ", text)
		if r.Change != "" {
			item("      to do: ", r.Change)
		}
	}
}
