package architecture

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const witnessesPage = "../../docs/explanation/witnesses.md"

// irreversible maps each call that cannot be taken back to the heading under which the page must
// name its callers. A method is written with the type that declares it; for the files of disks,
// whose users declare their own interfaces, the package is left out.
var irreversible = map[string]string{
	"driver.Driver.Start":                 "Start or resume an instance",
	"driver.Driver.Resume":                "Start or resume an instance",
	"driver.Driver.Shutdown":              "Stop an instance",
	"driver.Driver.Destroy":               "Stop an instance",
	"driver.Driver.Undefine":              "Remove a definition",
	"Files.Remove":                        "Remove or replace a file",
	"Files.Replace":                       "Remove or replace a file",
	"Files.PutBack":                       "Remove or replace a file",
	"Files.DropKept":                      "Remove or replace a file",
	"driver.Driver.DiscardSavedMemory":    "Remove or replace a file",
	"Files.Unmake":                        "Remove or replace a file",
	"claims.Tracker.Abort":                "Release a claim",
	"claims.Tracker.Release":              "Release a claim",
	"claims.Tracker.Forget":               "Release a claim",
	"claims.Tracker.DeleteInstance":       "Release a claim",
	"claims.Tracker.Expire":               "Release a claim",
	"claims.Tracker.Own":                  "Give or take ownership",
	"claims.Tracker.ReleaseOwnership":     "Give or take ownership",
	"claims.Tracker.ReleaseOwnershipAs":   "Give or take ownership",
	"claims.Tracker.ReleaseHeldOwnership": "Give or take ownership",
	"claims.Tracker.AcceptToken":          "Give or take ownership",
	"claims.Tracker.Yield":                "Give or take ownership",
	"claims.Tracker.Retake":               "Give or take ownership",
	"fleet.Records.TakeOver":              "Give or take ownership",
	"fleet.Records.HandOver":              "Give or take ownership",
	"fleet.Records.DropInstance":          "Give or take ownership",
	"fleet.Records.DeclareDead":           "Declare a death",
	"fleet.Records.DeclareDeadByLease":    "Declare a death",
	"fleet.Records.Return":                "Declare a death",
	"fleet.Records.Forget":                "Declare a death",
}

// call is one function that does something irreversible: "agent/host.stop", and the heading.
type call struct{ by, act string }

// calls finds the callers in the packages that act: those of agent and migration. The package
// that implements the files of disks is the tool, not a caller.
func calls(t *testing.T) map[call]bool {
	t.Helper()
	const need = packages.NeedName | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedFiles |
		packages.NeedImports | packages.NeedExportFile
	loaded, err := packages.Load(&packages.Config{Mode: need, Dir: "../.."}, "./agent/...", "./migration/...")
	if err != nil {
		t.Fatalf("load the packages: %v", err)
	}
	found := map[call]bool{}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			t.Fatalf("load %s: %v", p.PkgPath, p.Errors)
		}
		path := strings.TrimPrefix(p.PkgPath, module+"/")
		if within(path, "agent/host/disks/...") {
			continue
		}
		for _, f := range p.Syntax {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(fn, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						if act, ok := actOf(p.TypesInfo.Uses[id]); ok {
							found[call{path + "." + fn.Name.Name, act}] = true
						}
					}
					return true
				})
			}
		}
	}
	return found
}

// actOf gives the heading of a method that is irreversible; false for everything else.
func actOf(o types.Object) (string, bool) {
	method, ok := o.(*types.Func)
	if !ok || method.Signature().Recv() == nil {
		return "", false
	}
	recv := strings.TrimPrefix(types.TypeString(method.Signature().Recv().Type(), nil), "*")
	name := strings.TrimPrefix(recv, module+"/") + "." + method.Name()
	if act, ok := irreversible[name]; ok {
		return act, true
	}
	if !strings.HasPrefix(recv, module+"/agent/host") {
		return "", false
	}
	act, ok := irreversible["Files."+method.Name()]
	return act, ok
}

var functionInCode = regexp.MustCompile("`((?:agent|migration)[a-z/]*\\.[A-Za-z]+)`")

// onPage reads which functions the page names under which heading, and complains of rows that
// leave a witness or the answer to a silent one open.
func onPage(page string) (named map[call]bool, open []string) {
	named = map[call]bool{}
	act := ""
	for line := range strings.SplitSeq(page, "\n") {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			act = heading
			continue
		}
		if !strings.HasPrefix(line, "|") || !functionInCode.MatchString(line) {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for _, m := range functionInCode.FindAllStringSubmatch(cells[0], -1) {
			named[call{m[1], act}] = true
		}
		if len(cells) != 3 || slices.ContainsFunc(cells, func(c string) bool { return len(strings.TrimSpace(c)) < 4 }) {
			open = append(open, fmt.Sprintf("%s: needs three cells, by whom, which witnesses, and what if one is silent: %s", act, line))
		}
	}
	return named, open
}

// apart compares what the code does with what the page says.
func apart(inCode, named map[call]bool) []string {
	var out []string
	order := func(a, b call) int { return strings.Compare(a.act+a.by, b.act+b.by) }
	for _, c := range slices.SortedFunc(maps.Keys(inCode), order) {
		if !named[c] {
			out = append(out, fmt.Sprintf("%s does this, and the page does not name it under %q with its witnesses", c.by, c.act))
		}
	}
	for _, c := range slices.SortedFunc(maps.Keys(named), order) {
		if !inCode[c] {
			out = append(out, fmt.Sprintf("the page names %s under %q, and it does no such thing", c.by, c.act))
		}
	}
	return out
}

// TestWitnesses_PageNamesEveryCaller holds docs/explanation/witnesses.md and the code together:
// whoever starts, stops or removes something stands there with its witnesses.
func TestWitnesses_PageNamesEveryCaller(t *testing.T) {
	page, err := os.ReadFile(witnessesPage)
	if err != nil {
		t.Fatal(err)
	}
	inCode := calls(t)
	for act := range maps.Values(irreversible) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(inCode)), func(c call) bool { return c.act == act }) {
			t.Errorf("no caller of %q was found: the test looks at nothing", act)
		}
	}
	named, open := onPage(string(page))
	for _, line := range slices.Concat(open, apart(inCode, named)) {
		t.Error(line)
	}
}

func TestWitnesses_TheTestCanFail(t *testing.T) {
	const page = "## Stop an instance\n\n| by | witnesses | silent |\n|---|---|---|\n| `agent/host.stop`, `agent/host.gone` | the operator | refused |\n| `agent/host.end` | |\n"
	named, open := onPage(page)
	if len(open) != 1 {
		t.Errorf("rows without witnesses: %q, want one", open)
	}
	got := apart(map[call]bool{{"agent/host.stop", "Stop an instance"}: true, {"agent/host.yield", "Stop an instance"}: true, {"agent/host.end", "Stop an instance"}: true}, named)
	if len(got) != 2 || !strings.Contains(got[0], "agent/host.yield does this") || !strings.Contains(got[1], "names agent/host.gone") {
		t.Errorf("got %q, want yield missing and gone stale", got)
	}
}
