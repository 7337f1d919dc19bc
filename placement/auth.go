package placement

import (
	"crypto/x509"
	"net/http"
	"slices"
	"strings"

	"berth/internal/pki"
)

// identity is who sent a request.
type identity struct {
	all  bool              // may do everything
	read bool              // may read
	host *x509.Certificate // set for a host: may write what is its own
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
			return identity{all: true, read: true}, true
		case pki.RoleHost:
			return identity{read: true, host: leaf}, true
		}
		return identity{}, true
	}
	tokens, given := q.Header["X-Auth-Token"]
	if !given {
		return identity{}, false
	}
	user, _, _ := strings.Cut(tokens[0], ":")
	roles := []string{}
	if h := q.Header.Get("X-Roles"); h != "" { // taken at its word, as noauth2 does
		roles = strings.Split(h, ",")
	} else if user == "admin" {
		roles = []string{"admin"}
	}
	admin := slices.Contains(roles, "admin")
	return identity{all: admin, read: admin}, true
}

// unauthorized is the 401 of noauth2, which knows nothing of microversions.
func unauthorized(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte(`{"message": "This server could not verify that you are authorized to access the document you requested. ` +
		`Either you supplied the wrong credentials (e.g., bad password), or your browser does not understand how to supply the credentials required.` +
		`<br /><br />\n\n\n", "code": "401 Unauthorized", "title": "Unauthorized"}`))
}

// permit refuses what the sender may not do. It is called inside the
// transaction, because what is a host's own is a matter of the state.
func permit(t *tx, r *request, m *method) error {
	who := r.who
	if who.all || !m.write && who.read {
		return nil
	}
	denied := refuse(http.StatusForbidden, "Policy does not allow %s to be performed.", m.policy)
	denied.noVary = true
	if who.host == nil {
		return denied
	}
	if ownWrite(t, r, m) {
		return nil
	}
	return denied
}

// ownWrite says whether a host may make this write.
func ownWrite(t *tx, r *request, m *method) bool {
	mine := func(p *provider) bool {
		root := t.provider(p.Root)
		return root != nil && pki.Covers(r.who.host, root.Name)
	}
	path := r.http.URL.Path
	switch {
	case strings.HasPrefix(path, "/resource_classes"), strings.HasPrefix(path, "/traits"):
		// Names that a host needs for what it has; only an operator takes them away.
		return m.verb != http.MethodDelete
	case path == "/resource_providers":
		body, _ := parseJSON(r.body)
		o, is := body.(*object)
		if !is {
			return true // the handler says what is wrong with it
		}
		if parent := o.text("parent_provider_uuid"); parent != "" {
			p := t.provider(parent)
			return p == nil || mine(p)
		}
		return pki.Covers(r.who.host, o.text("name"))
	case strings.HasPrefix(path, "/resource_providers/"):
		p := t.provider(r.vars["uuid"])
		return p == nil || mine(p) && ownUpdate(t, r, m, p, mine)
	}
	return ownConsumers(t, r, mine)
}

// ownUpdate keeps a host from giving its root another's name or its parts
// another's parent.
func ownUpdate(t *tx, r *request, m *method, p *provider, mine func(*provider) bool) bool {
	if m.verb != http.MethodPut || len(r.vars) != 1 || r.http.URL.Path != providerURL(p.UUID) {
		return true
	}
	body, _ := parseJSON(r.body)
	o, is := body.(*object)
	if !is {
		return true
	}
	if parent := t.provider(o.text("parent_provider_uuid")); parent != nil && !mine(parent) {
		return false
	}
	_, moved := o.get("parent_provider_uuid")
	becomesRoot := p.Parent == "" || moved && o.m["parent_provider_uuid"] == nil
	return !becomesRoot || pki.Covers(r.who.host, o.text("name"))
}

// ownConsumers: every consumer written touches a provider of the host, before or
// after; or it only takes or gives what consumers that do touch it give or take
// in the same request, as the migration half of a move does. A consumer that has
// nothing and is to get nothing is nobody's: a delete repeated after a lost reply
// is answered with what is, 404, and not with a refusal for ever.
func ownConsumers(t *tx, r *request, mine func(*provider) bool) bool {
	asked := map[string]map[string]bool{} // consumer to the providers it has or wants
	add := func(consumer, rp string) {
		if asked[consumer] == nil {
			asked[consumer] = map[string]bool{}
		}
		if rp != "" {
			asked[consumer][rp] = true
		}
	}
	body, _ := parseJSON(r.body)
	o, _ := body.(*object)
	wants := func(consumer string, a *object) {
		add(consumer, "")
		if a == nil || a.object("allocations") == nil {
			return
		}
		for _, rp := range a.object("allocations").keys {
			add(consumer, rp)
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
		if c := t.consumer(consumer); c != nil {
			for rp := range c.Allocations {
				add(consumer, rp)
			}
		}
	}
	exchanged := map[string]bool{} // providers that consumers of this host have or want
	touches := map[string]bool{}
	for consumer, rps := range asked {
		for rp := range rps {
			if p := t.provider(rp); p != nil && mine(p) {
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
