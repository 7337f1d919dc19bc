package host_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/disks"
	"berth/agent/host/fileusers"
	"berth/internal/fault"
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

// exportsUnknown are files of which nobody can say whether they are exported.
type exportsUnknown struct{ host.Files }

func (exportsUnknown) Shared(path string) (bool, error) {
	return false, fault.Refuse(fault.Unavailable, "", fault.Reason{Code: disks.ExportsUnreadable, Message: "whether this host exports " + path + " cannot be told"})
}

// TestCleanUp_ExportsUnreadable_TheFileStays: and the rest goes on.
func TestCleanUp_ExportsUnreadable_TheFileStays(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a")
	a := l.hosts["a"]
	a.Close()
	a = l.boot("a", func(o *host.Options) {
		o.Files = exportsUnknown{disks.Files{Root: a.root, BootID: "boot"}.Bounded(nil)}
		o.Elsewhere = func(context.Context, string, []fileusers.Question) map[string]string { return nil }
	})
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	kept, err := a.Host.Delete(t.Context(), v.UUID, host.DeleteOptions{Force: true, Disks: true})
	l.must("delete", err)
	if text := fmt.Sprint(kept); !strings.Contains(text, "whether this host exports /images/vm1-vda.qcow2 cannot be told") {
		t.Errorf("delete answers %+v", kept)
	}
	if _, err := os.Stat(a.path("/images/vm1-vda.qcow2")); err != nil {
		t.Error(err)
	}
}
