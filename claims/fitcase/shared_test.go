package fitcase_test

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/claims/fit"
	"berth/claims/fit/fittest"
	"berth/claims/fitcase"
	"berth/claims/flavor"
	"berth/test/shared"
)

// sharedCases are the lines of the collection of cases beside the project.
func sharedCases(t testing.TB) [][]byte {
	t.Helper()
	f, err := os.Open(shared.Path(t, "numa-cases", "public.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines [][]byte
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		lines = append(lines, append([]byte(nil), in.Bytes()...))
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	if len(lines) < 300 {
		t.Fatalf("only %d cases", len(lines))
	}
	return lines
}

// oracle is what a shared case says of the right answer.
type oracle struct {
	ID          string `json:"id"`
	ExactFits   *bool  `json:"exact_fits"`
	Constraints struct {
		Error    string          `json:"error"`
		Topology json.RawMessage `json:"topology"`
		Realtime *string         `json:"realtime_vcpus"`
	} `json:"constraints"`
}

// withoutAnswers takes from a case what an answer must not need.
func withoutAnswers(t testing.TB, line []byte) []byte {
	t.Helper()
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(line, &doc); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"nova", "nova_zed", "exact_fits", "pair_fits", "constraints", "note", "class"} {
		delete(doc, k)
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSolve_AnswersTheSharedCases(t *testing.T) {
	solver := fitcase.Solver{Now: time.Now}
	for _, line := range sharedCases(t) {
		var want oracle
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		c, err := fitcase.Read(withoutAnswers(t, line))
		if err != nil {
			t.Errorf("%s: %v", want.ID, err)
			continue
		}
		began := time.Now()
		a := solver.Solve(c)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Logf("%s: took %v with its changes", want.ID, took)
		}
		if a.Undecided {
			t.Errorf("%s: undecided", want.ID)
		}
		if want.Constraints.Error != "" {
			if a.Refused == "" || a.Fits || !containsClass(a.Refused, want.Constraints.Error) {
				t.Errorf("%s: refused %q, want %s", want.ID, a.Refused, want.Constraints.Error)
			}
			continue
		}
		if a.Refused != "" {
			t.Errorf("%s: refused: %s", want.ID, a.Refused)
			continue
		}
		var topology any
		if err := json.Unmarshal(want.Constraints.Topology, &topology); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(topology, roundTrip(t, a.Topology)); diff != "" {
			t.Errorf("%s: topology (-want +got):\n%s", want.ID, diff)
		}
		if want.Constraints.Realtime != nil && *want.Constraints.Realtime != a.Realtime {
			t.Errorf("%s: realtime vCPUs %q, want %q", want.ID, a.Realtime, *want.Constraints.Realtime)
		}
		if want.ExactFits != nil && *want.ExactFits != a.Fits {
			t.Errorf("%s: fits %v, want %v: %v", want.ID, a.Fits, *want.ExactFits, a.Reasons)
		}
		if a.Fits {
			checkPlacement(t, c, a)
		}
		if !a.Fits && (len(a.Reasons) == 0 || len(a.Changes) == 0) {
			t.Errorf("%s: %d reasons, %d changes", want.ID, len(a.Reasons), len(a.Changes))
		}
	}
}

// checkPlacement holds the places of an answer, as it is printed, against the
// rules.
func checkPlacement(t *testing.T, c *fitcase.Case, a fitcase.Answer) {
	t.Helper()
	guest, err := flavor.Topology(c.Flavor, c.Image)
	if err != nil {
		t.Fatal(err)
	}
	r := fit.Request{Topology: guest, PCI: c.PCI}
	placement := fit.Place(r, &c.Machine).Placement
	if err := fittest.Check(&c.Machine, r, placement); err != nil {
		t.Errorf("%s: %v", a.ID, err)
	}
	for i, cell := range placement.Cells {
		got := a.Cells[i]
		same := got.GuestCell == i && got.HostCell == int(cell.HostCell) && got.Reserved == cell.Emulator.String() && len(got.Pinning) == len(cell.Pins)
		for _, pin := range cell.Pins {
			same = same && got.Pinning[strconv.Itoa(pin.VCPU)] == pin.CPU
		}
		if cell.PageSize > 0 {
			same = same && got.PageSize != nil && *got.PageSize<<10 == int64(cell.PageSize)
		}
		if !same {
			t.Errorf("%s: guest cell %d is printed as %+v, and was placed at %+v", a.ID, i, got, cell)
		}
	}
	devices := 0
	for _, u := range a.PCI {
		devices += u.Count
	}
	for _, q := range c.PCI {
		devices -= q.Count
	}
	if devices != 0 {
		t.Errorf("%s: %d devices too many", a.ID, devices)
	}
}

func containsClass(refused, class string) bool {
	return strings.Contains(refused, "("+class+")")
}

// roundTrip gives a value as a decoder sees it.
func roundTrip(t testing.TB, v any) any {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// requests is how many random requests are asked: n, or BERTH_FIT_REQUESTS.
func requests(t testing.TB, n int) int {
	t.Helper()
	if text := os.Getenv("BERTH_FIT_REQUESTS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func mustMarshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
