package external

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"berth/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var updateShapes = flag.Bool("update-shapes", false, "write the shapes of this schema's records")

func TestShape_OfWhatIsRemembered(t *testing.T) {
	storetest.RequireShapes(t, "testdata/schema-1.shapes", *updateShapes, map[string]any{
		memoryForeign: foreignArrival{}, memoryGiven: foreignGiven{}, memoryRebuild: foreignRebuild{}, memoryLeft: "",
	})
}
