package host

import (
	"maps"
	"slices"
	"testing"

	"berth/claims"
	"berth/migration/operation"
)

func TestHandlers_SayWhatTheirOperationsNeed(t *testing.T) {
	undone := map[string]bool{}
	for _, op := range operation.All() {
		if op.Before.Undoes != "" {
			undone[op.Before.Undoes] = true
		}
	}
	// The claim's undo and the context's write their tombstone before the lock, which a hook or a
	// stream may hold; that of a return is the tracker's, with the claim.
	byThemselves := []string{operation.StepClaim, operation.StepContext, operation.StepReturn}
	h := newBed(t).handlers()
	for _, op := range operation.All() {
		b, handler := op.Before, h[op.Name]
		switch {
		case handler.Do == nil:
			t.Errorf("%s: no host does it", op.Name)
		case b.Undoes != "" && (b.Lock || b.Stops || b.Step != "" || b.Manage):
			t.Errorf("%s undoes, and needs %+v", op.Name, b)
		case (b.Undoes != "") != (handler.Refused != nil):
			t.Errorf("%s: undoes %q, and says when it is refused: %t", op.Name, b.Undoes, handler.Refused != nil)
		case handler.Done != nil && !b.Manage:
			t.Errorf("%s says when it is done, and no host asks", op.Name)
		case (b.Stops || b.Step != "") && !b.Lock:
			t.Errorf("%s looks at its undo without the lock", op.Name)
		case b.Step != "" && !undone[b.Step] && !slices.Contains(byThemselves, b.Step):
			t.Errorf("%s: nothing undoes %s", op.Name, b.Step)
		}
	}
	if len(h) != len(operation.All()) {
		t.Errorf("handlers of %v, operations are %d", slices.Sorted(maps.Keys(h)), len(operation.All()))
	}
	if operation.StepClaim != claims.StepClaim {
		t.Errorf("the claim's step is %q here and %q in the ledger", operation.StepClaim, claims.StepClaim)
	}
}
