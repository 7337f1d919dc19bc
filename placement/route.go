package placement

import (
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	pc "berth/placementclient"
)

// request is one request as handlers see it.
type request struct {
	http      *http.Request
	id        string
	version   pc.Microversion
	versioned bool // the version was read; error bodies follow it
	now       time.Time
	vars      map[string]string // the variables of the path
	query     []parameter       // in the order sent
	body      []byte
	document  *object // body as method.body has it, and why it is none
	wrong     error
	said      *object // body of a host's write, for what a host may do; nil where it is no object
	who       identity
	newUUID   func() string
}

type parameter struct{ key, value string }

// parseQuery keeps order and repetitions; what cannot be decoded is taken as it is.
func parseQuery(raw string) []parameter {
	var out []parameter
	for _, part := range strings.Split(raw, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		if s, err := url.QueryUnescape(k); err == nil {
			k = s
		}
		if s, err := url.QueryUnescape(v); err == nil {
			v = s
		}
		out = append(out, parameter{k, v})
	}
	return out
}

// all gives every value of a key; last the one that counts where one does.
func (r *request) all(key string) []string {
	var out []string
	for _, p := range r.query {
		if p.key == key {
			out = append(out, p.value)
		}
	}
	return out
}

func (r *request) last(key string) (string, bool) {
	all := r.all(key)
	if len(all) == 0 {
		return "", false
	}
	return all[len(all)-1], true
}

// checkQuery validates the query as the object of its last values.
func (r *request) checkQuery(s *schema) error {
	o := &object{m: map[string]any{}}
	for _, p := range r.query {
		if _, again := o.m[p.key]; !again {
			o.keys = append(o.keys, p.key)
		}
		o.m[p.key] = p.value
	}
	if err := s.validate(o); err != nil {
		return badRequest("Invalid query string parameters: %v", err)
	}
	return nil
}

// method is what one HTTP method of a path does.
type method struct {
	verb   string
	min    pc.Microversion // below it the answer is below
	below  int             // 404 unless set
	json   bool            // wants a JSON body
	accept bool            // gives JSON and checks Accept
	write  bool            // runs as a writer
	search bool            // a read that may take long: it has a base of its own (searchable)
	body   *byVersion      // of a body that may be large: it is read before any lock is taken; nil for others
	policy string          // the name of the rule, for refusals
	do     func(t *tx, r *request) (*answer, error)
}

// route is one path; parts in braces are variables.
type route struct {
	path    string
	methods []method
}

func (r *route) match(segments []string) (map[string]string, bool) {
	pattern := strings.Split(strings.TrimPrefix(r.path, "/"), "/")
	if len(pattern) != len(segments) {
		return nil, false
	}
	vars := map[string]string{}
	for i, p := range pattern {
		switch {
		case strings.HasPrefix(p, "{"):
			if segments[i] == "" {
				return nil, false
			}
			vars[strings.Trim(p, "{}")] = latin1(segments[i])
		case p != segments[i]:
			return nil, false
		}
	}
	return vars, true
}

// latin1 reads each byte of a path as a character, as WSGI has it. No name in a
// path may hold others than ASCII; a refusal quotes what was read.
func latin1(s string) string {
	if strings.IndexFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) < 0 {
		return s
	}
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}

