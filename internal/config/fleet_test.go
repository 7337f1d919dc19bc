package config_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth/internal/config"
	"berth/internal/fault"
)

func TestFleet_RefusesWhatContradicts(t *testing.T) {
	https := []string{"https://10.0.0.1:2379", "https://10.0.0.2:2379"}
	for name, tt := range map[string]struct {
		fleet config.Fleet
		want  string // keys that are refused
	}{
		"nothing":                               {config.Fleet{}, ""},
		"members":                               {config.Fleet{Etcd: https}, ""},
		"own certificates and a user":           {config.Fleet{Etcd: https, EtcdCA: "/ca", EtcdCert: "/c", EtcdKey: "/k", EtcdUser: "u", EtcdPasswordFile: "/p"}, ""},
		"a watchdog":                            {config.Fleet{Etcd: https, SelfFence: "/dev/watchdog0"}, ""},
		"no port, a path, a user":               {config.Fleet{Etcd: []string{"https://a", "https://a:1/x", "https://u@a:1", "a:1", ""}}, "fleet.etcd[0] fleet.etcd[1] fleet.etcd[2] fleet.etcd[3] fleet.etcd[4]"},
		"one twice":                             {config.Fleet{Etcd: []string{https[0], https[0]}}, "fleet.etcd[1]"},
		"both protocols":                        {config.Fleet{Etcd: []string{"http://a:1", "https://b:1"}}, "fleet.etcd"},
		"certificates without https":            {config.Fleet{Etcd: []string{"http://a:1"}, EtcdCA: "/ca"}, "fleet.etcd_ca"},
		"certificates without etcd":             {config.Fleet{EtcdCert: "/c", EtcdKey: "/k"}, "fleet.etcd_cert fleet.etcd_key"},
		"half of a pair, half of login":         {config.Fleet{Etcd: https, EtcdCert: "/c", EtcdUser: "u"}, "fleet.etcd_key fleet.etcd_user"},
		"a path that is none":                   {config.Fleet{Etcd: https, EtcdCA: "ca"}, "fleet.etcd_ca"},
		"a short lease":                         {config.Fleet{Lease: config.Duration(time.Second)}, "fleet.lease"},
		"half a second":                         {config.Fleet{Lease: config.Duration(5500 * time.Millisecond)}, "fleet.lease"},
		"a watchdog without leases":             {config.Fleet{SelfFence: "/dev/watchdog0"}, "fleet.self_fence"},
		"no watchdog, so its time is no matter": {config.Fleet{Etcd: https, SelfFenceTimeout: config.Duration(60 * time.Second)}, ""},
	} {
		c := config.Default()
		if tt.fleet.Lease == 0 {
			tt.fleet.Lease = c.Fleet.Lease
		}
		if tt.fleet.SelfFenceTimeout == 0 {
			tt.fleet.SelfFenceTimeout = c.Fleet.SelfFenceTimeout
		}
		c.Fleet = tt.fleet
		err := c.Validate()
		var keys []string
		for _, r := range fault.ReasonsOf(err) {
			keys = append(keys, strings.TrimPrefix(r.Change, "correct "))
		}
		if got := strings.Join(keys, " "); got != tt.want || (err != nil) != errors.Is(err, fault.Invalid) {
			t.Errorf("%s: refused %q, want %q: %v", name, got, tt.want, err)
		}
	}
}

func TestFleet_EtcdIsShownThisHostsCertificateUnlessSaidOtherwise(t *testing.T) {
	c := config.Default()
	if c.FleetCA() != c.PKI.CA || c.FleetCert() != c.PKI.Cert || c.FleetKey() != c.PKI.Key {
		t.Errorf("by default %s, %s, %s", c.FleetCA(), c.FleetCert(), c.FleetKey())
	}
	c.Fleet.EtcdCA, c.Fleet.EtcdCert, c.Fleet.EtcdKey = "/a", "/b", "/c"
	if c.FleetCA() != "/a" || c.FleetCert() != "/b" || c.FleetKey() != "/c" {
		t.Errorf("%s, %s, %s", c.FleetCA(), c.FleetCert(), c.FleetKey())
	}
}

func TestReload_TakesNothingOfTheFleet(t *testing.T) {
	running, read := config.Default(), config.Default()
	read.Fleet.Etcd, read.Fleet.Lease, read.Fleet.SelfFence = []string{"http://a:1"}, config.Duration(time.Minute), "/dev/watchdog"
	for _, c := range config.Diff(running, read) {
		if c.Reloadable {
			t.Errorf("%s is taken from a reload", c.Key)
		}
	}
	if got := config.Reload(running, read); len(got.Fleet.Etcd) != 0 || got.Fleet.Lease != running.Fleet.Lease || got.Fleet.SelfFence != "" {
		t.Errorf("after a reload it is %+v", got.Fleet)
	}
}
