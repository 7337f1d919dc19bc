package architecture

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// directly is a line of go.mod that requires a module for this one's own sake.
var directly = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`)

// TestDependencies_AreEachOnTheirPage: what is required says in docs/dependencies.md what it is for.
func TestDependencies_AreEachOnTheirPage(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	named := strings.FieldsFunc(string(page), func(r rune) bool { return strings.ContainsRune(" \n|,;`()", r) })
	required := directly.FindAllSubmatch(mod, -1)
	if len(required) < 20 {
		t.Errorf("only %d modules were read", len(required))
	}
	for _, m := range required {
		if !slices.Contains(named, string(m[1])) {
			t.Errorf("go.mod requires %s, and docs/dependencies.md does not name it", m[1])
		}
	}
}
