package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/migration"
)

// mostOver is how many moves that are over are listed where not all are asked for: about a
// screen.
const mostOver = 30

// migrationFilter says which moves are listed; a zero field takes all.
type migrationFilter struct {
	status   []string
	instance string // name or uuid
	host     string // that one leaves, goes to or conducts
	since    string // a time, or how long ago
}

// take gives the moves of a list that are wanted. fault.Invalid for a time that is none.
func (f migrationFilter) take(list []migration.Migration, now time.Time) ([]migration.Migration, error) {
	after, err := sinceWhen(f.since, now)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(m migration.Migration) bool {
		return len(f.status) > 0 && !slices.Contains(f.status, string(m.Status)) ||
			f.instance != "" && f.instance != m.InstanceName && f.instance != m.InstanceUUID ||
			f.host != "" && !slices.Contains([]string{m.SourceCompute, m.DestCompute, m.Conductor}, f.host) ||
			m.CreatedAt.Before(after)
	}), nil
}

// sinceWhen reads a time, a day, or how long ago (36h). Empty is the zero time.
func sinceWhen(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, misused("--since %q: want how long ago (36h, 20m), a day (2026-01-31) or a time (2026-01-31T12:00:00Z)", text)
}

// newestOver leaves those of a list, newest first, that are not over and the newest of those
// that are, and says how many others there were. most 0 leaves all.
func newestOver(list []migration.Migration, most int) (kept []migration.Migration, left int) {
	over := 0
	for _, m := range list {
		if m.Done() {
			if over++; most > 0 && over > most {
				continue
			}
		}
		kept = append(kept, m)
	}
	return kept, len(list) - len(kept)
}

// listedMigrations is what berth migration list prints.
type listedMigrations struct {
	api.MigrationList
	// Silent are the hosts that did not answer, and why. Of --all only.
	Silent map[string]string `json:"silent,omitempty"`
}

// askedAtOnce bounds how many hosts are asked at the same time.
const askedAtOnce = 16

// migrationsOfAll asks every host that the agent knows, through it. A host that is silent is named.
func migrationsOfAll(ctx context.Context, c *api.Client) (out listedMigrations, err error) {
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return out, err
	}
	out.Silent = map[string]string{}
	byUUID := map[string]migration.Migration{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, h := range hosts {
		if !h.Local && !h.Reachable {
			out.Silent[h.Name] = cmp.Or(h.Error, "it does not answer")
			continue
		}
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			from := c
			if !h.Local {
				from = c.Via(h.Name)
			}
			list, err := from.Migrations(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				out.Silent[h.Name] = err.Error()
			}
			for _, m := range list {
				// A host that waits for the one that conducts lists the move too, without its steps.
				if before, twice := byUUID[m.UUID]; !twice || len(before.Steps) < len(m.Steps) {
					byUUID[m.UUID] = m
				}
			}
		})
	}
	asking.Wait()
	out.Migrations = []migration.Migration{}
	for _, m := range byUUID {
		out.Migrations = append(out.Migrations, m)
	}
	slices.SortFunc(out.Migrations, func(a, b migration.Migration) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.UUID, b.UUID))
	})
	return out, nil
}

