package host_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
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
		if verb == operation.RecordContext.Name && !answered {
			once.Do(func() { close(waits) })
		}
		return nil
	}, migration.Options{})
	l.must("delete", <-deleted)
	l.wantKind("migrate", err, fault.NotFound)
	before["a files"], before["b files"] = l.picture()["a files"], l.picture()["b files"]
	l.same("left behind", before)
}

// TestClaim_OfAGuestThatTheDestinationCameToOwnIsUndone has the destination own a
// guest of the same uuid between its check and its claim: the move is refused and
// over, and does not wait for ever for undos that have nothing to undo.
func TestClaim_OfAGuestThatTheDestinationCameToOwnIsUndone(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	b := l.hosts["b"]
	var once sync.Once
	m, err := l.tryConduct(v.UUID, func(verb string, answered bool) error {
		if verb == operation.Claim.Name && !answered {
			once.Do(func() {
				l.must("define", b.fake.Define(t.Context(), strings.ReplaceAll(foreignXML("twin", "", ""), "33333333-3333-4333-8333-333333333333", v.UUID)))
				_, err := b.Adopt(t.Context(), "twin")
				l.must("adopt", err)
			})
		}
		return nil
	}, migration.Options{})
	l.must("live-migrate", err)
	if m.Status != migration.StatusFailed || !strings.Contains(m.Error.Message, "owns") {
		t.Errorf("migration %s: %+v", m.Status, m.Error)
	}
	ref := refFor(v.UUID, 1)
	l.must("roll back what never began", operation.RollbackPreLiveMigration.Ask(t.Context(), b, ref))
	l.must("abort a claim that never was", operation.AbortClaim.Ask(t.Context(), b, ref))
	l.state("a", v.UUID, driver.Running)
	if inst, ok := b.tracker.Instance(v.UUID); !ok || inst.Token.State != claims.TokenHere {
		t.Errorf("the twin: %+v, %v", inst, ok)
	}
}

// TestCleanUpSource_RepeatedWhenTheDecisionIsNotKeptAnyMore is a conductor that
// died before it could note that the source is clean, and came back a week later.
func TestCleanUpSource_RepeatedWhenTheDecisionIsNotKeptAnyMore(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	m.handOver()
	after := l.picture()
	l.must("forget the decision", m.a.store.Delete(t.Context(), "halves", m.ref.Migration))
	l.must("clean up again", operation.CleanUpSource.Ask(t.Context(), l.restart("a"), m.ref))
	l.same("after the repetition", after)

	// A guest that is here is never cleaned up without a decision.
	w := l.guest("a", "vm2")
	l.wantKind("clean up without a decision", operation.CleanUpSource.Ask(t.Context(), l.hosts["a"], refFor(w.UUID, 1)), fault.Forbidden)
}

// TestFinish_RepeatedAfterTheGuestHasGoneOn loses the answer of a finished
// destination until the guest is gone from there: the source must still be told
// that it was bound, or it is never cleaned.
func TestFinish_RepeatedAfterTheGuestHasGoneOn(t *testing.T) {
	l := newLab(t, "a", "b")
	empty := l.picture()
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	var err error
	m.commit, err = operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.must("commit", err)
	l.wantKind("finish before the token came", operation.FinishDestination.Ask(t.Context(), m.b, m.ref), fault.Forbidden)
	l.must("accept token", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, m.commit))
	l.must("finish", operation.FinishDestination.Ask(t.Context(), m.b, m.ref))
	l.must("delete", m.b.Delete(t.Context(), v.UUID, host.DeleteOptions{Force: true}))
	l.must("accept token again", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, m.commit))
	l.must("finish again", operation.FinishDestination.Ask(t.Context(), m.b, m.ref))
	l.must("clean up source", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref))
	l.must("delete the allocation, as the conductor of a whole move has swapped it", l.placement.DeleteAllocations(t.Context(), v.UUID))
	l.same("in the end", empty)
}

// TestStream_KeepsThePauseThatItsUserChoseMeanwhile has users suspend and resume
// the guest while its move is being prepared.
func TestStream_KeepsThePauseThatItsUserChoseMeanwhile(t *testing.T) {
	for _, paused := range []bool{true, false} {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		fake := l.hosts["a"].fake
		want := driver.Running
		if !paused {
			l.must("suspend before the move", fake.Suspend(t.Context(), v.UUID))
		}
		m := newMove(l, v.UUID)
		m.prepare()
		if paused {
			want = driver.Paused
			l.must("suspend", fake.Suspend(t.Context(), v.UUID))
		} else {
			l.must("resume", fake.Resume(t.Context(), v.UUID))
		}
		m.stream()
		m.handOver()
		l.state("b", v.UUID, want)
	}
}
