package placementclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// Usages reads how much of each of a provider's classes is allocated.
func (c *Client) Usages(ctx context.Context, rp string) (Usages, error) {
	var out Usages
	err := c.do(ctx, "read usages of provider "+rp, call{
		method: http.MethodGet, route: "/resource_providers/{uuid}/usages", path: providerPath(rp, "/usages"), out: &out,
	})
	return out, err
}

// ProjectUsages reads a project's usage by consumer type. Below 1.38 Placement
// does not tell types apart and all is under "all", with no count.
func (c *Client) ProjectUsages(ctx context.Context, projectID string) (map[string]ConsumerUsage, error) {
	var out struct {
		Usages map[string]json.RawMessage `json:"usages"`
	}
	err := c.do(ctx, "read usages of project "+projectID, call{
		method: http.MethodGet, route: "/usages", path: "/usages", query: url.Values{"project_id": {projectID}}, out: &out,
	})
	if err != nil {
		return nil, err
	}
	usages := map[string]ConsumerUsage{}
	for key, raw := range out.Usages {
		var n int64
		if json.Unmarshal(raw, &n) == nil {
			u := usages["all"]
			if u.Resources == nil {
				u.Resources = Resources{}
			}
			u.Resources[key] = n
			usages["all"] = u
			continue
		}
		var byClass map[string]int64
		if err := json.Unmarshal(raw, &byClass); err != nil {
			return nil, wrap("read usages of project "+projectID, err)
		}
		u := ConsumerUsage{ConsumerCount: int(byClass["consumer_count"]), Resources: Resources{}}
		for class, n := range byClass {
			if class != "consumer_count" {
				u.Resources[class] = n
			}
		}
		usages[key] = u
	}
	return usages, nil
}

// ProviderAllocations reads who holds what of a provider.
func (c *Client) ProviderAllocations(ctx context.Context, rp string) (ProviderAllocations, error) {
	var doc struct {
		Generation  int `json:"resource_provider_generation"`
		Allocations map[string]struct {
			Resources          Resources `json:"resources"`
			ConsumerGeneration int       `json:"consumer_generation"`
		} `json:"allocations"`
	}
	err := c.do(ctx, "read allocations of provider "+rp, call{
		method: http.MethodGet, route: "/resource_providers/{uuid}/allocations", path: providerPath(rp, "/allocations"), out: &doc,
	})
	out := ProviderAllocations{Generation: doc.Generation, Allocations: map[string]Resources{}, ConsumerGenerations: map[string]int{}}
	for consumer, a := range doc.Allocations {
		out.Allocations[consumer] = a.Resources
		out.ConsumerGenerations[consumer] = a.ConsumerGeneration
	}
	return out, err
}

func consumerPath(consumer string) string { return "/allocations/" + url.PathEscape(consumer) }

// Allocations reads what a consumer holds. A consumer that does not exist is not
// an error: the answer is empty and its ConsumerGeneration nil.
func (c *Client) Allocations(ctx context.Context, consumer string) (Allocations, error) {
	var out Allocations
	err := c.do(ctx, "read allocations of consumer "+consumer, call{
		method: http.MethodGet, route: "/allocations/{consumer}", path: consumerPath(consumer), out: &out,
	})
	return out, err
}

// PutAllocations replaces what a consumer holds, guarded by a.ConsumerGeneration
// (nil: the consumer must not exist). Empty allocations remove the consumer; do
// not write them for one that does not exist, it would leave an orphan.
//
// fault.DoesNotFit when there is no room; fault.GenerationConflict
// (ConflictConsumerGeneration) when somebody else wrote the consumer: stop and
// look; fault.Busy (ConflictServerRace) after losing every race;
// fault.Invalid for an unknown provider or class; fault.InDoubt when a copy of the
// request was lost, see the package comment.
//
// An orphan consumer that an earlier failed claim left at generation 0 is taken
// over: Placement's "expected 0 but got None" for a consumer that reads empty is
// answered by the same write with generation 0.
func (c *Client) PutAllocations(ctx context.Context, consumer string, a Allocations) error {
	return c.writeAllocations(ctx, "put allocations of consumer "+consumer, map[string]Allocations{consumer: a},
		func(set map[string]Allocations) call {
			return call{
				method: http.MethodPut, route: "/allocations/{consumer}", path: consumerPath(consumer),
				body: func(v Microversion) any { return set[consumer].wire(v) },
			}
		})
}

