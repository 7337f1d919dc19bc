package host_test

import (
	"slices"
	"strings"
	"testing"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// TestCheck_ADiskOfTheDefinitionAloneIsNotLeftBehind: virsh attach-disk --config of an
// instance that runs. Where both hosts have the file, the move goes on.
func TestCheck_ADiskOfTheDefinitionAloneIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, path, device string
		want               []string
	}{
		{"on one host", "/images/extra.raw", "disk", []string{"definition_differs"}},
		{"shared", "/shared/extra.raw", "disk", nil},
		{"another file at a target that it has", "/images/extra.raw", "vda", []string{"definition_differs"}},
		{"an empty drive", "", "cdrom", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, world := storedLab(t, false)
			world.Share("/shared", "a", "b")
			v := l.storedGuest(small)
			a, b := l.hosts["a"], l.hosts["b"]
			text, err := a.fake.XML(t.Context(), v.UUID, driver.Persistent)
			l.must("read", err)
			switch {
			case c.device == "vda":
				text = strings.Replace(text, "/images/vm1.raw", c.path, 1)
			case c.path == "":
				text = device("<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>")(text)
			default:
				text = device("<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='" + c.path + "'/><target dev='vdz' bus='virtio'/></disk>")(text)
			}
			if c.path != "" {
				world.Host("a").Put(c.path, "raw", 1<<30, "its data")
			}
			l.must("attach --config", a.fake.Define(t.Context(), text))
			g, err := operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: v.UUID})
			l.must("inspect", err)
			here, err := a.Describe(t.Context())
			l.must("describe", err)
			ref := refFor(v.UUID, 1)
			answer, err := operation.CheckDestination.Ask(t.Context(), b, ref, migration.CheckRequest{Guest: g, Source: here, Kind: migration.TypeLiveMigration})
			l.must("check destination", err)
			_, err = operation.CheckSource.Ask(t.Context(), a, ref, answer)
			if !slices.Equal(codes(err), c.want) {
				t.Errorf("check source: %v, want %v", err, c.want)
			}
			for _, r := range fault.ReasonsOf(err) {
				if !strings.HasPrefix(r.Change, "virsh detach-disk vm1 ") {
					t.Errorf("remedy %q", r.Change)
				}
			}
		})
	}
}
