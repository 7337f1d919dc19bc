package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/version"
	"berth/packaging"
)

// manCommand writes the manual; packages are built with it.
func (a *app) manCommand() *cobra.Command {
	date, release := "", version.Get().Version
	c := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual's pages into a folder (packages are built with it)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if date == "" {
				date, _, _ = strings.Cut(version.Get().Date, "T")
			} else if _, err := time.Parse(time.DateOnly, date); err != nil {
				return fmt.Errorf("--date %q: want a day, as 2026-01-31", date)
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			pages := manual{date: date, release: release}.pages(cmd.Root())
			for _, name := range slices.Sorted(maps.Keys(pages)) {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(pages[name]), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&date, "date", "", "`day` that the pages show (default: the commit's)")
	c.Flags().StringVar(&release, "release", release, "`version` that the pages show")
	return c
}

// manual makes pages in the language of man(7): one for berth, one for each of its
// commands with all that is below it, and one for the configuration file.
type manual struct{ date, release string }

func (m manual) pages(root *cobra.Command) map[string]string {
	pages := map[string]string{
		"berth.1":      m.overview(root),
		"berth.toml.5": m.configuration(packaging.Config),
	}
	for _, c := range shown(root) {
		pages["berth-"+c.Name()+".1"] = m.command(c)
	}
	return pages
}

// shown are the commands below one that people are told of.
func shown(c *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(c.Commands()), func(c *cobra.Command) bool {
		return c.Hidden || c.Name() == "help" || !c.IsAvailableCommand() && c.Long == ""
	})
}

// head begins a page. The language of references needs no table or equation, and no
// right margin that is even.
func (m manual) head(title, section, what string) string {
	return fmt.Sprintf(".TH %s %s %q %q %q\n.ad l\n.nh\n.SH NAME\n%s \\- %s\n", strings.ToUpper(roff(title)), section, m.date, "berth "+m.release, "Berth",
		roff(title), roff(strings.ToLower(what[:1])+what[1:]))
}

func (m manual) overview(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(m.head("berth", "1", root.Short))
	b.WriteString(".SH SYNOPSIS\n.B berth\n.I COMMAND\n[\\fIARGUMENT\\fR...] [\\fIOPTION\\fR...]\n.SH DESCRIPTION\n" + prose(root.Long))
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, ".SH %s\n", strings.ToUpper(roff(strings.TrimSuffix(g.Title, ":"))))
		for _, c := range shown(root) {
			if c.GroupID == g.ID {
				fmt.Fprintf(&b, ".TP\n.BR berth\\-%s (1)\n%s\n", roff(c.Name()), roff(c.Short))
			}
		}
	}
	b.WriteString(".SH OPTIONS\n" + flagTable(root.LocalNonPersistentFlags()) + ".PP\nOf every command:\n" + flagTable(root.PersistentFlags()))
	b.WriteString(".SH EXIT STATUS\n" + prose(exitCodesHelp))
	b.WriteString(".SH FILES\n")
	for _, f := range [][2]string{
		{"/etc/berth/berth.toml, /etc/berth/berth.toml.d/*.toml", "configuration; see berth.toml(5)"},
		{"/etc/berth/flavors.d/*.toml", "flavors"},
		{"/etc/berth/hooks.d/PHASE/NN-NAME", "operators' programs"},
		{"/etc/berth/pki/", "certificates and keys"},
		{"/etc/libvirt/hooks/qemu.d/50-berth", "libvirt's hook: no guest starts or arrives against the ledger"},
		{"/var/lib/berth/berth.db", "ledger and journal"},
		{"/run/berth/berth.sock", "the agent's local API; root and members of the group berth may use it"},
	} {
		fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(f[0]), roff(f[1]))
	}
	b.WriteString(".SH SEE ALSO\n.BR berth.toml (5),\n.BR virsh (1),\n.BR libvirtd (8)\n")
	return b.String()
}

