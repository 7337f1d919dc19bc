package placementtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	pc "berth/placementclient"
)

// latest is the newest microversion that both servers speak.
const latest = 39

// step is one request of the walk through the microversions. changes are the
// microversions at which its answer changes, but for those that change every
// answer (1.15 brings Last-Modified, 1.23 the codes of errors).
type step struct {
	method, path string
	body         func(w *walk) any // nil for none
	changes      []int
}

// at says whether the step is sent at a microversion: at the oldest, the newest
// and on both sides of every change.
func (s step) at(v int) bool {
	return v == 0 || v == latest || slices.Contains(s.changes, v) || slices.Contains(s.changes, v+1)
}

// walk is one microversion of EveryVersion.
type walk struct {
	t    *testing.T
	ours Server
	v    int
}

func (w *walk) generation(rp int) any {
	return w.field("/resource_providers/"+id(rp), "generation")
}

// field reads from ours, which has been found equal so far.
func (w *walk) field(path, name string) any {
	e := request39("GET", path)
	_, _, body := e.send(w.t, w.ours)
	m, _ := body.(map[string]any)
	return m[name]
}

// EveryVersion sends every kind of request, each at the microversions about which
// its answer changes (all of them where all is set), and compares the answers.
// Both servers must be empty. It gives how many answers were compared.
func EveryVersion(t *testing.T, ours, theirs Server, all bool) int {
	t.Helper()
	compared := 0
	send := func(v int, s step, w *walk) {
		e := request39(s.method, strings.NewReplacer("{v}", fmt.Sprint(v), "{consumer}", id(900+v)).Replace(s.path))
		e.Request.Headers["OpenStack-API-Version"] = fmt.Sprintf("placement 1.%d", v)
		if s.body != nil {
			b, err := json.Marshal(s.body(w))
			must(t, err)
			e.Request.Body = b
			e.Request.Headers["Content-Type"] = "application/json"
		}
		compared++
		if d := compare(t, &e, ours, theirs); len(d) > 0 {
			t.Errorf("%s %s 1.%d %s\n%s", e.Request.Method, e.Request.Path, v, e.Request.Body, strings.Join(d, "\n"))
		}
	}
	for _, s := range scene() {
		send(latest, s, &walk{t, ours, latest})
	}
	steps := slices.Concat(readSteps(), writeSteps(), claimSteps())
	for v := range latest + 1 {
		w := &walk{t, ours, v}
		for _, s := range steps {
			if all || s.at(v) {
				send(v, s, w)
			}
		}
		// What a microversion left is taken away, so that the next finds the same.
		for _, path := range []string{"/allocations/" + id(900+v), "/allocations/" + id(950+v)} {
			send(latest, step{method: "DELETE", path: path}, w)
		}
	}
	return compared
}

type doc = map[string]any

func body(v any) func(*walk) any { return func(*walk) any { return v } }

// Providers of the scene: a host with two cells, and a pool that shares its disk
// with it; 9 is a provider that each microversion makes and removes.
const (
	host, cell0, cell1, pool, passing = 1, 2, 3, 4, 9
	inPool, elsewhere                 = 50, 51 // aggregates
)

func scene() []step {
	inventories := func(rp int, classes ...string) step {
		return step{method: "PUT", path: "/resource_providers/" + id(rp) + "/inventories", body: func(w *walk) any {
			all := doc{}
			for _, c := range classes {
				all[c] = doc{"total": 64}
			}
			return doc{"resource_provider_generation": w.generation(rp), "inventories": all}
		}}
	}
	traits := func(rp int, names ...string) step {
		return step{method: "PUT", path: "/resource_providers/" + id(rp) + "/traits", body: func(w *walk) any {
			return doc{"resource_provider_generation": w.generation(rp), "traits": names}
		}}
	}
	aggregates := func(rp int) step {
		return step{method: "PUT", path: "/resource_providers/" + id(rp) + "/aggregates", body: func(w *walk) any {
			return doc{"resource_provider_generation": w.generation(rp), "aggregates": []string{id(inPool)}}
		}}
	}
	provider := func(rp int, parent any) step {
		return step{method: "POST", path: "/resource_providers", body: body(doc{"uuid": id(rp), "name": fmt.Sprintf("p%d", rp), "parent_provider_uuid": parent})}
	}
	return []step{
		provider(host, nil), provider(cell0, id(host)), provider(cell1, id(host)), provider(pool, nil),
		{method: "PUT", path: "/traits/CUSTOM_ROUND"},
		inventories(host, "PCPU"), inventories(cell0, pc.ClassVCPU, pc.ClassMemoryMB), inventories(cell1, pc.ClassVCPU, pc.ClassMemoryMB),
		inventories(pool, pc.ClassDiskGB),
		traits(host, "COMPUTE_NODE"), traits(cell0, "HW_NUMA_ROOT", "CUSTOM_ROUND"), traits(cell1, "HW_NUMA_ROOT"), traits(pool, pc.TraitMiscSharesViaAggregate),
		aggregates(host), aggregates(pool),
		{method: "PUT", path: "/allocations/" + id(890), body: body(doc{"allocations": doc{id(cell0): doc{"resources": doc{"VCPU": 3}}, id(pool): doc{"resources": doc{"DISK_GB": 5}}},
			"project_id": "p", "user_id": "u", "consumer_generation": nil, "consumer_type": "INSTANCE"})},
		{method: "PUT", path: "/allocations/" + id(891), body: body(doc{"allocations": doc{id(cell1): doc{"resources": doc{"VCPU": 4}}},
			"project_id": "p", "user_id": "u2", "consumer_generation": nil, "consumer_type": "MIGRATION"})},
	}
}