func (a *app) migrationList() *cobra.Command {
	var all bool
	var limit int
	var filter migrationFilter
	cmd := &cobra.Command{
		Use: "list", Short: "List moves, newest first", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`List the moves that a host conducts, and those that are over, newest first; of these the
last %d, with --limit 0 or --json all that it remembers. A move is listed by the host that
the guest left; --all asks every host, and names those that do not answer. For the last
move of one guest, wherever that was: berth migration show INSTANCE.`, mostOver),
		Example: "  berth migration list\n  berth migration list --all --status error --since 24h\n  berth migration list -c host-b --instance web",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return misused("--limit %d: want 0 for all, or more", limit)
			}
			if _, err := sinceWhen(filter.since, time.Now()); err != nil {
				return err
			}
			return a.ask(cmd, answerTime, func(ctx context.Context, c *api.Client) (err error) {
				var list listedMigrations
				if all {
					list, err = migrationsOfAll(ctx, c)
				} else {
					list.Migrations, err = c.Migrations(ctx)
				}
				if err != nil {
					return err
				}
				if list.Migrations, err = filter.take(list.Migrations, time.Now()); err != nil {
					return err
				}
				if err := a.print(list, func(w io.Writer) {
					if len(list.Migrations) == 0 && all {
						fmt.Fprintln(w, "no host that answers has such a move")
					} else if len(list.Migrations) == 0 {
						fmt.Fprintln(w, "this host conducts no such move and remembers none; the moves of every host: berth migration list --all")
					} else {
						migrationTable(w, list.Migrations, limit, screen.ListWidth(a.out))
					}
				}); err != nil {
					return err
				}
				if len(list.Silent) == 0 {
					return nil
				}
				var reasons []fault.Reason
				for _, host := range slices.Sorted(maps.Keys(list.Silent)) {
					reasons = append(reasons, fault.Reason{
						Code: "host_silent", Message: "host " + host + " is not listed: " + list.Silent[host], Have: host, Change: "berth migration list -c " + host,
					})
				}
				return fault.Refuse(fault.Unavailable, "list the moves of all hosts", reasons...)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "of every host, not of one alone")
	f.IntVar(&limit, "limit", mostOver, "how many `moves` that are over, 0 for all")
	f.StringSliceVar(&filter.status, "status", nil, "only moves of this `status` (can be repeated)")
	f.StringVar(&filter.instance, "instance", "", "only those of an instance, by `name` or uuid")
	f.StringVar(&filter.host, "host", "", "only those that leave a `host`, go to it or are conducted by it")
	f.StringVar(&filter.since, "since", "", "only those begun since a `time`, or how long ago (36h)")
	return cmd
}

// migrationTable writes a list of moves, newest first.
func migrationTable(w io.Writer, all []migration.Migration, limit, width int) {
	list, left := newestOver(all, limit)
	l := screen.Table{
		Columns: []string{"MIGRATION", "TYPE", "INSTANCE", "FROM", "TO", "BY", "STATUS", "OUTCOME", "STARTED", "TOOK", "REMARK"},
		Spare:   []string{"TOOK", "TYPE", "OUTCOME", "STARTED", "BY"}, Full: "berth migration list -o json has all",
	}
	apart := slices.ContainsFunc(list, func(m migration.Migration) bool { return m.Conductor != "" })
	if !apart { // who conducts is a column only where it is a third host
		l.Columns = slices.Delete(l.Columns, 5, 6)
	}
	for _, m := range list {
		took, remark := time.Since(m.CreatedAt), listRemark(m, time.Now())
		if m.Done() || m.Status == migration.StatusFinished {
			took = m.UpdatedAt.Sub(m.CreatedAt)
		}
		cells := []any{m.UUID, typeOf(m), cmp.Or(m.InstanceName, short(m.InstanceUUID)), m.SourceCompute, m.DestCompute, m.ConductedBy(),
			m.Status, m.Outcome, ago(m.CreatedAt), rough(took), remark}
		if !apart {
			cells = slices.Delete(cells, 5, 6)
		}
		l.Rows = append(l.Rows, cells)
	}
	l.Write(w, width)
	if left > 0 {
		fmt.Fprintf(w, "\n%s not listed: berth migration list --limit 0\n", count(left, "older move"))
	}
}

// typeOf is a move's type; records of older agents are of live migrations.
func typeOf(m migration.Migration) string {
	return cmp.Or(m.MigrationType, migration.TypeLiveMigration)
}

// listRemark is why a move failed or is held up, how far it is, or what it waits for.
func listRemark(m migration.Migration, now time.Time) string {
	switch {
	case m.Error != nil:
		return abridge(m.Error.Message, 60)
	case m.Status == migration.StatusDone && m.MigrationType == migration.TypeEvacuation:
		return m.SourceCompute + " has still to clean up"
	case m.Done():
		return ""
	case m.Status == migration.StatusFinished:
		return "confirm or revert it; " + confirmsItself(m.ConfirmBy, now)
	}
	doing := doingWords(m)
	what, total, left := transfer(m)
	if what == "" {
		return doing // what a move waits for is told whole, with its place
	}
	if what == "post-copy" {
		doing = "running there, memory follows"
	}
	doing += fmt.Sprintf(", %d%%", percent(total, left))
	switch p := m.Progress; {
	case p.Never:
		doing += ", does not end by itself"
	case p.Remaining > 0:
		doing += ", " + strings.TrimSpace(eta(p, left))
	}
	return doing
}
