package config_test

import (
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/config"
)

// TestWeb_NothingButTheMachineItselfIsServedInPlainText: what is not surely a loopback address
// is taken for the network.
func TestWeb_NothingButTheMachineItselfIsServedInPlainText(t *testing.T) {
	for _, c := range []struct {
		listen string
		want   config.WebAddress
		wrong  bool
	}{
		{listen: ""},
		{listen: "unix:/run/berth/web.sock", want: config.WebAddress{Network: "unix", Address: "/run/berth/web.sock", Loopback: true}},
		{listen: "127.0.0.1:9180", want: config.WebAddress{Network: "tcp", Address: "127.0.0.1:9180", Loopback: true}},
		{listen: "127.8.8.8:9180", want: config.WebAddress{Network: "tcp", Address: "127.8.8.8:9180", Loopback: true}},
		{listen: "[::1]:9180", want: config.WebAddress{Network: "tcp", Address: "[::1]:9180", Loopback: true}},
		{listen: "[::ffff:127.0.0.1]:9180", want: config.WebAddress{Network: "tcp", Address: "[::ffff:127.0.0.1]:9180", Loopback: true}},
		{listen: ":9180", want: config.WebAddress{Network: "tcp", Address: ":9180"}},
		{listen: "0.0.0.0:9180", want: config.WebAddress{Network: "tcp", Address: "0.0.0.0:9180"}},
		{listen: "[::]:9180", want: config.WebAddress{Network: "tcp", Address: "[::]:9180"}},
		{listen: "192.0.2.1:9180", want: config.WebAddress{Network: "tcp", Address: "192.0.2.1:9180"}},
		{listen: "localhost:9180", wrong: true}, // a name server's to say
		{listen: "127.0.0.1", wrong: true},
		{listen: "127.0.0.1:nowhere", wrong: true},
		{listen: "unix:web.sock", wrong: true},
		{listen: "unix:", wrong: true},
		{listen: "unix:/" + strings.Repeat("x", 107), wrong: true},
	} {
		path := write(t, filepath.Join(t.TempDir(), "berth.toml"), "[web]\nlisten = \""+c.listen+"\"\n")
		read, err := config.Load(path)
		if c.wrong {
			if err == nil || !strings.Contains(err.Error(), "web.listen") {
				t.Errorf("%q: %v", c.listen, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.listen, err)
		}
		if got, on := read.Web.Where(); got != c.want || on != (c.listen != "") {
			t.Errorf("%q: %+v, want %+v", c.listen, got, c.want)
		}
	}
}
