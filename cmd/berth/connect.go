package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
)

// peerPort is where agents listen for peers and operators.
const peerPort = "16515"

// dial finds the agent that a command is meant for:
//
//	(nothing)          the socket of this machine's configuration
//	/path, unix:/path  that socket
//	host:port          that address, with --cert
//	name               with --cert that host, by [peers] or its name; without,
//	                   the local agent, which passes the request on
func (a *app) dial() (*api.Client, error) {
	to := strings.TrimPrefix(a.connect, "unix:")
	if strings.Contains(to, "/") {
		return api.NewClient(api.ClientOptions{Socket: to})
	}
	c, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	local, err := api.NewClient(api.ClientOptions{Socket: c.Agent.SocketPath(), Follow: a.follower(c)})
	if err != nil || to == "" {
		return local, err
	}
	name, port, splitErr := net.SplitHostPort(to)
	if splitErr != nil {
		name, port = to, peerPort
	}
	if _, err := net.LookupPort("tcp", port); err != nil || name == "" || strings.ContainsAny(name, " \t\n\"@?#") {
		return nil, fault.Refuse(fault.Invalid, "connect to "+strconv.Quote(to), fault.Reason{
			Code: "address", Message: "it is neither a socket's path, nor a host's name, nor HOST:PORT", Change: "correct --connect (or BERTH_CONNECT)",
		})
	}
	if splitErr != nil && a.certFile == "" {
		return local.Via(to), nil
	}
	if a.certFile == "" {
		return nil, fault.Refuse(fault.Invalid, "connect to "+to, fault.Reason{
			Code: "certificate_missing", Message: "another host is reached with a certificate, and none was named",
			Change: "say --cert FILE (berth pki operator NAME makes one), or give the host's name alone, and this machine's agent passes the request on",
		})
	}
	o := api.ClientOptions{Address: to, Name: name, Follow: a.follower(c)}
	if splitErr != nil {
		o = hostAt(c, to)
		o.Follow = a.follower(c)
	}
	if o.Identity, err = a.identity(); err != nil {
		return nil, fault.Wrap(err, "connect to %s", to)
	}
	if role, who := pki.RoleOf(o.Identity.Leaf); role == pki.RoleHost {
		o.As = who
	}
	return api.NewClient(o)
}

// hostAt gives where a host's agent listens: by [peers], or by its name.
func hostAt(c config.Config, host string) api.ClientOptions {
	o := api.ClientOptions{Name: host, Address: net.JoinHostPort(host, peerPort)}
	if addr, ok := c.Peers[host]; ok {
		o.Address = addr
	}
	return o
}

// identity reads the certificate, key and CA that --cert, --key and --ca name.
func (a *app) identity() (*pki.Identity, error) {
	p := pki.Paths{Cert: a.certFile, Key: a.keyFile, CA: a.caFile}
	if p.Key == "" {
		p.Key = strings.TrimSuffix(p.Cert, filepath.Ext(p.Cert)) + ".key"
	}
	if p.CA == "" {
		p.CA = filepath.Join(filepath.Dir(p.Cert), pki.CACertFile)
	}
	id, err := pki.Load(p, time.Now())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, fault.Refuse(fault.Invalid, "", fault.Reason{
			Code: "certificate_missing", Message: err.Error(), Change: "correct --cert, --key and --ca (berth pki operator NAME makes the three files)",
		})
	}
	return id, err
}

// follower gives clients of hosts that have to be asked themselves, with the operator's
// certificate of --cert; nil where there is none.
func (a *app) follower(c config.Config) func(host string) (*api.Client, error) {
	if a.certFile == "" {
		return nil
	}
	return func(host string) (*api.Client, error) {
		o := hostAt(c, host)
		var err error
		if o.Identity, err = a.identity(); err != nil {
			return nil, err
		}
		if role, _ := pki.RoleOf(o.Identity.Leaf); role != pki.RoleOperator {
			return nil, fault.New(fault.Forbidden, "ask host %s: %s is no operator's certificate", host, a.certFile)
		}
		return api.NewClient(o)
	}
}

// readConfig reads the configuration for where this machine's agent listens. A fault in it is
// told once, on standard error, and is no reason to give up: the agent that runs was started
// without it. The same holds for a file that this user may not read, which is not told. A file
// that --config names and that does not exist is an error.
func (a *app) readConfig() (config.Config, error) {
	c, err := config.Readable(a.config)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return c, nil
	case a.config != config.DefaultPath && !exists(a.config):
		return c, err
	}
	a.warn(err)
	return c, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// warn tells a fault of the configuration once, and that the command goes on.
func (a *app) warn(err error) {
	if a.warned {
		return
	}
	a.warned = true
	if a.json {
		_ = json.NewEncoder(a.err).Encode(map[string]string{"warning": err.Error()}) // standard error may be closed
		return
	}
	fmt.Fprintf(a.err, "berth: warning: %v\n  next: berth config check; the command goes on with the rest of the configuration\n", err)
}
