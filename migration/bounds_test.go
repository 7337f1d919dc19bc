package migration_test

import (
	"errors"
	"fmt"
	"testing"

	"berth/internal/fault"
	"berth/migration"
)

func TestValidate_ListsOfDisks_AreBoundedAndNameEachOnce(t *testing.T) {
	list := func(n int) (targets []string, disks []migration.Disk) {
		for i := range n {
			targets = append(targets, fmt.Sprintf("vd%d", i))
			disks = append(disks, migration.Disk{Target: targets[i]})
		}
		return targets, disks
	}
	fit, fitDisks := list(migration.MostDisks)
	many, manyDisks := list(migration.MostDisks + 1)
	twice, twiceDisks := append(fit[:2:2], "vd0"), append(fitDisks[:2:2], migration.Disk{Target: "vd0"})
	for name, tt := range map[string]struct {
		input interface{ Validate() error }
		bad   bool
	}{
		"live":                 {migration.PreLiveRequest{Guest: migration.Guest{Disks: fitDisks}, CopyDisks: fit}, false},
		"live, none":           {migration.PreLiveRequest{}, false},
		"live, many":           {migration.PreLiveRequest{Guest: migration.Guest{Disks: fitDisks}, CopyDisks: many}, true},
		"live, twice":          {migration.PreLiveRequest{Guest: migration.Guest{Disks: fitDisks}, CopyDisks: twice}, true},
		"live, instance many":  {migration.PreLiveRequest{Guest: migration.Guest{Disks: manyDisks}}, true},
		"live, instance twice": {migration.PreLiveRequest{Guest: migration.Guest{Disks: twiceDisks}}, true},
		"cold":                 {migration.PrepRequest{Guest: migration.Guest{Disks: fitDisks}, CopyDisks: fit}, false},
		"cold, many":           {migration.PrepRequest{CopyDisks: many}, true},
		"cold, grown twice":    {migration.PrepRequest{Wanted: migration.Wanted{Grow: []migration.DiskGrowth{{Target: "vda"}, {Target: "vda"}}}}, true},
		"cold, instance many":  {migration.PrepRequest{Guest: migration.Guest{Disks: manyDisks}}, true},
		"evacuation":           {migration.EvacuationRequest{Guest: migration.Guest{Disks: fitDisks}}, false},
		"evacuation, many":     {migration.EvacuationRequest{Guest: migration.Guest{Disks: manyDisks}}, true},
		"check, many":          {migration.CheckRequest{Guest: migration.Guest{Disks: manyDisks}}, true},
		"claim, twice":         {migration.ClaimRequest{Guest: migration.Guest{Disks: twiceDisks}}, true},
		"carried, many":        {migration.VolumeChanges{Attached: many}, true},
		"carried, twice":       {migration.VolumeChanges{Detached: twice}, true},
		"carried":              {migration.VolumeChanges{Attached: fit, Detached: fit}, false},
		"snapshot":             {migration.SnapshotRequest{Targets: fit}, false},
		"snapshot, twice":      {migration.SnapshotRequest{Targets: twice}, true},
	} {
		err := tt.input.Validate()
		if tt.bad != errors.Is(err, fault.Invalid) || !tt.bad && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
