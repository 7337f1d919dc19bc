package api

import (
	"context"
	"net/http"
	"time"

	"berth/internal/fault"
)

// Doctor looks at what this host needs: to run guests and to move them, to have them evacuated
// when it dies, and to be drained in time.
type Doctor interface {
	// Examine asks each part once. What could not be asked stands in the answer.
	Examine(ctx context.Context) (Diagnosis, error)
}

// Diagnosis is what it found.
type Diagnosis struct {
	Host   string  `json:"host"`
	Health Health  `json:"health"` // degraded where a check is
	Checks []Check `json:"checks"`
}

// CheckOutcome is what came of a check.
type CheckOutcome string

// The outcomes.
const (
	CheckOK    CheckOutcome = "ok"
	CheckWrong CheckOutcome = "wrong"    // it does not work; the remedy says what to do
	CheckUnset CheckOutcome = "not used" // the configuration does not want it; the remedy says how to
)

// Check is one thing that was looked at.
type Check struct {
	Name    string       `json:"name"` // "kernel", "libvirt", "peer host-b", "fleet store", "lease", …
	Outcome CheckOutcome `json:"outcome"`
	Detail  string       `json:"detail"` // one line: what was found
	Remedy  string       `json:"remedy,omitempty"`
	// Since is when this outcome was seen first without another between; the agent looks only
	// when it is asked.
	Since time.Time `json:"since,omitzero"`
}

// doctorRows are asked of the host that is to be looked at.
func doctorRows() []route {
	look := read(http.MethodGet, "/v1/doctor", "doctor", "What this host needs to run and move guests, to have them evacuated and to be drained in time: each thing, how it is, and its remedy.", operators,
		func(s *Server, r *http.Request) (Diagnosis, error) {
			if s.svc.Doctor == nil {
				return Diagnosis{}, fault.New(fault.Forbidden, "examine host %s: this agent has no doctor", s.opt.Name)
			}
			return s.svc.Doctor.Examine(r.Context())
		})
	look.timeout = 2 * time.Minute
	return []route{look}
}

// Examine asks the doctor.
func (c *Client) Examine(ctx context.Context) (out Diagnosis, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/doctor", nil, &out, repeatable)
}
