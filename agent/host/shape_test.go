package host

import (
	"flag"
	"testing"

	"berth/agent/host/hooks"
	"berth/agent/host/phases"
	"berth/agent/host/streams"
	"berth/internal/store/storetest"
)

var updateShapes = flag.Bool("update-shapes", false, "write the shapes of this schema's records")

func TestShape_OfWhatVerbsRemember(t *testing.T) {
	storetest.RequireShapes(t, "testdata/schema-1.shapes", *updateShapes, map[string]any{
		memoryPrepared: preparation{}, streams.MemoryAsked: streams.Asked{}, streams.MemoryEnded: streams.Ended{}, streams.MemoryEndWanted: false, streams.MemorySuspended: false,
		streams.MemoryPostCopy: streams.Asked{}, streams.MemoryPostCopyEnded: streams.Ended{}, memoryAccepted: false, phases.MemoryOf(hooks.PreLiveMigration): phases.Record{}, memoryConnections: connectionsRecord{},
		memoryCreate: []madeDisk{}, memoryDefining: defining{}, memoryLeftByHand: leftByHand{},
		memoryPower: poweredOff{}, memoryPreparedCold: coldPreparation{}, memoryReturned: returned{}, memoryChange: changing{},
		memorySnapshot: snapshot{}, memoryDisconnect: disconnected{}, memoryCarried: carriedVolumes{}, memoryAlone: decidedAlone{}, memorySettle: settling{}, "pools started": startedRecord{},
		memoryEvacuation: lost{}, memoryLeftAlone: []string{}, "autostart boot": "", "autostart left": []string{},
	})
}
