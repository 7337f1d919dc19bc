package host_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/agent/host/fileusers"
	"berth/driver"
	"berth/migration"
)

// TestChange_ADiskThatAnotherHostMayUse_IsNotReplaced: before anything is made, or once the
// instance is off, and its old file stays when the user comes later still.
func TestChange_ADiskThatAnotherHostMayUse_IsNotReplaced(t *testing.T) {
	for name, plan := range map[string]migration.Change{"rebuild": {Image: &migration.Image{Path: newImage}}, "resize": {Flavor: &pinned3}} {
		for _, from := range []string{"prep", "apply", "finish"} {
			t.Run(name+" "+from, func(t *testing.T) {
				b := newChange(t, floats2, driver.Running, plan)
				b.a.Close()
				used := false
				var asked []string
				b.elsewhere = func(_ context.Context, instance string, files []fileusers.Question) map[string]string {
					out := map[string]string{}
					for _, f := range files {
						if asked = append(asked, f.Path); instance == b.uuid && used {
							out[f.Path] = "host-c does not say whether it uses the file"
						}
					}
					return out
				}
				b.start()
				b.look()
				var err error
				at := 0
				for i, v := range b.verbs() {
					used = used || v.name == from
					if at, err = i, v.do(); err != nil {
						break
					}
				}
				if from == "finish" {
					b.must("change", err)
					used = true
					b.finish()
					if kept := slices.DeleteFunc(b.files.List(), func(path string) bool { return !strings.HasSuffix(path, ".kept") }); len(kept) != 1 {
						t.Errorf("files %v: the old disk is not kept", b.files.List())
					}
					return
				}
				if b.verbs()[at].name != from {
					t.Fatalf("it ended at %s (%v), want %s", b.verbs()[at].name, err, from)
				}
				if diff := gocmp.Diff([]string{"disk_used_by_others"}, codes(err)); diff != "" || !strings.Contains(err.Error(), "host-c") {
					t.Errorf("reasons (-want +got):\n%s\n%v", diff, err)
				}
				if !slices.Contains(asked, rootFile) {
					t.Errorf("asked for %v", asked)
				}
				b.back(at)
				b.state("a", b.uuid, driver.Running)
				if data, _, _ := b.files.Data(rootFile); data != "old system" {
					t.Errorf("the disk has %q", data)
				}
			})
		}
	}
}
