package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/agent/api"
)

func (a *app) hostSet() *cobra.Command {
	var disable, enable bool
	var reason string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Keep new guests away from a host, or let them come again",
		Long: `Disable a host for new guests, or enable it again. What is set outlives restarts of
the agent and of the machine.

A disabled host has the trait COMPUTE_STATUS_DISABLED in Placement, by which it is
no candidate for anybody's new guests and moves. It refuses to create a guest, and a
move to it, also one that names it. Its guests run on, can be stopped, started and
moved away; a move that had begun goes on, and one by virsh is not hindered.

The same trait, when somebody else has set it, stays; it is not Berth's to take away.`,
		Example: "  berth host set --disable --reason \"memory to be replaced\"\n  berth host set --enable",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if disable == enable || disable && reason == "" || enable && reason != "" {
				return misused("set host: say --disable with --reason TEXT, or --enable")
			}
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				state, err := c.SetHost(ctx, api.SetHost{Disabled: &disable, Reason: reason})
				if err != nil {
					return err
				}
				return a.print(state, func(w io.Writer) {
					if state.Disabled == nil {
						fmt.Fprintf(w, "%s takes new guests\n", state.Name)
						return
					}
					fmt.Fprintf(w, "%s is disabled for new guests: %s\n", state.Name, disabledWords(state.Disabled))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&disable, "disable", false, "no new guests")
	cmd.Flags().BoolVar(&enable, "enable", false, "new guests again")
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that says why, for other operators")
	return cmd
}

func disabledWords(d *api.Disabled) string {
	return fmt.Sprintf("%s (by %s, %s)", d.Reason, d.By, ago(d.At))
}
