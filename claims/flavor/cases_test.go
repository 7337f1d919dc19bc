package flavor

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/shared"
	"berth/topology"
)

// openCases opens the placement cases beside the checkout.
func openCases(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(shared.Path(t, "numa-cases", "public.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// caseTopology is a guest topology as the cases write it.
type caseTopology struct {
	Emulator *string    `json:"emulator_threads_policy"`
	Cells    []caseCell `json:"cells"`
}

type caseCell struct {
	ID        int     `json:"id"`
	Shared    string  `json:"shared_vcpus"`
	Dedicated string  `json:"dedicated_vcpus"`
	MemoryMB  int64   `json:"memory_mb"`
	PageSize  *int64  `json:"pagesize"`
	CPU       *string `json:"cpu_policy"`
	Thread    *string `json:"cpu_thread_policy"`
}

func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func inCaseWords(g *topology.GuestTopology) *caseTopology {
	if g == nil {
		return nil
	}
	out := &caseTopology{Emulator: orNull(string(g.Emulator))}
	for i, c := range g.Cells {
		size := int64(c.PageSize)
		if size > 0 {
			size /= 1024
		}
		out.Cells = append(out.Cells, caseCell{
			ID: i, Shared: c.SharedVCPUs.String(), Dedicated: c.DedicatedVCPUs.String(), MemoryMB: c.MemoryMB,
			PageSize: orNull(size), CPU: orNull(string(c.CPUPolicy)), Thread: orNull(string(c.ThreadPolicy)),
		})
	}
	return out
}

func TestTopology_AnswersEveryCaseLikeNova(t *testing.T) {
	lines := bufio.NewScanner(openCases(t))
	lines.Buffer(nil, 16<<20)
	n := 0
	for lines.Scan() {
		var c struct {
			ID      string `json:"id"`
			Request struct {
				Flavor topology.Flavor            `json:"flavor"`
				Image  map[string]json.RawMessage `json:"image_props"`
			} `json:"request"`
			Want struct {
				Error    string        `json:"error"`
				Topology *caseTopology `json:"topology"`
				Realtime *string       `json:"realtime_vcpus"`
			} `json:"constraints"`
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		n++
		image := Image{}
		for k, raw := range c.Request.Image {
			var text string
			if json.Unmarshal(raw, &text) != nil {
				text = string(raw)
			}
			image[k] = text
		}
		got, err := Topology(c.Request.Flavor, image)
		var errs Errors
		if c.Want.Error != "" {
			if !errors.As(err, &errs) || errs[0].Nova != c.Want.Error || got != nil {
				t.Errorf("%s: got %+v, %v; want the error %s", c.ID, got, err, c.Want.Error)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			continue
		}
		if diff := cmp.Diff(c.Want.Topology, inCaseWords(got)); diff != "" {
			t.Errorf("%s: topology (-want +got):\n%s", c.ID, diff)
		}
		var realtime *string
		if got != nil {
			realtime = orNull(got.Realtime.String())
		}
		if diff := cmp.Diff(c.Want.Realtime, realtime); diff != "" {
			t.Errorf("%s: realtime (-want +got):\n%s", c.ID, diff)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if n < 300 {
		t.Errorf("only %d cases", n)
	}
}
