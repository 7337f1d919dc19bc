package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/config"
	"berth/migration"
	"berth/test/docs"
	"berth/topology"
)

var update = flag.Bool("update", false, "write golden files and generated documents anew")

// golden holds text against a file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

func TestStatuses_DocumentIsTheCodesTable(t *testing.T) {
	golden(t, "../../docs/statuses.md", `# The statuses of migrations

One closed set, Nova's names. The tables are written from those that the conductor goes by (`+"`migration/transitions.go`"+`;
`+"`go test ./cmd/berth -run Statuses -update`"+` writes this page): a status that may not follow the one before is
logged as an error, and fails the conductor's tests. `+"`berth migration steps`"+` says which status each step shows.

The status of a migration never goes back while steps are undone: `+"`phase`"+` says that they are (`+"`undoing`"+`), and
`+"`outcome`"+` what it came to: completed, undone, refused, reverted, or in doubt while it cannot go on.

`+migration.StatusTables()+`
A guest's own status, in `+"`berth instance show`"+`, follows from it, in the words of Nova's API: `+"`MIGRATING`"+` on a live
migration, `+"`RESIZE`"+` on a cold migration or resize, `+"`VERIFY_RESIZE`"+` while that is finished or being confirmed,
`+"`REVERT_RESIZE`"+` while it is reverted, `+"`REBUILD`"+` on a rebuild; else `+"`ACTIVE`, `PAUSED` or `SHUTOFF`"+`.
`)
}

// root is the folder of the project, and pages are all of which commands and configuration are read.
const root = "../.."

var pages = []string{"README.md", "docs"}

func readPages(t *testing.T, names ...string) []docs.Page {
	t.Helper()
	list, err := docs.Read(root, names...)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatalf("there are no pages in %v", names)
	}
	return list
}

// others are the programs beside berth that the pages have people type.
var others = []string{
	"apt", "apt-get", "cd", "certutil", "chmod", "cp", "curl", "dnf", "echo", "go", "groupadd", "install", "iostat", "journalctl", "jq", "make", "mkdir", "mv", "openssl", "openstack", "pk12util", "printf", "promtool", "rm", "scp", "sed", "ssh",
	"systemctl", "systemd-sysusers", "systemd-tmpfiles", "tail", "touch", "virsh",
}

// targets are those of the Makefile.
func targets(t *testing.T) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, _, is := strings.Cut(line, ":"); is && name != "" && !strings.ContainsAny(name, " .\t@#") {
			out = append(out, name)
		}
	}
	return out
}

// TestDocs_EveryCommandIsOne reads each command of the pages with the command line itself: its
// name, its flags and their values, and how many arguments it takes. Nothing is carried out.
func TestDocs_EveryCommandIsOne(t *testing.T) {
	made := targets(t)
	commands := 0
	for _, page := range readPages(t, pages...) {
		for _, b := range page.Blocks {
			if b.Language() != "sh" {
				continue
			}
			list, err := b.Commands()
			if err != nil {
				t.Error(err)
				continue
			}
			for _, c := range list {
				words := slices.DeleteFunc(c.Words, func(w string) bool { return w == "..." })
				if words[0] == "ssh" && len(words) > 2 {
					words = words[2:]
				}
				switch {
				case words[0] == "berth", words[0] == "bin/berth": // as make build leaves it
					commands++
					if err := understood(words[1:]); err != nil {
						t.Errorf("%s: %s: %v", c.Where, strings.Join(words, " "), err)
					}
				case !slices.Contains(others, words[0]):
					t.Errorf("%s: %s is a program that the pages do not name elsewhere", c.Where, words[0])
				case words[0] == "make":
					for _, w := range words[1:] {
						if !strings.Contains(w, "=") && !slices.Contains(made, w) {
							t.Errorf("%s: make has no target %s", c.Where, w)
						}
					}
				}
			}
		}
	}
	if commands < 100 {
		t.Errorf("only %d commands of berth were read", commands)
	}
}

