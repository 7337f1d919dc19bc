package placementtest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	pc "berth/placementclient"
	"github.com/google/go-cmp/cmp"
)

// RandomTraffic sends the same random requests, at random microversions, to both
// servers and compares the answers, for so many rounds of 150 requests: those of
// the seed first and of the seeds after it. fresh gives the servers of a round,
// both empty. BERTH_PLACEMENT_SEED makes it one round, of that seed.
func RandomTraffic(t *testing.T, first uint64, rounds int, fresh func() (ours, theirs Server)) {
	t.Helper()
	if s := os.Getenv("BERTH_PLACEMENT_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		must(t, err)
		rounds, first = 1, seed
	}
	failures := 0
	for n := range rounds {
		seed := first + uint64(n)
		ours, theirs := fresh()
		g := &generator{rand: rand.New(rand.NewPCG(seed, 0)), t: t, ours: ours}
		for range 4 { // orphan consumers outlive an emptying, so each round has its own
			g.consumers = append(g.consumers, fmt.Sprintf("%08x-0000-4000-8000-%012x", g.rand.Uint32(), g.rand.Uint64()>>16))
		}
		for step := range 150 {
			e := g.next(step)
			diffs := compare(t, &e, ours, theirs)
			if len(diffs) == 0 {
				continue
			}
			t.Errorf("seed %d step %d: %s %s %s\n%s\n%s", seed, step, e.Request.Method, e.Request.Path,
				e.Request.Headers["OpenStack-API-Version"], e.Request.Body, strings.Join(diffs, "\n"))
			if failures++; failures > 8 {
				t.Fatal("enough")
			}
			break // the states may differ from here on
		}
	}
}

// compare sends one request to both. Texts are compared as bags of words,
// because the real server names sets in the order of a hash.
func compare(t *testing.T, e *exchange, ours, theirs Server) (diffs []string) {
	s1, h1, b1 := e.send(t, ours)
	s2, h2, b2 := e.send(t, theirs)
	if e.Compare == "status" {
		if s1 != s2 {
			return []string{fmt.Sprintf("  status: other %d, ours %d", s2, s1)}
		}
		return nil
	}
	return differences(e.Request.Path, answer{s1, h1, b1, ours.URL}, answer{s2, h2, b2, theirs.URL})
}

// answer is what a server said; body is decoded.
type answer struct {
	status int
	header http.Header
	body   any
	base   string
}

// differences of two answers to the same request, in words.
func differences(path string, ours, theirs answer) (diffs []string) {
	if realLosesASharingChild(path, theirs) && (ours.status == http.StatusOK || strings.Contains(fmt.Sprint(ours.body), "No such trait(s)")) {
		return nil
	}
	diff := func(what string, want, got any) {
		if d := cmp.Diff(want, got); d != "" {
			diffs = append(diffs, fmt.Sprintf("  %s (-other +ours)\n%s", what, d))
		}
	}
	diff("status", theirs.status, ours.status)
	for _, h := range []string{"Openstack-Api-Version", "Location", "Vary", "Allow", "Cache-Control", "Content-Type"} {
		got, want := ours.header.Get(h), theirs.header.Get(h)
		if h == "Location" {
			got, want = strings.Replace(got, ours.base, "http://placement", 1), strings.Replace(want, theirs.base, "http://placement", 1)
		}
		diff("header "+h, want, got)
	}
	// Their values are of the moment.
	for _, h := range []string{"Last-Modified", "X-Openstack-Request-Id"} {
		diff("has header "+h, theirs.header.Get(h) != "", ours.header.Get(h) != "")
	}
	// Of several unknown traits the real one names any, and a database's error is
	// its own.
	loose := strings.Contains(fmt.Sprint(theirs.body), "IntegrityError") || strings.Contains(fmt.Sprint(theirs.body), "No such trait(s)")
	if realSumsTwice(path) {
		return diffs
	}
	ours.body = withoutForgotten(path, ours.body, theirs.body)
	if limited(path) {
		ours.body, theirs.body = counted(ours.body), counted(theirs.body)
	}
	diff("body", words(canonical(theirs.body, loose)), words(canonical(ours.body, loose)))
	return diffs
}

func words(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if k == "detail" {
				bag := strings.FieldsFunc(fmt.Sprint(e), func(r rune) bool { return strings.ContainsRune(" ,'\"()[]{}\n", r) })
				slices.Sort(bag)
				v[k] = strings.Join(bag, " ")
			} else {
				v[k] = words(e)
			}
		}
	case []any:
		for i := range v {
			v[i] = words(v[i])
		}
	}
	return v
}

