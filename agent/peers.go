package agent

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"berth/agent/answers"
	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

const peerPort = "16515"

// peers finds other hosts by their providers' names, and keeps a client for each.
type peers struct {
	a *Agent

	// mu guards clients; nothing blocks under it.
	mu      sync.Mutex
	clients map[string]*api.Client
}

func newPeers(a *Agent) *peers { return &peers{a: a, clients: map[string]*api.Client{}} }

// address is where a host listens.
func (p *peers) address(name string) (addr string, configured bool) {
	if addr, ok := p.a.config().Peers[name]; ok {
		return addr, true
	}
	return net.JoinHostPort(name, peerPort), false
}

// client gives a client of a host; it does not connect.
func (p *peers) client(name string) (*api.Client, error) {
	if p.a.identity == nil {
		return nil, fault.Refuse(fault.Unavailable, "reach host "+name, fault.Reason{
			Code: "certificates", Message: "this host has no certificates: " + p.a.noPeers.Error(), Change: "make them (berth pki --help) and restart the agent",
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.clients[name]; ok {
		return c, nil
	}
	addr, _ := p.address(name)
	c, err := api.NewClient(api.ClientOptions{Address: addr, Name: name, Identity: p.a.identity, As: p.a.name, Runtime: p.a.rt, Asked: func(asked time.Time, answered bool) {
		if answered {
			p.a.asked.Answer(peerPart(name), p.a.rt.Now())
		} else {
			p.a.asked.Miss(peerPart(name), asked)
		}
	}})
	if err != nil {
		return nil, err
	}
	p.clients[name] = c
	return c, nil
}

// peerPart is another host in the table of answers, apart from the loops.
func peerPart(name string) string { return "host " + name }

// answered gives when another host was asked and answered; nothing for one that was never asked.
func (p *peers) answered(name string) answers.Times { return p.a.asked.Of(peerPart(name)) }

// host finds a host for the conductor, this one included. A name that neither
// [peers] nor Placement knows is fault.NotFound.
func (p *peers) host(ctx context.Context, name string) (migration.Host, error) {
	if name == p.a.name {
		// While the ledger is not known the moves of this host wait: an answer by what is
		// left of it would be one by guess.
		return p.a.host, p.a.ledger.state()
	}
	if _, configured := p.address(name); !configured {
		ctx, cancel := p.a.rt.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := p.a.placement.ProviderByName(ctx, name)
		if errors.Is(err, fault.NotFound) {
			return nil, fault.Refuse(fault.NotFound, "find host "+name, fault.Reason{
				Code: "host_unknown", Message: "neither Placement nor [peers] knows a host " + name, Want: name, Change: "see `berth host list` for the hosts there are",
			})
		}
		// A Placement that does not answer leaves the name itself to try.
	}
	return p.client(name)
}

// forget makes later calls use new addresses. Calls in progress go on.
func (p *peers) forget() {
	p.mu.Lock()
	old := p.clients
	p.clients = map[string]*api.Client{}
	p.mu.Unlock()
	for _, c := range old {
		c.Close()
	}
}

func (p *peers) close() { p.forget() }
