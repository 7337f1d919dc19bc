package openstack

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/placement/placementtest"
)

// manyCommands runs `openstack` once for each line of arguments it reads, in one
// process, since to load the program takes longer than a command, and writes what
// each said as one line of JSON.
const manyCommands = `
import contextlib, io, json, sys
from openstackclient import shell
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = shell.main(json.loads(line))
        except SystemExit as e:
            code = e.code
    print(json.dumps({"Code": code, "Out": out.getvalue(), "Err": err.getvalue()}), flush=True)
`

// said is what one command did.
type said struct {
	Code int
	Out  string
	Err  string
}

// openStackCommands lets OpenStack's command line client run each line of words.
func openStackCommands(t *testing.T, s placementtest.Server, lines []string) []said {
	t.Helper()
	var in, stderr bytes.Buffer
	for _, line := range lines {
		args := []string{"--os-auth-type", "admin_token", "--os-endpoint", s.URL, "--os-token", "admin"}
		// The first word may be a microversion; otherwise the client negotiates.
		words := strings.Fields(line)
		if strings.HasPrefix(words[0], "1.") {
			args, words = append(args, "--os-placement-api-version", words[0]), words[1:]
		}
		b, err := json.Marshal(append(args, words...))
		must(t, err)
		in.Write(append(b, '\n'))
	}
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "-I", "-c", manyCommands)
	cmd.Dir, cmd.Env = t.TempDir(), environment("HOME="+t.TempDir())
	cmd.Stdin, cmd.Stderr = &in, &stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("run the client: %v\n%s", err, stderr.String())
	}
	var out []said
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var one said
		must(t, d.Decode(&one))
		out = append(out, one)
	}
	if len(out) != len(lines) {
		t.Fatalf("%d commands gave %d answers:\n%s%s", len(lines), len(out), b, stderr.String())
	}
	return out
}

