package matrix

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver/drivertest"
)

var (
	passed     = drivertest.Result{Passed: true}
	failed     = drivertest.Result{}
	impossible = func(why string) drivertest.Result { return drivertest.Result{Impossible: why} }
)

// whole is a run in which every column passed properties, and what else is said.
func whole(properties []string, more ...Sheet) []Sheet {
	for _, c := range Columns() {
		results := map[string]drivertest.Result{}
		for _, p := range properties {
			results[p] = passed
		}
		more = append(more, Sheet{Hypervisor: c.Hypervisor, Binding: c.Binding, Daemon: "one", Results: results})
	}
	return more
}

// names are as many properties as must pass on the test driver.
func names() []string {
	var out []string
	for i := range leastOnTestDriver {
		out = append(out, "Property_"+string(rune('A'+i)))
	}
	return out
}

func TestJoin_PassesOrIsImpossibleInEveryCell(t *testing.T) {
	properties := names()
	m, err := Join(append(properties, "Restart_X"), whole(append(names(), "Restart_X"),
		Sheet{Hypervisor: "qemu", Binding: "rpc", Daemon: "two", Results: map[string]drivertest.Result{"Restart_X": impossible("no daemon")}}))
	if err != nil {
		t.Fatal(err)
	}
	want := Cell{Result: Pass, HeldOn: []string{"one"}, Except: map[string]string{"two": "no daemon"}}
	if d := cmp.Diff(want, m["Restart_X"]["qemu"]["rpc"]); d != "" {
		t.Errorf("cell (-want +got):\n%s", d)
	}
	if last := "26 properties × 6 columns: 156 pass, 0 impossible\n"; !strings.HasSuffix(m.Table(nil), last) {
		t.Errorf("table ends otherwise than with %q:\n%s", last, m.Table(nil))
	}
}

func TestJoin_FailsOn(t *testing.T) {
	change := func(column Column, f func(map[string]drivertest.Result)) func() []Sheet {
		return func() []Sheet {
			sheets := whole(names())
			for _, s := range sheets {
				if s.Hypervisor == column.Hypervisor && s.Binding == column.Binding {
					f(s.Results)
				}
			}
			return sheets
		}
	}
	for name, tt := range map[string]struct {
		sheets func() []Sheet
		want   string
	}{
		"an empty cell": {change(QEMUNative, func(r map[string]drivertest.Result) { delete(r, "Property_C") }), "qemu/native, Property_C: empty"},
		"a failed cell": {change(FakeRPC, func(r map[string]drivertest.Result) { r["Property_D"] = failed }), "fake/rpc, Property_D: failed on one"},
		"a failure beside a pass": {func() []Sheet {
			return whole(names(), Sheet{Hypervisor: "qemu", Binding: "rpc", Daemon: "two", Results: map[string]drivertest.Result{"Property_D": failed}})
		}, "qemu/rpc, Property_D: failed on two"},
		"an unknown property": {change(TestRPC, func(r map[string]drivertest.Result) { r["Property_Old"] = passed }), "Property_Old is no property"},
		"too few passes":      {change(TestNative, func(r map[string]drivertest.Result) { r["Property_E"] = impossible("x") }), "test/native: 24 properties pass"},
		"an unknown column":   {func() []Sheet { return whole(names(), Sheet{Hypervisor: "xen", Binding: "rpc"}) }, "no such column"},
		"no column at all":    {func() []Sheet { return nil }, "test/rpc, Property_A: empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Join(names(), tt.sheets())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestRecord_IsReadByItsRunAlone(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(FolderVariable, dir)
	t.Setenv(RunVariable, "yesterday")
	Record(t, FakeRPC, "old", map[string]drivertest.Result{"A": passed})
	t.Setenv(RunVariable, "today")
	want := Sheet{Run: "today", Hypervisor: "test", Binding: "native", Daemon: "libvirt 9.0.0, test:///default",
		Results: map[string]drivertest.Result{"A": passed, "B": impossible("it cannot"), "C": failed}}
	Record(t, TestNative, want.Daemon, want.Results)
	got, err := Read(dir, "today")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Sheet{want}, got); d != "" {
		t.Errorf("sheets (-want +got):\n%s", d)
	}
	t.Setenv(FolderVariable, "")
	Record(t, FakeRPC, "nowhere", nil)
	if files, _ := os.ReadDir(dir); len(files) != 2 {
		t.Errorf("%d files, want the two sheets", len(files))
	}
}
