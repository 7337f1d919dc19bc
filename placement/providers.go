package placement

import (
	"net/http"
	"slices"
)

func providerURL(uuid string) string { return "/resource_providers/" + uuid }

// providerJSON is a provider as the request's microversion shows it.
func providerJSON(p *provider, r *request) map[string]any {
	url := providerURL(p.UUID)
	rels := []string{"inventories", "usages"}
	if r.version >= 1 {
		rels = append(rels, "aggregates")
	}
	if r.version >= 6 {
		rels = append(rels, "traits")
	}
	if r.version >= 11 {
		rels = append(rels, "allocations")
	}
	links := []any{map[string]string{"rel": "self", "href": url}}
	for _, rel := range rels {
		links = append(links, map[string]string{"rel": rel, "href": url + "/" + rel})
	}
	out := map[string]any{"uuid": p.UUID, "name": p.Name, "generation": p.Generation, "links": links}
	if r.version >= 14 {
		out["parent_provider_uuid"] = orNull(p.Parent)
		out["root_provider_uuid"] = p.Root
	}
	return out
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// theProvider finds the provider of the path.
func theProvider(t *tx, r *request) (*provider, error) {
	if p := t.provider(r.vars["uuid"]); p != nil {
		return p, nil
	}
	return nil, gone("No resource provider with uuid %s found", r.vars["uuid"])
}

// theProviderOr is theProvider where the real service words the 404 itself.
func theProviderOr(t *tx, r *request, text string) (*provider, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, refuse(http.StatusNotFound, text, r.vars["uuid"], asRefusal(err).detail)
	}
	return p, nil
}

func showProvider(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	a := ok(providerJSON(p, r))
	a.modified = p.Updated
	return a, nil
}

func createProvider(t *tx, r *request) (*answer, error) {
	body, err := extractObject(r.body, newProviderBody.at(r.version))
	if err != nil {
		return nil, err
	}
	p := &provider{Name: body.text("name"), Parent: body.text("parent_provider_uuid"), Seq: t.nextSeq(), Updated: t.now}
	if p.UUID = canonicalUUID(body.text("uuid")); p.UUID == "" {
		p.UUID = r.newUUID()
	}
	p.Root = p.UUID
	cannot := func(reason string) error {
		return badRequest(`Unable to create resource provider "%s", %s: Object action create failed because: %s`, p.Name, p.UUID, reason)
	}
	switch parent := t.provider(p.Parent); {
	case p.Name == "":
		return nil, cannot("name is required")
	case p.Parent == "":
	case p.Parent == p.UUID:
		return nil, cannot("parent provider UUID cannot be same as UUID. Please set parent provider UUID to None if there is no parent.")
	case parent == nil:
		return nil, cannot("parent provider UUID does not exist.")
	default:
		p.Root = parent.Root
	}
	if t.provider(p.UUID) != nil {
		return nil, conflict(codeDuplicateName, "Conflicting resource provider uuid: %s already exists.", p.UUID)
	}
	if t.providerNamed(p.Name) != nil {
		return nil, conflict(codeDuplicateName, "Conflicting resource provider name: %s already exists.", p.Name)
	}
	p.Saved = p.Parent == ""
	t.providers[p.UUID] = p
	if r.version >= 20 {
		a := ok(providerJSON(p, r))
		a.location = providerURL(p.UUID)
		return a, nil
	}
	return &answer{status: http.StatusCreated, location: providerURL(p.UUID)}, nil
}

func updateProvider(t *tx, r *request) (*answer, error) {
	old, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	body, err := extractObject(r.body, providerBody.at(r.version))
	if err != nil {
		return nil, err
	}
	name := body.text("name")
	parent := old.Parent
	if v, given := body.get("parent_provider_uuid"); given {
		parent, _ = v.(string)
	}
	cannot := func(action, reason string) error {
		return badRequest("Unable to save resource provider %s: Object action %s failed because: %s", old.UUID, action, reason)
	}
	var root string
	if parent == "" {
		if old.Parent != "" && r.version < 37 {
			return nil, cannot("update", "un-parenting a provider is not currently allowed.")
		}
		root = old.UUID
	} else {
		above := t.provider(parent)
		if above == nil {
			return nil, cannot("create", "parent provider UUID does not exist.")
		}
		if old.Parent != "" && old.Parent != parent && r.version < 37 {
			return nil, cannot("update", "re-parenting a provider is not currently allowed.")
		}
		if slices.ContainsFunc(t.subtree(old.UUID), func(p *provider) bool { return p.UUID == parent }) {
			return nil, cannot("update", "creating loop in the provider tree is not allowed.")
		}
		root = above.Root
	}
	if other := t.providerNamed(name); other != nil && other.UUID != old.UUID {
		return nil, conflict(codeDuplicateName, "Conflicting resource provider %s already exists.", name)
	}
	if root != old.Root {
		for _, p := range t.subtree(old.UUID) {
			e := t.edit(p.UUID)
			e.Root, e.Saved = root, true
		}
	}
	// The real service answers when the row was written before this, which for a
	// child that is as it was made is never.
	undated := !old.Saved && old.Generation == 0
	p := t.edit(old.UUID)
	p.Saved = p.Saved || name != old.Name || parent != old.Parent // the same again writes no row
	p.Name, p.Parent = name, parent
	a := ok(providerJSON(p, r))
	a.undated = undated
	return a, nil
}

