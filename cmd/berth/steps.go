package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/screen"
	"berth/migration"
	"berth/migration/conductor"
)

func (a *app) migrationSteps() *cobra.Command {
	return &cobra.Command{
		Use: "steps [STORY]", Short: "The steps of every kind of move, in order, and what undoes each", Args: cobra.MaximumNArgs(1),
		Long: `Print the steps of every kind of move, in order, with what undoes each, from the code
that runs them: of this program, or with --connect of an agent. When a step fails, what
stands in the column UNDO is done from there upwards; a dash has nothing to undo.

  final     from here on nobody can give it up, though it may fail and be undone
  forward   tried until it is done, and never undone`,
		Example: "  berth migration steps resize\n  berth migration steps --json | jq -r '.stories[].story'",
		RunE: func(cmd *cobra.Command, args []string) error {
			stories := conductor.Stories()
			if a.connect != "" {
				err := a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) (err error) {
					stories, err = c.Stories(ctx)
					return err
				})
				if err != nil {
					return err
				}
			}
			if len(args) == 1 {
				var names []string
				for _, s := range stories {
					names = append(names, s.Name)
				}
				stories = slices.DeleteFunc(stories, func(s migration.Story) bool { return s.Name != args[0] })
				if len(stories) == 0 {
					return misused("no story %q: want one of %s", args[0], strings.Join(names, ", "))
				}
			}
			return a.print(api.StoryList{Stories: stories}, func(w io.Writer) { storyTable(w, stories) })
		},
	}
}

func storyTable(w io.Writer, stories []migration.Story) {
	for i, s := range stories {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "STORY %s\n", s.Name)
		screen.Row(w, "#", "STEP", "ASKS", "STATUS", "UNDO", "KIND")
		for j, st := range s.Steps {
			kind := ""
			switch {
			case st.Forward:
				kind = "forward"
			case st.Final:
				kind = "final"
			}
			screen.Row(w, j+1, st.Name, st.Asks, st.Status, st.Undo, kind)
		}
	}
}
