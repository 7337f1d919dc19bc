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

// answerTime bounds a command that only asks.
const answerTime = 30 * time.Second

// ask runs f with a client and a deadline.
func (a *app) ask(cmd *cobra.Command, most time.Duration, f func(ctx context.Context, c *api.Client) error) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), most)
	defer cancel()
	return f(ctx, c)
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Is all well, and if not: what, since when, what to do",
		Long: `Show how the agent is: what it depends on, what the host has left, what moves.
Exits with 7 when not all is well.

The part "claims" names guests that were adopted, or changed by hand, though they do
not fit, each CPU, device and page pool that is promised twice and who holds it, what
guests hold that the host no longer has, and guests that run without a claim; what
these use is given to nobody. The part "guard" says why those that were started by
hand could not be adopted. The part "allocations" is what the last audit of Placement
has left; berth audit names all of it. The part "ledger" is the database: that it was
damaged and where the file is kept, who is asked while it is rebuilt, which guests are
in doubt since, and that its disk is full. The ledger is audited for that by itself; --json has
the last audit, and what it took.`,
		Example: "  berth status\n  berth status -c host-b\n  berth status --json | jq .conditions",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				s, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if err := a.print(s, func(w io.Writer) { statusTable(w, s) }); err != nil {
					return err
				}
				if s.Health != api.HealthOK {
					return errDegraded
				}
				return nil
			})
		},
	}
}

func statusTable(w io.Writer, s api.Status) {
	ready := "ready"
	if !s.Ready {
		ready = "not ready"
	}
	fmt.Fprintf(w, "%s: %s, %s, mode %s, berth %s, up %s\n\n", s.Name, strings.ToUpper(string(s.Health)), ready, s.Mode, s.Version, strings.TrimSuffix(ago(s.StartedAt), " ago"))
	if s.Disabled != nil {
		fmt.Fprintf(w, "DISABLED for new guests: %s\n\n", disabledWords(s.Disabled))
	}
	row(w, "PART", "HEALTH", "SINCE", "DETAIL")
	for _, c := range s.Conditions {
		row(w, c.Name, c.Health, ago(c.Since), c.Detail)
		for _, r := range c.Reasons {
			if r.Message != c.Detail {
				fmt.Fprintf(w, "\t\t\t- %s\n", r.Message)
			}
			if r.Change != "" {
				fmt.Fprintf(w, "\t\t\t  to do: %s\n", r.Change)
			}
		}
	}
	fmt.Fprintln(w)
	usageTable(w, s.Usage)
	fmt.Fprintf(w, "\nguests %d, claims %d, moves going on %d\n", s.Instances, s.Claims, len(s.Migrations))
	for _, m := range s.Migrations {
		fmt.Fprintf(w, "  berth migration watch %s\n", m)
	}
	if len(s.Unconfirmed) > 0 {
		fmt.Fprintf(w, "moved or resized, waiting to be confirmed or reverted %d\n", len(s.Unconfirmed))
	}
	for _, m := range s.Unconfirmed {
		fmt.Fprintf(w, "  berth resize confirm %s\n", m)
	}
}

// usageTable prints the sums; VCPU are vCPUs that share CPUs, PCPU are CPUs that
// a guest has to itself, and are never promised twice.
func usageTable(w io.Writer, u api.Usage) {
	row(w, "RESOURCE", "TOTAL", "RESERVED", "RATIO", "USED", "FREE")
	row(w, "VCPU", u.Total.VCPUs, u.Reserved.VCPUs, u.CPURatio, u.Used.VCPUs, u.Free.VCPUs)
	row(w, "PCPU", u.Total.PCPUs, u.Reserved.PCPUs, 1, u.Used.PCPUs, u.Free.PCPUs)
	row(w, "MEMORY_MB", u.Total.MemoryMB, u.Reserved.MemoryMB, u.RAMRatio, u.Used.MemoryMB, u.Free.MemoryMB)
	row(w, "DISK_GB", u.Total.DiskGB, u.Reserved.DiskGB, u.DskRatio, u.Used.DiskGB, u.Free.DiskGB)
}
