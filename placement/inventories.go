package placement

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	pc "berth/placementclient"
)

// ratio is a number that is written as Python writes a float, with a point or an
// exponent also where it is whole: clients print what they are given.
type ratio float64

func (r ratio) MarshalJSON() ([]byte, error) { return []byte(pythonFloat(float64(r))), nil }

// inventoryJSON is one inventory.
func inventoryJSON(i pc.Inventory) map[string]any {
	return map[string]any{
		"total": i.Total, "reserved": i.Reserved, "min_unit": i.MinUnit, "max_unit": i.MaxUnit,
		"step_size": i.StepSize, "allocation_ratio": ratio(i.AllocationRatio),
	}
}

func inventoriesJSON(p *provider) map[string]any {
	all := map[string]any{}
	for class, i := range p.Inventories {
		all[class] = inventoryJSON(i)
	}
	return map[string]any{"resource_provider_generation": p.Generation, "inventories": all}
}

func oneInventoryJSON(p *provider, i pc.Inventory) map[string]any {
	out := inventoryJSON(i)
	if p.Generation != 0 { // the real service leaves a zero out
		out["resource_provider_generation"] = p.Generation
	}
	return out
}

// readInventory takes a validated body and fills in the defaults.
func readInventory(o *object) pc.Inventory {
	get := func(key string, otherwise int64) int64 {
		if n, given := o.integer(key); given {
			return n
		}
		return otherwise
	}
	i := pc.Inventory{
		Total: get("total", 0), Reserved: get("reserved", 0), MinUnit: get("min_unit", 1),
		MaxUnit: get("max_unit", pc.MaxInt), StepSize: get("step_size", 1), AllocationRatio: 1,
	}
	if n, given := o.m["allocation_ratio"].(json.Number); given {
		i.AllocationRatio, _ = n.Float64() // the schema has read it once already
	}
	return i
}

// classInventory is an inventory with its class, in the order of the body.
type classInventory struct {
	class string
	inv   pc.Inventory
}

func readInventories(o *object) []classInventory {
	var out []classInventory
	all := o.object("inventories")
	for _, class := range all.keys {
		if one := all.object(class); one != nil {
			out = append(out, classInventory{class, readInventory(one)})
		}
	}
	return out
}

// capacityProblem says what is wrong with an inventory's capacity, or "". Until
// 1.26 reserved had to be less than total.
func capacityProblem(v pc.Microversion, p *provider, c classInventory) string {
	capacity := c.inv.Capacity()
	text := ""
	switch {
	case v >= 26 && capacity < 0:
		text = "greater than"
	case v < 26 && capacity <= 0:
		text = "greater than or equal to"
	default:
		return ""
	}
	return "Invalid inventory for '" + c.class + "' on resource provider '" + p.UUID + "'. The reserved value is " + text + " total."
}

// unknownClass and inUse are why setInventories refuses; callers word them.
type unknownClass string

func (e unknownClass) Error() string { return "No such resource class " + string(e) + "." }

type inUse struct{ classes, provider string }

func (e inUse) Error() string {
	return "Inventory for '" + e.classes + "' on resource provider '" + e.provider + "' in use."
}

// setInventories replaces a provider's inventories and raises its generation.
func (t *tx) setInventories(id string, list []classInventory) error {
	p := t.provider(id)
	want := map[string]pc.Inventory{}
	for _, c := range list {
		if _, known := t.classID(c.class); !known {
			return unknownClass(c.class)
		}
		want[c.class] = c.inv
	}
	var busy []string
	for class := range p.Inventories {
		if _, stays := want[class]; !stays && t.used(id, class) > 0 {
			busy = append(busy, class)
		}
	}
	if len(busy) > 0 {
		return inUse{strings.Join(t.byClassID(busy), ", "), id}
	}
	e := t.edit(id)
	e.Inventories = want
	e.Generation++
	return nil
}

// datedInventories answers a provider's inventories. Their date is that of the
// newest; of none there is none.
func datedInventories(p *provider) *answer {
	a := ok(inventoriesJSON(p))
	a.undated = len(p.Inventories) == 0
	return a
}

func listInventories(t *tx, r *request) (*answer, error) {
	p, err := theProviderOr(t, r, "No resource provider with uuid %s found : %s")
	if err != nil {
		return nil, err
	}
	return datedInventories(p), nil
}

