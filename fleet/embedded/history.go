package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/store"
)

// markSessions is the key of the sessions in the bucket of marks.
const markSessions = "sessions"

// maxSessions bounds how many are kept. Arbitrary: a host that comes back after more restarts of
// the server takes the database for one that was rolled back, and all hosts write again.
const maxSessions = 1024

// session is one run of a server. A database that was rolled back has not those of after, and of the
// one that it was copied in not the last revisions.
type session struct {
	Name string `json:"name"`
	From uint64 `json:"from"` // the last revision when it was opened: all of the one before are not above
}

// openSession makes the name of this run durable before anybody is told. Where that fails this run
// has none, and clients go by revisions alone.
func (s *Server) openSession(ctx context.Context, noted []byte) {
	var all []session
	if noted != nil {
		if err := json.Unmarshal(noted, &all); err != nil {
			s.log.ErrorContext(ctx, "the sessions of the fleet's records are garbled: hosts take them for older than they were", "error", err)
		}
	}
	all = append(all[max(0, len(all)-maxSessions+1):], session{Name: rand.Text(), From: s.revision})
	raw, err := json.Marshal(all)
	if err == nil && s.db != nil {
		err = s.db.Enqueue(store.Put(markBucket, markSessions, raw)).Wait()
	}
	if err != nil {
		s.log.ErrorContext(ctx, "the session of the fleet's records is not durable", "error", err)
		return
	}
	s.sessions = all
}

// session names this run; empty where it has no name. The caller holds mu.
func (s *Server) session() string {
	if len(s.sessions) == 0 {
		return ""
	}
	return s.sessions[len(s.sessions)-1].Name
}

// Has reports whether what was committed up to a moment that was told is in the database still.
func (s *Server) Has(_ context.Context, told fleet.Moment) (bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at := slices.IndexFunc(s.sessions, func(o session) bool { return o.Name == told.Session })
	if at < 0 {
		return false, nil
	}
	last := s.durable
	if at+1 < len(s.sessions) {
		last = s.sessions[at+1].From
	}
	return told.Revision <= last, nil
}

type hasRequest struct {
	Session  string `json:"session"`
	Revision uint64 `json:"revision"`
}

// has is fault.NotFound where the database has not what was told.
func (s *Server) has(q hasRequest) error {
	if has, _ := s.Has(context.Background(), fleet.Moment{Session: q.Session, Revision: q.Revision}); !has {
		return fault.New(fault.NotFound, "the database has not revision %d of session %s: it is older than it was", q.Revision, q.Session)
	}
	return nil
}

// Has asks the server.
func (c *Client) Has(ctx context.Context, told fleet.Moment) (bool, error) {
	_, err := c.call(ctx, "has", "ask whether the store is older than it was", hasRequest{Session: told.Session, Revision: told.Revision})
	if errors.Is(err, fault.NotFound) && !lacksStore(err) {
		return false, nil
	}
	return err == nil, err
}

// lacksStore tells a Placement that keeps no records from one that has not a revision.
func lacksStore(err error) bool {
	return fault.HasReason(err, fleet.NoStore)
}

var (
	_ fleet.History = (*Server)(nil)
	_ fleet.History = (*Client)(nil)
)
