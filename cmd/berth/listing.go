package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"berth/internal/visible"
)

// screenful is how what is printed looks on a terminal.
type screenful struct {
	width  int
	colour bool
	// introducer begins an escape sequence that a.out lets pass; empty for ESC [.
	introducer string
}

func (a *app) screenful() screenful {
	s := screenful{width: max(60, columns(a.out)), colour: coloured(a.out, os.Getenv)}
	if w, ok := a.out.(*visible.Writer); ok {
		s.introducer = w.Introducer()
	}
	return s
}

// Colours that say something, as parameters of SGR.
const (
	colourBad  = "1;31"
	colourGood = "1;32"
	colourHint = "1;33"
)

// paint colours a text where that is wanted.
func (s screenful) paint(colour, text string) string {
	if !s.colour {
		return text
	}
	begin := cmp.Or(s.introducer, "\x1b[")
	return begin + colour + "m" + text + begin + "0m"
}

// nameColumn is how wide names of things are that have a paragraph beside them.
const nameColumn = 16

// item prints a thing and what is said of it, a paragraph for each, folded beside its name.
func (s screenful) item(w io.Writer, name string, paragraphs ...string) {
	head := fmt.Sprintf("  %-*s", nameColumn-2, name)
	if len(head) > nameColumn {
		fmt.Fprintln(w, head)
		head = strings.Repeat(" ", nameColumn)
	}
	for _, p := range paragraphs {
		for _, line := range fold(p, s.width-nameColumn) {
			fmt.Fprintln(w, strings.TrimRight(head+line, " "))
			head = strings.Repeat(" ", nameColumn)
		}
	}
}

// heading begins a part of what is printed.
func (s screenful) heading(w io.Writer, colour, text string) {
	fmt.Fprintln(w, s.paint(colour, text))
}
