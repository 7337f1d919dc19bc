package agent

import (
	"errors"
	"testing"

	"berth/internal/fault"
)

func TestUnsettledCode_SilentFileSystem_IsNamedAsSuch(t *testing.T) {
	silent := fault.Wrap(fault.Refuse(fault.Unavailable, "", fault.Reason{Code: "filesystem_silent"}), "autostart instance x")
	if got := unsettledCode(silent); got != "filesystem_silent" {
		t.Errorf("got %q", got)
	}
	if got := unsettledCode(errors.New("its source does not answer")); got != "arrival_unsettled" {
		t.Errorf("got %q", got)
	}
}