// PostAllocations replaces what several consumers hold, all or none, each guarded
// by its generation. This is the swap of a move. Errors are those of
// PutAllocations; after fault.InDoubt or fault.GenerationConflict read every
// consumer in the set.
func (c *Client) PostAllocations(ctx context.Context, set map[string]Allocations) error {
	return c.writeAllocations(ctx, "post allocations of "+consumerList(set), set,
		func(set map[string]Allocations) call {
			return call{
				method: http.MethodPost, route: "/allocations", path: "/allocations",
				body: func(v Microversion) any {
					out := map[string]wireAllocations{}
					for consumer, a := range set {
						out[consumer] = a.wire(v)
					}
					return out
				},
			}
		})
}

func consumerList(set map[string]Allocations) string {
	s := "consumers"
	for i, consumer := range slices.Sorted(maps.Keys(set)) {
		if i == 0 {
			s += " " + consumer
		} else {
			s += ", " + consumer
		}
	}
	return s
}

// DeleteAllocations removes everything a consumer holds, whatever its generation;
// fault.NotFound when it holds nothing. It does not raise the generations of the
// providers. Because nothing guards it, a copy lost on the way may also remove what
// is written later under the same consumer: where that matters, and the outcome was
// fault.InDoubt, do not use the consumer again. PutAllocations with empty
// allocations and the generation is the guarded form.
func (c *Client) DeleteAllocations(ctx context.Context, consumer string) error {
	return c.do(ctx, "delete allocations of consumer "+consumer, call{
		method: http.MethodDelete, route: "/allocations/{consumer}", path: consumerPath(consumer), landed: goneIsDone,
	})
}

// writeAllocations sends the set, and once more with generation 0 for consumers
// that turn out to be orphans.
func (c *Client) writeAllocations(ctx context.Context, doing string, set map[string]Allocations, make func(map[string]Allocations) call) error {
	ctx, cancel := c.cfg.Runtime.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	send := func(set map[string]Allocations) error {
		k := make(set)
		k.landed = func(ctx context.Context, e *APIError) (bool, error) {
			if e.Conflict != ConflictConsumerGeneration {
				return false, nil
			}
			return c.allocationsLanded(ctx, set)
		}
		return c.attempt(ctx, k)
	}
	err := send(set)
	api, _ := errors.AsType[*APIError](err)
	if api == nil || !api.isOrphan() {
		return wrap(doing, err)
	}
	hidden, lookErr := c.hiddenConsumers(ctx, set)
	if lookErr != nil {
		return wrap(doing, fmt.Errorf("%w; then looking for orphans failed: %v", err, lookErr))
	}
	// Placement does not say which consumer it means. There is nearly always one
	// that was to be new (the migration); for more, every choice is tried.
	if len(hidden) > maxHidden {
		return wrap(doing, err)
	}
	for choice := 1; choice < 1<<len(hidden); choice++ {
		trial := maps.Clone(set)
		n := int64(0)
		for i, consumer := range hidden {
			if choice>>i&1 == 1 {
				a := trial[consumer]
				a.ConsumerGeneration = Generation(0)
				trial[consumer] = a
				n++
			}
		}
		err2 := send(trial)
		if err2 == nil {
			c.count.orphans.Add(n)
			return nil
		}
		if ConflictOf(err2) != ConflictConsumerGeneration {
			return wrap(doing, err2)
		}
	}
	return wrap(doing, err)
}

// maxHidden bounds the choices tried for orphans to 7 requests; arbitrary.
const maxHidden = 3

// hiddenConsumers lists those of the set that were to be new and read as empty.
func (c *Client) hiddenConsumers(ctx context.Context, set map[string]Allocations) ([]string, error) {
	var hidden []string
	for _, consumer := range slices.Sorted(maps.Keys(set)) {
		if set[consumer].Exists() {
			continue
		}
		got, err := c.Allocations(ctx, consumer)
		if err != nil {
			return nil, err
		}
		if !got.Exists() {
			hidden = append(hidden, consumer)
		}
	}
	return hidden, nil
}

// allocationsLanded says whether every consumer reads as one write of the set
// would have left it: the amounts, and the generation raised by one.
func (c *Client) allocationsLanded(ctx context.Context, set map[string]Allocations) (bool, error) {
	for _, consumer := range slices.Sorted(maps.Keys(set)) {
		want := set[consumer]
		got, err := c.Allocations(ctx, consumer)
		if err != nil {
			return false, err
		}
		if len(want.Allocations) == 0 {
			if got.Exists() {
				return false, nil
			}
			continue
		}
		next := 1
		if want.ConsumerGeneration != nil {
			next = *want.ConsumerGeneration + 1
		}
		if got.ConsumerGeneration == nil || *got.ConsumerGeneration != next || !got.SameResources(want) {
			return false, nil
		}
	}
	return true, nil
}
