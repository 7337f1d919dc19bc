package migration

import (
	"context"

	"berth/internal/fault"
	"berth/migration/task"
)

// shipDisks brings over what the two hosts do not share.
func (s *story) shipDisks(_ context.Context, t *task.Task) (any, error) {
	var disks SourceAnswer
	if err := t.Output(StepCheckSource, &disks); err != nil {
		return nil, err
	}
	if len(disks.CopyDisks) > 0 {
		return nil, fault.New(fault.Forbidden, "ship the disks %v: the two hosts must share them", disks.CopyDisks)
	}
	return nil, nil
}
