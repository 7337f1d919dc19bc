package fleet

import (
	"context"
	"fmt"
	"strings"

	"berth/test/lab"
)

const (
	etcdMembers = 3     // one may be lost
	etcdPort    = 23790 // of the first member, for the hosts; the others' follow
)

// etcdURL is where a member listens for the hosts, and etcdPeer for the others.
func etcdURL(member int) string  { return fmt.Sprintf("https://%s:%d", lab.SwitchIP, etcdPort+member) }
func etcdPeer(member int) string { return fmt.Sprintf("http://127.0.0.1:%d", etcdPort+10+member) }

// etcdConfig is the drop-in by which an agent finds it.
func etcdConfig(there bool) string {
	if !there {
		return ""
	}
	var urls []string
	for i := range etcdMembers {
		urls = append(urls, fmt.Sprintf("%q", etcdURL(i)))
	}
	return "[fleet]\netcd = [" + strings.Join(urls, ", ") + "]\n"
}

// startEtcd starts all members and waits until they serve.
func (f *Fleet) startEtcd(ctx context.Context) error {
	f.members = make([]*Process, etcdMembers)
	for i := range etcdMembers {
		if err := f.StartMember(i); err != nil {
			return err
		}
	}
	for i, p := range f.members {
		probe := fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", lab.SwitchIP, etcdPort+i) // open once the member has joined
		if err := f.until(ctx, p, fmt.Sprintf("member %d of etcd serves", i), func() bool {
			_, err := f.Switch.Exec(ctx, "bash", "-c", probe)
			return err == nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// StartMember starts a member of etcd, for the first time or after it was killed.
func (f *Fleet) StartMember(i int) error {
	var all []string
	for j := range etcdMembers {
		all = append(all, fmt.Sprintf("m%d=%s", j, etcdPeer(j)))
	}
	p, err := f.daemon(f.Switch, fmt.Sprintf("etcd-%d", i), "etcd", "--name", fmt.Sprintf("m%d", i), "--data-dir", fmt.Sprintf("/var/lib/berth/etcd-%d", i),
		"--listen-client-urls", etcdURL(i), "--advertise-client-urls", etcdURL(i),
		"--listen-peer-urls", etcdPeer(i), "--initial-advertise-peer-urls", etcdPeer(i),
		"--initial-cluster", strings.Join(all, ","), "--initial-cluster-token", "fleet", "--log-level", "warn",
		"--client-cert-auth", "--trusted-ca-file", "/etc/berth/pki/ca.crt", "--cert-file", "/etc/berth/pki/host.crt", "--key-file", "/etc/berth/pki/host.key")
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.members[i] = p
	f.mu.Unlock()
	return nil
}

// Member is a running member of the fleet's etcd.
func (f *Fleet) Member(i int) *Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[i]
}
