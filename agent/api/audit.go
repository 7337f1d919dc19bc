package api

import (
	"context"
	"net/http"
	"time"

	"berth/agent/auditor"
	"berth/internal/fault"
)

// Audits hold Placement against the ledger and libvirt.
type Audits interface {
	// Audit looks, and does what is ordered. What could not be asked stands in the
	// report, and is no error.
	Audit(ctx context.Context, r AuditRequest) (AuditReport, error)
	// Knows says what this host knows of consumers.
	Knows(ctx context.Context, consumers []string) ([]auditor.Known, error)
}

// AuditRequest says what an audit does beside looking.
type AuditRequest struct {
	Heal bool `json:"heal,omitempty"` // write what is provable
	// All audits every host that Placement or [peers] knows.
	All bool `json:"all,omitempty"`
	// AskAll asks every host for consumers that nobody here knows; All does too.
	AskAll bool `json:"ask_all,omitempty"`
	// Report compares the host's providers with Placement first, and writes them where
	// they are missing; with nothing else, that is all.
	Report bool `json:"report,omitempty"`
	// RebuildPlacement has every host report its providers, and then heal.
	RebuildPlacement bool `json:"rebuild_placement,omitempty"`
}

// AuditReport is what hosts found, each of its own.
type AuditReport struct {
	Hosts []AuditHost `json:"hosts"`
	// Silent are the hosts that could not be audited, and why.
	Silent map[string]string `json:"silent,omitempty"`
}

// AuditHost is one of them.
type AuditHost struct {
	auditor.Result
	// Ledger is the last time that the ledger was held against itself and the machine;
	// nil before the first.
	Ledger *Audit `json:"ledger,omitempty"`
}

// AuditQuestion asks a host what it knows of consumers.
type AuditQuestion struct {
	Consumers []string `json:"consumers"` // uuids, at most MaxConsumers
}

// MaxConsumers bounds one question; arbitrary.
const MaxConsumers = 10000

// AuditAnswer is what it knows, in the order of the question.
type AuditAnswer struct {
	Known []auditor.Known `json:"known"`
}

// auditRows are the routes of the audit. A host may have another audit and heal
// itself: it writes nothing that it would not write by itself within an interval.
func auditRows() []route {
	look := read(http.MethodGet, "/v1/audit", "audit", "Hold Placement against ledger and libvirt now; writes nothing.", everyone,
		func(s *Server, r *http.Request) (AuditReport, error) {
			return s.svc.Audits.Audit(r.Context(), AuditRequest{})
		}).canRelay()
	look.timeout = slow
	return []route{
		look,
		write(http.MethodPost, "/v1/audit", "audit-heal", "The same on this host or on all, and heal what is provable; or rebuild a Placement that was lost.", everyone,
			func(s *Server, r *http.Request, in AuditRequest) (AuditReport, error) {
				if _, fromHost := FromHost(r.Context()); fromHost {
					// A host that is asked to by another asks no others to.
					in.All, in.RebuildPlacement = false, false
				}
				return s.svc.Audits.Audit(r.Context(), in)
			}).canRelay().asAct(actHeal),
		withTimeout(quick, write(http.MethodPost, "/v1/audit/consumers", "audit-consumers", "What this host knows of consumers that another found.", everyone,
			func(s *Server, r *http.Request, in AuditQuestion) (AuditAnswer, error) {
				if len(in.Consumers) > MaxConsumers {
					return AuditAnswer{}, fault.New(fault.Invalid, "say what is known of %d consumers: at most %d at once", len(in.Consumers), MaxConsumers)
				}
				known, err := s.svc.Audits.Knows(r.Context(), in.Consumers)
				return AuditAnswer{Known: known}, err
			})),
	}
}

func withTimeout(d time.Duration, r route) route { r.timeout = d; return r }

// Audit audits; what it writes is guarded, and so it is safe to repeat.
func (c *Client) Audit(ctx context.Context, r AuditRequest) (out AuditReport, err error) {
	if r == (AuditRequest{}) {
		return out, c.do(ctx, http.MethodGet, "/v1/audit", nil, &out, repeatable)
	}
	return out, c.do(ctx, http.MethodPost, "/v1/audit", r, &out, repeatable)
}

// Knows asks what the host knows of consumers.
func (c *Client) Knows(ctx context.Context, consumers []string) ([]auditor.Known, error) {
	var out AuditAnswer
	err := c.do(ctx, http.MethodPost, "/v1/audit/consumers", AuditQuestion{Consumers: consumers}, &out, repeatable)
	return out.Known, err
}
