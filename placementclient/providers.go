package placementclient

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	"berth/internal/fault"
)

// ProviderFilter narrows Providers. Empty fields do not count; all others must hold.
type ProviderFilter struct {
	UUID      string
	Name      string
	InTree    string    // any member's UUID: the whole tree it is in
	MemberOf  []string  // in at least one of these aggregates
	Required  []string  // has all these traits
	Forbidden []string  // has none of these traits
	Resources Resources // has room for this, by itself
}

func (f ProviderFilter) query() url.Values {
	q := url.Values{}
	set := func(key, v string) {
		if v != "" {
			q.Set(key, v)
		}
	}
	set("uuid", f.UUID)
	set("name", f.Name)
	set("in_tree", f.InTree)
	if len(f.MemberOf) > 0 {
		q.Set("member_of", "in:"+strings.Join(f.MemberOf, ","))
	}
	set("required", traitQuery(f.Required, f.Forbidden))
	set("resources", resourceQuery(f.Resources))
	return q
}

func traitQuery(required, forbidden []string) string {
	all := slices.Clone(required)
	for _, t := range forbidden {
		all = append(all, "!"+t)
	}
	return strings.Join(all, ",")
}

func resourceQuery(r Resources) string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(r)) {
		parts = append(parts, class+":"+strconv.FormatInt(r[class], 10))
	}
	return strings.Join(parts, ",")
}

// Providers lists the providers that pass the filter, sorted by name.
func (c *Client) Providers(ctx context.Context, f ProviderFilter) ([]ResourceProvider, error) {
	var out struct {
		ResourceProviders []ResourceProvider `json:"resource_providers"`
	}
	err := c.do(ctx, "list resource providers", call{
		method: http.MethodGet, route: "/resource_providers", path: "/resource_providers", query: f.query(), out: &out,
	})
	sort.Slice(out.ResourceProviders, func(i, j int) bool { return out.ResourceProviders[i].Name < out.ResourceProviders[j].Name })
	return out.ResourceProviders, err
}

// ProvidersInTree lists the whole tree that the provider is in, sorted by name;
// nothing when the provider does not exist. One call tells every generation.
func (c *Client) ProvidersInTree(ctx context.Context, uuid string) ([]ResourceProvider, error) {
	return c.Providers(ctx, ProviderFilter{InTree: uuid})
}

// ProviderByName finds a provider by its exact name; fault.NotFound when there is none.
func (c *Client) ProviderByName(ctx context.Context, name string) (ResourceProvider, error) {
	found, err := c.Providers(ctx, ProviderFilter{Name: name})
	if err != nil {
		return ResourceProvider{}, err
	}
	if len(found) == 0 {
		return ResourceProvider{}, fault.New(fault.NotFound, "no resource provider is named %q", name)
	}
	return found[0], nil
}

// HostProvider returns the uuid of the root provider that has a host's name; empty where there is none.
func (c *Client) HostProvider(ctx context.Context, host string) (string, error) {
	rp, err := c.ProviderByName(ctx, host)
	if errors.Is(err, fault.NotFound) || err == nil && rp.ParentProviderUUID != "" {
		return "", nil
	}
	return rp.UUID, err
}

// Provider reads one provider; fault.NotFound when there is none.
func (c *Client) Provider(ctx context.Context, uuid string) (ResourceProvider, error) {
	var out ResourceProvider
	err := c.do(ctx, "read resource provider "+uuid, call{
		method: http.MethodGet, route: "/resource_providers/{uuid}", path: providerPath(uuid), out: &out,
	})
	return out, err
}

// NewProvider is a provider to create.
type NewProvider struct {
	UUID               string `json:"uuid"`
	Name               string `json:"name"`
	ParentProviderUUID string `json:"parent_provider_uuid,omitempty"` // empty for a root
}

