package migration

import (
	"fmt"
	"slices"
	"strings"
)

// statuses is the closed set, in the order in which they are mostly seen.
var statuses = []struct {
	status Status
	means  string
	ends   bool
}{
	{StatusAccepted, "durable, nothing begun", false},
	{StatusQueued, "live: waits for its turn; waits says for what", false},
	{StatusPreparing, "live: claim, allocations, the destination's preparation", false},
	{StatusRunning, "live: the guest's memory and disks are on their way", false},
	{StatusPostCopy, "live: the guest runs at the destination, and what is left of its memory follows", false},
	{StatusPreMigrating, "claim, allocations, preparation; nothing of the guest has changed", false},
	{StatusMigrating, "the guest is powered off or lost, and its disks are brought over or made anew", false},
	{StatusPostMigrating, "the guest is made live where it goes; of a move between hosts the token has left the source", false},
	{StatusFinished, "moved or resized; waits to be confirmed or reverted", false},
	{StatusConfirming, "confirmed: what was kept to go back is given up", false},
	{StatusReverting, "the guest goes back to what and where it was", false},
	{StatusCompleted, "the guest runs at the destination; of an evacuation nothing is left at the dead host either", true},
	{StatusConfirmed, "confirmed, and nothing is left of what it was before", true},
	{StatusReverted, "the guest is what and where it was", true},
	{StatusDone, "rebuilt; or evacuated, and what the dead host still has of it is to be cleaned up", true},
	{StatusCancelled, "aborted by somebody, and undone", true},
	{StatusFailed, "failed, and undone; or refused before any effect", true},
	{StatusError, "cannot go on at present: the outcome and the error say why", false},
}

// transition is one row: what may follow a status.
type transition struct {
	from Status
	to   []Status
}

// transitions are the ways of each type's status, of which Nova has names and no table.
// A status never goes back while steps are undone; the phase says that they are. error
// is left for whatever it interrupted, or for an end.
var transitions = []struct {
	types []string
	ways  []transition
}{
	{[]string{TypeLiveMigration}, []transition{
		{StatusAccepted, []Status{StatusQueued, StatusPreparing, StatusCancelled, StatusFailed, StatusError}},
		{StatusQueued, []Status{StatusPreparing, StatusCancelled, StatusFailed, StatusError}},
		{StatusPreparing, []Status{StatusQueued, StatusRunning, StatusCancelled, StatusFailed, StatusError}},
		{StatusRunning, []Status{StatusPostCopy, StatusPostMigrating, StatusCancelled, StatusFailed, StatusError}},
		// running: the second job did not get as far as post-copy, and is undone.
		{StatusPostCopy, []Status{StatusPostMigrating, StatusRunning, StatusCancelled, StatusFailed, StatusError}},
		// Back by an operator's word alone, and round again where the source cannot.
		{StatusPostMigrating, []Status{StatusCompleted, StatusRunning, StatusPostCopy, StatusFailed, StatusError}},
		{StatusError, []Status{StatusQueued, StatusPreparing, StatusRunning, StatusPostCopy, StatusPostMigrating, StatusCompleted, StatusCancelled, StatusFailed}},
	}},
	{[]string{TypeMigration, TypeResize}, []transition{
		{StatusAccepted, []Status{StatusPreMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusPreMigrating, []Status{StatusMigrating, StatusCancelled, StatusFailed, StatusError}},
		// pre-migrating: the destination refused, and the next one is tried.
		{StatusMigrating, []Status{StatusPostMigrating, StatusPreMigrating, StatusCancelled, StatusFailed, StatusError}},
		// reverting: the guest cannot live there, and is taken back without a word.
		// cancelled, failed: in place, where nothing is past return before finished.
		{StatusPostMigrating, []Status{StatusFinished, StatusReverting, StatusMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusFinished, []Status{StatusConfirming, StatusReverting}},
		{StatusConfirming, []Status{StatusConfirmed, StatusError}},
		// finished: the revert was given up before the guest had been handed back.
		{StatusReverting, []Status{StatusReverted, StatusFinished, StatusFailed, StatusError}},
		{StatusError, []Status{StatusPreMigrating, StatusMigrating, StatusPostMigrating, StatusFinished, StatusConfirming, StatusConfirmed,
			StatusReverting, StatusReverted, StatusCancelled, StatusFailed}},
	}},
	{[]string{TypeRebuild}, []transition{
		{StatusAccepted, []Status{StatusPreMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusPreMigrating, []Status{StatusMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusMigrating, []Status{StatusPostMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusPostMigrating, []Status{StatusDone, StatusCancelled, StatusFailed, StatusError}},
		{StatusError, []Status{StatusPreMigrating, StatusMigrating, StatusPostMigrating, StatusDone, StatusCancelled, StatusFailed}},
	}},
	{[]string{TypeEvacuation}, []transition{
		{StatusAccepted, []Status{StatusPreMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusPreMigrating, []Status{StatusMigrating, StatusCancelled, StatusFailed, StatusError}},
		// pre-migrating: the destination refused, and the next one is tried.
		{StatusMigrating, []Status{StatusPostMigrating, StatusPreMigrating, StatusCancelled, StatusFailed, StatusError}},
		{StatusPostMigrating, []Status{StatusDone, StatusError}},
		// The move is over before: the source may never come back.
		{StatusDone, []Status{StatusCompleted}},
		{StatusError, []Status{StatusPreMigrating, StatusMigrating, StatusPostMigrating, StatusDone, StatusCancelled, StatusFailed}},
	}},
}

// MayFollow reports whether a migration of a type may go from one status to another.
func MayFollow(kind string, from, to Status) bool {
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
