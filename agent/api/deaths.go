package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"berth/fleet"
	"berth/internal/fault"
)

// Deaths are the proofs that hosts run no guest any more; see fleet.Death. by is who has
// asked, as CallerWords spells him. All want the fleet's records: fault.Forbidden with reason
// no_fleet_store where there are none, fault.Unavailable while they do not answer.
type Deaths interface {
	// Fence has the hooks of phase fence, on this host, make sure that a host is off, and
	// writes that it is dead when all have said so. It may take as long as hooks may. A host
	// that answers is fenced too: whoever asks has said so. fault.Forbidden where there is no
	// such hook; a hook that fails leaves nothing written. Safe to repeat.
	Fence(ctx context.Context, host, by string) (fleet.Death, error)
	// Declare takes an operator's word for it. Refused with fault.Forbidden, reason
	// host_answers, while the host's agent answers, unless force is said. Safe to repeat.
	Declare(ctx context.Context, host, because, by string, force bool) (fleet.Death, error)
	// List gives the deaths that stand, by host.
	List(ctx context.Context) ([]fleet.Death, error)
}

// DeclareDead is an operator's word that a host is dead.
type DeclareDead struct {
	Because string `json:"because"` // what he has checked, in his words; must be given
	// Force takes the word though the host's agent answers.
	Force bool `json:"force,omitempty"`
}

// DeathList is the answer of GET /v1/fleet/deaths.
type DeathList struct {
	Deaths []fleet.Death `json:"deaths"`
}

// theDeaths are the service, or why there is none.
func (s *Server) theDeaths() (Deaths, error) {
	if s.svc.Deaths == nil {
		return nil, noFleet("ask who is dead")
	}
	return s.svc.Deaths, nil
}

// deathRows are asked of any host: it is the one that fences, and writes the record.
func deathRows() []route {
	fence := write(http.MethodPost, "/v1/fleet/hosts/{host}/fence", "host-fence", "Have this host's fencing hooks switch another host off, which is then dead.", operators,
		func(s *Server, r *http.Request, _ nothing) (fleet.Death, error) {
			d, err := s.theDeaths()
			if err == nil {
				err = s.another(r, "fence host")
			}
			if err != nil {
				return fleet.Death{}, err
			}
			return d.Fence(r.Context(), r.PathValue("host"), CallerWords(r.Context()))
		})
	declare := write(http.MethodPost, "/v1/fleet/hosts/{host}/declare-dead", "host-declare-dead", "An operator who has checked says that a host is dead; refused while its agent answers, and where nobody knows the host, unless force is said.", operators,
		func(s *Server, r *http.Request, in DeclareDead) (fleet.Death, error) {
			d, err := s.theDeaths()
			if err == nil {
				err = s.another(r, "declare dead host")
			}
			if err == nil && strings.TrimSpace(in.Because) == "" {
				err = fault.Refuse(fault.Invalid, "declare host "+r.PathValue("host")+" dead", fault.Reason{
					Code: "because_missing", Message: "it is not said why", Change: "say in because what you have checked: it is kept with your name",
				})
			}
			if err != nil {
				return fleet.Death{}, err
			}
			return d.Declare(r.Context(), r.PathValue("host"), in.Because, CallerWords(r.Context()), in.Force)
		})
	return []route{
		read(http.MethodGet, "/v1/fleet/deaths", "death-list", "The hosts that count as dead, by which proof and by whose word.", everyone,
			func(s *Server, r *http.Request) (DeathList, error) {
				d, err := s.theDeaths()
				if err != nil {
					return DeathList{}, err
				}
				list, err := d.List(r.Context())
				return DeathList{Deaths: append([]fleet.Death{}, list...)}, err
			}).canRelay(),
		fence, declare,
	}
}

// another refuses what is asked of this host about itself, and cannot be.
func (s *Server) another(r *http.Request, doing string) error {
	if host := r.PathValue("host"); host == s.opt.Name {
		return fault.Refuse(fault.Invalid, doing+" "+host, fault.Reason{
			Code: "own_host", Message: "host " + host + " answers: it is the one that is asked", Have: host, Change: "ask another host's agent",
		})
	}
	return nil
}

// FenceHost has the host's fencing hooks switch another one off. fault.InDoubt when the
// answer was lost: it may be asked again.
func (c *Client) FenceHost(ctx context.Context, host string) (out fleet.Death, err error) {
	return out, c.do(ctx, http.MethodPost, hostPath(host, "fence"), nothing{}, &out, once)
}

// DeclareDead gives the caller's word that a host is dead; safe to repeat.
func (c *Client) DeclareDead(ctx context.Context, host string, r DeclareDead) (out fleet.Death, err error) {
	return out, c.do(ctx, http.MethodPost, hostPath(host, "declare-dead"), r, &out, repeatable)
}

// Deaths lists the hosts that count as dead.
func (c *Client) Deaths(ctx context.Context) ([]fleet.Death, error) {
	var out DeathList
	err := c.do(ctx, http.MethodGet, "/v1/fleet/deaths", nil, &out, repeatable)
	return out.Deaths, err
}

func hostPath(host, word string) string {
	return "/v1/fleet/hosts/" + url.PathEscape(host) + "/" + word
}