// CreateProvider makes a provider. fault.Exists when the name or the uuid is
// taken, also by an equal provider: a caller that wants "there is one" reads first.
// fault.Invalid when the parent does not exist.
func (c *Client) CreateProvider(ctx context.Context, p NewProvider) (ResourceProvider, error) {
	var out ResourceProvider
	err := c.do(ctx, "create resource provider "+p.Name+" ("+p.UUID+")", call{
		method: http.MethodPost, route: "/resource_providers", path: "/resource_providers",
		body: func(Microversion) any { return p }, out: &out,
		landed: func(ctx context.Context, _ *APIError) (bool, error) {
			got, err := c.Provider(ctx, p.UUID)
			if err != nil {
				return false, err
			}
			out = got
			return got.Name == p.Name && got.ParentProviderUUID == p.ParentProviderUUID, nil
		},
	})
	if err != nil {
		return ResourceProvider{}, err
	}
	return out, nil
}

// RenameProvider gives a provider another name; the generation stays.
func (c *Client) RenameProvider(ctx context.Context, uuid, name string) (ResourceProvider, error) {
	var out ResourceProvider
	err := c.do(ctx, "rename resource provider "+uuid+" to "+name, call{
		method: http.MethodPut, route: "/resource_providers/{uuid}", path: providerPath(uuid),
		body: func(Microversion) any { return map[string]string{"name": name} }, out: &out,
	})
	return out, err
}

// PlaceProvider gives a provider a name and a parent; the generation stays. Below
// microversion 1.37 only a root can be given another parent: fault.Invalid.
func (c *Client) PlaceProvider(ctx context.Context, uuid, name, parent string) (ResourceProvider, error) {
	var out ResourceProvider
	err := c.do(ctx, "put resource provider "+uuid+" below "+parent, call{
		method: http.MethodPut, route: "/resource_providers/{uuid}", path: providerPath(uuid),
		body: func(Microversion) any { return map[string]string{"name": name, "parent_provider_uuid": parent} }, out: &out,
	})
	return out, err
}

// DeleteProvider removes a provider that has no children and no allocations.
// fault.NotFound when it is not there; fault.Busy (ConflictProviderInUse,
// ConflictHasChildren) when it may not go.
func (c *Client) DeleteProvider(ctx context.Context, uuid string) error {
	return c.do(ctx, "delete resource provider "+uuid, call{
		method: http.MethodDelete, route: "/resource_providers/{uuid}", path: providerPath(uuid), landed: goneIsDone,
	})
}

// goneIsDone takes the 404 of a repeated DELETE for the success of the lost one.
func goneIsDone(_ context.Context, e *APIError) (bool, error) {
	return e.Status == http.StatusNotFound, nil
}

func providerPath(uuid string, more ...string) string {
	return "/resource_providers/" + url.PathEscape(uuid) + strings.Join(more, "")
}

// Inventories reads everything a provider has.
func (c *Client) Inventories(ctx context.Context, rp string) (Inventories, error) {
	var out Inventories
	err := c.do(ctx, "read inventories of provider "+rp, call{
		method: http.MethodGet, route: "/resource_providers/{uuid}/inventories", path: providerPath(rp, "/inventories"), out: &out,
	})
	return out, err
}

// PutInventories replaces everything a provider has, guarded by inv.Generation,
// and gives what Placement stored with the new generation. fault.GenerationConflict
// (ConflictProviderGeneration) when somebody else wrote; fault.Busy
// (ConflictInventoryInUse) when a class that would go is allocated; fault.Invalid
// for an unknown class.
func (c *Client) PutInventories(ctx context.Context, rp string, inv Inventories) (Inventories, error) {
	want := make(map[string]Inventory, len(inv.Inventories))
	for class, i := range inv.Inventories {
		want[class] = i.WithDefaults()
	}
	var out Inventories
	err := c.do(ctx, "put inventories of provider "+rp, call{
		method: http.MethodPut, route: "/resource_providers/{uuid}/inventories", path: providerPath(rp, "/inventories"),
		body: func(Microversion) any { return Inventories{inv.Generation, want} }, out: &out,
		landed: func(ctx context.Context, _ *APIError) (bool, error) {
			got, err := c.Inventories(ctx, rp)
			out = got
			return err == nil && got.Generation == inv.Generation+1 && maps.Equal(got.Inventories, want), err
		},
	})
	if err != nil {
		return Inventories{}, err
	}
	return out, nil
}

