package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth/agent"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/screen"
)

func (a *app) configCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "config", Short: "Check the configuration of this machine's agent, and show what counts"})
	cmd.AddCommand(a.configCheck(), a.configDump())
	return cmd
}

// checkedConfig is what berth config check found where nothing is wrong.
type checkedConfig struct {
	Files   []string         `json:"files"`
	Mode    config.Mode      `json:"mode"`
	Set     []config.Setting `json:"set"` // what a file names
	Flavors []string         `json:"flavors"`
}

func (a *app) configCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Is the configuration right; needs no agent and changes nothing",
		Long: `Read the configuration and its drop-ins as the agent does, with the flavor files and the
users and groups of [rights], and name every fault: file, line, key, what it has and what
it wants. Of a file that is no TOML only the first such place is named. Exits with 2 when
there is a fault, as the agent does then.

Do it before each reload or restart: a reload with a fault changes nothing, and a restart
with one leaves the host without its agent (guests go on).`,
		Example: "  berth config check && systemctl reload berth\n  berth config check ./berth.toml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.config = args[0]
			}
			c, list, err := config.Dump(a.config)
			flavors, more := agent.CheckConfig(c)
			switch reasons := append(fault.ReasonsOf(err), fault.ReasonsOf(more)...); {
			case err != nil && more != nil && len(reasons) > 0:
				return fault.Refuse(fault.Invalid, "check configuration", reasons...)
			case err != nil:
				return err
			case more != nil:
				return more
			}
			out := checkedConfig{Files: []string{}, Mode: c.Agent.Mode, Set: []config.Setting{}, Flavors: append([]string{}, flavors...)}
			seen := map[string]bool{}
			for _, s := range list {
				if s.From == "" {
					continue
				}
				out.Set = append(out.Set, s)
				if !seen[s.From] {
					seen[s.From] = true
					out.Files = append(out.Files, s.From)
				}
			}
			return a.print(out, func(w io.Writer) { checkedTable(w, a.config, out) })
		},
	}
}

func checkedTable(w io.Writer, path string, c checkedConfig) {
	from := strings.Join(c.Files, ", ")
	if from == "" {
		from = path + " sets nothing: the defaults count"
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			from = path + " is not there: the defaults count"
		}
	}
	fmt.Fprintf(w, "no fault: %s\nmode %s, %s set, %s\n", from, c.Mode, count(len(c.Set), "key"), count(len(c.Flavors), "flavor"))
	if len(c.Set) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "KEY", "VALUE", "TAKEN BY A")
	for _, s := range c.Set {
		takes := "restart"
		if s.Reload {
			takes = "reload"
		}
		value := s.Value
		if s.Secret {
			value = "(secret)"
		}
		screen.Row(w, s.Key, value, takes)
	}
}

func (a *app) configDump() *cobra.Command {
	var set bool
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Show each key as it counts, and where it comes from; needs no agent",
		Long: `Print the configuration as it counts, defaults included, as a file that the agent takes,
with the file that each key comes from. Secrets are left out of it. A running agent has
what it was started with and what it has reloaded since.`,
		Example: "  berth config dump\n  berth config dump --set\n  berth config dump --json | jq '.[] | select(.from)'",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, list, err := config.Dump(a.config)
			if err != nil {
				return err
			}
			if set {
				kept := []config.Setting{}
				for _, s := range list {
					if s.From != "" {
						kept = append(kept, s)
					}
				}
				list = kept
			}
			if a.json {
				return a.print(list, nil)
			}
			return config.WriteSettings(a.out, list)
		},
	}
	cmd.Flags().BoolVar(&set, "set", false, "only keys that a file names")
	return cmd
}
