package placement

import (
	"cmp"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"

	"berth/internal/pki"
)

// identity is who sent a request.
type identity struct {
	operator bool              // may do everything
	conducts bool              // writes consumers of other hosts too
	host     *x509.Certificate // set for a host: reads, and writes what is its own

	// The rest is of the token, taken at its word.
	roles   []string
	system  bool   // of the whole system, not of a project
	project string // "" for a token of the system
}

// identify reads the token or the certificate of a request. The refusal with
// status 401 has its own shape (unauthorized).
func (s *Server) identify(q *http.Request) (identity, bool) {
	if s.options.auth() == AuthMTLS {
		if q.TLS == nil || len(q.TLS.PeerCertificates) == 0 {
			return identity{}, false
		}
		leaf := q.TLS.PeerCertificates[0] // the TLS server has verified the chain
		switch role, _ := pki.RoleOf(leaf); role {
		case pki.RoleOperator:
			return identity{operator: true}, true
		case pki.RoleHost:
			return identity{host: leaf, conducts: s.options.conducts(leaf)}, true
		}
		return identity{}, true
	}
	tokens, given := q.Header["X-Auth-Token"]
	if !given {
		return identity{}, false
	}
	// As noauth2 has it: user, or user:project; roles, scope and project may be said by
	// the headers that Keystone's middleware would set.
	user, project, _ := strings.Cut(tokens[0], ":")
	who := identity{system: q.Header.Get("OpenStack-System-Scope") == "all"}
	if h := q.Header.Get("X-Roles"); h != "" {
		for _, role := range strings.Split(h, ",") {
			who.roles = append(who.roles, strings.ToLower(strings.TrimSpace(role)))
		}
	} else if user == "admin" {
		who.roles = []string{"admin"}
	}
	if who.project = q.Header.Get("X-Project-Id"); who.project == "" && q.Header.Get("OpenStack-System-Scope") == "" {
		who.project = cmp.Or(project, user)
	}
	who.operator = who.is("admin")
	return who, true
}

func (who identity) is(role string) bool { return slices.Contains(who.roles, role) }

// unauthorized is the 401 of noauth2, which knows nothing of microversions.
func unauthorized(w http.ResponseWriter, q *http.Request) {
	if writePage(w, http.StatusUnauthorized, "", q) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte(`{"message": "` + explanations[http.StatusUnauthorized] + `<br /><br />\n\n\n", "code": "401 Unauthorized", "title": "Unauthorized"}`))
}

// permit refuses what the sender may not do. It is called inside the
// transaction, because what is a host's own is a matter of the state.
func (s *Server) permit(t *tx, r *request, m *method) error {
	switch {
	case s.options.auth() != AuthMTLS:
		if s.options.allows(r, m) {
			return nil
		}
	case r.who.operator, r.who.host != nil && (!m.write || r.who.conducts && ofConsumers(r) || s.ownWrite(t, r, m)):
		return nil
	}
	denied := refuse(http.StatusForbidden, "Policy does not allow %s to be performed.", m.policy)
	if s.options.Policy == PolicyScoped && !r.who.system && m.policy != usagesPolicy { // the scope is looked at before the rule
		denied.detail = m.policy
	}
	denied.noVary = true
	return denied
}

// usagesPolicy is the one rule that a project's own tokens may keep.
const usagesPolicy = "placement:usages"

// allows says whether the rules in use let a token do this. The rules are those of
// 8.0.0. Every write wants an admin and every read a reader of the system, but the
// usages of a project may be read by its readers too. PolicyDefault also takes the rule
// that was before these, an admin of anything, and does not look at the scope.
func (o Options) allows(r *request, m *method) bool {
	who := r.who
	if o.Policy == PolicyOpen || o.Policy != PolicyScoped && who.is("admin") {
		return true
	}
	if m.policy == usagesPolicy && who.is("reader") && who.project != "" {
		if asked, _ := r.last("project_id"); asked == who.project {
			return true
		}
	}
	if m.write {
		return who.system && who.is("admin")
	}
	return who.system && who.is("reader")
}

// conducts says whether a host's agent may conduct moves between two others, whose
// consumers it then writes: its certificate says so, or Options.Conductors do.
func (o Options) conducts(host *x509.Certificate) bool {
	return pki.Gives(host, pki.RightConduct) || slices.ContainsFunc(o.Conductors, func(name string) bool { return pki.Covers(host, name) })
}

// ofConsumers says whether a write is one of allocations alone.
func ofConsumers(r *request) bool {
	path := r.http.URL.Path
	return path == "/allocations" || strings.HasPrefix(path, "/allocations/")
}

