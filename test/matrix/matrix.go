// Package matrix says, of each promise of package driver, on which hypervisor
// and through which binding it was held: passed, or declared impossible and why.
//
// The conformance suite runs in several processes, one for each kind of
// hypervisor and binding. Each writes a sheet of what it found (Record), and Join
// makes one matrix of a run's sheets: property × {fake, test, qemu} × {rpc,
// native}. It alone writes the folder that BERTH_MATRIX names.
//
// Invariants: a sheet of another run does not count; no cell is empty; a cell
// passed only where one daemon passed and none failed; what every daemon of a
// cell declares impossible is impossible, with the reasons.
package matrix

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth/driver/drivertest"
)

// Where a run keeps its sheets and what tells its sheets from another's, both
// from the environment. A test that reads them is run again in a new run, also
// where go test knows its answer.
const (
	FolderVariable = "BERTH_MATRIX"
	RunVariable    = "BERTH_MATRIX_RUN"
)

// Column is one kind of hypervisor through one binding.
type Column struct{ Hypervisor, Binding string }

// The fake has no binding: its answers stand in both columns.
var (
	FakeRPC    = Column{"fake", "rpc"}
	FakeNative = Column{"fake", "native"}
	TestRPC    = Column{"test", "rpc"}
	TestNative = Column{"test", "native"}
	QEMURPC    = Column{"qemu", "rpc"}
	QEMUNative = Column{"qemu", "native"}
)

// Columns are all, in the order of a table.
func Columns() []Column {
	return []Column{FakeRPC, FakeNative, TestRPC, TestNative, QEMURPC, QEMUNative}
}

// String gives "qemu/rpc".
func (c Column) String() string { return c.Hypervisor + "/" + c.Binding }

// Sheet is what one run of the suite found.
type Sheet struct {
	Run        string                       `json:"run"`
	Hypervisor string                       `json:"hypervisor"`
	Binding    string                       `json:"binding"`
	Daemon     string                       `json:"daemon"` // what answered, with its versions
	Results    map[string]drivertest.Result `json:"results"`
}

// Record writes a sheet, where this run keeps sheets.
func Record(t testing.TB, c Column, daemon string, results map[string]drivertest.Result) {
	t.Helper()
	dir := os.Getenv(FolderVariable)
	if dir == "" {
		return
	}
	if err := write(dir, Sheet{Run: os.Getenv(RunVariable), Hypervisor: c.Hypervisor, Binding: c.Binding, Daemon: daemon, Results: results}); err != nil {
		t.Errorf("record %s on %s: %v", c, daemon, err)
	}
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func write(dir string, s Sheet) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	name := unsafe.ReplaceAllString(s.Hypervisor+"-"+s.Binding+"-"+s.Daemon, "-") + ".json"
	tmp := filepath.Join(dir, "."+name)
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, name))
}

// Read gives the sheets of one run.
func Read(dir, run string) ([]Sheet, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Sheet
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var s Sheet
		if err := json.Unmarshal(b, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		if s.Run == run {
			out = append(out, s)
		}
	}
	return out, nil
}

// The results of a cell.
const (
	Pass       = "pass"
	Impossible = "impossible"
)

// Cell is one property in one column.
type Cell struct {
	Result string `json:"result"` // pass or impossible
	Why    string `json:"why,omitempty"`
	// HeldOn names the daemons that passed.
	HeldOn []string `json:"held_on,omitempty"`
	// Except names daemons that cannot, of a cell that passed on another: why.
	Except map[string]string `json:"except,omitempty"`
}

// Matrix is property → hypervisor → binding → cell.
type Matrix map[string]map[string]map[string]Cell

// leastOnTestDriver is how many properties must pass on libvirt's test driver,
// through either binding: below, somebody has declared it away.
const leastOnTestDriver = 25

