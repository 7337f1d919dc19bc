package host_test

import (
	"sync"
	"testing"
	"time"

	"berth/agent/host"
	"berth/internal/fault"
	"berth/migration"
)

// TestDelete_UnderWayKeepsAMoveFromBeginning deletes a guest slowly, and asks for
// its move meanwhile: the move must not write an allocation for a guest that is
// gone when it is undone.
func TestDelete_UnderWayKeepsAMoveFromBeginning(t *testing.T) {
	l := newLab(t, "a", "b")
	before := l.picture()
	v := l.guest("a", "vm1")
	reached, release := make(chan struct{}), make(chan struct{})
	l.hosts["a"].fake.Fault(func(call, _ string) error {
		if call == "Destroy" {
			close(reached)
			<-release
		}
		return nil
	})
	deleted := make(chan error, 1)
	l.rt.Go("delete", func() { deleted <- l.hosts["a"].Delete(t.Context(), v.UUID, host.DeleteOptions{Force: true}) })
	<-reached
	// The deletion goes on when the first verb of the move must wait for it, or
	// when none came that far.
	waits, once := make(chan struct{}), sync.Once{}
	l.rt.Go("go on", func() {
		select {
		case <-waits:
		case <-time.After(200 * time.Millisecond):
		}
		close(release)
	})
	_, err := l.tryConduct(v.UUID, func(verb string, answered bool) error {
		if verb == "RecordContext" && !answered {
			once.Do(func() { close(waits) })
		}
		return nil
	}, migration.Options{})
	l.must("delete", <-deleted)
	l.wantKind("migrate", err, fault.NotFound)
	before["a files"], before["b files"] = l.picture()["a files"], l.picture()["b files"]
	l.same("left behind", before)
}
