package etcd

import (
	"context"
	"math"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"berth/fleet"
	"berth/internal/fault"
)

// Grant is a permission of an etcd role: on one key, or on all that begin with it.
type Grant struct {
	Write  bool // and read; else read alone
	Key    string
	Prefix bool
}

// Grants are what a host's role needs, and no more than etcd can express: keys, not what is written.
// So every host may still write records of instances and of evacuations. A host that fences writes
// deaths and the records of dead hosts too.
func Grants(host string, fences bool) []Grant {
	key := func(k string) Grant { return Grant{Write: true, Key: Prefix + k} }
	under := func(k string) Grant { return Grant{Write: true, Key: Prefix + k, Prefix: true} }
	out := []Grant{
		{Key: Prefix, Prefix: true},
		key("hosts/" + host), key("alive/" + host), key("deaths/" + host), key("incarnation"),
		under("instances/"), under("evacuated/"),
	}
	if fences {
		out = append(out, under("deaths/"), under("hosts/"))
	}
	return out
}

// RoleCommands are the etcdctl commands that make users and roles for hosts: of each its name is the
// user, as in the CN of its certificate, or by a password (etcdctl user passwd NAME).
func RoleCommands(hosts, fencers []string) []string {
	fences := map[string]bool{}
	for _, f := range fencers {
		fences[f] = true
	}
	var out []string
	for _, h := range hosts {
		role := "berth-" + h
		out = append(out, "etcdctl role add "+role)
		for _, g := range Grants(h, fences[h]) {
			c := []string{"etcdctl role grant-permission", role}
			if g.Prefix {
				c = append(c, "--prefix=true")
			}
			perm := "read"
			if g.Write {
				perm = "readwrite"
			}
			out = append(out, strings.Join(append(c, perm, g.Key), " "))
		}
		out = append(out, "etcdctl user add "+h+" --no-password", "etcdctl user grant-role "+h+" "+role)
	}
	return out
}

// Allowed says whether etcd lets this user write the keys of changes: by a transaction whose
// condition cannot hold, which etcd refuses before it looks at the condition where a right lacks.
func (s *Store) Allowed(ctx context.Context, changes ...fleet.Change) error {
	q := &pb.TxnRequest{}
	for _, c := range changes {
		key := []byte(s.options.Prefix + c.Key)
		q.Compare = append(q.Compare, &pb.Compare{Key: key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL, TargetUnion: &pb.Compare_ModRevision{ModRevision: math.MaxInt64}})
		q.Success = append(q.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: c.Value}}})
	}
	return s.call(ctx, "ask whether records may be written", true, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := pb.NewKVClient(conn).Txn(ctx, q)
		if err == nil && resp.Succeeded {
			return fault.New(fault.Internal, "a transaction that cannot happen was done")
		}
		return err
	})
}

var _ fleet.Permits = (*Store)(nil)