func deleteProvider(t *tx, r *request) (*answer, error) {
	id := r.vars["uuid"]
	p := t.provider(id)
	switch {
	case p == nil:
		return nil, refuse(http.StatusNotFound, "No resource provider with uuid %s found for delete", id)
	case t.hasChildren(id):
		return nil, conflict(codeCannotDeleteParent, "Unable to delete parent resource provider %s: It has child resource providers.", id)
	case len(t.holders(id)) > 0:
		return nil, conflict(codeProviderInUse, "Unable to delete resource provider %s: Resource provider has allocations.", id)
	}
	t.providers[id] = nil
	return noContent(), nil
}

func listProviders(t *tx, r *request) (*answer, error) {
	if err := r.checkQuery(providersQuery.at(r.version)); err != nil {
		return nil, err
	}
	f := filter{}
	var err error
	if _, given := r.last("member_of"); given {
		if f.memberOf, f.forbiddenAggs, err = r.memberOf(""); err != nil {
			return nil, err
		}
	}
	if _, given := r.last("required"); given {
		if f.required, f.forbidden, err = r.traits("required"); err != nil {
			return nil, err
		}
	}
	f.uuid, _ = r.last("uuid")
	f.name, _ = r.last("name")
	inTree, _ := r.last("in_tree")
	if v, given := r.last("resources"); given {
		if f.resources, err = parseResources(v); err != nil {
			return nil, err
		}
	}
	none := ok(map[string]any{"resource_providers": []any{}})
	if inTree != "" {
		p := t.provider(inTree)
		if p == nil {
			return none, nil
		}
		f.root = p.Root
	}
	// The real service resolves one condition after the other and is done as soon
	// as nobody meets one, so that what it does not know further on is not told.
	unknown := func(sets [][]string) error {
		if missing := t.unknownTrait(sets); missing != "" {
			return badRequest(`Invalid trait(s) in "required" parameter: No such trait(s): %s.`, missing)
		}
		return nil
	}
	if err := unknown(f.required); err != nil {
		return nil, err
	}
	if len(f.required) > 0 && !t.anybody(filter{required: f.required}) {
		return none, nil
	}
	if err := unknown([][]string{f.forbidden}); err != nil {
		return nil, err
	}
	if len(f.memberOf) > 0 && !t.anybody(filter{memberOf: f.memberOf}) {
		return none, nil
	}
	for _, c := range f.resources {
		if _, known := t.classID(c.class); !known {
			return nil, badRequest("Invalid resource class in resources parameter: No such resource class %s.", c.class)
		}
	}
	out := []any{}
	for _, p := range t.candidatesFor(f) {
		if f.matches(t, p) {
			out = append(out, providerJSON(p, r))
		}
	}
	return ok(map[string]any{"resource_providers": out}), nil
}

// anybody says whether some provider passes the filter.
func (t *tx) anybody(f filter) bool {
	return slices.ContainsFunc(t.allProviders(), func(p *provider) bool { return f.matches(t, p) })
}

// filter is what GET /resource_providers narrows by.
type filter struct {
	uuid, name, root string
	memberOf         [][]string // in one of each
	forbiddenAggs    []string
	required         [][]string // one of each
	forbidden        []string
	resources        []amount
}

// candidatesFor gives the few providers a filter can match, where an index says.
func (t *tx) candidatesFor(f filter) []*provider {
	switch {
	case f.uuid != "":
		if p := t.provider(f.uuid); p != nil {
			return []*provider{p}
		}
		return nil
	case f.name != "":
		if p := t.providerNamed(f.name); p != nil {
			return []*provider{p}
		}
		return nil
	case f.root != "":
		return t.tree(f.root)
	}
	return t.allProviders()
}

func (f filter) matches(t *tx, p *provider) bool {
	if f.uuid != "" && p.UUID != f.uuid || f.name != "" && p.Name != f.name || f.root != "" && p.Root != f.root {
		return false
	}
	for _, set := range f.memberOf {
		if !p.inAnyAggregate(set) {
			return false
		}
	}
	if p.inAnyAggregate(f.forbiddenAggs) || !p.hasOneOfEach(f.required) || slices.ContainsFunc(f.forbidden, p.hasTrait) {
		return false
	}
	for _, a := range f.resources {
		if !t.hasRoom(p, a) {
			return false
		}
	}
	return true
}

// hasOneOfEach says whether the provider has a trait of every set.
func (p *provider) hasOneOfEach(sets [][]string) bool {
	for _, set := range sets {
		if !slices.ContainsFunc(set, p.hasTrait) {
			return false
		}
	}
	return true
}

// hasRoom says whether the amount could be allocated of the provider now.
func (t *tx) hasRoom(p *provider, a amount) bool {
	inv, has := p.Inventories[a.class]
	return has && inv.MinUnit <= a.n && inv.MaxUnit >= a.n && a.n%inv.StepSize == 0 &&
		float64(t.used(p.UUID, a.class)+a.n) <= float64(inv.Total-inv.Reserved)*inv.AllocationRatio
}

// unknownTrait names the first trait of the sets that does not exist, or "".
func (t *tx) unknownTrait(sets [][]string) string {
	for _, set := range sets {
		for _, name := range set {
			if !t.hasTrait(name) {
				return name
			}
		}
	}
	return ""
}
