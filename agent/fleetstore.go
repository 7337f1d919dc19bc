package agent

import (
	"crypto/tls"
	"fmt"
	"strings"

	"berth/fleet"
	"berth/fleet/embedded"
	"berth/fleet/etcd"
	"berth/internal/config"
)

// The kinds of stores.
const (
	kindEtcd     = "etcd"
	kindEmbedded = "embedded"
)

// fleetStore makes the way to the store of the fleet's records, and does not connect: etcd where
// it is configured, else what an embedded Placement keeps beside its own; nil for none. Whether
// the Placement that is configured is such a one is seen when it answers.
func (a *Agent) fleetStore() (fleet.Store, string, error) {
	c := a.config()
	switch {
	case a.opt.FleetStore != nil:
		s, err := a.opt.FleetStore(c)
		if err != nil || s == nil {
			return nil, "", err
		}
		if _, leases := s.(fleet.Leases); leases {
			return s, kindEtcd, nil
		}
		return s, kindEmbedded, nil
	case len(c.Fleet.Etcd) > 0:
		o := etcd.Options{Endpoints: c.Fleet.Etcd, User: c.Fleet.EtcdUser, PasswordFile: c.Fleet.EtcdPasswordFile}
		if strings.HasPrefix(c.Fleet.Etcd[0], "https:") {
			o.CA, o.Cert, o.Key = c.FleetCA(), c.FleetCert(), c.FleetKey()
		}
		s, err := etcd.Open(o)
		if err != nil {
			return nil, "", fmt.Errorf("reach the fleet's records: %w", err)
		}
		return s, kindEtcd, nil
	case c.Placement.Auth == config.AuthKeystone:
		return nil, "", nil // it is OpenStack's
	}
	o := embedded.Options{URL: c.Placement.Endpoint(), Token: c.Placement.Token, Timeout: c.Placement.Timeout.D()}
	if strings.HasPrefix(o.URL, "https:") && a.identity != nil {
		o.TLS = &tls.Config{Certificates: []tls.Certificate{a.identity.Certificate}, RootCAs: a.identity.Roots, MinVersion: tls.VersionTLS12}
	}
	s, err := embedded.NewClient(o)
	if err != nil {
		return nil, "", fmt.Errorf("reach the fleet's records: %w", err)
	}
	return s, kindEmbedded, nil
}
