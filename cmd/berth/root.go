package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/internal/version"
	"berth/internal/visible"
)

// app is one run of the command: where it prints, and the flags that every
// command has.
type app struct {
	parts
	in       io.Reader
	out, err io.Writer

	config   string // --config
	connect  string
	certFile string
	keyFile  string
	caFile   string
	output   string
	json     bool

	warned bool // of a fault in the configuration
	began  bool // the command line was understood; what fails after it is no usage error
}

// execute runs one command line and gives the exit code.
func execute(ctx context.Context, p parts, args []string, in io.Reader, out, errOut io.Writer) int {
	// What is printed has names, errors and reasons from elsewhere in it: nothing of
	// them acts on a terminal. Who writes for one, or for libvirt, goes behind.
	shown, told := visible.NewWriter(out), visible.NewWriter(errOut)
	defer func() { _, _ = shown.Flush(), told.Flush() }() // half a character: nobody waits for it
	a := &app{parts: p, in: in, out: shown, err: told}
	errOut = told
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(shown)
	root.SetErr(told)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.began {
		a.json = slices.Contains(args, "--json") // flags may not have been read
		if !isMisuse(err) {
			err = misused("%s", usageWords(cmd, err, args))
		}
	}
	if err != nil {
		err = a.named(withUsage(cmd, err))
		printError(errOut, err, a.json)
		if say := next(cmd.CommandPath(), err); say != "" && a.began && !a.json && !silent(err) {
			fmt.Fprintf(errOut, "  next: %s\n", say)
		}
	}
	return codeOf(err)
}

// named says which agent was asked, by --connect, of an error that does not name it.
func (a *app) named(err error) error {
	if !a.began || a.connect == "" || fault.KindOf(err) != fault.Unavailable || strings.Contains(err.Error(), a.connect) {
		return err
	}
	return fault.Wrap(err, "ask %s", a.connect)
}

// countWords is how the library says that there are too few or too many arguments.
var countWords = regexp.MustCompile(`^(?:accepts|requires) .*arg\(s\), (?:only )?received \d+$`)

// usageWords says what is wrong with a command line, by the command that it was meant for.
func usageWords(c *cobra.Command, err error, args []string) string {
	if c.Annotations[onlyHolds] != "" {
		// The library reads flags first: those of a command that there is not are unknown.
		for _, word := range strings.Fields(c.CommandPath())[1:] {
			if len(args) > 0 && args[0] == word {
				args = args[1:]
			}
		}
		if len(args) > 0 && args[0] != "" && !strings.HasPrefix(args[0], "-") {
			if unknown := c.Args(c, args[:1]); unknown != nil {
				return unknown.Error()
			}
		}
	}
	text, given := err.Error(), strings.Join(c.Flags().Args(), " ")
	_, wants, _ := strings.Cut(c.Use, " ")
	name := strings.TrimPrefix(c.CommandPath(), "berth ")
	switch {
	case strings.HasPrefix(text, "unknown command") && !c.HasSubCommands():
		return fmt.Sprintf("%s takes no argument, and was given %q", name, given)
	case !countWords.MatchString(text):
		return text
	case given == "":
		return fmt.Sprintf("%s wants %s, and was given nothing", name, wants)
	}
	return fmt.Sprintf("%s wants %s, and was given %q", name, wants, given)
}

