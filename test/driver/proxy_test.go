package driver

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"berth/test/rpcproxy"
)

// startProxy puts a proxy before a libvirtd's socket and gives its own.
func startProxy(t *testing.T, target string) (p *rpcproxy.Proxy, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-proxy-") // t.TempDir's names are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket = filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return rpcproxy.Start(t, l, target), socket
}
