// Command model searches the models of package model; see docs/model.md. It installs
// spin and gcc where they are missing (Debian, root).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"berth/test/lab"
	"berth/test/model"
)

const usage = `usage: model [-quick] [-dir DIR] [list | all | NAME]

  all    every model must hold, every mutant must be caught (the default)
  list   the mutants and the models, with what they are
  NAME   one model, or one mutant with the run that breaks its law, in words

-quick takes one fault fewer. DIR is the work folder, build/model.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	r := model.Runner{Dir: "build/model"}
	flags := flag.NewFlagSet("model", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&r.Dir, "dir", r.Dir, "work folder")
	flags.BoolVar(&r.Quick, "quick", false, "one fault fewer")
	flags.Usage = func() { fmt.Fprint(errs, usage) }
	if flags.Parse(args) != nil || flags.NArg() > 1 {
		return 2
	}
	name := flags.Arg(0)
	if name == "list" {
		for _, c := range r.Checks() {
			kind := "model "
			if c.Mutant {
				kind = "mutant"
			}
			fmt.Fprintf(out, "%s %-36s %s\n", kind, strings.ToLower(c.Name), c.What)
		}
		return 0
	}
	if err := tools(ctx, errs); err != nil {
		fmt.Fprintln(errs, "model:", err)
		return 1
	}
	if name == "" || name == "all" {
		if !r.All(ctx, out) {
			return 1
		}
		return 0
	}
	for _, c := range r.Checks() {
		if strings.EqualFold(c.Name, name) {
			res := r.Run(ctx, c)
			res.Print(out)
			res.Tell(out)
			if !res.OK() {
				return 1
			}
			return 0
		}
	}
	fmt.Fprintf(errs, "model: no model and no mutant is called %q; `model list` names them\n", name)
	return 2
}

// tools installs what is missing; what is there from elsewhere serves too.
func tools(ctx context.Context, log io.Writer) error {
	for _, name := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(name); err != nil {
			return lab.Install(ctx, log, model.Tools()...)
		}
	}
	return nil
}