func (a *app) root() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "berth",
		Short: "Hold a berth for every guest before it sails to a host",
		Long: `Berth is the agent of a KVM host. It finds the host's hardware, keeps Placement
equal to it, holds every guest's resources as claims, and moves guests between
hosts so that each runs exactly once and nothing is left behind.

On a host that already runs guests:

  berth host discover          what hardware is here (needs no agent)
  berth pki init /root/ca      make certificates, if you have none
  berth agent                  run the agent; it only observes until told to manage
  berth instance adopt --all   take the guests that run under claims
  berth plan GUEST             where could one go, and if not, why
  berth migrate GUEST HOST     move one
  berth resize GUEST           give one another flavor; then confirm or revert it
  berth host drain             move all away, before work on the host
  berth evacuate GUEST         bring one back to life whose host is dead

  berth status                 is all well, and if not, what to do
  berth doctor                 does each thing work that this host needs
  berth host topology          who holds what, as a drawing

Commands ask the agent on this machine, through /run/berth/berth.sock, unless
--connect names another.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			// An unset variable of a script must not become "any host". A shell that asks what may
			// follow has no word yet.
			if i := slices.Index(args, ""); i >= 0 && cmd.Name() != cobra.ShellCompRequestCmd {
				return misused("argument %d of %q is empty", i+1, cmd.CommandPath())
			}
			if !slices.Contains([]string{"table", "json", "yaml"}, a.output) {
				return misused("--output %q: want table, json or yaml", a.output)
			}
			a.json = a.json || a.output != "table"
			a.began = true
			return nil
		},
	})
	root.Version = version.Get().String()
	root.SetVersionTemplate("berth {{.Version}}\n")
	root.Flags().Bool("version", false, "print which build this is")
	f := root.PersistentFlags()
	f.StringVarP(&a.connect, "connect", "c", os.Getenv("BERTH_CONNECT"), "agent to ask: path of a socket, host's `name`, or host:port (env BERTH_CONNECT)")
	f.StringVar(&a.certFile, "cert", os.Getenv("BERTH_CERT"), "certificate `file` to show a host, with --connect (env BERTH_CERT)")
	f.StringVar(&a.keyFile, "key", os.Getenv("BERTH_KEY"), "its key `file` (default: beside the certificate)")
	f.StringVar(&a.caFile, "ca", os.Getenv("BERTH_CA"), "CA `file` that signed the hosts' certificates (default: ca.crt beside the certificate)")
	f.StringVar(&a.config, "config", config.DefaultPath, "configuration `file` of the agent on this machine")
	f.StringVarP(&a.output, "output", "o", "table", "how to print: `table`, json or yaml")
	f.BoolVar(&a.json, "json", false, "the same as --output json")

	root.AddGroup(
		&cobra.Group{ID: "guests", Title: "Guests and moves:"},
		&cobra.Group{ID: "host", Title: "This host:"},
		&cobra.Group{ID: "daemons", Title: "Daemons and certificates:"},
	)
	in := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	in("guests", a.instanceCommand(), a.planCommand(), a.migrateCommand(), a.resizeCommand(), a.rebuildCommand(), a.evacuateCommand(), a.migrationCommand(), a.claimCommand(), a.externalCommand())
	in("host", a.statusCommand(), a.hostCommand(), a.auditCommand(), a.ledgerCommand(), a.doctorCommand(), a.fitCommand(), a.configCommand(), a.debugCommand())
	in("daemons", a.agentCommand(), a.placementCommand(), a.streamCommand(), a.pkiCommand(), a.versionCommand())
	root.AddCommand(a.guardCommand(), a.manCommand())
	root.AddCommand(&cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesHelp})
	root.SetHelpCommand(helpCommand(root))
	root.SetHelpCommandGroupID("daemons")
	root.SetCompletionCommandGroupID("daemons")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	a.addCompletion(root)
	return root
}

// onlyHolds is the annotation of a command of group.
const onlyHolds = "only holds other commands"

// group is a command that only holds others; called alone it is a usage error.
func group(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{onlyHolds: "yes"}
	c.SuggestionsMinimumDistance = 2
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				text += ": did you mean " + strings.Join(near, " or ") + "?"
			}
			return errors.New(text)
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// print writes v as JSON or YAML, or what table writes in columns.
func (a *app) print(v any, table func(w io.Writer)) error {
	if a.json {
		return screen.Document(a.out, v, a.output == "yaml", "  ")
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}
