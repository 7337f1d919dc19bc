package etcd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/fleet"
	"berth/internal/fault"
)

// lease is what this process has on a key.
type lease struct {
	id     int64
	length fleet.Seconds
}

// census is who etcd's members are, as they said while they served.
type census struct {
	at       time.Time // of the last; zero for never
	voters   int
	endpoint map[string]uint64 // endpoint to member
}

// censusEvery is how old a census may get while leases are kept.
const censusEvery = time.Minute

// Lease writes a key under a lease, or renews it.
func (s *Store) Lease(ctx context.Context, key string, value []byte, length fleet.Seconds) error {
	if err := context.Cause(ctx); err != nil {
		return fault.New(fault.Unavailable, "lease %s: %w", key, err)
	}
	s.mu.Lock()
	l := s.leases[key]
	old := time.Since(s.seen.at) > censusEvery
	s.mu.Unlock()
	if l != nil && l.length != length {
		l = nil // etcd cannot change it; the old one is of no key once the key has another
	}
	err := s.call(ctx, "lease "+key, true, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		var term uint64
		if l != nil {
			if l, term, err = renew(ctx, conn, l); err != nil {
				return err
			}
		}
		if l == nil {
			resp, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: int64(length)})
			if err != nil {
				return err
			}
			l, term = &lease{id: resp.ID, length: length}, 0
		}
		kv := pb.NewKVClient(conn)
		have, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.options.Prefix + key)})
		if err != nil {
			return err
		}
		if term != 0 && have.Header.RaftTerm != term {
			return fmt.Errorf("the leader changed during the renewal")
		}
		if len(have.Kvs) == 1 && have.Kvs[0].Lease == l.id && bytes.Equal(have.Kvs[0].Value, value) {
			return nil
		}
		_, err = kv.Put(ctx, &pb.PutRequest{Key: []byte(s.options.Prefix + key), Value: value, Lease: l.id})
		if status.Code(err) == codes.NotFound { // it ended meanwhile
			l = nil
		}
		return err
	})
	s.mu.Lock()
	if l == nil {
		delete(s.leases, key)
	} else {
		s.leases[key] = l
	}
	s.mu.Unlock()
	if err == nil && old {
		s.count(ctx)
	}
	return err
}

// renew asks once; nil where the lease has ended. term is the member's before the renewal.
func renew(ctx context.Context, conn *grpc.ClientConn, l *lease) (left *lease, term uint64, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
	if err != nil {
		return l, 0, err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: l.id}); err != nil {
		return l, 0, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return l, 0, err
	}
	if resp.TTL <= 0 {
		return nil, 0, nil
	}
	return l, resp.Header.RaftTerm, nil
}

// Release ends the lease that this process has on a key.
func (s *Store) Release(ctx context.Context, key string) error {
	s.mu.Lock()
	l := s.leases[key]
	delete(s.leases, key)
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	return s.call(ctx, "release "+key, true, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.id})
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	})
}

// count asks all who they are; what cannot be asked stays as it was known.
func (s *Store) count(ctx context.Context) {
	voters := 0
	err := s.call(ctx, "list etcd's members", true, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{})
		if err != nil {
			return err
		}
		voters = 0
		for _, m := range resp.Members {
			if !m.IsLearner {
				voters++
			}
		}
		return nil
	})
	if err != nil {
		return
	}
	said := s.ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]uint64{}
	for i, m := range s.members {
		if id := cmp.Or(said[i].id, s.seen.endpoint[m.endpoint]); id != 0 {
			known[m.endpoint] = id
		}
	}
	s.seen = census{at: time.Now(), voters: voters, endpoint: known}
}

// word is what one member said when it was asked alone.
type word struct {
	id      uint64 // 0 for not said
	out     bool   // it serves nobody
	refused bool   // nobody listens there, or a firewall says so
	words   string
}

// ask asks every member by itself, all at once.
func (s *Store) ask(ctx context.Context) []word {
	ctx, cancel := context.WithTimeout(ctx, s.options.attempt())
	defer cancel()
	out := make([]word, len(s.members))
	var wg sync.WaitGroup
	for i, m := range s.members {
		wg.Go(func() { out[i] = m.say(ctx) })
	}
	wg.Wait()
	return out
}

func (m *member) say(ctx context.Context) word {
	if m.refuses(ctx) {
		return word{out: true, refused: true, words: "refuses connections"}
	}
	conn, err := m.conn(ctx)
	if err != nil {
		return word{words: err.Error()}
	}
	resp, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	switch {
	case err != nil:
		return word{words: err.Error()}
	case resp.Leader == 0 || slices.Contains(resp.Errors, rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader)):
		return word{id: resp.Header.MemberId, out: true, words: "has no leader"}
	}
	return word{id: resp.Header.MemberId, words: "has a leader"}
}

// count is how many are true.
func count(of map[uint64]bool) int {
	n := 0
	for _, is := range of {
		if is {
			n++
		}
	}
	return n
}

// NoQuorum asks every member at once, twice: what said both times that it serves nobody did so in
// between. A silent one proves nothing. Two endpoints of one member count once, and a member
// that never said who it is does not count, so that it takes a Lease before it can be nil.
func (s *Store) NoQuorum(ctx context.Context) (refused bool, err error) {
	s.mu.Lock()
	seen := s.seen
	s.mu.Unlock()
	if seen.voters == 0 {
		return false, fault.New(fault.Unavailable, "ask each member of etcd: who they are was never heard")
	}
	var words []string
	gone := map[uint64]bool{} // by member; false where it serves by one of its endpoints
	told := map[uint64]bool{} // by member: it has said so itself, each time
	for range 2 {
		said := s.ask(ctx)
		words = words[:0]
		for i, m := range s.members {
			words = append(words, m.endpoint+": "+said[i].words)
			id := seen.endpoint[m.endpoint]
			if id == 0 {
				continue
			}
			out := said[i].out && (said[i].id == 0 || said[i].id == id) // another one may have its address now
			itself := out && !said[i].refused
			if was, known := gone[id]; known {
				out, itself = out && was, itself && told[id]
			}
			gone[id], told[id] = out, itself
		}
		n := count(gone)
		refused = count(told) <= seen.voters/2
		if n <= seen.voters/2 {
			return false, fault.New(fault.Unavailable, "ask each member of etcd: %d of %d say that they serve nobody: %s", n, seen.voters, strings.Join(words, "; "))
		}
	}
	return refused, nil
}
