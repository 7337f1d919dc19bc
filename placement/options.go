package placement

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
)

// The ways in which a client says who it is.
const (
	// AuthNone is the real service's noauth2: the X-Auth-Token header must be
	// there and is believed; "admin" may do everything.
	AuthNone = "none"
	// AuthMTLS believes certificates: a host's writes its own providers and the
	// consumers that touch them, a conductor's all consumers, an operator's everything;
	// every one reads.
	AuthMTLS = "mtls"
)

// The rules of who may do what, where tokens are believed (AuthNone).
const (
	// PolicyDefault is what OpenStack's 8.0.0 has without configuration: role admin for
	// everything, a reader of the system for reading, a project's reader for its usages.
	PolicyDefault = "default"
	// PolicyScoped is [oslo_policy] enforce_scope and enforce_new_defaults: an admin
	// must be one of the system.
	PolicyScoped = "scoped"
	// PolicyOpen lets every token do everything.
	PolicyOpen = "open"
)

// Options say where and how to serve. Only Listen is mandatory.
type Options struct {
	// Listen is host:port, or unix:/path.
	Listen string
	// DB is the database file; empty keeps everything in memory.
	DB string
	// Auth is AuthNone or AuthMTLS; empty means AuthNone on loopback and unix
	// sockets, AuthMTLS elsewhere.
	Auth string
	// Insecure allows AuthNone off loopback.
	Insecure bool
	// Policy is PolicyDefault, PolicyScoped or PolicyOpen, for AuthNone; empty means
	// PolicyDefault.
	Policy string
	// Conductors are hosts whose agents conduct moves between others, for AuthMTLS, beside
	// those whose certificates have the right "conduct" (package pki).
	Conductors []string
	// Cert, Key and CA are files. With Cert and Key TLS is spoken; AuthMTLS needs all.
	Cert, Key, CA string
	// Logger gets one debug line a request; nil means slog.Default().
	Logger *slog.Logger
	// Runtime is the clock, and where requests wait for commits; nil means the machine's.
	Runtime runtime.Runtime
	// Store is an open store to use in place of DB, which its owner closes; nil for none.
	Store Store
	// Beside serves what is kept in the same database beside Placement's records; nil for
	// nothing. It is given the open database, nil for memory.
	Beside func(ctx context.Context, db Store, rt runtime.Runtime, log *slog.Logger) (Beside, error)
	// Random makes the uuids of providers and requests; nil for the machine's.
	Random io.Reader
}

// BesidePath is what paths of Beside begin with.
const BesidePath = "/berth/fleet/"

// Beside is what is served below BesidePath to operators and hosts: with certificates to every
// host, with tokens to those who may do everything.
type Beside interface {
	http.Handler
	// Backup is what a backup holds of it: records that Restore puts in the bucket "fleet".
	Backup() map[string]json.RawMessage
	// Dead says whether a host is proved dead. What it had is every host's to take over.
	Dead(host string) bool
}

// unixPath is the path of a unix listen address, or "".
func (o Options) unixPath() string {
	path, is := strings.CutPrefix(o.Listen, "unix:")
	if !is {
		return ""
	}
	return path
}

// local says whether only this machine can reach the address.
func (o Options) local() bool {
	if o.unixPath() != "" {
		return true
	}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// auth is the way in use.
func (o Options) auth() string {
	switch {
	case o.Auth != "":
		return o.Auth
	case o.local():
		return AuthNone
	}
	return AuthMTLS
}

// Validate refuses options that contradict each other or would be unsafe, with
// every reason. It opens nothing.
func (o Options) Validate() error {
	var reasons []fault.Reason
	add := func(code, change, message string, args ...any) {
		reasons = append(reasons, fault.Reason{Code: code, Message: fmt.Sprintf(message, args...), Change: change})
	}
	if path, is := strings.CutPrefix(o.Listen, "unix:"); is {
		if !strings.HasPrefix(path, "/") {
			add("listen_address", "give an absolute path", "listen address %q: want unix:/path", o.Listen)
		}
	} else if _, port, err := net.SplitHostPort(o.Listen); err != nil || port == "" {
		add("listen_address", "give host:port or unix:/path", "listen address %q: want host:port or unix:/path", o.Listen)
	}
	if o.Auth != "" && o.Auth != AuthNone && o.Auth != AuthMTLS {
		add("auth", "give none or mtls", "authentication %q is neither none nor mtls", o.Auth)
	}
	switch o.Policy {
	case "", PolicyDefault:
	case PolicyScoped, PolicyOpen:
		if o.auth() == AuthMTLS {
			add("policy_of_certificates", "leave the policy out, or say none", "with mtls a certificate says what its owner may do")
		}
	default:
		add("policy", "give default, scoped or open", "policy %q is neither default, scoped nor open", o.Policy)
	}
	switch o.auth() {
	case AuthNone:
		if !o.local() && !o.Insecure {
			add("auth_none_off_loopback", "use mtls, or say insecure",
				"without authentication everybody who reaches %s could write", o.Listen)
		}
	case AuthMTLS:
		if o.unixPath() != "" {
			add("auth_mtls_on_socket", "use none on a unix socket", "a unix socket carries no certificates")
		}
		for _, f := range []struct{ flag, path string }{{"certificate", o.Cert}, {"key", o.Key}, {"ca", o.CA}} {
			if f.path == "" {
				add("auth_mtls_files", "give certificate, key and ca", "mutual TLS on %s needs a %s", o.Listen, f.flag)
			}
		}
	}
	if (o.Cert == "") != (o.Key == "") && o.auth() != AuthMTLS {
		add("tls_files", "give both certificate and key, or none", "a certificate and its key go together")
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "serve placement", reasons...)
	}
	return nil
}

// tlsConfig gives what to speak TLS with, or nil for plain HTTP.
func (o Options) tlsConfig(rt runtime.Runtime) (*tls.Config, *pki.Identity, error) {
	if o.Cert == "" {
		return nil, nil, nil
	}
	if o.auth() != AuthMTLS {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, nil, fault.New(fault.Invalid, "load certificate %s and key %s: %w", o.Cert, o.Key, err)
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil, nil
	}
	id, err := pki.Load(pki.Paths{CA: o.CA, Cert: o.Cert, Key: o.Key}, rt.Now())
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{id.Certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    id.Roots,
		Time:         rt.Now,
	}, id, nil
}
