package fitcase_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"berth/claims/fit/fittest"
	"berth/claims/fitcase"
)

const small = `{"id":"small","host":{"cells":[{"id":0,"memory_mb":1024,"shared_cpus":"0-1","dedicated_cpus":"0-1","siblings":["0-1"],` +
	`"mempages":[{"size_kb":4,"total":262144}]}],"pci_pools":[{"vendor_id":"8086","product_id":"10ED","dev_type":"type-VF","numa_node":0,"count":1}]},` +
	`"request":{"flavor":{"vcpus":1,"memory_mb":512,"extra_specs":{}},"image_props":{"hw_numa_nodes":1},` +
	`"pci_requests":[{"id":"vf","count":1,"spec":[{"vendor_id":8086,"product_id":"10ed"}],"numa_policy":"required"}]},` +
	`"limits":{"cpu_allocation_ratio":4,"ram_allocation_ratio":1.0,"network":null}}`

func TestRead_NamesTheCaseAndEveryField(t *testing.T) {
	for _, tt := range []struct{ old, new, want string }{
		{`"memory_mb":1024`, `"memory_mb":-1`, "/host/cells/0/memory_mb: -1"},
		{`"memory_mb":1024`, `"memory_mb":1e30`, "/host/cells/0/memory_mb: want a whole number"},
		{`"memory_mb":1024`, `"memory_mb":9223372036854775807`, "/host/cells/0/memory_mb: 9223372036854775807"},
		{`"memory_mb":1024,`, ``, "/host/cells/0/memory_mb: missing"},
		{`"memory_mb":512`, `"memory_mb":0`, "/request/flavor/memory_mb: 0"},
		{`"vcpus":1`, `"vcpus":"1"`, "/request/flavor/vcpus: want a whole number, got \"1\""},
		{`"size_kb":4`, `"size_kb":0`, "/host/cells/0/mempages/0/size_kb: 0"},
		{`"size_kb":4,"total":262144`, `"size_kb":1048576,"total":4398046511104`, "/host/cells/0/mempages: 4398046511104 pages"},
		{`{"size_kb":4,"total":262144}`, `{"size_kb":4,"total":1},{"size_kb":4,"total":1}`, "/host/cells/0/mempages: two pools"},
		{`"shared_cpus":"0-1"`, `"shared_cpus":"1-0"`, "/host/cells/0/shared_cpus: "},
		{`"shared_cpus":"0-1"`, `"shared_cpus":[0,1]`, "/host/cells/0/shared_cpus: want a list of CPUs as text, got a list"},
		{`"siblings":["0-1"]`, `"siblings":["0-1","1"]`, "/host/cells/0/siblings/1: cpu 1"},
		{`"pci_pools":[`, `"pci_pools":[7,`, "/host/pci_pools/0: want an object"},
		{`"count":1}]}`, `"count":-1}]}`, "/host/pci_pools/0/count: -1"},
		{`"count":1,"spec"`, `"count":9223372036854775807,"spec"`, "/request/pci_requests/0/count: 9223372036854775807"},
		{`"vcpus":1`, `"vcpus":9223372036854775807`, "/request/flavor/vcpus: 9223372036854775807"},
		{`"memory_mb":512`, `"memory_mb":9223372036854775807`, "/request/flavor/memory_mb: 9223372036854775807"},
		{`"numa_policy":"required"`, `"numa_policy":"near"`, "/request/pci_requests/0/numa_policy: near"},
		{`"spec":[{"vendor_id":8086,"product_id":"10ed"}]`, `"spec":[]`, "/request/pci_requests/0/spec: want at least one"},
		{`"image_props":{"hw_numa_nodes":1}`, `"image_props":{"hw_numa_nodes":[1]}`, "/request/image_props/hw_numa_nodes: want a text"},
		{`"cpu_allocation_ratio":4`, `"cpu_allocation_ratio":0`, "/limits/cpu_allocation_ratio: want a number above 0"},
		{`"host":{`, `"host":null,"h":{`, "/host: want an object, there is none"},
		{`"cells":[`, `"cells":[{"id":0,"memory_mb":1},`, "/host/cells/1/id: a second cell 0"},
		{`"cells":[`, `"cells":[{"id":1,"memory_mb":1,"shared_cpus":"1"},`, "/host/cells/1: cpu 1 stands in cell 1 too"},
	} {
		line := strings.Replace(small, tt.old, tt.new, 1)
		if line == small {
			t.Fatalf("%s stands nowhere", tt.old)
		}
		_, err := fitcase.Read([]byte(line))
		if err == nil || !strings.Contains(err.Error(), `"small"`) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s for %s: error %v, want it to name the case and %q", tt.new, tt.old, err, tt.want)
		}
	}
}

