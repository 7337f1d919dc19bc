package config

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/watchdog"
)

// shortestLease leaves room for three renewals a second apart. etcd itself makes shorter ones
// longer: a lease is never below one and a half election timeouts, which is 2 s at its defaults.
const shortestLease = Duration(3 * time.Second)

// longestLease is arbitrary: nobody waits longer to be allowed to ask.
const longestLease = Duration(time.Hour)

func (f Fleet) faults() []fault.Reason {
	var out []fault.Reason
	bad := func(key string, value any, want string) {
		out = append(out, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("%s = %v: want %s", key, quote(value), want), Want: want, Have: fmt.Sprint(value), Change: "correct " + key,
		})
	}
	schemes := map[string]bool{}
	for i, endpoint := range f.Etcd {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" ||
			strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			bad(fmt.Sprintf("fleet.etcd[%d]", i), endpoint, "https://HOST:PORT or http://HOST:PORT, as etcd's --advertise-client-urls has it")
			continue
		}
		if slices.Contains(f.Etcd[:i], endpoint) {
			bad(fmt.Sprintf("fleet.etcd[%d]", i), endpoint, "each member once")
		}
		schemes[u.Scheme] = true
	}
	if len(schemes) > 1 {
		bad("fleet.etcd", f.Etcd, "all with https, or all with http")
	}
	for _, k := range []struct{ key, val string }{
		{"fleet.etcd_ca", f.EtcdCA}, {"fleet.etcd_cert", f.EtcdCert}, {"fleet.etcd_key", f.EtcdKey}, {"fleet.etcd_password_file", f.EtcdPasswordFile},
	} {
		switch {
		case k.val == "":
		case !filepath.IsAbs(k.val):
			bad(k.key, k.val, "an absolute path")
		case len(f.Etcd) == 0:
			bad(k.key, k.val, `"" without fleet.etcd`)
		case k.key != "fleet.etcd_password_file" && !schemes["https"] && len(schemes) > 0:
			bad(k.key, k.val, `"" while fleet.etcd has http`)
		}
	}
	if (f.EtcdCert == "") != (f.EtcdKey == "") {
		bad("fleet.etcd_key", f.EtcdKey, "set together with fleet.etcd_cert")
	}
	if (f.EtcdUser == "") != (f.EtcdPasswordFile == "") {
		bad("fleet.etcd_user", f.EtcdUser, "set together with fleet.etcd_password_file")
	}
	whole := func(d Duration) bool { return d.D()%time.Second == 0 }
	if f.Lease < shortestLease || f.Lease > longestLease || !whole(f.Lease) {
		bad("fleet.lease", f.Lease, fmt.Sprintf("whole seconds from %s to %s", shortestLease, longestLease))
	}
	if f.SelfFenceTimeout < Duration(time.Second) || !whole(f.SelfFenceTimeout) {
		bad("fleet.self_fence_timeout", f.SelfFenceTimeout, "whole seconds, 1s or more")
	}
	if f.SelfFence == "" {
		return out
	}
	if !filepath.IsAbs(f.SelfFence) {
		bad("fleet.self_fence", f.SelfFence, "the absolute path of a watchdog's device, such as /dev/watchdog0")
	}
	if len(f.Etcd) == 0 {
		bad("fleet.self_fence", f.SelfFence, `"" without fleet.etcd: the embedded store has no leases to fence by`)
	}
	if f.Lease >= shortestLease && f.SelfFenceTimeout >= Duration(time.Second) {
		for _, r := range fault.ReasonsOf(f.Budget().Check()) {
			bad("fleet.lease", f.Lease, fmt.Sprintf("%s beside fleet.self_fence_timeout = %s: %s", r.Change, f.SelfFenceTimeout, r.Message))
		}
	}
	return out
}

// Budget is how lease and watchdog go together.
func (f Fleet) Budget() watchdog.Budget {
	return watchdog.Budget{Lease: f.Lease.D(), Timeout: f.SelfFenceTimeout.D()}
}
