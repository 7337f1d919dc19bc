package drivertest

import "testing"

// Hold holds a driver to one property, before whatever records the verdict.
func Hold(t testing.TB, name string, h Harness) {
	for _, p := range properties() {
		if p.name == name {
			hold(t, p, h)
		}
	}
}
