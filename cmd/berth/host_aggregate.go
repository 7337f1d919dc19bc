package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/screen"
)

func (a *app) hostAggregate() *cobra.Command {
	var change api.ChangeAggregates
	cmd := &cobra.Command{
		Use:   "aggregate",
		Short: "Which of Placement's aggregates a host is in; put it into one, or take it out",
		Long: `List the aggregates of Placement's that a host is in, or change them. Those that are not
named stay. An aggregate is a uuid: any will do (uuidgen makes one), and it is there
as soon as a host is in it.

Hosts in one aggregate are near to each other: where a move names no host, near ones
are tried first, or as [migration] near_weight says. A provider that shares its disks
does so with the hosts in its aggregates, so that those count as well.

A change is asked of the host itself, by its socket or with --cert: Placement lets a
host's agent write that host's providers alone. Beside OpenStack there is no need to:
openstack aggregate add host does the same in Placement.`,
		Example: "  berth host aggregate\n  berth host aggregate --add 5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11\n  berth host aggregate -c host-b --cert alice.crt --remove 5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changes := cmd.Flags().Changed("add") || cmd.Flags().Changed("remove")
			if changes {
				if err := change.Validate(); err != nil {
					return misused("change aggregates: %w", err)
				}
			}
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				var got api.HostAggregates
				var err error
				if changes {
					got, err = c.ChangeAggregates(ctx, change)
				} else {
					got, err = c.Aggregates(ctx)
				}
				if err != nil {
					return err
				}
				return a.print(got, func(w io.Writer) { aggregateTable(w, got) })
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&change.Add, "add", nil, "put the host into the aggregate of this `uuid`; may be repeated")
	f.StringSliceVar(&change.Remove, "remove", nil, "take it out of the one of this `uuid`; may be repeated")
	return cmd
}

func aggregateTable(w io.Writer, h api.HostAggregates) {
	if len(h.Aggregates) == 0 {
		fmt.Fprintf(w, "%s is in no aggregate\n", h.Name)
		return
	}
	screen.Row(w, "HOST", "AGGREGATE")
	for _, uuid := range h.Aggregates {
		screen.Row(w, h.Name, uuid)
	}
}
