package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/screen"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/options"
	"berth/migration/task"
)

func (a *app) migrationSet() *cobra.Command {
	said := newLiveFlags("bandwidth", "max-downtime")
	cmd := &cobra.Command{
		Use: "set MIGRATION|INSTANCE", Short: "Change a live migration on its way: bandwidth, maximum downtime", Args: cobra.ExactArgs(1),
		Long: `Change a live migration on its way. A higher maximum downtime has it end sooner, and a
bound of the bandwidth leaves the link to others; --bandwidth none takes the bound away.
In post-copy the bandwidth is that of what is left.

What the schedule does later is above it.`,
		Example: "  berth migration set web-1 --max-downtime 2s\n  berth migration set web-1 --bandwidth 50MiB/s",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.SetMigration{Bandwidth: said.live.Bandwidth, MaxDowntime: said.live.MaxDowntime}
			if in == (api.SetMigration{}) {
				return misused("set what of %s: say --bandwidth, --max-downtime, or both", args[0])
			}
			if in.Bandwidth == options.NoRate {
				in.Bandwidth = api.Unbounded
			}
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				m, err := c.SetMigration(ctx, args[0], in)
				if err != nil {
					return err
				}
				return a.print(m, func(w io.Writer) { fmt.Fprintln(w, setWords(m, in)) })
			})
		},
	}
	said.register(cmd.Flags())
	return cmd
}

// setWords say what holds of a move now.
func setWords(m migration.Migration, in api.SetMigration) string {
	var out []string
	if in.Bandwidth > 0 {
		out = append(out, boundWords(in.Bandwidth))
	}
	if in.MaxDowntime > 0 {
		out = append(out, "it may stand still for "+rough(in.MaxDowntime))
	}
	return cmp.Or(m.InstanceName, m.UUID) + ": " + strings.Join(out, "; ")
}

func boundWords(bandwidth uint64) string {
	if bandwidth >= api.Unbounded {
		return "sent without a bound"
	}
	return "sent with at most " + size(bandwidth) + "/s"
}

func (a *app) migrationForceComplete() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "force-complete MIGRATION|INSTANCE", Short: "Have a live migration come to its end now: by post-copy, or with the guest standing still", Args: cobra.ExactArgs(1),
		Long: `Have a live migration come to its end now, however fast its guest changes its memory.
Where post-copy is permitted (--postcopy, or the flavor's or the host's word) and possible,
the guest goes on at the destination at once and its memory follows; there is no way back
from then on. Else its CPUs stand still where it is until its memory is there, for as long
as what remains takes; until then berth migration abort lets it run on.

With --wait the command returns when the move is over, and exits as berth migrate does.`,
		Example: "  berth migration force-complete web-1 --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			asking, cancel := context.WithTimeout(cmd.Context(), answerTime)
			defer cancel()
			m, err := c.ForceComplete(asking, args[0])
			switch {
			case err != nil:
				return err
			case wait && !m.Done():
				return a.watch(cmd.Context(), c, m.UUID, "", "", false)
			}
			return a.print(m, func(w io.Writer) { fmt.Fprintln(w, forcedWords(m)) })
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "watch until it is over")
	return cmd
}

// forcedWords say how a move is forced to its end, as far as that is on record already: it is
// done at the next look at the transfer.
func forcedWords(m migration.Migration) string {
	how := "that is noted, and done at once"
	for _, c := range m.Control {
		if c.Action.Why != whyForced || !c.Done {
			continue
		}
		switch c.Action.Do {
		case converge.ActPostCopy:
			how = "it goes on by post-copy"
		case converge.ActSuspend:
			how = "its CPUs stand still until its memory is there"
		}
	}
	return fmt.Sprintf("%s is forced to its end: %s; berth migration watch %s", cmp.Or(m.InstanceName, m.UUID), how, m.UUID)
}

// whyForced is the conductor's code of what force-complete asked for.
const whyForced = "force_complete"

// wentPostCopy says whether a move's guest ran at its destination before its memory was there.
func wentPostCopy(m migration.Migration) bool {
	return m.Status == migration.StatusPostCopy || followed(m) > 0 || strings.HasPrefix(m.Progress.Phase, phasePostCopy)
}

