// Command soak breaks real migrations for as long as it is told to; see package
// soak. `make soak` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"berth/test/lab"
	"berth/test/soak"
)

func main() {
	rounds := flag.Int("rounds", 200, "how many rounds")
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "of the first round; each has the next, so that one alone can be repeated")
	budget := flag.Duration("budget", 45*time.Minute, "no round begins after it; 0 for no bound")
	only := flag.String("only", "", "only faults whose name matches this expression")
	story := flag.String("story", "", "only stories whose kind matches this expression")
	transport := flag.String("transport", "stream", "how guests travel: stream or libvirt-tls")
	force := flag.Bool("force", false, "run although this machine has a libvirt daemon or guests of its own")
	logs := flag.String("logs", "build/soak", "where failed rounds leave their logs")
	list := flag.Bool("list", false, "print the faults and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *list {
		for _, f := range soak.Faults() {
			fmt.Println(f.Name)
		}
		fmt.Println("\nin stories:")
		for _, k := range soak.Kinds {
			fmt.Println(k)
		}
		return
	}
	if err := run(ctx, soak.Options{Rounds: *rounds, Seed: *seed, Budget: *budget, Transport: *transport, Logs: *logs}, *only, *story, *force); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o soak.Options, only, story string, force bool) (err error) {
	kinds, err := regexp.Compile(story)
	if err != nil {
		return err
	}
	for _, k := range soak.Kinds {
		if kinds.MatchString(string(k)) {
			o.Kinds = append(o.Kinds, k)
		}
	}
	if len(o.Kinds) == 0 {
		return fmt.Errorf("no story is called like %s", story)
	}
	if only != "" {
		if o.Only, err = regexp.Compile(only); err != nil {
			return err
		}
	}
	if os.Getuid() != 0 {
		return fmt.Errorf("namespaces and libvirt need root: run it as root")
	}
	if err := lab.Refuse(force); err != nil {
		return err
	}
	o.Say = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if err := lab.Install(ctx, os.Stdout, lab.Packages()...); err != nil {
		return err
	}
	if o.Dir, err = os.MkdirTemp("", "berth-soak-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.Dir)
	// Open to QEMU, which is another user.
	if err := os.Chmod(o.Dir, 0o755); err != nil {
		return err
	}
	if o.Logs, err = filepath.Abs(o.Logs); err != nil {
		return err
	}
	o.Say("%d rounds from seed %d", o.Rounds, o.Seed)
	report, err := soak.Run(ctx, o)
	report.Write(os.Stdout)
	if err != nil {
		return err
	}
	if n := len(report.Failed()); n > 0 {
		return fmt.Errorf("%d rounds failed", n)
	}
	return ctx.Err()
}
