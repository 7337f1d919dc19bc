package model

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed move.pml ledger.pml cold.pml apart.pml evacuation.pml
var sources embed.FS

func itoa(n int) string { return strconv.Itoa(n) }

// Result is what became of one check.
type Result struct {
	Check
	States  uint64
	Depth   uint64
	Seconds float64 // of the compiler and the search
	// Broken: the search found a run that breaks a law. Words tells it.
	Broken bool
	Words  []string
	Err    error // the search could not be made, or not to its end
}

// OK: a model holds; a mutant is caught.
func (r Result) OK() bool { return r.Err == nil && r.Broken == r.Mutant }

// Tools are the packages of Debian that hold what Run calls.
func Tools() []string { return []string{"spin", "gcc", "libc6-dev"} }

// Runner runs checks.
type Runner struct {
	Dir   string // work folder; made and kept, one folder below for each check
	Quick bool   // one fault fewer
}

// patience bounds one search. The longest takes half a minute on an idle machine.
const patience = 10 * time.Minute

// Run makes one check: the checker's source, the checker, the search, and where it
// found something, that run in words.
func (r Runner) Run(ctx context.Context, c Check) (res Result) {
	res = Result{Check: c}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := r.run(ctx, &res); err != nil {
		res.Err = fmt.Errorf("check %s: %w", c.Name, err)
	}
	return res
}

func (r Runner) run(ctx context.Context, res *Result) error {
	c := res.Check
	dir := filepath.Join(r.Dir, c.Name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file := c.Model + ".pml"
	text, err := sources.ReadFile(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
		return err
	}
	macros := c.macros()
	if out, err := call(ctx, dir, "spin", append(append([]string{"-a"}, macros...), file)...); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	began := time.Now()
	if out, err := call(ctx, dir, "gcc", c.compile()...); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	args := []string{"-E", "-m200000"} // all that stands still is looked at by the models themselves
	if c.Endless {
		args = append(args, "-a")
	}
	out, err := call(ctx, dir, "./pan", args...)
	if err != nil && !bytes.Contains(out, []byte("errors:")) {
		return fmt.Errorf("%w: %s", err, out)
	}
	res.Seconds = time.Since(began).Seconds()
	if err := res.read(out); err != nil {
		return err
	}
	if res.Broken {
		out, err := call(ctx, dir, "spin", append(append([]string{"-t", "-T"}, macros...), file)...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		res.Words = words(out)
	}
	return nil
}

func (c Check) macros() []string {
	var out []string
	for _, f := range c.Flags {
		out = append(out, "-D"+f)
	}
	if c.Endless {
		out = append(out, "-DLIVE")
	}
	return out
}

// compile are gcc's arguments. Most of the time of a small search is its compiler's,
// so that is told to hurry. A mutant is searched breadth first: the run that is found
// is as short as any.
func (c Check) compile() []string {
	args := []string{"-w", "-O0", "-o", "pan"}
	if c.Big {
		args[1] = "-O2"
	}
	switch {
	case c.Endless:
		args = append(args, "-DCOLLAPSE")
	case c.Mutant:
		args = append(args, "-DSAFETY", "-DNOCLAIM", "-DBFS")
	default:
		args = append(args, "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE")
	}
	return append(args, "-DMEMLIM=6000", "pan.c")
}

// call runs a program; what it said is given in any case.
func call(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", name, errors.Join(err, context.Cause(ctx)))
	}
	return out, err
}

var (
	statesLine = regexp.MustCompile(`(?m)^ *(\d+) states, stored`)
	depthLine  = regexp.MustCompile(`depth reached (\d+), errors: (\d+)`)
)

// read takes a search's figures from what it printed. A search that did not come to
// its end, and found nothing, has shown nothing.
func (r *Result) read(out []byte) error {
	depth, states := depthLine.FindSubmatch(out), statesLine.FindSubmatch(out)
	if depth == nil || states == nil {
		return fmt.Errorf("the search printed no figures: %s", out)
	}
	r.Depth, _ = strconv.ParseUint(string(depth[1]), 10, 64)
	r.States, _ = strconv.ParseUint(string(states[1]), 10, 64)
	r.Broken = string(depth[2]) != "0"
	for _, short := range []string{"Search not completed", "max search depth too small", "out of memory", "memory limit"} {
		if !r.Broken && bytes.Contains(out, []byte(short)) {
			return fmt.Errorf("the search is not complete (%s): %s", short, out)
		}
	}
	return nil
}

// names are what numbers in the models stand for.
var names = map[string]map[string]string{
	"answer": {"0": "no", "1": "yes", "2": "no", "3": "no answer"},
	"phase":  {"1": "doing", "2": "undoing", "3": "done", "4": "undone", "5": "lost"},
	"step": {
		"1": "claim", "2": "swap_allocations", "3": "record_context", "4": "pre_live_migration", "5": "stream", "6": "commit",
		"7": "accept_token", "8": "finish_destination", "9": "clean_up_source", "10": "delete_migration_allocation",
		"61": "lost", "62": "claim", "63": "prep_evacuation", "64": "take_over", "65": "accept_evacuated", "66": "finish_evacuation",
	},
	"domain": {"0": "none", "1": "running", "2": "paused (migrating)", "3": "shut off (migrated)", "4": "shut off (unknown)", "5": "paused (migrating)", "6": "paused, whole"},
	"token":  {"0": "none", "1": "here", "2": "given"},
	"claim":  {"0": "none", "1": "pending", "2": "arriving", "3": "bound"},
	"host":   {"1": "the source", "2": "the destination", "3": "a third host"},
	"half":   {"0": "nothing", "1": "the source's half"},
}

var named = regexp.MustCompile(`\{(\w+) (\w+)\}`)

// words are the lines that the model itself prints of a run.
func words(out []byte) []string {
	var lines []string
	s := bufio.NewScanner(bytes.NewReader(out))
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		switch {
		case strings.HasPrefix(line, "spin: trail ends"), strings.HasPrefix(line, "#processes"):
			return lines
		case line == "", strings.HasPrefix(line, "ltl "), strings.HasPrefix(line, "spin:"), strings.HasPrefix(line, "Never claim"),
			strings.Contains(line, "proc ") && strings.Contains(line, ".pml:"):
			continue
		case strings.Contains(line, "START OF CYCLE"):
			line = "and from here on for ever:"
		}
		lines = append(lines, named.ReplaceAllStringFunc(line, func(m string) string {
			p := named.FindStringSubmatch(m)
			if p[1] == "verb" {
				return strings.TrimSuffix(p[2], "_")
			}
			if name, ok := names[p[1]][p[2]]; ok {
				return name
			}
			return p[2]
		}))
	}
	return lines
}

