package api

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	"berth/internal/fault"
	"berth/internal/pki"
)

// Headers of this API.
const (
	headerRequestID = "X-Request-Id"
	headerHost      = "Berth-Host"    // the calling host's provider name, which its certificate must cover
	headerTimeout   = "Berth-Timeout" // how long the caller will wait, "1m30s"
	headerRelayed   = "Berth-Relayed" // the host that passes somebody's request on
)

// caller is who sent a request.
type caller uint8

// The callers, as bits: a route names those it answers.
const (
	callerLocal    caller = 1 << iota // through the unix socket
	callerOperator                    // an operator's certificate
	callerHost                        // another host's certificate
	callerReader                      // a reader's certificate: asks what an operator may, and changes nothing
)

const (
	everyone  = callerLocal | callerOperator | callerHost
	operators = callerLocal | callerOperator
	hostsOnly = callerHost
)

func (c caller) String() string {
	switch c {
	case callerLocal:
		return "local socket"
	case callerOperator:
		return "operator"
	case callerHost:
		return "host"
	case callerReader:
		return "reader"
	}
	return "nobody"
}

// identity is a caller with its name: a provider's for a host.
type identity struct {
	caller caller
	name   string
	// relayed: a host sends it on for somebody who has named this one.
	relayed bool

	server  *Server           // that let him in
	request string            // its id
	leaf    *x509.Certificate // of a host or an operator
	user    *LocalUser        // of the local socket; nil where the kernel does not say

	// asker is whom a host has the request from, by what it says, and askerRights what he
	// may do there; empty where it asks by itself.
	asker       string
	askerRights []string
}

type identityKey struct{}

func callerOf(ctx context.Context) identity {
	id, _ := ctx.Value(identityKey{}).(identity)
	return id
}

// FromHost gives the provider's name of the host that sent the request of ctx;
// false for a request of a person or tool.
func FromHost(ctx context.Context) (string, bool) {
	id := callerOf(ctx)
	return id.name, id.caller == callerHost
}

// PassedOn gives the host that has passed the request of ctx on by itself, since it takes
// this one for the right one: it is not passed on again. False for what a person or tool
// has asked of this host, also through another.
func PassedOn(ctx context.Context) (string, bool) {
	id := callerOf(ctx)
	return id.name, id.caller == callerHost && !id.relayed
}

type localKey struct{}

// markLocal is an http.Server's ConnContext: what came through a unix socket was
// let in by the file's mode. Who it is counts for rights alone.
func markLocal(ctx context.Context, c net.Conn) context.Context {
	if c.LocalAddr().Network() != "unix" {
		return ctx
	}
	var user *LocalUser
	if cred, ok := credentialsOf(c); ok {
		user = &LocalUser{UID: cred.uid, Groups: cred.groups}
	}
	return context.WithValue(ctx, localKey{}, user)
}

// authenticate says who the caller is, or refuses with every reason.
func (s *Server) authenticate(r *http.Request) (identity, error) {
	if user, local := r.Context().Value(localKey{}).(*LocalUser); local {
		return identity{caller: callerLocal, name: "local", server: s, user: user}, nil
	}
	const doing = "let the caller in"
	if r.TLS == nil || s.opt.Identity == nil {
		return identity{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "tls_required", Message: "the connection is not TLS", Change: "connect with https and a certificate",
		})
	}
	role, leaf, err := s.opt.Identity.VerifyClient(r.TLS.PeerCertificates, time.Now())
	if err != nil {
		return identity{}, err
	}
	if person, is := map[pki.Role]caller{pki.RoleOperator: callerOperator, pki.RoleReader: callerReader}[role]; is {
		_, name := pki.RoleOf(leaf)
		return identity{caller: person, name: name, server: s, leaf: leaf}, nil
	}
	name := r.Header.Get(headerHost)
	if name == "" {
		return identity{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "host_unnamed", Message: "a host's certificate was presented, and no " + headerHost + " header says which host calls",
			Change: "send the provider's name in " + headerHost + ", or use an operator's certificate (berth pki operator NAME)",
		})
	}
	if !pki.Covers(leaf, name) {
		return identity{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "certificate_wrong_name", Message: "the caller says it is host " + name + ", and presents a " + pki.Describe(leaf),
			Want: "a certificate with " + name + " in its subjectAltName", Have: pki.Describe(leaf),
			Change: "issue one: berth pki host " + name,
		})
	}
	id := identity{caller: callerHost, name: name, server: s, leaf: leaf, relayed: r.Header.Get(headerRelayed) != ""}
	id.heardAsker(r.Header)
	return id, nil
}
