package claims

import (
	"flag"
	"testing"

	"berth/internal/store/storetest"
)

var update = flag.Bool("update", false, "write the shapes of this schema's records")

func TestShape_OfTheLedgersRecords(t *testing.T) {
	storetest.RequireShapes(t, "testdata/schema-1.shapes", *update, map[string]any{
		bucketClaims: Claim{}, bucketInstances: Instance{}, bucketHalves: half{}, bucketCopies: Copy{},
	})
}
