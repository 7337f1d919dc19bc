package shipping

import (
	"flag"
	"testing"

	"berth/agent/host/disks"
	"berth/internal/store/storetest"
)

var updateShapes = flag.Bool("update-shapes", false, "write the shapes of this schema's records")

func TestShape_OfWhatIsRemembered(t *testing.T) {
	storetest.RequireShapes(t, "testdata/schema-1.shapes", *updateShapes, map[string]any{MemoryComing: comingFiles{}, MemoryGoing: []disks.Moved{}})
}
