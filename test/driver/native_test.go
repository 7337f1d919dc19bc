//go:build native

package driver

import (
	"testing"

	"berth/driver/libvirt/native"
)

func TestNative_ConformsOnQEMU(t *testing.T) { conformsOnQEMU(t, native.Dial) }
