package etcd

import (
	"context"
	"crypto/rand"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/fleet"
)

// incarnationKey holds a random value. Who finds none writes one: etcd was created empty then. A
// restored snapshot has the value of its time; who has seen a later revision replaces it (Renew).
const incarnationKey = "incarnation"

var _ fleet.Incarnations = (*Store)(nil)

// Moment asks etcd for its cluster, the value of its incarnation and its last revision. It writes
// the value where there is none; one whose user may not is told the cluster alone.
func (s *Store) Moment(ctx context.Context) (fleet.Moment, error) {
	m, _, err := s.incarnation(ctx)
	return m, err
}

// incarnation gives the value of etcd's incarnation beside the moment.
func (s *Store) incarnation(ctx context.Context) (m fleet.Moment, value string, err error) {
	key := []byte(s.options.Prefix + incarnationKey)
	next := rand.Text()
	err = s.call(ctx, "read etcd's incarnation", true, func(ctx context.Context, conn *grpc.ClientConn) error {
		kv := pb.NewKVClient(conn)
		resp, err := kv.Range(ctx, &pb.RangeRequest{Key: key})
		if err != nil {
			return err
		}
		header := resp.Header
		value = ""
		if len(resp.Kvs) == 1 {
			value = string(resp.Kvs[0].Value)
		} else {
			made, err := kv.Txn(ctx, &pb.TxnRequest{
				Compare: []*pb.Compare{{Key: key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_ModRevision{}}},
				Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: []byte(next)}}}},
				Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
			})
			switch {
			case status.Code(err) == codes.PermissionDenied:
			case err != nil:
				return err
			case made.Succeeded:
				header, value = made.Header, next
			default:
				header = made.Header
				if kvs := made.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
					value = string(kvs[0].Value)
				}
			}
		}
		m = fleet.Moment{Incarnation: fmt.Sprintf("%x/%s", header.ClusterId, value), Revision: uint64(header.Revision)}
		return nil
	})
	return m, value, err
}

// Renew replaces the value, unless it is another than was has by now.
func (s *Store) Renew(ctx context.Context, was string) error {
	m, value, err := s.incarnation(ctx)
	if err != nil || m.Incarnation != was {
		return err
	}
	key := []byte(s.options.Prefix + incarnationKey)
	return s.call(ctx, "renew etcd's incarnation", true, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).Txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{{Key: key, Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_Value{Value: []byte(value)}}},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: []byte(rand.Text())}}}},
		})
		return err
	})
}
