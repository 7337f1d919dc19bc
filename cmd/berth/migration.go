package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/migration"
)

func (a *app) migrationCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "migration",
		Short: "Moves and changes: list, show, watch, set, force-complete, abort, settle, steps",
		Long: `A move is conducted, and remembered, by the host that the guest leaves, or by the one
that was asked for it with --share-nothing; a request about one that has its guest here
is passed on to that host. The others list it only while they wait for a host that is
silent. Of moves that are over a host keeps the last thousand.

The type is live-migration, migration (cold), resize, rebuild or evacuation, and the status Nova's
word for it; docs/statuses.md has them all, and which may follow which.`,
	})
	cmd.AddCommand(a.migrationList(), a.migrationShow(), a.migrationWatch(), a.migrationSet(), a.migrationForceComplete(), a.migrationAbort(),
		a.migrationSettle(), a.migrationSteps())
	return cmd
}

func abridge(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

func (a *app) migrationShow() *cobra.Command {
	return &cobra.Command{
		Use: "show MIGRATION|INSTANCE", Short: "Show one move, step by step, by its uuid or its guest's name", Args: cobra.ExactArgs(1),
		Long: `Show one move, by its uuid or by its guest's name or uuid: what is done or was done, how
it ended and why, and how long each phase and each step took. Of a guest that is on no
move its last one is shown, which is looked for on all hosts that answer: who conducted a
move remembers it.`,
		Example: "  berth migration show web\n  berth migration show web --json | jq -r '.error.message'",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) error {
				m, err := c.Migration(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printMigration(m)
			})
		},
	}
}

