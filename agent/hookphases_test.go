package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/hooks"
	"berth/internal/config"
)

// A setting for a phase that the configuration does not know would be refused, and one
// that hooks do not know never used.
func TestHookPhases_OfTheConfigurationAreThoseOfHooks(t *testing.T) {
	var want []string
	for _, p := range hooks.Phases() {
		want = append(want, p.Name)
	}
	if diff := cmp.Diff(want, config.HookPhases); diff != "" {
		t.Errorf("config.HookPhases (-want +got):\n%s", diff)
	}
}
