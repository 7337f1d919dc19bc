package docs

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPages_AreShort bounds the pages that everybody reads first, in words as wc counts them.
func TestPages_AreShort(t *testing.T) {
	for page, most := range map[string]int{"ARCHITECTURE.md": 1000, "README.md": 900} {
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

var (
	linkTextForm  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	itemForm      = regexp.MustCompile(`^ *(-|[0-9]+\.) +`)
	tableForm     = regexp.MustCompile(`(?m)^\|.*$`)
	tableRuleForm = regexp.MustCompile(`^[-| ]+$`)
	sentenceForm  = regexp.MustCompile(`[.!?]["\x60)*]*(\s|$)`)
)

// sentences returns a page's sentences, without blocks and headings. A list's item, and
// a table's cell, ends a sentence.
func sentences(text string) (out []string) {
	text = linkTextForm.ReplaceAllString(fencedForm.ReplaceAllString(text, "\n"), "$1")
	var parts []string
	joined := ""
	flush := func() { parts, joined = append(parts, joined), "" }
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", strings.HasPrefix(line, "#"), tableRuleForm.MatchString(line):
			flush()
		case strings.HasPrefix(line, "|"):
			flush()
			parts = append(parts, strings.Split(line, "|")...)
		case itemForm.MatchString(line):
			flush()
			joined = itemForm.ReplaceAllString(line, "")
		default:
			joined += " " + line
		}
	}
	flush()
	for _, part := range parts {
		for _, s := range sentenceForm.Split(part, -1) {
			if len(strings.Fields(s)) > 0 {
				out = append(out, strings.TrimSpace(s))
			}
		}
	}
	return out
}

// TestPages_HaveShortSentences bounds the sentences of pages that are written by the rules: at
// most 30 words. README.md's have fewer than 15 in the mean, headings, tables and blocks aside.
func TestPages_HaveShortSentences(t *testing.T) {
	pages, err := Read("../..", "README.md", "ARCHITECTURE.md", "docs/limits.md", "docs/glossary.md",
		"docs/explanation/agent.md", "docs/explanation/fit.md", "docs/explanation/libvirt.md", "docs/explanation/migrations.md",
		"docs/explanation/placement.md", "docs/explanation/state.md", "docs/explanation/testing.md",
		"docs/how-to/busy-instances.md", "docs/how-to/resize.md", "docs/how-to/share-nothing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		for _, s := range sentences(p.Text) {
			if n := len(strings.Fields(s)); n > 30 {
				t.Errorf("%s: a sentence of %d words, want at most 30: %s", p.Path, n, s)
			}
		}
		if p.Path != "README.md" {
			continue
		}
		words, list := 0, sentences(tableForm.ReplaceAllString(p.Text, ""))
		for _, s := range list {
			words += len(strings.Fields(s))
		}
		if len(list) < 20 || words >= 15*len(list) {
			t.Errorf("%s: %d words in %d sentences, want fewer than 15 in the mean", p.Path, words, len(list))
		}
	}
}

func TestSentences_AreToldApart(t *testing.T) {
	text := "# A heading. Not counted\n\nOne two\nthree. Four `a.b` five!\n\n- six [seven eight](to.md)\n- nine\n\n| ten | |\n|---|---|\n| eleven. Twelve | x |\n\n```sh\nnot. counted\n```\n"
	want := []string{"One two three", "Four `a.b` five", "six seven eight", "nine", "ten", "eleven", "Twelve", "x"}
	if got := sentences(text); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestREADME_NamesTheGoOfTheModule holds the version that readers are told to that of go.mod.
func TestREADME_NamesTheGoOfTheModule(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^go ([0-9]+\.[0-9]+)`).FindSubmatch(mod)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if m == nil {
		t.Fatal("go.mod names no version of Go")
	}
	if !strings.Contains(string(readme), "Berth needs Go "+string(m[1])+".") {
		t.Errorf("README.md does not say \"Berth needs Go %s.\", which go.mod asks for", m[1])
	}
}

var (
	codeForm = regexp.MustCompile("`([a-z]+(?:_[a-z0-9]+)+)`")
	pathForm = regexp.MustCompile("`([a-z]+/[A-Za-z0-9_./-]+\\.go)`")
)

// TestLimits_NamesCodesOfRefusals requires of each code on the page of limits that the program has it.
func TestLimits_NamesCodesOfRefusals(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]bool{}
	for _, m := range codeForm.FindAllSubmatch(page, -1) {
		codes[string(m[1])] = true
	}
	if len(codes) < 20 {
		t.Errorf("only %d codes were read", len(codes))
	}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for code := range codes {
			if bytes.Contains(text, []byte(`"`+code+`"`)) {
				delete(codes, code)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for code := range codes {
		t.Errorf("docs/limits.md: no refusal has the code %s", code)
	}
}

// TestPages_NameFilesThatAreThere requires of each path of a Go file between backticks that it exists.
func TestPages_NameFilesThatAreThere(t *testing.T) {
	pages, err := Read("../..", "README.md", "ARCHITECTURE.md", "docs")
	if err != nil {
		t.Fatal(err)
	}
	paths := 0
	for _, p := range pages {
		for _, m := range pathForm.FindAllStringSubmatch(p.Text, -1) {
			paths++
			if _, err := os.Stat("../../" + m[1]); err != nil {
				t.Errorf("%s: %s is not there", p.Path, m[1])
			}
		}
	}
	if paths < 40 {
		t.Errorf("only %d paths were read", paths)
	}
}