// TestDocs_FormsOfHooksAreCommands reads the forms of `berth external` in the page on hooks, which are
// several commands on a line with what may be left out: each name is a command, each flag its own.
func TestDocs_FormsOfHooksAreCommands(t *testing.T) {
	r := (&app{parts: linked(), in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}}).root()
	read := 0
	for _, page := range readPages(t, "docs/hooks.md") {
		for _, b := range page.Blocks {
			for line := range strings.Lines(b.Text) {
				form, is := strings.CutPrefix(line, "berth external ")
				if !is {
					continue
				}
				form, _, _ = strings.Cut(form, "   ") // where it is typed stands behind
				form, _, _ = strings.Cut(form, " <")
				var c *cobra.Command
				for _, word := range strings.Fields(strings.NewReplacer("|", " ", "[", " ", "]", " ").Replace(form)) {
					flag, isFlag := strings.CutPrefix(word, "--")
					switch {
					case isFlag && (c == nil || c.Flags().Lookup(flag) == nil && c.InheritedFlags().Lookup(flag) == nil):
						t.Errorf("%s: %s: no flag --%s", page.Path, form, flag)
					case !isFlag && strings.ToUpper(word) != word:
						var err error
						if c, _, err = r.Find([]string{"external", word}); err != nil || c.Name() != word {
							t.Errorf("%s: berth external %s is no command: %v", page.Path, word, err)
						}
						read++
					}
				}
			}
		}
	}
	if read < 10 {
		t.Errorf("only %d names were read", read)
	}
}

// TestDocs_EveryMentionIsOne reads what prose and tables name of the command line, and of make:
// the command, its flags, and no more arguments than it takes; not all that it needs.
func TestDocs_EveryMentionIsOne(t *testing.T) {
	made := targets(t)
	mentions := 0
	for _, page := range readPages(t, "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs") {
		for _, m := range page.Mentions("berth") {
			mentions++
			for _, words := range eitherWay(strings.Fields(m.Text)[1:]) {
				if err := named(words); err != nil {
					t.Errorf("%s: `%s`: %v", m.Where, m.Text, err)
				}
			}
		}
		for _, m := range page.Mentions("make") {
			for _, w := range strings.Fields(m.Text)[1:] {
				if !strings.Contains(w, "=") && !slices.Contains(made, w) {
					t.Errorf("%s: make has no target %s", m.Where, w)
				}
			}
		}
	}
	if mentions < 200 {
		t.Errorf("only %d mentions of berth were read", mentions)
	}
}

// eitherWay are the lines for which one with bars stands: `resize confirm|revert` for two.
func eitherWay(words []string) [][]string {
	lines := [][]string{nil}
	for _, word := range words {
		var longer [][]string
		for _, line := range lines {
			for either := range strings.SplitSeq(word, "|") {
				longer = append(longer, append(slices.Clone(line), either))
			}
		}
		lines = longer
	}
	return lines
}

// named says whether there is a command of these words, which has the flags that stand there and
// takes what follows it. Dots stand for what is left out.
func named(words []string) error {
	c := (&app{parts: linked(), in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}}).root()
	var args []string
	for i := 0; i < len(words); i++ {
		word := words[i]
		if word == "…" || word == "..." {
			continue
		}
		if strings.HasPrefix(word, "-") {
			name, _, valued := strings.Cut(word, "=")
			f := flagOf(c, name)
			if f == nil {
				return fmt.Errorf("%s has no flag %s", c.CommandPath(), name)
			}
			if !valued && f.NoOptDefVal == "" && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				i++
			}
			continue
		}
		at := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == word || sub.HasAlias(word) })
		switch {
		case at >= 0 && len(args) == 0:
			c = c.Commands()[at]
		case !c.HasAvailableSubCommands() || runsAlone(c):
			args = append(args, word)
		case word != strings.ToUpper(word): // COMMAND is any
			return fmt.Errorf("%s has no command %s", c.CommandPath(), word)
		}
	}
	err := c.ValidateArgs(args)
	for more := args; err != nil && len(more) < len(args)+3; {
		if more = append(more, "more"); c.ValidateArgs(more) == nil {
			return nil
		}
	}
	return err
}

// flagOf is a command's flag as it is typed, the global ones included.
func flagOf(c *cobra.Command, typed string) *pflag.Flag {
	c.InitDefaultHelpFlag()
	for _, set := range []*pflag.FlagSet{c.Flags(), c.InheritedFlags()} {
		f := set.Lookup(strings.TrimPrefix(typed, "--"))
		if len(typed) == 2 {
			f = set.ShorthandLookup(typed[1:])
		}
		if f != nil {
			return f
		}
	}
	return nil
}

