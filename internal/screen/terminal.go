package screen

import (
	"cmp"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"

	"berth/internal/visible"
)

// Behind gives the writer that w makes text visible for, or w.
func Behind(w io.Writer) io.Writer {
	if v, ok := w.(*visible.Writer); ok {
		return v.Unwrap()
	}
	return w
}

// IsTerminal says whether somebody watches.
func IsTerminal(w io.Writer) bool {
	f, ok := Behind(w).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// PipeColumns is how wide a drawing is where no terminal says. Arbitrary.
const PipeColumns = 100

// Columns is how wide what is written may be.
func Columns(w io.Writer) int {
	if f, ok := Behind(w).(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return PipeColumns
}

// Coloured says whether escape sequences are wanted: only where somebody watches, and has not
// set NO_COLOR (https://no-color.org) or a terminal that knows none.
func Coloured(w io.Writer, env func(string) string) bool {
	return IsTerminal(w) && env("NO_COLOR") == "" && env("TERM") != "dumb"
}

// KnowsUTF8 says whether the locale's characters are UTF-8 (locale(7): the first that is set
// counts); those of the C locale are ASCII.
func KnowsUTF8(env func(string) string) bool {
	locale := strings.ToUpper(cmp.Or(env("LC_ALL"), env("LC_CTYPE"), env("LANG")))
	return strings.Contains(locale, "UTF-8") || strings.Contains(locale, "UTF8")
}