// Empty removes everything from a server, but for consumers that a failed claim
// left behind, which no request shows.
func Empty(t *testing.T, s Server) {
	c := s.Client(t, 39)
	ctx := t.Context()
	all, err := c.Providers(ctx, pc.ProviderFilter{})
	must(t, err)
	for _, p := range all {
		held, err := c.ProviderAllocations(ctx, p.UUID)
		must(t, err)
		for consumer := range held.Allocations {
			must(t, c.DeleteAllocations(ctx, consumer))
		}
	}
	for len(all) > 0 {
		var left []pc.ResourceProvider
		for _, p := range all {
			if slices.ContainsFunc(all, func(q pc.ResourceProvider) bool { return q.ParentProviderUUID == p.UUID }) {
				left = append(left, p)
				continue
			}
			must(t, c.DeleteProvider(ctx, p.UUID))
		}
		all = left
	}
	for path, list := range map[string]string{"/traits": "traits", "/resource_classes": "resource_classes"} {
		e := request39("GET", path)
		_, _, body := e.send(t, s)
		for _, v := range body.(map[string]any)[list].([]any) {
			name, _ := v.(string)
			if m, is := v.(map[string]any); is {
				name, _ = m["name"].(string)
			}
			if strings.HasPrefix(name, pc.CustomPrefix) {
				e := request39("DELETE", path+"/"+name)
				e.send(t, s)
			}
		}
	}
}

func names(prefix string, list []string) []string {
	var out []string
	for _, n := range list {
		out = append(out, prefix+n)
	}
	return out
}

func request39(method, path string) exchange {
	var e exchange
	e.Request.Method, e.Request.Path, e.Request.Auth = method, path, true
	e.Request.Headers = map[string]string{"OpenStack-API-Version": "placement 1.39"}
	return e
}

var (
	diffTraits  = []string{"CUSTOM_A", "CUSTOM_B", "HW_NUMA_ROOT", "MISC_SHARES_VIA_AGGREGATE"}
	diffClasses = []string{"VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_X"}
)

// generator makes requests that mostly make sense for what is there now.
type generator struct {
	rand *rand.Rand
	t    *testing.T
	ours Server

	consumers []string
}

func (g *generator) one(list ...string) string { return list[g.rand.IntN(len(list))] }
func (g *generator) chance(percent int) bool   { return g.rand.IntN(100) < percent }
func (g *generator) provider() string          { return id(g.rand.IntN(7)) }
func (g *generator) aggregate() string         { return id(50 + g.rand.IntN(2)) }
func (g *generator) consumer() string          { return g.one(g.consumers...) }

// read asks the server under test, which has been found equal so far.
func (g *generator) read(path, field string, otherwise any) any {
	e := request39("GET", path)
	_, _, body := e.send(g.t, g.ours)
	m, _ := body.(map[string]any)
	v, found := m[field]
	if !found {
		v = otherwise
	}
	if f, is := v.(float64); is && g.chance(8) {
		return f + 1
	}
	return v
}

func (g *generator) generation(rp string) any {
	return g.read("/resource_providers/"+rp, "generation", 0)
}