// understood says whether the command line takes the words.
func understood(words []string) error {
	r := (&app{parts: linked(), in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}}).root()
	r.InitDefaultHelpCmd()
	c, rest, err := r.Find(words)
	if err != nil {
		return err
	}
	err = c.ParseFlags(rest)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	args := c.Flags().Args()
	if i := slices.Index(args, ""); i >= 0 {
		return fmt.Errorf("argument %d is empty", i+1)
	}
	for _, check := range []func() error{func() error { return c.ValidateArgs(args) }, c.ValidateRequiredFlags, c.ValidateFlagGroups} {
		if err := check(); err != nil {
			return err
		}
	}
	if c.HasAvailableSubCommands() && !runsAlone(c) {
		return fmt.Errorf("%s alone does nothing", c.CommandPath())
	}
	return nil
}

// runsAlone says of a command that holds others whether it does something by itself.
func runsAlone(c *cobra.Command) bool {
	return slices.Contains([]string{"placement", "resize"}, c.Name())
}

// TestDocs_ConfigurationIsRead reads each block of TOML as the agent would.
func TestDocs_ConfigurationIsRead(t *testing.T) {
	blocks := 0
	for _, page := range readPages(t, pages...) {
		for _, b := range page.Blocks {
			if b.Language() != "toml" || strings.HasPrefix(page.Path, "docs/reference/") {
				continue // the examples there are the sample's, which its own test reads
			}
			blocks++
			path := filepath.Join(t.TempDir(), "berth.toml")
			if err := os.WriteFile(path, []byte(b.Text), 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			if len(b.Info) > 1 && b.Info[1] == "flavor" {
				var f topology.Flavor
				if err = config.DecodeFile(path, &f); err == nil {
					err = f.Validate()
				}
			} else {
				_, err = config.Load(path)
			}
			if err != nil {
				t.Errorf("%s: %v", b.Where(), err)
			}
		}
	}
	if blocks < 10 {
		t.Errorf("only %d blocks were read", blocks)
	}
}

// TestDocs_LinksLeadSomewhere follows each link to a file, and to a heading of a page.
func TestDocs_LinksLeadSomewhere(t *testing.T) {
	list := readPages(t, "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs")
	byPath := map[string]docs.Page{}
	for _, p := range list {
		byPath[p.Path] = p
	}
	for _, p := range list {
		for _, l := range p.Links() {
			if _, err := os.Stat(filepath.Join(root, l.Target)); err != nil {
				t.Errorf("%s links to %s, which is not there", l.Page, l.Target)
				continue
			}
			if to, is := byPath[l.Target]; is && l.Anchor != "" && !slices.Contains(to.Anchors(), l.Anchor) {
				t.Errorf("%s links to %s#%s, and there is no such heading", l.Page, l.Target, l.Anchor)
			}
		}
	}
}

// TestDocs_EachBlockSaysWhatItIs requires a language of each block, so that none is left unread.
func TestDocs_EachBlockSaysWhatItIs(t *testing.T) {
	for _, page := range readPages(t, pages...) {
		for _, b := range page.Blocks {
			switch b.Language() {
			case "sh":
				if len(b.Info) > 1 && b.RunOn() != "host-a" && b.RunOn() != "host-b" {
					t.Errorf("%s: fenced as %q; want sh, or sh run HOST", b.Where(), strings.Join(b.Info, " "))
				}
			case "toml", "text", "json", "yaml", "ini", "dies":
			default:
				t.Errorf("%s: fenced as %q", b.Where(), strings.Join(b.Info, " "))
			}
		}
	}
}

// TestDocs_TheTestCanFail shows understood commands that nobody should type.
func TestDocs_TheTestCanFail(t *testing.T) {
	for _, line := range []string{
		"migrate", "migrate a b c", "migrate a --no-such-flag", "migrate a --max-downtime soon", "host lst", "host", "no-such-command", "instance show",
	} {
		if err := understood(strings.Fields(line)); err == nil {
			t.Errorf("berth %s is understood", line)
		}
	}
	for _, line := range []string{
		"migraton list", "migration lst", "migrate --no-such-flag", "host list host-a", "migrate a b c", "-x", "resize|migrat … --share-nothing", "migrate --cold|--ofline", "COMMAND --hlp",
	} {
		if !slices.ContainsFunc(eitherWay(strings.Fields(line)), func(words []string) bool { return named(words) != nil }) {
			t.Errorf("`berth %s` may stand in prose", line)
		}
	}
	for _, line := range []string{"migrate a", "host drain", "host drain --plan", "host list", "instance adopt --all", "host --help"} {
		if err := understood(strings.Fields(line)); err != nil {
			t.Errorf("berth %s: %v", line, err)
		}
	}
}