// Checks gives the models and then the mutants.
func (r Runner) Checks() []Check { return append(checks(r.Quick), Mutants()...) }

// All runs every check and every mutant, as many at a time as there are processors,
// and prints a line for each in order, a line for each law, and a summary. It reports
// whether all is as it should be.
func (r Runner) All(ctx context.Context, w io.Writer) bool {
	began := time.Now()
	todo := r.Checks()
	results := make([]Result, len(todo))
	done := make([]chan struct{}, len(todo))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				results[i] = r.Run(ctx, todo[i])
				close(done[i])
			}
		})
	}
	wg.Go(func() {
		for i := range todo {
			next <- i
		}
		close(next)
	})
	ok, caught, clean := true, 0, 0
	for i := range todo {
		<-done[i]
		res := results[i]
		res.Print(w)
		if res.Broken && !res.Mutant {
			res.Tell(w)
		}
		switch {
		case !res.OK():
			ok = false
		case res.Mutant:
			caught++
		default:
			clean++
		}
	}
	wg.Wait()
	total := uint64(0)
	for _, l := range Laws {
		var states uint64
		models, mutants := 0, 0
		holds := true
		for _, res := range results {
			for _, n := range res.laws() {
				switch {
				case n != l.Number:
				case res.Mutant:
					mutants++
				default:
					models++
					states += res.States
					holds = holds && res.OK()
				}
			}
		}
		verdict := "holds"
		if !holds {
			verdict = "BROKEN"
		}
		fmt.Fprintf(w, "law    %-36s %-7s %10d states of %d models, %d mutants: %s\n", lawName(l.Number), verdict, states, models, mutants, l.Text)
	}
	for _, res := range results {
		if !res.Mutant {
			total += res.States
		}
	}
	fmt.Fprintf(w, "%d models hold of %d, %d states; %d mutants caught of %d; %.0f s\n",
		clean, len(todo)-len(mutants), total, caught, len(mutants), time.Since(began).Seconds())
	return ok
}

func lawName(n int) string {
	switch n {
	case settled:
		return "settled"
	case ends:
		return "ends"
	}
	return itoa(n)
}

// Print writes one line: the check, what became of it, its figures, what it is.
func (r Result) Print(w io.Writer) {
	kind, verdict := "model", "holds"
	switch {
	case r.Err != nil:
		verdict = "FAILED"
	case r.Mutant && r.Broken:
		kind, verdict = "mutant", "caught"
	case r.Mutant:
		kind, verdict = "mutant", "LIVES"
	case r.Broken:
		verdict = "BROKEN"
	}
	what := r.What
	if r.Mutant {
		kind = "mutant"
		what = "law " + lawName(r.Law) + ": " + what
	}
	fmt.Fprintf(w, "%-6s %-36s %-7s %10d states %4d deep %6.1f s  %s\n", kind, strings.ToLower(r.Name), verdict, r.States, r.Depth, r.Seconds, what)
	if r.Err != nil {
		fmt.Fprintf(w, "       %v\n", r.Err)
	}
}

// Tell prints the run that was found, in words.
func (r Result) Tell(w io.Writer) {
	for _, line := range r.Words {
		fmt.Fprintf(w, "       %s\n", line)
	}
}
