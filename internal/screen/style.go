package screen

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"berth/internal/visible"
)

// Style is how what is printed looks on a terminal.
type Style struct {
	Width  int
	Colour bool
	// introducer begins an escape sequence that the writer lets pass; empty for ESC [.
	introducer string
}

// StyleOf looks at what w writes to.
func StyleOf(w io.Writer) Style {
	s := Style{Width: max(60, Columns(w)), Colour: Coloured(w, os.Getenv)}
	if v, ok := w.(*visible.Writer); ok {
		s.introducer = v.Introducer()
	}
	return s
}

// Colours that say something, as parameters of SGR.
const (
	Bad  = "1;31"
	Good = "1;32"
	Hint = "1;33"
)

// Paint colours a text where that is wanted.
func (s Style) Paint(colour, text string) string {
	if !s.Colour {
		return text
	}
	begin := cmp.Or(s.introducer, "\x1b[")
	return begin + colour + "m" + text + begin + "0m"
}

// nameColumn is how wide names of things are that have a paragraph beside them.
const nameColumn = 16

// Item prints a thing and what is said of it, a paragraph for each, folded beside its name.
func (s Style) Item(w io.Writer, name string, paragraphs ...string) {
	head := fmt.Sprintf("  %-*s", nameColumn-2, name)
	if len(head) > nameColumn {
		fmt.Fprintln(w, head)
		head = strings.Repeat(" ", nameColumn)
	}
	for _, p := range paragraphs {
		for _, line := range Fold(p, s.Width-nameColumn) {
			fmt.Fprintln(w, strings.TrimRight(head+line, " "))
			head = strings.Repeat(" ", nameColumn)
		}
	}
}

// Heading begins a part of what is printed.
func (s Style) Heading(w io.Writer, colour, text string) {
	fmt.Fprintln(w, s.Paint(colour, text))
}
