package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
)

func (a *app) migrateCommand() *cobra.Command {
	said := newLiveFlags()
	var priority priorityFlag
	var live, off, offline bool
	var cold coldFlags
	var far apartFlags
	cmd := &cobra.Command{
		Use:   "migrate INSTANCE [HOST]",
		Short: "Move a guest to another host: live when it runs, else cold",
		Long: `Move a guest to HOST, or to the best host that Placement offers. The destination
holds a claim before anything moves; the guest runs on one side at any moment; when
anything fails before the point of no return, everything is put back and the command
exits with 8.

A guest that runs is moved live, one that is shut off cold. --live refuses one that is
shut off. --cold shuts one down that runs, and starts it again where it goes; --offline
refuses one that runs. A cold migration keeps what the guest had on its old host until
it is confirmed: berth resize confirm INSTANCE, or berth resize revert INSTANCE to go
back; see berth resize --help.

Asked of a host that does not have the instance, the request is passed on to the one that
does. That host takes it from a host with the right relay ([rights] relay); else it refuses
and names itself, and this command asks it with the operator's certificate of --cert, where
there is one. Ctrl-C stops watching, never the move.

A busy guest may change its memory faster than it is sent. --max-downtime says for how
long it may stand still at the end; --timeout when it is to be over, and --timeout-action
what then; --schedule what is done before, in steps, each after its number of passes that
came no nearer to the end. --postcopy permits that the guest goes on at the destination
before its memory is there: it always ends, and there is no way back. While it runs:
berth migration set, force-complete, abort.

What is not said here is said by the guest's flavor (extra specs
berth:live_migration_…), by [migration] of its host, or by default; berth migration show
has what counts and who said it. As many moves go at once as the hosts' limits allow;
--priority says whose turn is first.

` + apartHelp,
		Example: `  berth migrate web-1 host-b
  berth migrate web-1                          # Placement's candidates decide
  berth migrate web-1 host-b --bandwidth 20MiB/s --timeout 10m
  berth migrate web-1 host-b --postcopy --timeout 5m --timeout-action post-copy
  berth migrate web-1 host-b --schedule '2:max-downtime=800ms, 2:max-downtime=2s, 4:abort'
  berth migrate web-1 host-b --cold --shutdown-timeout 5m --confirm
  berth migrate web-1 host-b --alternate host-c --alternate host-d
  berth migrate web-1 host-b --share-nothing -c host-m   # host-m reaches both, and conducts
  berth migrate web-1 host-b --detach && berth migration list`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := api.Migrate{Instance: args[0], Migration: uuid.NewString(), Options: said.live, Priority: priority.p, Offline: offline}
			if len(args) == 2 {
				r.Destination = args[1]
			}
			wait, err := cold.waits()
			if err != nil {
				return err
			}
			switch {
			case live && (off || offline):
				return misused("--live, and --cold or --offline: say one of them")
			case live:
				r.MigrationType = migration.TypeLiveMigration
			case off || offline:
				r.MigrationType = migration.TypeMigration
			}
			for _, name := range options.OfGuestsThatRun(said.live) {
				if off || offline {
					return misused("--%s is of a live migration, not of a cold one", name)
				}
				r.MigrationType = migration.TypeLiveMigration
			}
			if priority.p != 0 && (off || offline) {
				return misused("--priority is of a live migration: a cold one waits for nobody")
			}
			for _, name := range changedFlags(cmd, coldNames) {
				if r.MigrationType == migration.TypeLiveMigration {
					return misused("--%s is of a cold migration, not of a live one", name)
				}
				r.MigrationType = migration.TypeMigration
			}
			if err := far.into(&r, live); err != nil {
				return err
			}
			if err := cold.into(&r); err != nil {
				return err
			}
			return a.move(cmd.Context(), r, wait, cold.confirm)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&live, "live", false, "live, and not at all where the guest does not run")
	f.BoolVar(&off, "cold", false, "cold: shut the guest down where it runs")
	f.BoolVar(&offline, "offline", false, "cold, and not at all where the guest runs")
	f.Var(&priority, "priority", "whose turn is first where moves wait: "+strings.Join(api.PriorityWords(), ", ")+", or a number; the higher goes first")
	said.register(f)
	cold.register(f, true)
	cold.registerWait(f)
	far.register(f)
	groupedUsage(cmd, migrateGroups)
	return cmd
}

// migrateGroups are the flags of berth migrate as its help shows them.
var migrateGroups = []flagGroup{
	{"The usual", []string{"bandwidth", "max-downtime", "timeout", "timeout-action", "postcopy"}},
	{"How", []string{"live", "cold", "offline", "wait", "detach", "priority"}},
	{"Live, of a guest that changes its memory fast", []string{"schedule", "observe-schedule", "auto-converge", "auto-converge-initial", "auto-converge-increment",
		"downtime-steps", "downtime-delay", "timeout-per-gib", "postcopy-bandwidth"}},
	{"Live, the transfer", []string{"parallel-connections", "zerocopy", "comp-methods", "comp-xbzrle-cache", "comp-mt-level", "comp-mt-threads", "comp-mt-dthreads",
		"comp-zlib-level", "comp-zstd-level", "available-switchover-bandwidth", "stall-timeout"}},
	{"Live, disks that the hosts do not share", []string{"copy-storage", "copy-storage-synchronous-writes", "migrate-disks-detect-zeroes"}},
	{"Cold", coldNames},
	{"Between hosts that share nothing", []string{"share-nothing", "alternate"}},
}

