package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/fleet"
	"berth/internal/fault"
)

// Options say where etcd is and who asks. Only Endpoints is mandatory.
type Options struct {
	Endpoints     []string // of all members: http(s)://host:port
	CA, Cert, Key string   // files, with https; the machine's CAs where CA is empty
	User          string   // empty for none
	PasswordFile  string   // read for each connection
	// Timeout bounds one call; 0 for 6 s. A third of it is given to one member.
	Timeout time.Duration
	// Prefix stands in for the package's Prefix in tests; it ends in a slash.
	Prefix string
}

func (o *Options) attempt() time.Duration { return o.Timeout / 3 }

// The limits: records of one page of a list, and bytes of one answer.
const (
	page      = 200
	maxAnswer = 512 << 20
)

// pause is between two rounds through all members.
const pause = 100 * time.Millisecond

// Store is a fleet.Store with fleet.Leases. Safe for concurrent use.
type Store struct {
	options Options
	members []*member

	// mu guards what follows; nothing slow happens under it.
	mu     sync.Mutex
	good   int               // the member that answered last
	leases map[string]*lease // by key
	seen   census
}

// Open checks the options; it does not connect.
func Open(o Options) (*Store, error) {
	if o.Timeout == 0 {
		o.Timeout = 6 * time.Second
	}
	if o.Prefix == "" {
		o.Prefix = Prefix
	}
	s := &Store{options: o, leases: map[string]*lease{}}
	for _, endpoint := range o.Endpoints {
		m, err := newMember(endpoint, &s.options)
		if err != nil {
			return nil, err
		}
		s.members = append(s.members, m)
	}
	if len(s.members) == 0 {
		return nil, fault.New(fault.Invalid, "etcd: no endpoint is named")
	}
	return s, nil
}

// Close ends the connections. Leases end when their time is over.
func (s *Store) Close() error {
	var errs []error
	for _, m := range s.members {
		errs = append(errs, m.forget())
	}
	return errors.Join(errs...)
}

// Asks is which of the endpoints is asked first: the one that answered last.
func (s *Store) Asks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good
}

// call asks one member after the other, from the one that answered last, until one has answered
// or the time is over. twice says that ask may be repeated where its outcome is unknown.
func (s *Store) call(ctx context.Context, doing string, twice bool, ask func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	s.mu.Lock()
	from := s.good
	s.mu.Unlock()
	last := make([]error, len(s.members)) // of each member
	for i := 0; ; i++ {
		if i > 0 && i%len(s.members) == 0 {
			wait := time.NewTimer(pause)
			select {
			case <-wait.C:
			case <-ctx.Done():
				wait.Stop()
			}
		}
		if ctx.Err() != nil {
			return fault.New(fault.Unavailable, "%s: etcd does not answer: %w", doing, errors.Join(append(last, context.Cause(ctx))...))
		}
		n := (from + i) % len(s.members)
		m := s.members[n]
		err, sent := s.try(ctx, m, ask)
		if err == nil || settled(err) {
			s.mu.Lock()
			s.good = n
			s.mu.Unlock()
			return err
		}
		last[n] = fmt.Errorf("%s: %w", m.endpoint, err)
		switch {
		case final(err):
			return fault.New(fault.Forbidden, "%s: %w", doing, last[n])
		case !sent || notDone(err):
		case !twice:
			s.mu.Lock()
			s.good = (n + 1) % len(s.members)
			s.mu.Unlock()
			return fault.New(fault.InDoubt, "%s: the answer is lost: %w", doing, last[n])
		}
	}
}

// try asks one member, within an attempt's time; sent says that it may have been asked.
func (s *Store) try(ctx context.Context, m *member, ask func(context.Context, *grpc.ClientConn) error) (err error, sent bool) {
	ctx, cancel := context.WithTimeout(ctx, s.options.attempt())
	defer cancel()
	conn, err := m.conn(ctx)
	if err != nil {
		return err, false
	}
	err = ask(clientv3.WithRequireLeader(ctx), conn)
	if stale(err) {
		_ = m.forget() // the next call has another; what this one still says is no matter
	}
	return err, true
}