func (a *app) printMigration(m migration.Migration) error {
	return a.print(m, func(w io.Writer) {
		screen.Row(w, "migration", m.UUID)
		screen.Row(w, "instance", strings.TrimSpace(m.InstanceName+" "+m.InstanceUUID))
		screen.Row(w, "type", typeOf(m))
		if m.InPlace || m.MigrationType == migration.TypeRebuild {
			screen.Row(w, "host", m.SourceCompute)
		} else {
			to := m.DestCompute
			if to == "" && !m.Done() {
				to = "(choosing)"
			}
			screen.Row(w, "move", m.SourceCompute+" -> "+to)
		}
		if m.ShareNothing {
			screen.Row(w, "conducted by", m.ConductedBy())
			if way := wayWords(m); way != "" {
				screen.Row(w, "disks go", way)
			}
		}
		switch {
		case m.NewImage != "":
			screen.Row(w, "image", m.NewImage)
		case m.MigrationType == migration.TypeResize:
			screen.Row(w, "flavor", m.OldFlavor+" -> "+m.NewFlavor)
		}
		if m.Evacuation != nil {
			evacuationRows(w, *m.Evacuation)
		}
		status := string(m.Status)
		if m.Outcome != "" && string(m.Outcome) != status {
			status += ", " + string(m.Outcome)
		}
		screen.Row(w, "status", status)
		if words := sinceWords(m, time.Now()); words != "" {
			screen.Row(w, "doing", words)
		}
		screen.Row(w, "attempt", m.Attempt)
		screen.Row(w, "started", ago(m.CreatedAt))
		if m.Done() && !m.UpdatedAt.IsZero() {
			screen.Row(w, "ended", ago(m.UpdatedAt)+", after "+rough(m.UpdatedAt.Sub(m.CreatedAt)))
		}
		if len(m.Unasked) > 0 {
			screen.Row(w, "not asked", strings.Join(m.Unasked, ", ")+": not reached, and may remember a later move of this guest")
		}
		if words := phaseWords(m); words != "" {
			screen.Row(w, "phases", words)
		}
		if m.By != "" {
			by := m.By
			if m.Queue != "" {
				by += ", of drain " + m.Queue
			}
			screen.Row(w, "asked for by", by)
		}
		if m.Priority != 0 && m.Priority != migration.PriorityUser {
			screen.Row(w, "priority", api.Priority(m.Priority))
		}
		waitRows(w, m)
		if !m.Deadline.IsZero() && !m.Done() {
			screen.Row(w, "deadline", deadline(time.Until(m.Deadline)))
		}
		if m.Settled != nil {
			screen.Row(w, "settled", settledBy(*m.Settled))
		}
		if m.Status == migration.StatusFinished {
			screen.Row(w, "next", nextWords(m, time.Now()))
		}
		if p := m.Progress; p.MemoryTotal > 0 || p.DiskTotal > 0 {
			if words := transferWords(m); words != "" {
				screen.Row(w, "transfer", words)
				nextRows(w, m)
			}
			screen.Row(w, "sent", fmt.Sprintf("%s of memory, %s of disks, in %s", size(p.MemoryProcessed), size(p.DiskProcessed), rough(p.Elapsed)))
		}
		switch m.Outcome {
		case migration.OutcomeCompleted:
			if typeOf(m) == migration.TypeLiveMigration {
				screen.Row(w, "downtime", endWords(m))
			}
		case migration.OutcomeUndone:
			if m.Unfit == nil { // else it went back by steps of its own, which follow
				screen.Row(w, "put back", restored(m))
			}
		}
		if m.Unfit != nil {
			screen.Row(w, "could not run there", m.Unfit.Message)
		}
		if m.Error != nil {
			screen.Row(w, "error", m.Error.Message)
			for _, r := range m.Error.Reasons {
				if r.Message != m.Error.Message {
					fmt.Fprintf(w, "\t- %s\n", r.Message)
				}
				if r.Change != "" {
					fmt.Fprintf(w, "\t  to do: %s\n", r.Change)
				}
			}
		}
		if advice := settleAdvice(m); advice != "" {
			fmt.Fprintf(w, "\t  to do: %s\n", advice)
		}
		for _, r := range m.Refusals {
			at := ""
			if r.Step != "" {
				at = ", at " + strings.ReplaceAll(r.Step, "_", " ")
			}
			left := ""
			if r.Left {
				left = "; what was made there is still to be undone"
			}
			if r.GivenUp != nil {
				left = "; what was made there is given up, by the word of " + r.GivenUp.By + ": " + r.GivenUp.Why
			}
			screen.Row(w, "refused by", fmt.Sprintf("%s%s: %s%s", r.DestCompute, at, r.Message, left))
			if r.Left && r.GivenUp == nil {
				fmt.Fprintf(w, "\t  to do: start its agent; if that host is gone for good: berth migration settle %s --guest-is-at %s --gone %s --reason TEXT\n",
					m.UUID, guestOf(m), r.DestCompute)
			}
		}
		// The last attempt of a finished migration is the move itself, unless a revert was
		// given up since.
		stage := string(m.Stage)
		if m.Moved != 0 && m.Attempt != m.Moved {
			stepTable(w, "move", m.MoveSteps)
			if m.Stage == migration.StageFinished {
				stage = string(migration.StageRevert)
			}
		} else {
			stage = ""
		}
		stepTable(w, stage, m.Steps)
		controlTable(w, m.Control)
		optionTable(w, m.Options, m.OptionsFrom)
	})
}

// guestOf is the host that has the guest of a move: before it has arrived, and where it did
// not or went back, its source.
func guestOf(m migration.Migration) string {
	if m.Moved > 0 && m.Outcome != migration.OutcomeReverted && m.Outcome != migration.OutcomeUndone || m.Outcome == migration.OutcomeCompleted {
		return m.DestCompute
	}
	return m.SourceCompute
}

// wayWords say how the disks of a move go that shares nothing; empty while that is not
// decided.
func wayWords(m migration.Migration) string {
	switch m.Way {
	case migration.WayStraight:
		return "straight from " + m.SourceCompute + " to " + m.DestCompute
	case migration.WayRelay:
		words := "by " + m.ConductedBy()
		if m.WayReason != "" {
			words += ": " + m.WayReason
		}
		return words
	}
	return m.WayReason
}

