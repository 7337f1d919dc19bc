package conductor

import (
	"fmt"
	"slices"
	"strings"

	"berth/migration"
)

// statuses is the closed set, in the order in which they are mostly seen.
var statuses = []struct {
	status migration.Status
	means  string
	ends   bool
}{
	{migration.StatusAccepted, "durable, nothing begun", false},
	{migration.StatusQueued, "live: waits for its turn; waits says for what", false},
	{migration.StatusPreparing, "live: claim, allocations, the destination's preparation", false},
	{migration.StatusRunning, "live: the guest's memory and disks are on their way", false},
	{migration.StatusPostCopy, "live: the guest runs at the destination, and what is left of its memory follows", false},
	{migration.StatusPreMigrating, "claim, allocations, preparation; nothing of the guest has changed", false},
	{migration.StatusMigrating, "the guest is powered off or lost, and its disks are brought over or made anew", false},
	{migration.StatusPostMigrating, "the guest is made live where it goes; of a move between hosts the token has left the source", false},
	{migration.StatusFinished, "moved or resized; waits to be confirmed or reverted", false},
	{migration.StatusConfirming, "confirmed: what was kept to go back is given up", false},
	{migration.StatusReverting, "the guest goes back to what and where it was", false},
	{migration.StatusCompleted, "the guest runs at the destination; of an evacuation nothing is left at the dead host either", true},
	{migration.StatusConfirmed, "confirmed, and nothing is left of what it was before", true},
	{migration.StatusReverted, "the guest is what and where it was", true},
	{migration.StatusDone, "rebuilt; or evacuated, and what the dead host still has of it is to be cleaned up", true},
	{migration.StatusCancelled, "aborted by somebody, and undone", true},
	{migration.StatusFailed, "failed, and undone; or refused before any effect", true},
	{migration.StatusError, "cannot go on at present: the outcome and the error say why", false},
}

// transition is one row: what may follow a status.
type transition struct {
	from migration.Status
	to   []migration.Status
}

// transitions are the ways of each type's status, of which Nova has names and no table.
// A status never goes back while steps are undone; the phase says that they are. error
// is left for whatever it interrupted, or for an end.
var transitions = []struct {
	types []string
	ways  []transition
}{
	{[]string{migration.TypeLiveMigration}, []transition{
		{migration.StatusAccepted, []migration.Status{migration.StatusQueued, migration.StatusPreparing, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusQueued, []migration.Status{migration.StatusPreparing, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusPreparing, []migration.Status{migration.StatusQueued, migration.StatusRunning, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusRunning, []migration.Status{migration.StatusPostCopy, migration.StatusPostMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		// running: the second job did not get as far as post-copy, and is undone.
		{migration.StatusPostCopy, []migration.Status{migration.StatusPostMigrating, migration.StatusRunning, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		// Back by an operator's word alone, and round again where the source cannot.
		{migration.StatusPostMigrating, []migration.Status{migration.StatusCompleted, migration.StatusRunning, migration.StatusPostCopy, migration.StatusFailed, migration.StatusError}},
		{migration.StatusError, []migration.Status{migration.StatusQueued, migration.StatusPreparing, migration.StatusRunning, migration.StatusPostCopy, migration.StatusPostMigrating, migration.StatusCompleted, migration.StatusCancelled, migration.StatusFailed}},
	}},
	{[]string{migration.TypeMigration, migration.TypeResize}, []transition{
		{migration.StatusAccepted, []migration.Status{migration.StatusPreMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusPreMigrating, []migration.Status{migration.StatusMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		// pre-migrating: the destination refused, and the next one is tried.
		{migration.StatusMigrating, []migration.Status{migration.StatusPostMigrating, migration.StatusPreMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		// reverting: the guest cannot live there, and is taken back without a word.
		// cancelled, failed: in place, where nothing is past return before finished.
		{migration.StatusPostMigrating, []migration.Status{migration.StatusFinished, migration.StatusReverting, migration.StatusMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusFinished, []migration.Status{migration.StatusConfirming, migration.StatusReverting}},
		{migration.StatusConfirming, []migration.Status{migration.StatusConfirmed, migration.StatusError}},
		// finished: the revert was given up before the guest had been handed back.
		{migration.StatusReverting, []migration.Status{migration.StatusReverted, migration.StatusFinished, migration.StatusFailed, migration.StatusError}},
		{migration.StatusError, []migration.Status{migration.StatusPreMigrating, migration.StatusMigrating, migration.StatusPostMigrating, migration.StatusFinished, migration.StatusConfirming, migration.StatusConfirmed,
			migration.StatusReverting, migration.StatusReverted, migration.StatusCancelled, migration.StatusFailed}},
	}},
	{[]string{migration.TypeRebuild}, []transition{
		{migration.StatusAccepted, []migration.Status{migration.StatusPreMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusPreMigrating, []migration.Status{migration.StatusMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusMigrating, []migration.Status{migration.StatusPostMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusPostMigrating, []migration.Status{migration.StatusDone, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusError, []migration.Status{migration.StatusPreMigrating, migration.StatusMigrating, migration.StatusPostMigrating, migration.StatusDone, migration.StatusCancelled, migration.StatusFailed}},
	}},
	{[]string{migration.TypeEvacuation}, []transition{
		{migration.StatusAccepted, []migration.Status{migration.StatusPreMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusPreMigrating, []migration.Status{migration.StatusMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		// pre-migrating: the destination refused, and the next one is tried.
		{migration.StatusMigrating, []migration.Status{migration.StatusPostMigrating, migration.StatusPreMigrating, migration.StatusCancelled, migration.StatusFailed, migration.StatusError}},
		{migration.StatusPostMigrating, []migration.Status{migration.StatusDone, migration.StatusError}},
		// The move is over before: the source may never come back.
		{migration.StatusDone, []migration.Status{migration.StatusCompleted}},
		{migration.StatusError, []migration.Status{migration.StatusPreMigrating, migration.StatusMigrating, migration.StatusPostMigrating, migration.StatusDone, migration.StatusCancelled, migration.StatusFailed}},
	}},
}

// MayFollow reports whether a migration of a type may go from one status to another.
func MayFollow(kind string, from, to migration.Status) bool {
	if from == to {
		return true
	}
	for _, t := range transitions {
		if !slices.Contains(t.types, kind) {
			continue
		}
		for _, w := range t.ways {
			if w.from == from {
				return slices.Contains(w.to, to)
			}
		}
	}
	return false
}

// StatusTables are the statuses and their transitions in Markdown.
func StatusTables() string {
	var b strings.Builder
	b.WriteString("| Status | Means | Ends |\n|---|---|---|\n")
	for _, s := range statuses {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.status, s.means, map[bool]string{true: "yes", false: "no"}[s.ends])
	}
	for _, t := range transitions {
		fmt.Fprintf(&b, "\nTransitions of `%s`:\n\n| From | To |\n|---|---|\n", strings.Join(t.types, "`, `"))
		for _, w := range t.ways {
			var to []string
			for _, s := range w.to {
				to = append(to, "`"+string(s)+"`")
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", w.from, strings.Join(to, ", "))
		}
	}
	return b.String()
}
