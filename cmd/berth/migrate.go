package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
)

func (a *app) migrateCommand() *cobra.Command {
	var bandwidth string
	var o migration.Options
	var wait, detach bool
	cmd := &cobra.Command{
		Use:   "migrate INSTANCE [HOST]",
		Short: "Live-migrate a guest to another host",
		Long: `Move a running guest to HOST, or to the best host that Placement offers. The
destination holds a claim before any memory moves; the guest runs on one side at
any moment; when anything fails before the point of no return, everything is put
back and the command exits with 8.

Asked of a host that does not run the guest, the request is passed on to the one
that does. Ctrl-C stops watching, never the move.`,
		Example: `  berth migrate web-1 host-b
  berth migrate web-1                          # Placement's candidates decide
  berth migrate web-1 host-b --bandwidth 20MiB/s --timeout 10m --timeout-action abort
  berth migrate web-1 host-b --detach && berth migration list`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := api.Migrate{Instance: args[0], Migration: uuid.NewString(), Options: o}
			if len(args) == 2 {
				r.Destination = args[1]
			}
			if detach && wait && cmd.Flags().Changed("wait") {
				return fault.New(fault.Invalid, "--wait and --detach: say one of them")
			}
			rate, err := config.ParseRate(bandwidth)
			if err != nil {
				return fault.New(fault.Invalid, "--bandwidth: %w", err)
			}
			r.Options.Bandwidth = uint64(rate)
			if o.TimeoutAction != "" && o.TimeoutAction != "abort" {
				return fault.New(fault.Invalid, "--timeout-action %q: want abort", o.TimeoutAction)
			}
			if o.TimeoutAction != "" && o.Timeout == 0 {
				return fault.New(fault.Invalid, "--timeout-action without --timeout: there is nothing to act on")
			}
			return a.migrate(cmd.Context(), r, wait && !detach)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Parallel, "parallel", 0, "send memory by `N` connections (default: one)")
	f.StringVar(&bandwidth, "bandwidth", "0", "bound of the transfer, such as 20MiB/s (default: the host's)")
	f.DurationVar(&o.MaxDowntime, "max-downtime", 0, "longest time for which the guest may stand still (default: the host's)")
	f.DurationVar(&o.Timeout, "timeout", 0, "longest time for the transfer (default: the host's)")
	f.StringVar(&o.TimeoutAction, "timeout-action", "", "what to do then: abort")
	f.DurationVar(&o.StallTimeout, "stall-timeout", 0, "no progress for this long is a dead link (default: the host's)")
	f.BoolVar(&wait, "wait", true, "watch until it is over")
	f.BoolVar(&detach, "detach", false, "return when the move is accepted")
	return cmd
}

func (a *app) migrate(ctx context.Context, r api.Migrate, wait bool) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	// The checks on both hosts, a claim among them, come before the answer.
	asking, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	m, err := c.Migrate(asking, r)
	if err != nil {
		return err
	}
	if !wait {
		return a.printMigration(m)
	}
	return a.watch(ctx, c, m.UUID, m.SourceCompute, r.Destination, false)
}

// watchPatience is how long an agent may be away while its move is watched.
const watchPatience = 2 * time.Minute

// watch follows a migration to its end, to the host that was named or empty. each
// makes every record a line of JSON; else only the last one is printed.
func (a *app) watch(ctx context.Context, c *api.Client, id, source, to string, each bool) error {
	if source != "" {
		c = c.Via(source)
	}
	var last migration.Migration
	p := newProgress(a, to)
	err := c.WatchMigration(ctx, id, watchPatience, func(m migration.Migration) error {
		last = m
		switch {
		case a.json && each:
			return a.printLine(m)
		case !a.json:
			p.show(m)
		}
		if m.Outcome == migration.OutcomeInDoubt {
			return m.Err()
		}
		return nil
	})
	p.end()
	if ctx.Err() != nil && !last.Done() {
		return fault.Refuse(fault.InDoubt, "stopped watching migration "+id, fault.Reason{
			Code: "going_on", Message: "the move goes on without this command",
			Change: "berth migration watch " + id + ", or berth migration abort " + id,
		})
	}
	if err == nil {
		err = last.Err()
	}
	if a.json && !each && last.UUID != "" {
		if printErr := a.printMigration(last); printErr != nil {
			return printErr
		}
	}
	if !a.json {
		a.tellOutcome(last)
	}
	return err
}

// tellOutcome says what a watched move came to, where that is settled.
func (a *app) tellOutcome(m migration.Migration) {
	switch m.Outcome {
	case migration.OutcomeCompleted:
		fmt.Fprintf(a.out, "%s runs on %s; %s\n", m.InstanceName, m.DestCompute, stoodStill(m))
	case migration.OutcomeUndone:
		fmt.Fprintf(a.out, "%s stays on %s: %s\n", m.InstanceName, m.SourceCompute, restored(m))
	}
}

// stoodStill says for how long the guest did not run, as far as it was measured.
func stoodStill(m migration.Migration) string {
	switch {
	case m.HandoverDowntime == 0:
		return "how long it stood still was not measured"
	case m.Progress.Downtime == 0:
		return "the hand-over took " + rough(m.HandoverDowntime)
	}
	return fmt.Sprintf("it stood still for %s, of which the hand-over took %s", rough(m.Progress.Downtime+m.HandoverDowntime), rough(m.HandoverDowntime))
}
