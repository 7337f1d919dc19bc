package host_test

import (
	"slices"
	"strings"
	"testing"

	"berth/agent/host"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// A live copy has the guest's data alone: persistent bitmaps and internal snapshots of an image are
// named, whoever made them, and the cold move that is the remedy has the file whole.
func TestCheckSource_WhatALiveCopyLeavesBehindIsNamed(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	const path = "/images/vm1.qcow2"
	a.qemuImg(t, "create", "-q", "-f", "qcow2", a.path(path), "1M")
	v := l.guest("a", "vm1", host.CreateDisk{Path: path, Format: "qcow2"})
	m := newMove(l, v.UUID)
	check := func() error {
		source, err := a.Describe(t.Context())
		l.must("describe", err)
		there, err := operation.CheckDestination.Ask(t.Context(), m.b, m.ref, migration.CheckRequest{Guest: m.guest, Source: source})
		l.must("check the destination", err)
		_, err = operation.CheckSource.Ask(t.Context(), m.a, m.ref, there)
		return err
	}
	l.must("as it is", check())
	a.qemuImg(t, "bitmap", "--add", "-f", "qcow2", a.path(path), "backup-1")
	a.qemuImg(t, "snapshot", "-c", "before", a.path(path))
	err := check()
	var got []string
	for _, r := range fault.ReasonsOf(err) {
		got = append(got, r.Code+" "+r.Have)
		if !strings.Contains(r.Change, "berth migrate vm1 b --cold") {
			t.Errorf("remedy %q", r.Change)
		}
	}
	if slices.Sort(got); !slices.Equal(got, []string{"has_bitmap bitmap backup-1", "has_snapshot snapshot before"}) {
		t.Errorf("%v: %v", got, err)
	}
	l.must("cold", newCold(t, l, v.UUID, nil).check())
}
