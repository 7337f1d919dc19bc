package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
)

func TestChangeAggregates_RefusesEveryWrongOne(t *testing.T) {
	const one, two, big = "5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11", "6f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11", "5F2E3C1A-0B5E-4A53-9A51-0D6D1C0F7A11"
	for _, tt := range []struct {
		change api.ChangeAggregates
		codes  string
		of     []string // one and one more
	}{
		{api.ChangeAggregates{Add: []string{two}}, "", []string{one, two}},
		{api.ChangeAggregates{Add: []string{two, two, one}}, "", []string{one, two}},
		{api.ChangeAggregates{Remove: []string{one}}, "", []string{}},
		{api.ChangeAggregates{Remove: []string{two}}, "", []string{one}},
		{api.ChangeAggregates{Add: []string{two}, Remove: []string{one}}, "", []string{two}},
		{api.ChangeAggregates{}, "aggregate_missing", nil},
		{api.ChangeAggregates{Add: []string{big, "rack"}, Remove: []string{""}}, "aggregate_uuid aggregate_uuid aggregate_uuid", nil},
		{api.ChangeAggregates{Add: []string{one, two}, Remove: []string{two, one}}, "aggregate_twice aggregate_twice", nil},
	} {
		err := tt.change.Validate()
		var codes []string
		for _, r := range fault.ReasonsOf(err) {
			codes = append(codes, r.Code)
		}
		if got := strings.Join(codes, " "); got != tt.codes || (err != nil) != (tt.codes != "") || err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: %v, want %q", tt.change, err, tt.codes)
		}
		if diff := cmp.Diff(tt.of, tt.change.Of([]string{one})); tt.codes == "" && diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.change, diff)
		}
	}
}
