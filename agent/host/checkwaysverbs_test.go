package host_test

import (
	"slices"
	"testing"

	"berth/agent/host"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/options"
)

// TestCheckSource_HoldsOptionsAgainstTheWayToTheDestination asks the source of a guest whose
// disk no host shares.
func TestCheckSource_HoldsOptionsAgainstTheWayToTheDestination(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	m := newMove(l, l.guest("a", "vm", host.CreateDisk{SizeGB: 1}).UUID)
	here, err := m.a.Describe(t.Context())
	l.must("describe", err)
	for _, tt := range []struct {
		name      string
		options   migration.Options
		transport migration.Transport
		want      string // a reason's code; "" where it may go
	}{
		{"all disks are copied", migration.Options{CopyStorage: options.StorageAll}, "", ""},
		{"what is above nothing is all", migration.Options{CopyStorage: options.StorageInc}, "", ""},
		{"no disk is copied", migration.Options{CopyStorage: options.StorageNone}, "", "storage_copy_none"},
		{"zero copy through a stream", migration.Options{ZeroCopy: options.On, Parallel: 2}, migration.TransportStream, "zero_copy_stream"},
	} {
		a, err := operation.CheckDestination.Ask(t.Context(), m.b, m.ref, migration.CheckRequest{Guest: m.guest, Source: here, Options: tt.options})
		l.must(tt.name, err)
		a.Destination.Transport = tt.transport
		s, err := operation.CheckSource.Ask(t.Context(), m.a, m.ref, a)
		if tt.want == "" {
			if err != nil || len(s.CopyDisks) == 0 {
				t.Errorf("%s: %v, copies %v", tt.name, err, s.CopyDisks)
			}
			continue
		}
		l.wantKind(tt.name, err, fault.Forbidden)
		if !slices.Contains(codes(err), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, codes(err), tt.want)
		}
	}
}
