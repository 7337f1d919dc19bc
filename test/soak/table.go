package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is what a soak came to.
type Report struct {
	Rounds []Result
	Took   time.Duration
	// Stopped is why it ended before all rounds were done; nil for done.
	Stopped error
}

// Failed are the rounds that did not hold.
func (r Report) Failed() []Result {
	return slices.DeleteFunc(slices.Clone(r.Rounds), func(r Result) bool { return r.Outcome != Failed })
}

// row is one line of the table.
type row struct {
	count, missed int
	outcomes      map[Outcome]int
	settle, whole []time.Duration
}

// rows are a table's, by name.
type rows map[string]*row

func (t rows) add(name string, res Result, struck bool) {
	x := t[name]
	if x == nil {
		x = &row{outcomes: map[Outcome]int{}}
		t[name] = x
	}
	if !struck && res.Outcome != Failed {
		x.missed++
		return
	}
	x.count++
	x.outcomes[res.Outcome]++
	if res.Outcome != Failed {
		x.settle, x.whole = append(x.settle, res.Settle), append(x.whole, res.Whole)
	}
}

func (t rows) write(w io.Writer, what string, order []string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, what+"\ttimes\tcompleted\treverted\tundone\trefused\tin doubt, settled\tFAILED\tover after: median\tworst\tall true after: worst\tcame too late")
	for _, name := range order {
		if x := t[name]; x != nil {
			fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%d\n", name, x.count, x.outcomes[Completed], x.outcomes[Reverted], x.outcomes[Undone],
				x.outcomes[Refused], x.outcomes[Settled], x.outcomes[Failed], seconds(median(x.settle)), seconds(worst(x.settle)), seconds(worst(x.whole)), x.missed)
		}
	}
	_ = tw.Flush() // w has the error, if any
}

// Write prints the table of faults, that of stories, the failed rounds, and one line at the end.
func (r Report) Write(w io.Writer) {
	var order []string
	for _, f := range Faults() {
		order = append(order, f.Name)
	}
	faults := rows{}
	for _, res := range r.Rounds {
		for i, s := range res.Plan.Strikes {
			faults.add(s.Fault, res, res.Struck[i])
		}
	}
	faults.write(w, "fault", order)
	stories := rows{}
	for _, res := range r.Rounds {
		stories.add(res.Plan.Story.String(), res, slices.Contains(res.Struck, true))
	}
	if len(stories) > 1 {
		fmt.Fprintln(w)
		stories.write(w, "story", slices.Sorted(maps.Keys(stories)))
	}
	for _, res := range r.Failed() {
		fmt.Fprintf(w, "\nFAILED seed %d: %s\n  %s\n", res.Plan.Seed, res.Plan, indent(res.Err))
	}
	if r.Stopped != nil {
		fmt.Fprintf(w, "\nended early: %v\n", r.Stopped)
	}
	fmt.Fprintln(w, r.Line())
}

// Line is the whole soak in one line.
func (r Report) Line() string {
	struck := 0
	count := map[Outcome]int{}
	var longest Result
	for _, res := range r.Rounds {
		count[res.Outcome]++
		for _, yes := range res.Struck {
			if yes {
				struck++
			}
		}
		if res.Settle > longest.Settle {
			longest = res
		}
	}
	return fmt.Sprintf("soak: %d rounds, %d faults struck: %d completed, %d reverted, %d undone, %d refused, %d in doubt and settled, %d FAILED; longest recovery %s (seed %d: %s); %.0f s",
		len(r.Rounds), struck, count[Completed], count[Reverted], count[Undone], count[Refused], count[Settled], count[Failed],
		seconds(longest.Settle), longest.Plan.Seed, longest.Plan, r.Took.Seconds())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func worst(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return slices.Max(list)
}

func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
