package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/placementclient"
	"berth/placementclient/keystone"
)

// Who the agent is to others: its provider's name, its certificate, and how it
// shows itself to Placement.

// identify decides the provider's name.
func (a *Agent) identify(c config.Config) error {
	a.name = c.Agent.Name
	if a.name != "" {
		return nil
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return fmt.Errorf("find the provider's name: set [agent] name: %w", err)
	}
	a.name = name
	return nil
}

// loadIdentity reads the certificates. Without them the agent serves its own
// machine, and says so.
func (a *Agent) loadIdentity(c config.Config) {
	id, err := pki.Load(pki.Paths{CA: c.PKI.CA, Cert: c.PKI.Cert, Key: c.PKI.Key}, a.rt.Now())
	if err == nil && !pki.Covers(id.Leaf, a.name) {
		err = fault.Refuse(fault.Invalid, "load certificates", fault.Reason{
			Code: "certificate_wrong_name", Message: c.PKI.Cert + " is a " + pki.Describe(id.Leaf) + ", and this host is " + a.name,
			Change: "issue one: berth pki host " + a.name,
		})
	}
	if err != nil {
		a.noPeers, a.noFiles = err, true
		for _, path := range []string{c.PKI.CA, c.PKI.Cert, c.PKI.Key} {
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				a.noFiles = false
			}
		}
		level := slog.LevelWarn
		if a.noFiles {
			level = slog.LevelInfo
		}
		a.log.Log(context.Background(), level, "no certificates: peers and operators cannot connect over the network", "error", err)
		return
	}
	a.identity = id
}

// newPlacement makes the client that the configuration asks for: with a token of
// its own, of Keystone, or with the host's certificate.
func (a *Agent) newPlacement(c config.Config) (*placementclient.Client, error) {
	o := placementclient.Config{
		URL: c.Placement.Endpoint(), Token: c.Placement.Token, Timeout: c.Placement.Timeout.D(),
		AttemptTimeout: min(15*time.Second, c.Placement.Timeout.D()), Logger: a.log, Runtime: a.rt,
	}
	if c.Placement.Auth == config.AuthKeystone {
		s, err := keystone.New(keystone.Options{
			Cloud: c.Placement.Cloud, CloudsFile: c.Placement.CloudsFile, Region: c.Placement.Region, Interface: c.Placement.Interface, Runtime: a.rt,
		})
		if err != nil {
			a.log.Error("keystone cannot be asked for a token", "error", err)
			err = fault.Refuse(fault.Unavailable, "log in to keystone", fault.Reason{
				Code: "keystone_config", Message: err.Error(), Change: "correct [placement] cloud and clouds_file, and restart the agent",
			})
			o.Token, o.TokenSource, o.Catalogue = "", noKeystone{err}, noKeystone{err}
			return placementclient.New(o)
		}
		o.Token, o.TokenSource, o.Catalogue, o.TLS = "", s, s, s.TLS()
		return placementclient.New(o)
	}
	if strings.HasPrefix(o.URL, "https:") && a.identity != nil {
		o.TLS = &tls.Config{
			Certificates: []tls.Certificate{a.identity.Certificate}, RootCAs: a.identity.Roots, MinVersion: tls.VersionTLS12,
		}
	}
	return placementclient.New(o)
}

// noKeystone is a Keystone that cannot be asked, and says why: what the host has to do
// without Placement it does.
type noKeystone struct{ err error }

// Token implements placementclient.TokenSource.
func (n noKeystone) Token(context.Context, string) (string, error) { return "", n.err }

// Endpoint implements placementclient.Catalogue.
func (n noKeystone) Endpoint(context.Context) (string, error) { return "", n.err }
