package screen

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Table is a table that fits a screen: columns that do not fit are left out, and named.
type Table struct {
	Columns []string
	Rows    [][]any
	// Spare are the columns that may be left out, the first of them first. A last column
	// REMARK is told below the table when it does not fit.
	Spare []string
	// Full is the command that shows all columns.
	Full string
}

// listColumns is how wide a list may be where no terminal and no COLUMNS says.
const listColumns = 80

// ListWidth is how many columns a list on w may have.
func ListWidth(w io.Writer) int {
	if f, ok := Behind(w).(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return listColumns
}

// Write prints the table within width, which its first column alone may exceed.
func (l Table) Write(w io.Writer, width int) {
	cells := func(row []any) (out []string) {
		for _, v := range row {
			out = append(out, fmt.Sprint(v))
		}
		return out
	}
	lines := [][]string{l.Columns}
	for _, r := range l.Rows {
		lines = append(lines, cells(r))
	}
	widths := make([]int, len(l.Columns))
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text), 1)
		}
	}
	out := map[int]bool{}
	fits := func() bool {
		sum := -2
		for i, n := range widths {
			if !out[i] {
				sum += n + 2
			}
		}
		return sum <= width
	}
	// What no row has says nothing.
	for i := range l.Columns {
		empty := !slices.ContainsFunc(lines[1:], func(line []string) bool { return line[i] != "" })
		out[i] = empty && len(l.Rows) > 0 && i > 0 && !fits()
	}
	remark := slices.Index(l.Columns, "REMARK")
	below := false
	if remark >= 0 && !out[remark] && !fits() {
		// A remark that takes more than a third of the screen stands below.
		if below = widths[remark] > width/3; below {
			out[remark] = true
		}
	}
	var left []string
	for _, name := range l.Spare {
		if i := slices.Index(l.Columns, name); i >= 0 && !out[i] && !fits() {
			out[i] = true
			left = append(left, name)
		}
	}
	if remark >= 0 && !out[remark] && !fits() {
		out[remark], below = true, true
	}
	for _, line := range lines {
		var kept []any
		for i, text := range line {
			if !out[i] {
				kept = append(kept, text)
			}
		}
		Row(w, kept...)
	}
	if below {
		fmt.Fprintln(w)
		for _, line := range lines[1:] {
			if text := line[remark]; text != "" {
				for i, part := range Fold(line[0]+": "+text, width-2) {
					fmt.Fprintln(w, strings.Repeat("  ", min(i, 1))+part)
				}
			}
		}
	}
	if len(left) > 0 {
		text := "not shown: " + strings.Join(left, ", ") + "; " + l.Full
		fmt.Fprintln(w)
		for _, part := range Fold(text, width) {
			fmt.Fprintln(w, part)
		}
	}
}