func (g *generator) next(step int) exchange {
	e := request39("GET", "/resource_providers")
	version := 39
	if g.chance(40) {
		version = g.rand.IntN(40)
	}
	e.Request.Headers["OpenStack-API-Version"] = "placement 1." + strconv.Itoa(version)
	set := func(method, path string, body any) {
		e.Request.Method, e.Request.Path = method, path
		if body != nil {
			b, err := json.Marshal(body)
			must(g.t, err)
			e.Request.Body = b
			e.Request.Headers["Content-Type"] = "application/json"
		}
	}
	rp := g.provider()
	weights := g.rand.IntN(100)
	if step < 40 { // first something must be there
		weights = g.rand.IntN(45)
	}
	switch n := weights; {
	case n < 12:
		body := map[string]any{"uuid": rp, "name": "p" + rp[len(rp)-1:]}
		if g.chance(55) && version >= 14 {
			body["parent_provider_uuid"] = g.provider()
		}
		set("POST", "/resource_providers", body)
	case n < 22:
		set("PUT", "/resource_providers/"+rp+"/inventories", map[string]any{
			"resource_provider_generation": g.generation(rp), "inventories": g.inventories()})
	case n < 28:
		set("PUT", "/resource_providers/"+rp+"/traits", map[string]any{
			"resource_provider_generation": g.generation(rp), "traits": g.some(diffTraits)})
	case n < 33:
		aggs := []string{}
		for range g.rand.IntN(3) {
			if a := g.aggregate(); !slices.Contains(aggs, a) {
				aggs = append(aggs, a)
			}
		}
		var body any = map[string]any{"resource_provider_generation": g.generation(rp), "aggregates": aggs}
		if version < 19 {
			body = aggs
		}
		set("PUT", "/resource_providers/"+rp+"/aggregates", body)
	case n < 36:
		set("PUT", "/traits/"+g.one("CUSTOM_A", "CUSTOM_B", "lower", "HW_NUMA_ROOT"), nil)
	case n < 39:
		version = max(version, 7)
		e.Request.Headers["OpenStack-API-Version"] = "placement 1." + strconv.Itoa(version)
		set("PUT", "/resource_classes/"+g.one("CUSTOM_X", "CUSTOM_Y", "VCPU"), nil)
	case n < 53:
		consumer := g.consumer()
		set("PUT", "/allocations/"+consumer, g.claim(consumer, version))
	case n < 58:
		body := map[string]any{}
		for range 1 + g.rand.IntN(2) {
			c := g.consumer()
			body[c] = g.claim(c, max(version, 12))
		}
		set("POST", "/allocations", body)
	case n < 60:
		set("DELETE", "/allocations/"+g.consumer(), nil)
	case n < 62:
		set("DELETE", "/resource_providers/"+rp+g.one("", "", "/inventories", "/traits", "/inventories/"+g.one(diffClasses...)), nil)
	case n < 65:
		set("PUT", "/resource_providers/"+rp, g.rename(rp, version))
	case n < 68:
		i := g.inventory()
		i["resource_provider_generation"] = g.generation(rp)
		set("PUT", "/resource_providers/"+rp+"/inventories/"+g.one(diffClasses...), i)
	case n < 70:
		i := g.inventory()
		i["resource_class"] = g.one(diffClasses...)
		set("POST", "/resource_providers/"+rp+"/inventories", i)
	case n < 73:
		other := g.provider()
		inv := map[string]any{rp: map[string]any{"resource_provider_generation": g.generation(rp), "inventories": g.inventories()}}
		inv[other] = map[string]any{"resource_provider_generation": g.generation(other), "inventories": g.inventories()}
		allocs := map[string]any{}
		if g.chance(70) {
			c := g.consumer()
			allocs[c] = g.claim(c, max(version, 28))
		}
		set("POST", "/reshaper", map[string]any{"inventories": inv, "allocations": allocs})
	case n < 76:
		set("DELETE", g.one(append(names("/traits/", diffTraits), names("/resource_classes/", diffClasses)...)...), nil)
	case n < 82:
		set("GET", g.one("/resource_providers/"+rp, "/resource_providers/"+rp+"/inventories", "/resource_providers/"+rp+"/usages",
			"/resource_providers/"+rp+"/traits", "/resource_providers/"+rp+"/aggregates", "/resource_providers/"+rp+"/allocations",
			"/allocations/"+g.consumer(), "/usages?project_id=p", "/usages?project_id=p&consumer_type=all", "/usages?project_id=q&user_id=u",
			"/usages?project_id=p&consumer_type=unknown", "/resource_providers/"+rp+"/inventories/"+g.one(diffClasses...),
			"/traits?associated=true", "/traits?name=startswith:CUSTOM_", "/traits/"+g.one(diffTraits...),
			"/resource_classes", "/resource_classes/"+g.one(diffClasses...), "/traits?name=in:"+strings.Join(diffTraits, ",")), nil)
	case n < 88:
		set("GET", "/resource_providers?"+g.filter(), nil)
	default:
		set("GET", "/allocation_candidates?"+g.candidates(version), nil)
	}
	return e
}

func (g *generator) some(list []string) []string {
	out := []string{}
	for _, n := range list {
		if g.chance(35) {
			out = append(out, n)
		}
	}
	return out
}

func (g *generator) inventory() map[string]any {
	i := map[string]any{"total": 1 + g.rand.IntN(12)}
	if g.chance(20) {
		i["reserved"] = g.rand.IntN(4)
	}
	if g.chance(20) {
		i["max_unit"] = 1 + g.rand.IntN(6)
	}
	if g.chance(10) {
		i["step_size"] = 2
	}
	if g.chance(10) {
		i["min_unit"] = 2
	}
	if g.chance(20) {
		i["allocation_ratio"] = 1.5
	}
	return i
}

func (g *generator) inventories() map[string]any {
	out := map[string]any{}
	for _, class := range diffClasses {
		if g.chance(50) {
			out[class] = g.inventory()
		}
	}
	return out
}

