package api

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"time"

	"berth/internal/fault"
)

// DrainList is the answer of GET /v1/drains.
type DrainList struct {
	Drains []Drain `json:"drains"`
}

// Validate refuses, as fault.Invalid and with every reason, what contradicts itself. own is
// the host that is asked.
func (r DrainRequest) Validate(own string) error {
	var reasons []fault.Reason
	refuse := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	switch {
	case r.Evacuate && (r.Host == "" || r.Host == own):
		refuse("own_host", "a dead host is evacuated by another one, and "+own+" is the one that is asked", "say which host is dead")
	case !r.Evacuate && r.Host != "" && r.Host != own:
		refuse("not_own_host", "host "+r.Host+" is to be drained, and "+own+" is asked: a host drains itself", "ask "+r.Host+"; or evacuate it, where it is dead")
	}
	if r.Evacuate && r.Cold {
		refuse("cold_evacuation", "cold is of a drain: a guest of a dead host does not run", "leave it out")
	}
	if !r.Evacuate && (r.Stopped || r.AcceptLoss || r.Image != nil) {
		refuse("evacuation_only", "stopped, accept_data_loss and image are of an evacuation", "leave them out")
	}
	for i, to := range r.To {
		switch {
		case to == "" || slices.Contains(r.To[:i], to):
			refuse("destination_twice", "destination \""+to+"\": want each host once", "name it once")
		case to == r.Host || !r.Evacuate && to == own:
			refuse("destination_own", "host "+to+" is the one that is to be emptied", "name another")
		}
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "read what is to be drained", reasons...)
	}
	return nil
}

// theDrains are the service, or why there is none.
func (s *Server) theDrains() (Drains, error) {
	if s.svc.Drains == nil {
		return nil, fault.Refuse(fault.Forbidden, "drain host "+s.opt.Name, fault.Reason{
			Code: "no_drains", Message: "this agent drains no host", Change: "ask another host's agent",
		})
	}
	return s.svc.Drains, nil
}

// checkedDrain is the service, for a request that is sound.
func (s *Server) checkedDrain(in DrainRequest) (Drains, error) {
	names := append([]string{in.UUID, in.Host}, in.To...)
	if err := tooLong(slices.AppendSeq(names, maps.Keys(in.Priorities))...); err != nil {
		return nil, err
	}
	if err := in.Validate(s.opt.Name); err != nil {
		return nil, err
	}
	return s.theDrains()
}

// drainRows: a host drains itself, so that to begin is asked of it alone.
func drainRows() []route {
	const path = "/v1/drains/{drained}"
	return []route{
		write(http.MethodPost, "/v1/drains/plan", "drain-plan", "Of each guest of this host, or of a dead one: where would it go, how, or every blocker. Changes nothing.", everyone,
			func(s *Server, r *http.Request, in DrainRequest) (DrainPlan, error) {
				d, err := s.checkedDrain(in)
				if err != nil {
					return DrainPlan{}, err
				}
				return d.Plan(r.Context(), in)
			}).canRelay(),
		write(http.MethodPost, "/v1/drains", "drain-begin", "Empty this host, or evacuate a dead one; answers when it is durable.", operators,
			func(s *Server, r *http.Request, in DrainRequest) (Drain, error) {
				d, err := s.checkedDrain(in)
				if err != nil {
					return Drain{}, err
				}
				return d.Begin(r.Context(), in, CallerWords(r.Context()))
			}).withStatus(http.StatusAccepted),
		read(http.MethodGet, "/v1/drains", "drain-list", "Drains that this host does or did, newest first.", everyone,
			func(s *Server, r *http.Request) (DrainList, error) {
				d, err := s.theDrains()
				if err != nil {
					return DrainList{}, err
				}
				list, err := d.List(r.Context())
				return DrainList{Drains: append([]Drain{}, list...)}, err
			}).canRelay(),
		read(http.MethodGet, path, "drain-show", "The newest drain of a host.", everyone,
			func(s *Server, r *http.Request) (Drain, error) {
				d, err := s.theDrains()
				if err != nil {
					return Drain{}, err
				}
				return d.Get(r.Context(), r.PathValue("drained"))
			}).canRelay(),
		{
			method: http.MethodGet, path: path + "/watch", name: "drain-watch",
			summary: "The newest drain of a host now and at each change, as server-sent events named drain; then one named end.",
			allow:   everyone, status: http.StatusOK, out: reflect.TypeFor[Drain](), relayed: true,
			events: eventsOf("drain", func(s *Server, r *http.Request) (<-chan Drain, error) {
				d, err := s.theDrains()
				if err != nil {
					return nil, err
				}
				return d.Watch(r.Context(), r.PathValue("drained"))
			}),
		},
		write(http.MethodPost, path+"/abort", "drain-abort", "Begin no further move of a drain, and give up those that can be.", operators,
			func(s *Server, r *http.Request, _ nothing) (Drain, error) {
				d, err := s.theDrains()
				if err != nil {
					return Drain{}, err
				}
				return d.Abort(r.Context(), r.PathValue("drained"), CallerWords(r.Context()))
			}),
	}
}

func drainPath(host, word string) string { return "/v1/drains/" + url.PathEscape(host) + word }

// PlanDrain asks what a drain would do.
func (c *Client) PlanDrain(ctx context.Context, r DrainRequest) (out DrainPlan, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/drains/plan", r, &out, repeatable)
}

// BeginDrain empties the host, or evacuates a dead one. It is safe to repeat where r has a
// uuid, and is then repeated.
func (c *Client) BeginDrain(ctx context.Context, r DrainRequest) (out Drain, err error) {
	times := once
	if r.UUID != "" {
		times = repeatable
	}
	return out, c.do(ctx, http.MethodPost, "/v1/drains", r, &out, times)
}

// Drains lists the drains of the host, newest first.
func (c *Client) Drains(ctx context.Context) ([]Drain, error) {
	var out DrainList
	err := c.do(ctx, http.MethodGet, "/v1/drains", nil, &out, repeatable)
	return out.Drains, err
}

// Drain gives the newest drain of a host, which the asked one does.
func (c *Client) Drain(ctx context.Context, host string) (out Drain, err error) {
	return out, c.do(ctx, http.MethodGet, drainPath(host, ""), nil, &out, repeatable)
}

// AbortDrain ends a drain early; safe to repeat.
func (c *Client) AbortDrain(ctx context.Context, host string) (out Drain, err error) {
	return out, c.do(ctx, http.MethodPost, drainPath(host, "/abort"), nothing{}, &out, repeatable)
}

// WatchDrain calls each with the newest drain of a host now and at every change, until it is
// over; see WatchMigration.
func (c *Client) WatchDrain(ctx context.Context, host string, patience time.Duration, each func(Drain) error) error {
	return watch(ctx, c, drainPath(host, "/watch"), "drain", "drain of "+host, patience, each)
}