// readSteps is every query, by what it uses.
func readSteps() []step {
	rp := "/resource_providers/" + id(cell0)
	var out []step
	get := func(path string, changes ...int) {
		out = append(out, step{method: "GET", path: path, changes: changes})
	}
	get("/")
	get("/resource_classes", 2)
	get("/resource_classes/VCPU", 2)
	get("/resource_classes/CUSTOM_NONE", 2)
	get("/resource_providers", 1, 6, 11, 14, 15)
	get("/resource_providers?name=p2", 14)
	get("/resource_providers?uuid="+id(cell0), 14)
	get("/resource_providers?member_of="+id(inPool), 3)
	get("/resource_providers?member_of=in:"+id(inPool)+","+id(elsewhere), 3)
	get("/resource_providers?member_of="+id(inPool)+"&member_of=in:"+id(inPool)+","+id(elsewhere), 3, 24)
	get("/resource_providers?member_of=!"+id(inPool), 3, 32)
	get("/resource_providers?member_of=!in:"+id(inPool)+","+id(elsewhere), 3, 32)
	get("/resource_providers?resources=VCPU:1,MEMORY_MB:2", 4)
	get("/resource_providers?in_tree="+id(cell1), 14)
	get("/resource_providers?required=HW_NUMA_ROOT,CUSTOM_ROUND", 18)
	get("/resource_providers?required=!CUSTOM_ROUND", 18, 22)
	get("/resource_providers?required=in:COMPUTE_NODE,CUSTOM_ROUND", 18, 39)
	get("/resource_providers?required=HW_NUMA_ROOT&required=CUSTOM_ROUND", 18, 39)
	get(rp, 1, 6, 11, 14, 15)
	get(rp+"/inventories", 15)
	get(rp+"/inventories/VCPU", 15)
	get(rp+"/usages", 15)
	get(rp+"/aggregates", 1, 19)
	get(rp+"/allocations", 15)
	get(rp+"/traits", 6)
	get("/traits", 6)
	get("/traits?name=startswith:CUSTOM_&associated=true", 6)
	get("/traits?name=in:HW_NUMA_ROOT,CUSTOM_NONE", 6)
	get("/traits?associated=false&name=startswith:CUSTOM_", 6)
	get("/traits/CUSTOM_ROUND", 6)
	get("/traits/CUSTOM_NONE", 6)
	get("/allocations/"+id(890), 12, 28, 38)
	get("/allocations/"+id(899), 12, 28, 38)
	get("/usages?project_id=p", 9, 38)
	get("/usages?project_id=p&user_id=u", 9, 38)
	get("/usages?project_id=p&consumer_type=INSTANCE", 9, 38)
	get("/usages?project_id=p&consumer_type=all", 9, 38)
	get("/usages?project_id=nobody", 9, 38)
	get("/usages", 9)
	candidates := func(query string, changes ...int) {
		get("/allocation_candidates?"+query, append(changes, 10, 12, 17, 27, 29, 34)...)
	}
	candidates("resources=VCPU:1")
	candidates("resources=VCPU:1,DISK_GB:1")
	candidates("resources=VCPU:1&limit=1", 16)
	candidates("resources=VCPU:1&required=CUSTOM_ROUND")
	candidates("resources=VCPU:1&required=!CUSTOM_ROUND", 22)
	candidates("resources=VCPU:1&required=in:CUSTOM_ROUND,COMPUTE_NODE", 39)
	candidates("resources=VCPU:1&required=HW_NUMA_ROOT&required=CUSTOM_ROUND", 39)
	candidates("resources=VCPU:1&member_of="+id(inPool), 21)
	candidates("resources=VCPU:1&member_of=!"+id(inPool), 21, 32)
	candidates("resources=VCPU:1&member_of="+id(inPool)+"&member_of=in:"+id(inPool)+","+id(elsewhere), 21, 24)
	candidates("resources=VCPU:1&in_tree="+id(cell1), 31)
	candidates("resources1=VCPU:1&resources2=VCPU:1&group_policy=isolate", 25)
	candidates("resources1=VCPU:1&required1=CUSTOM_ROUND&resources2=VCPU:1&group_policy=none", 25)
	candidates("resources=DISK_GB:1&resources1=VCPU:1&in_tree1="+id(cell0), 25, 31)
	candidates("resources1=VCPU:1&resources2=VCPU:1", 25)
	candidates("resources_A=VCPU:1&required_A=!CUSTOM_ROUND&group_policy=none", 33)
	candidates("resources=VCPU:1&root_required=COMPUTE_NODE,!CUSTOM_ROUND", 35)
	candidates("resources_A=VCPU:1&resources_B=MEMORY_MB:1&group_policy=none&same_subtree=_A,_B", 33, 36)
	candidates("resources_A=VCPU:1&required_B=HW_NUMA_ROOT&group_policy=none&same_subtree=_A,_B", 33, 36)
	return out
}
