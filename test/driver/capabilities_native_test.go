//go:build native

package driver

import (
	"testing"

	"berth/driver/libvirt/native"
)

func TestNative_TellsWhatGuestsCanHave(t *testing.T) { tellsWhatGuestsCanHave(t, native.Dial) }
