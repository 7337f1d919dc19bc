package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"berth/internal/config"
	"berth/packaging"
)

// request is a line that roff takes for an order.
var request = regexp.MustCompile(`(?m)^\.(TH|SH|SS|TP|PP|nf|fi|ad l|nh|B|I|BR)\b`)

func TestManual_EveryCommandAndOptionHasItsPlace(t *testing.T) {
	t.Setenv("BERTH_CONNECT", "")
	root := (&app{}).root()
	pages := manual{date: "2026-01-31", release: "1.2.3"}.pages(root)
	var visit func(c *cobra.Command, page string)
	visit = func(c *cobra.Command, page string) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		if c.HasParent() && !c.Parent().HasParent() {
			page = "berth-" + c.Name() + ".1"
		}
		text, ok := pages[page]
		if !ok {
			t.Fatalf("%s has no page", c.CommandPath())
		}
		if c.HasParent() && !strings.Contains(text, roff(c.CommandPath())) {
			t.Errorf("%s does not show %s", page, c.CommandPath())
		}
		for _, word := range strings.Fields(flagTable(c.LocalNonPersistentFlags())) {
			if strings.HasPrefix(word, `\fB`) && !strings.Contains(text, word) {
				t.Errorf("%s does not show %s of %s", page, word, c.CommandPath())
			}
		}
		for _, child := range c.Commands() {
			visit(child, page)
		}
	}
	visit(root, "berth.1")
	for name, text := range pages {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !request.MatchString(line) {
				t.Errorf("%s has the line %q", name, line)
			}
		}
		if strings.Contains(text, "Hidden") || strings.Contains(text, `berth\-guard`) {
			t.Errorf("%s tells of a command that is not for people", name)
		}
	}
	for line := range strings.Lines(packaging.Config) {
		if line = strings.TrimSpace(line); heading.MatchString(line) && !strings.Contains(pages["berth.toml.5"], ".SH "+roff(line)+"\n") {
			t.Errorf("berth.toml(5) has no part %s", line)
		}
	}
}

func TestProse_KeepsWhatIsSetOutAndFillsTheRest(t *testing.T) {
	got := prose("One 'word'\nand .another.\n\n  berth migrate --live   a move\n\n  \\x\n.hidden at the edge\n")
	want := "One \\(aqword\\(aq\nand .another.\n.PP\n.nf\n  berth migrate \\-\\-live   a move\n\n  \\ex\n.fi\n.PP\n\\&.hidden at the edge\n"
	if got != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

func TestCompletion_OffersWhatUsageAsksFor(t *testing.T) {
	for use, want := range map[string][]string{
		"migrate INSTANCE [HOST]":                      {"INSTANCE", "HOST"},
		"adopt [INSTANCE...]":                          {"INSTANCE"},
		"show MIGRATION|INSTANCE":                      {"MIGRATION|INSTANCE"},
		"evacuate INSTANCE [HOST] | evacuate --host H": {"INSTANCE", "HOST"},
		"fit [FILE…]":                                  {"FILE"},
		"rebuild INSTANCE --image FILE":                {"INSTANCE"},
		"list":                                         nil,
	} {
		if got := arguments(use); !slices.Equal(got, want) {
			t.Errorf("%q asks for %q, want %q", use, got, want)
		}
	}
	// Nobody answers: nothing is offered, files neither, and no error disturbs the prompt.
	t.Setenv("BERTH_CONNECT", t.TempDir()+"/nobody.sock")
	var out, errs strings.Builder
	code := execute(t.Context(), parts{}, []string{"__complete", "--config", config.DefaultPath, "migrate", ""}, strings.NewReader(""), &out, &errs)
	if code != 0 || out.String() != ":4\n" {
		t.Errorf("code %d, offered %q, said %q", code, out.String(), errs.String())
	}
	out.Reset()
	if code := execute(t.Context(), parts{}, []string{"__complete", "status", "--output", ""}, strings.NewReader(""), &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "table\njson\n") {
		t.Errorf("code %d, offered %q for --output", code, out.String())
	}
}
