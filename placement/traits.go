package placement

import (
	"net/http"
	"slices"
	"strings"
)

func listTraits(t *tx, r *request) (*answer, error) {
	if err := r.checkQuery(traitsQuery); err != nil {
		return nil, err
	}
	names := t.allTraits()
	keep := func(f func(string) bool) {
		names = slices.DeleteFunc(names, func(n string) bool { return !f(n) })
	}
	if v, given := r.last("name"); given {
		op, value, found := strings.Cut(v, ":")
		if !found {
			return nil, badRequest(`Badly formatted name parameter. Expected name query string parameter in form: ?name=[in|startswith]:[name1,name2|prefix]. Got: "%s"`, v)
		}
		switch op { // any other word is ignored, as the real service does
		case "in":
			set := map[string]bool{}
			for n := range strings.SplitSeq(value, ",") {
				set[n] = true
			}
			keep(func(n string) bool { return set[n] })
		case "startswith":
			keep(func(n string) bool { return strings.HasPrefix(n, value) })
		}
	}
	if v, given := r.last("associated"); given {
		v = strings.ToLower(v)
		if v != "true" && v != "false" {
			return nil, badRequest(`The query parameter "associated" only accepts "true" or "false"`)
		}
		on := t.traitsInUse()
		keep(func(n string) bool { return on[n] == (v == "true") })
	}
	return ok(map[string]any{"traits": names}), nil
}

func (t *tx) traitsInUse() map[string]bool {
	on := map[string]bool{}
	for _, p := range t.allProviders() {
		for _, n := range p.Traits {
			on[n] = true
		}
	}
	return on
}

// noTrait is the refusal for a trait of the path that does not exist.
func noTrait(name string) *refusal {
	return refuse(http.StatusNotFound, "No such trait(s): %s.", name)
}

func showTrait(t *tx, r *request) (*answer, error) {
	if !t.hasTrait(r.vars["name"]) {
		return nil, noTrait(r.vars["name"])
	}
	a := noContent()
	a.noCache = true
	return a, nil
}

// maxCustom bounds the custom traits, and the custom resource classes. Arbitrary: far above what a fleet
// has; every host with a certificate may make them.
const maxCustom = 1 << 16

func tooManyCustom(what string) *refusal {
	return badRequest("there are %d custom %s already: delete those that nobody uses", maxCustom, what)
}

func putTrait(t *tx, r *request) (*answer, error) {
	name := r.vars["name"]
	if traitName.validate(name) != nil {
		return nil, badRequest(`The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"`)
	}
	a := &answer{status: http.StatusNoContent, location: "/traits/" + name, noCache: true}
	if !t.hasTrait(name) {
		if len(t.b.traits) >= maxCustom {
			return nil, tooManyCustom("traits")
		}
		t.traits[name] = &custom{Name: name, Seq: t.nextSeq()}
		a.status = http.StatusCreated
	}
	return a, nil
}

func deleteTrait(t *tx, r *request) (*answer, error) {
	name := r.vars["name"]
	switch {
	case !t.hasTrait(name):
		return nil, noTrait(name)
	case !strings.HasPrefix(name, "CUSTOM_"):
		return nil, badRequest("Cannot delete standard trait %s.", name)
	case t.traitsInUse()[name]:
		return nil, refuse(http.StatusConflict, "The trait %s is in use by a resource provider.", name)
	}
	t.traits[name] = nil
	return noContent(), nil
}

func providerTraitsJSON(p *provider) map[string]any {
	return map[string]any{"resource_provider_generation": p.Generation, "traits": append([]string{}, p.Traits...)}
}

func providerTraits(t *tx, r *request) (*answer, error) {
	p, err := theProviderOr(t, r, "No resource provider with uuid %s found: %s")
	if err != nil {
		return nil, err
	}
	return ok(providerTraitsJSON(p)), nil
}

func putProviderTraits(t *tx, r *request) (*answer, error) {
	body, err := extractObject(r.body, traitsBody)
	if err != nil {
		return nil, err
	}
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	if g, _ := body.integer("resource_provider_generation"); g != int64(p.Generation) {
		return nil, conflict(codeConcurrentUpdate, "Resource provider's generation already changed. Please update the generation and try again.")
	}
	want := body.texts("traits")
	var missing []string
	told := map[string]bool{}
	for _, name := range want {
		if !t.hasTrait(name) && !told[name] {
			told[name] = true
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, badRequest("No such trait %s", strings.Join(missing, ", "))
	}
	t.setTraits(p.UUID, want)
	return ok(providerTraitsJSON(t.provider(p.UUID))), nil
}

// setTraits replaces a provider's traits. Unlike every other write it leaves the
// generation alone when nothing changes, as the real service does.
func (t *tx) setTraits(id string, want []string) {
	want = slices.Clone(want)
	slices.Sort(want)
	want = slices.Compact(want)
	if slices.Equal(want, t.provider(id).Traits) {
		return
	}
	p := t.edit(id)
	p.Traits = want
	p.Generation++
}

func deleteProviderTraits(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	t.setTraits(p.UUID, nil)
	return noContent(), nil
}
