package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth/agent/api"
)

type someRights struct {
	others []string
	err    error
}

func (s someRights) WritesOthers(context.Context, string) ([]string, error) { return s.others, s.err }

func TestDoctor_TellsWhetherTheStoreKeepsHostsApart(t *testing.T) {
	if _, says := recordsCheck(t.Context(), struct{}{}, "host-a"); says {
		t.Error("of a store that does not say")
	}
	for name, c := range map[string]struct {
		records someRights
		outcome api.CheckOutcome
		says    string
	}{
		"kept apart": {someRights{}, api.CheckOK, ""},
		"not apart":  {someRights{others: []string{"host-b"}}, api.CheckUnset, "berth host etcd-roles host-b host-a"},
		"silent":     {someRights{err: errors.New("away")}, api.CheckUnset, "fleet store"},
	} {
		got, says := recordsCheck(t.Context(), c.records, "host-a")
		if !says || got.Outcome != c.outcome || !strings.Contains(got.Remedy, c.says) || (c.says == "") != (got.Remedy == "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
