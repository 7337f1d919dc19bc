package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
)

// liveFlags are options of a live migration as flags, from the one table of them.
type liveFlags struct {
	live migration.Options
	all  []options.Option
}

// newLiveFlags are those of the named flags, or all.
func newLiveFlags(names ...string) *liveFlags {
	x := &liveFlags{}
	for _, o := range options.All() {
		if len(names) == 0 || slices.Contains(names, o.Flag) {
			x.all = append(x.all, o)
		}
	}
	return x
}

// otherWords are flags by the words of other tools and of earlier releases.
var otherWords = map[string]string{
	"post-copy": "postcopy", "post-copy-bandwidth": "postcopy-bandwidth", "zero-copy": "zerocopy", "parallel": "parallel-connections", "compression": "comp-methods",
}

func (x *liveFlags) register(f *pflag.FlagSet) {
	for _, o := range x.all {
		flag := f.VarPF(&liveFlag{o, &x.live, ""}, o.Flag, "", helpOf(o))
		if o.Kind == options.KindSwitch {
			flag.NoOptDefVal = string(options.On)
		}
	}
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if other, known := otherWords[name]; known {
			name = other
		}
		return pflag.NormalizedName(name)
	})
}

// helpOf is an option's line of help. pflag takes what stands between backquotes for the name
// of a value.
func helpOf(o options.Option) string {
	help := strings.ReplaceAll(o.Help, "`", "")
	if len(o.Words) > 0 {
		var missing []string
		for _, word := range o.Words {
			if !strings.Contains(help, word) {
				missing = append(missing, word)
			}
		}
		if len(missing) > 0 {
			help += "; also " + strings.Join(missing, ", ")
		}
	}
	if o.Since != "" && !strings.Contains(help, "libvirt") {
		help += "; libvirt " + o.Since
	}
	return help
}

// liveFlag is one option as a flag's value.
type liveFlag struct {
	o    options.Option
	to   *migration.Options
	text string
}

// String implements pflag.Value.
func (v *liveFlag) String() string { return v.text }

// Set implements pflag.Value.
func (v *liveFlag) Set(text string) error {
	if err := options.Set(v.to, v.o.Flag, text); err != nil {
		for _, r := range fault.ReasonsOf(err) {
			return fmt.Errorf("want %s", r.Want) // pflag says which flag and which value
		}
		return err
	}
	v.text = text
	return nil
}

// Type implements pflag.Value: what stands for the value in help.
func (v *liveFlag) Type() string {
	switch v.o.Kind {
	case options.KindRate:
		return "RATE"
	case options.KindSize:
		return "SIZE"
	case options.KindDuration:
		return "TIME"
	case options.KindPercent:
		return "PERCENT"
	case options.KindNumber:
		return "N"
	case options.KindSwitch:
		return "on|off"
	case options.KindWord, options.KindWords:
		return "WORD"
	}
	return "TEXT"
}

// priorityFlag is a move's place among those that wait.
type priorityFlag struct{ p api.Priority }

// String implements pflag.Value.
func (v *priorityFlag) String() string {
	if v.p == 0 {
		return ""
	}
	return v.p.String()
}

// Set implements pflag.Value.
func (v *priorityFlag) Set(text string) error {
	p, err := api.ParsePriority(text)
	if err != nil {
		return fmt.Errorf("want %s, or a number from 1 to %d", strings.Join(api.PriorityWords(), ", "), migration.PriorityUrgent)
	}
	v.p = p
	return nil
}

// Type implements pflag.Value.
func (v *priorityFlag) Type() string { return "WORD" }

// flagGroup is some flags of a command under one title of its help.
type flagGroup struct {
	title string
	names []string
}

// groupedUsage prints a command's flags in groups, each in its order; what is in none comes
// last.
func groupedUsage(cmd *cobra.Command, groups []flagGroup) {
	cmd.SetUsageFunc(func(c *cobra.Command) error {
		w, width := c.OutOrStderr(), helpWidth()
		fmt.Fprintf(w, "Usage:\n  %s\n", c.UseLine())
		if c.HasExample() {
			fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
		}
		shown := map[string]bool{}
		section := func(title string, names []string) {
			var flags []*pflag.Flag
			for _, name := range names {
				if f := c.LocalFlags().Lookup(name); f != nil && !shown[f.Name] && !f.Hidden {
					shown[f.Name] = true
					flags = append(flags, f)
				}
			}
			if len(flags) > 0 {
				fmt.Fprintf(w, "\n%s:\n", title)
			}
			for _, f := range flags {
				flagHelp(w, f, width)
			}
		}
		for _, g := range groups {
			section(g.title, g.names)
		}
		var rest []string
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { rest = append(rest, f.Name) })
		section("Other", rest)
		if c.HasAvailableInheritedFlags() {
			fmt.Fprintf(w, "\nOf every command:\n%s", c.InheritedFlags().FlagUsagesWrapped(width))
		}
		return nil
	})
}

// flagHelp prints one flag with what it does beside it, or below where its name is long.
func flagHelp(w io.Writer, f *pflag.Flag, width int) {
	const beside = 30
	value, help := pflag.UnquoteUsage(f)
	name := "      --" + f.Name
	if f.Shorthand != "" {
		name = "  -" + f.Shorthand + ", --" + f.Name
	}
	switch {
	case f.NoOptDefVal == string(options.On):
		name += "[=" + value + "]"
	case value != "":
		name += " " + value
	}
	line := fmt.Sprintf("%-*s", beside, name)
	if len(name) > beside-2 {
		fmt.Fprintln(w, name)
		line = strings.Repeat(" ", beside)
	}
	at := beside
	for i, word := range strings.Fields(help) {
		switch {
		case i > 0 && at+1+utf8.RuneCountInString(word) > width:
			fmt.Fprintln(w, line)
			line, at = strings.Repeat(" ", beside), beside
		case i > 0:
			line, at = line+" ", at+1
		}
		line, at = line+word, at+utf8.RuneCountInString(word)
	}
	fmt.Fprintln(w, line)
}

// helpWidth is how wide help may be: the terminal, or 80 columns where nobody knows.
func helpWidth() int {
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n >= 60 {
		return n
	}
	if n, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && n >= 60 {
		return n
	}
	return 80
}