// command is the page of one command and of those below it.
func (m manual) command(c *cobra.Command) string {
	var b strings.Builder
	b.WriteString(m.head("berth-"+c.Name(), "1", c.Short))
	b.WriteString(".SH SYNOPSIS\n.nf\n")
	all := below(c)
	for _, one := range all {
		for use := range strings.SplitSeq(synopsis(one), " | berth ") {
			b.WriteString(roff("berth "+strings.TrimPrefix(use, "berth ")) + "\n")
		}
	}
	b.WriteString(".fi\n.SH DESCRIPTION\n" + explained(c))
	if c.LocalFlags().HasAvailableFlags() {
		b.WriteString(".SH OPTIONS\n" + flagTable(c.LocalFlags()))
	}
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n" + prose(c.Example))
	}
	if len(all) > 1 || all[0] != c {
		b.WriteString(".SH COMMANDS\n")
	}
	for _, one := range all {
		if one == c {
			continue
		}
		fmt.Fprintf(&b, ".SS %s\n%s", roff(synopsis(one)), explained(one))
		if one.LocalFlags().HasAvailableFlags() {
			b.WriteString(flagTable(one.LocalFlags()))
		}
		if one.Example != "" {
			b.WriteString(".PP\nFor example:\n" + prose(one.Example))
		}
	}
	b.WriteString(".SH SEE ALSO\n.BR berth (1),\n.BR berth.toml (5)\n.PP\nThe options of every command and the exit codes stand in berth(1).\n")
	return b.String()
}

// below are the commands that do something, from c on downwards, in the order of help.
func below(c *cobra.Command) []*cobra.Command {
	children := shown(c)
	if len(children) == 0 {
		return []*cobra.Command{c}
	}
	var out []*cobra.Command
	// A command that only holds others shows help when it is called: nothing to tell.
	if c.Use != c.Name() || c.LocalNonPersistentFlags().HasAvailableFlags() {
		out = append(out, c)
	}
	for _, child := range children {
		out = append(out, below(child)...)
	}
	return out
}

// synopsis is how a command is called.
func synopsis(c *cobra.Command) string {
	line := c.CommandPath() + strings.TrimPrefix(c.Use, c.Name())
	if c.LocalFlags().HasAvailableFlags() && !strings.Contains(c.Use, "--") {
		line += " [OPTION...]"
	}
	return line
}

func explained(c *cobra.Command) string {
	if c.Long == "" {
		return roff(c.Short) + ".\n"
	}
	return prose(c.Long)
}

func flagTable(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR", roff(name))
		if value != "" {
			fmt.Fprintf(&b, " \\fI%s\\fR", roff(value))
		}
		usage = strings.TrimSpace(usage)
		if !slices.Contains([]string{"", "false", "[]", "0", "0s"}, f.DefValue) && !strings.Contains(usage, "(default") {
			usage += " (default: " + f.DefValue + ")"
		}
		b.WriteString("\n" + roff(usage) + "\n")
	})
	return b.String()
}

// heading is the first line of a table in the configuration.
var heading = regexp.MustCompile(`^\[+([^\]]+)\]+$`)

// configuration shows the sample, which says everything of every key, table by table.
func (m manual) configuration(sample string) string {
	var b strings.Builder
	b.WriteString(m.head("berth.toml", "5", "configuration of the agent of a KVM host"))
	intro, rest, _ := strings.Cut(sample, "\n\n")
	b.WriteString(".SH DESCRIPTION\n")
	for line := range strings.Lines(intro) {
		if line = strings.TrimSpace(strings.TrimPrefix(line, "#")); line == "" {
			b.WriteString(".PP\n")
		} else {
			b.WriteString(roff(line) + "\n")
		}
	}
	b.WriteString(".PP\n")
	open := false
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		if h := heading.FindStringSubmatch(line); h != nil {
			if open {
				b.WriteString(".fi\n")
			}
			fmt.Fprintf(&b, ".SH %s\n.nf\n", roff("["+h[1]+"]"))
			open = true
		} else if open {
			b.WriteString(roff(line) + "\n")
		}
	}
	if open {
		b.WriteString(".fi\n")
	}
	b.WriteString(".SH SEE ALSO\n.BR berth (1),\n.BR berth\\-config (1)\n")
	return b.String()
}

// prose sets help texts: what is indented or looks like a table stays as it is, all
// else becomes paragraphs.
func prose(text string) string {
	var b strings.Builder
	kept := false
	keep := func(on bool) {
		if on == kept {
			return
		}
		kept = on
		b.WriteString(map[bool]string{true: ".PP\n.nf\n", false: ".fi\n.PP\n"}[on])
	}
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.TrimSpace(line) == "" && !kept:
			b.WriteString(".PP\n")
		case strings.TrimSpace(line) == "":
			b.WriteString("\n")
		default:
			keep(strings.HasPrefix(line, " "))
			b.WriteString(roff(line) + "\n")
		}
	}
	keep(false)
	return strings.ReplaceAll(b.String(), ".PP\n.PP\n", ".PP\n")
}

// special are characters that roff gives another meaning, or another look.
var special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", "\\`", "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`)

// roff is text that stands for itself in a page.
func roff(text string) string {
	text = special.Replace(text)
	if strings.HasPrefix(text, ".") {
		return `\&` + text
	}
	return text
}
