package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"berth/fleet"
	"berth/internal/fault"
)

// pageBytes bounds the values of one page, but for one record alone. Arbitrary: some dozen
// instances.
const pageBytes = 1 << 20

// pageRequest asks for the records whose keys begin with Prefix and come after After. With Host
// those are left out that name another host.
type pageRequest struct {
	Prefix string `json:"prefix"`
	After  string `json:"after,omitempty"`
	Host   string `json:"host,omitempty"`
}

// keysChanged brings the index up to date for records that were written or deleted. The caller
// holds mu, or is Open.
func (s *Server) keysChanged(keys ...string) {
	if len(s.keys) == 0 { // the first, or all
		slices.Sort(keys)
		for _, key := range keys {
			if rec, there := s.records[key]; there {
				s.keys = append(s.keys, key)
				s.hosts[key] = fleet.HostOf(rec.Value)
				s.held.set(key, s.hosts[key], len(rec.Value))
			}
		}
		return
	}
	for _, key := range keys {
		at, known := slices.BinarySearch(s.keys, key)
		rec, there := s.records[key]
		switch {
		case there:
			s.hosts[key] = fleet.HostOf(rec.Value)
			s.held.set(key, s.hosts[key], len(rec.Value))
			if !known {
				s.keys = slices.Insert(s.keys, at, key)
			}
		case known:
			s.keys = slices.Delete(s.keys, at, at+1)
			delete(s.hosts, key)
			s.held.drop(key)
		}
	}
}

// Page reads the next records, in order of key, and reports whether there are more. It copies
// pageBytes of values at most, or one record.
func (s *Server) Page(q pageRequest) (out []fleet.Record, more bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	from, found := slices.BinarySearch(s.keys, max(q.Prefix, q.After))
	if found && q.After >= q.Prefix && q.After != "" {
		from++ // what was read last
	}
	size := 0
	for _, key := range s.keys[from:] {
		if !strings.HasPrefix(key, q.Prefix) {
			return out, false
		}
		// What names no host may be anybody's.
		if of := s.hosts[key]; q.Host != "" && of != "" && of != q.Host {
			continue
		}
		rec := s.records[key]
		if size += len(rec.Key) + len(rec.Value); size > pageBytes && len(out) > 0 {
			return out, true
		}
		rec.Value = bytes.Clone(rec.Value)
		out = append(out, rec)
	}
	return out, false
}

// servePage answers a request for a page.
func (s *Server) servePage(w http.ResponseWriter, q *http.Request) {
	var ask pageRequest
	a, status := answer{}, http.StatusOK
	if err := json.NewDecoder(http.MaxBytesReader(w, q.Body, maxRequest)).Decode(&ask); err != nil || q.Method != http.MethodPost {
		a.Error, status = &answerError{Kind: fault.Invalid, Message: "page: want a POST of prefix, after and host"}, http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
	} else {
		records, more := s.Page(ask)
		a.More = more
		for _, r := range records {
			a.Records = append(a.Records, record(r))
		}
	}
	a.Store = s.moment(q.Context())
	w.Header().Set(here, "1")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // a client that has gone asks again
}

// ListOf reads the records by prefix that name a host, or none.
func (s *Server) ListOf(_ context.Context, prefix, host string) ([]fleet.Record, error) {
	return inPages(prefix, host, func(q pageRequest) ([]fleet.Record, bool, error) {
		records, more := s.Page(q)
		return records, more, nil
	})
}

// ListOf reads the records by prefix that name a host, or none, in pages; of every host for "".
func (c *Client) ListOf(ctx context.Context, prefix, host string) ([]fleet.Record, error) {
	out, err := inPages(prefix, host, func(q pageRequest) ([]fleet.Record, bool, error) {
		a, err := c.exchange(ctx, "page", "list "+prefix, q)
		return a.records(), a.More, err
	})
	if errors.Is(err, fault.Invalid) { // a server of an older version
		return c.call(ctx, "list", "list "+prefix, listRequest{prefix})
	}
	return out, err
}

func inPages(prefix, host string, page func(pageRequest) ([]fleet.Record, bool, error)) ([]fleet.Record, error) {
	out := []fleet.Record{}
	q := pageRequest{Prefix: prefix, Host: host}
	for {
		records, more, err := page(q)
		if err != nil {
			return nil, err
		}
		out = append(out, records...)
		if !more || len(records) == 0 {
			return out, nil
		}
		q.After = records[len(records)-1].Key
	}
}

func (a answer) records() []fleet.Record {
	out := make([]fleet.Record, len(a.Records))
	for i, r := range a.Records {
		out[i] = fleet.Record(r)
	}
	return out
}

var (
	_ fleet.Finder = (*Server)(nil)
	_ fleet.Finder = (*Client)(nil)
)
