package placement

import "slices"

// aggregatesJSON shows the generation from 1.19 on, when writes began to raise it.
func aggregatesJSON(p *provider, r *request) map[string]any {
	out := map[string]any{"aggregates": append([]string{}, p.Aggregates...)}
	if r.version >= 19 {
		out["resource_provider_generation"] = p.Generation
	}
	return out
}

func listAggregates(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	return ok(aggregatesJSON(p, r)), nil
}

func putAggregates(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, err
	}
	doc, err := extract(r.body, aggregatesBody.at(r.version))
	if err != nil {
		return nil, err
	}
	body, withGeneration := doc.(*object)
	if !withGeneration {
		body = &object{m: map[string]any{"aggregates": doc}}
	} else if g, _ := body.integer("resource_provider_generation"); g != int64(p.Generation) {
		return nil, conflict(codeConcurrentUpdate, "Resource provider's generation already changed. Please update the generation and try again.")
	}
	e := t.edit(p.UUID)
	e.Aggregates = slices.Clone(body.texts("aggregates"))
	if withGeneration {
		e.Generation++
	}
	return ok(aggregatesJSON(e, r)), nil
}
