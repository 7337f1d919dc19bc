package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth/agent/api"
)

func (a *app) claimCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "claim",
		Short: "What is held on a host, and for whom",
		Long: `A claim is an amount of a host held for one guest or one move. Nothing starts or
arrives without one, and what is free is the total minus the sum of all claims.

  pending   leased: its move is getting ready
  arriving  the guest may come at any moment; no lease
  bound     to a guest that lives here, running or stopped
  held      kept by a move without deadline`,
	})
	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List claims", Args: cobra.NoArgs,
			Example: "  berth claim list\n  berth claim list -c host-b --json",
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
					l, err := c.Claims(ctx)
					if err != nil {
						return err
					}
					return a.print(l, func(w io.Writer) {
						row(w, "CLAIM", "INSTANCE", "KIND", "STATE", "VCPUS", "MEMORY_MB", "DISK_GB", "MIGRATION", "REMARK")
						for _, c := range l.Claims {
							var remarks []string
							if c.Forced {
								remarks = append(remarks, "forced")
							}
							if c.Lease > 0 {
								remarks = append(remarks, "lease ends in "+rough(c.ExpiresIn))
							}
							name := c.Name
							if name == "" {
								name = short(c.Instance)
							}
							row(w, short(c.ID), name, c.Kind, c.State, c.Resources.VCPUs, c.Resources.MemoryMB, c.Resources.DiskGB, short(c.Migration), strings.Join(remarks, ", "))
						}
						fmt.Fprintln(w)
						usageTable(w, l.Usage)
					})
				})
			},
		},
		&cobra.Command{
			Use: "show CLAIM|INSTANCE", Short: "Show one claim, with the MigrationContext of its move", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
					cl, err := c.ClaimByID(ctx, args[0])
					if err != nil {
						return err
					}
					return a.print(cl, func(w io.Writer) {
						row(w, "claim", cl.ID)
						row(w, "instance", strings.TrimSpace(cl.Name+" "+cl.Instance))
						row(w, "kind", cl.Kind)
						row(w, "state", cl.State)
						row(w, "holds", resources(cl.Resources))
						row(w, "forced", yes(cl.Forced))
						row(w, "since", ago(cl.CreatedAt))
						if cl.Migration != "" {
							row(w, "migration", fmt.Sprintf("%s, attempt %d", cl.Migration, cl.Attempt))
						}
						if cl.Lease > 0 {
							row(w, "lease", fmt.Sprintf("%s, ends in %s", rough(cl.Lease), rough(cl.ExpiresIn)))
						}
						if m := cl.Context; m != nil {
							row(w, "move", m.Source+" -> "+m.Destination)
							row(w, "old", resources(m.OldResources))
							row(w, "new", resources(m.NewResources))
						}
					})
				})
			},
		},
	)
	return cmd
}
