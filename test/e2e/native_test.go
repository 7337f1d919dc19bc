package e2e

import (
	"strings"
	"testing"

	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// TestMove_AgentsWithLibvirtsCLibrary moves a guest between two agents of the native
// build, and back to one of the default build, as hosts meet that are changed over one
// after the other.
func TestMove_AgentsWithLibvirtsCLibrary(t *testing.T) {
	build(t)
	if missing, err := lab.Missing(t.Context(), lab.NativePackages()...); err != nil || len(missing) > 0 {
		t.Skipf("run `go run ./test/lab/cmd/lab install -native`: %v %v", missing, err)
	}
	native, err := fleet.BuildNative(t.Context(), shared.dir)
	if err != nil {
		t.Fatal(err)
	}
	w := ownWith(t, fleet.Options{Binary: native})
	if said := w.berth(w.a, "version"); !strings.Contains(said, "(cgo)") {
		t.Errorf("the binary is %q, want the native build", said)
	}
	w.boot(w.a, guest.Options{Name: "n1"})
	w.berth(w.a, "migrate", "n1", w.b.Name)
	w.livesOn("n1", w.b, w.a)
	there := w.alive("n1", w.a, w.b)
	t.Log(there)

	w.Fleet.Binary = shared.bin
	w.restart(w.a)
	if said := w.berth(w.a, "version"); strings.Contains(said, "(cgo)") {
		t.Errorf("the binary is %q, want the default build", said)
	}
	w.berth(w.a, "migrate", "n1", w.a.Name)
	w.livesOn("n1", w.a, w.b)
	back := w.beats(w.a, "n1", there.Source+5) // its first words there were before the moves
	if last := back[len(back)-1]; last.Boot != back[0].Boot || last.Bad+last.DiskBad != 0 || last.N <= there.Last {
		t.Errorf("back on host-a the guest says %+v; it was at beat %d of boot %s on host-b", last, there.Last, there.Boot)
	}
}
