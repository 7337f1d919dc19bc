package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen prints acts, remarks and what commands say. Colour only on a terminal.
type screen struct {
	verbose bool       // what commands print is shown too, and every remark
	mu      sync.Mutex // guards w, so that lines of two writers do not mix
	w       io.Writer
	color   bool
	acts    int
	wide    int // columns of the terminal; 0 where it is none
}

func newScreen(f *os.File, verbose bool) *screen {
	wide, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		wide = 0
	}
	return &screen{verbose: verbose, w: f, color: term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "", wide: wide}
}

func (s *screen) style(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, format, args...)
}

func (s *screen) title(text string) {
	s.printf("\n%s\n%s\n", s.style("1", text), strings.Repeat("=", len(text)))
}

func (s *screen) act(text string) {
	s.acts++
	s.printf("\n%s\n", s.style("1;36", fmt.Sprintf("%d. %s", s.acts, text)))
}

func (s *screen) say(format string, args ...any) {
	s.printf("   %s\n", fmt.Sprintf(format, args...))
}

// detail says what the short form leaves out.
func (s *screen) detail(format string, args ...any) {
	if s.verbose {
		s.say(format, args...)
	}
}

func (s *screen) good(format string, args ...any) {
	s.printf("   %s %s\n", s.style("32", "✓"), fmt.Sprintf(format, args...))
}

func (s *screen) command(host, line string) { s.commandOf(host, "berth", line) }

func (s *screen) commandOf(host, program, line string) {
	gap := ""
	if s.verbose {
		gap = "\n"
	}
	s.printf("%s   %s\n", gap, s.style("1", host+"# "+program+" "+line))
}

func (s *screen) block(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if line != "\n" {
			line = under + line
		}
		s.printf("%s", line)
	}
}

// under is how far what a command says stands under its act.
const under = "     "

// indented is a writer whose lines stand under the act. A carriage return, as
// progress lines use, goes through and is indented too.
func (s *screen) indented() io.Writer { return &indent{s: s, fresh: true} }

type indent struct {
	s     *screen
	fresh bool
}

func (i *indent) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for _, c := range p {
		if i.fresh && c != '\n' && c != '\r' {
			b.WriteString(under)
			i.fresh = false
		}
		b.WriteByte(c)
		if c == '\n' || c == '\r' {
			i.fresh = true
		}
	}
	i.s.printf("%s", b.String())
	return len(p), nil
}
