package placement

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	pc "berth/placementclient"
)

// incompleteConsumer is the project and user of consumers written below 1.8,
// when a body named neither.
const incompleteConsumer = "00000000-0000-0000-0000-000000000000"

// claim is what one consumer asks for, in the order of the body.
type claim struct {
	consumer      string
	project, user string
	kind          string // consumer type; empty below 1.38
	generation    *int64 // nil for null
	wants         []want
}

// want is the part of a claim on one provider.
type want struct {
	provider string
	amounts  []amount
}

func readClaim(v pc.Microversion, consumer string, body *object) claim {
	c := claim{consumer: consumer, project: body.text("project_id"), user: body.text("user_id"), kind: body.text("consumer_type")}
	if c.project == "" {
		c.project, c.user = incompleteConsumer, incompleteConsumer
	}
	if g, given := body.integer("consumer_generation"); given {
		c.generation = &g
	}
	if v < 12 {
		list, _ := body.m["allocations"].([]any)
		at := make(map[string]int, len(list))
		for _, e := range list {
			one := e.(*object) // by the schema
			rp := one.object("resource_provider").text("uuid")
			w := want{rp, readAmounts(one.object("resources"))}
			if i, again := at[rp]; again {
				c.wants[i] = w
				continue
			}
			at[rp] = len(c.wants)
			c.wants = append(c.wants, w)
		}
		return c
	}
	all := body.object("allocations")
	for _, rp := range all.keys {
		c.wants = append(c.wants, want{rp, readAmounts(all.object(rp).object("resources"))})
	}
	return c
}

func readAmounts(o *object) []amount {
	var out []amount
	for _, class := range o.keys {
		n, _ := o.integer(class)
		out = append(out, amount{class, n})
	}
	return out
}

// ensureConsumers checks the generation of every consumer and makes rows of
// generation 0 for those that are new. A conflict leaves none of them.
func (t *tx) ensureConsumers(v pc.Microversion, claims []claim) error {
	for _, c := range claims {
		old := t.consumer(c.consumer)
		if old == nil {
			if v >= 28 && c.generation != nil {
				return conflict(codeConcurrentUpdate, "consumer generation conflict - expected null but got %d", *c.generation)
			}
			t.setConsumer(c.consumer, &consumer{UUID: c.consumer, Project: c.project, User: c.user, Type: c.kind,
				Seq: t.nextSeq(), Allocations: map[string]pc.Resources{}})
			continue
		}
		if v >= 28 && (c.generation == nil || *c.generation != int64(old.Generation)) {
			got := "None"
			if c.generation != nil {
				got = fmt.Sprint(*c.generation)
			}
			return conflict(codeConcurrentUpdate, "consumer generation conflict - expected %d but got %s", old.Generation, got)
		}
	}
	return nil
}

// misfit is an allocation that the inventory does not allow.
type misfit struct{ class, provider, why string }

func (m misfit) Error() string {
	if m.why == "" {
		return "Inventory for '" + m.class + "' on resource provider '" + m.provider + "' invalid."
	}
	return "Unable to create allocation for '" + m.class + "' on resource provider '" + m.provider +
		"'. The requested amount would " + m.why + "."
}

// need is one amount of one class of one provider, for one consumer. An amount
// of zero is an allocation given back.
type need struct {
	consumer, provider, class string
	n                         int64
}

