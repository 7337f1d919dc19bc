// Command stories prints what is left when a step of a story goes wrong: a JSON line for
// each story, step and fault. It ends with an error where a row is missing, or anything is
// left that should not be.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"berth/test/sim"
	"berth/test/stories"
)

func main() {
	only := flag.String("row", "", "one row, with the trace of its run: story, step, fault, as in \"resize, claim, kill\"")
	flag.Parse()
	debug.SetGCPercent(1600) // runs are short and their memory is small
	if err := play(*only); err != nil {
		fmt.Fprintln(os.Stderr, "stories:", err)
		os.Exit(1)
	}
}

func play(only string) error {
	rows := stories.Expected()
	if only != "" {
		return trace(rows, only)
	}
	out, bad := json.NewEncoder(os.Stdout), 0
	for _, r := range stories.Play(rows) {
		if !r.Good() {
			bad++
		}
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("write a row: %w", err)
		}
	}
	fmt.Fprintf(os.Stderr, "%d rows, %d of them bad\n", len(rows), bad)
	if bad > 0 {
		return fmt.Errorf("%d rows are missing, or something is left", bad)
	}
	return nil
}

// trace prints all that happened in one row.
func trace(rows []stories.Row, only string) error {
	for _, r := range rows {
		if r.String() != only {
			continue
		}
		for _, o := range stories.Options(r) {
			o.KeepTrace, o.Log = true, os.Stdout
			if got := sim.Run(o); got.Spoiled {
				fmt.Print(got.Trace)
				return nil
			}
		}
		return fmt.Errorf("no run comes to the fault of %q", only)
	}
	return fmt.Errorf("no row is called %q", only)
}
