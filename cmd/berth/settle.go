package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/migration"
)

func (a *app) migrationSettle() *cobra.Command {
	var w migration.Settlement
	cmd := &cobra.Command{
		Use: "settle MIGRATION --guest-is-at HOST --reason TEXT", Short: "Say where the guest of a move in doubt is, after you have checked", Args: cobra.ExactArgs(1),
		Long: `Say where the guest of a move in doubt is. Berth guesses never: where neither host's
hypervisor, ledger or journal tells, it waits for the one who does. When that one will
never answer again, you decide, by what you have checked yourself.

Ask the host that conducts the move, the one that the guest left, or a third one. If
that one is gone, ask the others, where ` + "`berth migration list`" + ` shows what they wait for.

  guest at the source        the move is undone; past the commit only where the
                             destination is gone for good (--gone HOST)
  guest at the destination   the move is finished; asked of the destination only
                             where the source is gone for good (--gone HOST)
  --gone HOST|placement      nobody waits for it any more; what is left there is given up:
                             also of a destination that the move went on without, and of
                             a Placement that refuses whatever the move has yet to write

It is refused, with every reason, where nothing is in doubt or the facts contradict
you: the other host answers and has the guest, a copy runs, no copy is there. Your word
is kept with the move, and told to the other host when it comes back: it ends its copy.

Exit code 0 when the word was taken, 3 when it was refused, 4 for an unknown move.`,
		Example: `  berth migration settle 6f1c… --guest-is-at host-a --gone host-b --reason "host-b burnt down"
  berth migration settle 6f1c… --guest-is-at host-b -c host-b --gone host-a --reason "disks of host-a pulled"
  berth migration settle 6f1c… --guest-is-at host-a --gone placement --reason "Placement was set up anew"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.Validate(); err != nil {
				return err
			}
			return a.ask(cmd, settleTime, func(ctx context.Context, c *api.Client) error {
				s, err := c.SettleMigration(ctx, args[0], w)
				if err != nil {
					return err
				}
				return a.print(s, func(out io.Writer) {
					fmt.Fprintf(out, "settled: the guest of migration %s is at %s, by the word of %s\n", s.Migration, s.GuestIsAt, s.By)
					if s.Record != nil && !s.Record.Done() {
						fmt.Fprintf(out, "the move goes on by it: berth migration watch %s\n", s.Migration)
					}
					// The conductor deletes it; here that is the host which is gone.
					if s.Record == nil && s.GuestIsAt == s.Host && len(w.Gone) > 0 {
						fmt.Fprintf(out, "Placement still counts the guest's old half on %s, as consumer %s: that host deletes it when it returns, else delete it yourself\n",
							strings.Join(w.Gone, ", "), s.Migration)
					}
				})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&w.GuestIsAt, "guest-is-at", "", "`HOST` that has the guest")
	f.StringSliceVar(&w.Gone, "gone", nil, "`HOST`, or placement, that will never come back as it was (may be given again)")
	f.StringVar(&w.Why, "reason", "", "what you have checked, in your `words`")
	return cmd
}

// settleTime bounds the answer: at a destination hooks run first. Arbitrary.
const settleTime = 3 * time.Minute

// settledBy is how an operator's word is shown.
func settledBy(w migration.Settlement) string {
	s := fmt.Sprintf("%s has said that the guest is at %s: %s", w.By, w.GuestIsAt, w.Why)
	if len(w.Gone) > 0 {
		s += " (gone: " + strings.Join(w.Gone, ", ") + ")"
	}
	return s
}
