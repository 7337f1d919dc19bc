package conductor

import (
	"flag"
	"testing"

	"berth/internal/store/storetest"
	"berth/migration/task"
)

var updateShapes = flag.Bool("update-shapes", false, "write the shapes of this schema's records")

func TestShape_OfTheJournalsRecords(t *testing.T) {
	storetest.RequireShapes(t, "testdata/schema-1.shapes", *updateShapes, map[string]any{
		bucketMigrations: stored{}, bucketTasks: task.State{}, bucketWords: attemptWord{},
	})
}