// unordered is a text as the bag of its words: the real one names and lists sets
// in any order. The schema that a body failed, which it adds, is not ours to print.
func unordered(text string) []string {
	if before, after, found := strings.Cut(text, "  Failed validating"); found {
		_, status, _ := strings.Cut(after, "(HTTP")
		text = before + " (HTTP" + status
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,'\"()[]{}\n", r) })
	slices.Sort(words)
	return words
}

// TestCommandLine_OpenStacksWorksWithOurs: an operator's commands do and say the
// same with the embedded Placement and with OpenStack's.
func TestCommandLine_OpenStacksWorksWithOurs(t *testing.T) {
	t.Parallel()
	const (
		host, cell, pool, other = "11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002",
			"11111111-0000-4000-8000-000000000003", "11111111-0000-4000-8000-000000000004"
		guest, moved = "22222222-0000-4000-8000-000000000001", "22222222-0000-4000-8000-000000000002"
		aggregate    = "33333333-0000-4000-8000-000000000001"
		owner        = " --project-id p --user-id u --consumer-type "
		json         = " -f json"
	)
	var lines []string
	refused := map[int]bool{} // by their place in lines
	does := func(more ...string) { lines = append(lines, more...) }
	refuses := func(line string) {
		refused[len(lines)] = true
		lines = append(lines, line)
	}
	does(
		"resource class create CUSTOM_LICENSE",
		"resource class set CUSTOM_SLOT",
		"resource class list --sort-column name -f value",
		"resource class show CUSTOM_LICENSE"+json,
		"trait create CUSTOM_FAST",
		"trait list --name in:CUSTOM_FAST,HW_NUMA_ROOT"+json,
		"trait show CUSTOM_FAST"+json,
		"resource provider create host-1 --uuid "+host+json,
		"resource provider create host-1_cell --uuid "+cell+" --parent-provider "+host+json,
		"resource provider create pool --uuid "+pool+json,
		"resource provider create spare --uuid "+other+json,
		"resource provider list --sort-column name"+json,
		"resource provider set --name spare-2 --parent-provider "+host+" "+other+json,
		"resource provider list --in-tree "+cell+json,
		"resource provider inventory set "+cell+" --resource VCPU=16 --resource VCPU:allocation_ratio=2.0 --resource MEMORY_MB=4096 --resource MEMORY_MB:reserved=512"+json,
		"resource provider inventory set "+pool+" --resource DISK_GB=10"+json,
		"resource provider inventory class set "+pool+" DISK_GB --total 100 --max_unit 50"+json,
		"resource provider inventory set "+cell+" --amend --resource CUSTOM_LICENSE=3"+json,
		"resource provider inventory list "+cell+json,
		"resource provider inventory show "+cell+" VCPU"+json,
		"resource provider trait set "+cell+" --trait HW_NUMA_ROOT --trait CUSTOM_FAST"+json,
		"resource provider trait set "+pool+" --trait MISC_SHARES_VIA_AGGREGATE"+json,
		"resource provider trait list "+cell+json,
		"resource provider aggregate set "+host+" --aggregate "+aggregate+" --generation 0"+json,
		"resource provider aggregate set "+pool+" --aggregate "+aggregate+" --generation 3"+json,
		"resource provider aggregate list "+pool+json,
		"resource provider list --member-of "+aggregate+json,
		"resource provider list --required CUSTOM_FAST --resource VCPU=4"+json,
		"allocation candidate list --resource VCPU=2 --resource DISK_GB=20 --required HW_NUMA_ROOT"+json,
		"allocation candidate list --group 1 --resource VCPU=2 --required CUSTOM_FAST --group 2 --resource DISK_GB=20 --group-policy isolate"+json,
		"1.10 allocation candidate list --resource VCPU=2"+json,
		"1.39 resource provider allocation set "+guest+" --allocation rp="+cell+",VCPU=2,MEMORY_MB=1024 --allocation rp="+pool+",DISK_GB=20"+owner+"INSTANCE"+json,
		"1.39 resource provider allocation set "+moved+" --allocation rp="+cell+",VCPU=1"+owner+"MIGRATION"+json,
		"resource provider allocation show "+guest+json,
		"1.39 resource provider allocation show "+guest+json,
		"1.10 resource provider allocation show "+guest+json,
		"1.39 resource provider allocation unset "+guest+" --provider "+pool+json,
		"resource provider show "+cell+" --allocations"+json,
		"resource provider usage show "+cell+json,
		"resource usage show p"+json,
		"resource usage show p --user-id u"+json,
	)
	refuses("resource provider create host-1")
	refuses("resource provider show 44444444-0000-4000-8000-000000000001")
	refuses("resource provider delete " + cell)
	refuses("resource provider delete " + host)
	refuses("resource provider inventory delete " + cell + " --resource-class VCPU")
	refuses("resource provider trait set " + cell + " --trait CUSTOM_NONE")
	refuses("resource provider aggregate set " + host + " --aggregate " + aggregate + " --generation 0")
	refuses("1.39 resource provider allocation set " + moved + " --allocation rp=" + cell + ",VCPU=64" + owner + "MIGRATION")
	refuses("1.6 resource class set VCPU")
	refuses("resource class delete VCPU")
	refuses("trait delete CUSTOM_FAST")
	refuses("resource provider list --resource NOPE=1")
	refuses("allocation candidate list --resource VCPU=0")
	does(
		"resource provider allocation delete "+guest,
		"resource provider allocation delete "+moved,
		"resource provider inventory delete "+cell+" --resource-class VCPU",
		"resource provider inventory delete "+cell,
		"resource provider trait delete "+cell,
		"resource provider delete "+cell,
		"resource provider delete "+other,
		"resource provider delete "+host,
		"resource provider delete "+pool,
		"trait delete CUSTOM_FAST",
		"resource class delete CUSTOM_LICENSE",
		"resource provider list"+json,
	)
	theirs := placementtest.Server{URL: StartPlacement(t, PlacementOptions{}).URL}
	begun := time.Now()
	got := openStackCommands(t, embedded(t), lines)
	t.Logf("%d commands with ours after %v", len(lines), time.Since(begun))
	begun = time.Now()
	want := openStackCommands(t, theirs, lines)
	t.Logf("and with OpenStack's after %v", time.Since(begun))
	for i, line := range lines {
		if (want[i].Code != 0) != refused[i] {
			t.Errorf("with OpenStack's own, `openstack %s` exits %d: %s", line, want[i].Code, want[i].Err)
		}
		if got[i].Code != want[i].Code {
			t.Errorf("`openstack %s` exits %d with ours, %d with OpenStack's: %s", line, got[i].Code, want[i].Code, got[i].Err)
		}
		if d := cmp.Diff(unordered(want[i].Out), unordered(got[i].Out)); d != "" {
			t.Errorf("`openstack %s` prints (-other +ours)\n%s", line, d)
		}
		if d := cmp.Diff(unordered(want[i].Err), unordered(got[i].Err)); d != "" {
			t.Errorf("`openstack %s` complains (-other +ours)\n%s", line, d)
		}
	}
}
