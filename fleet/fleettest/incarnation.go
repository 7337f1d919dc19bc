package fleettest

import (
	"testing"

	"berth/fleet"
)

// TestIncarnations is what every store that tells its incarnation must do.
func TestIncarnations(t *testing.T, open Open) {
	ctx := t.Context()
	client := open(t)
	s, other := client(), client()
	moment := func(s fleet.Store) fleet.Moment {
		t.Helper()
		mustList(t, s, "hosts/") // a store may tell the moment of its newest answer
		m, err := s.(fleet.Incarnations).Moment(ctx)
		if err != nil || m.Incarnation == "" {
			t.Fatalf("moment %+v, %v", m, err)
		}
		return m
	}
	first := moment(s)
	mustCommit(t, s, nil, put("hosts/a", "1"))
	second := moment(other)
	if second.Incarnation != first.Incarnation || second.Revision <= first.Revision || second.Revision < mustGet(t, s, "hosts/a").Revision {
		t.Errorf("after a commit %+v, before %+v", second, first)
	}
	for range 2 { // another time it is another's already
		if err := s.(fleet.Incarnations).Renew(ctx, first.Incarnation); err != nil {
			t.Fatalf("renew: %v", err)
		}
	}
	third := moment(other)
	if third.Incarnation == first.Incarnation || third.Revision < second.Revision {
		t.Errorf("renewed %+v, before %+v", third, second)
	}
	if got := moment(s); got.Incarnation != third.Incarnation {
		t.Errorf("two clients are told %q and %q", got.Incarnation, third.Incarnation)
	}
	if err := other.(fleet.Incarnations).Renew(ctx, first.Incarnation); err != nil {
		t.Errorf("renew what is gone: %v", err)
	}
	if got := moment(s); got.Incarnation != third.Incarnation {
		t.Errorf("a late renewal made %q of %q", got.Incarnation, third.Incarnation)
	}
}