// Traits reads a provider's traits.
func (c *Client) Traits(ctx context.Context, rp string) (Traits, error) {
	var out Traits
	err := c.do(ctx, "read traits of provider "+rp, call{
		method: http.MethodGet, route: "/resource_providers/{uuid}/traits", path: providerPath(rp, "/traits"), out: &out,
	})
	slices.Sort(out.Traits)
	return out, err
}

// PutTraits replaces a provider's traits, guarded by t.Generation. fault.Invalid
// for a trait that does not exist (EnsureTraits makes custom ones).
func (c *Client) PutTraits(ctx context.Context, rp string, t Traits) (Traits, error) {
	want := sortedSet(t.Traits)
	var out Traits
	err := c.do(ctx, "put traits of provider "+rp, call{
		method: http.MethodPut, route: "/resource_providers/{uuid}/traits", path: providerPath(rp, "/traits"),
		body: func(Microversion) any { return Traits{t.Generation, want} }, out: &out,
		landed: func(ctx context.Context, _ *APIError) (bool, error) {
			got, err := c.Traits(ctx, rp)
			out = got
			return err == nil && got.Generation == t.Generation+1 && slices.Equal(got.Traits, want), err
		},
	})
	if err != nil {
		return Traits{}, err
	}
	slices.Sort(out.Traits)
	return out, nil
}

// sortedSet is never nil: Placement wants [], not null.
func sortedSet(in []string) []string {
	out := append([]string{}, in...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Aggregates reads the aggregates a provider is in.
func (c *Client) Aggregates(ctx context.Context, rp string) (Aggregates, error) {
	var out Aggregates
	err := c.do(ctx, "read aggregates of provider "+rp, call{
		method: http.MethodGet, route: "/resource_providers/{uuid}/aggregates", path: providerPath(rp, "/aggregates"), out: &out,
	})
	slices.Sort(out.Aggregates)
	return out, err
}

// PutAggregates replaces the aggregates a provider is in, guarded by a.Generation.
func (c *Client) PutAggregates(ctx context.Context, rp string, a Aggregates) (Aggregates, error) {
	want := sortedSet(a.Aggregates)
	var out Aggregates
	err := c.do(ctx, "put aggregates of provider "+rp, call{
		method: http.MethodPut, route: "/resource_providers/{uuid}/aggregates", path: providerPath(rp, "/aggregates"),
		body: func(Microversion) any { return Aggregates{a.Generation, want} }, out: &out,
		landed: func(ctx context.Context, _ *APIError) (bool, error) {
			got, err := c.Aggregates(ctx, rp)
			out = got
			return err == nil && got.Generation == a.Generation+1 && slices.Equal(got.Aggregates, want), err
		},
	})
	if err != nil {
		return Aggregates{}, err
	}
	slices.Sort(out.Aggregates)
	return out, nil
}

// EnsureResourceClass makes a custom resource class; one that is there is fine.
func (c *Client) EnsureResourceClass(ctx context.Context, name string) error {
	return c.do(ctx, "ensure resource class "+name, call{
		method: http.MethodPut, route: "/resource_classes/{name}", path: "/resource_classes/" + url.PathEscape(name),
	})
}

// EnsureTrait makes a custom trait; one that is there is fine. A standard trait is
// Placement's own and only looked for: fault.NotFound when its os-traits is older.
func (c *Client) EnsureTrait(ctx context.Context, name string) error {
	method, doing := http.MethodPut, "ensure trait "
	if !strings.HasPrefix(name, CustomPrefix) {
		method, doing = http.MethodGet, "look for trait "
	}
	return c.do(ctx, doing+name, call{
		method: method, route: "/traits/{name}", path: "/traits/" + url.PathEscape(name),
	})
}

// KnownTraits gives those of the names that this Placement knows, sorted: a trait
// of a newer os-traits cannot be set on an older Placement.
func (c *Client) KnownTraits(ctx context.Context, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var out struct {
		Traits []string `json:"traits"`
	}
	err := c.do(ctx, "list traits", call{
		method: http.MethodGet, route: "/traits", path: "/traits",
		query: url.Values{"name": {"in:" + strings.Join(sortedSet(names), ",")}}, out: &out,
	})
	slices.Sort(out.Traits)
	return out.Traits, err
}
