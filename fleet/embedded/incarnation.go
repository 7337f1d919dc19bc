package embedded

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/store"
)

// markIncarnation is the key of the incarnation in the bucket of marks. A backup does not carry
// that bucket, so a restored database has none and gets a new one.
const markIncarnation = "incarnation"

// older is an ability of a database that recognises an older copy of itself.
type older interface{ Older() string }

// openIncarnation takes the incarnation of the database, or makes a new one durable: of a
// database that has none (it is new, restored, or of before there were any), that is an older
// copy of itself, or is kept in memory only.
func (s *Server) openIncarnation(ctx context.Context, noted string) {
	s.opened = s.rt.Boot().Since
	why := ""
	if o, ok := s.db.(older); ok {
		why = o.Older()
	}
	if noted != "" && why == "" {
		s.incarnation = noted
		return
	}
	if why == "" {
		why = "the database has no incarnation: it is new, restored, or of an older version"
	}
	if err := s.newIncarnation(ctx, why); err != nil {
		// A full disk must not keep the records from being read. The next server makes another.
		s.log.ErrorContext(ctx, "the incarnation of the fleet's records is not durable", "error", err)
		s.incarnation = rand.Text()
	}
}

// newIncarnation makes a new incarnation durable, then visible. The caller holds commits, or is
// Open.
func (s *Server) newIncarnation(ctx context.Context, why string) error {
	next := rand.Text()
	if s.db != nil {
		if err := s.db.Enqueue(store.Put(markBucket, markIncarnation, []byte(next))).Wait(); err != nil {
			return fault.New(fault.InDoubt, "write the incarnation of the fleet's records: %w", err)
		}
		s.log.WarnContext(ctx, "the fleet's records have a new incarnation: hosts write theirs again", "incarnation", next, "why", why)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incarnation = next
	return nil
}

// Moment gives the incarnation and the last durable revision.
func (s *Server) Moment(context.Context) (fleet.Moment, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fleet.Moment{Incarnation: s.incarnation, Session: s.session(), Revision: s.durable, Serving: s.rt.Boot().Since - s.opened + 1}, nil
}

// Renew gives the records a new incarnation, unless they have another than was by now.
func (s *Server) Renew(ctx context.Context, was string) error {
	if err := s.commits.Lock(ctx, s.rt); err != nil {
		return fault.New(fault.Unavailable, "renew the incarnation: wait for commits: %w", err)
	}
	defer s.commits.Unlock()
	if now, _ := s.Moment(ctx); now.Incarnation != was {
		return nil
	}
	return s.newIncarnation(ctx, "a host has seen a later revision than the last of this database: it was rolled back")
}

// moment is the state of the server in an answer.
type moment struct {
	Incarnation string `json:"incarnation"`
	Session     string `json:"session,omitempty"` // none from an older version
	Revision    uint64 `json:"revision"`
	Serving     int64  `json:"serving_ms"`
}

func (s *Server) moment(ctx context.Context) *moment {
	m, _ := s.Moment(ctx) // never fails
	return &moment{Incarnation: m.Incarnation, Session: m.Session, Revision: m.Revision, Serving: max(1, m.Serving.Milliseconds())}
}

type renewRequest struct {
	Was string `json:"was"`
}

// Moment gives the newest state that an answer told. It asks the server before the first.
func (c *Client) Moment(ctx context.Context) (fleet.Moment, error) {
	if m := c.newest(); m.Incarnation != "" {
		return m, nil
	}
	if _, err := c.call(ctx, "list", "ask the store's incarnation", listRequest{Prefix: momentPrefix}); err != nil {
		return fleet.Moment{}, err
	}
	return c.newest(), nil // empty from a server of an older version
}

// Renew asks for a new incarnation in the place of was.
func (c *Client) Renew(ctx context.Context, was string) error {
	_, err := c.call(ctx, "renew", "renew the store's incarnation", renewRequest{Was: was})
	return err
}

// momentPrefix begins no key: a list of it is empty.
const momentPrefix = "none/"

// told is the newest state that an answer has told.
type told struct {
	mu     sync.Mutex // guards the rest
	events uint64     // requests and answers, so far
	noted  uint64     // of them the answer that told moment
	moment fleet.Moment
}

// begin counts a request.
func (t *told) begin() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events++
	return t.events
}

// note notes what the answer to a request tells. Answers overtake each other: only to a request that
// was begun after the noted answer had come they surely are newer. Of two that were under way together
// a later revision of the same run is.
func (t *told) note(begun uint64, m *moment) {
	if m == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events++
	was := t.moment
	if begun < t.noted && (m.Incarnation != was.Incarnation || m.Session != was.Session || m.Revision < was.Revision) {
		return
	}
	t.noted = t.events
	t.moment = fleet.Moment{Incarnation: m.Incarnation, Session: m.Session, Revision: m.Revision, Serving: time.Duration(m.Serving) * time.Millisecond}
}

func (c *Client) newest() fleet.Moment {
	c.told.mu.Lock()
	defer c.told.mu.Unlock()
	return c.told.moment
}

var (
	_ fleet.Incarnations = (*Server)(nil)
	_ fleet.Incarnations = (*Client)(nil)
)
