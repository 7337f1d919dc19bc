package hwdiscovery

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"berth/topology"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden hosts anew; read the difference before committing it")

// plant writes a text archive as a tree. A name that ends in @ is a symbolic
// link, and its text is the target.
func plant(t testing.TB, archive *txtar.Archive, dir string) {
	t.Helper()
	for _, f := range archive.Files {
		name := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if link, ok := strings.CutSuffix(name, "@"); ok {
			err = os.Symlink(strings.TrimSpace(string(f.Data)), link)
		} else {
			err = os.WriteFile(name, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fixture plants testdata/NAME.txtar and gives its root.
func fixture(t testing.TB, name string) string {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	dir := machineDir(t)
	plant(t, archive, dir)
	return dir
}

// golden prints a Host with one line for each field, and for each element of a
// list of structures, so that a difference can be read.
func golden(t testing.TB, h topology.Host) []byte {
	t.Helper()
	line := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var b bytes.Buffer
	v := reflect.ValueOf(h)
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if options == "omitempty" && v.Field(i).IsZero() {
			continue
		}
		sep := ",\n"
		if i == 0 {
			sep = "{\n"
		}
		b.WriteString(sep + `"` + name + `": `)
		field := v.Field(i)
		if field.Kind() != reflect.Slice || field.Type().Elem().Kind() != reflect.Struct || field.Len() == 0 {
			b.Write(line(field.Interface()))
			continue
		}
		for j := range field.Len() {
			if j == 0 {
				b.WriteString("[\n  ")
			} else {
				b.WriteString(",\n  ")
			}
			b.Write(line(field.Index(j).Interface()))
		}
		b.WriteString("\n]")
	}
	b.WriteString("\n}\n")
	return b.Bytes()
}

func fixtureNames(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixture: %v", err)
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".txtar"))
	}
	return names
}

// TestDiscover_ReadsEachFixtureAsItsGoldenHost: every fixture has a golden Host,
// or NAME.error with what the error must say.
func TestDiscover_ReadsEachFixtureAsItsGoldenHost(t *testing.T) {
	for _, name := range fixtureNames(t) {
		t.Run(name, func(t *testing.T) {
			got, err := Discover(fixture(t, name))
			if text, rerr := os.ReadFile(filepath.Join("testdata", name+".error")); rerr == nil {
				if want := strings.TrimSpace(string(text)); err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("error %v, want one that says %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".json")
			data := golden(t, got)
			if *update {
				if err := os.WriteFile(file, data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(data)); diff != "" {
				t.Errorf("host (-want +got):\n%s", diff)
			}
			// What JSON says must be all there is.
			var back topology.Host
			if err := json.Unmarshal(want, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(golden(t, back))); diff != "" {
				t.Errorf("after a turn through JSON (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDiscover_JSONHasTheDocumentedFields holds the fields that others read.
func TestDiscover_JSONHasTheDocumentedFields(t *testing.T) {
	h, err := Discover(fixture(t, "sriov"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Health  string
		Reasons []any
		Cells   []map[string]json.RawMessage
		Cores   [][]int
		PCI     []map[string]any
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Health != "ok" || got.Reasons == nil || len(got.Reasons) != 0 {
		t.Errorf("health %q, reasons %v: want ok and []", got.Health, got.Reasons)
	}
	want := map[string]string{"id": "1", "cpus": "[2,3,6,7]", "memory_bytes": "17179869184", "distances": "[21,10]",
		"pages": `{"1073741824":2,"2097152":256,"4096":3538944}`}
	for field, value := range want {
		if string(got.Cells[1][field]) != value {
			t.Errorf("cell 1: %s is %s, want %s", field, got.Cells[1][field], value)
		}
	}
	if diff := cmp.Diff([][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, got.Cores); diff != "" {
		t.Errorf("cores (-want +got):\n%s", diff)
	}
	for _, d := range got.PCI {
		physfn, ok := d["physfn"]
		switch address := d["address"]; {
		case !ok:
			t.Errorf("device %v: no physfn", address)
		case strings.HasPrefix(address.(string), "0000:3b:02.") && physfn != "0000:3b:00.0":
			t.Errorf("device %v: physfn %v", address, physfn)
		case !strings.HasPrefix(address.(string), "0000:3b:02.") && physfn != nil:
			t.Errorf("device %v: physfn %v, want null", address, physfn)
		}
	}
}
