package host_test

import (
	"context"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/fileusers"
)

// TestCleanUp_AFileThatOthersSee_IsAskedFor: after a move as well, and only such a file.
func TestCleanUp_AFileThatOthersSee_IsAskedFor(t *testing.T) {
	requireQemuImg(t)
	for why, stays := range map[string]bool{"": false, "host-c does not say": true} {
		l := newLab(t, "a", "b")
		var asked []string
		l.hosts["a"].Close()
		l.boot("a", func(o *host.Options) {
			o.ImagesDirs, o.SharedDirs = []string{"/images", "/elsewhere"}, []string{"/images/"}
			o.Elsewhere = func(_ context.Context, _ string, files []fileusers.Question) map[string]string {
				out := map[string]string{}
				for _, f := range files {
					asked = append(asked, f.Path)
					out[f.Path] = why
				}
				return out
			}
		})
		l.hosts["b"].Close()
		l.boot("b", func(o *host.Options) { o.ImagesDirs = []string{"/images", "/elsewhere"} })
		v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1}, host.CreateDisk{Path: "/elsewhere/two.raw", SizeGB: 1, Format: "raw"})
		m := newMove(l, v.UUID)
		m.prepare()
		m.stream()
		m.handOver()
		if diff := cmp.Diff([]string{"/images/vm1-vda.qcow2"}, asked); diff != "" {
			t.Errorf("asked for (-want +got):\n%s", diff)
		}
		for path, want := range map[string]bool{"/images/vm1-vda.qcow2": stays, "/elsewhere/two.raw": false} {
			if _, err := os.Stat(l.hosts["a"].path(path)); (err == nil) != want {
				t.Errorf("answered %q: %s is there: %v", why, path, err == nil)
			}
		}
	}
}
