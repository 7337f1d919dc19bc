package screen

import (
	"fmt"
	"io"
	"strings"
)

// Row writes one line of a table; columns are separated by tabs, of which no
// value may hold one.
func Row(w io.Writer, columns ...any) {
	for i, c := range columns {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		text := strings.NewReplacer("\t", " ", "\n", " ").Replace(fmt.Sprint(c))
		if text == "" {
			text = "-"
		}
		fmt.Fprint(w, text)
	}
	fmt.Fprintln(w)
}

// Fold breaks a text into lines no wider than width, where its words allow.
func Fold(text string, width int) []string { return Wrap(strings.Fields(text), width) }

// Wrap joins words to lines no wider than width, where the words allow.
func Wrap(words []string, width int) []string {
	var lines []string
	for _, word := range words {
		if n := len(lines); n > 0 && len([]rune(lines[n-1]))+1+len([]rune(word)) <= width {
			lines[n-1] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}
