package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// Database is where the records are durable: *store.DB, or a test's that fails.
type Database interface {
	List(ctx context.Context, bucket string) (map[string][]byte, error)
	Enqueue(mutations ...store.Mutation) *store.Pending
}

// Server is a fleet.Store, and serves one (ServeHTTP). Who may ask it is decided by whoever it
// is mounted in. Safe for concurrent use.
type Server struct {
	db  Database // nil: memory only
	rt  runtime.Runtime
	log *slog.Logger

	authority authority

	// lists has a place for each answer of all records at once; see maxLists.
	lists chan struct{}

	// commits is held from a commit's decision until it is durable. Lock order: commits, mu.
	commits runtime.Lock
	// revision is the last one. Only whoever holds commits reads or writes it.
	revision uint64

	// mu guards what follows, which holds only what is durable. Nothing slow happens under it.
	mu          sync.RWMutex
	records     map[string]fleet.Record
	keys        []string          // of records, in order
	hosts       map[string]string // by key: the host that the record names
	held        held
	durable     uint64 // the last revision
	incarnation string
	sessions    []session // of this database, the last is this server's; see history.go

	opened time.Duration // on the boot clock; set once
}

// maxLists bounds how many lists without pages are answered at once, from the request to its last byte.
// Arbitrary: one of a large fleet takes some 200 MiB.
const maxLists = 4

// Open reads the records of a database; nil keeps them in memory. The database's owner closes
// it after the last request.
func Open(ctx context.Context, db Database, rt runtime.Runtime, log *slog.Logger) (*Server, error) {
	s := &Server{db: db, rt: rt, log: log, lists: make(chan struct{}, maxLists), records: map[string]fleet.Record{}, hosts: map[string]string{}}
	if db == nil {
		s.openIncarnation(ctx, "")
		s.openSession(ctx, nil)
		return s, nil
	}
	found, err := db.List(ctx, Bucket)
	if err != nil {
		return nil, fmt.Errorf("read the fleet's records: %w", err)
	}
	marks, err := db.List(ctx, markBucket)
	if err != nil {
		return nil, fmt.Errorf("read the fleet's records: %w", err)
	}
	if mark, ok := marks[markKey]; ok {
		if s.revision, err = strconv.ParseUint(string(mark), 10, 64); err != nil {
			return nil, fault.New(fault.Internal, "read the fleet's records: their last revision is garbled: %w", err)
		}
	}
	for key, value := range found {
		var r record
		if err := json.Unmarshal(value, &r); err != nil || r.Revision == 0 {
			return nil, fault.New(fault.Internal, "read the fleet's record %s: it is garbled: %w", key, err)
		}
		s.records[key] = fleet.Record{Key: key, Value: r.Value, Revision: r.Revision}
		s.revision = max(s.revision, r.Revision)
	}
	s.keysChanged(slices.Collect(maps.Keys(s.records))...)
	s.durable = s.revision
	s.openIncarnation(ctx, string(marks[markIncarnation]))
	s.openSession(ctx, marks[markSessions])
	return s, nil
}

// Get reads one record.
func (s *Server) Get(_ context.Context, key string) (fleet.Record, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.records[key]
	if !ok {
		return fleet.Record{}, fault.New(fault.NotFound, "get %s: there is no such record", key)
	}
	r.Value = bytes.Clone(r.Value)
	return r, nil
}

// List reads records by prefix.
func (s *Server) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	return s.ListOf(ctx, prefix, "")
}

// Commit does all changes or none. A caller whose context ends while it waits for its turn is
// fault.Unavailable; once decided a commit goes its way.
func (s *Server) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	if err := fleet.CheckCommit(when, changes); err != nil {
		return err
	}
	if err := s.commits.Lock(ctx, s.rt); err != nil {
		return fault.New(fault.Unavailable, "commit: wait for those before: %w", err)
	}
	defer s.commits.Unlock()
	if err := s.check(when); err != nil {
		return err
	}
	if err := s.permitted(ctx, changes); err != nil {
		return err
	}
	if err := s.bounded(ctx, changes); err != nil {
		return err
	}
	revision := max(s.revision+1, uint64(max(0, s.rt.Now().UnixMicro())))
	after := make(map[string]fleet.Record, len(changes))
	var mutations []store.Mutation
	for _, c := range changes {
		if c.Value == nil {
			mutations = append(mutations, store.Delete(Bucket, c.Key))
			continue
		}
		r := fleet.Record{Key: c.Key, Value: bytes.Clone(c.Value), Revision: revision}
		value, err := json.Marshal(record{Revision: r.Revision, Value: r.Value})
		if err != nil {
			return fault.New(fault.Internal, "commit: %w", err)
		}
		after[c.Key] = r
		mutations = append(mutations, store.Put(Bucket, c.Key, value))
	}
	if s.db != nil && len(mutations) > 0 {
		mutations = append(mutations, store.Put(markBucket, markKey, strconv.AppendUint(nil, revision, 10)))
		if err := s.db.Enqueue(mutations...).Wait(); err != nil {
			// The database takes it back with its next commit; a crash before that may not.
			s.log.ErrorContext(ctx, "the fleet's records could not be written", "error", err)
			return fault.New(fault.InDoubt, "commit: write the database: %w", err)
		}
	}
	s.revision = revision
	s.mu.Lock()
	defer s.mu.Unlock()
	s.durable = revision
	for _, c := range changes {
		if r, kept := after[c.Key]; kept {
			s.records[c.Key] = r
		} else {
			delete(s.records, c.Key)
		}
		s.keysChanged(c.Key)
	}
	return nil
}

