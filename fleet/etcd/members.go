package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"berth/internal/fault"
)

// member is one of etcd's, and the connection to it.
type member struct {
	endpoint string
	address  string // host:port
	options  *Options

	// mu guards client, and is held while one is made, which asks for a token where there is a
	// user.
	mu     sync.Mutex
	client *clientv3.Client
}

func newMember(endpoint string, o *Options) (*member, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" {
		return nil, fault.New(fault.Invalid, "etcd at %q: want http://HOST:PORT or https://HOST:PORT", endpoint)
	}
	return &member{endpoint: endpoint, address: u.Host, options: o}, nil
}

// conn gives a connection that is ready, within ctx's time. An error means that nothing was
// asked of the member.
func (m *member) conn(ctx context.Context) (*grpc.ClientConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client == nil {
		client, err := m.open(ctx)
		if err != nil {
			return nil, err
		}
		m.client = client
	}
	conn := m.client.ActiveConnection()
	// What failed a while ago may have come back: whoever asks now wants to know now.
	if conn.GetState() == connectivity.TransientFailure {
		conn.ResetConnectBackoff()
	}
	for tried := false; ; {
		switch state := conn.GetState(); state {
		case connectivity.Ready:
			return conn, nil
		case connectivity.TransientFailure:
			if tried {
				return nil, fmt.Errorf("etcd at %s cannot be reached", m.endpoint)
			}
			if !conn.WaitForStateChange(ctx, state) {
				return nil, context.Cause(ctx)
			}
		case connectivity.Shutdown:
			return nil, fmt.Errorf("the store is closed")
		default:
			tried = true
			conn.Connect()
			if !conn.WaitForStateChange(ctx, state) {
				return nil, fmt.Errorf("etcd at %s does not answer: %w", m.endpoint, context.Cause(ctx))
			}
		}
	}
}

// open makes a client for this member alone.
func (m *member) open(ctx context.Context) (*clientv3.Client, error) {
	timeout := m.options.attempt()
	if until, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(until))
	}
	c := clientv3.Config{
		Endpoints: []string{m.endpoint}, DialTimeout: timeout, Logger: zap.NewNop(), Username: m.options.User,
		// A ping every 10 s and no answer for 3 s: etcd refuses clients that ping more often
		// than each 5 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		// Only the caller knows what may be asked twice.
		MaxUnaryRetries: 1,
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}, MinConnectTimeout: 2 * time.Second}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		},
	}
	if m.options.User != "" {
		password, err := os.ReadFile(m.options.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read the password of etcd's user %s: %w", m.options.User, err)
		}
		c.Password = strings.TrimSpace(string(password))
	}
	if strings.HasPrefix(m.endpoint, "https:") {
		config, err := m.options.tls()
		if err != nil {
			return nil, err
		}
		c.TLS = config
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, err // as it came: etcd's errors are told apart by their text
	}
	return client, nil
}

// forget closes the connection: the next call makes another, with another token.
func (m *member) forget() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client == nil {
		return nil
	}
	client := m.client
	m.client = nil
	return client.Close()
}

// refuses reports whether nobody listens at the member's address.
func (m *member) refuses(ctx context.Context) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.address)
	if err == nil {
		_ = conn.Close() // it was opened to see whether it can be
		return false
	}
	return isRefused(err)
}

// tls is this host's identity and whom it believes. The certificate is read for each
// connection, so that a renewed one counts.
func (o *Options) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("read etcd's CA: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read etcd's CA: %s has no certificate", o.CA)
		}
	}
	if o.Cert != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
			if err != nil {
				return nil, fmt.Errorf("read the certificate for etcd: %w", err)
			}
			return &pair, nil
		}
	}
	return config, nil
}
