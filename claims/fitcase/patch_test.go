package fitcase_test

import (
	"bytes"
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
		Value    json.RawMessage
	}
	if err := json.Unmarshal(text, &ops); err != nil {
		t.Fatal(err)
	}
	doc := decoded(t, line)
	for _, op := range ops {
		if op.Op != "remove" && op.Value == nil || !strings.HasPrefix(op.Path, "/") {
			t.Fatalf("incomplete operation in %s", text)
		}
		var value any
		if op.Op != "remove" {
			value = decoded(t, op.Value)
		}
		if doc, err = edit(doc, strings.Split(op.Path[1:], "/"), op.Op, value); err != nil {
			t.Fatalf("%v: %s %s in %s", err, op.Op, op.Path, text)
		}
	}
	return mustMarshal(t, doc)
}

func decoded(t testing.TB, text []byte) (v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// gone stands where something was removed.
type gone struct{}

func edit(node any, path []string, op string, value any) (any, error) {
	if len(path) == 0 {
		if op == "remove" {
			return gone{}, nil
		}
		return value, nil
	}
	key := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch node := node.(type) {
	case []any:
		i, err := strconv.Atoi(key)
		if key == "-" {
			i, err = len(node), nil
		}
		insert := len(path) == 1 && op == "add"
		if err != nil || i < 0 || i > len(node) || !insert && i == len(node) {
			return nil, fmt.Errorf("no entry %s", key)
		}
		if insert {
			return slices.Insert(node, i, value), nil
		}
		if node[i], err = edit(node[i], path[1:], op, value); node[i] == (gone{}) {
			return slices.Delete(node, i, i+1), err
		}
		return node, err
	case map[string]any:
		child, there := node[key]
		if !there && (len(path) > 1 || op != "add") {
			return nil, fmt.Errorf("no member %s", key)
		}
		changed, err := edit(child, path[1:], op, value)
		if node[key] = changed; changed == (gone{}) {
			delete(node, key)
		}
		return node, err
	}
	return nil, fmt.Errorf("%s stands in neither object nor list", key)
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
