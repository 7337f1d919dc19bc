package architecture

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// readTree returns the paths that the tree of ARCHITECTURE.md names: two spaces a level, then the folder's name.
func readTree(t *testing.T, text string) (paths []string) {
	t.Helper()
	_, after, found := strings.Cut(text, "## The tree\n")
	_, after, opened := strings.Cut(after, "```text\n")
	block, _, closed := strings.Cut(after, "```\n")
	if !found || !opened || !closed {
		t.Fatal("ARCHITECTURE.md has no tree: a heading \"The tree\" and a block fenced as text")
	}
	var above []string
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		if len(words) < 2 {
			t.Fatalf("tree: %q does not name a folder and say what it is", line)
		}
		level := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		if level > len(above) {
			t.Fatalf("tree: %q is indented by more than one level", line)
		}
		above = append(above[:level], words[0])
		paths = append(paths, strings.Join(above, "/"))
	}
	return paths
}

// differences compares the tree with the packages on disk. Below test, and for
// packages whose name ends in test, one row above them is enough.
func differences(tree, packages []string) (out []string) {
	for _, p := range packages {
		helper := strings.HasPrefix(p, "test/") || strings.HasSuffix(p, "test")
		if !helper && !slices.Contains(tree, p) {
			out = append(out, p+" is a package and not in the tree of ARCHITECTURE.md: give it a row")
		}
	}
	for _, row := range tree {
		if !slices.ContainsFunc(packages, func(p string) bool { return p == row || strings.HasPrefix(p, row+"/") }) {
			out = append(out, row+" is in the tree of ARCHITECTURE.md and no package: remove its row")
		}
	}
	return out
}

func TestTree_IsWhatIsOnDisk(t *testing.T) {
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for _, p := range list(t) {
		packages = append(packages, strings.TrimPrefix(p.ImportPath, module+"/"))
	}
	for _, d := range differences(readTree(t, string(text)), packages) {
		t.Error(d)
	}
}

func TestTree_TheTestCanFail(t *testing.T) {
	tree := readTree(t, "## The tree\n\n```text\nagent     the daemon\n  api     serves\ncmd       programs\n  berth   the binary\n```\n")
	packages := []string{"agent", "agent/api", "agent/api/apitest", "cmd/berth", "test/sim"}
	if d := differences(tree, packages); d != nil {
		t.Errorf("a true tree: %v", d)
	}
	for _, other := range [][]string{append(packages, "agent/web"), packages[:3]} {
		if differences(tree, other) == nil {
			t.Errorf("%v passes for %v", other, tree)
		}
	}
}
