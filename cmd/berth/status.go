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
What is wrong stands first, with since when and what to do. Exits with 7 when not all
is well.

The part "peers" says until when this host's certificate is good; "guard" whether
libvirt asks before it starts a guest or takes one in, and why those that were started
by hand could not be adopted. The part "claims" names guests that were adopted, or changed by hand, though they do
not fit, each CPU, device and page pool that is promised twice and who holds it, what
guests hold that the host no longer has, and guests that run without a claim; what
these use is given to nobody. The part "allocations" is what the last audit of Placement
has left; berth audit names all of it. The part "ledger" is the database: that it was
damaged and where the file is kept, who is asked while it is rebuilt, which guests are
in doubt since, and that its disk is full. The ledger is audited for that by itself; --json has
the last audit, and what it took. The part "evacuation" names hosts that are dead, or do
not answer, and have instances on record. A part that has not answered, or a loop of the
agent that has not come round, says since when.`,
		Example: "  berth status\n  berth status -c host-b\n  berth status --json | jq .conditions",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				s, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if err := a.print(s, func(w io.Writer) { statusTable(w, s, screen.StyleOf(a.out)) }); err != nil {
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

// statusTable is one screen: what is wrong first, with since when and what to do; then what
// could be better; then what is fine, a line each.
func statusTable(w io.Writer, s api.Status, look screen.Style) {
	ready := "ready"
	if !s.Ready {
		ready = "not ready"
	}
	health, colour := strings.ToUpper(string(s.Health)), screen.Good
	if s.Health != api.HealthOK {
		colour = screen.Bad
	}
	fmt.Fprintf(w, "%s: %s, %s, mode %s, berth %s, up %s\n", s.Name, look.Paint(colour, health), ready, s.Mode, s.Version, strings.TrimSuffix(ago(s.StartedAt), " ago"))
	if s.Disabled != nil {
		fmt.Fprintf(w, "DISABLED for new guests: %s\n", disabledWords(s.Disabled))
	}
	var wrong, better, fine []api.Condition
	for _, c := range s.Conditions {
		switch {
		case c.Health != api.HealthOK:
			wrong = append(wrong, c)
		case len(c.Reasons) > 0:
			better = append(better, c)
		default:
			fine = append(fine, c)
		}
	}
	for _, part := range []struct {
		heading, colour string
		list            []api.Condition
	}{{"ERROR", screen.Bad, wrong}, {"NOTICE", screen.Hint, better}, {"OK", screen.Good, fine}} {
		for i, c := range part.list {
			if i == 0 {
				fmt.Fprintln(w)
				look.Heading(w, part.colour, part.heading)
			}
			look.Item(w, c.Name, conditionWords(c)...)
		}
	}
	fmt.Fprintln(w)
	usageTable(w, s.Usage)
	fmt.Fprintf(w, "instances %d, claims %d, active migrations %d\n", s.Instances, s.Claims, len(s.Migrations))
	for _, m := range s.Migrations {
		fmt.Fprintf(w, "  berth migration watch %s\n", m)
	}
	if len(s.Unconfirmed) > 0 {
		fmt.Fprintf(w, "moved or resized, waiting to be confirmed or reverted %d\n", len(s.Unconfirmed))
	}
	for _, m := range s.Unconfirmed {
		fmt.Fprintf(w, "  berth resize confirm %s\n", m)
	}
	if len(wrong) > 0 {
		fmt.Fprintln(w, "\nnext: berth doctor, for each thing that has to work; berth debug bundle, for somebody else to look")
	}
}

// mostReasons of one part are told, so that a screen holds all parts; --json has the others.
const mostReasons = 6

// conditionWords say how a part is, since when where it is not well, and what to do.
func conditionWords(c api.Condition) []string {
	said := strings.TrimPrefix(c.Detail, c.Name+" ") // the name stands beside it
	if c.Health != api.HealthOK && !c.Since.IsZero() {
		said = "for " + strings.TrimSuffix(ago(c.Since), " ago") + ": " + said
	}
	out := []string{said}
	for i, r := range c.Reasons {
		if i == mostReasons {
			return append(out, fmt.Sprintf("and %d more: berth status --json", len(c.Reasons)-i))
		}
		if r.Message != "" && !strings.Contains(c.Detail, r.Message) {
			out = append(out, "- "+r.Message)
		}
		if last := i+1 == min(len(c.Reasons), mostReasons); r.Change != "" && (last || c.Reasons[i+1].Change != r.Change) {
			out = append(out, "to do: "+r.Change) // once for all that want the same
		}
	}
	return out
}

// usageTable prints the sums; VCPU are vCPUs that share CPUs, PCPU are CPUs that
// a guest has to itself, and are never promised twice.
func usageTable(w io.Writer, u api.Usage) {
	screen.Row(w, "RESOURCE", "TOTAL", "RESERVED", "RATIO", "USED", "FREE")
	screen.Row(w, "VCPU", u.Total.VCPUs, u.Reserved.VCPUs, u.CPURatio, u.Used.VCPUs, u.Free.VCPUs)
	screen.Row(w, "PCPU", u.Total.PCPUs, u.Reserved.PCPUs, 1, u.Used.PCPUs, u.Free.PCPUs)
	screen.Row(w, "MEMORY_MB", u.Total.MemoryMB, u.Reserved.MemoryMB, u.RAMRatio, u.Used.MemoryMB, u.Free.MemoryMB)
	screen.Row(w, "DISK_GB", u.Total.DiskGB, u.Reserved.DiskGB, u.DskRatio, u.Used.DiskGB, u.Free.DiskGB)
}