// replace makes every claim's consumer hold exactly what it wants, or says why
// not: misfit or unknownClass. Consumers exist already.
func (t *tx) replace(ctx context.Context, claims []claim) error {
	var needs []need
	for _, c := range claims {
		k := t.editConsumer(c.consumer)
		if len(c.wants) == 0 {
			for _, rp := range sortedKeys(k.Allocations) {
				for _, class := range sortedKeys(k.Allocations[rp]) {
					needs = append(needs, need{c.consumer, rp, class, 0})
				}
			}
		}
		for _, w := range c.wants {
			for _, a := range w.amounts {
				needs = append(needs, need{c.consumer, w.provider, a.class, a.n})
			}
		}
		k.Project, k.User = c.project, c.user
		if c.kind != "" {
			k.Type = c.kind
		}
		k.Allocations = map[string]pc.Resources{}
	}
	if err := t.fits(ctx, needs); err != nil {
		return err
	}
	touched, written := map[string]bool{}, map[string]bool{}
	for _, n := range needs {
		touched[n.provider], written[n.consumer] = true, true
		if n.n == 0 {
			continue
		}
		held := t.editConsumer(n.consumer).Allocations
		if held[n.provider] == nil {
			held[n.provider] = pc.Resources{}
		}
		held[n.provider][n.class] = n.n
	}
	for rp := range touched {
		t.edit(rp).Generation++
	}
	for id := range written {
		k := t.editConsumer(id)
		k.Generation++
		if len(k.Allocations) == 0 {
			t.setConsumer(id, nil)
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// fits checks the needs against inventories, in their order. What the consumers
// held before is given back already, so used counts the others only. It costs as
// much as there are needs and changed consumers, and ends with ctx.
func (t *tx) fits(ctx context.Context, needs []need) error {
	var classes, providers []string
	sums, asked := map[string]pc.Resources{}, map[string]bool{}
	for _, n := range needs {
		if !asked[n.class] {
			if _, known := t.classID(n.class); !known {
				return unknownClass(n.class)
			}
			asked[n.class] = true
			classes = append(classes, n.class)
		}
		if sums[n.provider] == nil {
			sums[n.provider] = pc.Resources{}
			providers = append(providers, n.provider)
		}
	}
	// A provider with none of the classes asked for anywhere comes first, and is
	// told with all of them: the real service's own order.
	var bare []string
	for _, rp := range providers {
		has := false
		for class := range t.provider(rp).Inventories {
			has = has || asked[class]
		}
		if !has {
			bare = append(bare, rp)
		}
	}
	if len(bare) > 0 {
		return misfit{class: strings.Join(t.byClassID(classes), ", "), provider: strings.Join(bare, ", ")}
	}
	for i, n := range needs {
		if i%1024 == 0 && ctx.Err() != nil {
			return givenUp(ctx)
		}
		sums[n.provider][n.class] += n.n
		if n.n == 0 {
			continue
		}
		inv, has := t.provider(n.provider).Inventories[n.class]
		if !has {
			return misfit{class: n.class, provider: n.provider}
		}
		if n.n < inv.MinUnit || n.n > inv.MaxUnit || n.n%inv.StepSize != 0 {
			return misfit{n.class, n.provider, "violate inventory constraints"}
		}
		capacity := float64(inv.Total-inv.Reserved) * inv.AllocationRatio
		if capacity < float64(t.used(n.provider, n.class)+sums[n.provider][n.class]) {
			return misfit{n.class, n.provider, "exceed the capacity"}
		}
	}
	return nil
}

// unknownProvider gives the refusal for the first provider that does not exist.
// The consumers just made stay behind: see the package's invariants.
func (t *tx) unknownProvider(claims []claim) *refusal {
	for _, c := range claims {
		for _, w := range c.wants {
			if t.provider(w.provider) == nil {
				r := badRequest("Allocation for resource provider '%s' that does not exist.", w.provider)
				r.keep = true
				return r
			}
		}
	}
	return nil
}

// write is the whole of an allocation write; unknown words the 400 for a class
// that does not exist.
func (t *tx) write(ctx context.Context, v pc.Microversion, claims []claim, unknown string) (*answer, error) {
	work := t.fork()
	if err := work.ensureConsumers(v, claims); err != nil {
		return nil, err
	}
	if r := work.unknownProvider(claims); r != nil {
		t.adopt(work)
		return nil, r
	}
	if err := work.replace(ctx, claims); err != nil {
		if _, is := errors.AsType[unknownClass](err); is {
			return nil, badRequest("%s%v", unknown, err)
		}
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, refuse(http.StatusConflict, "Unable to allocate inventory: %v", err)
	}
	t.adopt(work)
	return noContent(), nil
}

func putAllocations(t *tx, r *request) (*answer, error) {
	id := canonicalUUID(r.vars["consumer"])
	if id == "" {
		return nil, badRequest("Malformed consumer_uuid: %s", r.vars["consumer"])
	}
	body, err := r.document, r.wrong
	if err != nil {
		return nil, err
	}
	return t.write(r.http.Context(), r.version, []claim{readClaim(r.version, id, body)}, "Unable to allocate inventory for consumer "+id+": ")
}

func postAllocations(t *tx, r *request) (*answer, error) {
	body, err := r.document, r.wrong
	if err != nil {
		return nil, err
	}
	claims, err := readClaims(r.version, body)
	if err != nil {
		return nil, err
	}
	return t.write(r.http.Context(), r.version, claims, "Unable to allocate inventory ")
}

// maxConsumers is how many consumers one request may write. Arbitrary: several times
// the instances of the largest host, which is what a reshape of one takes along.
const maxConsumers = 1 << 14

func readClaims(v pc.Microversion, body *object) ([]claim, error) {
	if n := len(body.keys); n > maxConsumers {
		return nil, badRequest("%d consumers in one request, at most %d are taken: send several requests.", n, maxConsumers)
	}
	var claims []claim
	for _, id := range body.keys {
		claims = append(claims, readClaim(v, id, body.object(id)))
	}
	return claims, nil
}

func showAllocations(t *tx, r *request) (*answer, error) {
	all := map[string]any{}
	out := map[string]any{"allocations": all}
	c := t.consumer(r.vars["consumer"])
	if c == nil || len(c.Allocations) == 0 {
		return ok(out), nil
	}
	for rp, held := range c.Allocations {
		all[rp] = map[string]any{"generation": t.provider(rp).Generation, "resources": held}
	}
	if r.version >= 12 {
		out["project_id"], out["user_id"] = c.Project, c.User
	}
	if r.version >= 28 {
		out["consumer_generation"] = c.Generation
	}
	if r.version >= 38 {
		if out["consumer_type"] = c.Type; c.Type == "" {
			out["consumer_type"] = pc.ConsumerUnknown
		}
	}
	return ok(out), nil
}

func deleteAllocations(t *tx, r *request) (*answer, error) {
	id := r.vars["consumer"]
	c := t.consumer(id)
	if c == nil || len(c.Allocations) == 0 {
		return nil, refuse(http.StatusNotFound, "No allocations for consumer '%s'", id)
	}
	t.setConsumer(id, nil)
	return noContent(), nil
}

func providerAllocations(t *tx, r *request) (*answer, error) {
	p, err := theProvider(t, r)
	if err != nil {
		return nil, refuse(http.StatusNotFound, "Resource provider '%s' not found: %s", r.vars["uuid"], asRefusal(err).detail)
	}
	all := map[string]any{}
	for _, c := range t.holders(p.UUID) {
		one := map[string]any{"resources": c.Allocations[p.UUID]}
		if r.version >= 28 {
			one["consumer_generation"] = c.Generation
		}
		all[c.UUID] = one
	}
	return ok(map[string]any{"allocations": all, "resource_provider_generation": p.Generation}), nil
}
