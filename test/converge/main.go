// Command converge records how real live migrations converge: series of samples, as a
// conductor sees them, for the tests of package migration/converge. Two hosts, a guest of
// each workload, libvirt's job looked at four times a second.
//
//	go run ./test/converge                     all workloads, into migration/converge/testdata
//	go run ./test/converge -only idle,saw-tooth
//
// It needs what a lab needs, and takes about six minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/test/guest"
	"berth/test/lab"
)

func main() {
	into := flag.String("into", "migration/converge/testdata", "folder of the series")
	only := flag.String("only", "", "workloads, separated by commas; empty for all")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := recordAll(ctx, *into, *only); err != nil {
		fmt.Fprintln(os.Stderr, "converge:", err)
		stop()
		os.Exit(1)
	}
}

func recordAll(ctx context.Context, into, only string) (err error) {
	if os.Getuid() != 0 {
		return errors.New("a lab needs root")
	}
	if err := lab.Install(ctx, os.Stdout, lab.Packages()...); err != nil {
		return err
	}
	g, err := guest.Build(ctx, "")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-converge-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // QEMU is another user
		return err
	}
	l, err := lab.Up(ctx, lab.Options{Dir: filepath.Join(dir, "lab"), Listen: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down(), os.Remove(dir)) }()
	for _, w := range workloads {
		if only != "" && !slices.Contains(strings.Split(only, ","), w.name) {
			continue
		}
		w.guest.Guest = g
		begun := time.Now()
		samples, ended, err := w.record(ctx, l.Hosts[0], l.Hosts[1])
		if err != nil {
			return fmt.Errorf("workload %s: %w", w.name, err)
		}
		if err := write(filepath.Join(into, w.name+".jsonl"), samples); err != nil {
			return err
		}
		fmt.Printf("%-14s %4d samples in %s: %s\n", w.name, len(samples), time.Since(begun).Round(time.Second), ended)
	}
	return nil
}
