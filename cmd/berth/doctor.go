package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
)

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Could this host's guests be evacuated, and could it be drained in time; what to do if not", Args: cobra.NoArgs,
		Long: `Look at each thing that has to work on the day on which this host dies or is shut
down: whether the store of the fleet's records answers, its lease, the watchdog that is
armed by it, the fencing hook, and whether systemd-logind waits as long as a drain takes
(InhibitDelayMaxSec in logind.conf). Each comes with what was found, and what is wrong
with what to do about it. Changes nothing.

Exits with 7 when something is wrong. What is not used is not wrong.`,
		Example: "  berth doctor\n  berth doctor --json | jq '.checks[] | select(.outcome == \"wrong\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, doctorTime, func(ctx context.Context, c *api.Client) error {
				d, err := c.Examine(ctx)
				if err != nil {
					return err
				}
				if err := a.print(d, func(w io.Writer) { doctorTable(w, d) }); err != nil {
					return err
				}
				if d.Health != api.HealthOK {
					return errDegraded
				}
				return nil
			})
		},
	}
}

// doctorTime is for checks that wait for who does not answer. Arbitrary.
const doctorTime = 2 * time.Minute

func doctorTable(w io.Writer, d api.Diagnosis) {
	fmt.Fprintf(w, "%s: %s\n\n", d.Host, strings.ToUpper(string(d.Health)))
	row(w, "CHECK", "OUTCOME", "FOUND")
	for _, c := range d.Checks {
		outcome := string(c.Outcome)
		if c.Outcome == api.CheckWrong {
			outcome = strings.ToUpper(outcome)
		}
		row(w, c.Name, outcome, c.Detail)
		if c.Remedy != "" {
			fmt.Fprintf(w, "\t\tto do: %s\n", c.Remedy)
		}
	}
}
