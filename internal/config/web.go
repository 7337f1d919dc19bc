package config

import (
	"net"
	"net/netip"
	"path/filepath"
	"strings"
)

// Web is the page to look at.
type Web struct {
	// Listen is where it is shown: unix:/path, or ADDRESS:PORT; empty for nowhere. On a
	// loopback address it goes in plain text to everybody on this machine, on every other over
	// mutual TLS to operators.
	Listen string `toml:"listen"`
}

// WebAddress is where the page is shown.
type WebAddress struct {
	Network, Address string // as net.Listen takes them
	// Loopback: nobody but this machine reaches it.
	Loopback bool
}

// Where reads Listen; false for nowhere.
func (w Web) Where() (WebAddress, bool) {
	if w.Listen == "" {
		return WebAddress{}, false
	}
	if path, ok := strings.CutPrefix(w.Listen, "unix:"); ok {
		return WebAddress{Network: "unix", Address: path, Loopback: true}, true
	}
	out := WebAddress{Network: "tcp", Address: w.Listen}
	host, _, err := net.SplitHostPort(w.Listen)
	if err != nil {
		return out, true
	}
	ip, err := netip.ParseAddr(host)
	out.Loopback = err == nil && ip.Unmap().IsLoopback()
	return out, true
}

// fault is what is wrong with Listen; empty for nothing. A name is none: whether it is the
// loopback address is a name server's to say, and changes.
func (w Web) fault() (want string) {
	const form = `unix:/PATH, or an IP address and a port such as 127.0.0.1:9180; "" for none`
	at, on := w.Where()
	switch {
	case !on:
		return ""
	case at.Network == "unix" && !filepath.IsAbs(at.Address):
		return form
	case at.Network == "unix" && len(at.Address) > 107: // sun_path of unix(7)
		return "a path of at most 107 bytes, which is all a socket's address holds"
	case at.Network == "unix":
		return ""
	}
	host, _, err := net.SplitHostPort(at.Address)
	if err != nil || hostPort(at.Address) != nil {
		return form
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil {
		return form
	}
	return ""
}
