package domainxml

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// younger are the documents that a libvirt of Debian 12 does not take.
var younger = map[string]string{"adopt/pool-vf-running.xml": "<crypto> is younger than libvirt 9.0"}

// libvirt's own schema accepts what Berth writes, and its test driver defines
// it and gives back the same place.
func TestDocuments_LibvirtTakesThem(t *testing.T) {
	virsh, err := exec.LookPath("virsh")
	if err != nil {
		t.Skip("virsh is not installed (libvirt-clients)")
	}
	run := func(t *testing.T, commands string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, virsh, "-q", "-c", "test:///default", commands).CombinedOutput()
		return string(out), err
	}
	if out, err := run(t, "version"); err != nil {
		t.Skipf("libvirt's test driver does not answer: %v: %s", err, out)
	}
	moved := parsed(t, fixture(t, "placed.xml"))
	if err := moved.Rebind(there(t)); err != nil {
		t.Fatal(err)
	}
	documents := map[string]string{
		"placed.xml": fixture(t, "placed.xml"), "placed.xml rebound": moved.String(), "placed.xml rebound, persistent": persistent(moved.String()),
	}
	for _, name := range []string{"build-kernel.xml", "build-disk.xml", "build-dedicated.xml", "build-mixed.xml", "build-floating.xml", "build-small-pages.xml",
		"unpinned.xml", "unpinned-moved.xml", "bare-placed.xml", "placed-changed.xml"} {
		documents[name] = fixture(t, name)
	}
	for _, name := range fixtures(t) {
		documents[name] = fixture(t, name)
	}
	for name, text := range documents {
		t.Run(name, func(t *testing.T) {
			d := parsed(t, text)
			// The test driver takes its own type of domain only.
			d.root.CreateAttr("type", "test")
			d.changed = true
			file := filepath.Join(t.TempDir(), "domain.xml")
			if err := os.WriteFile(file, []byte(d.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := run(t, "define --validate "+file+"; dumpxml "+d.UUID())
			if why, young := younger[name]; young && err != nil && strings.Contains(out, "validate against schema") {
				t.Logf("not taken by this libvirt: %s", why)
				return
			}
			if err != nil {
				t.Fatalf("%v: %s\n%s", err, out, d)
			}
			_, out, _ = strings.Cut(out, "<domain")
			back, err := Parse("<domain" + out)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			wantTopology, want, _ := d.Assignment(nil, nil)
			gotTopology, got, _ := back.Assignment(nil, nil)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("assignment as libvirt gives it back (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantTopology, gotTopology); diff != "" {
				t.Errorf("topology as libvirt gives it back (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(keptDevices(d), keptDevices(back)); diff != "" {
				t.Errorf("what is kept, as libvirt gives it back (-want +got):\n%s", diff)
			}
		})
	}
}

// keptDevices are the devices that are kept, in no order: libvirt sorts them. The
// test driver plugs interfaces in when it defines them.
func keptDevices(d *Doc) []string {
	var out []string
	for _, k := range d.Kept() {
		if strings.HasPrefix(k.Element, "devices/") && k.Element != "devices/interface" {
			out = append(out, k.String())
		}
	}
	slices.Sort(out)
	return out
}
