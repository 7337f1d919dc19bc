package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/screen"
)

func (a *app) claimCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "claim",
		Short: "What is held on a host, and for whom",
		Long: `A claim is an amount of a host held for one guest or one move, and the very cells,
CPUs, pages and devices that it is given from. Nothing starts or arrives without
one, and what is free is the total minus the sum of all claims.

  pending   leased: its move is getting ready
  arriving  the guest may come at any moment; no lease
  bound     to a guest that lives here, running or stopped
  held      kept by a move without deadline`,
	})
	cmd.AddCommand(a.claimList(), a.claimShow(), a.claimExplain())
	return cmd
}

func (a *app) claimList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List claims", Args: cobra.NoArgs,
		Long: `List claims and the sums of them. VCPUS share CPUs; PCPUS are CPUs that the guest
has to itself. PLACE says in short which cells, CPUs and devices of the host it has;
a guest that floats has no cell of its own. ` + "`berth claim explain`" + ` says it in full.`,
		Example: "  berth claim list\n  berth claim list -c host-b --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				l, err := c.Claims(ctx)
				if err != nil {
					return err
				}
				return a.print(l, func(w io.Writer) { claimTable(w, l, screen.ListWidth(a.out)) })
			})
		},
	}
}

// leastPlace is what a claim's place gets of a list, in columns: "2 cells, 1 cpu, 1 device".
const leastPlace = 26

func claimTable(w io.Writer, l api.ClaimList, width int) {
	names := map[string]string{}
	lines := [][]any{{"CLAIM", "INSTANCE", "KIND", "STATE", "VCPUS", "PCPUS", "MEMORY_MB", "DISK_GB", "REMARK"}}
	for _, c := range l.Claims {
		name := c.Name
		if name == "" {
			name = short(c.Instance)
		}
		names[c.Instance] = name
		lines = append(lines, []any{
			short(c.ID), name, c.Kind, c.State, c.Resources.VCPUs, c.Resources.PCPUs, c.Resources.MemoryMB, c.Resources.DiskGB, claimRemarks(c),
		})
	}
	list := screen.Table{Spare: []string{"KIND", "DISK_GB", "PCPUS", "VCPUS", "MEMORY_MB"}, Full: "berth claim list -o json has all"}
	left := width
	for column := range lines[0] {
		widest := 0
		for _, line := range lines {
			widest = max(widest, len(fmt.Sprint(line[column])))
		}
		left -= widest + 2
		list.Columns = append(list.Columns, fmt.Sprint(lines[0][column]))
	}
	list.Columns = append(list.Columns, "PLACE")
	for i, c := range l.Claims {
		list.Rows = append(list.Rows, append(lines[i+1], place(c.Assignment, max(left, leastPlace))))
	}
	list.Write(w, width)
	fmt.Fprintln(w)
	usageTable(w, l.Usage)
	named := func(uuids []string) []string {
		out := make([]string, len(uuids))
		for i, id := range uuids {
			if out[i] = names[id]; out[i] == "" {
				out[i] = id
			}
		}
		return out
	}
	if len(l.Usage.Forced) > 0 {
		fmt.Fprintf(w, "\nguests that do not fit: %s\n", strings.Join(named(l.Usage.Forced), ", "))
	}
	for _, d := range l.Usage.Doubled {
		d.Instances = named(d.Instances)
		fmt.Fprintf(w, "  - %s\n", d)
	}
}

func claimRemarks(c api.Claim) string {
	var out []string
	if c.Migration != "" {
		out = append(out, "move "+short(c.Migration))
	}
	if c.Forced {
		out = append(out, "forced")
	}
	if c.ByHand {
		out = append(out, "changed by hand")
	}
	if c.Lease > 0 {
		out = append(out, rough(c.ExpiresIn.Round(time.Second))+" left")
	}
	if c.WaitsFor != "" {
		out = append(out, "waits for "+abridge(c.WaitsFor, 40))
	}
	return strings.Join(out, ", ")
}

func (a *app) claimShow() *cobra.Command {
	return &cobra.Command{
		Use: "show CLAIM|INSTANCE", Short: "Show one claim, with the MigrationContext of its move", Args: cobra.ExactArgs(1),
		Long: `Show one claim, by its uuid, the first eight characters of it, or its instance's name
or uuid. While a move goes on, old and new are what the guest holds where it was and
where it goes.`,
		Example: "  berth claim show web-1\n  berth claim show 1a2b3c4d --json | jq .assignment",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				cl, err := c.ClaimByID(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(cl, func(w io.Writer) { claimRows(w, cl) })
			})
		},
	}
}

func claimRows(w io.Writer, cl api.Claim) {
	screen.Row(w, "claim", cl.ID)
	screen.Row(w, "instance", strings.TrimSpace(cl.Name+" "+cl.Instance))
	screen.Row(w, "kind", cl.Kind)
	screen.Row(w, "state", cl.State)
	screen.Row(w, "holds", resources(cl.Resources))
	screen.Row(w, "place", place(cl.Assignment, onePlace))
	screen.Row(w, "forced", yes(cl.Forced))
	if cl.ByHand {
		screen.Row(w, "changed", "by hand: it holds what the guest uses, not what was asked for")
	}
	screen.Row(w, "since", ago(cl.CreatedAt))
	if cl.Migration != "" {
		screen.Row(w, "migration", fmt.Sprintf("%s, attempt %d", cl.Migration, cl.Attempt))
	}
	if cl.WaitsFor != "" {
		screen.Row(w, "waits for", cl.WaitsFor)
	}
	if cl.Lease > 0 {
		screen.Row(w, "lease", fmt.Sprintf("%s, ends in %s", rough(cl.Lease), rough(cl.ExpiresIn)))
	}
	if m := cl.Context; m != nil {
		screen.Row(w, "move", m.Source+" -> "+m.Destination)
		screen.Row(w, "old", resources(m.OldResources)+"; "+place(m.OldAssignment, onePlace-40))
		screen.Row(w, "new", resources(m.NewResources)+"; "+place(m.NewAssignment, onePlace-40))
	}
}

func (a *app) claimExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain CLAIM|INSTANCE", Short: "Say which cells, CPUs, pages and devices a claim holds, and what was asked", Args: cobra.ExactArgs(1),
		Long: `Say what a claim holds of its host, cell by cell, beside what the flavor and image
asked for:

  dedicated  each vCPU that has a CPU to itself, and which (vcpu→cpu)
  idle       siblings of these that nobody may be pinned to, kept empty (isolate)
  emulator   the CPU that the hypervisor's own threads have to themselves
  shared     vCPUs that run on the cell's shared CPUs, with others'
  memory     how many pages of which size, or ordinary memory

and each PCI device with its address and the request that it answers. A dash under
ASKED is a guest that was adopted: what it has was found, nobody knows what was
asked. All of this is the guest's alone, but for shared CPUs and ordinary memory.`,
		Example: "  berth claim explain db-1\n  berth claim explain db-1 --json | jq '.cells[].pins'",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				e, err := c.ExplainClaim(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(e, func(w io.Writer) { explainTable(w, e) })
			})
		},
	}
}
