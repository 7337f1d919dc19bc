package api

import "net/http"

// Where it is told whether the agent works (healthz), and whether its host takes on work
// (readyz): 200 for yes, 503 for no, each with lines that say why. They are on the local
// socket, for other hosts and operators, and where metrics are read.
const (
	HealthzPath = "/healthz"
	ReadyzPath  = "/readyz"
)

// probes answers them, to a caller that may be let in; false for another path. They are not
// kept waiting with others: while the agent begins, and while it is asked too much, it is
// they who say so.
func (s *Server) probes(w http.ResponseWriter, r *http.Request) bool {
	if s.opt.Probes == nil || r.URL.Path != HealthzPath && r.URL.Path != ReadyzPath {
		return false
	}
	if _, err := s.authenticate(r); err != nil {
		s.refuse(w, r, err)
		return true
	}
	s.opt.Probes.ServeHTTP(w, r)
	return true
}
