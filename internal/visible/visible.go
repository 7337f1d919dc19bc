// Package visible keeps text from acting on a terminal.
//
// Names, errors and reasons come from libvirt, peers, domain XML and users. Control
// characters in them move the cursor, set titles or hide lines; marks of direction
// reorder what a person reads. The package writes each of them as its Go escape (\u202e), and each
// byte that is no UTF-8 likewise (\xff). Newlines and tabs stay. It holds no state but a
// Writer's, and imports nothing of this module.
package visible

import (
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// acts reports whether a terminal or a reader's eye would follow the character:
// C0 but for newline and tab, DEL, C1, the marks of Unicode's bidirectional
// algorithm (UAX 9), separators of lines, and tags.
func acts(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case r < ' ', r >= 0x7f && r <= 0x9f:
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return true
	}
	return r >= 0xe0000 && r <= 0xe007f
}

// Text gives s with what would act written out. In a JSON document the result says
// the same: there such characters stand in strings alone.
func Text(s string) string {
	at := strings.IndexFunc(s, func(r rune) bool { return acts(r) || r == utf8.RuneError })
	if at < 0 {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:at])
	for i := at; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		write(&b, s[i:i+n], r)
		i += n
	}
	return b.String()
}

func write(b *strings.Builder, text string, r rune) {
	switch {
	case r == utf8.RuneError && len(text) == 1:
		fmt.Fprintf(b, `\x%02x`, text[0])
	case acts(r) && r > 0xffff:
		high, low := utf16.EncodeRune(r)
		fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
	case acts(r):
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		b.WriteString(text)
	}
}

// Writer writes Text of what it is given to another writer. Sequences of the
// program's own begin with Introducer, and pass. Safe for concurrent use.
type Writer struct {
	mu      sync.Mutex // guards pending, and is held over the writes behind
	w       io.Writer
	mark    string // stands for ESC; nobody else can know it
	pending string // the beginning of a character or of mark, whose rest is to come
}

// NewWriter gives a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w, mark: "\x1b" + rand.Text()} }

// Introducer gives what the program writes in the place of the control sequence
// introducer, ESC [.
func (w *Writer) Introducer() string { return w.mark + "[" }

// Unwrap gives the writer behind.
func (w *Writer) Unwrap() io.Writer { return w.w }

// Write writes p, but for an incomplete character at its end, which waits for the
// next Write or for Flush.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.pending + string(p)
	w.pending = ""
	var b strings.Builder
	for s != "" {
		rest, own := strings.CutPrefix(s, w.mark)
		if own {
			b.WriteByte(0x1b)
			s = rest
			continue
		}
		if strings.HasPrefix(w.mark, s) || !utf8.FullRuneInString(s) {
			w.pending = s
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		write(&b, s[:n], r)
		s = s[n:]
	}
	if _, err := io.WriteString(w.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what waits for its rest as it is.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.pending
	w.pending = ""
	if s == "" {
		return nil
	}
	_, err := io.WriteString(w.w, Text(s))
	return err
}