// stepTable prints what was done, in order; nothing where nothing was.
func stepTable(w io.Writer, stage string, steps []migration.StepRecord) {
	if len(steps) == 0 {
		return
	}
	fmt.Fprintln(w)
	head := "STEP"
	if stage != "" {
		head += " (" + stage + ")"
	}
	screen.Row(w, head, "STATE", "TOOK", "TRIES", "ERROR")
	for _, s := range steps {
		took, tries := "", ""
		switch {
		case s.Duration > 0:
			took = rough(s.Duration)
		case s.Ended.IsZero() && !s.Begun.IsZero():
			took = rough(time.Since(s.Begun).Round(time.Second)) + " so far"
		}
		if s.Tries > 0 {
			tries = fmt.Sprint(s.Tries)
		}
		screen.Row(w, strings.ReplaceAll(s.Name, "_", " "), s.State, took, tries, abridge(s.Error, 100))
	}
}

// deadline says when an attempt is given up. One that is past it can only go forward.
func deadline(left time.Duration) string {
	if left < 0 {
		return "passed " + rough(-left) + " ago"
	}
	return "in " + rough(left)
}

// settleAdvice is what an operator does about a move in doubt whose reasons do not say
// so; empty for any other.
func settleAdvice(m migration.Migration) string {
	if m.Outcome != migration.OutcomeInDoubt ||
		m.Error != nil && slices.ContainsFunc(m.Error.Reasons, func(r fault.Reason) bool { return r.Change != "" }) {
		return ""
	}
	if wentPostCopy(m) {
		return fmt.Sprintf("it goes on by itself when who is silent answers; the guest is at %s and part of its memory may be at %s, so that neither domain may be ended", m.DestCompute, m.SourceCompute)
	}
	return fmt.Sprintf("it goes on by itself when who is silent answers; else find out whether the guest is at %s or %s, then: berth migration settle %s --guest-is-at HOST --reason TEXT",
		m.SourceCompute, m.DestCompute, m.UUID)
}

// printLine writes one record as one line of JSON, or as a document of YAML.
func (a *app) printLine(v any) error {
	if a.output == "yaml" {
		fmt.Fprintln(a.out, "---")
	}
	return screen.Document(a.out, v, a.output == "yaml", "")
}

func (a *app) migrationWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch MIGRATION|INSTANCE", Short: "Follow a move to its end; its outcome is the exit code", Args: cobra.ExactArgs(1),
		Long: "Follow a move to its end, or until it waits to be confirmed or reverted. With --json each change is one line. The exit code is that of `berth migrate`.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			return a.watch(cmd.Context(), c, args[0], "", "", true)
		},
	}
}

func (a *app) migrationAbort() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "abort MIGRATION|INSTANCE", Short: "Give a move up and put everything back", Args: cobra.ExactArgs(1),
		Long: `Give a move up, or a revert. One that waits for its turn is taken out of the queue; one
on its way is stopped and everything put back, also where the guest stands still for it.
It is refused from the point of no return on, when the guest has left its source: it runs
at the destination then, in post-copy before its memory is there. One that is finished is
not aborted but reverted: berth resize revert. With --wait the command returns when all is
put back.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.dial()
			if err != nil {
				return err
			}
			defer c.Close()
			asking, cancel := context.WithTimeout(cmd.Context(), answerTime)
			defer cancel()
			m, err := c.AbortMigration(asking, args[0])
			if err != nil {
				return err
			}
			if !wait || m.Done() {
				return a.printMigration(m)
			}
			p := newProgress(a, "")
			err = c.WatchMigration(cmd.Context(), m.UUID, watchPatience, func(now migration.Migration) error {
				m = now
				if !a.json {
					p.show(now)
				}
				if m.Status == migration.StatusFinished {
					return errWaits // a revert that was given up
				}
				return nil
			})
			p.end()
			if err != nil && !errors.Is(err, errWaits) {
				return err
			}
			// Undone is what was asked for here, and no failure.
			if m.Outcome != migration.OutcomeUndone {
				if err := m.Err(); err != nil {
					return err
				}
			}
			return a.printMigration(m)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "return when it is over")
	return cmd
}