// settled reports whether an answer is the store's own: package fault has it.
func settled(err error) bool {
	_, ok := errors.AsType[*fault.Error](err)
	return ok
}

// notDone reports whether a member has refused a request before it did anything.
func notDone(err error) bool {
	switch e, _ := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err)); e {
	case rpctypes.ErrNoLeader, rpctypes.ErrNotCapable:
		return true
	}
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented:
		return true
	}
	return false
}

// stale reports whether the token has ended, or the users were changed: another login helps.
func stale(err error) bool {
	e, ok := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err))
	return ok && (e == rpctypes.ErrInvalidAuthToken || e == rpctypes.ErrAuthOldRevision)
}

// final reports whether the answer is the same of every member.
func final(err error) bool {
	e, ok := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err))
	return ok && (e == rpctypes.ErrPermissionDenied || e == rpctypes.ErrAuthFailed || e == rpctypes.ErrUserEmpty || e == rpctypes.ErrRoleNotGranted)
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// Get reads one record, linearizably.
func (s *Store) Get(ctx context.Context, key string) (fleet.Record, error) {
	if err := context.Cause(ctx); err != nil {
		return fleet.Record{}, fault.New(fault.Unavailable, "get %s: %w", key, err)
	}
	var out fleet.Record
	err := s.call(ctx, "get "+key, true, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(s.options.Prefix + key)})
		if err != nil {
			return err
		}
		if len(resp.Kvs) == 0 {
			return fault.New(fault.NotFound, "get %s: there is no such record", key)
		}
		out = fleet.Record{Key: key, Value: resp.Kvs[0].Value, Revision: uint64(resp.Kvs[0].ModRevision)}
		return nil
	})
	if err != nil {
		return fleet.Record{}, err
	}
	return out, nil
}

// list reads the records by prefix of which keep says so, in pages of one moment.
func (s *Store) list(ctx context.Context, prefix string, keep func(value []byte) bool) ([]fleet.Record, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fault.New(fault.Unavailable, "list %s: %w", prefix, err)
	}
	from, moment := s.options.Prefix+prefix, int64(0)
	end := clientv3.GetPrefixRangeEnd(from)
	out := []fleet.Record{}
	for more := true; more; {
		var got *pb.RangeResponse
		err := s.call(ctx, "list "+prefix, true, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			got, err = pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), Limit: page, Revision: moment})
			if status.Code(err) == codes.OutOfRange {
				// Compacted between two pages: such a list is older than minutes.
				return fault.New(fault.Unavailable, "list %s: %w", prefix, err)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, kv := range got.Kvs {
			if keep(kv.Value) {
				out = append(out, fleet.Record{Key: strings.TrimPrefix(string(kv.Key), s.options.Prefix), Value: kv.Value, Revision: uint64(kv.ModRevision)})
			}
			from = string(kv.Key) + "\x00"
		}
		moment, more = got.Header.Revision, got.More
	}
	return out, nil
}

// Commit is one transaction.
func (s *Store) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	if err := fleet.CheckCommit(when, changes); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return fault.New(fault.Unavailable, "commit: %w", err)
	}
	q := &pb.TxnRequest{}
	for _, w := range when {
		q.Compare = append(q.Compare, &pb.Compare{
			Key: []byte(s.options.Prefix + w.Key), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: int64(w.Revision)},
		})
	}
	for _, c := range changes {
		key := []byte(s.options.Prefix + c.Key)
		if c.Value == nil {
			q.Success = append(q.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key}}})
			continue
		}
		q.Success = append(q.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: c.Value}}})
	}
	return s.call(ctx, "commit", len(changes) == 0, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := pb.NewKVClient(conn).Txn(ctx, q)
		if err == nil && !resp.Succeeded {
			return fault.New(fault.GenerationConflict, "commit: a record was written since it was read")
		}
		return err
	})
}