func changedFlags(cmd *cobra.Command, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !cmd.Flags().Changed(n) })
}

// move asks for a move or change and watches it; confirm confirms it when it is there.
func (a *app) move(ctx context.Context, r api.Migrate, wait, confirm bool) error {
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
	last, err := a.follow(ctx, c, m.UUID, m.ConductedBy(), r.Destination, false)
	if err == nil && confirm && last.Status == migration.StatusFinished {
		return a.decide(ctx, m.UUID, m.ConductedBy(), (*api.Client).ConfirmMigration, true)
	}
	return a.told(last, false, err)
}

// watchPatience is how long an agent may be away while its move is watched.
const watchPatience = 2 * time.Minute

// watch follows a migration that the host conducts, or empty for the one that is asked, to
// its end or its wait for a confirmation, and tells what it came to. each makes every record a line of JSON;
// else only the last one is printed.
func (a *app) watch(ctx context.Context, c *api.Client, id, conductor, to string, each bool) error {
	last, err := a.follow(ctx, c, id, conductor, to, each)
	return a.told(last, each, err)
}

// follow shows a migration as it goes, and gives its last record, with how it ended.
func (a *app) follow(ctx context.Context, c *api.Client, id, conductor, to string, each bool) (migration.Migration, error) {
	if conductor != "" {
		c = c.Via(conductor)
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
		if m.Status == migration.StatusFinished {
			return errWaits
		}
		return nil
	})
	p.end()
	if errors.Is(err, errWaits) {
		err = nil
	}
	if ctx.Err() != nil && !last.Done() {
		return last, fault.Refuse(fault.InDoubt, "stopped watching migration "+id, fault.Reason{
			Code: "going_on", Message: "the move goes on without this command",
			Change: "berth migration watch " + id + ", or berth migration abort " + id,
		})
	}
	if err == nil {
		err = last.Err()
	}
	if err == nil && last.Status == migration.StatusFinished && last.Error != nil {
		err = fault.New(fault.Undone, "revert migration %s of %s: given up, and undone: %w", id, last.InstanceName, last.Error.Err())
	}
	return last, err
}

// errWaits ends a watch of a move that waits for its confirmation.
var errWaits = errors.New("waits for its confirmation")

// told prints what a watched move came to, and passes on how it ended.
func (a *app) told(last migration.Migration, each bool, err error) error {
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

// tellOutcome says what a watched move came to, where that is settled, or what to type
// about one that waits.
func (a *app) tellOutcome(m migration.Migration) {
	if words := outcomeWords(m, time.Now()); words != "" {
		fmt.Fprintln(a.out, words)
	}
}

// outcomeWords are empty for a move that goes on or is in doubt.
func outcomeWords(m migration.Migration, now time.Time) string {
	name := m.InstanceName
	switch m.Outcome {
	case migration.OutcomeUndone:
		if m.Unfit != nil {
			return fmt.Sprintf("%s is on %s again, as it was before: it could not run on %s", name, m.SourceCompute, m.DestCompute)
		}
		if m.MigrationType == migration.TypeEvacuation {
			return fmt.Sprintf("%s is not evacuated from %s: %s", name, m.SourceCompute, restored(m))
		}
		return fmt.Sprintf("%s stays on %s: %s", name, m.SourceCompute, restored(m))
	case migration.OutcomeReverted:
		return fmt.Sprintf("%s is on %s again, as it was before", name, m.SourceCompute)
	case migration.OutcomeCompleted:
		switch {
		case m.MigrationType == migration.TypeEvacuation:
			return evacuatedWords(m)
		case m.MigrationType == migration.TypeRebuild:
			return fmt.Sprintf("%s is rebuilt on %s", name, m.SourceCompute)
		case m.MigrationType == migration.TypeLiveMigration || m.MigrationType == "":
			return fmt.Sprintf("%s runs on %s; %s", name, m.DestCompute, endWords(m))
		case m.InPlace:
			return fmt.Sprintf("confirmed: what %s had before is given up", name)
		}
		return fmt.Sprintf("confirmed: %s stays on %s, and what it had on %s is given up", name, m.DestCompute, m.SourceCompute)
	}
	if m.Status != migration.StatusFinished {
		return ""
	}
	words := fmt.Sprintf("%s is on %s now", name, m.DestCompute)
	if m.MigrationType == migration.TypeResize {
		words = fmt.Sprintf("%s has flavor %s now, on %s", name, m.NewFlavor, m.DestCompute)
	}
	if m.Error != nil {
		words = fmt.Sprintf("the revert of %s was given up: %s", name, m.Error.Message)
	}
	return words + "\n" + nextWords(m, now)
}

// endWords say what a live migration cost its guest.
func endWords(m migration.Migration) string {
	words := stoodStill(m)
	if !wentPostCopy(m) {
		return words
	}
	if took := followed(m); took > 0 {
		return words + ", and its memory followed in " + rough(took) + " (post-copy)"
	}
	return words + ", and its memory followed (post-copy)"
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
