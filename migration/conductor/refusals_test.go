package conductor

import (
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/migration"
)

// The reasons of several refusals are printed one by one, and taken out of the message for
// that: no host may be left in it without its reason.
func TestRefusals_MessageEndsWithItsReasons(t *testing.T) {
	reason := fault.Reason{Code: "mode_observe", Message: "it only observes"}
	for _, tt := range []struct {
		name string
		list []migration.Refusal
		want string
	}{
		{"one host", []migration.Refusal{{DestCompute: "host-b", Kind: fault.Forbidden, Message: "host host-b: it only observes", Reasons: []fault.Reason{reason}}},
			"no host takes instance i-1: host-b: it only observes"},
		{"two hosts", []migration.Refusal{
			{DestCompute: "host-b", Kind: fault.Forbidden, Message: "host host-b: it only observes", Reasons: []fault.Reason{reason}},
			{DestCompute: "host-c", Kind: fault.Unavailable, Message: "host host-c does not answer"},
		}, "no host takes instance i-1; host host-c does not answer: host-b: it only observes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := refusals(migration.Migration{InstanceUUID: "i-1", Refusals: tt.list}, nil).Err()
			if err.Error() != tt.want {
				t.Errorf("message %q, want %q", err, tt.want)
			}
			var said []string
			for _, r := range fault.ReasonsOf(err) {
				said = append(said, r.Message)
			}
			if !strings.HasSuffix(err.Error(), ": "+strings.Join(said, "; ")) {
				t.Errorf("%q does not end with its reasons %q", err, said)
			}
		})
	}
}
