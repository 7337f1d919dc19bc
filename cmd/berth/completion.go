package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/agent/api"
)

// completionTime is how long somebody who pressed the tabulator is kept waiting.
const completionTime = 2 * time.Second

// placeholder is an argument in a command's usage: INSTANCE, [HOST], CLAIM|INSTANCE.
var placeholder = regexp.MustCompile(`^\[?([A-Z][A-Z-]*(?:\|[A-Z-]+)*)(?:\.\.\.|…)?\]?$`)

// addCompletion has shells offer what a command's usage asks for: names of guests, hosts,
// moves and claims as the agent knows them. Commands that say it themselves are left
// alone.
func (a *app) addCompletion(root *cobra.Command) {
	// Of the flags that every command has, one has a closed set.
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	a.completeArguments(root)
}

func (a *app) completeArguments(c *cobra.Command) {
	for _, child := range c.Commands() {
		a.completeArguments(child)
	}
	if c.ValidArgsFunction != nil || c.ValidArgs != nil || !c.Runnable() {
		return
	}
	wanted := arguments(c.Use)
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(wanted) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if what := wanted[len(args)]; what == "FILE" || what == "DIR" || what == "FILE|DIR" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.offer(cmd, wanted[len(args)]), cobra.ShellCompDirectiveNoFileComp
	}
}

// arguments are the placeholders of a usage line, up to the first of its forms' end.
func arguments(use string) []string {
	var out []string
	for _, word := range strings.Fields(use)[1:] {
		if word == "|" || strings.HasPrefix(word, "-") || strings.HasPrefix(word, "[-") {
			break
		}
		if p := placeholder.FindStringSubmatch(word); p != nil {
			out = append(out, p[1])
		}
	}
	return out
}

// offer asks the agent for what may stand there. Without an answer nothing is offered: a
// prompt is no place for errors.
func (a *app) offer(cmd *cobra.Command, what string) []string {
	var out []string
	_ = a.ask(cmd, completionTime, func(ctx context.Context, c *api.Client) error {
		for kind := range strings.SplitSeq(what, "|") {
			switch kind {
			case "INSTANCE", "GUEST":
				list, err := c.Instances(ctx)
				if err != nil {
					return err
				}
				for _, i := range list.Instances {
					out = append(out, i.Name)
				}
			case "HOST":
				list, err := c.Hosts(ctx)
				if err != nil {
					return err
				}
				for _, h := range list {
					out = append(out, h.Name)
				}
			case "MIGRATION":
				list, err := c.Migrations(ctx)
				if err != nil {
					return err
				}
				for _, m := range list {
					out = append(out, m.UUID+"\t"+string(m.Status))
				}
			case "CLAIM":
				list, err := c.Claims(ctx)
				if err != nil {
					return err
				}
				for _, l := range list.Claims {
					out = append(out, l.ID)
				}
			}
		}
		return nil
	})
	slices.Sort(out)
	return slices.Compact(out)
}
