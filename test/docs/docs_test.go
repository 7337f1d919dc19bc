package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = "# One page\n\n<!-- guests: web-1 db-1 -->\n<!-- domains: old-1 -->\n\n1. In a list:\n\n    ```sh run host-a\n" +
	"    berth plan web-1 \\\n        --json | jq .   # who\n    A=b berth status > /tmp/x && echo 'two words' \"three more words\"\n    ```\n\n" +
	"## A: heading, twice\n\n## A heading twice\n\n```toml flavor\n# no heading\n[not](a-link)\n```\n\n[one](other.md#there) [two](#one-page) [three](https://example.org/x)\n" +
	"\n| `berth drain\\|plan x` | `berth` |\n\nSome `code` and `berth\nstatus --json`, `berthed status`.\n"

func read(t *testing.T, text string) (Page, error) {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "page.md"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := Read(root, ".")
	if err != nil {
		return Page{}, err
	}
	return list[0], nil
}

func TestRead_TakesAPageApart(t *testing.T) {
	p, err := read(t, page)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Blocks) != 2 || p.Blocks[0].RunOn() != "host-a" || p.Blocks[1].RunOn() != "" || p.Blocks[1].Language() != "toml" || p.Blocks[0].Where() != "page.md:9" {
		t.Fatalf("blocks: %+v", p.Blocks)
	}
	commands, err := p.Blocks[0].Commands()
	if err != nil {
		t.Fatal(err)
	}
	want := []Command{
		{"page.md:9", []string{"berth", "plan", "web-1", "--json"}}, {"page.md:9", []string{"jq", "."}},
		{"page.md:11", []string{"berth", "status"}}, {"page.md:11", []string{"echo", "two words", "three more words"}},
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"one-page", "a-heading-twice", "a-heading-twice-1"}, p.Anchors()); diff != "" {
		t.Errorf("anchors (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Link{{"page.md", "other.md", "there"}, {"page.md", "page.md", "one-page"}}, p.Links()); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Mention{{"page.md:25", "berth drain|plan x"}, {"page.md:27", "berth status --json"}}, p.Mentions("berth")); diff != "" {
		t.Errorf("mentions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"web-1", "db-1"}, {"old-1"}}, [][]string{p.Guests, p.Domains}); diff != "" {
		t.Errorf("guests and domains (-want +got):\n%s", diff)
	}
}

func TestRead_RefusesWhatItCannotRead(t *testing.T) {
	if _, err := read(t, "```sh\nberth status\n"); err == nil || !strings.Contains(err.Error(), "page.md:2") {
		t.Errorf("a block without an end: %v", err)
	}
	for _, line := range []string{"for x in a; do echo $x; done", "echo $(berth status)", "echo 'no end", `echo "$HOME"`, "echo `date`", "echo a$b"} {
		p, err := read(t, "```sh\n"+line+"\n```\n")
		if err != nil {
			t.Fatal(err)
		}
		if c, err := p.Blocks[0].Commands(); err == nil {
			t.Errorf("%s: %v, want it refused", line, c)
		}
	}
}
