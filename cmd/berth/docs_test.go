package main

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration"
)

var update = flag.Bool("update", false, "write golden files and generated documents anew")

// golden holds text against a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

func TestStatuses_DocumentIsTheCodesTable(t *testing.T) {
	golden(t, "../../docs/statuses.md", `# The statuses of migrations

One closed set, Nova's names. The tables are written from those that the conductor goes by (`+"`migration/status.go`"+`;
`+"`go test ./cmd/berth -run Statuses -update`"+` writes this page): a status that may not follow the one before is
logged as an error, and fails the conductor's tests. `+"`berth migration steps`"+` says which status each step shows.

The status of a migration never goes back while steps are undone: `+"`phase`"+` says that they are (`+"`undoing`"+`), and
`+"`outcome`"+` what it came to: completed, undone, refused, reverted, or in doubt while it cannot go on.

`+migration.StatusTables()+`
A guest's own status, in `+"`berth instance show`"+`, follows from it, in the words of Nova's API: `+"`MIGRATING`"+` on a live
migration, `+"`RESIZE`"+` on a cold migration or resize, `+"`VERIFY_RESIZE`"+` while that is finished or being confirmed,
`+"`REVERT_RESIZE`"+` while it is reverted, `+"`REBUILD`"+` on a rebuild; else `+"`ACTIVE`, `PAUSED` or `SHUTOFF`"+`.
`)
}