// routes is the whole API. The order of methods is that of the Allow header.
func routes() []route {
	const get, put, post, del = http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete
	return []route{
		{"/resource_classes", []method{
			{verb: get, min: 2, accept: true, policy: "placement:resource_classes:list", do: listClasses},
			{verb: post, min: 2, json: true, write: true, policy: "placement:resource_classes:create", do: createClass},
		}},
		{"/resource_classes/{name}", []method{
			{verb: get, min: 2, accept: true, policy: "placement:resource_classes:show", do: showClass},
			{verb: put, min: 2, write: true, policy: "placement:resource_classes:update", do: putClass},
			{verb: del, min: 2, write: true, policy: "placement:resource_classes:delete", do: deleteClass},
		}},
		{"/resource_providers", []method{
			{verb: get, accept: true, policy: "placement:resource_providers:list", do: listProviders},
			{verb: post, json: true, write: true, policy: "placement:resource_providers:create", do: createProvider},
		}},
		{"/resource_providers/{uuid}", []method{
			{verb: get, accept: true, policy: "placement:resource_providers:show", do: showProvider},
			{verb: del, write: true, policy: "placement:resource_providers:delete", do: deleteProvider},
			{verb: put, json: true, write: true, policy: "placement:resource_providers:update", do: updateProvider},
		}},
		{"/resource_providers/{uuid}/inventories", []method{
			{verb: get, accept: true, policy: "placement:resource_providers:inventories:list", do: listInventories},
			{verb: post, json: true, write: true, policy: "placement:resource_providers:inventories:create", do: createInventory},
			{verb: put, json: true, write: true, policy: "placement:resource_providers:inventories:update", do: putInventories},
			{verb: del, min: 5, below: http.StatusMethodNotAllowed, write: true, policy: "placement:resource_providers:inventories:delete", do: deleteInventories},
		}},
		{"/resource_providers/{uuid}/inventories/{class}", []method{
			{verb: get, accept: true, policy: "placement:resource_providers:inventories:show", do: showInventory},
			{verb: put, json: true, write: true, policy: "placement:resource_providers:inventories:update", do: putInventory},
			{verb: del, write: true, policy: "placement:resource_providers:inventories:delete", do: deleteInventory},
		}},
		{"/resource_providers/{uuid}/usages", []method{
			{verb: get, accept: true, policy: "placement:resource_providers:usages", do: providerUsages},
		}},
		{"/resource_providers/{uuid}/aggregates", []method{
			{verb: get, min: 1, accept: true, policy: "placement:resource_providers:aggregates:list", do: listAggregates},
			{verb: put, min: 1, json: true, write: true, policy: "placement:resource_providers:aggregates:update", do: putAggregates},
		}},
		{"/resource_providers/{uuid}/allocations", []method{
			{verb: get, accept: true, policy: "placement:resource_providers:allocations:list", do: providerAllocations},
		}},
		{"/allocations", []method{
			{verb: post, min: 13, json: true, write: true, policy: "placement:allocations:manage", body: postAllocationsBody, do: postAllocations},
		}},
		{"/allocations/{consumer}", []method{
			{verb: get, accept: true, policy: "placement:allocations:list", do: showAllocations},
			{verb: put, json: true, write: true, policy: "placement:allocations:update", body: allocationsBody, do: putAllocations},
			{verb: del, write: true, policy: "placement:allocations:delete", do: deleteAllocations},
		}},
		{"/allocation_candidates", []method{
			{verb: get, min: 10, accept: true, search: true, policy: "placement:allocation_candidates:list", do: listCandidates},
		}},
		{"/traits", []method{
			{verb: get, min: 6, accept: true, policy: "placement:traits:list", do: listTraits},
		}},
		{"/traits/{name}", []method{
			{verb: get, min: 6, policy: "placement:traits:show", do: showTrait},
			{verb: put, min: 6, write: true, policy: "placement:traits:update", do: putTrait},
			{verb: del, min: 6, write: true, policy: "placement:traits:delete", do: deleteTrait},
		}},
		{"/resource_providers/{uuid}/traits", []method{
			{verb: get, min: 6, accept: true, policy: "placement:resource_providers:traits:list", do: providerTraits},
			{verb: put, min: 6, json: true, write: true, policy: "placement:resource_providers:traits:update", do: putProviderTraits},
			{verb: del, min: 6, write: true, policy: "placement:resource_providers:traits:delete", do: deleteProviderTraits},
		}},
		{"/usages", []method{
			{verb: get, min: 9, accept: true, policy: usagesPolicy, do: projectUsages},
		}},
		{"/reshaper", []method{
			{verb: post, min: 30, json: true, write: true, policy: "placement:reshaper:reshape", body: reshaperBody, do: reshape},
		}},
	}
}

// find gives the route and method of a request, or the refusal.
func find(all []route, q *http.Request) (*method, map[string]string, *refusal) {
	path := q.URL.EscapedPath()
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		if u, err := url.PathUnescape(s); err == nil {
			segments[i] = u
		}
	}
	for i := range all {
		vars, matches := all[i].match(segments)
		if !matches {
			continue
		}
		var allowed []string
		for j := range all[i].methods {
			if all[i].methods[j].verb == q.Method {
				return &all[i].methods[j], vars, nil
			}
			allowed = append(allowed, all[i].methods[j].verb)
		}
		r := refuse(http.StatusMethodNotAllowed, "The method specified is not allowed for this resource.")
		r.allow = strings.Join(allowed, ", ")
		return nil, nil, r
	}
	return nil, nil, gone("")
}