// Join makes a matrix of sheets. The error has everything that is wrong with it:
// empty and failed cells, properties that the suite has not, too few passes. The
// matrix then has the cells that are right.
func Join(properties []string, sheets []Sheet) (Matrix, error) {
	var wrong []error
	slices.SortFunc(sheets, func(a, b Sheet) int { return cmp.Compare(a.Daemon, b.Daemon) })
	for _, s := range sheets {
		for _, name := range slices.Sorted(maps.Keys(s.Results)) {
			if !slices.Contains(properties, name) {
				wrong = append(wrong, fmt.Errorf("%s/%s on %s: %s is no property of the suite", s.Hypervisor, s.Binding, s.Daemon, name))
			}
		}
		known := func(c Column) bool { return c.Hypervisor == s.Hypervisor && c.Binding == s.Binding }
		if !slices.ContainsFunc(Columns(), known) {
			wrong = append(wrong, fmt.Errorf("%s/%s on %s: no such column", s.Hypervisor, s.Binding, s.Daemon))
		}
	}
	m := Matrix{}
	for _, name := range properties {
		m[name] = map[string]map[string]Cell{}
		for _, c := range Columns() {
			cell, err := join(name, c, sheets)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s, %s: %w", c, name, err))
				continue
			}
			if m[name][c.Hypervisor] == nil {
				m[name][c.Hypervisor] = map[string]Cell{}
			}
			m[name][c.Hypervisor][c.Binding] = cell
		}
	}
	for _, c := range []Column{TestRPC, TestNative} {
		if n := m.Count(c, Pass); n < leastOnTestDriver {
			wrong = append(wrong, fmt.Errorf("%s: %d properties pass, want %d or more", c, n, leastOnTestDriver))
		}
	}
	return m, errors.Join(wrong...)
}

func join(property string, c Column, sheets []Sheet) (Cell, error) {
	cell := Cell{Except: map[string]string{}}
	var failed []string
	for _, s := range sheets {
		r, looked := s.Results[property]
		switch {
		case s.Hypervisor != c.Hypervisor || s.Binding != c.Binding || !looked:
		case r.Impossible != "":
			cell.Except[s.Daemon] = r.Impossible
		case r.Passed:
			cell.HeldOn = append(cell.HeldOn, s.Daemon)
		default:
			failed = append(failed, s.Daemon)
		}
	}
	switch {
	case failed != nil:
		return cell, fmt.Errorf("failed on %s", strings.Join(failed, "; "))
	case cell.HeldOn != nil:
		cell.Result = Pass
		return cell, nil
	case len(cell.Except) == 0:
		return cell, errors.New("empty: no run of this column looked at it")
	}
	why := slices.Sorted(maps.Values(cell.Except))
	return Cell{Result: Impossible, Why: strings.Join(slices.Compact(why), "; ")}, nil
}

// Count is how many cells of a column have a result.
func (m Matrix) Count(c Column, result string) int {
	n := 0
	for _, row := range m {
		if row[c.Hypervisor][c.Binding].Result == result {
			n++
		}
	}
	return n
}

// Table is the matrix for people: counts and daemons of each column, and last a
// line that sums up.
func (m Matrix) Table(sheets []Sheet) string {
	var b strings.Builder
	pass, impossible := 0, 0
	fmt.Fprintf(&b, "%-12s %4s %10s  %s\n", "column", "pass", "impossible", "held on")
	for _, c := range Columns() {
		var daemons []string
		for _, s := range sheets {
			if s.Hypervisor == c.Hypervisor && s.Binding == c.Binding {
				daemons = append(daemons, fmt.Sprintf("%s (%d properties)", s.Daemon, len(s.Results)))
			}
		}
		slices.Sort(daemons)
		p, i := m.Count(c, Pass), m.Count(c, Impossible)
		fmt.Fprintf(&b, "%-12s %4d %10d  %s\n", c, p, i, strings.Join(daemons, ", "))
		pass, impossible = pass+p, impossible+i
	}
	fmt.Fprintf(&b, "%d properties × %d columns: %d pass, %d impossible\n", len(m), len(Columns()), pass, impossible)
	return b.String()
}
