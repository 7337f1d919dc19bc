package agent

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
)

// asked is a host that says what became of an attempt, and remembers who was asked.
type asked struct {
	name  string
	told  migration.AttemptFate
	err   error
	order *[]string
}

func (a asked) AttemptFate(context.Context, migration.Ref) (migration.AttemptFate, error) {
	*a.order = append(*a.order, a.name)
	return a.told, a.err
}

func (asked) YieldToken(context.Context, migration.Ref, uint64, string) error { return nil }

// TestConductedFate_IsTheGiversWord, the journal's where that says nothing; and whoever
// asks is never asked back.
func TestConductedFate_IsTheGiversWord(t *testing.T) {
	going := migration.AttemptFate{Fate: migration.FateGoing, Why: "journal"}
	kept := migration.AttemptFate{Fate: migration.FateKept, Why: "told"}
	m := migration.Migration{SourceCompute: "a", DestCompute: "b", Moved: 1}
	for _, tt := range []struct {
		name      string
		journaled migration.AttemptFate
		attempt   int
		asks      string
		told      migration.AttemptFate
		err       error
		want      migration.AttemptFate
		order     []string
	}{
		{"the destination asks", going, 1, "b", kept, nil, kept, []string{"a"}},
		{"the source asks of its guest's return", going, 2, "a", kept, nil, kept, []string{"b"}},
		{"the giver itself asks", going, 1, "a", kept, nil, going, nil},
		{"the giver of the return asks", going, 2, "b", kept, nil, going, nil},
		{"somebody of this host asks", going, 1, "", kept, nil, kept, []string{"a"}},
		{"the journal is certain", kept, 1, "b", migration.AttemptFate{Fate: migration.FateCommitted}, nil, kept, nil},
		{"the giver is silent", going, 1, "b", migration.AttemptFate{}, fault.Unavailable, going, []string{"a"}},
		{"the giver does not know", going, 1, "b", migration.AttemptFate{Fate: migration.FateUnknown, Epoch: 7, Holder: "a"}, nil,
			migration.AttemptFate{Fate: migration.FateGoing, Why: "journal", Epoch: 7, Holder: "a"}, []string{"a"}},
	} {
		var order []string
		got := conductedFate(t.Context(), tt.journaled, m, migration.Ref{Migration: "m", Attempt: tt.attempt}, tt.asks, func(_ context.Context, name string) (migration.Side, error) {
			return asked{name, tt.told, tt.err, &order}, nil
		})
		if d := cmp.Diff(tt.want, got); d != "" || !slices.Equal(order, tt.order) {
			t.Errorf("%s: asked %v, want %v; (-want +got):\n%s", tt.name, order, tt.order, d)
		}
	}
}
