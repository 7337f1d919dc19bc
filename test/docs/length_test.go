package docs

import (
	"os"
	"strings"
	"testing"
)

// TestPages_AreShort bounds the pages that everybody reads first, in words as wc counts them.
func TestPages_AreShort(t *testing.T) {
	for page, most := range map[string]int{"ARCHITECTURE.md": 1000} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(strings.Fields(string(text))); n > most {
			t.Errorf("%s has %d words, want at most %d: move explanations to docs/explanation", page, n, most)
		}
	}
}

// TestDecisions_FollowOneForm requires Context, Decision and Consequences of each decision, in this order.
func TestDecisions_FollowOneForm(t *testing.T) {
	pages, err := Read("../..", "docs/decisions")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		rest := p.Text
		for _, heading := range []string{"\n## Context\n", "\n## Decision\n", "\n## Consequences\n"} {
			_, after, found := strings.Cut(rest, heading)
			if !found {
				t.Errorf("%s: no heading %q, or in another order", p.Path, strings.TrimSpace(heading))
				break
			}
			rest = after
		}
	}
	if len(pages) < 9 {
		t.Errorf("only %d decisions were read", len(pages))
	}
}
