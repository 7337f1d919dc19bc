package fitcase_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/claims/fit"
	"berth/claims/fit/fittest"
	"berth/claims/fitcase"
	"berth/topology"
)

// patched applies a JSON Patch as RFC 6902 has it, apart from the package's own
// way: everything on the text of the case and of the patch.
func patched(t testing.TB, line []byte, patch fitcase.Change) []byte {
	t.Helper()
	text, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	var ops []struct {
		Op, Path string
		Value    *json.RawMessage
	}
	if err := json.Unmarshal(text, &ops); err != nil {
		t.Fatal(err)
	}
	doc := json.RawMessage(line)
	for _, op := range ops {
		if op.Op != "remove" && op.Value == nil || !strings.HasPrefix(op.Path, "/") {
			t.Fatalf("incomplete operation in %s", text)
		}
		if doc, err = edit(doc, strings.Split(op.Path[1:], "/"), op.Op, op.Value); err != nil {
			t.Fatalf("%v: %s %s in %s", err, op.Op, op.Path, text)
		}
	}
	return doc
}

func edit(doc json.RawMessage, path []string, op string, value *json.RawMessage) (json.RawMessage, error) {
	if len(path) == 0 {
		if op == "remove" {
			return nil, nil
		}
		return *value, nil
	}
	key := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	var list []json.RawMessage
	if err := json.Unmarshal(doc, &list); err == nil && list != nil {
		i, err := strconv.Atoi(key)
		if key == "-" {
			i, err = len(list), nil
		}
		insert := len(path) == 1 && op == "add"
		if err != nil || i < 0 || i > len(list) || !insert && i == len(list) {
			return nil, fmt.Errorf("no entry %s", key)
		}
		if insert {
			return json.Marshal(slices.Insert(list, i, *value))
		}
		if list[i], err = edit(list[i], path[1:], op, value); err != nil {
			return nil, err
		}
		if list[i] == nil {
			list = slices.Delete(list, i, i+1)
		}
		return json.Marshal(list)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(doc, &object); err != nil || object == nil {
		return nil, fmt.Errorf("%s stands in neither object nor list", key)
	}
	child, there := object[key]
	if !there && (len(path) > 1 || op != "add") {
		return nil, fmt.Errorf("no member %s", key)
	}
	changed, err := edit(child, path[1:], op, value)
	if err != nil {
		return nil, err
	}
	object[key] = changed
	if changed == nil {
		delete(object, key)
	}
	return json.Marshal(object)
}

// checkChanges holds every change of an answer against a fresh reading of the
// patched case.
func checkChanges(t testing.TB, line []byte, a fitcase.Answer) {
	t.Helper()
	if a.Fits || a.Refused != "" {
		if len(a.Changes) > 0 {
			t.Errorf("%s: changes where none is needed", a.ID)
		}
		return
	}
	if len(a.Reasons) == 0 || len(a.Changes) == 0 || len(a.Changes) > 8 {
		t.Errorf("%s: %d reasons, %d changes\n%s", a.ID, len(a.Reasons), len(a.Changes), line)
	}
	for i, change := range a.Changes {
		if i > 0 && len(change) < len(a.Changes[i-1]) {
			t.Errorf("%s: change %d is smaller than the one before", a.ID, i)
		}
		c, err := fitcase.Read(patched(t, line, change))
		if err != nil {
			t.Errorf("%s: after change %d: %v", a.ID, i, err)
			continue
		}
		after := fitcase.Solver{}.Solve(c)
		if !after.Fits {
			t.Errorf("%s: change %d does not make it fit: %+v\n%v %s\n%s", a.ID, i, change, after.Reasons, after.Refused, line)
		}
		for _, words := range c.Words(change) {
			if words == "" {
				t.Errorf("%s: change %d has no words", a.ID, i)
			}
		}
	}
}

func TestSolve_EveryChangeOfTheSharedRefusalsIsEnough(t *testing.T) {
	refusals := 0
	for _, line := range sharedCases(t) {
		line = withoutAnswers(t, line)
		c, err := fitcase.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		a := fitcase.Solver{}.Solve(c)
		checkChanges(t, line, a)
		if len(a.Changes) > 0 {
			refusals++
		}
	}
	if refusals < 163 {
		t.Errorf("%d refusals with changes", refusals)
	}
}

// asCase writes a random request as a case; the guest's topology is spelled out
// in extra specs.
func asCase(t testing.TB, id string, r fit.Request, m *fit.Machine) []byte {
	t.Helper()
	f := topology.Flavor{Name: id, VCPUs: 2, MemoryMB: 2048, ExtraSpecs: map[string]string{}}
	if r.Topology != nil {
		specify(&f, r.Topology)
	}
	line, err := json.Marshal(fitcase.Document{
		ID: id, Host: fitcase.HostDocument(m), Limits: fitcase.LimitsDocument(m.Limits), Request: fitcase.RequestDocument(f, nil, r.PCI),
	})
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func specify(f *topology.Flavor, guest *topology.GuestTopology) {
	set := func(key, value string) {
		if value != "" {
			f.ExtraSpecs["hw:"+key] = value
		}
	}
	f.VCPUs, f.MemoryMB = 0, 0
	var dedicated topology.CPUSet
	for i, c := range guest.Cells {
		f.VCPUs += c.VCPUs().Len()
		f.MemoryMB += c.MemoryMB
		dedicated = dedicated.Union(c.DedicatedVCPUs)
		set(fmt.Sprintf("numa_cpus.%d", i), c.VCPUs().String())
		set(fmt.Sprintf("numa_mem.%d", i), strconv.FormatInt(c.MemoryMB, 10))
	}
	first := guest.Cells[0]
	set("numa_nodes", strconv.Itoa(len(guest.Cells)))
	set("cpu_policy", string(first.CPUPolicy))
	set("cpu_thread_policy", string(first.ThreadPolicy))
	set("emulator_threads_policy", string(guest.Emulator))
	if first.CPUPolicy == topology.CPUPolicyMixed {
		set("cpu_dedicated_mask", dedicated.String())
	}
	switch p := first.PageSize; p {
	case topology.PagesDefault:
	case topology.PagesSmall:
		set("mem_page_size", "small")
	case topology.PagesLarge:
		set("mem_page_size", "large")
	case topology.PagesAny:
		set("mem_page_size", "any")
	default:
		set("mem_page_size", strconv.FormatInt(int64(p)>>10, 10))
	}
}

func TestSolve_EveryChangeOfRandomRefusalsIsEnough(t *testing.T) {
	refusals, fits, slowest := 0, 0, time.Duration(0)
	for i := range requests(t, 300) {
		rng := rand.New(rand.NewPCG(7, uint64(i)))
		r, m := fittest.Random(rng, fittest.Classes[i%len(fittest.Classes)], 64)
		line := asCase(t, fmt.Sprintf("random-%d", i), r, m)
		c, err := fitcase.Read(line)
		if err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		start := time.Now()
		a := fitcase.Solver{}.Solve(c)
		slowest = max(slowest, time.Since(start))
		checkChanges(t, line, a)
		if a.Fits {
			fits++
		} else if a.Refused == "" {
			refusals++
		}
	}
	t.Logf("%d fit, %d do not; slowest answer with its changes %v", fits, refusals, slowest)
	if fits == 0 || refusals == 0 {
		t.Error("the requests are all of one kind")
	}
}