// check holds conditions against what is durable; commits is held.
func (s *Server) check(when []fleet.Condition) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, w := range when {
		if have := s.records[w.Key].Revision; have != w.Revision {
			return fault.New(fault.GenerationConflict, "commit: record %s has revision %d, not %d", w.Key, have, w.Revision)
		}
	}
	return nil
}

// Dead says whether the records have a death of a host.
func (s *Server) Dead(host string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, dead := s.records[fleet.DeathsPrefix+host]
	return dead
}

// Backup gives the records as the bucket has them, for a backup of the database. Deaths are not
// among them: what was a proof when the backup was taken is none when it is restored, since the
// host may have come back. A death that still holds is declared anew.
func (s *Server) Backup() map[string]json.RawMessage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[string]json.RawMessage{}
	for key, r := range s.records {
		if strings.HasPrefix(key, fleet.DeathsPrefix) {
			continue
		}
		if value, err := json.Marshal(record{Revision: r.Revision, Value: r.Value}); err == nil { // bytes and a number always can be
			out[key] = value
		}
	}
	return out
}

// ServeHTTP answers one request below Path.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	verb := strings.TrimPrefix(q.URL.Path, Path)
	q = q.WithContext(s.asWriter(q))
	if verb == "page" {
		s.servePage(w, q)
		return
	}
	if verb == "list" { // of a client of before pages: all records are in memory until it has read them
		select {
		case s.lists <- struct{}{}:
			defer func() { <-s.lists }()
		case <-q.Context().Done():
			return // nobody waits for the answer any more
		}
	}
	records, err := s.serve(w, q, verb)
	a := answer{Store: s.moment(q.Context())} // of after what was asked, since serve has ended
	status := http.StatusOK
	if err != nil {
		kind := fault.KindOf(err)
		a.Error, status = answerOf(err), statusOf(kind)
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
	}
	for _, r := range records {
		a.Records = append(a.Records, record(r))
	}
	s.log.DebugContext(q.Context(), "fleet request", "verb", verb, "status", status, "records", len(records), "error", err)
	b, err := json.Marshal(a)
	if err != nil {
		s.log.ErrorContext(q.Context(), "the fleet's records cannot be written down", "error", err)
		status, b = http.StatusInternalServerError, nil
	}
	w.Header().Set(here, "1")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has gone asks again
}

func (s *Server) serve(w http.ResponseWriter, q *http.Request, verb string) ([]fleet.Record, error) {
	if q.Method != http.MethodPost {
		return nil, fault.New(fault.Invalid, "%s: want POST", verb)
	}
	read := func(v any) error {
		dec := json.NewDecoder(http.MaxBytesReader(w, q.Body, maxRequest))
		if err := dec.Decode(v); err != nil {
			return fault.New(fault.Invalid, "read the request to %s: %w", verb, err)
		}
		return nil
	}
	switch verb {
	case "get":
		var r getRequest
		if err := read(&r); err != nil {
			return nil, err
		}
		rec, err := s.Get(q.Context(), r.Key)
		if err != nil {
			return nil, err
		}
		return []fleet.Record{rec}, nil
	case "list":
		var r listRequest
		if err := read(&r); err != nil {
			return nil, err
		}
		return s.List(q.Context(), r.Prefix)
	case "commit", "allowed":
		var r commitRequest
		if err := read(&r); err != nil {
			return nil, err
		}
		when, changes := make([]fleet.Condition, len(r.When)), make([]fleet.Change, len(r.Changes))
		for i, c := range r.When {
			when[i] = fleet.Condition(c)
		}
		for i, c := range r.Changes {
			changes[i] = fleet.Change(c)
		}
		if verb == "allowed" {
			return nil, s.Allowed(q.Context(), changes...)
		}
		return nil, s.Commit(q.Context(), when, changes...)
	case "renew":
		var r renewRequest
		if err := read(&r); err != nil {
			return nil, err
		}
		return nil, s.Renew(q.Context(), r.Was)
	case "has":
		var r hasRequest
		if err := read(&r); err != nil {
			return nil, err
		}
		return nil, s.has(r)
	}
	return nil, fault.New(fault.Invalid, "%q: want get, list, commit, allowed, renew or has", verb)
}
