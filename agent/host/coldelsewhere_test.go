package host_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/agent/host/fileusers"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration/operation"
)

// TestCold_ASharedDiskGrows_WhileItsInstanceRunsOnTheSource: prep-resize comes before power-off, so the
// source's QEMU has the disk open. Whoever has it open on a third host, or is a user on the source, counts.
func TestCold_ASharedDiskGrows_WhileItsInstanceRunsOnTheSource(t *testing.T) {
	for name, c := range map[string]struct {
		answers string // whose name the host that is asked has
		other   bool   // another instance of it has the disk
		refused bool
	}{
		"its own process":                {"a", false, false},
		"open on a third host":           {"c", false, true},
		"another instance on the source": {"a", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			l, world := storedLab(t, true)
			v := l.storedGuest(small)
			if c.other {
				l.must("define", l.hosts["a"].fake.Define(t.Context(), foreignXML("other", `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/images/vm1.raw'/><target dev='vda'/></disk>`, "")))
			}
			l.hosts["b"].Close()
			l.boot("b", func(o *host.Options) {
				o.Files, o.SharedDirs = world.Host("b"), []string{"/images"}
				o.Elsewhere = func(ctx context.Context, instance string, files []fileusers.Question) map[string]string {
					out := map[string]string{}
					for _, q := range files {
						if q.RunsOn != "a" {
							t.Errorf("asked with %+v", q)
						}
						if c.answers != "a" {
							q.RunsOn = "another"
						}
						replies, err := l.hosts["a"].FilesUsed(ctx, instance, []fileusers.Question{q})
						l.must("ask a", err)
						out[q.Path] = replies[0].Why
					}
					return out
				}
			})
			world.OnWriters(func(on, _ string) []string {
				if slices.Contains(l.fleet.Running(v.UUID), on) {
					return []string{"qemu-system-x86"}
				}
				return nil
			})
			larger := large
			larger.DiskGB = 3
			m := newCold(t, l, v.UUID, &larger)
			m.run(m.there(), "claim")
			var err error
			for _, s := range m.there() {
				if s.name == "prep resize" {
					l.state("a", v.UUID, driver.Running)
					err = s.do()
				}
			}
			if !c.refused {
				l.must("prep resize", err)
				return
			}
			l.wantKind("prep resize", err, fault.Forbidden)
			if diff := gocmp.Diff([]string{"disk_used_by_others"}, codes(err)); diff != "" {
				t.Errorf("reasons (-want +got):\n%s\n%v", diff, err)
			}
		})
	}
}

// TestCold_ConfirmedWithASilentHost_EndsAndKeepsTheOldFile: the questions are over long before the operation is.
func TestCold_ConfirmedWithASilentHost_EndsAndKeepsTheOldFile(t *testing.T) {
	l, world := storedLab(t, true)
	v := l.storedGuest(small)
	larger := large
	larger.DiskGB = 3
	silent := false
	l.hosts["b"].Close()
	l.boot("b", func(o *host.Options) {
		o.Files, o.SharedDirs = world.Host("b"), []string{"/images"}
		o.Elsewhere = func(ctx context.Context, _ string, files []fileusers.Question) map[string]string {
			out := map[string]string{}
			if !silent {
				return out
			}
			if end, bounded := ctx.Deadline(); !bounded || time.Until(end) > operation.ConfirmDestination.Limit/3 {
				t.Errorf("asked until %v (%t)", end, bounded)
			}
			for _, q := range files {
				out[q.Path] = "host-c does not say whether it uses the file"
			}
			return out
		}
	})
	m := newCold(t, l, v.UUID, &larger)
	m.run(m.there(), "")
	silent = true
	m.run(m.confirm(), "")
	if kept := slices.DeleteFunc(world.Host("b").List(), func(path string) bool { return !strings.HasSuffix(path, ".kept") }); len(kept) != 1 {
		t.Errorf("files %v: the old disk is not kept", world.Host("b").List())
	}
}
