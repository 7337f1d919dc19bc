//go:build native

package native

import (
	"testing"

	"go.uber.org/goleak"

	"berth/driver/libvirt"
)

func TestMain(m *testing.M) {
	// libvirt's event loop is the process's and has no end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("libvirt.org/go/libvirt.EventRunDefaultImpl"))
}

func TestNative_PutsTheSocketIntoTheURI(t *testing.T) {
	for _, tt := range []struct {
		target libvirt.Target
		want   string
	}{
		{libvirt.Target{URI: "test:///default", Socket: "/run/x"}, "test:///default"},
		{libvirt.Target{URI: "qemu:///system", Socket: "/run/a b"}, "qemu+unix:///system?socket=%2Frun%2Fa+b"},
		{libvirt.Target{URI: "qemu+unix:///system?socket=/y", Socket: "/run/x"}, "qemu+unix:///system?socket=/y"},
		{libvirt.Target{URI: "qemu:///system"}, "qemu:///system"},
	} {
		if got, err := address(tt.target); err != nil || got != tt.want {
			t.Errorf("%+v: %q, %v, want %q", tt.target, got, err, tt.want)
		}
	}
}