func showInventory(t *tx, r *request) (*answer, error) {
	p, err := theProviderOr(t, r, "No resource provider with uuid %s found : %s")
	if err != nil {
		return nil, err
	}
	i, has := p.Inventories[r.vars["class"]]
	if !has {
		return nil, refuse(http.StatusNotFound, "No inventory of class %s for %s", r.vars["class"], p.UUID)
	}
	return ok(oneInventoryJSON(p, i)), nil
}

func createInventory(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	body, err := extractObject(r.body, newInventoryBody)
	if err != nil {
		return nil, err
	}
	c := classInventory{body.text("resource_class"), readInventory(body)}
	const cannot = "Unable to create inventory for resource provider %s: %s"
	if why := capacityProblem(r.version, p, c); why != "" {
		return nil, badRequest(cannot, p.UUID, why)
	}
	if _, known := t.classID(c.class); !known {
		return nil, badRequest(cannot, p.UUID, unknownClass(c.class))
	}
	if _, there := p.Inventories[c.class]; there {
		return nil, conflict(codeConcurrentUpdate, "Update conflict: an inventory of class %s already exists on resource provider %s.", c.class, p.UUID)
	}
	e := t.edit(p.UUID)
	e.Inventories[c.class] = c.inv
	e.Generation++
	a := ok(oneInventoryJSON(e, c.inv))
	a.status = http.StatusCreated
	a.location = providerURL(p.UUID) + "/inventories/" + c.class
	return a, nil
}

func putInventories(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	body, err := extractObject(r.body, inventoriesBody)
	if err != nil {
		return nil, err
	}
	if g, _ := body.integer("resource_provider_generation"); g != int64(p.Generation) {
		return nil, conflict(codeConcurrentUpdate, "resource provider generation conflict")
	}
	list := readInventories(body)
	for _, c := range list {
		if why := capacityProblem(r.version, p, c); why != "" {
			return nil, badRequest("Unable to update inventory for resource provider %s: %s", p.UUID, why)
		}
	}
	if err := t.setInventories(p.UUID, list); err != nil {
		if _, unknown := errors.AsType[unknownClass](err); unknown {
			return nil, badRequest("Unknown resource class in inventory for resource provider %s: %v", p.UUID, err)
		}
		return nil, conflict(codeInventoryInUse, "update conflict: %v", err)
	}
	return datedInventories(t.provider(p.UUID)), nil
}

func putInventory(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	body, err := extractObject(r.body, inventoryBody)
	if err != nil {
		return nil, err
	}
	if g, _ := body.integer("resource_provider_generation"); g != int64(p.Generation) {
		return nil, conflict(codeConcurrentUpdate, "resource provider generation conflict")
	}
	c := classInventory{r.vars["class"], readInventory(body)}
	if why := capacityProblem(r.version, p, c); why != "" {
		return nil, badRequest("Unable to update inventory for resource provider %s: %s", p.UUID, why)
	}
	if _, known := t.classID(c.class); !known {
		return nil, gone("%s", unknownClass(c.class))
	}
	if _, there := p.Inventories[c.class]; !there {
		return nil, badRequest("No inventory record with resource class for resource provider %s: No inventory of class %s found.", p.UUID, c.class)
	}
	e := t.edit(p.UUID)
	e.Inventories[c.class] = c.inv
	e.Generation++
	return ok(oneInventoryJSON(e, c.inv)), nil
}

func deleteInventory(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	class := r.vars["class"]
	missing := "No inventory of class " + class + " found for delete"
	if _, known := t.classID(class); !known {
		missing = unknownClass(class).Error()
	}
	if _, there := p.Inventories[class]; !there {
		return nil, refuse(http.StatusNotFound, "No inventory of class %s found for delete: %s", class, missing)
	}
	if t.used(p.UUID, class) > 0 {
		// The real service says concurrent_update here, and inventory.inuse for all at once.
		return nil, conflict(codeConcurrentUpdate, "Unable to delete inventory of class %s: %v", class, inUse{class, p.UUID})
	}
	e := t.edit(p.UUID)
	delete(e.Inventories, class)
	e.Generation++
	return noContent(), nil
}

func deleteInventories(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	if err := t.setInventories(p.UUID, nil); err != nil {
		return nil, conflict(codeInventoryInUse, "%v", err)
	}
	return noContent(), nil
}
