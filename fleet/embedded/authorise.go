package embedded

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/internal/pki"
)

// authority is what decides, beside certificates and the records themselves, who may write what.
type authority struct {
	fencers []string // hosts with the right fence, beside those whose certificates give it
	// holders gives the hosts on which Placement counts an instance. nil: nobody says.
	holders func(ctx context.Context, instance string) ([]string, error)
}

// LetFence names hosts with the right fence, beside those whose certificates give it. It is called
// before the first request.
func (s *Server) LetFence(hosts ...string) {
	s.authority.fencers = append(s.authority.fencers, hosts...)
}

// AskHolders has the server ask Placement on which hosts it counts an instance. It is called before
// the first request.
func (s *Server) AskHolders(holders func(ctx context.Context, instance string) ([]string, error)) {
	s.authority.holders = holders
}

// Kept reports whether hosts keep their records here. Where they keep them in etcd, or nowhere,
// nothing is known of instances and deaths.
func (s *Server) Kept() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key := range s.records {
		if strings.HasPrefix(key, "hosts/") {
			return true
		}
	}
	return false
}

// Holder gives the host that has an instance by its record, and the unfinished migration that the
// record names; false where there is no record.
func (s *Server) Holder(instance string) (host, moving string, found bool) {
	s.mu.RLock()
	r, found := s.records[fleet.InstancesPrefix+instance]
	s.mu.RUnlock()
	var in fleet.Instance
	if !found || json.Unmarshal(r.Value, &in) != nil {
		return "", "", false
	}
	return in.Host, in.Moving, true
}

// holdersTime bounds the question to Placement, which stands in the same process.
const holdersTime = 5 * time.Second

type writerKey struct{}

// asWriter keeps who has sent a request: by the certificate that the TLS server has verified. A
// request without one was let in by a token, and may change everything.
func (s *Server) asWriter(q *http.Request) context.Context {
	if q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
		return q.Context()
	}
	leaf := q.TLS.PeerCertificates[0]
	role, name := pki.RoleOf(leaf)
	w := permit.Writer{
		Operator: role == pki.RoleOperator, Words: string(role) + ":" + name,
		Is: func(host string) bool { return pki.Covers(leaf, host) },
	}
	w.Fences = pki.Gives(leaf, pki.RightFence) || slices.ContainsFunc(s.authority.fencers, w.Is)
	return context.WithValue(q.Context(), writerKey{}, w)
}

// permitted refuses what the sender of ctx may not change; fault.Forbidden with each reason.
func (s *Server) permitted(ctx context.Context, changes []fleet.Change) error {
	w, known := ctx.Value(writerKey{}).(permit.Writer)
	if !known {
		return nil
	}
	err := permit.Check(w, permit.Store{
		Get: func(key string) ([]byte, bool) {
			s.mu.RLock()
			defer s.mu.RUnlock()
			r, found := s.records[key]
			return r.Value, found
		},
		Holders: func(instance string) ([]string, bool) {
			if s.authority.holders == nil {
				return nil, false
			}
			asking, cancel := context.WithTimeout(ctx, holdersTime)
			defer cancel()
			hosts, err := s.authority.holders(asking, instance)
			return hosts, err == nil
		},
	}, changes)
	if err != nil {
		s.log.WarnContext(ctx, "a change of the fleet's records was refused", "by", w.Words, "reasons", fault.ReasonsOf(err))
	}
	return err
}

// Allowed is Commit without a change: whether the sender might do it.
func (s *Server) Allowed(ctx context.Context, changes ...fleet.Change) error {
	if err := fleet.CheckCommit(nil, changes); err != nil {
		return err
	}
	return s.permitted(ctx, changes)
}

var _ fleet.Permits = (*Server)(nil)
