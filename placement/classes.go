package placement

import (
	"net/http"
	"strings"
)

func classJSON(name string) map[string]any {
	return map[string]any{"name": name, "links": []any{map[string]string{"rel": "self", "href": "/resource_classes/" + name}}}
}

func listClasses(t *tx, _ *request) (*answer, error) {
	out := []any{}
	for _, name := range t.allClasses() {
		out = append(out, classJSON(name))
	}
	return ok(map[string]any{"resource_classes": out}), nil
}

// theClass finds the class of the path.
func theClass(t *tx, r *request) (string, error) {
	name := r.vars["name"]
	if _, known := t.classID(name); !known {
		return "", gone("%s", unknownClass(name))
	}
	return name, nil
}

func showClass(t *tx, r *request) (*answer, error) {
	name, err := theClass(t, r)
	if err != nil {
		return nil, err
	}
	return ok(classJSON(name)), nil
}

func createClass(t *tx, r *request) (*answer, error) {
	body, err := extractObject(r.body, classBody)
	if err != nil {
		return nil, err
	}
	name := body.text("name")
	if _, there := t.classID(name); there {
		return nil, refuse(http.StatusConflict, "Conflicting resource class already exists: %s", name)
	}
	if len(t.b.classes) >= maxCustom {
		return nil, tooManyCustom("resource classes")
	}
	t.classes[name] = &custom{Name: name, Seq: t.nextSeq()}
	return &answer{status: http.StatusCreated, location: "/resource_classes/" + name}, nil
}

// putClass makes sure of a class from 1.7; before that it renamed one.
func putClass(t *tx, r *request) (*answer, error) {
	if r.version < 7 {
		return renameClass(t, r)
	}
	name := r.vars["name"]
	if err := classBody.validate(&object{keys: []string{"name"}, m: map[string]any{"name": name}}); err != nil {
		return nil, badRequest("JSON does not validate: %v", err)
	}
	a := &answer{status: http.StatusNoContent, location: "/resource_classes/" + name}
	if _, there := t.classID(name); !there {
		if len(t.b.classes) >= maxCustom {
			return nil, tooManyCustom("resource classes")
		}
		t.classes[name] = &custom{Name: name, Seq: t.nextSeq()}
		a.status = http.StatusCreated
	}
	return a, nil
}

func renameClass(t *tx, r *request) (*answer, error) {
	if mediaType(r.http) != "application/json" {
		return nil, wrongMedia(r.http)
	}
	body, err := extractObject(r.body, classBody)
	if err != nil {
		return nil, err
	}
	old, err := theClass(t, r)
	if err != nil {
		return nil, err
	}
	name := body.text("name")
	if !strings.HasPrefix(old, "CUSTOM_") {
		return nil, badRequest("Cannot update standard resource class %s", old)
	}
	if _, there := t.classID(name); there {
		return nil, refuse(http.StatusConflict, "Resource class already exists: %s", name)
	}
	// Inventories and allocations name their class, so they follow the new name.
	t.classes[name] = &custom{Name: name, Seq: lookup(t.classes, t.b.classes, old).Seq}
	t.classes[old] = nil
	for _, p := range t.allProviders() {
		if i, has := p.Inventories[old]; has {
			e := t.edit(p.UUID)
			delete(e.Inventories, old)
			e.Inventories[name] = i
			for _, c := range t.holders(p.UUID) {
				if n, holds := c.Allocations[p.UUID][old]; holds {
					held := t.editConsumer(c.UUID).Allocations[p.UUID]
					delete(held, old)
					held[name] = n
				}
			}
		}
	}
	return ok(classJSON(name)), nil
}

func deleteClass(t *tx, r *request) (*answer, error) {
	name, err := theClass(t, r)
	if err != nil {
		return nil, err
	}
	const cannot = "Error in delete resource class: "
	if !strings.HasPrefix(name, "CUSTOM_") {
		return nil, badRequest(cannot+"Cannot delete standard resource class %s.", name)
	}
	for _, p := range t.allProviders() {
		if _, has := p.Inventories[name]; has {
			return nil, refuse(http.StatusConflict, cannot+"Cannot delete resource class %s. Class is in use in inventory.", name)
		}
	}
	t.classes[name] = nil
	return noContent(), nil
}
