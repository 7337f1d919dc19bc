package api

import (
	"context"
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
	}
	return "nobody"
}

// identity is a caller with its name: a provider's for a host.
type identity struct {
	caller caller
	name   string
	// relayed: a host sends it on for somebody who has named this one.
	relayed bool
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
// let in by the file's mode.
func markLocal(ctx context.Context, c net.Conn) context.Context {
	if c.LocalAddr().Network() == "unix" {
		return context.WithValue(ctx, localKey{}, true)
	}
	return ctx
}

// authenticate says who the caller is, or refuses with every reason.
func (s *Server) authenticate(r *http.Request) (identity, error) {
	if local, _ := r.Context().Value(localKey{}).(bool); local {
		return identity{caller: callerLocal, name: "local"}, nil
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
	if role == pki.RoleOperator {
		_, name := pki.RoleOf(leaf)
		return identity{caller: callerOperator, name: name}, nil
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
	return identity{caller: callerHost, name: name, relayed: r.Header.Get(headerRelayed) != ""}, nil
}

// party refuses a host verb from a host that the migration is not of. from is
// the side that may ask: for a verb of the destination its source, and the
// other way round. named is the source that the arguments name, empty where
// they name none.
func (s *Server) party(ctx context.Context, side side, migration, instance, named string) error {
	who := callerOf(ctx)
	refuse := func(want string) error {
		return fault.Refuse(fault.Forbidden, "let host "+who.name+" ask a verb of migration "+migration, fault.Reason{
			Code: "not_a_party", Message: "host " + who.name + " is not the host that this migration is recorded with (" + want + ")",
			Want: want, Have: who.name, Change: "ask from host " + want,
		})
	}
	if named != "" && named != who.name {
		return refuse(named)
	}
	source, destination, known := s.svc.Parties.Parties(migration, instance)
	switch {
	case side == sideSource && !known:
		// Nothing was recorded here, so no other host has any business with it.
		return fault.Refuse(fault.Forbidden, "let host "+who.name+" ask a verb of the source", fault.Reason{
			Code: "not_a_party", Message: "no migration of instance " + instance + " is recorded on this host", Change: "begin one on its source",
		})
	case side == sideConductor && !known:
		return fault.Refuse(fault.Forbidden, "let host "+who.name+" ask a verb of its conductor", fault.Reason{
			Code: "not_a_party", Message: "no migration of instance " + instance + " is recorded on this host that host " + who.name + " conducts", Change: "begin one on its source",
		})
	case side == sideConductor && source != who.name:
		return refuse(source)
	case side == sideSource && destination != who.name:
		return refuse(destination)
	case side == sideDestination && known && source != who.name:
		return refuse(source)
	}
	return nil
}

type side uint8

const (
	sideSource side = iota
	sideDestination
	// sideConductor is either, for the host alone that conducts the move by what is
	// recorded here: its source.
	sideConductor
)
