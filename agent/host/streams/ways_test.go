package streams

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration"
)

func TestTransport_OfAPair(t *testing.T) {
	both := []migration.Transport{migration.TransportLibvirtTLS, migration.TransportStream}
	streams := migration.Description{Name: "new", Transport: migration.TransportStream, Transports: both, StreamDir: "/run/berth/streams"}
	tls := migration.Description{Name: "tls", Transport: migration.TransportLibvirtTLS, Transports: both, StreamDir: "/run/berth/streams"}
	elsewhere := streams
	elsewhere.StreamDir = "/run/other/streams"
	old := migration.Description{Name: "old"}
	for _, tt := range []struct {
		name         string
		source, dest migration.Description
		want         []string
	}{
		{"two that stream", streams, streams, nil},
		{"one that takes guests by TLS sends by a stream", tls, streams, nil},
		{"and gets them by TLS", streams, tls, nil},
		{"an older agent takes guests by TLS", streams, old, nil},
		{"and cannot send by a stream", old, streams, []string{"transport_differs"}},
		{"one path for both ends", elsewhere, streams, []string{"stream_dir_differs"}},
	} {
		var got []string
		for _, r := range Differ(tt.source, tt.dest) {
			got = append(got, r.Code)
			if r.Change == "" || r.Message == "" {
				t.Errorf("%s: %+v says too little", tt.name, r)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestTransport_AHostSaysWhatItHas(t *testing.T) {
	s := New(Options{Transport: migration.TransportStream})
	var d migration.Description
	s.Describe(&d)
	if d.Transport != migration.TransportLibvirtTLS || slices.Contains(d.Transports, migration.TransportStream) {
		t.Errorf("without streams a host says %+v, want libvirt's TLS alone", d)
	}
}
