package drivertest

import (
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
)

// forwarded is a unix socket that leads to another host.
type forwarded struct {
	to    string
	count atomic.Int64
}

// Forward makes a unix socket, of that path on every host, that leads to the host to:
// its libvirt, or what a guest that comes there listens on. connections counts those
// that were made. Migrations by sockets that nobody made do not begin.
func (f *Fleet) Forward(path, to string) (connections func() int) {
	s := &forwarded{to: to}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forwards == nil {
		f.forwards = map[string]*forwarded{}
	}
	f.forwards[path] = s
	return func() int { return int(s.count.Load()) }
}

// destinationLocked is the host that a URI leads to: qemu+tls://host:port/system, or
// qemu+unix:///system?socket=PATH by a socket. nil for none.
func (f *Fleet) destinationLocked(uri string) *machine {
	u, err := url.Parse(uri)
	if err != nil {
		return nil
	}
	if u.Scheme == "qemu+unix" {
		s := f.forwards[u.Query().Get("socket")]
		if s == nil {
			return nil
		}
		s.count.Add(1)
		return f.hosts[s.to]
	}
	return f.hosts[u.Hostname()]
}

// socketsLocked connects QEMU of both hosts, where the guest goes by unix sockets.
func (f *Fleet) socketsLocked(j *job) error {
	m := j.m
	if !strings.HasPrefix(m.MigrateURI, "unix://") {
		return nil
	}
	connect := func(uri string, n int) error {
		path := strings.TrimPrefix(uri, "unix://")
		s := f.forwards[path]
		if s == nil || f.hosts[s.to] != j.dest {
			return fmt.Errorf("failed to connect to '%s': No such file or directory", path)
		}
		s.count.Add(int64(n))
		return nil
	}
	if err := connect(m.MigrateURI, max(1, m.ParallelConnections)); err != nil {
		return err
	}
	switch {
	case len(m.CopyDisks) == 0:
		return nil
	case m.DisksURI == "":
		return fmt.Errorf("NBD URI must be supplied when migration URI uses UNIX transport method")
	}
	return connect(m.DisksURI, len(m.CopyDisks))
}