func (g *generator) resources() map[string]any {
	out := map[string]any{}
	for _, class := range diffClasses {
		if g.chance(35) {
			out[class] = 1 + g.rand.IntN(4)
		}
	}
	if len(out) == 0 {
		out["VCPU"] = 1
	}
	return out
}

func (g *generator) claim(consumer string, version int) map[string]any {
	all := map[string]any{}
	for range g.rand.IntN(3) {
		all[g.provider()] = map[string]any{"resources": g.resources()}
	}
	body := map[string]any{"allocations": all}
	if version < 12 {
		list := []any{}
		for rp, r := range all {
			list = append(list, map[string]any{"resource_provider": map[string]any{"uuid": rp}, "resources": r.(map[string]any)["resources"]})
		}
		body["allocations"] = list
	}
	if version >= 8 {
		body["project_id"], body["user_id"] = g.one("p", "q"), "u"
	}
	if version >= 28 {
		body["consumer_generation"] = g.read("/allocations/"+consumer, "consumer_generation", nil)
		if g.chance(8) {
			body["consumer_generation"] = 0
		}
	}
	if version >= 34 && g.chance(15) {
		body["mappings"] = map[string]any{"": []any{g.provider()}, "_A": []any{g.provider()}}
	}
	if version >= 38 {
		body["consumer_type"] = g.one("INSTANCE", "MIGRATION")
	}
	return body
}

func (g *generator) rename(rp string, version int) map[string]any {
	body := map[string]any{"name": "p" + g.one(rp[len(rp)-1:], "9")}
	if version >= 14 && g.chance(60) {
		body["parent_provider_uuid"] = g.provider()
		if g.chance(30) {
			body["parent_provider_uuid"] = nil
		}
	}
	return body
}

func (g *generator) traits() string {
	var parts []string
	for _, n := range g.some(diffTraits) {
		parts = append(parts, g.one("", "", "!")+n)
	}
	if len(parts) == 0 {
		return g.one("CUSTOM_A", "!CUSTOM_B", "in:CUSTOM_A,HW_NUMA_ROOT")
	}
	return strings.Join(parts, ",")
}

func (g *generator) memberOf() string {
	return g.one(g.aggregate(), "in:"+g.aggregate()+","+g.aggregate(), "!"+g.aggregate(), "!in:"+g.aggregate())
}

func (g *generator) wanted() string {
	var parts []string
	for class, n := range g.resources() {
		parts = append(parts, fmt.Sprintf("%s:%v", class, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

func (g *generator) filter() string {
	var q []string
	add := func(percent int, key, value string) {
		if g.chance(percent) {
			q = append(q, key+"="+value)
		}
	}
	add(25, "in_tree", g.provider())
	add(30, "member_of", g.memberOf())
	add(10, "member_of", g.memberOf())
	add(8, "uuid", g.provider())
	add(30, "required", g.traits())
	add(20, "required", g.traits())
	add(30, "resources", g.wanted())
	add(10, "name", "p"+strconv.Itoa(g.rand.IntN(7)))
	return strings.Join(q, "&")
}

func (g *generator) candidates(version int) string {
	var q []string
	add := func(percent int, key, value string) {
		if g.chance(percent) {
			q = append(q, key+"="+value)
		}
	}
	group := func(suffix string) {
		percent := 92
		if suffix != "" && version >= 36 {
			percent = 80 // a group may be tied to others and ask for no amount
		}
		add(percent, "resources"+suffix, g.wanted())
		add(25, "required"+suffix, g.traits())
		add(6, "required"+suffix, g.traits())
		add(15, "member_of"+suffix, g.memberOf())
		add(5, "member_of"+suffix, g.memberOf())
		add(10, "in_tree"+suffix, g.provider())
	}
	suffixes := []string{"1", "2"}
	if version >= 33 {
		suffixes = []string{"_A", "_B"}
		if g.chance(20) {
			suffixes = append(suffixes, "3")
		}
	}
	if g.chance(70) {
		group("")
	}
	n := 0
	for _, s := range suffixes {
		if version >= 25 && g.chance(35) {
			group(s)
			n++
		}
	}
	if n > 0 {
		add(90, "group_policy", g.one("none", "isolate"))
	}
	if n >= 2 && version >= 36 {
		add(50, "same_subtree", strings.Join(suffixes, ","))
		add(10, "same_subtree", strings.Join(suffixes[:2], ","))
	}
	if version >= 35 {
		add(15, "root_required", g.one("CUSTOM_A", "!CUSTOM_B", "HW_NUMA_ROOT", "CUSTOM_A,!CUSTOM_B"))
	}
	if version >= 16 {
		add(10, "limit", strconv.Itoa(1+g.rand.IntN(4)))
	}
	return strings.Join(q, "&")
}
