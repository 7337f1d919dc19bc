package providerconfig_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/agent/inventory/providerconfig"
	"berth/placementclient"
)

const good = `meta:
  schema_version: '1.0'
providers:
  - identification:
      uuid: $COMPUTE_NODE
    inventories:
      additional:
        - CUSTOM_LICENSE:
            total: 4
            reserved: 1
            min_unit: 1
            max_unit: 2
            step_size: 1
            allocation_ratio: 2.5
          CUSTOM_SEAT: {total: 7}
        - CUSTOM_DESK: {total: 1}
    traits:
      additional:
        - CUSTOM_RACK_7
        - CUSTOM_RACK_7
  - identification: {name: compute1_NUMA0}
    traits:
      additional: [CUSTOM_NEAR]
  - identification: {uuid: 5213B75D-9260-42A6-B236-F39B0FD10561}
    traits: {additional: [CUSTOM_FAR]}
`

func TestParse_GivesWhatAFileAdds(t *testing.T) {
	got, err := providerconfig.Parse("a.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	want := providerconfig.File{Providers: []inventory.ProviderConfig{
		{
			Where: "a.yaml:4", UUID: inventory.ComputeNode, Traits: []string{"CUSTOM_RACK_7"},
			Inventories: map[string]placementclient.Inventory{
				"CUSTOM_LICENSE": {Total: 4, Reserved: 1, MinUnit: 1, MaxUnit: 2, StepSize: 1, AllocationRatio: 2.5},
				"CUSTOM_SEAT":    {Total: 7},
				"CUSTOM_DESK":    {Total: 1},
			},
		},
		{Where: "a.yaml:21", Name: "compute1_NUMA0", Traits: []string{"CUSTOM_NEAR"}, Inventories: map[string]placementclient.Inventory{}},
		{Where: "a.yaml:24", UUID: "5213b75d-9260-42a6-b236-f39b0fd10561", Traits: []string{"CUSTOM_FAR"}, Inventories: map[string]placementclient.Inventory{}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_NamesEveryFault(t *testing.T) {
	provider := func(rest string) string {
		return "meta: {schema_version: '1.0'}\nproviders:\n- identification: {name: a}\n" + rest
	}
	class := func(fields string) string {
		return provider("  inventories:\n    additional:\n    - CUSTOM_A: " + fields + "\n")
	}
	for _, tt := range []struct {
		name, text string
		want       []string // in the order of the lines
	}{
		{"nothing", "", []string{"f.yaml: it is empty"}},
		{"no YAML", "meta: [", []string{"f.yaml: yaml: line 1"}},
		{"two documents", "meta: {schema_version: '1.0'}\n---\na: b\n", []string{"f.yaml:2: a second document"}},
		{"no mapping", "- a\n", []string{"f.yaml:1: the file: a list, want a mapping"}},
		{"no meta", "providers: []\n", []string{"f.yaml:1: meta: missing"}},
		{"no version", "meta: {}\n", []string{"f.yaml:1: meta.schema_version: missing"}},
		{"a version that is a number", "meta: {schema_version: 1.0}\n", []string{`f.yaml:1: meta.schema_version: "1.0", want a string`}},
		{"version 2", "meta:\n  schema_version: '2.0'\n", []string{`f.yaml:2: meta.schema_version: "2.0" is not supported`}},
		{"Nova's own key", "__source_file: x\nmeta: {schema_version: '1.0'}\n", []string{"f.yaml:1: __source_file: is kept"}},
		{"a key twice", "meta: {schema_version: '1.0'}\nmeta: {}\n", []string{"f.yaml:2: meta: stands twice"}},
		{"no identification", "meta: {schema_version: '1.0'}\nproviders:\n- traits: {additional: [CUSTOM_A]}\n", []string{"f.yaml:3: providers[0].identification: missing"}},
		{"uuid and name", "meta: {schema_version: '1.0'}\nproviders:\n- identification: {uuid: $COMPUTE_NODE, name: a}\n", []string{"f.yaml:3: providers[0].identification: 2 keys"}},
		{"no uuid", "meta: {schema_version: '1.0'}\nproviders:\n- identification: {uuid: compute1}\n", []string{`f.yaml:3: providers[0].identification.uuid: "compute1", want a uuid`}},
		{"an unknown identification", "meta: {schema_version: '1.0'}\nproviders:\n- identification: {serial: a}\n", []string{"f.yaml:3: providers[0].identification.serial: unknown key"}},
		{"a standard class", provider("  inventories: {additional: [{VCPU: {total: 1}}]}\n"), []string{`f.yaml:4: providers[0].inventories.additional[0].VCPU: "VCPU", want CUSTOM_`}},
		{"a standard trait", provider("  traits:\n    additional:\n    - COMPUTE_NODE\n"), []string{`f.yaml:6: providers[0].traits.additional[0]: "COMPUTE_NODE", want CUSTOM_`}},
		{"a class twice", provider("  inventories:\n    additional:\n    - CUSTOM_A: {total: 1}\n    - CUSTOM_A: {total: 1}\n"), []string{"f.yaml:7: providers[0].inventories.additional[1].CUSTOM_A: stands twice"}},
		{"no total", class("{reserved: 1}"), []string{"f.yaml:6: providers[0].inventories.additional[0].CUSTOM_A.total: missing"}},
		{"fields that are none", class("{total: 1.5, max_unit: 0, size: 1, allocation_ratio: -1}"), []string{
			`CUSTOM_A.total: "1.5", want a whole number from 1`, `CUSTOM_A.max_unit: "0", want a whole number from 1`, "CUSTOM_A.size: unknown key", `CUSTOM_A.allocation_ratio: "-1", want a number above 0`,
		}},
		{"more reserved than there is", class("{total: 1, reserved: 2}"), []string{"CUSTOM_A.reserved: 2, of a total of 1"}},
		{"no amounts", class("4"), []string{`CUSTOM_A: "4", want a mapping`}},
		{"a merge of no mapping", class("{<<: [4], total: 1}"), []string{`f.yaml:6: providers[0].inventories.additional[0].CUSTOM_A.<<: "4", want a mapping or a list`}},
		{"a key twice beside a merge", class("{<<: {total: 1}, total: 1, total: 2}"), []string{"CUSTOM_A.total: stands twice"}},
		{"a name of 201 characters", "meta: {schema_version: '1.0'}\nproviders:\n- identification: {name: " + strings.Repeat("é", 201) + "}\n", []string{"f.yaml:3: providers[0].identification.name: 201 characters, want 1 to 200"}},
		{"a merge of itself", "meta: &a\n  <<: *a\n", []string{"f.yaml"}},
		{"too large a file", "meta: {schema_version: '1.0'}\n" + strings.Repeat("# 4567890\n", providerconfig.MaxBytes/10), []string{"bytes, want at most 1048576"}},
		{"too many keys", "meta: {schema_version: '1.0'}\n" + repeated(17000, "k%x: \n"), []string{"f.yaml: more than 32768 values"}},
		{"aliases that multiply", "meta: {schema_version: '1.0'}\nc: &c {" + repeated(400, "CUSTOM_%X: {total: 1}, ") + "}\n" +
			"p: &p {identification: {name: a}, inventories: {additional: [" + strings.Repeat("*c, ", 1000) + "]}}\nproviders: [" + strings.Repeat("*p, ", 1000) + "]\n",
			[]string{"f.yaml: more than 32768 values"}},
		{"merges that multiply", "a: &a {k: v}\n" + "b: &b {<<: [" + strings.Repeat("*a, ", 1000) + "]}\n" + "c: &c {<<: [" + strings.Repeat("*b, ", 1000) + "]}\nmeta: *c\n", []string{"f.yaml: more than 32768 values"}},
		{"an endless alias", "meta: {schema_version: '1.0'}\nproviders: &a\n- identification: *a\n", []string{"f.yaml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := providerconfig.Parse("f.yaml", []byte(tt.text))
			if err == nil {
				t.Fatalf("it is taken: %+v", got)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tt.want) {
				t.Fatalf("%d faults, want %d:\n%v", len(lines), len(tt.want), err)
			}
			for i, want := range tt.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("fault %d is %q, want %q in it", i, lines[i], want)
				}
			}
		})
	}
}

func repeated(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestParse_CountsWhatItDoesNotName: a file that is wrong throughout makes no error
// as long as itself.
func TestParse_CountsWhatItDoesNotName(t *testing.T) {
	_, err := providerconfig.Parse("f.yaml", []byte("meta: {schema_version: '1.0'}\nproviders:\n"+strings.Repeat("- 4\n", 100)))
	if err == nil {
		t.Fatal("it is taken")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 21 || lines[20] != "f.yaml: and 80 more" || !strings.Contains(lines[19], "f.yaml:22: providers[19]") {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	got, err := providerconfig.Parse("f.yaml", []byte("meta: {schema_version: '1.0'}\n"+repeated(100, "key%d: 1\n")))
	if err != nil || len(got.Remarks) != 21 || got.Remarks[20].Message != "f.yaml: and 80 more" || got.Remarks[20].Change == "" {
		t.Errorf("%d remarks, %v", len(got.Remarks), err)
	}
}

// TestParse_FollowsAliasesAndMerges as PyYAML does: what stands wins over what is
// merged, and what is merged first over what is merged then. Lines may end as they
// do on other systems.
func TestParse_FollowsAliasesAndMerges(t *testing.T) {
	got, err := providerconfig.Parse("f.yaml", []byte(strings.ReplaceAll("\ufeff"+`# of all hosts
meta: {schema_version: "1.0"}
few: &few {total: 4, reserved: 1}
more: &more {total: 9, max_unit: 3}
providers:
- identification: {name: Grüße}
  inventories:
    additional:
    - CUSTOM_A: {<<: *few, total: 5}
    - CUSTOM_B: {<<: [*few, *more]}
    - CUSTOM_C: *more
`, "\n", "\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	want := []inventory.ProviderConfig{{Where: "f.yaml:6", Name: "Grüße", Inventories: map[string]placementclient.Inventory{
		"CUSTOM_A": {Total: 5, Reserved: 1}, "CUSTOM_B": {Total: 4, Reserved: 1, MaxUnit: 3}, "CUSTOM_C": {Total: 9, MaxUnit: 3},
	}}}
	if diff := cmp.Diff(want, got.Providers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_RemarksOnWhatMeansNothing(t *testing.T) {
	got, err := providerconfig.Parse("f.yaml", []byte(`meta: {schema_version: '1.7', note: x}
extra: 1
providers:
- identification: {name: a}
  trait: {additional: [CUSTOM_A]}
  traits: {forbidden: [CUSTOM_A]}
  inventories: {additional: []}
`))
	if err != nil || len(got.Providers) != 0 {
		t.Fatalf("%+v: %v", got.Providers, err)
	}
	var at []string
	for _, r := range got.Remarks {
		if r.Code != providerconfig.Ignored || r.Change == "" {
			t.Errorf("%+v", r)
		}
		at = append(at, r.Message)
	}
	want := []string{
		"f.yaml:2: unknown key extra", "f.yaml:1: schema_version 1.7 is read as 1.0: what it has beyond that is ignored", "f.yaml:1: unknown key meta.note",
		"f.yaml:5: unknown key providers[0].trait", "f.yaml:6: unknown key providers[0].traits.forbidden", "f.yaml:4: providers[0] adds neither inventories nor traits",
	}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := providerconfig.Parse("f.yaml", data)
		for _, p := range got.Providers {
			if err != nil || p.Where == "" || (p.UUID == "") == (p.Name == "") {
				t.Errorf("%+v: %v", p, err)
			}
			for class, inv := range p.Inventories {
				if !strings.HasPrefix(class, "CUSTOM_") || inv.Total < 1 || inv.Reserved > inv.Total {
					t.Errorf("%s %+v", class, inv)
				}
			}
		}
	})
}
