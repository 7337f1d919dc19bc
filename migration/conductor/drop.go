package conductor

import (
	"context"
	"time"
)

// drop deletes a record that nobody needs any more of a move that has gone on without
// it. What cannot be deleted now is tried again while the agent runs, at growing pauses
// up to Config.UndoLater; what is left by then, the next start drops. Nothing waits for
// it but the first try. remove must be safe to repeat, also after a next attempt or
// another move has begun.
func (c *Conductor) drop(ctx context.Context, what string, remove func(context.Context) error) {
	gone := func() bool {
		err := remove(ctx)
		if err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("a record past its use cannot be deleted, to be tried again", "record", what, "error", err)
		}
		return err == nil
	}
	if gone() {
		return
	}
	c.spawn("drop "+what, func() {
		for pause := time.Second; c.cfg.Runtime.Sleep(ctx, pause) == nil && !gone(); {
			pause = min(2*pause, c.cfg.UndoLater)
		}
	})
}

// dropTask deletes the journal of one attempt.
func (c *Conductor) dropTask(ctx context.Context, id string) {
	c.drop(ctx, bucketTasks+"/"+id, func(ctx context.Context) error { return c.engine.Forget(ctx, id) })
}

// dropWord deletes an operator's word on a move that is over.
func (c *Conductor) dropWord(ctx context.Context, uuid string) {
	c.drop(ctx, bucketWords+"/"+uuid, func(ctx context.Context) error { return c.cfg.Store.Delete(ctx, bucketWords, uuid) })
}

// dropAbort deletes what says that a move is to be given up. A move that is over is
// never asked to be again.
func (c *Conductor) dropAbort(ctx context.Context, uuid string) {
	c.drop(ctx, bucketAborts+"/"+uuid, func(ctx context.Context) error { return c.cfg.Store.Delete(ctx, bucketAborts, uuid) })
}
