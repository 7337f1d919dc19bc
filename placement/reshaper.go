package placement

import (
	"context"
	"errors"
	"maps"
	"net/http"

	pc "berth/placementclient"
)

// reshape replaces inventories and allocations together, so that what is held
// can move between the providers of a tree. Generations rise as in the real
// service: once for the interim inventories (which have both old and new
// classes), once for the allocations, once for the final inventories.
func reshape(t *tx, r *request) (*answer, error) {
	body, err := r.document, r.wrong
	if err != nil {
		return nil, err
	}
	inventories := body.object("inventories")
	wanted := map[string][]classInventory{}
	for _, id := range inventories.keys {
		p := t.provider(id)
		if p == nil {
			return nil, badRequest("Resource provider %s in inventories not found: No resource provider with uuid %s found", id, id).
				withCode(codeProviderNotFound)
		}
		one := inventories.object(id)
		if g, _ := one.integer("resource_provider_generation"); g != int64(p.Generation) {
			return nil, conflict(codeConcurrentUpdate, "resource provider generation conflict for provider %s: actual: %d, given: %d", id, p.Generation, g)
		}
		wanted[id] = readInventories(one)
	}
	claims, err := readClaims(r.version, body.object("allocations"))
	if err != nil {
		return nil, err
	}
	work := t.fork()
	if err := work.ensureConsumers(r.version, claims); err != nil {
		return nil, err
	}
	if refused := work.unknownProvider(claims); refused != nil {
		t.adopt(work)
		return nil, refused
	}
	if err := work.reshape(r.http.Context(), inventories.keys, wanted, claims); err != nil {
		if _, is := errors.AsType[unknownClass](err); is {
			return nil, badRequest("malformed reshaper data: %v", err)
		}
		if _, is := errors.AsType[inUse](err); is {
			return nil, conflict(codeInventoryInUse, "update conflict: %v", err)
		}
		if r.http.Context().Err() != nil {
			return nil, err
		}
		return nil, refuse(http.StatusConflict, "Unable to allocate inventory: %v", err)
	}
	t.adopt(work)
	return noContent(), nil
}

func (t *tx) reshape(ctx context.Context, order []string, wanted map[string][]classInventory, claims []claim) error {
	for _, id := range order {
		if len(wanted[id]) == 0 {
			continue
		}
		union := maps.Clone(t.provider(id).Inventories)
		if union == nil {
			union = map[string]pc.Inventory{}
		}
		for _, c := range wanted[id] {
			union[c.class] = c.inv
		}
		var list []classInventory
		for _, class := range sortedKeys(union) {
			list = append(list, classInventory{class, union[class]})
		}
		if err := t.setInventories(id, list); err != nil {
			return err
		}
	}
	if err := t.replace(ctx, claims); err != nil {
		return err
	}
	for _, id := range order {
		if err := t.setInventories(id, wanted[id]); err != nil {
			return err
		}
	}
	return nil
}
