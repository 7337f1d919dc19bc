package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"berth/agent/api"
	"berth/agent/host/external"
)

// externalCommand is for tools that run migrations of their own (design section 12).
func (a *app) externalCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:        "external",
		SuggestFor: []string{"hook"},
		Short:      "For tools that move or change guests themselves: claim before, tell after",
		Long: `A tool that runs its own migrations asks Berth on the destination before the
stream begins, and tells it afterwards. Each may be asked again and again.

  berth external pre-live-migration --migration UUID --instance UUID --source HOST < domain.xml
      on the destination: claims, prepares, prints where and with which document to
      migrate. Exit code 3 when it is refused: then do not migrate.
  berth external post-live-migration-at-destination --migration UUID
      on the destination, when the guest has come: it is Berth's from then on.
  berth external rollback-live-migration-at-destination --migration UUID
      on the destination, when it did not: the claim ends.
  berth external post-live-migration --migration UUID
  berth external rollback-live-migration --migration UUID
      on the source: the guest has left, or stays.

The same of a guest that moves while it is off, or is resized:

  berth external prep-resize --migration UUID --instance UUID --source HOST [--flavor F] < domain.xml
      on the destination: claims, prepares, prints the definition to make there.
  berth external resize-instance --migration UUID --instance UUID --destination HOST
      on the source, before the guest is powered off: it may be given to that host.
  berth external finish-resize --migration UUID
      on the destination, when the guest is off and defined there: it is its host's.
  berth external rollback-prep-resize --migration UUID
  berth external finish-revert-resize --migration UUID
      on the destination and on the source, before that: all is given back, and the
      guest stays.
  berth external confirm-resize --migration UUID
      on the source, and on the destination: there is no way back any more.
  berth external revert-resize --migration UUID
  berth external finish-revert-resize --migration UUID
      on the destination, with the guest off, and then on the source: it comes back.

And of a rebuild, on the guest's own host:

  berth external pre-rebuild-instance --migration UUID --instance UUID < domain.xml
  berth external post-rebuild-instance --migration UUID
  berth external rollback-rebuild-instance --migration UUID

UUID names the tool's migration, in lower case; take a new one for each try.`,
	})
	short := map[string]string{
		external.PhasePreLive:               "On the destination, before: claim, prepare, print the document to migrate with",
		external.PhasePostAtDestination:     "On the destination, after: the guest has come",
		external.PhaseRollbackAtDestination: "On the destination, after: it did not come",
		external.PhasePost:                  "On the source, after: it has left",
		external.PhaseRollback:              "On the source, after: it stays",
		external.PhasePrepResize:            "On the destination, before a cold move: claim, prepare, print the definition",
		external.PhaseResizeInstance:        "On the source, before a cold move: the guest may be given to its destination",
		external.PhaseFinishResize:          "On the destination, when the guest is off and defined there: it is its host's",
		external.PhaseConfirmResize:         "On the source and on the destination: there is no way back any more",
		external.PhaseRollbackPrepResize:    "On the destination, instead of finishing: all is given back",
		external.PhaseRevertResize:          "On the destination, with the guest off: all is given back to its source",
		external.PhaseFinishRevertResize:    "On the source, after: the guest is there again; before it has left: it stays",
		external.PhasePreRebuild:            "Before a rebuild: claim, print the document to define",
		external.PhasePostRebuild:           "After a rebuild: what the guest held before is given up",
		external.PhaseRollbackRebuild:       "Instead of a rebuild: what was claimed is given back",
	}
	for _, phase := range external.Phases() {
		cmd.AddCommand(a.externalPhase(phase, short[phase]))
	}
	return cmd
}

func (a *app) externalPhase(phase, short string) *cobra.Command {
	var migration string
	var r external.HookRequest
	comes := phase == external.PhasePreLive || phase == external.PhasePrepResize
	before := comes || phase == external.PhasePreRebuild
	gives := phase == external.PhaseResizeInstance
	dump := "--inactive"
	if phase == external.PhasePreLive {
		dump = "--migratable"
	}
	cmd := &cobra.Command{
		Use: phase, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if migration == "" || (before || gives) && r.Instance == "" || comes && r.Source == "" || gives && r.Destination == "" {
				want := "--migration"
				switch {
				case gives:
					want = "--migration, --instance and --destination"
				case comes:
					want = "--migration, --instance and --source"
				case before:
					want = "--migration and --instance"
				}
				return misused("%s: say %s", phase, want)
			}
			if before {
				if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
					return misused("%s: give the guest's document on standard input: virsh dumpxml %s GUEST | berth external %s …", phase, dump, phase)
				}
				text, err := a.readInput("the guest's document")
				if err != nil {
					return fmt.Errorf("%s: %w", phase, err)
				}
				r.DomainXML = text
			}
			return a.ask(cmd, workTime, func(ctx context.Context, c *api.Client) error {
				answer, err := c.MigrationHook(ctx, migration, phase, r)
				if err != nil {
					return err
				}
				// For programs, whatever --output says.
				a.json, a.output = true, "json"
				return a.print(answer, nil)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&migration, "migration", "", "the tool's own `uuid` of the migration")
	f.StringVar(&r.Instance, "instance", "", "the guest's `uuid`")
	if phase == external.PhasePrepResize {
		f.StringVar(&r.FlavorName, "flavor", "", "a flavor of the destination, by `name`, that the guest is to have")
	}
	if gives {
		f.StringVar(&r.Destination, "destination", "", "the `host` that the guest goes to, by its provider's name")
	}
	if comes {
		f.StringVar(&r.Source, "source", "", "the `host` that the guest comes from, by its provider's name")
	}
	return cmd
}
