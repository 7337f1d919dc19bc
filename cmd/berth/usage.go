package main

import (
	"strings"

	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/internal/fault"
)

// codeUsage is the code of a fault of the command line itself.
const codeUsage = "usage"

// misused returns the error of a command line that cannot be carried out. No agent was
// asked. execute adds what to type.
func misused(format string, args ...any) error {
	return misusedAs("", format, args...)
}

// misusedAs is misused with the line to type, where the command's own usage line says less.
func misusedAs(line, format string, args ...any) error {
	return fault.Refuse(fault.Invalid, fault.New(fault.Invalid, format, args...).Error(), fault.Reason{Code: codeUsage, Message: "the command line is not understood", Change: line})
}

// withUsage adds what to type to an error of misused.
func withUsage(c *cobra.Command, err error) error {
	if !isMisuse(err) {
		return err
	}
	reason := fault.ReasonsOf(err)[0]
	line := reason.Change
	switch {
	case line != "":
	case c.Annotations[onlyHolds] != "":
		line = c.CommandPath() + " COMMAND"
	default:
		line = c.UseLine()
	}
	reason.Change = "usage: " + line + "; help: " + c.CommandPath() + " --help"
	return fault.Refuse(fault.Invalid, api.BodyOf(err).Error.Message, reason)
}

// isMisuse reports whether err is one of misused.
func isMisuse(err error) bool {
	reasons := fault.ReasonsOf(err)
	return len(reasons) == 1 && reasons[0].Code == codeUsage
}

// usageLines are what printError says below an error of misused; nil for another error.
func usageLines(reasons []fault.Reason) []string {
	if len(reasons) != 1 || reasons[0].Code != codeUsage || !strings.HasPrefix(reasons[0].Change, "usage: ") {
		return nil
	}
	usage, help, _ := strings.Cut(reasons[0].Change, "; help: ")
	return []string{usage, "help:  " + help}
}

// helpCommand shows the help of a command. What is no command is an error, unlike in cobra.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND…]",
		Short: "Show the help of a command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || c == nil || len(rest) > 0 {
				return misused("there is no command %q: berth --help lists them", strings.Join(args, " "))
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}