// followed is for how long a guest ran at its destination before its memory was there; 0 where
// that is not known.
func followed(m migration.Migration) time.Duration {
	for _, s := range m.Steps {
		if s.Name == migration.StepFollowPostCopy {
			return s.Duration
		}
	}
	return 0
}

// waitRows are what a move waits for, each with what to do.
func waitRows(w io.Writer, m migration.Migration) {
	for i, r := range m.Waits {
		name := "waits for"
		if i > 0 {
			name = "and for"
		}
		screen.Row(w, name, r.Message)
		if r.Change != "" {
			fmt.Fprintf(w, "\t  to do: %s\n", r.Change)
		}
	}
}

// transferWords are the numbers of a transfer on its way; empty for none.
func transferWords(m migration.Migration) string {
	what, total, left := transfer(m)
	if what == "" {
		return ""
	}
	p := m.Progress
	words := []string{
		fmt.Sprintf("%s %d%%", what, percent(total, left)), size(left) + " left", size(p.Rate) + "/s",
		strings.TrimSpace(eta(p, left)),
	}
	if words = append(words, controlWords(p)...); p.Stalls > 0 {
		words = append(words, fmt.Sprintf("no nearer for %s", passes(p.Stalls)))
	}
	return strings.Join(words, ", ")
}

// nextRows are what will be done about a transfer on its way, or what to type where nothing
// will, though it does not end by itself.
func nextRows(w io.Writer, m migration.Migration) {
	switch p := m.Progress; {
	case p.Next != "":
		screen.Row(w, "next", p.Next)
	case p.Never && m.Step == migration.StepStream:
		screen.Row(w, "next", "nothing: it goes on like this until somebody does something")
		more := ""
		if p.ExpectedDowntime > 0 {
			more = fmt.Sprintf("berth migration set %s --max-downtime %s, ", m.UUID, (p.ExpectedDowntime + p.ExpectedDowntime/4).Round(100*time.Millisecond))
		}
		fmt.Fprintf(w, "\t  to do: %sberth migration force-complete %s, or berth migration abort %s\n", more, m.UUID, m.UUID)
	}
}

// sinceWords say what a move does at present, and for how long it has done that; empty for one
// that is over, waits, or has no step under way.
func sinceWords(m migration.Migration, now time.Time) string {
	doing := doingWords(m)
	if m.Done() || m.Status == migration.StatusFinished || len(m.Waits) > 0 || doing == "" {
		return ""
	}
	for _, s := range m.Steps {
		if s.Name == m.Step && m.Phase != task.Undoing && !s.Begun.IsZero() && s.Ended.IsZero() {
			doing += ", in this step for " + rough(now.Sub(s.Begun).Round(time.Second))
		}
	}
	return doing
}

func passes(n int) string {
	if n == 1 {
		return "1 pass"
	}
	return fmt.Sprintf("%d passes", n)
}

// controlTable prints what was done about a transfer on its way; nothing where nothing was.
func controlTable(w io.Writer, all []migration.Control) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "ACTION", "AGO", "BY", "RESULT", "WHY")
	for _, c := range all {
		result := "done"
		switch {
		case c.Error != "":
			result = "failed: " + c.Error
		case c.Action.Observed:
			result = "only observed"
		case !c.Done:
			result = "not done"
		}
		screen.Row(w, controlAction(c), ago(c.At), cmp.Or(c.By, "schedule"), result, c.Action.Message)
	}
}

// controlAction is what was done, as a schedule spells it.
func controlAction(c migration.Control) string {
	switch {
	case c.Bandwidth >= api.Unbounded:
		return "bandwidth=none"
	case c.Bandwidth > 0:
		return "bandwidth=" + options.FormatBytes(c.Bandwidth, true)
	case c.Action.Downtime > 0:
		return fmt.Sprintf("%s=%s", c.Action.Do, c.Action.Downtime)
	}
	return string(c.Action.Do)
}

// optionTable prints the options of a live migration with who said each; nothing for a move that
// has none, and of those that nobody said only those that have a default.
func optionTable(w io.Writer, live migration.Options, from map[string]options.From) {
	if len(from) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "OPTION", "VALUE", "SAID BY")
	for _, v := range options.Effective(live, from) {
		if from[v.Name] != "" {
			screen.Row(w, strings.ReplaceAll(v.Flag, "-", " "), v.Value, v.From)
		}
	}
}