func TestRead_TakesWhatItHasNoUseFor(t *testing.T) {
	line := strings.Replace(small, `{"id":"small"`, `{"id":"small","nova":{"fits":false},"exact_fits":7,"class":[]`, 1)
	c, err := fitcase.Read([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	a := fitcase.Solver{}.Solve(c)
	if !a.Fits || len(a.Cells) != 1 || len(a.PCI) != 1 || a.PCI[0].Product != "10ED" {
		t.Errorf("answer %+v: attributes of devices compare in any case, and are answered as the pool spells them", a)
	}
}

func TestSolve_AnswersTheSameTwice(t *testing.T) {
	for i := range 30 {
		r, m := fittest.Random(rand.New(rand.NewPCG(3, uint64(i))), fittest.Classes[i%len(fittest.Classes)], 8)
		c, err := fitcase.Read(asCase(t, "twice", r, m))
		if err != nil {
			t.Fatal(err)
		}
		first, second := text(t, fitcase.Solver{}.Solve(c)), text(t, fitcase.Solver{}.Solve(c))
		if first != second {
			t.Errorf("two answers to one case:\n%s\n%s", first, second)
		}
	}
}

// TestSolve_HostsThatHaveNothing: there is a change also where nothing is there
// to be changed.
func TestSolve_HostsThatHaveNothing(t *testing.T) {
	for _, host := range []string{`{"cells":[]}`, `{"cells":[{"id":3,"memory_mb":0}]}`, `{"cells":[{"id":0,"memory_mb":0,"mempages":[{"size_kb":1048576,"total":0}]}],"pci_pools":null}`} {
		for _, specs := range []string{
			`{}`, `{"hw:numa_nodes":"1"}`, `{"hw:numa_nodes":"2"}`, `{"hw:cpu_policy":"dedicated","hw:cpu_thread_policy":"require","hw:emulator_threads_policy":"isolate"}`,
			`{"hw:cpu_policy":"dedicated","hw:cpu_thread_policy":"isolate","hw:mem_page_size":"large"}`, `{"hw:mem_page_size":"1GB"}`, `{"hw:mem_page_size":"any"}`,
			`{"hw:numa_nodes":"2","hw:cpu_policy":"mixed","hw:cpu_dedicated_mask":"2-3","hw:emulator_threads_policy":"isolate","hw:cpu_thread_policy":"isolate"}`,
		} {
			for _, limits := range []string{`null`, `{"cpu_allocation_ratio":0.5,"ram_allocation_ratio":0.9,"network":{"physnets":["a"],"tunneled":true}}`} {
				for _, requests := range []string{`[]`, `[{"id":"a","count":2,"numa_policy":"socket","spec":[{"vendor_id":"8086"}]},{"id":"b","count":1,"spec":[{"dev_type":"type-PF"}]}]`} {
					line := `{"id":"nothing","host":` + host + `,"request":{"flavor":{"vcpus":4,"memory_mb":1022,"extra_specs":` + specs + `},"pci_requests":` + requests + `},"limits":` + limits + `}`
					c, err := fitcase.Read([]byte(line))
					if err != nil {
						t.Fatal(err)
					}
					a := fitcase.Solver{}.Solve(c)
					if a.Fits || a.Refused != "" {
						t.Fatalf("fits %v, refused %q\n%s", a.Fits, a.Refused, line)
					}
					checkChanges(t, []byte(line), a)
				}
			}
		}
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	return string(mustMarshal(t, v))
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(`{"host":{"cells":[]},"request":{"flavor":{"vcpus":4096,"memory_mb":1073741824,"extra_specs":{"hw:numa_nodes":"128"}}}}`))
	f.Add([]byte(`{"host":{"cells":[{"id":0,"memory_mb":1,"shared_cpus":"0"}]},"request":{"flavor":{"vcpus":1,"memory_mb":1}},"limits":{"cpu_allocation_ratio":1e-9,"ram_allocation_ratio":1e-9}}`))
	for i := range 12 {
		r, m := fittest.Random(rand.New(rand.NewPCG(5, uint64(i))), fittest.Classes[i%len(fittest.Classes)], 4)
		f.Add(asCase(f, "seed", r, m))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := fitcase.Read(line)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "read case") {
				t.Errorf("error %q", err)
			}
			return
		}
		a := fitcase.Solver{}.Solve(c)
		if a.Fits == (len(a.Reasons) > 0 || a.Refused != "") {
			t.Errorf("fits %v, refused %q, %d reasons", a.Fits, a.Refused, len(a.Reasons))
		}
		for _, change := range a.Changes {
			c, err := fitcase.Read(patched(t, line, change))
			if err != nil || !(fitcase.Solver{}).Solve(c).Fits {
				t.Errorf("change %v does not do: %v", change, err)
			}
		}
	})
}