// ownWrite says whether a host may make this write. What a dead host had is everybody's:
// its consumers, which an evacuation moves, and its providers, which may go with it.
func (s *Server) ownWrite(t *tx, r *request, m *method) bool {
	mine := func(p *provider) bool {
		root := t.provider(p.Root)
		return root != nil && pki.Covers(r.who.host, root.Name)
	}
	orphan := func(p *provider) bool {
		root := t.provider(p.Root)
		return root != nil && s.beside != nil && s.beside.Dead(root.Name)
	}
	path := r.http.URL.Path
	switch {
	case strings.HasPrefix(path, "/resource_classes"), strings.HasPrefix(path, "/traits"):
		// Names that a host needs for what it has; only an operator takes them away.
		return m.verb != http.MethodDelete
	case path == "/resource_providers":
		o := r.said
		if o == nil {
			return true // the handler says what is wrong with it
		}
		if parent := o.text("parent_provider_uuid"); parent != "" {
			p := t.provider(parent)
			return p == nil || mine(p)
		}
		return pki.Covers(r.who.host, o.text("name"))
	case strings.HasPrefix(path, "/resource_providers/"):
		p := t.provider(r.vars["uuid"])
		return p == nil || mine(p) && ownUpdate(t, r, m, p, mine) || m.verb == http.MethodDelete && orphan(p)
	}
	return s.ownConsumers(t, r, mine, orphan)
}

// ownUpdate keeps a host from giving its root another's name or its parts
// another's parent.
func ownUpdate(t *tx, r *request, m *method, p *provider, mine func(*provider) bool) bool {
	if m.verb != http.MethodPut || len(r.vars) != 1 || r.http.URL.Path != providerURL(p.UUID) {
		return true
	}
	o := r.said
	if o == nil {
		return true
	}
	if parent := t.provider(o.text("parent_provider_uuid")); parent != nil && !mine(parent) {
		return false
	}
	_, moved := o.get("parent_provider_uuid")
	becomesRoot := p.Parent == "" || moved && o.m["parent_provider_uuid"] == nil
	return !becomesRoot || pki.Covers(r.who.host, o.text("name"))
}

// ownConsumers: what others hold is not taken from them (mayTake), and every consumer written touches a provider of the host or of a dead one,
// before or after; or it only takes or gives what consumers that do touch it give or take
// in the same request, as the migration half of a move does. A consumer that has
// nothing and is to get nothing is nobody's: a delete repeated after a lost reply
// is answered with what is, 404, and not with a refusal for ever.
func (s *Server) ownConsumers(t *tx, r *request, mine, orphan func(*provider) bool) bool {
	asked := map[string]map[string]bool{} // consumer to the providers it has or wants
	held, wanted := map[string]map[string]bool{}, map[string]map[string]bool{}
	add := func(consumer, rp string) {
		if asked[consumer] == nil {
			asked[consumer] = map[string]bool{}
		}
		if rp != "" {
			asked[consumer][rp] = true
		}
	}
	o := r.said
	wants := func(consumer string, a *object) {
		add(consumer, "")
		if a == nil || a.object("allocations") == nil {
			return
		}
		wanted[consumer] = map[string]bool{}
		for _, rp := range a.object("allocations").keys {
			add(consumer, rp)
			wanted[consumer][rp] = true
		}
	}
	switch id := r.vars["consumer"]; {
	case id != "":
		if canonical := canonicalUUID(id); canonical != "" {
			id = canonical
		}
		wants(id, o)
	case o != nil && o.object("inventories") != nil: // a reshape
		for _, rp := range o.object("inventories").keys {
			if p := t.provider(rp); p != nil && !mine(p) {
				return false
			}
		}
		if o = o.object("allocations"); o == nil {
			return true
		}
		fallthrough
	case o != nil:
		for _, consumer := range o.keys {
			wants(consumer, o.object(consumer))
		}
	}
	for consumer := range asked {
		held[consumer] = map[string]bool{}
		if c := t.consumer(consumer); c != nil {
			for rp := range c.Allocations {
				add(consumer, rp)
				held[consumer][rp] = true
			}
		}
	}
	givers := map[string]bool{} // consumers that give something of this host back
	for consumer, rps := range held {
		for rp := range rps {
			if p := t.provider(rp); p != nil && mine(p) && !wanted[consumer][rp] {
				givers[consumer] = true
			}
		}
	}
	for consumer := range asked {
		if !s.mayTake(t, r, consumer, held[consumer], wanted[consumer], givers, mine, orphan) {
			return false
		}
	}
	exchanged := map[string]bool{} // providers that consumers of this host have or want
	touches := map[string]bool{}
	for consumer, rps := range asked {
		for rp := range rps {
			if p := t.provider(rp); p != nil && (mine(p) || orphan(p)) {
				touches[consumer] = true
			}
		}
		if touches[consumer] {
			for rp := range rps {
				exchanged[rp] = true
			}
		}
	}
	for consumer, rps := range asked {
		if touches[consumer] {
			continue
		}
		for rp := range rps {
			if !exchanged[rp] {
				return false
			}
		}
	}
	return true
}
